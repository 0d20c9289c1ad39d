//! The files of a release: their checksums and sizes.

use std::fs;
use std::path::Path;
use std::process::Command;

use lab::shell::{Result, Run as _};

/// Writes SHA256SUMS, which `sha256sum --check` reads.
pub(super) fn add_sums(folder: &Path) -> Result<()> {
    let sums = Command::new("sh")
        .current_dir(folder)
        .args(["-c", "find * -type f -print0 | LC_ALL=C sort --zero-terminated | xargs --null sha256sum --"])
        .read()?;
    Ok(fs::write(folder.join("SHA256SUMS"), sums)?)
}

/// The checksum of one file, in hexadecimal digits.
pub(super) fn sum(file: &Path) -> Result<String> {
    let line = Command::new("sha256sum").arg("--").arg(file).read()?;
    let sum = line.split_whitespace().next();
    Ok(sum.ok_or("sha256sum said nothing")?.to_owned())
}

/// Prints the parts of a release and their sizes.
pub(super) fn print(folder: &Path) -> Result<()> {
    Command::new("du").args(["--all", "--apparent-size", "--human-readable", "--max-depth=1"]).arg(folder).run()
}
