//! `cargo xtask cluster`: a Kubernetes cluster of one node, in namespaces of its own, and pods on it.
//!
//! What happens in there is lab's program `cluster`; this builds what it takes.

mod kubernetes;

use std::fs;
use std::path::{Path, PathBuf};

use lab::apt;
use lab::linkerd;
use lab::shell::{Result, Run as _, cargo, need_root, target};

use crate::architecture::Architecture;
use crate::confined::{self, Run};
use crate::rootfs::Origin;
use crate::{build, image, setup};

/// What its runs are called.
pub(crate) const KIND: &str = "cluster";

/// What it takes besides Kubernetes, and Debian's packages of it.
const NEEDS: [(&str, &str); 8] = [
    ("containerd", "containerd"),
    ("runc", "runc"),
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
    ("openssl", "openssl"),
    ("patch", "patch"),
    ("conntrack", "conntrack"),
    ("setcap", "libcap2-bin"),
    ("xtables-legacy-multi", "iptables"),
];

/// What else is Debian's, by release: it is unpacked and not installed. kubectl is newer than the cluster, because more
/// people have one of that age: it knows the profiles of `kubectl debug`.
const UNPACKED: [(&str, &str, &str); 2] = [
    ("bookworm", "etcd-server", "usr/bin/etcd"),
    ("trixie", "kubectl", "usr/bin/kubectl"),
];

/// What runs in there.
pub(crate) fn program() -> PathBuf {
    target("debug/cluster")
}

/// `cargo xtask cluster [--keep | --only WORD...]`
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let words = match arguments {
        [] => &[],
        [flag] if flag == "--keep" => arguments,
        [flag, words @ ..] if flag == "--only" && !words.is_empty() => words,
        _ => return Err("usage: cargo xtask cluster [--keep | --only WORD...]".into()),
    };
    need_root("cargo xtask cluster", "to make network namespaces")?;
    setup::programs(&NEEDS)?;
    let folder = lay_out()?;
    Run::start(KIND, &program(), &folder, words)?.end()?;
    if words.is_empty() {
        confined::kill(KIND, &folder)?;
    }
    Ok(())
}

/// Builds what runs: programs go to `bin`, and each image's files into a folder of its name in `images`.
fn lay_out() -> Result<PathBuf> {
    let folder = target("cluster");
    let [bin, images] = ["bin", "images"].map(|name| folder.join(name));
    for folder in [&bin, &images] {
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
        fs::create_dir_all(folder)?;
    }
    for program in kubernetes::programs(&folder)? {
        link(&program, &bin)?;
    }
    for (release, package, program) in UNPACKED {
        link(&apt::unpack(release, package)?.join(program), &bin)?;
    }
    image::lay_out(&images, Architecture::here()?)?;
    Origin::here()?.add_iptables_legacy(&images.join("legacy"))?;
    add_linkerd_init(&images)?;
    let peer = images.join("peer");
    fs::create_dir_all(&peer)?;
    fs::copy(build::peer(Architecture::here()?)?, peer.join("peer"))?;
    cargo(&["build", "--locked", "--package", "lab", "--bin", "cluster"])
        .env("CARGO_TARGET_DIR", target(""))
        .run()?;
    Ok(folder)
}

/// The program under its own name in this folder.
fn link(program: &Path, folder: &Path) -> Result<()> {
    let name = program.file_name().ok_or("a program without a name")?;
    Ok(std::os::unix::fs::symlink(program, folder.join(name))?)
}

/// What stands in for linkerd-init's image: a shell, iptables-legacy, and the commands that linkerd-init runs in legacy
/// mode.
fn add_linkerd_init(images: &Path) -> Result<()> {
    let folder = images.join("linkerd-init");
    Origin::here()?.add_iptables_legacy(&folder)?;
    let busybox = apt::unpack("bookworm", "busybox-static")?;
    fs::create_dir_all(folder.join("bin"))?;
    fs::copy(busybox.join("bin/busybox"), folder.join("bin/busybox"))?;
    let commands: Vec<_> = linkerd::commands("legacy")
        .iter()
        .map(|words| words.join(" "))
        .collect();
    Ok(fs::write(folder.join("commands"), commands.join("\n"))?)
}
