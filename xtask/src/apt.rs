//! Packages of other Debian releases, unpacked under target/ and not installed.
//!
//! apt gets a private sources list and private state; the system's own stay untouched. The mirror is the one that the
//! system's own sources name.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{Result, Run as _, target};

/// Unpacks a package of a Debian release, without its dependencies, and returns the folder.
pub fn unpack(release: &str, package: &str) -> Result<PathBuf> {
    let state = target("apt").join(release);
    let folder = state.join("unpacked").join(package);
    let done = folder.join(".version");
    fs::create_dir_all(&state)?;
    // Tests run side by side; the lock goes with the file.
    let lock = File::create(state.join("lock"))?;
    lock.lock()?;
    if done.exists() {
        return Ok(folder);
    }
    update(release, &state)?;
    let downloads = state.join("downloads").join(package);
    fs::create_dir_all(&downloads)?;
    fs::create_dir_all(&folder)?;
    let download = || {
        apt_get(&state)
            .current_dir(&downloads)
            .args(["download", package])
            .read()
    };
    if download().is_err() {
        // The lists may be older than what the mirror has.
        fs::remove_dir_all(state.join("lists"))?;
        update(release, &state)?;
        download()?;
    }
    let file = fs::read_dir(&downloads)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .ok_or_else(|| format!("apt-get download {package} left no file"))?;
    Command::new("dpkg-deb")
        .arg("--extract")
        .arg(&file)
        .arg(&folder)
        .run()?;
    let version = Command::new("dpkg-deb")
        .arg("--field")
        .arg(&file)
        .arg("Version")
        .read()?;
    fs::remove_dir_all(&downloads)?;
    fs::write(&done, version.trim())?;
    Ok(folder)
}

/// The version of what [`unpack`] unpacked.
pub fn version(unpacked: &Path) -> Result<String> {
    Ok(fs::read_to_string(unpacked.join(".version"))?)
}

/// A file of this name somewhere below a folder.
pub fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    fs::read_dir(folder).ok()?.flatten().find_map(|entry| {
        let path = entry.path();
        if path.file_name().is_some_and(|found| found == name) {
            Some(path)
        } else if path.is_dir() && !path.is_symlink() {
            find(&path, name)
        } else {
            None
        }
    })
}

/// The first of a package's dependencies whose name begins so: what a metapackage stands for.
pub fn dependency(release: &str, package: &str, beginning: &str) -> Result<String> {
    let state = target("apt").join(release);
    update(release, &state)?;
    let text = with_state("apt-cache", &state).args(["depends", package]).read()?;
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with(beginning))
        .map(ToOwned::to_owned)
        .ok_or_else(|| format!("{package} of {release} depends on no {beginning}…").into())
}

/// Fetches the release's lists, once.
fn update(release: &str, state: &Path) -> Result<()> {
    if state.join("lists/ready").exists() {
        return Ok(());
    }
    for folder in ["lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(state.join(folder))?;
    }
    fs::write(state.join("status"), "")?;
    let keyring = "/usr/share/keyrings/debian-archive-keyring.gpg";
    fs::write(
        state.join("sources.list"),
        format!("deb [signed-by={keyring}] {} {release} main\n", mirror()?),
    )?;
    apt_get(state).arg("update").read()?;
    fs::write(state.join("lists/ready"), "")?;
    Ok(())
}

fn apt_get(state: &Path) -> Command {
    with_state("apt-get", state)
}

fn with_state(program: &str, state: &Path) -> Command {
    let mut command = Command::new(program);
    for (option, value) in [
        ("Dir::Etc::SourceList", "sources.list"),
        ("Dir::Etc::SourceParts", "none"),
        ("Dir::State::Lists", "lists"),
        ("Dir::State::status", "status"),
        ("Dir::Cache", "cache"),
    ] {
        command
            .arg("-o")
            .arg(format!("{option}={}", state.join(value).display()));
    }
    // An unprivileged downloader could not write below target/.
    command.args([
        "-o",
        "APT::Sandbox::User=root",
        "-o",
        "APT::Get::List-Cleanup=false",
        "--quiet",
    ]);
    command
}

/// The mirror that the system's own sources name: the first that isn't for security updates.
///
/// # Errors
/// Where they name none, as on other systems than Debian.
pub fn mirror() -> Result<String> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(parts) = fs::read_dir("/etc/apt/sources.list.d") {
        let mut parts: Vec<_> = parts.flatten().map(|entry| entry.path()).collect();
        parts.sort();
        files.extend(parts);
    }
    let text: String = files.iter().filter_map(|file| fs::read_to_string(file).ok()).collect();
    text.lines()
        .filter(|line| line.starts_with("URIs:") || line.starts_with("deb "))
        .flat_map(str::split_whitespace)
        .find(|word| word.contains("://") && word.trim_end_matches('/').ends_with("/debian"))
        .map(ToOwned::to_owned)
        .ok_or_else(|| "the system's apt sources name no Debian mirror".into())
}
