//! A folder of the node: its files by name, none of them through a symbolic link.
//!
//! The folders are mounted from the node, and others write there too. A name is looked up in the folder that was opened
//! and nowhere else: what a link points to is neither read nor written.
//!
//! cap-std follows links within a folder unless each call says otherwise, and a file of cap-tempfile's has a random
//! name for a moment: an agent that is killed then would leave a file that nobody could tell from others'.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{File, Metadata, Permissions, TryLockError};
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

/// The longest configuration that is read: runtimes read some kilobytes.
const LONGEST: u64 = 1 << 20;

/// The ending of the name of a file that is still being written. No runtime reads such a file: they look for `.conf`,
/// `.conflist` and `.json` (`ConfFiles` in libcni).
const UNFINISHED: &str = ".linkerd-cni-unfinished";

/// The file on which the lock is. Runtimes read no file with such a name.
pub(crate) const LOCK: &str = ".linkerd-cni-agent";

/// The longest name that a file may have (NAME_MAX).
const LONGEST_NAME: usize = 255;

/// The name that a file has while it is being written.
fn unfinished(name: &str) -> String {
    let end = name.floor_char_boundary(LONGEST_NAME - 1 - UNFINISHED.len());
    format!(".{}{UNFINISHED}", name.get(..end).unwrap_or_default())
}

/// Returns true if a file of this name is one that is still being written.
pub(crate) fn is_unfinished(name: &OsStr) -> bool {
    name.as_bytes().ends_with(UNFINISHED.as_bytes())
}

/// A folder that was opened.
#[derive(Debug)]
pub(crate) struct Folder {
    folder: File,
    path: PathBuf,
}

/// The content of a name in a folder. An error says why it can't be a configuration.
pub(crate) type Content = Result<Text, String>;

/// A regular file's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Text {
    /// Its bytes.
    pub(crate) bytes: Vec<u8>,
    /// Its permissions.
    pub(crate) mode: u32,
}

fn flags(flags: OFlag) -> OFlag {
    // A FIFO doesn't make it wait.
    flags | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK
}

impl Folder {
    /// Opens the folder at a path that the operator chose.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        Ok(Self { folder: open(path, flags, Mode::empty())?.into(), path: path.to_owned() })
    }

    /// The path by which it was opened.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The names in it that are UTF-8: no program writes others.
    fn names(&self) -> io::Result<Vec<String>> {
        let names = self.path.read_dir()?.map(|entry| Ok(entry?.file_name().into_string().ok()));
        names.filter_map(io::Result::transpose).collect()
    }

    /// The files in it of which the names are meant.
    pub(crate) fn files(&self, is_meant: impl Fn(&str) -> bool) -> io::Result<BTreeMap<String, Content>> {
        let names = self.names()?.into_iter().filter(|name| is_meant(name));
        Ok(names.filter_map(|name| Some((name.clone(), self.read(&name)?))).collect())
    }

    /// The content of a name; none if there is no such name, or a folder has it.
    pub(crate) fn read(&self, name: &str) -> Option<Content> {
        let file = match openat(&self.folder, name, flags(OFlag::O_RDONLY), Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::ENOENT) => return None,
            Err(Errno::ELOOP) => {
                return Some(Err("it is a symbolic link, which is not followed".to_owned()));
            }
            // A socket, or a device without a driver.
            Err(Errno::ENXIO) => return Some(Err("it is no regular file".to_owned())),
            Err(errno) => return Some(Err(format!("it cannot be opened: {}", io::Error::from(errno)))),
        };
        content(&file).unwrap_or_else(|error| Some(Err(format!("it cannot be read: {error}"))))
    }

    /// Returns true if this is the name of a regular file with the bytes of `source` and these permissions. A file that
    /// can't be opened isn't.
    pub(crate) fn is_same(&self, name: &str, source: impl io::Read, mode: u32) -> io::Result<bool> {
        let Ok(here) = openat(&self.folder, name, flags(OFlag::O_RDONLY), Mode::empty()) else {
            return Ok(false);
        };
        let here = File::from(here);
        let metadata = here.metadata()?;
        if !metadata.is_file() || metadata.mode() & 0o7777 != mode {
            return Ok(false);
        }
        let (mut one, mut other) = (BufReader::new(here), BufReader::new(source));
        loop {
            let (left, right) = (one.fill_buf()?, other.fill_buf()?);
            let length = left.len().min(right.len());
            if left.get(..length) != right.get(..length) || left.is_empty() != right.is_empty() {
                return Ok(false);
            }
            if length == 0 {
                return Ok(true);
            }
            one.consume(length);
            other.consume(length);
        }
    }

    /// Returns true if there is something of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.metadata(name).is_some()
    }

    fn metadata(&self, name: &str) -> Option<Metadata> {
        let file = openat(&self.folder, name, flags(OFlag::O_PATH), Mode::empty()).ok()?;
        File::from(file).metadata().ok()
    }

    /// Puts a file in the place of whatever has this name, in one step: at any moment there is the old one or the new
    /// one, whole.
    ///
    /// If `expected` is given, and the name stands for something else just before, nothing is changed, and the result
    /// is false: somebody else was faster.
    pub(crate) fn write(
        &self,
        name: &str,
        source: &mut impl io::Read,
        mode: u32,
        expected: Option<&Option<Text>>,
    ) -> io::Result<bool> {
        let unfinished = unfinished(name);
        self.remove(&unfinished)?;
        let create = flags(OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL);
        let mut write = || -> io::Result<bool> {
            let mut file =
                File::from(openat(&self.folder, unfinished.as_str(), create, Mode::from_bits_truncate(0o600))?);
            io::copy(source, &mut file)?;
            file.set_permissions(Permissions::from_mode(mode))?;
            file.sync_all()?;
            if let Some(expected) = expected
                && self.read(name) != expected.clone().map(Ok)
            {
                self.remove(&unfinished)?;
                return Ok(false);
            }
            renameat(&self.folder, unfinished.as_str(), &self.folder, name)?;
            self.folder.sync_all()?;
            Ok(true)
        };
        let written = write();
        if written.is_err() {
            // The error that matters is the first one.
            let _ = self.remove(&unfinished);
        }
        written
    }

    /// Removes a name; if there is none, that is no error.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        match unlinkat(&self.folder, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Removes a name, unless it stands for something else than expected: then it stays, and the result is false, for
    /// somebody else was faster.
    pub(crate) fn remove_expected(&self, name: &str, expected: &Text) -> io::Result<bool> {
        let is_expected = self.read(name).is_none_or(|now| now.as_ref() == Ok(expected));
        if is_expected {
            self.remove(name)?;
        }
        Ok(is_expected)
    }

    /// Removes what an agent that was killed had not finished.
    pub(crate) fn remove_unfinished(&self) -> io::Result<()> {
        self.names()?.iter().filter(|name| is_unfinished(name.as_ref())).try_for_each(|name| self.remove(name))
    }

    /// Takes the lock of the agent that may write to the folder (flock(2)); none if another agent has it. However an agent
    /// ends, the kernel takes the lock from it.
    pub(crate) fn lock(&self) -> io::Result<Option<Lock>> {
        loop {
            let mode = Mode::from_bits_truncate(0o600);
            let file = File::from(openat(&self.folder, LOCK, flags(OFlag::O_RDWR | OFlag::O_CREAT), mode)?);
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            let lock = Lock(file);
            // An agent that uninstalled may have removed the file since it was opened.
            if self.is_locked_by(&lock) {
                return Ok(Some(lock));
            }
        }
    }

    /// Returns true if a lock is still this folder's: somebody may have removed the file, or have put another folder into
    /// the place of the one that was locked.
    pub(crate) fn is_locked_by(&self, lock: &Lock) -> bool {
        let identity = |file: &Metadata| (file.dev(), file.ino());
        lock.0
            .metadata()
            .ok()
            .is_some_and(|held| self.metadata(LOCK).is_some_and(|here| identity(&here) == identity(&held)))
    }
}

/// A folder's lock, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Lock(File);

/// The content of an open file; none for a folder.
fn content(file: &File) -> io::Result<Option<Content>> {
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Ok(None);
    }
    if !metadata.is_file() {
        return Ok(Some(Err("it is no regular file".to_owned())));
    }
    let mut bytes = Vec::new();
    file.take(LONGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST {
        return Ok(Some(Err("it is longer than a MiB".to_owned())));
    }
    Ok(Some(Ok(Text { bytes, mode: metadata.mode() & 0o7777 })))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_somebody_else_wrote_meanwhile_is_not_removed() {
        let path = std::env::temp_dir().join(format!("linkerd-cni-agent-removes-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let folder = Folder::open(&path).unwrap();
        let text = |bytes: &str| Text { bytes: bytes.into(), mode: 0o600 };
        folder.write("a.conf", &mut &b"newer"[..], 0o600, None).unwrap();
        assert!(!folder.remove_expected("a.conf", &text("older")).unwrap());
        assert_eq!(fs::read(path.join("a.conf")).unwrap(), b"newer");
        assert!(folder.remove_expected("a.conf", &text("newer")).unwrap());
        assert!(folder.remove_expected("a.conf", &text("newer")).unwrap());
        assert!(folder.names().unwrap().is_empty());
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn one_agent_has_the_lock_and_a_file_that_is_gone_locks_nothing() {
        let path = std::env::temp_dir().join(format!("linkerd-cni-agent-lock-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let folder = Folder::open(&path).unwrap();
        let first = folder.lock().unwrap().unwrap();
        assert!(folder.lock().unwrap().is_none());
        folder.remove(LOCK).unwrap();
        assert!(!folder.is_locked_by(&first));
        let second = folder.lock().unwrap().unwrap();
        assert!(folder.is_locked_by(&second) && path.join(LOCK).exists());
        drop(first);
        assert!(folder.lock().unwrap().is_none());
        drop(second);
        assert!(folder.lock().unwrap().is_some());
        fs::remove_dir_all(path).unwrap();
    }
}
