//! Debian's packages, installed on this machine.

use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nix::unistd::Uid;

use crate::shell::{Result, Run as _};

/// Where a program is: on PATH, or where Debian keeps the superuser's.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(Into::into))
        .map(|folder| folder.join(program))
        .find(|file| file.exists())
}

/// Installs the Debian package of each program that isn't there.
pub fn programs(needs: &[(&str, &str)]) -> Result<()> {
    let missing = needs.iter().filter(|(program, _)| find(program).is_none());
    let mut packages: Vec<_> = missing.map(|(_, package)| *package).collect();
    if packages.is_empty() {
        return Ok(());
    }
    packages.sort_unstable();
    packages.dedup();
    install(&packages.join(" "))
}

/// Installs packages, their names separated by spaces, by sudo if need be.
pub fn install(packages: &str) -> Result<()> {
    if find("apt-get").is_none() {
        return Err(format!("install what Debian calls {packages}, then try again").into());
    }
    println!("Installing {packages}");
    for arguments in ["update --quiet", &format!("install --quiet --yes --no-install-recommends {packages}")] {
        let mut command = if Uid::effective().is_root() {
            Command::new("apt-get")
        } else if find("sudo").is_some() {
            let mut command = Command::new("sudo");
            command.arg("apt-get");
            command
        } else {
            return Err(format!("as root, run: apt-get install {packages}").into());
        };
        command
            .args(arguments.split_whitespace())
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdout(Stdio::null())
            .run()?;
    }
    Ok(())
}
