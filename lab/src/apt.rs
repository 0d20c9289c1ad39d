//! Packages of other Debian releases and architectures, unpacked under target/ and not installed.
//!
//! apt gets a private sources list and private state; the system's own stay untouched. The mirror is the one that the
//! system's own sources name. A package is named as apt names it: `libmnl-dev`, or `libmnl-dev:arm64` for another
//! architecture than this machine's.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{Result, Run as _, target};

/// Unpacks a package of a Debian release, without its dependencies, and returns the folder.
pub fn unpack(release: &str, package: &str) -> Result<PathBuf> {
    let (name, lists) = Lists::of(release, package);
    let folder = lists.folder.join("unpacked").join(name);
    let done = folder.join(".version");
    let _lock = lists.lock()?;
    if done.exists() {
        return Ok(folder);
    }
    let downloads = lists.folder.join("downloads").join(name);
    fs::create_dir_all(&downloads)?;
    fs::create_dir_all(&folder)?;
    lists.fetch(|| {
        let mut download = lists.apt_get();
        download.current_dir(&downloads).args(["download", name]);
        download
    })?;
    let file = packages_in(&downloads)?.pop().ok_or_else(|| format!("apt-get download {package} left no file"))?;
    extract(&file, &folder)?;
    let version = Command::new("dpkg-deb").arg("--field").arg(&file).arg("Version").read()?;
    fs::remove_dir_all(&downloads)?;
    fs::write(&done, version.trim())?;
    Ok(folder)
}

/// Unpacks packages of a Debian release, all of one architecture, and everything that they depend on into one folder,
/// and returns it. `name` tells this folder from others.
pub fn unpack_all(release: &str, name: &str, packages: &[&str]) -> Result<PathBuf> {
    let first = packages.first().ok_or("no packages were named")?;
    let (_, lists) = Lists::of(release, first);
    let folder = lists.folder.join("roots").join(name);
    let done = folder.join(".packages");
    let wanted = packages.join(" ");
    let _lock = lists.lock()?;
    if fs::read_to_string(&done).is_ok_and(|unpacked| unpacked == wanted) {
        return Ok(folder);
    }
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let archives = lists.folder.join("cache/archives");
    lists.fetch(|| {
        let mut install = lists.apt_get();
        install.args(["install", "--download-only", "--yes", "--no-install-recommends"]);
        install.args(packages.iter().map(|package| Lists::of(release, package).0));
        install
    })?;
    for file in packages_in(&archives)? {
        extract(&file, &folder)?;
        fs::remove_file(file)?;
    }
    fs::write(&done, wanted)?;
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
    let (name, lists) = Lists::of(release, package);
    let _lock = lists.lock()?;
    lists.update()?;
    let text = lists.command("apt-cache").args(["depends", name]).read()?;
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with(beginning))
        .map(ToOwned::to_owned)
        .ok_or_else(|| format!("{package} of {release} depends on no {beginning}…").into())
}

fn packages_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    Ok(entries.filter(|path| path.extension().is_some_and(|extension| extension == "deb")).collect())
}

fn extract(package: &Path, folder: &Path) -> Result<()> {
    Command::new("dpkg-deb").arg("--extract").arg(package).arg(folder).run()
}

/// A release's lists of packages for one architecture, with apt's state for them.
struct Lists {
    release: String,
    /// Another than this machine's.
    architecture: Option<String>,
    folder: PathBuf,
}

impl Lists {
    /// A package's name without its architecture, and the lists that it is in.
    fn of<'a>(release: &str, package: &'a str) -> (&'a str, Self) {
        let (name, architecture) = match package.split_once(':') {
            Some((name, architecture)) => (name, Some(architecture)),
            None => (package, None),
        };
        let folder = match architecture {
            Some(architecture) => format!("{release}-{architecture}"),
            None => release.to_owned(),
        };
        let lists = Self {
            release: release.to_owned(),
            architecture: architecture.map(ToOwned::to_owned),
            folder: target("apt").join(folder),
        };
        (name, lists)
    }

    /// Keeps others out: tests run side by side. The lock goes with the file.
    fn lock(&self) -> Result<File> {
        fs::create_dir_all(&self.folder)?;
        let lock = File::create(self.folder.join("lock"))?;
        lock.lock()?;
        Ok(lock)
    }

    /// Runs a command that downloads packages, once more with new lists if they are older than what the mirror has.
    fn fetch(&self, command: impl Fn() -> Command) -> Result<()> {
        self.update()?;
        if command().read().is_err() {
            fs::remove_dir_all(self.folder.join("lists"))?;
            self.update()?;
            command().read()?;
        }
        Ok(())
    }

    /// Fetches the lists, once.
    fn update(&self) -> Result<()> {
        let folder = &self.folder;
        if folder.join("lists/ready").exists() {
            return Ok(());
        }
        for part in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(folder.join(part))?;
        }
        fs::write(folder.join("status"), "")?;
        let keyring = "/usr/share/keyrings/debian-archive-keyring.gpg";
        fs::write(
            folder.join("sources.list"),
            format!("deb [signed-by={keyring}] {} {} main\n", mirror()?, self.release),
        )?;
        // Otherwise, lists that could not be fetched are a warning.
        self.apt_get().args(["-o", "APT::Update::Error-Mode=any", "update"]).read()?;
        fs::write(folder.join("lists/ready"), "")?;
        Ok(())
    }

    fn apt_get(&self) -> Command {
        self.command("apt-get")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (option, value) in [
            ("Dir::Etc::SourceList", "sources.list"),
            ("Dir::Etc::SourceParts", "none"),
            ("Dir::State::Lists", "lists"),
            ("Dir::State::status", "status"),
            ("Dir::Cache", "cache"),
        ] {
            command.arg("-o").arg(format!("{option}={}", self.folder.join(value).display()));
        }
        if let Some(architecture) = &self.architecture {
            for option in ["APT::Architecture", "APT::Architectures"] {
                command.arg("-o").arg(format!("{option}={architecture}"));
            }
        }
        // An unprivileged downloader could not write below target/. A mirror that refuses is asked again for ten minutes.
        command.args(["-o", "APT::Sandbox::User=root", "-o", "APT::Get::List-Cleanup=false", "--quiet"]);
        command.args(["-o", "Acquire::Retries=25", "-o", "Acquire::Retries::Delay::Maximum=30"]);
        command
    }
}

/// The mirror that the system's own sources name: the first that isn't for security updates.
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
