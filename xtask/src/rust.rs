//! The compiler that makes Rust's standard library for musl, of its source: the one on PATH once rustup has added the
//! source, or else Debian's, unpacked under target/.
//!
//! The library is compiled with the program, and so for size and without the printing of backtraces; rustup's, compiled
//! before, makes programs a quarter larger, and more pages of them are touched at the start.

use std::fmt::{self, Display, Formatter};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::apt;
use lab::shell::{Result, Run as _};

use lab::architecture::Architecture;

/// The release of Debian that has Firefox's compiler: a Rust of this year, in a stable release. lab/src/pinned.sums
/// says which one.
const RELEASE: &str = "trixie";

const COMPILER: &str = "rustc-web";

/// The source of the standard library. It is for all architectures.
const SOURCE: &str = "rust-web-src";

/// A compiler that compiles its standard library too.
pub(crate) enum Rust {
    /// The one on PATH.
    OnPath,
    /// Debian's: a command that runs it, and the unpacked package of the library's source.
    Debian { command: PathBuf, source: PathBuf },
}

impl Rust {
    /// One that is here, or else one that can be had.
    pub(crate) fn get() -> Result<Self> {
        if source(&sysroot("rustc".as_ref())?).exists() {
            return Ok(Self::OnPath);
        }
        if apt::is_unpacked(RELEASE, SOURCE) && apt::is_unpacked(RELEASE, COMPILER) {
            return debians();
        }
        let Err(reason) = rustups() else {
            return Ok(Self::OnPath);
        };
        eprintln!("xtask: rustup has not added the source of Rust's standard library: {reason}; taking Debian's");
        debians().map_err(|error| {
            format!("rustup has no source of the standard library ({reason}), and Debian: {error}").into()
        })
    }

    /// Tells cargo.
    pub(crate) fn compile(&self, build: &mut Command) {
        if let Self::Debian { command, .. } = self {
            build.env("RUSTC", command);
        }
        // To have the standard library compiled is what cargo and rustc call unstable; nothing else that is so is in
        // use.
        build.env("RUSTC_BOOTSTRAP", "1").args([
            "-Zbuild-std=std,panic_abort",
            // No backtraces, which takes 300 KB, and code that is small: sorting, of which there are many, takes 50 KB
            // less.
            "-Zbuild-std-features=optimize_for_size",
        ]);
    }

    /// rustc.
    pub(crate) fn command(&self) -> &Path {
        match self {
            Self::OnPath => Path::new("rustc"),
            Self::Debian { command, .. } => command,
        }
    }

    /// The compiler's maker, name and version.
    pub(crate) fn maker(&self) -> Result<[String; 3]> {
        let words = match self {
            Self::OnPath => {
                let said = Command::new("rustc").arg("--version").read()?;
                // rustc 1.95.0 (59807616e 2026-04-14)
                let version = said.split(' ').nth(1).unwrap_or_default();
                ["Rust", "rustc", version].map(ToOwned::to_owned)
            }
            Self::Debian { .. } => {
                let version = apt::pinned(COMPILER, Architecture::here()?.name());
                ["Debian", COMPILER, version.ok_or("the compiler is not pinned")?].map(ToOwned::to_owned)
            }
        };
        Ok(words)
    }

    /// The folder with the standard library's source.
    pub(crate) fn library(&self) -> Result<PathBuf> {
        Ok(source(&sysroot(self.command())?))
    }
}

/// As a user is told what was taken.
impl Display for Rust {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::OnPath => formatter.write_str("the compiler on PATH"),
            Self::Debian { command, .. } => write!(formatter, "Debian's compiler, {}", command.display()),
        }
    }
}

/// Where a compiler has what is its own.
fn sysroot(command: &Path) -> Result<PathBuf> {
    let folder = Command::new(command).args(["--print", "sysroot"]).read()?;
    Ok(folder.trim().into())
}

fn source(sysroot: &Path) -> PathBuf {
    sysroot.join("lib/rustlib/src/rust/library")
}

/// Has rustup add the source.
fn rustups() -> Result<()> {
    Command::new("rustup").args(["component", "add", "rust-src"]).run()?;
    let folder = source(&sysroot("rustc".as_ref())?);
    if folder.exists() {
        return Ok(());
    }
    Err(format!("rustup says that it is there, but {} is not", folder.display()).into())
}

/// Debian's compiler for this machine, in a root of its own, with the source of the library. It runs by the loader and
/// the libraries of that root, so that this machine's may be older, and nobody has to be root.
fn debians() -> Result<Rust> {
    let here = Architecture::here()?;
    let root = apt::unpack_all(RELEASE, COMPILER, &[COMPILER])?;
    let source = apt::unpack(RELEASE, SOURCE)?;
    let link = root.join("usr/lib/rustlib/src");
    if !link.exists() {
        std::os::unix::fs::symlink(source.join("usr/lib/rustlib/src"), link)?;
    }
    let loader = apt::find(&root, here.loader()).ok_or_else(|| format!("{}: no {}", root.display(), here.loader()))?;
    let command = root.join("rustc");
    // By where it was called: where the standard library is, from the checkout, is part of its names, and so of the
    // bytes.
    let script = format!(
        "#!/bin/sh\nroot=${{0%/*}}\nexec \"$root/{}\" --library-path \"$root/usr/lib/{}-linux-gnu\" \"$root/usr/bin/rustc\" \
         --sysroot \"$root/usr\" \"$@\"\n",
        loader.strip_prefix(&root)?.display(),
        here.machine()
    );
    // Cargo compiles everything again if the compiler is younger.
    if fs::read_to_string(&command).ok().as_ref() != Some(&script) {
        fs::write(&command, script)?;
        fs::set_permissions(&command, Permissions::from_mode(0o755))?;
    }
    Ok(Rust::Debian { command, source })
}
