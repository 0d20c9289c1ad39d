//! Decides which of a node's agents writes to its folders.
//!
//! While one agent takes another's place, and in a canary, two run on a node. The agent that holds the lock on a small file
//! of the folder writes (flock(2)); the other tries to take the lock once a second. However an agent ends, the kernel takes
//! the lock from it.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt as _;

use crate::folder::Folder;

/// The file's name. Runtimes read no file with such a name.
pub(crate) const FILE: &str = ".linkerd-cni-agent";

/// The lock, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Lock(File);

impl Lock {
    /// Takes the folder's lock; none if another agent has it.
    pub(crate) fn take(folder: &Folder) -> io::Result<Option<Self>> {
        loop {
            let file = folder.open_or_create(FILE)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            let lock = Self(file);
            // An agent that uninstalled may have removed the file since it was opened.
            if !lock.is_void() {
                return Ok(Some(lock));
            }
        }
    }

    /// Returns true if somebody has removed the file: the lock keeps nobody out any more.
    pub(crate) fn is_void(&self) -> bool {
        self.0.metadata().is_ok_and(|file| file.nlink() == 0)
    }
}

#[cfg(test)]
mod tests {
    use std::env::temp_dir;
    use std::fs;

    use super::*;

    #[test]
    fn one_agent_has_the_lock_and_a_file_that_is_gone_locks_nothing() {
        let path = temp_dir().join(format!("linkerd-cni-agent-lock-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let folder = Folder::open(&path).unwrap();
        let first = Lock::take(&folder).unwrap().unwrap();
        assert!(Lock::take(&folder).unwrap().is_none());
        folder.remove(FILE).unwrap();
        assert!(first.is_void());
        let second = Lock::take(&folder).unwrap().unwrap();
        assert!(!second.is_void() && path.join(FILE).exists());
        drop(first);
        assert!(Lock::take(&folder).unwrap().is_none());
        drop(second);
        assert!(Lock::take(&folder).unwrap().is_some());
        fs::remove_dir_all(path).unwrap();
    }
}
