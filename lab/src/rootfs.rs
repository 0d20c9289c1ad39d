//! Root file systems, of images and of guests, from the programs of this machine or of unpacked packages.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::architecture::Architecture;
use crate::shell::{Result, Run as _};

/// The root from which programs are copied.
#[derive(Debug)]
pub struct Origin {
    folder: PathBuf,
    architecture: Architecture,
}

impl Origin {
    /// This machine.
    pub fn here() -> Result<Self> {
        Ok(Self { folder: "/".into(), architecture: Architecture::here()? })
    }

    /// A folder with the unpacked packages of an architecture.
    pub fn unpacked(folder: PathBuf, architecture: Architecture) -> Self {
        Self { folder, architecture }
    }

    /// Copies a program, with the libraries that it needs, to a folder of the root, under its own name.
    pub fn add_program(&self, name: &str, root: &Path, folder: &str) -> Result<()> {
        let from = self.find(&["usr/sbin", "usr/bin", "sbin", "bin"].map(Into::into), name)?;
        let to = root.join(folder).join(name);
        fs::create_dir_all(to.parent().unwrap_or(root))?;
        fs::copy(&from, to)?;
        self.add_libraries(&from, root)
    }

    /// iptables-legacy or iptables-nft, as `mode` says, and its extensions, under the names that Debian's package gives it in
    /// /usr/sbin.
    pub fn add_iptables(&self, mode: &str, root: &Path) -> Result<()> {
        let multi = &format!("xtables-{mode}-multi");
        self.add_program(multi, root, "usr/sbin")?;
        let extensions = format!("usr/lib/{}-linux-gnu/xtables", self.architecture.machine());
        for extension in fs::read_dir(self.folder.join(&extensions))?.flatten() {
            self.add_library(&extensions, &extension.file_name().to_string_lossy(), root)?;
        }
        for family in ["iptables", "ip6tables"] {
            for name in ["", "-restore", "-save"] {
                symlink(multi, root.join("usr/sbin").join(format!("{family}-{mode}{name}")))?;
            }
            for name in ["-restore", "-save"] {
                symlink(multi, root.join("usr/sbin").join(format!("{family}{name}")))?;
            }
        }
        Ok(())
    }

    /// The libraries that a file needs, those that these need, and what loads them.
    fn add_libraries(&self, file: &Path, root: &Path) -> Result<()> {
        let headers = Command::new("readelf").args(["--wide", "--dynamic", "--program-headers"]).arg(file).read()?;
        // "[Requesting program interpreter: /lib/ld-linux-aarch64.so.1]", "(NEEDED)  Shared library: [libc.so.6]"
        let named = |beginning: &'static str| {
            let names = headers.lines().filter_map(move |line| line.split_once(beginning));
            names.filter_map(|(_, rest)| rest.split(']').next())
        };
        for path in named("program interpreter: /") {
            let (folder, name) = path.rsplit_once('/').unwrap_or_default();
            self.add_library(folder, name, root)?;
        }
        let machine = self.architecture.machine();
        let folders = ["lib", "usr/lib", "lib64", "usr/lib64"].map(ToOwned::to_owned);
        let folders =
            ["lib", "usr/lib"].map(|folder| format!("{folder}/{machine}-linux-gnu")).into_iter().chain(folders);
        let folders: Vec<_> = folders.collect();
        for name in named("Shared library: [") {
            let found = self.find(&folders, name)?;
            let folder = found.strip_prefix(&self.folder)?.parent().unwrap_or(Path::new(""));
            self.add_library(&folder.to_string_lossy(), name, root)?;
        }
        Ok(())
    }

    /// A library in a folder, to the same folder of the root, and what it needs.
    fn add_library(&self, folder: &str, name: &str, root: &Path) -> Result<()> {
        let to = root.join(folder).join(name);
        if to.exists() {
            return Ok(());
        }
        // Newer packages leave out the link from /lib to /usr/lib.
        let from = self.find(&[folder.to_owned(), format!("usr/{folder}")], name)?;
        fs::create_dir_all(to.parent().unwrap_or(root))?;
        fs::copy(&from, to)?;
        self.add_libraries(&from, root)
    }

    fn find(&self, folders: &[String], name: &str) -> Result<PathBuf> {
        let paths = folders.iter().map(|folder| self.folder.join(folder).join(name));
        // An absolute link is meant from the root that it is in.
        let followed = paths.map(|path| match fs::read_link(&path) {
            Ok(link) if link.is_absolute() => self.folder.join(link.strip_prefix("/").unwrap_or(&link)),
            _ => path,
        });
        let found = followed.into_iter().find(|path| path.exists());
        found.ok_or_else(|| format!("{}: no {name} in {}", self.folder.display(), folders.join(", ")).into())
    }
}
