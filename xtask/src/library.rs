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
    let folder = shell::target("library-api");
    cargo(&["rustdoc", "--lib", "--locked", "--no-default-features"])
        .arg("--target-dir")
        .arg(&folder)
        .args(["--", "-Z", "unstable-options", "--output-format", "json"])
        // rustdoc's JSON is not stable yet; the compiler takes its flag all the same.
        .env("RUSTC_BOOTSTRAP", "1")
        .run()?;
    let json = folder.join("doc/proxy_init.json");
    let listed = cargo(&["run", "--quiet", "--locked", "--package", "library-api", "--"])
        .arg(json)
        .read();
    let advice =
        "xtask/library-api/Cargo.toml needs the version of public-api that reads the JSON of this Rust's rustdoc";
    let listed = listed.map_err(|error| format!("{error}\n{advice}"))?;
    match unnamed(&listed) {
        Some(line) => Err(format!("src/lib.rs doesn't offer a type that other programs get to see: {line}").into()),
        None => Ok(listed),
    }
}

/// The first line with a path that leads through a private module.
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
    listed.lines().find(|line| line.split(CRATE).skip(1).any(is_private))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_through_a_private_module_is_found() {
        let listed = "pub mod proxy_init::error\npub fn proxy_init::error::chain() -> proxy_init::Mode\npub fn proxy_init::show<T>()";
        assert_eq!(unnamed(listed), None);
        let hidden = "pub proxy_init::Install::mode: core::option::Option<proxy_init::operate::Choice>";
        assert_eq!(unnamed(&format!("{listed}\n{hidden}")), Some(hidden));
    }
}
