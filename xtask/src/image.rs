//! The Dockerfile's images, built without pulling anything.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use lab::architecture::Architecture;
use lab::install;
use lab::shell::{Result, Run as _, root, target};

use crate::build;
use crate::commit::Commit;
use crate::licences;

/// Where Linkerd's charts have looked for the program, and where they look for the network validator.
const PATHS: [&str; 3] = [
    "/usr/local/bin/proxy-init",
    "/usr/lib/linkerd/linkerd2-proxy-init",
    "/usr/lib/linkerd/linkerd2-network-validator",
];

/// The program's file capabilities, as setcap(8) writes them. Permitted, not effective: proxy-init takes them up
/// itself, and can say so where they have been dropped. NET_RAW is for iptables-legacy, which may be beside it: under
/// no_new_privs, a command gets no more than proxy-init has.
const CAPABILITIES: &str = "cap_net_admin,cap_net_raw=p";

/// Where Linkerd's installer looks for the CNI plugin in its image (CONTAINER_CNI_BIN_DIR in install-cni.sh).
const PLUGIN: &str = "/opt/cni/bin/linkerd-cni";

/// The node's agent.
const AGENT: &str = "/usr/lib/linkerd/linkerd-cni-agent";

/// The stages of the Dockerfile that need no pulled base.
pub(crate) const STAGES: [Stage; 2] = [INIT, CNI];

const INIT: Stage = Stage {
    name: "init",
    image: "proxy-init",
    programs: &[("proxy-init", PATHS[0])],
    user: Some("65534"),
    entry_point: Some(PATHS[0]),
    capabilities: Some(CAPABILITIES),
};

/// In the place of Linkerd's cni-plugin image: as root, for it writes to the node's folders. proxy-init answers there about
/// the node's pods.
const CNI: Stage = Stage {
    name: "cni",
    image: "proxy-init-cni",
    programs: &[("linkerd-cni", PLUGIN), ("linkerd-cni-agent", AGENT), ("proxy-init", PATHS[0])],
    user: None,
    entry_point: Some(AGENT),
    capabilities: None,
};

/// A stage of the Dockerfile.
pub(crate) struct Stage {
    name: &'static str,
    pub(crate) image: &'static str,
    /// The static programs that it holds, and where.
    pub(crate) programs: &'static [(&'static str, &'static str)],
    pub(crate) user: Option<&'static str>,
    pub(crate) entry_point: Option<&'static str>,
    pub(crate) capabilities: Option<&'static str>,
}

/// `cargo xtask image --layout FOLDER`: what the Dockerfile's stages copy, each in a folder of its name.
pub(crate) fn lay_out(folder: &Path, architecture: Architecture) -> Result<()> {
    install::programs(&[("setcap", "libcap2-bin")])?;
    let binary = build::program("proxy-init", architecture)?;
    let components = licences::components("proxy-init", architecture)?;
    for stage in ["scratch", "legacy"] {
        let root = folder.join(stage);
        let [path, init, validator] = PATHS.map(|path| root.join(path.trim_start_matches('/')));
        for path in [&path, &init, &validator] {
            fs::create_dir_all(path.parent().unwrap_or(&root))?;
        }
        fs::copy(&binary, &path)?;
        symlink(PATHS[0], init)?;
        symlink(PATHS[0], validator)?;
        Command::new("setcap").arg(CAPABILITIES).arg(&path).run()?;
        licences::write(&components, &root.join("licenses"))?;
    }
    let root = folder.join("cni");
    let within = |path: &str| root.join(path.trim_start_matches('/'));
    let mut components = Vec::new();
    for (program, path) in CNI.programs {
        components.extend(licences::components(program, architecture)?);
        let path = within(path);
        fs::create_dir_all(path.parent().unwrap_or(&root))?;
        fs::copy(build::program(program, architecture)?, path)?;
    }
    licences::write(&components, &root.join("licenses"))
}

/// Builds a stage's image and gives it a name; `build_stage` stands in for the stage `build`, whose base would be
/// pulled. Nothing in it is younger than the commit.
pub(crate) fn build(
    stage: &Stage,
    build_stage: &Path,
    architecture: Architecture,
    commit: &Commit,
    name: &str,
) -> Result<()> {
    let mut build = buildah("bud --quiet --isolation chroot --pull-never --skip-unused-stages --identity-label=false");
    build.args(["--target", stage.name, "--tag", name, "--timestamp", &commit.seconds]);
    build.args(["--platform", &format!("linux/{}", architecture.name())]);
    for (label, value) in labels(commit) {
        let argument = label.to_uppercase();
        build.args(["--build-arg", &format!("{argument}={value}")]);
    }
    build.arg("--build-context").arg(format!("build={}", build_stage.display())).arg(root()).read()?;
    Ok(())
}

/// The labels org.opencontainers.image.*; the Dockerfile takes each as an argument of its name.
pub(crate) fn labels(commit: &Commit) -> [(&'static str, &str); 4] {
    [
        ("version", env!("CARGO_PKG_VERSION")),
        ("revision", &commit.hash),
        ("source", env!("CARGO_PKG_REPOSITORY")),
        ("licenses", licences::OF_A_PROGRAM),
    ]
}

/// buildah with a store that is ours alone, and a folder: no overlays inside of other people's.
pub(crate) fn buildah(arguments: &str) -> Command {
    let mut command = Command::new("buildah");
    command
        .arg("--root")
        .arg(target("image/store"))
        .arg("--runroot")
        .arg(target("image/run"))
        .args(["--storage-driver", "vfs"])
        .args(arguments.split(' '));
    command
}
