//! The files of a release beside programs and images: completions, the kubectl plugin, notes and the
//! source.

use std::fs;
use std::path::Path;
use std::process::Command;

use lab::shell::{Result, Run as _, root};

use crate::build;
use crate::commit::git;
use crate::release::sum;
use lab::architecture::Architecture;

/// Completions, under the names by which each shell looks for them.
pub(super) fn add_completions(folder: &Path) -> Result<()> {
    let folder = folder.join("completions");
    let program = build::program("proxy-init", Architecture::here()?)?;
    for (shell, file) in [("bash", "bash/proxy-init"), ("zsh", "zsh/_proxy-init"), ("fish", "fish/proxy-init.fish")] {
        let file = folder.join(file);
        fs::create_dir_all(file.parent().unwrap_or(&folder))?;
        fs::write(file, Command::new(&program).args(["completions", shell]).read()?)?;
    }
    Ok(())
}

/// The kubectl plugin as krew installs it: an archive of the commit's script, and the manifest that names it.
pub(super) fn add_kubectl_plugin(version: &str, folder: &Path) -> Result<()> {
    let archive = folder.join(format!("kubectl-proxy_init-{version}.tar.gz"));
    git(&["archive", "--format=tar.gz", "--output"])
        .arg(&archive)
        .args(["HEAD", "LICENSE", "deploy/kubectl/kubectl-proxy_init"])
        .run()?;
    let manifest = fs::read_to_string(root().join("deploy/kubectl/krew.yaml"))?;
    let (_, manifest) = manifest.split_once('\n').ok_or("deploy/kubectl/krew.yaml is empty")?;
    let manifest = manifest
        .replace("VERSION", version)
        .replace("REPOSITORY", env!("CARGO_PKG_REPOSITORY"))
        .replace("SHA256", &sum(&archive)?);
    Ok(fs::write(folder.join("krew.yaml"), manifest)?)
}

/// Adds CHANGELOG.md's section of this version.
pub(super) fn add_notes(version: &str, folder: &Path) -> Result<()> {
    let changelog = fs::read_to_string(root().join("CHANGELOG.md"))?;
    let section = changelog.split("\n## ").find(|section| section.starts_with(&format!("[{version}]")));
    let section = section.ok_or_else(|| format!("CHANGELOG.md has nothing about {version}"))?;
    let (_, text) = section.split_once('\n').ok_or("the section of CHANGELOG.md is empty")?;
    Ok(fs::write(folder.join("RELEASE-NOTES.md"), format!("# proxy-init {version}\n\n{}\n", text.trim()))?)
}

/// The source of the commit, which the licences of the programs ask for.
pub(super) fn add_source(version: &str, folder: &Path) -> Result<()> {
    git(&["archive", "--format=tar.gz"])
        .arg(format!("--prefix=proxy-init-{version}/"))
        .arg("--output")
        .arg(folder.join(format!("proxy-init-{version}.tar.gz")))
        .arg("HEAD")
        .run()
}
