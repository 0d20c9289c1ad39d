//! `cargo xtask pods`: pods by a real containerd, in namespaces of its own.
//!
//! What happens in there is lab's program `pods`: a program of its own, for its gRPC client is not for those who only
//! build.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::apt;
use lab::containerd::NEWER;
use lab::shell::{Result, Run as _, cargo, need_root, target};

use crate::architecture::Architecture;
use crate::build;
use crate::confined::{self, Run};
use crate::rootfs::Origin;
use crate::{image, release, setup};

/// What it takes, and Debian's packages of it.
const NEEDS: [(&str, &str); 5] = [
    ("containerd", "containerd"),
    ("runc", "runc"),
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
    ("setcap", "libcap2-bin"),
    ("xtables-legacy-multi", "iptables"),
];

/// What its runs are called.
pub(crate) const KIND: &str = "pods";

/// What runs in there.
pub(crate) fn program() -> PathBuf {
    target("debug/pods")
}

/// What came of it.
pub(crate) enum Outcome {
    AsExpected,
    /// Nothing was tried, because of this.
    Skipped(String),
}

/// The release of Debian that has a containerd by which pods have users of their own, and a runc for it.
const RELEASE: &str = "sid";

/// `cargo xtask pods [--newer] [--release] [--only WORD...]`
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let (newer, rest) = match arguments {
        [flag, rest @ ..] if flag == "--newer" => (true, rest),
        rest => (false, rest),
    };
    let (layout, rest) = match rest {
        [flag, rest @ ..] if flag == "--release" => (Some(release::layout("proxy-init")), rest),
        rest => (None, rest),
    };
    let words = match rest {
        [] => &[],
        [flag, words @ ..] if flag == "--only" && !words.is_empty() => words,
        _ => return Err("usage: cargo xtask pods [--newer] [--release] [--only WORD...]".into()),
    };
    match try_with(newer, layout.as_deref(), words)? {
        Outcome::AsExpected => Ok(()),
        Outcome::Skipped(reason) => Err(format!("nothing was tried: {reason}").into()),
    }
}

/// Runs all scenarios.
pub(crate) fn check() -> Result<Outcome> {
    try_with(false, None, &[])
}

/// Runs the scenarios whose names have all of these words, by a newer containerd than the system's or not, with the
/// image of this OCI layout if there is one, then sees that nothing is left, also after a kill -9.
fn try_with(newer: bool, layout: Option<&Path>, words: &[String]) -> Result<Outcome> {
    need_root("cargo xtask pods", "to make network namespaces")?;
    if NEEDS.iter().any(|(program, _)| setup::find(program).is_none())
        && let Err(error) = apt::mirror()
    {
        return Ok(Outcome::Skipped(format!(
            "containerd is a package of Debian's, and {error}"
        )));
    }
    setup::programs(&NEEDS)?;
    let folder = lay_out()?;
    if newer {
        // Its C library and what else it needs are in there.
        let root = apt::unpack_all(RELEASE, "containerd", &["containerd"])?;
        std::os::unix::fs::symlink(root.join("usr"), folder.join(NEWER))?;
    }
    if let Some(layout) = layout {
        if !layout.exists() {
            return Err(format!("no {}: cargo xtask release makes it", layout.display()).into());
        }
        let mut archive = Command::new("tar");
        archive
            .arg("-C")
            .arg(layout)
            .arg("-cf")
            .arg(folder.join("scratch.oci.tar"));
        archive.arg(".").run()?;
    }
    Run::start(KIND, &program(), &folder, words)?.end()?;
    confined::kill(KIND, &folder)?;
    Ok(Outcome::AsExpected)
}

/// Builds what runs, and puts each image's files into a folder of its name.
fn lay_out() -> Result<PathBuf> {
    let folder = target("pods");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    image::lay_out(&folder, Architecture::here()?)?;
    let legacy = folder.join("legacy");
    Origin::here()?.add_iptables_legacy(&legacy)?;
    let file_capabilities = folder.join("file-capabilities");
    Command::new("cp")
        .arg("--archive")
        .arg(&legacy)
        .arg(&file_capabilities)
        .run()?;
    Command::new("setcap")
        .arg("cap_net_admin,cap_net_raw+eip")
        .arg(file_capabilities.join("usr/sbin/xtables-legacy-multi"))
        .run()?;
    let peer = folder.join("peer");
    fs::create_dir_all(&peer)?;
    fs::copy(build::peer(Architecture::here()?)?, peer.join("peer"))?;
    cargo(&[
        "build",
        "--locked",
        "--package",
        "lab",
        "--bin",
        "pods",
        "--features",
        "pods",
    ])
    .env("CARGO_TARGET_DIR", target(""))
    .run()?;
    Ok(folder)
}
