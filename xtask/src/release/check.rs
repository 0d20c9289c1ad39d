//! `cargo xtask release --check`: the same commit gives the same bytes.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use lab::shell::{Result, Run as _, cargo, target};

use super::files;
use crate::commit::git;

/// Makes the release again in a clone in another folder, with nothing compiled before, and compares it with that here.
/// Returns how many files it has.
pub(super) fn compare_with_a_clone(here: &Path) -> Result<usize> {
    let clone = target("release-check/in-another-folder");
    if clone.exists() {
        fs::remove_dir_all(&clone)?;
    }
    git(&["clone", "--quiet", "."]).arg(&clone).run()?;
    // Downloads are the same for all.
    fs::create_dir_all(clone.join("target"))?;
    std::os::unix::fs::symlink(target("apt"), clone.join("target/apt"))?;
    // The clone's output names a folder that will be gone.
    cargo(&["xtask", "release"]).current_dir(&clone).stdout(Stdio::null()).run()?;
    let there = clone.join("target").join(here.file_name().ok_or("a release without a name")?);
    let different = differences(here, &there)?;
    if different.is_empty() {
        fs::remove_dir_all(clone)?;
        return Ok(files::all(here)?.len());
    }
    Err(format!("not the same bytes in {}:\n{}", there.display(), different.join("\n")).into())
}

/// The files that are in one only, or differ.
fn differences(one: &Path, other: &Path) -> Result<Vec<String>> {
    let (files, others) = (files::all(one)?, files::all(other)?);
    let mut different = Vec::new();
    for file in &files {
        if !others.contains(file) {
            different.push(format!("{} is missing", file.display()));
        } else if fs::read(one.join(file))? != fs::read(other.join(file))? {
            different.push(file.display().to_string());
        }
    }
    let more = others.iter().filter(|file| !files.contains(file));
    different.extend(more.map(|file| format!("{} is there only", file.display())));
    Ok(different)
}
