//! Builds the small C programs that the benchmark carries, and puts them and proxy-init's binary where it can take them in.
//!
//! PROXY_INIT names the binary, as `cargo xtask build` does; without it, the benchmark must be told where one is.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    for program in ["empty", "replay", "run"] {
        compile(program, &out.join(program))?;
    }
    println!("cargo::rerun-if-env-changed=PROXY_INIT");
    let binary = match env::var("PROXY_INIT") {
        Ok(path) => {
            println!("cargo::rerun-if-changed={path}");
            fs::copy(&path, out.join("proxy-init")).map_err(|error| format!("PROXY_INIT={path}: {error}"))?;
            "Some(include_bytes!(concat!(env!(\"OUT_DIR\"), \"/proxy-init\")))"
        }
        Err(_) => "None",
    };
    fs::write(out.join("proxy_init.rs"), binary)?;
    Ok(())
}

/// Static, as proxy-init is; by the compiler for the target, if that is another one.
fn compile(program: &str, to: &Path) -> Result<(), Box<dyn Error>> {
    let source = format!("c/{program}.c");
    println!("cargo::rerun-if-changed={source}");
    let (host, target) = (env::var("HOST")?, env::var("TARGET")?);
    let compiler = if host == target {
        "cc".to_owned()
    } else {
        // Debian's name for it: aarch64-linux-gnu-gcc.
        target.replace("-unknown-", "-") + "-gcc"
    };
    let mut command = Command::new(&compiler);
    command
        .args(["-O2", "-Wall", "-static", "-s", "-o"])
        .arg(to)
        .arg(&source);
    // The C library that the rest of the program is linked with, if that isn't the compiler's own.
    println!("cargo::rerun-if-env-changed=LIBC_LIB_DIR");
    if let Some(folder) = env::var_os("LIBC_LIB_DIR") {
        command.arg("-L").arg(folder);
    }
    let status = command.status().map_err(|error| format!("{compiler}: {error}"))?;
    if status.success() {
        return Ok(());
    }
    Err(format!(
        "{command:?} failed: it needs a C compiler and a static C library (Debian: gcc and libc6-dev; Fedora: gcc and \
         glibc-static)"
    )
    .into())
}
