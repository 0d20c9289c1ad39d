//! Which of a node's agents owns the folder.
//!
//! While one agent takes another's place, and in a canary, two run on a node. The one that started last owns the
//! folder. All of it is in one small file of the folder: its content is the owner's number, and each agent holds a lock
//! on the byte of its own number for as long as its process lives (open file description locks, fcntl(2)), however it
//! ends.

use std::fs::File;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::thread::sleep;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use crate::folder::Folder;

/// The file's name. Runtimes read no file with such a name.
pub const FILE: &str = ".linkerd-cni-agent";

/// The byte that is locked while an agent joins or leaves.
const DOOR: i64 = 0;
/// The first byte of an agent.
const FIRST: i64 = 1;

/// How long an agent waits for another that is joining or leaving.
const PATIENCE: u32 = 100;
const PAUSE: Duration = Duration::from_millis(100);

/// This agent's part in the folder.
#[derive(Debug)]
pub struct Membership {
    file: File,
    number: i64,
}

/// Who owns the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// This agent.
    Owner,
    /// Another one, which runs.
    Other,
    /// Nobody who runs.
    Nobody,
}

/// The locked door: nobody else joins or leaves while this lives.
struct Door<'a>(&'a File);

impl Drop for Door<'_> {
    fn drop(&mut self) {
        // Closing the file would open it too.
        let _ = lock(self.0, libc::F_UNLCK, DOOR, 1);
    }
}

fn range(kind: i32, start: i64, length: i64) -> libc::flock {
    libc::flock {
        l_type: i16::try_from(kind).unwrap_or_default(),
        l_whence: 0,
        l_start: start,
        l_len: length,
        l_pid: 0,
    }
}

/// Whether the lock could be taken.
fn lock(file: &File, kind: i32, start: i64, length: i64) -> io::Result<bool> {
    match fcntl(file, FcntlArg::F_OFD_SETLK(&range(kind, start, length))) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether another agent holds a lock there.
fn is_locked(file: &File, start: i64, length: i64) -> io::Result<bool> {
    let mut found = range(libc::F_WRLCK, start, length);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut found))?;
    Ok(i32::from(found.l_type) != libc::F_UNLCK)
}

fn door(file: &File) -> io::Result<Door<'_>> {
    for _ in 0..PATIENCE {
        if lock(file, libc::F_WRLCK, DOOR, 1)? {
            return Ok(Door(file));
        }
        sleep(PAUSE);
    }
    Err(io::Error::other("another agent of this node has been joining or leaving for ten seconds"))
}

impl Membership {
    /// Joins the folder's agents, and owns the folder from here on.
    ///
    /// # Errors
    /// As of open(2) and fcntl(2).
    pub fn join(folder: &Folder) -> io::Result<Self> {
        // Odd numbers of 61 bits are random enough for two agents, and the byte of one is never the door.
        let number = i64::try_from(RandomState::new().build_hasher().finish() >> 3).unwrap_or(FIRST) | FIRST;
        loop {
            let file = folder.open_or_create(FILE)?;
            {
                let _door = door(&file)?;
                // Another agent may have left while this one was waiting, and taken the file with it.
                if file.metadata()?.nlink() > 0 {
                    lock(&file, libc::F_WRLCK, number, 1)?;
                    record(&file, number)?;
                } else {
                    continue;
                }
            }
            return Ok(Self { file, number });
        }
    }

    /// Whether an agent that runs has joined.
    ///
    /// # Errors
    /// As of open(2) and fcntl(2).
    pub fn is_any(folder: &Folder) -> io::Result<bool> {
        is_locked(&folder.open_or_create(FILE)?, FIRST, 0)
    }

    /// Who owns the folder now.
    ///
    /// # Errors
    /// As of read(2) and fcntl(2).
    pub fn role(&self) -> io::Result<Role> {
        let mut digits = [0; 16];
        let length = self.file.read_at(&mut digits, 0)?;
        let owner = digits.get(..length).and_then(|digits| std::str::from_utf8(digits).ok());
        let owner = owner.and_then(|digits| i64::from_str_radix(digits, 16).ok());
        Ok(match owner {
            Some(owner) if owner == self.number => Role::Owner,
            Some(owner) if owner >= FIRST && is_locked(&self.file, owner, 1)? => Role::Other,
            _ => Role::Nobody,
        })
    }

    /// Whether the file has been removed, so that this is worth nothing any more.
    pub fn is_void(&self) -> bool {
        self.file.metadata().is_ok_and(|file| file.nlink() == 0)
    }

    /// Owns the folder from here on.
    ///
    /// # Errors
    /// As of write(2).
    pub fn take_over(&self) -> io::Result<()> {
        let _door = door(&self.file)?;
        record(&self.file, self.number)
    }

    /// Runs `work` if this agent is the only one; none joins meanwhile. Otherwise leaves the folder to the others, and
    /// the result is none.
    ///
    /// # Errors
    /// As of fcntl(2).
    pub fn leave<T>(self, work: impl FnOnce() -> T) -> io::Result<Option<T>> {
        let _door = door(&self.file)?;
        // Where the owner has just gone, this agent need not have noticed yet. Locks of the same open file don't count.
        if !is_locked(&self.file, FIRST, 0)? {
            return Ok(Some(work()));
        }
        if self.role()? == Role::Owner {
            record(&self.file, 0)?;
        }
        Ok(None)
    }
}

/// Of a fixed length: whoever reads it at the same time reads one number or the other.
fn record(file: &File, number: i64) -> io::Result<()> {
    file.write_all_at(format!("{number:016x}").as_bytes(), 0)
}

#[cfg(test)]
mod tests {
    use std::env::temp_dir;
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    struct Temporary(PathBuf);

    impl Temporary {
        fn new(name: &str) -> (Self, Folder) {
            let path = temp_dir().join(format!("linkerd-cni-agent-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            let folder = Folder::open(&path).unwrap();
            (Self(path), folder)
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_last_to_join_owns_the_folder() {
        let (_path, folder) = Temporary::new("last");
        let first = Membership::join(&folder).unwrap();
        assert_eq!(first.role().unwrap(), Role::Owner);
        let second = Membership::join(&folder).unwrap();
        assert_eq!((first.role().unwrap(), second.role().unwrap()), (Role::Other, Role::Owner));
        // The older one takes nothing with it.
        assert_eq!(first.leave(|| panic!("it is not the owner")).unwrap(), None::<()>);
        assert_eq!(second.role().unwrap(), Role::Owner);
        assert_eq!(second.leave(|| 1).unwrap(), Some(1));
    }

    #[test]
    fn an_owner_that_leaves_others_hands_over_and_one_that_dies_is_nobody() {
        let (_path, folder) = Temporary::new("over");
        let first = Membership::join(&folder).unwrap();
        let second = Membership::join(&folder).unwrap();
        assert_eq!(second.leave(|| panic!("it is not alone")).unwrap(), None::<()>);
        assert_eq!(first.role().unwrap(), Role::Nobody);
        first.take_over().unwrap();
        assert_eq!(first.role().unwrap(), Role::Owner);
        let third = Membership::join(&folder).unwrap();
        drop(third);
        assert_eq!(first.role().unwrap(), Role::Nobody);
    }

    #[test]
    fn of_two_that_leave_one_after_the_other_the_second_is_the_last() {
        for hands_over in [false, true] {
            let (_path, folder) = Temporary::new("two");
            let first = Membership::join(&folder).unwrap();
            let second = Membership::join(&folder).unwrap();
            if hands_over {
                assert_eq!(second.leave(|| panic!("it is not alone")).unwrap(), None::<()>);
            } else {
                drop(second);
            }
            // Before it has looked again.
            assert_eq!(first.leave(|| 1).unwrap(), Some(1));
        }
    }

    #[test]
    fn whoever_joins_while_the_last_one_leaves_waits_and_has_a_file_of_its_own() {
        let (path, folder) = Temporary::new("joins");
        let first = Membership::join(&folder).unwrap();
        let (left, joined) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let again = Folder::open(&path.0).unwrap();
            let first = first.leave(|| {
                scope.spawn(move || left.send(Membership::join(&again).unwrap().role().unwrap()));
                sleep(Duration::from_millis(300));
                assert!(joined.try_recv().is_err());
                folder.remove(FILE).unwrap();
            });
            assert_eq!(first.unwrap(), Some(()));
        });
        assert_eq!(joined.recv().unwrap(), Role::Owner);
        assert!(path.0.join(FILE).exists());
    }
}
