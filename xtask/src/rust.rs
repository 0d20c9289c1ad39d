//! The compiler that makes Rust's standard library for musl with each program, from its source: the compiler on PATH if it
//! has the source, or rustup adds it, or else Debian's, unpacked under target/.
//!
//! The library is compiled for size and without the printing of backtraces; rustup's, compiled before, makes programs a
//! quarter larger, and more pages of them are touched at the start.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use lab::apt;
use lab::architecture::Architecture;
use lab::shell::{Result, Run as _};

/// The release of Debian that has Firefox's compiler: a Rust of this year, in a stable release.
const RELEASE: &str = "trixie";

const COMPILER: &str = "rustc-web";

/// The package with the source of its standard library, for all architectures.
const SOURCE: &str = "rust-web-src";

/// A compiler that has the source of its standard library.
pub(crate) struct Rust {
    command: PathBuf,
}

impl Rust {
    /// The one on PATH, or else Debian's, which is fetched.
    pub(crate) fn get() -> Result<&'static Self> {
        static FOUND: OnceLock<Rust> = OnceLock::new();
        if let Some(found) = FOUND.get() {
            return Ok(found);
        }
        let on_path = Self { command: "rustc".into() };
        if on_path.library()?.exists() {
            return Ok(FOUND.get_or_init(|| on_path));
        }
        let added = Command::new("rustup").args(["component", "add", "rust-src"]).run();
        if added.is_ok() && on_path.library()?.exists() {
            return Ok(FOUND.get_or_init(|| on_path));
        }
        eprintln!("xtask: rustup has not added the source of Rust's standard library; taking Debian's compiler");
        let debians = Self { command: debians_compiler()? };
        Ok(FOUND.get_or_init(|| debians))
    }

    /// The folder with the source of the standard library.
    pub(crate) fn library(&self) -> Result<PathBuf> {
        Ok(self.sysroot()?.join("lib/rustlib/src/rust/library"))
    }

    /// The texts of the library's licences.
    pub(crate) fn licences(&self) -> Result<Vec<PathBuf>> {
        let documents = self.sysroot()?.join("share/doc");
        if self.is_on_path() {
            let texts = ["COPYRIGHT-library.html", "licenses/MIT.txt", "licenses/Apache-2.0.txt"];
            return Ok(texts.map(|text| documents.join("rust").join(text)).into());
        }
        Ok(vec![documents.join(SOURCE).join("copyright")])
    }

    /// The folder with the compiler's own files.
    fn sysroot(&self) -> Result<PathBuf> {
        let folder = Command::new(&self.command).args(["--print", "sysroot"]).read()?;
        Ok(folder.trim().into())
    }

    /// The compiler's version: "rustc 1.95.0 (59807616e 2026-04-14)" is 1.95.0.
    pub(crate) fn version(&self) -> Result<String> {
        let said = Command::new(&self.command).arg("--version").read()?;
        Ok(said.split(' ').nth(1).unwrap_or_default().to_owned())
    }

    fn is_on_path(&self) -> bool {
        self.command == Path::new("rustc")
    }

    /// Has cargo compile with this compiler, and the standard library too.
    pub(crate) fn compile(&self, build: &mut Command) {
        if !self.is_on_path() {
            build.env("RUSTC", &self.command);
        }
        // Nothing else that cargo and rustc call unstable is in use.
        build.env("RUSTC_BOOTSTRAP", "1").args([
            "-Zbuild-std=std,panic_abort",
            // No backtraces, which take 300 KB, and code that is small: sorting, of which there are many, takes 50 KB less.
            "-Zbuild-std-features=optimize_for_size",
        ]);
    }
}

/// Debian's compiler for this machine, in a root of its own, with the source of the library. It runs by the loader and
/// the libraries of that root, so that this machine's may be older, and nobody has to be root.
fn debians_compiler() -> Result<PathBuf> {
    let here = Architecture::here()?;
    let root = apt::unpack_all(RELEASE, COMPILER, &[COMPILER, SOURCE])?;
    let loader = apt::find(&root, here.loader()).ok_or_else(|| format!("{}: no {}", root.display(), here.loader()))?;
    let command = root.join("rustc");
    // By its caller's path: the standard library's place, as seen from the checkout, is part of its names, and so of the
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
    Ok(command)
}
