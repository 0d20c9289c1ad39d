//! `cargo xtask pods`: pods by a real containerd.
//!
//! This makes what it takes; what happens there is the program `pods`. It is a program of its own, because its gRPC client
//! is not for those who only build.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::containerd::NEWER;
use crate::rootfs::Origin;
use crate::shell::{Result, Run as _, need_root, target};
use crate::{LayOut, Outcome, apt, confined, install, linkerd};

/// The word for the benchmark, in place of scenarios'.
pub const WAITS: &str = "--waits";

/// Linkerd's plugin, below target/pods, and the program of its init container, in the image of the commands that it runs: if
/// they were given.
pub const UPSTREAM_PLUGIN: &str = "upstream-linkerd-cni";
pub const UPSTREAM_INIT: &str = "/usr/local/bin/proxy-init";

/// What it takes, and Debian's packages of it.
const NEEDS: [(&str, &str); 5] = [
    ("containerd", "containerd"),
    ("runc", "runc"),
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
    ("setcap", "libcap2-bin"),
    ("xtables-legacy-multi", "iptables"),
];

/// The release of Debian that has a containerd by which pods have users of their own, and a runc for it.
const RELEASE: &str = "sid";

/// `cargo xtask pods [--newer] [--release] [--only WORD...]`. `release` is the layout of a release's image.
///
/// # Errors
/// What went otherwise than expected, or why nothing was tried.
pub fn run(arguments: &[String], lay_out: LayOut, release: &Path) -> Result<()> {
    let (newer, rest) = match arguments {
        [flag, rest @ ..] if flag == "--newer" => (true, rest),
        rest => (false, rest),
    };
    let (release, rest) = match rest {
        [flag, rest @ ..] if flag == "--release" => (Some(release), rest),
        rest => (None, rest),
    };
    let words = match rest {
        [] => &[],
        [flag, words @ ..] if flag == "--only" && !words.is_empty() => words,
        _ => return Err("usage: cargo xtask pods [--newer] [--release] [--only WORD...]".into()),
    };
    match try_with(newer, release, None, words, lay_out)? {
        Outcome::AsExpected(()) => Ok(()),
        Outcome::Skipped(reason) => Err(format!("nothing was tried: {reason}").into()),
    }
}

/// Runs all scenarios.
///
/// # Errors
/// What went otherwise than expected.
pub fn check(lay_out: LayOut) -> Result<Outcome<()>> {
    try_with(false, None, None, &[], lay_out)
}

/// Runs the scenarios whose names have all of these words, by a newer containerd than the system's or not, with the
/// image of this OCI layout and Linkerd's own programs of this folder if there are such, then sees that nothing is left, also
/// after a kill -9.
fn try_with(
    newer: bool,
    release: Option<&Path>,
    upstream: Option<&Path>,
    words: &[String],
    lay_out: LayOut,
) -> Result<Outcome<()>> {
    need_root("cargo xtask pods", "to make network namespaces")?;
    if NEEDS.iter().any(|(program, _)| install::find(program).is_none())
        && let Err(error) = apt::mirror()
    {
        return Ok(Outcome::Skipped(format!("containerd is a package of Debian's, and {error}")));
    }
    install::programs(&NEEDS)?;
    let folder = target("pods");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    lay_out(&folder)?;
    add_iptables(&folder)?;
    add_commands(&folder)?;
    if let Some(upstream) = upstream {
        add_upstream(&folder, upstream)?;
    }
    if newer {
        // Its C library and what else it needs are in there.
        let root = apt::unpack_all(RELEASE, "containerd", &["containerd"])?;
        symlink(root.join("usr"), folder.join(NEWER))?;
    }
    if let Some(layout) = release {
        if !layout.exists() {
            return Err(format!("no {}: cargo xtask release makes it", layout.display()).into());
        }
        let mut archive = Command::new("tar");
        archive.arg("-C").arg(layout);
        archive.arg("-cf").arg(folder.join("scratch.oci.tar"));
        archive.arg(".").run()?;
    }
    let program = confined::Program::build("pods", &["--features", "pods"])?;
    program.run(&folder, words)?;
    if words != [WAITS] {
        program.kill(&folder)?;
    }
    Ok(Outcome::AsExpected(()))
}

/// What a pod waits for by each way to its rules, on a newer containerd: a table, and a chart in this file. Linkerd's own
/// programs are compared if there is a folder of them.
///
/// # Errors
/// Why it wasn't measured.
pub fn waits(lay_out: LayOut, upstream: Option<&Path>, chart: &Path) -> Result<String> {
    match try_with(true, None, upstream, &[WAITS.to_owned()], lay_out)? {
        Outcome::AsExpected(()) => {
            fs::copy(target("pods").join("waits.svg"), chart)?;
            Ok(fs::read_to_string(target("pods").join("waits.md"))?)
        }
        Outcome::Skipped(reason) => Err(reason.into()),
    }
}

/// An image of iptables-nft, with linkerd-init's commands for both families and for IPv4 alone in scripts.
fn add_commands(images: &Path) -> Result<()> {
    let (root, origin) = (images.join("commands"), Origin::here()?);
    origin.add_iptables("nft", &root)?;
    origin.add_program("dash", &root, "bin")?;
    for ipv6 in [true, false] {
        let commands = linkerd::commands("nft", ipv6);
        let lines = commands.iter().map(|command| format!("/usr/sbin/{}", command.join(" ")));
        let script = lines.collect::<Vec<_>>().join(" &&\n");
        fs::write(root.join(format!("{}.sh", commands.len())), script)?;
    }
    Ok(())
}

/// Adds Linkerd's plugin, and its linkerd-init to the image of the commands, with the file capabilities of its own image.
fn add_upstream(images: &Path, upstream: &Path) -> Result<()> {
    fs::copy(upstream.join("linkerd-cni"), images.join(UPSTREAM_PLUGIN))?;
    let commands = images.join("commands");
    let init = commands.join(UPSTREAM_INIT.trim_start_matches('/'));
    fs::create_dir_all(init.parent().unwrap_or(&commands))?;
    fs::copy(upstream.join("proxy-init"), &init)?;
    let mut setcap = Command::new("setcap");
    for program in [commands.join("usr/sbin/xtables-nft-multi"), init] {
        setcap.arg("cap_net_admin,cap_net_raw+eip").arg(program);
    }
    setcap.run()
}

/// Adds iptables to the image `legacy`, and makes of it one in which it has file capabilities.
fn add_iptables(images: &Path) -> Result<()> {
    let [legacy, file_capabilities] = ["legacy", "file-capabilities"].map(|name| images.join(name));
    Origin::here()?.add_iptables("legacy", &legacy)?;
    Command::new("cp").arg("--archive").arg(&legacy).arg(&file_capabilities).run()?;
    Command::new("setcap")
        .arg("cap_net_admin,cap_net_raw+eip")
        .arg(file_capabilities.join("usr/sbin/xtables-legacy-multi"))
        .run()
}
