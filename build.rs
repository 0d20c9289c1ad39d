//! Finds out what `--version` says of the build: the commit, what it is built for and by, and which libnftnl and libmnl
//! it is linked with, for neither library can tell at run time.
//!
//! The environment says it first: `cargo xtask build` has static libraries that need not be the system's, and a build
//! in a container has no repository.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    let library = |name: &str, variable: &str| from(variable).or_else(|| installed(name));
    let facts = [
        from("PROXY_INIT_COMMIT").or_else(commit),
        env::var("TARGET").ok(),
        compiler(),
        library("libnftnl", "LIBNFTNL_VERSION"),
        library("libmnl", "LIBMNL_VERSION"),
    ];
    let [commit, target, compiler, nftnl, mnl] = facts.map(|fact| fact.unwrap_or_else(|| "not known".to_owned()));
    println!(
        "cargo::rustc-env=PROXY_INIT_BUILD={} (commit {commit}, for {target}, by {compiler}, libnftnl {nftnl}, libmnl {mnl})",
        env!("CARGO_PKG_VERSION")
    );
    println!("cargo::rerun-if-changed=build.rs");
    // `cargo xtask build` hands it to the linker, of whose input cargo knows nothing.
    println!("cargo::rerun-if-changed=xtask/src/order.ld");
}

/// The value of a variable of the environment, if any.
fn from(variable: &str) -> Option<String> {
    println!("cargo::rerun-if-env-changed={variable}");
    env::var(variable).ok().filter(|value| !value.is_empty())
}

/// The commit, and whether the checkout differs from it. A debug build names none: it would be compiled again for each
/// commit.
fn commit() -> Option<String> {
    if env::var("PROFILE").ok()? != "release" {
        return Some("of a debug build".to_owned());
    }
    // Not the repository of somebody who keeps a copy in their own.
    if !Path::new(".git").exists() {
        return None;
    }
    for path in ["Cargo.toml", "Cargo.lock", "crates", "src"] {
        println!("cargo::rerun-if-changed={path}");
    }
    // Grows with each commit.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]).filter(|log| Path::new(log).exists()) {
        println!("cargo::rerun-if-changed={log}");
    }
    git(&["describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=-modified"])
}

fn compiler() -> Option<String> {
    // rustc 1.95.0 (59807616e 2026-04-14)
    let version = read(Command::new(env::var_os("RUSTC")?).arg("--version"))?;
    version.split(" (").next().map(ToOwned::to_owned)
}

/// pkg-config's answer about the system's library.
fn installed(library: &str) -> Option<String> {
    read(Command::new("pkg-config").args(["--modversion", library]))
}

fn git(arguments: &[&str]) -> Option<String> {
    read(Command::new("git").args(arguments))
}

/// The output of a command that succeeds.
fn read(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
