//! `cargo xtask cluster`: a Kubernetes cluster of one node, and pods on it.
//!
//! This fills the folder that the program `cluster` works with, which has the scenarios.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use lab::scenario::only;
use lab::shell::{Result, need_root};
use lab::{VALUES, apt, confined, helm, install, linkerd};

use crate::{node, rootfs};

/// Kubernetes' programs, which the folder has to have.
const PROGRAMS: [&str; 5] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"];

/// Debian's other programs that the cluster runs, of the release of its containerd: they are unpacked and not installed.
const UNPACKED: [(&str, &str); 2] = [("etcd-server", "usr/bin/etcd"), ("kubectl", "usr/bin/kubectl")];

/// The programs that run on this machine, and Debian's packages of them.
const NEEDS: [(&str, &str); 4] =
    [("openssl", "openssl"), ("setcap", "libcap2-bin"), ("xtables-legacy-multi", "iptables"), ("pip3", "python3-pip")];

const USAGE: &str = "usage: cargo xtask cluster --kubernetes FOLDER [--keep | --only WORD...]";

/// `cargo xtask cluster --kubernetes FOLDER [--keep | --only WORD...]`
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let (kubernetes, rest) = match arguments {
        [flag, folder, rest @ ..] if flag == "--kubernetes" => (Path::new(folder), rest),
        _ => return Err(USAGE.into()),
    };
    let words = match rest {
        [flag] if flag == "--keep" => rest,
        rest => only(rest, USAGE)?,
    };
    need_root("cargo xtask cluster", "to make network namespaces")?;
    check(kubernetes)?;
    install::programs(&NEEDS)?;
    let folder = fill(&kubernetes.canonicalize()?)?;
    let program = confined::Program::build("cluster", &[])?;
    program.run(&folder, words)?;
    if words.is_empty() {
        program.kill(&folder)?;
    }
    Ok(())
}

/// Fails unless the folder has Kubernetes' programs.
fn check(kubernetes: &Path) -> Result<()> {
    let is_missing = |program: &&str| !kubernetes.join(program).exists();
    let missing: Vec<&str> = PROGRAMS.into_iter().filter(is_missing).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{} has no {}: --kubernetes takes a folder with {}, of 1.32 or later",
        kubernetes.display(),
        missing.join(", "),
        PROGRAMS.join(", ")
    )
    .into())
}

/// Fills the folder: the programs that run there are in `bin`.
fn fill(kubernetes: &Path) -> Result<PathBuf> {
    let folder = node::fill("cluster")?;
    let bin = folder.join("bin");
    for program in PROGRAMS {
        symlink(kubernetes.join(program), bin.join(program))?;
    }
    for (package, program) in UNPACKED {
        link(&apt::unpack(node::RELEASE, package)?.join(program), &bin)?;
    }
    link(&helm::program()?, &bin)?;
    fs::write(folder.join(VALUES), values().to_string())?;
    add_linkerd_init(&folder.join("images/linkerd-init"))?;
    Ok(folder)
}

/// The values of a user of linkerd2-cni's newest version, for the connections that are tried, and with the image that there is.
fn values() -> Value {
    let mut values = linkerd::CHARTS[linkerd::CHARTS.len() - 1].cni_values();
    for (value, changed) in [
        ("disableIPv6", json!(false)),
        ("ignoreInboundPorts", json!("4567,4568")),
        ("ignoreOutboundPorts", json!("4567,4568")),
        ("agent", json!({"image": {"name": "registry.example/proxy-init-cni", "version": "VERSION"}})),
    ] {
        values[value] = changed;
    }
    values
}

/// The program under its own name in this folder.
fn link(program: &Path, folder: &Path) -> Result<()> {
    let name = program.file_name().ok_or("a program without a name")?;
    Ok(symlink(program, folder.join(name))?)
}

/// A stand-in for linkerd-init's image: a shell, iptables-legacy, and the commands that linkerd-init runs in legacy
/// mode.
fn add_linkerd_init(folder: &Path) -> Result<()> {
    rootfs::add("linkerd-init", &["iptables", "busybox-static"], folder)?;
    let commands: Vec<_> = linkerd::commands("legacy", true).iter().map(|words| words.join(" ")).collect();
    Ok(fs::write(folder.join("commands"), commands.join("\n"))?)
}
