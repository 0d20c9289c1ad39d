//! The folder that is filled for the scenarios of a node.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use lab::apt;
use lab::architecture::Architecture;
use lab::machine::USR;
use lab::shell::{Result, Run as _, target};

use crate::{build, image, rootfs};

/// The programs of a node, and the release of Debian that has a containerd by which pods have users of their own (2.0 or
/// later).
const PROGRAMS: [&str; 3] = ["containerd", "runc", "containernetworking-plugins"];
pub(crate) const RELEASE: &str = "sid";

/// Fills a folder for scenarios: a node's programs, and in `images` each image's files in a folder of its
/// name.
pub(crate) fn fill(name: &str) -> Result<PathBuf> {
    let folder = target(name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(folder.join("bin"))?;
    let images = folder.join("images");
    let here = Architecture::here()?;
    image::lay_out(&images, here)?;
    fs::create_dir(images.join("peer"))?;
    fs::copy(build::of_lab("peer", here)?, images.join("peer/peer"))?;
    let [legacy, file_capabilities] = ["legacy", "file-capabilities"].map(|name| images.join(name));
    rootfs::add("iptables", &["iptables"], &legacy)?;
    Command::new("cp").arg("--archive").arg(&legacy).arg(&file_capabilities).run()?;
    let program = file_capabilities.join("usr/sbin/xtables-legacy-multi");
    Command::new("setcap").arg("cap_net_admin,cap_net_raw+eip").arg(program).run()?;
    symlink(apt::unpack_all(RELEASE, "node", &PROGRAMS)?.join("usr"), folder.join(USR))?;
    Ok(folder)
}
