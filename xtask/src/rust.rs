//! Rust for another architecture: this machine's compiler once rustup has added the standard library for it, or else
//! Debian's compiler and library, unpacked under target/.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use xtask::apt;
use xtask::shell::{Result, Run as _};

use crate::architecture::Architecture;

/// The release of Debian that always has a Rust of this year. It has one package of each version, so what it builds today
/// may differ from what it builds next month.
const RELEASE: &str = "sid";

/// Debian's package of the standard library.
const LIBRARY: &str = "libstd-rust-dev";

/// A compiler, and the standard library that it links for an architecture.
#[derive(Clone)]
pub(crate) enum Rust {
    /// The one on PATH, with a library of its own or of rustup's.
    OnPath,
    /// Debian's: a command that runs the compiler, and the unpacked package of the library.
    Debian { compiler: PathBuf, library: PathBuf },
}

impl Rust {
    /// Finds it, installs it if need be, and says which one it is if that surprises.
    pub(crate) fn of(architecture: Architecture) -> Result<Self> {
        // One, however often it is asked: there is one other architecture, and what another compiler has compiled for it is of
        // no use to this one.
        static FOUND: OnceLock<Rust> = OnceLock::new();
        if architecture == Architecture::here()? {
            return Ok(Self::OnPath);
        }
        if let Some(found) = FOUND.get() {
            return Ok(found.clone());
        }
        let triple = architecture.triple();
        let found = match rustups(&triple) {
            Ok(()) => Self::OnPath,
            Err(reason) => {
                let no_library = format!("Rust's standard library for {triple} is missing: {reason}");
                eprintln!("xtask: {no_library}; taking Debian's compiler and library");
                let debians = debians(architecture);
                debians.map_err(|error| format!("{no_library}; and Debian's can't be had: {error}"))?
            }
        };
        Ok(FOUND.get_or_init(|| found).clone())
    }

    /// Tells cargo.
    pub(crate) fn compile(&self, build: &mut Command) {
        if let Self::Debian { compiler, .. } = self {
            build.env("RUSTC", compiler);
        }
    }
}

/// Has rustup add the library of a target that the compiler on PATH has not.
fn rustups(triple: &str) -> Result<()> {
    let folder = Command::new("rustc")
        .args(["--print", "target-libdir", "--target", triple])
        .read()?;
    let folder = Path::new(folder.trim());
    if folder.exists() {
        return Ok(());
    }
    Command::new("rustup").args(["target", "add", triple]).run()?;
    if folder.exists() {
        return Ok(());
    }
    Err(format!("rustup says that it is there, but {} is not", folder.display()).into())
}

/// Debian's compiler for this machine, in a root of its own, with the library for another architecture. It runs by the loader
/// and the libraries of that root, so that this machine's may be older, and nobody has to be root.
fn debians(architecture: Architecture) -> Result<Rust> {
    let here = Architecture::here()?;
    let root = apt::unpack_all(RELEASE, "rust", &["rustc"])?;
    let library = apt::unpack(RELEASE, &architecture.package(LIBRARY))?;
    let triple = architecture.triple();
    let link = root.join("usr/lib/rustlib").join(&triple);
    if !link.exists() {
        std::os::unix::fs::symlink(library.join("usr/lib/rustlib").join(&triple), link)?;
    }
    let loader = apt::find(&root, here.loader()).ok_or_else(|| format!("{}: no {}", root.display(), here.loader()))?;
    let compiler = root.join("rustc");
    let libraries = root.join(format!("usr/lib/{}-linux-gnu", here.machine()));
    let script = format!(
        "#!/bin/sh\nexec '{}' --library-path '{}' '{}' --sysroot '{}' \"$@\"\n",
        loader.display(),
        libraries.display(),
        root.join("usr/bin/rustc").display(),
        root.join("usr").display()
    );
    // Cargo compiles everything again if the compiler is younger.
    if fs::read_to_string(&compiler).ok().as_ref() != Some(&script) {
        fs::write(&compiler, script)?;
        fs::set_permissions(&compiler, Permissions::from_mode(0o755))?;
    }
    // rustc 1.97.1 (…), 1.97.1+dfsg1-1
    let said = Command::new(&compiler).arg("--version").read()?;
    let version = said.split(' ').nth(1).unwrap_or_default();
    let of_library = apt::version(&library)?;
    if !of_library.starts_with(&format!("{version}+")) {
        return Err(format!(
            "the compiler is {version} and the library {of_library}: remove {} and {}, then try again",
            root.display(),
            library.display()
        )
        .into());
    }
    Ok(Rust::Debian { compiler, library })
}
