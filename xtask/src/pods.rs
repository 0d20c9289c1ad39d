//! `cargo xtask pods`: pods by a real containerd.
//!
//! This makes what it takes; what happens there is the program `pods`. It is a program of its own, because its gRPC client
//! is not for those who only build.

use std::fs;
use std::path::Path;
use std::process::Command;

use lab::scenario::only;
use lab::shell::{Result, Run as _, need_root};
use lab::{INTERFACE, apt, confined, install};

use crate::{node, release};

/// The programs that the scenarios run on this machine, and Debian's packages of them.
const NEEDS: [(&str, &str); 2] = [("setcap", "libcap2-bin"), ("protoc", "protobuf-compiler")];

/// `cargo xtask pods [--release] [--only WORD...]`
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let (release, rest) = match arguments {
        [flag, rest @ ..] if flag == "--release" => (Some(release::layout("proxy-init")), rest),
        rest => (None, rest),
    };
    let words = only(rest, "usage: cargo xtask pods [--release] [--only WORD...]")?;
    check(release.as_deref(), words)
}

/// Runs the scenarios whose names have all of these words, with the image of this OCI layout if it is given, and checks
/// that nothing is left, also after a kill -9.
pub(crate) fn check(release: Option<&Path>, words: &[String]) -> Result<()> {
    need_root("cargo xtask pods", "to make network namespaces")?;
    install::programs(&NEEDS)?;
    let folder = node::fill("pods")?;
    let protocol = apt::unpack(node::RELEASE, "golang-k8s-cri-api-dev")?;
    let protocol = apt::find(&protocol, "api.proto").ok_or("golang-k8s-cri-api-dev has no api.proto")?;
    // Debian stable's protoc doesn't know this option, which is for logs.
    let protocol = fs::read_to_string(protocol)?.replace("[debug_redact = true]", "");
    fs::write(folder.join("api.proto"), protocol)?;
    let mut protoc = Command::new("protoc");
    protoc.current_dir(&folder).args(["--descriptor_set_out", INTERFACE, "api.proto"]).run()?;
    if let Some(layout) = release {
        if !layout.exists() {
            return Err(format!("no {}: cargo xtask release makes it", layout.display()).into());
        }
        let mut archive = Command::new("tar");
        archive.arg("-C").arg(layout);
        archive.arg("-cf").arg(folder.join("images/scratch.oci.tar"));
        archive.arg(".").run()?;
    }
    let program = confined::Program::build("pods", &["--features", "pods"])?;
    program.run(&folder, words)?;
    program.kill(&folder)
}
