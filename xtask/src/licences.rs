//! What is linked into a static program, and under which licences.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use spdx::{Expression, Licensee, ParseMode};
use xtask::apt;
use xtask::shell::{Result, Run as _, cargo, root};

use crate::architecture::Architecture;
use crate::build;
use crate::rust::Rust;

/// The static libraries, and their licences in SPDX's words: those of the notices in their sources, which Debian's
/// copyright files repeat.
const LIBRARIES: [(&str, &str); 4] = [
    ("libnftnl", "GPL-2.0-or-later"),
    ("libmnl", "LGPL-2.1-or-later"),
    ("glibc", "LGPL-2.1-or-later"),
    // libgcc_eh.a and libgcc.a. The exception lets a program have any licence.
    ("libgcc", "GPL-3.0-or-later WITH GCC-exception-3.1"),
];

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
    /// A package of Debian's, and its version.
    Debian(String, String),
    RustToolchain,
}

impl Component {
    /// What its licence comes to, given the licences that may be chosen.
    fn requirements(&self, allowed: &[Licensee]) -> Result<Vec<String>> {
        let error =
            |error: &dyn std::fmt::Display| format!("{} {}: {}: {error}", self.name, self.version, self.licence);
        let expression = Expression::parse_mode(&self.licence, ParseMode::LAX).map_err(|reason| error(&reason))?;
        let chosen = expression
            .minimized_requirements(allowed)
            .map_err(|reason| error(&reason))?;
        Ok(chosen.iter().map(ToString::to_string).collect())
    }

    /// The name of its folder among the licences: of a version, and of an architecture where Debian's packages differ.
    fn folder(&self) -> String {
        match &self.origin {
            Origin::Debian(package, version) => format!("{package}-{version}"),
            Origin::Crate | Origin::RustToolchain => format!("{}-{}", self.name, self.version),
        }
    }
}

/// Everything that is linked into a program: crates, Rust's standard library and C's libraries.
pub(crate) fn components(program: &str, architecture: Architecture) -> Result<Vec<Component>> {
    let mut components = crates(program, architecture)?;
    components.push(standard_library(architecture)?);
    components.extend(libraries(architecture)?);
    Ok(components)
}

/// The one expression for a program: the licences that apply together, where there is a choice, those of deny.toml.
pub(crate) fn expression(components: &[Component]) -> Result<String> {
    let mut allowed = allowed()?;
    for (_, licence) in LIBRARIES {
        allowed.push(Licensee::parse(licence)?);
    }
    let mut licences = BTreeSet::new();
    for component in components {
        licences.extend(component.requirements(&allowed)?);
    }
    Ok(licences.into_iter().collect::<Vec<_>>().join(" AND "))
}

/// Fails if a crate that is linked into a program has a licence that cargo-deny is not told to allow.
pub(crate) fn audit(program: &str, architecture: Architecture) -> Result<()> {
    let allowed = allowed()?;
    let components = components(program, architecture)?;
    for component in &components {
        if !matches!(component.origin, Origin::Debian(..)) {
            component.requirements(&allowed)?;
        }
    }
    println!("{program}, {}: {}", architecture.name(), expression(&components)?);
    Ok(())
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
        let _ = writeln!(
            list,
            "| {} | {} | {} | {name}/ |",
            component.name, component.version, component.licence
        );
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

/// The crates that are linked into a program, without those that run while it is compiled.
fn crates(program: &str, architecture: Architecture) -> Result<Vec<Component>> {
    let metadata = cargo(&["metadata", "--locked", "--format-version", "1"]).read()?;
    let metadata: Value = serde_json::from_str(&metadata)?;
    let packages = metadata.get("packages").and_then(Value::as_array);
    let packages = packages.ok_or("cargo metadata lists no packages")?;
    let tree = cargo(&[
        "tree",
        "--locked",
        "--package",
        program,
        "--edges",
        "normal,no-proc-macro",
    ])
    .args(["--target", &architecture.triple(), "--prefix", "none"])
    .args(["--format", "{p}"])
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
    let mut texts: Vec<_> = fs::read_dir(folder)?
        .flatten()
        .map(|entry| entry.path())
        .filter(is_text)
        .collect();
    if texts.is_empty() {
        if !licence.contains("Apache-2.0") {
            return Err(format!("{}: no text of the licence {licence}", folder.display()).into());
        }
        texts.push(root().join("LICENSE"));
    }
    texts.sort();
    Ok(texts)
}

fn standard_library(architecture: Architecture) -> Result<Component> {
    let (name, licence) = ("rust-std", "MIT OR Apache-2.0");
    if let Rust::Debian { library, .. } = Rust::of(architecture)? {
        return of_debian(name, licence, &library);
    }
    let version = Command::new("rustc").arg("--version").read()?;
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).read()?;
    let documents = Path::new(sysroot.trim()).join("share/doc/rust");
    Ok(Component {
        name: name.to_owned(),
        version: version.split(' ').nth(1).unwrap_or_default().to_owned(),
        licence: licence.to_owned(),
        texts: ["COPYRIGHT-library.html", "licenses/MIT.txt", "licenses/Apache-2.0.txt"]
            .map(|text| documents.join(text))
            .into(),
        origin: Origin::RustToolchain,
    })
}

fn libraries(architecture: Architecture) -> Result<Vec<Component>> {
    let files = build::static_libraries(architecture)?;
    let libraries = LIBRARIES.into_iter().zip(files);
    libraries
        .map(|((name, licence), file)| of_debian(name, licence, &file))
        .collect()
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
    let version = Command::new("dpkg-query")
        .args(["--show", "--showformat", "${Version}\n", &package])
        .read()?;
    let version = version.lines().next().unwrap_or_default().to_owned();
    let copyright = copyright(Path::new("/"), &package);
    Ok((package, version, copyright))
}
