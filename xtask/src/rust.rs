//! Rust's standard library for musl, compiled with each program from the source that the compiler on PATH has, or that
//! rustup adds to it.
//!
//! The library is compiled for size and without the printing of backtraces; rustup's, compiled before, makes programs a
//! quarter larger, and more pages of them are touched at the start.

use std::path::PathBuf;
use std::process::Command;

use lab::shell::{Result, Run as _};

/// Where the compiler has what is its own.
pub(crate) fn sysroot() -> Result<PathBuf> {
    let folder = Command::new("rustc").args(["--print", "sysroot"]).read()?;
    Ok(folder.trim().into())
}

/// The folder with the standard library's source, which is fetched if it is missing.
pub(crate) fn library() -> Result<PathBuf> {
    let folder = sysroot()?.join("lib/rustlib/src/rust/library");
    if !folder.exists() {
        let added = Command::new("rustup").args(["component", "add", "rust-src"]).run();
        added.map_err(|error| format!("{} is missing, and rustup can't add it: {error}", folder.display()))?;
    }
    Ok(folder)
}

/// The compiler's version: "rustc 1.95.0 (59807616e 2026-04-14)" is 1.95.0.
pub(crate) fn version() -> Result<String> {
    let said = Command::new("rustc").arg("--version").read()?;
    Ok(said.split(' ').nth(1).unwrap_or_default().to_owned())
}

/// Has cargo compile the standard library too.
pub(crate) fn compile_library(build: &mut Command) {
    // Nothing else that cargo and rustc call unstable is in use.
    build.env("RUSTC_BOOTSTRAP", "1").args([
        "-Zbuild-std=std,panic_abort",
        // No backtraces, which take 300 KB, and code that is small: sorting, of which there are many, takes 50 KB less.
        "-Zbuild-std-features=optimize_for_size",
    ]);
}
