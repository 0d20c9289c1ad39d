//! `cargo xtask cluster`: a Kubernetes cluster of one node, and pods on it.
//!
//! This makes what it takes; what happens there is the program `cluster`.

mod kubernetes;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::rootfs::Origin;
use crate::shell::{Result, need_root, target};
use crate::{LayOut, apt, confined, helm, install, linkerd};

/// What it takes besides Kubernetes, and Debian's packages of it.
const NEEDS: [(&str, &str); 9] = [
    ("containerd", "containerd"),
    ("runc", "runc"),
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
    ("openssl", "openssl"),
    ("patch", "patch"),
    ("conntrack", "conntrack"),
    ("setcap", "libcap2-bin"),
    ("xtables-legacy-multi", "iptables"),
    ("pip3", "python3-pip"),
];

/// What else is Debian's, by release: it is unpacked and not installed. kubectl is newer than the cluster, because more
/// people have one of that age: it knows the profiles of `kubectl debug`.
const UNPACKED: [(&str, &str, &str); 2] =
    [("bookworm", "etcd-server", "usr/bin/etcd"), ("trixie", "kubectl", "usr/bin/kubectl")];

/// `cargo xtask cluster [--keep | [--upstream FOLDER] --only WORD...]`
///
/// # Errors
/// What went otherwise than expected.
pub fn run(arguments: &[String], lay_out: LayOut) -> Result<()> {
    let (upstream, rest) = match arguments {
        [flag, folder, rest @ ..] if flag == "--upstream" => (Some(Path::new(folder)), rest),
        rest => (None, rest),
    };
    let words = match rest {
        [] => &[],
        [flag] if flag == "--keep" => rest,
        [flag, words @ ..] if flag == "--only" && !words.is_empty() => words,
        _ => return Err("usage: cargo xtask cluster [--keep | [--upstream FOLDER] --only WORD...]".into()),
    };
    need_root("cargo xtask cluster", "to make network namespaces")?;
    install::programs(&NEEDS)?;
    let folder = fill(lay_out, upstream)?;
    let program = confined::Program::build("cluster", &[])?;
    program.run(&folder, words)?;
    if words.is_empty() {
        program.kill(&folder)?;
    }
    Ok(())
}

/// Puts the programs that run there into `bin`, and each image's files into a folder of its name in `images`.
fn fill(lay_out: LayOut, upstream: Option<&Path>) -> Result<PathBuf> {
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
    fs::write(folder.join(CHART), chart()?)?;
    lay_out(&images)?;
    Origin::here()?.add_iptables("legacy", &images.join("legacy"))?;
    add_linkerd_init(&images)?;
    if let Some(upstream) = upstream {
        add_upstream(&images.join(UPSTREAM), upstream)?;
    }
    Ok(folder)
}

/// The image of Linkerd's plugin, installer and repair controller, if they were given.
pub const UPSTREAM: &str = "upstream";

/// What Helm makes of deploy/helm, below target/cluster.
pub const CHART: &str = "chart.yaml";

/// Of who has linkerd2-cni of the newest version, for the connections that are tried, and with the image that there is.
fn chart() -> Result<String> {
    let mut values = linkerd::CHARTS[linkerd::CHARTS.len() - 1].cni_values();
    for (value, changed) in [
        ("disableIPv6", json!(false)),
        ("ignoreInboundPorts", json!("4567,4568")),
        ("ignoreOutboundPorts", json!("4567,4568")),
        ("agent", json!({"image": {"name": "registry.example/proxy-init-cni", "version": "VERSION"}})),
    ] {
        values[value] = changed;
    }
    helm::template(None, &values, None)
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
    Origin::here()?.add_iptables("legacy", &folder)?;
    let busybox = apt::unpack("bookworm", "busybox-static")?;
    fs::create_dir_all(folder.join("bin"))?;
    fs::copy(busybox.join("bin/busybox"), folder.join("bin/busybox"))?;
    let commands: Vec<_> = linkerd::commands("legacy", true).iter().map(|words| words.join(" ")).collect();
    Ok(fs::write(folder.join("commands"), commands.join("\n"))?)
}

/// Linkerd's own programs, where its image has them.
fn add_upstream(image: &Path, upstream: &Path) -> Result<()> {
    for (folder, program) in [
        ("opt/cni/bin", "linkerd-cni"),
        ("usr/bin", "linkerd2-cni-install"),
        ("usr/lib/linkerd", "linkerd-cni-repair-controller"),
    ] {
        fs::create_dir_all(image.join(folder))?;
        fs::copy(upstream.join(program), image.join(folder).join(program))?;
    }
    Ok(())
}
