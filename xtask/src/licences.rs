//! The parts of a static program, and their licences.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::apt;
use lab::shell::{Result, Run as _, cargo, root};
use serde_json::Value;
use spdx::{Expression, Licensee, ParseMode};

use crate::rust::Rust;
use crate::target;
use crate::{build, c_libraries};
use lab::architecture::Architecture;

// The licences of the static libraries in SPDX's words: those of the notices in their sources, which Debian's copyright
// files repeat.
const LIBNFTNL: (&str, &str) = ("libnftnl", "GPL-2.0-or-later");
const LIBMNL: (&str, &str) = ("libmnl", "LGPL-2.1-or-later");
const MUSL: (&str, &str) = ("musl", "MIT");
const GLIBC: (&str, &str) = ("glibc", "LGPL-2.1-or-later");
/// libgcc_eh.a, libgcc.a, and what a program starts and ends with. The exception lets a program have any licence.
const LIBGCC: (&str, &str) = ("libgcc", "GPL-3.0-or-later WITH GCC-exception-3.1");

/// The texts of GNU's licences, which Debian's copyright files refer to.
const TEXTS: &str = "/usr/share/common-licenses";

/// Something that is linked into a program.
pub(crate) struct Component {
    pub(crate) name: String,
    pub(crate) version: String,
    /// As its authors say it, an expression of SPDX.
    pub(crate) licence: String,
    /// The files that have its licence and its authors' names.
    texts: Vec<PathBuf>,
    pub(crate) origin: Origin,
}

pub(crate) enum Origin {
    Crate,
    /// One that Rust's standard library is made of.
    CrateOfStandardLibrary,
    /// A package of Debian's, and its version.
    Debian(String, String),
    RustToolchain,
}

impl Component {
    /// The requirements of its licence, given the licences that may be chosen.
    fn requirements(&self, allowed: &[Licensee]) -> Result<Vec<String>> {
        let error =
            |error: &dyn std::fmt::Display| format!("{} {}: {}: {error}", self.name, self.version, self.licence);
        let expression = Expression::parse_mode(&self.licence, ParseMode::LAX).map_err(|reason| error(&reason))?;
        let chosen = expression.minimized_requirements(allowed).map_err(|reason| error(&reason))?;
        Ok(chosen.iter().map(ToString::to_string).collect())
    }

    /// The name of its folder among the licences: of a version, and of an architecture where Debian's packages differ.
    fn folder(&self) -> String {
        match &self.origin {
            Origin::Debian(package, version) => format!("{package}-{version}"),
            Origin::Crate | Origin::CrateOfStandardLibrary | Origin::RustToolchain => {
                format!("{}-{}", self.name, self.version)
            }
        }
    }
}

/// Everything that is linked into a program: crates, Rust's standard library and C's libraries.
pub(crate) fn components(program: &str, architecture: Architecture) -> Result<Vec<Component>> {
    let target = target::of(architecture)?;
    let triple = target.triple();
    let mut components = crates(cargo, program, &triple, &[])?;
    let libraries = &target.libraries;
    components.extend(standard_library(&target.rust, &triple)?);
    for ((name, licence), file) in [
        (LIBNFTNL, &libraries.nftnl.file),
        (LIBMNL, &libraries.mnl.file),
        (MUSL, &libraries.libc),
        (LIBGCC, &libraries.libgcc),
    ] {
        components.push(of_debian(name, licence, file)?);
    }
    // It carries programs of C that are linked with glibc, to compare with.
    if build::carried_by(program).is_some() {
        components.push(of_debian(GLIBC.0, GLIBC.1, &c_libraries::glibc(architecture)?)?);
    }
    Ok(components)
}

/// The one expression for a program: the licences that apply together, where there is a choice, those of deny.toml.
pub(crate) fn expression(components: &[Component]) -> Result<String> {
    let mut allowed = allowed()?;
    for (_, licence) in [LIBNFTNL, LIBMNL, MUSL, GLIBC, LIBGCC] {
        allowed.push(Licensee::parse(licence)?);
    }
    let mut licences = BTreeSet::new();
    for component in components {
        licences.extend(component.requirements(&allowed)?);
    }
    Ok(licences.into_iter().collect::<Vec<_>>().join(" AND "))
}

/// Writes the licences of these, with a list of them, into a folder.
pub(crate) fn write(components: &[Component], folder: &Path) -> Result<()> {
    let mut list = String::from("| component | version | licence | texts |\n|---|---|---|---|\n");
    let mut seen = BTreeSet::new();
    for component in components {
        let name = component.folder();
        if !seen.insert(name.clone()) {
            continue;
        }
        let _ = writeln!(list, "| {} | {} | {} | {name}/ |", component.name, component.version, component.licence);
        let to = folder.join(&name);
        fs::create_dir_all(&to)?;
        for text in &component.texts {
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
    fs::write(folder.join("README.md"), format!("{notice}\n{list}"))?;
    Ok(())
}

/// The licences of deny.toml, in the order of preference there.
fn allowed() -> Result<Vec<Licensee>> {
    let text = fs::read_to_string(root().join("deny.toml"))?;
    let list = text.split("\nallow = [").nth(1).and_then(|rest| rest.split(']').next());
    let list = list.ok_or("deny.toml has no list of allowed licences")?;
    let names = list.split('"').skip(1).step_by(2);
    Ok(names.map(Licensee::parse).collect::<std::result::Result<_, _>>()?)
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
    let packages = metadata.get("packages").and_then(Value::as_array);
    let packages = packages.ok_or("cargo metadata lists no packages")?;
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
        let is_it = |package: &&Value| package["name"] == name && package["version"] == version;
        let package = packages.iter().find(is_it);
        let package = package.ok_or_else(|| format!("cargo metadata has no {name} {version}"))?;
        let word = |key: &str| package.get(key).and_then(Value::as_str);
        let licence = word("license").ok_or_else(|| format!("{name} {version} names no licence"))?;
        let manifest = word("manifest_path").ok_or("cargo metadata names no manifest")?;
        components.push(Component {
            name: name.to_owned(),
            version: version.to_owned(),
            licence: licence.to_owned(),
            texts: texts_in(Path::new(manifest).parent().unwrap_or(root()), licence)?,
            origin: Origin::Crate,
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

/// Rust's standard library: of the compiler on PATH, or of the one that makes it for musl, with the crates that it
/// takes then.
fn standard_library(rust: &Rust, triple: &str) -> Result<Vec<Component>> {
    let (name, licence) = ("rust-std", "MIT OR Apache-2.0");
    let library = if let Rust::Debian { source, .. } = rust {
        of_debian(name, licence, source)?
    } else {
        let version = Command::new("rustc").arg("--version").read()?;
        let sysroot = Command::new("rustc").args(["--print", "sysroot"]).read()?;
        let documents = Path::new(sysroot.trim()).join("share/doc/rust");
        Component {
            name: name.to_owned(),
            version: version.split(' ').nth(1).unwrap_or_default().to_owned(),
            licence: licence.to_owned(),
            texts: ["COPYRIGHT-library.html", "licenses/MIT.txt", "licenses/Apache-2.0.txt"]
                .map(|text| documents.join(text))
                .into(),
            origin: Origin::RustToolchain,
        }
    };
    let mut components = vec![library];
    let manifest = rust.library()?.join("std/Cargo.toml");
    let cargo = |arguments: &[&str]| {
        let mut command = cargo(arguments);
        command.arg("--manifest-path").arg(&manifest);
        command.env("RUSTC", rust.command()).env("RUSTC_BOOTSTRAP", "1");
        command
    };
    // Its own parts are of no version.
    let is_own = |one: &Component| one.version == "0.0.0" || one.name.starts_with("rustc-std-workspace");
    let crates = crates(cargo, "std", triple, &["--no-default-features"])?;
    components.extend(
        crates
            .into_iter()
            .filter(|one| !is_own(one))
            .map(|one| Component { origin: Origin::CrateOfStandardLibrary, ..one }),
    );
    Ok(components)
}

/// A component by this name, which is in this file or folder of a package.
fn of_debian(name: &str, licence: &str, file: &Path) -> Result<Component> {
    let (package, version, copyright) = package_of(file)?;
    Ok(Component {
        name: name.to_owned(),
        // 1.0.5-3 is libmnl 1.0.5, 1.97.1+dfsg1-1 is Rust 1.97.1.
        version: version.split(['-', '+']).next().unwrap_or_default().to_owned(),
        licence: licence.to_owned(),
        texts: vec![copyright],
        origin: Origin::Debian(package, version),
    })
}

/// The package of Debian's that a file is from, its version and its copyright file.
fn package_of(file: &Path) -> Result<(String, String, PathBuf)> {
    let copyright = |root: &Path, package: &str| root.join("usr/share/doc").join(package).join("copyright");
    for folder in file.ancestors() {
        if let (Ok(version), Some(package)) = (apt::version(folder), folder.file_name()) {
            let package = package.to_string_lossy();
            return Ok((package.clone().into_owned(), version, copyright(folder, &package)));
        }
    }
    let owner = Command::new("dpkg-query").arg("--search").arg(file).read()?;
    let package = owner.split(':').next().unwrap_or_default().to_owned();
    let version = Command::new("dpkg-query").args(["--show", "--showformat", "${Version}\n", &package]).read()?;
    let version = version.lines().next().unwrap_or_default().to_owned();
    let copyright = copyright(Path::new("/"), &package);
    Ok((package, version, copyright))
}
