//! `cargo xtask release`: everything that a user installs, for both architectures, in `target/release-VERSION/`.
//!
//! Nothing is pushed. The same commit, tools and packages give the same bytes, which `--check` sees.

mod documents;
mod images;
mod sbom;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lab::shell::{Result, Run as _, cargo, need_root, target};

use crate::build;
use crate::commit::{Commit, git};
use crate::licences;
use lab::architecture::Architecture;

/// The programs of a release, each a package's of the same name.
const PROGRAMS: [&str; 4] = ["proxy-init", "linkerd-cni", "linkerd-cni-agent", "proxy-init-bench"];

/// Where a release is.
fn folder() -> PathBuf {
    target(&format!("release-{}", env!("CARGO_PKG_VERSION")))
}

/// The OCI layout of an image of this name, once a release has been made.
pub(crate) fn layout(image: &str) -> PathBuf {
    folder().join(images::FOLDER).join(image)
}

/// `cargo xtask release`.
pub(crate) fn run() -> Result<()> {
    print(&make()?)
}

/// `cargo xtask release --check`.
pub(crate) fn check() -> Result<()> {
    if Commit::of_checkout()?.is_modified {
        return Err("the checkout has changes that are not committed, which a clone has not".into());
    }
    let here = make()?;
    compare_with_a_clone(&here)?;
    print(&here)?;
    println!("The same bytes, built twice in two folders");
    Ok(())
}

/// Prints the release's files, and the way to publish them.
fn print(folder: &Path) -> Result<()> {
    Command::new("du").args(["--all", "--apparent-size", "--human-readable", "--max-depth=1"]).arg(folder).run()?;
    images::print_how_to_push(folder)
}

/// Makes it anew and returns its folder.
fn make() -> Result<PathBuf> {
    // Before minutes of compiling.
    need_root("cargo xtask release", "to give the images' program its file capabilities")?;
    let version = env!("CARGO_PKG_VERSION");
    let commit = Commit::of_checkout()?;
    if commit.is_modified {
        println!("NOTE: the checkout differs from the commit {}, and so will the release", commit.hash);
    }
    let folder = folder();
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    for program in PROGRAMS {
        for architecture in Architecture::ALL {
            add_program(program, architecture, &commit, &folder)?;
        }
    }
    images::add_all(&commit, &folder)?;
    documents::add_completions(&folder)?;
    documents::add_kubectl_plugin(version, &folder)?;
    documents::add_notes(version, &folder)?;
    documents::add_source(version, &folder)?;
    add_sums(&folder)?;
    Ok(folder)
}

/// The program, its SBOM and its licences.
fn add_program(program: &str, architecture: Architecture, commit: &Commit, folder: &Path) -> Result<()> {
    let name = format!("{program}-linux-{}", architecture.name());
    let file = folder.join(&name);
    fs::copy(build::program(program, architecture)?, &file)?;
    let components = licences::components(program, architecture)?;
    licences::write(&components, &folder.join("licenses").join(&name))?;
    let sbom = sbom::of(program, &components, commit, &file)?;
    fs::write(folder.join(format!("{name}.cdx.json")), sbom)?;
    Ok(())
}

/// Writes SHA256SUMS, which `sha256sum --check` reads.
fn add_sums(folder: &Path) -> Result<()> {
    let sums = Command::new("sh")
        .current_dir(folder)
        .args(["-c", "find * -type f -print0 | LC_ALL=C sort --zero-terminated | xargs --null sha256sum --"])
        .read()?;
    Ok(fs::write(folder.join("SHA256SUMS"), sums)?)
}

/// The checksum of one file, in hexadecimal digits.
pub(crate) fn sum(file: &Path) -> Result<String> {
    let line = Command::new("sha256sum").arg("--").arg(file).read()?;
    let sum = line.split_whitespace().next();
    Ok(sum.ok_or("sha256sum said nothing")?.to_owned())
}

/// Makes the release again in a clone in another folder, with nothing compiled before, and compares it with that here.
fn compare_with_a_clone(here: &Path) -> Result<()> {
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
