//! The parts of a static program, and their licences.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::apt;
use lab::architecture::Architecture;
use lab::shell::{Result, Run as _, cargo, root};
use serde_json::Value;

use crate::build;
use crate::c_libraries::{self, Libraries};
use crate::rust::Rust;

/// The licence of a program as a whole, which NOTICE explains.
pub(crate) const OF_A_PROGRAM: &str = "GPL-3.0-or-later";

/// The texts of GNU's licences, which Debian's copyright files refer to.
const TEXTS: &str = "/usr/share/common-licenses";

/// Something that is linked into a program.
pub(crate) struct Component {
    pub(crate) name: String,
    pub(crate) version: String,
    /// As its authors say it, an expression of SPDX.
    pub(crate) licence: String,
    /// The package URL, which names a package of Debian with its architecture.
    pub(crate) purl: String,
    /// The files that have its licence and its authors' names, and the name of their folder among the licences.
    texts: Vec<PathBuf>,
    folder: String,
}

/// Everything that is linked into a program: crates, Rust's standard library and C's libraries.
pub(crate) fn components(program: &str, architecture: Architecture) -> Result<Vec<Component>> {
    let triple = architecture.triple();
    let libraries = Libraries::of(architecture)?;
    let mut components = crates(cargo, program, &triple, &[])?;
    components.extend(standard_library(&triple)?);
    // The licences are those of the notices in the libraries' sources, which Debian's copyright files repeat. libgcc's
    // exception lets a program have any licence.
    let mut of_debian = vec![
        ("libnftnl", "GPL-2.0-or-later", libraries.nftnl.file.clone()),
        ("libmnl", "LGPL-2.1-or-later", libraries.mnl.file.clone()),
        ("musl", "MIT", libraries.libc.clone()),
        ("libgcc", "GPL-3.0-or-later WITH GCC-exception-3.1", libraries.libgcc.clone()),
    ];
    if let Some(carried) = build::carried_by(program) {
        components.extend(crates(cargo, carried, &triple, &[])?);
        // It carries programs of C that are linked with glibc, to compare with.
        of_debian.push(("glibc", "LGPL-2.1-or-later", c_libraries::glibc(architecture)?));
    }
    for (name, licence, file) in of_debian {
        let Package { name: package, version, copyright } = package_of(&file)?;
        // The cross compiler's libraries are of no architecture, for apt.
        let architecture = if package.ends_with("-cross") { "all" } else { architecture.name() };
        // A package URL has these in the version encoded: 2:2.36-9+deb12u14.
        let encoded = version.replace(':', "%3A").replace('+', "%2B");
        components.push(Component {
            name: name.to_owned(),
            // 1.0.5-3 is libmnl 1.0.5.
            version: version.split(['-', '+']).next().unwrap_or_default().to_owned(),
            licence: licence.to_owned(),
            purl: format!("pkg:deb/debian/{package}@{encoded}?arch={architecture}"),
            texts: vec![copyright],
            folder: format!("{package}-{version}"),
        });
    }
    let mut seen = BTreeSet::new();
    components.retain(|component| seen.insert(component.purl.clone()));
    Ok(components)
}

/// Writes the licences of these, with a list of them, into a folder.
pub(crate) fn write(components: &[Component], folder: &Path) -> Result<()> {
    let mut list = String::from("| component | version | licence | texts |\n|---|---|---|---|\n");
    let mut seen = BTreeSet::new();
    for Component { name, version, licence, texts, folder: own, .. } in components {
        // Two programs of an image share most of their components.
        if !seen.insert(own) {
            continue;
        }
        let to = folder.join(own);
        let _ = writeln!(list, "| {name} | {version} | {licence} | {own}/ |");
        fs::create_dir_all(&to)?;
        for text in texts {
            let file = text.file_name().ok_or("a licence without a name")?;
            fs::copy(text, to.join(file)).map_err(|error| format!("{}: {error}", text.display()))?;
        }
    }
    for text in ["GPL-2", "GPL-3", "LGPL-2.1"] {
        fs::copy(Path::new(TEXTS).join(text), folder.join(text))?;
    }
    for file in ["LICENSE", "NOTICE"] {
        fs::copy(root().join(file), folder.join(file))?;
    }
    let notice = fs::read_to_string(root().join("NOTICE"))?;
    Ok(fs::write(folder.join("README.md"), format!("{notice}\n{list}"))?)
}

/// The crates that are linked into a package, without those that run while it is compiled; `cargo` runs a subcommand
/// for the package's workspace.
fn crates(
    cargo: impl Fn(&[&str]) -> Command,
    package: &str,
    triple: &str,
    features: &[&str],
) -> Result<Vec<Component>> {
    let metadata = cargo(&["metadata", "--locked", "--format-version", "1"]).read()?;
    let metadata: Value = serde_json::from_str(&metadata)?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    let mut tree = cargo(&["tree", "--locked", "--package", package]);
    let tree = tree
        .args(["--edges", "normal,no-proc-macro", "--target", triple])
        .args(["--prefix", "none", "--format", "{p}"])
        .args(features)
        .read()?;
    // "nix v0.31.3", "proxy-init v0.2.0 (/path)", "libc v0.2.191 (*)"
    let linked: BTreeSet<(&str, &str)> = tree
        .lines()
        .filter_map(|line| line.split(' ').next().zip(line.split(" v").nth(1)?.split(' ').next()))
        .collect();
    let mut components = Vec::new();
    for (name, version) in linked {
        let package = packages.iter().find(|package| package["name"] == name && package["version"] == version);
        let package = package.ok_or_else(|| format!("cargo metadata has no {name} {version}"))?;
        let licence = package["license"].as_str().ok_or_else(|| format!("{name} {version} names no licence"))?;
        let manifest = package["manifest_path"].as_str().ok_or("cargo metadata names no manifest")?;
        // Our own crates are in no registry.
        let kind = if package["source"].is_null() { "generic" } else { "cargo" };
        components.push(Component {
            name: name.to_owned(),
            version: version.to_owned(),
            // Older crates have a slash where SPDX has a word.
            licence: licence.replace('/', " OR "),
            purl: format!("pkg:{kind}/{name}@{version}"),
            texts: texts_in(Path::new(manifest).parent().unwrap_or(root()), licence)?,
            folder: format!("{name}-{version}"),
        });
    }
    Ok(components)
}

/// A crate's files with its licence; this project's own where a crate brings none and may be had under Apache-2.0.
fn texts_in(folder: &Path, licence: &str) -> Result<Vec<PathBuf>> {
    let is_text = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        let beginnings = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];
        path.is_file() && beginnings.iter().any(|beginning| name.starts_with(beginning))
    };
    let mut texts: Vec<_> = fs::read_dir(folder)?.flatten().map(|entry| entry.path()).filter(is_text).collect();
    if texts.is_empty() {
        if !licence.contains("Apache-2.0") {
            return Err(format!("{}: no text of the licence {licence}", folder.display()).into());
        }
        texts.push(root().join("LICENSE"));
    }
    texts.sort();
    Ok(texts)
}

/// Rust's standard library, with the crates that it takes when it is compiled for musl.
fn standard_library(triple: &str) -> Result<Vec<Component>> {
    let rust = Rust::get()?;
    let version = rust.version()?;
    let mut components = vec![Component {
        name: "rust-std".to_owned(),
        licence: "MIT OR Apache-2.0".to_owned(),
        purl: format!("pkg:generic/rust-std@{version}"),
        texts: rust.licences()?,
        folder: format!("rust-std-{version}"),
        version,
    }];
    let manifest = rust.library()?.join("std/Cargo.toml");
    let cargo = |arguments: &[&str]| {
        let mut command = cargo(arguments);
        command.arg("--manifest-path").arg(&manifest).env("RUSTC_BOOTSTRAP", "1");
        command
    };
    let crates = crates(cargo, "std", triple, &["--no-default-features"])?;
    // The library's own parts are of no version.
    let is_own = |one: &Component| one.version == "0.0.0" || one.name.starts_with("rustc-std-workspace");
    components.extend(crates.into_iter().filter(|one| !is_own(one)));
    Ok(components)
}

/// A package of Debian, with its version and its copyright file.
struct Package {
    name: String,
    version: String,
    copyright: PathBuf,
}

/// The package that a file is from: an unpacked one, or one of this machine.
fn package_of(file: &Path) -> Result<Package> {
    let copyright = |root: &Path, package: &str| root.join("usr/share/doc").join(package).join("copyright");
    for folder in file.ancestors() {
        if let (Ok(version), Some(package)) = (apt::version(folder), folder.file_name()) {
            let name = package.to_string_lossy().into_owned();
            return Ok(Package { copyright: copyright(folder, &name), name, version });
        }
    }
    let owner = Command::new("dpkg-query").arg("--search").arg(file).read()?;
    let name = owner.split(':').next().unwrap_or_default().to_owned();
    let version = Command::new("dpkg-query").args(["--show", "--showformat", "${Version}\n", &name]).read()?;
    let version = version.lines().next().unwrap_or_default().to_owned();
    Ok(Package { copyright: copyright(Path::new("/"), &name), name, version })
}
