//! `cargo xtask release`: everything that a user installs, for both architectures, in `target/release-VERSION/`.
//!
//! Nothing is pushed. The same commit, tools and packages give the same bytes: check.rs builds twice and compares.

mod check;
mod documents;
mod files;
mod images;
mod sbom;

use std::fs;
use std::path::{Path, PathBuf};

use lab::shell::{Result, need_root, target};

use crate::build;
use crate::commit::Commit;
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
    check::compare_with_a_clone(&here)?;
    print(&here)?;
    println!("The same bytes, built twice in two folders");
    Ok(())
}

/// Prints the release's files, and the way to publish them.
fn print(folder: &Path) -> Result<()> {
    files::print(folder)?;
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
    documents::add_manual(&folder)?;
    documents::add_completions(&folder)?;
    documents::add_kubectl_plugin(version, &folder)?;
    documents::add_notes(version, &folder)?;
    documents::add_source(version, &folder)?;
    files::add_sums(&folder)?;
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
