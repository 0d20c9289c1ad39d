//! `cargo xtask release --check`: the same commit gives the same bytes.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use lab::shell::{Result, Run as _, cargo, target};

use crate::commit::git;

/// Makes the release again in a clone in another folder, with nothing compiled before, and compares it with that here.
pub(super) fn compare_with_a_clone(here: &Path) -> Result<()> {
    let clone = target("release-check/in-another-folder");
    if clone.exists() {
        fs::remove_dir_all(&clone)?;
    }
    git(&["clone", "--quiet", "."]).arg(&clone).run()?;
    // Downloads are the same for all.
    fs::create_dir_all(clone.join("target"))?;
    std::os::unix::fs::symlink(target("apt"), clone.join("target/apt"))?;
    // It prints a folder that will be gone.
    cargo(&["xtask", "release"]).current_dir(&clone).stdout(Stdio::null()).run()?;
    let there = clone.join("target").join(here.file_name().ok_or("a release without a name")?);
    Command::new("diff").args(["--recursive", "--brief"]).args([here, &there]).run()?;
    Ok(fs::remove_dir_all(clone)?)
}
