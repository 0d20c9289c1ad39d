//! Root file systems of images and guests, of Debian's packages.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use lab::apt;
use lab::shell::{Result, Run as _};

/// A release whose packages run on every kernel that guests have.
const RELEASE: &str = "bookworm";

/// Adds packages, all of one architecture, and what they depend on to a root. `name` tells this set of packages from others.
pub(crate) fn add(name: &str, packages: &[&str], root: &Path) -> Result<()> {
    let unpacked = apt::unpack_all(RELEASE, name, packages)?;
    fs::create_dir_all(root)?;
    Command::new("cp").arg("--archive").arg(unpacked.join(".")).arg(root).run()?;
    // Documents, and apt's own note.
    fs::remove_dir_all(root.join("usr/share"))?;
    fs::remove_file(root.join(".packages"))?;
    // The installation of iptables makes these.
    for name in ["iptables-restore", "iptables-save", "ip6tables-restore", "ip6tables-save"] {
        symlink("xtables-legacy-multi", root.join("usr/sbin").join(name))?;
    }
    Ok(())
}
