//! The library as other programs get it: its public items.

use std::fs;

use lab::shell::{self, Result, Run as _, cargo};

/// The list of the library's public items, which is reviewed with the code.
const LIST: &str = "docs/library-api.txt";

/// Fails unless the list is what the library offers.
///
/// # Errors
/// How the two differ, and how to bring the list up to date.
pub(crate) fn check_items() -> Result<()> {
    let (listed, offered) = (fs::read_to_string(shell::root().join(LIST))?, items()?);
    if listed == offered {
        return Ok(());
    }
    let mut text = String::new();
    let (listed, offered): (Vec<_>, Vec<_>) = (listed.lines().collect(), offered.lines().collect());
    for (sign, lines, others) in [('-', &listed, &offered), ('+', &offered, &listed)] {
        for line in lines.iter().filter(|line| !others.contains(line)) {
            text += &format!("\n{sign} {line}");
        }
    }
    Err(format!(
        "the library's public items are not those of {LIST}: if that is meant, run `cargo xtask library-api`, and commit \
         the list with the change{text}"
    )
    .into())
}

/// Writes the list.
///
/// # Errors
/// The items can't be listed.
pub(crate) fn write_items() -> Result<()> {
    Ok(fs::write(shell::root().join(LIST), items()?)?)
}

/// As a program that embeds the library sees it: without the command line.
fn items() -> Result<String> {
    let own = items_of("proxy-init", &["--no-default-features"])?;
    let listed = with_offered(&own, &items_of("packets", &[])?);
    match unnamed(&listed) {
        Some(line) => Err(format!("src/lib.rs doesn't offer a type that other programs get to see: {line}").into()),
        None => Ok(listed),
    }
}

/// The public items of a package.
fn items_of(package: &str, features: &[&str]) -> Result<String> {
    let folder = shell::target("library-api");
    cargo(&["rustdoc", "--lib", "--locked", "--package", package])
        .args(features)
        .arg("--target-dir")
        .arg(&folder)
        .args(["--", "-Z", "unstable-options", "--output-format", "json"])
        // rustdoc's JSON is not stable yet; the compiler takes its flag all the same.
        .env("RUSTC_BOOTSTRAP", "1")
        .run()?;
    let json = folder.join(format!("doc/{}.json", package.replace('-', "_")));
    let listed = cargo(&["run", "--quiet", "--locked", "--package", "library-api", "--"]).arg(json).read();
    let advice =
        "xtask/library-api/Cargo.toml needs the version of public-api that reads the JSON of this Rust's rustdoc";
    Ok(listed.map_err(|error| format!("{error}\n{advice}"))?)
}

/// The library's items, with those of the types that it offers from the crate beneath, under the names that it gives them.
fn with_offered(own: &str, beneath: &str) -> String {
    let mut lines = Vec::new();
    let mut types = Vec::new();
    for line in own.lines() {
        match line.strip_prefix("pub use proxy_init::") {
            Some(name) => types.push(name),
            None => lines.push(renamed(line, &types)),
        }
    }
    for line in beneath.lines() {
        let renamed = renamed(line, &types);
        // The first type that a line names is the one that it is about.
        let about = [renamed.find("proxy_init::"), renamed.find("packets::")];
        if let [Some(own), other] = about
            && other.is_none_or(|other| own < other)
        {
            lines.push(renamed);
        }
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// A line with the library's names for these types of the crate beneath.
fn renamed(line: &str, types: &[&str]) -> String {
    let is_of_path = |character: char| character.is_ascii_alphanumeric() || character == '_' || character == ':';
    let mut renamed = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("packets::") {
        let end = after.find(|character| !is_of_path(character)).unwrap_or(after.len());
        let (path, left) = after.split_at(end);
        let parts: Vec<&str> = path.split("::").collect();
        let of_type = parts.iter().position(|part| part.starts_with(char::is_uppercase));
        renamed += before;
        renamed += &match of_type.map(|index| &parts[index..]) {
            Some(named @ [name, ..]) if types.contains(name) => format!("proxy_init::{}", named.join("::")),
            _ => format!("packets::{path}"),
        };
        rest = left;
    }
    renamed + rest
}

/// The first line with a path that leads through a private module, or into another crate of this project.
fn unnamed(listed: &str) -> Option<&str> {
    const CRATE: &str = "proxy_init::";
    let modules = listed.lines().filter_map(|line| line.strip_prefix("pub mod "));
    let modules: Vec<_> = modules.filter_map(|path| path.strip_prefix(CRATE)).collect();
    let is_private = |path: &str| {
        path.split_once("::").is_some_and(|(first, _)| {
            let is_module = |name: &str| name.chars().all(|it| it.is_ascii_lowercase() || it == '_');
            is_module(first) && !modules.contains(&first)
        })
    };
    let is_hidden = |line: &&str| {
        line.split(CRATE).skip(1).any(is_private) || line.contains("packets::") || line.contains("netfilter::")
    };
    listed.lines().find(is_hidden)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_through_a_private_module_is_found() {
        let listed = "pub mod proxy_init::error\npub fn proxy_init::error::chain() -> proxy_init::Mode\npub fn proxy_init::show<T>()";
        assert_eq!(unnamed(listed), None);
        let hidden = "pub proxy_init::Install::mode: core::option::Option<proxy_init::operate::ModeChoice>";
        assert_eq!(unnamed(&format!("{listed}\n{hidden}")), Some(hidden));
        let beneath = "pub fn proxy_init::Mode::walk(self) -> trace::step::Step";
        assert_eq!(unnamed(&format!("{listed}\n{beneath}")), Some(beneath));
    }

    #[test]
    fn what_is_offered_from_the_crate_beneath_is_listed() {
        let own = "pub mod proxy_init\npub use proxy_init::Family\npub fn proxy_init::f(ruleset::family::Family, u8)";
        let beneath = "pub mod packets\npub enum ruleset::Family\npub ruleset::Family::V4\n\
                       pub ruleset::Field::Family\nimpl core::fmt::Display for ruleset::Family\n\
                       pub fn ruleset::subnet(ruleset::Family)";
        assert_eq!(
            with_offered(own, beneath),
            "pub mod proxy_init\npub fn proxy_init::f(proxy_init::Family, u8)\npub enum proxy_init::Family\n\
             pub proxy_init::Family::V4\nimpl core::fmt::Display for proxy_init::Family\n"
        );
    }
}
