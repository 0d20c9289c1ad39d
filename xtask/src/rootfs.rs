//! Root file systems, of images and of guests, from what this machine has.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use xtask::shell::Result;

use crate::setup;

/// Where a program of this machine's is, whatever links lead there.
pub(crate) fn which(program: &str) -> Result<PathBuf> {
    let found = setup::find(program).ok_or_else(|| format!("{program} is not installed"))?;
    Ok(fs::canonicalize(found)?)
}

/// Copies a dynamic program or plugin, and the libraries that ldd names, to the same places.
pub(crate) fn copy_with_libraries(file: &Path, root: &Path) -> Result<()> {
    let copy = |file: &Path| -> Result<()> {
        let to = root.join(file.strip_prefix("/")?);
        if !to.exists() {
            fs::create_dir_all(to.parent().unwrap_or(root))?;
            fs::copy(file, to)?;
        }
        Ok(())
    };
    copy(file)?;
    let libraries = Command::new("ldd").arg(file).output()?;
    for word in String::from_utf8_lossy(&libraries.stdout).split_whitespace() {
        if word.starts_with('/') {
            copy(Path::new(word))?;
        }
    }
    Ok(())
}

/// iptables-legacy and its extensions, under the names that Debian's package gives it in /usr/sbin.
pub(crate) fn add_iptables_legacy(root: &Path) -> Result<()> {
    let multi = which("xtables-legacy-multi")?;
    copy_with_libraries(&multi, root)?;
    for plugin in fs::read_dir(format!("/usr/lib/{}-linux-gnu/xtables", env::consts::ARCH))?.flatten() {
        copy_with_libraries(&plugin.path(), root)?;
    }
    let folder = root.join("usr/sbin");
    fs::create_dir_all(&folder)?;
    for family in ["iptables", "ip6tables"] {
        for name in ["-legacy", "-legacy-restore", "-legacy-save", "-restore", "-save"] {
            symlink(&multi, folder.join(format!("{family}{name}")))?;
        }
    }
    Ok(())
}
