//! Builds the small C programs that the benchmark carries, and puts them and proxy-init's binary where it can take them
//! in.
//!
//! PROXY_INIT names the binary, and MUSL_SPECS the file that tells gcc of musl, as `cargo xtask build` does; without
//! the one, the benchmark must be told where a binary is, and without the other, the floors are linked with glibc.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo::rerun-if-env-changed=MUSL_SPECS");
    let specs = env::var("MUSL_SPECS").ok();
    if let Some(specs) = &specs {
        println!("cargo::rerun-if-changed={specs}");
    }
    let libc = if specs.is_some() { "musl" } else { "glibc" };
    println!("cargo::rustc-env=FLOORS_LIBC={libc}");
    compile("run", None, &out.join("run"))?;
    for program in ["empty", "replay"] {
        compile(program, specs.as_deref(), &out.join(program))?;
    }
    println!("cargo::rerun-if-env-changed=PROXY_INIT");
    let binary = env::var("PROXY_INIT").ok();
    if let Some(path) = &binary {
        println!("cargo::rerun-if-changed={path}");
        fs::copy(path, out.join("proxy-init")).map_err(|error| format!("PROXY_INIT={path}: {error}"))?;
    }
    // The Rust expression for it.
    let bytes = match binary {
        Some(_) => "Some(include_bytes!(concat!(env!(\"OUT_DIR\"), \"/proxy-init\")))",
        None => "None",
    };
    Ok(fs::write(out.join("proxy-init.rs"), bytes)?)
}

/// Static, as proxy-init is, with glibc or as a file tells gcc; by the compiler for the target, if that is another
/// machine.
fn compile(program: &str, specs: Option<&str>, to: &Path) -> Result<(), Box<dyn Error>> {
    let source = format!("c/{program}.c");
    println!("cargo::rerun-if-changed={source}");
    let (host, target) = (env::var("HOST")?, env::var("TARGET")?);
    let machine = |triple: &str| triple.split('-').next().unwrap_or_default().to_owned();
    let (host, machine) = (machine(&host), machine(&target));
    let compiler = if host == machine {
        "cc".to_owned()
    } else {
        // Debian's name for it.
        format!("{machine}-linux-gnu-gcc")
    };
    let mut command = Command::new(&compiler);
    command.args(["-O2", "-Wall", "-static", "-s", "-o"]).arg(to).arg(&source);
    if let Some(specs) = specs {
        command.args(["-specs", specs]);
        // The kernel's headers, which musl has none of. musl's own come first.
        for folder in [
            "/usr/include".to_owned(),
            format!("/usr/include/{machine}-linux-gnu"),
            format!("/usr/{machine}-linux-gnu/include"),
        ] {
            command.args(["-idirafter", &folder]);
        }
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
