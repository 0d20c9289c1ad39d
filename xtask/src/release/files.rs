//! The files of a release: their checksums and sizes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::shell::{Result, Run as _};

const SUMS: &str = "SHA256SUMS";

/// Writes SHA256SUMS, which `sha256sum --check` reads.
pub(super) fn add_sums(folder: &Path) -> Result<()> {
    let files = all(folder)?;
    let sums = Command::new("sha256sum").current_dir(folder).arg("--").args(&files).read()?;
    Ok(fs::write(folder.join(SUMS), sums)?)
}

/// The checksum of one file, in hexadecimal digits.
pub(super) fn sum(file: &Path) -> Result<String> {
    let line = Command::new("sha256sum").arg("--").arg(file).read()?;
    let sum = line.split_whitespace().next();
    Ok(sum.ok_or("sha256sum said nothing")?.to_owned())
}

/// Prints what a release consists of: each file, and of folders what is in them together.
pub(super) fn print(folder: &Path) -> Result<()> {
    let mut entries: Vec<_> = fs::read_dir(folder)?.flatten().map(|entry| entry.path()).collect();
    entries.sort();
    println!("\n{}\n", folder.display());
    for entry in entries {
        let name = entry.strip_prefix(folder)?.display();
        if entry.is_dir() {
            let files = all(&entry)?;
            let mut size = 0;
            for file in &files {
                size += fs::metadata(entry.join(file))?.len();
            }
            println!("{:>8} KiB  {name}/ ({} files)", size.div_ceil(1024), files.len());
        } else {
            println!("{:>8} KiB  {name}", fs::metadata(&entry)?.len().div_ceil(1024));
        }
    }
    Ok(())
}

/// The paths of all files in a folder and its folders, from there, in order.
pub(super) fn all(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    collect(folder, folder, &mut files)?;
    files.sort();
    Ok(files)
}

fn collect(folder: &Path, base: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, base, files)?;
        } else {
            files.push(path.strip_prefix(base)?.to_owned());
        }
    }
    Ok(())
}
