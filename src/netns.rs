//! Running something in another network namespace.

use std::fs::{File, OpenOptions};
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;

use netfilter::netlink::signals::hold;
use netfilter::netlink::user_namespace::{depth, note_opened_network};
use nix::fcntl::OFlag;
use nix::sched::{CloneFlags, setns};
use nix::sys::statfs::{NSFS_MAGIC, statfs};

use crate::error::{Errno, Error, errno_of};

/// A network namespace. It stays alive as long as this value does, even if its name is removed.
#[derive(Debug)]
pub struct Namespace {
    file: File,
    path: PathBuf,
}

impl Namespace {
    /// Opens the namespace at `path`: `/var/run/netns/NAME`, or `/proc/PID/ns/net`. A namespace of another kind, such as a
    /// mount namespace, is refused by [`Namespace::run`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        // Files of namespaces are on a file system of their own, nsfs (namespaces(7)). Nothing else is opened: that can
        // wait for ever, as with a FIFO, or set off whatever is behind a device.
        let filesystem = statfs(&path).map_err(|errno| open_error(&path, errno))?;
        if filesystem.filesystem_type() != NSFS_MAGIC {
            return Err(entry_error(&path, Errno::EINVAL, NOT_A_NAMESPACE));
        }
        let file = OpenOptions::new()
            .read(true)
            // If it has become a FIFO in the meantime, this does not wait.
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(&path)
            .map_err(|error| open_error(&path, errno_of(&error)))?;
        note_opened_network(&file);
        Ok(Self { file, path })
    }

    /// Runs `work` in the namespace, on a thread of its own: the calling thread stays where it is, whatever happens inside.
    /// Processes that `work` starts are in the namespace too. The thread has the calling thread's capabilities, and costs
    /// some 50 microseconds. A panic of `work` goes on here.
    ///
    /// # Errors
    /// [`Error::Netns`]: the namespace cannot be entered (which takes CAP_SYS_ADMIN), or no thread can be started.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        let result = on_a_thread(|| {
            self.enter()?;
            Ok(work())
        });
        result.map_err(|error| {
            entry_error(
                &self.path,
                errno_of(&error),
                "no thread can be started there: raise the limit on processes (ulimit -u, or the cgroup's pids.max)",
            )
        })?
    }

    /// Checks if one of these addresses is the namespace's own. A socket can be bound to no other, and unlike a list of all
    /// addresses, that is short whatever the namespace has.
    ///
    /// # Errors
    /// [`Error::Netns`]: the namespace can't be entered, or doesn't tell.
    pub fn has_any(&self, addresses: &[IpAddr]) -> Result<bool, Error> {
        let has = |address: &IpAddr| match UdpSocket::bind((*address, 0)) {
            Ok(_) => Ok(true),
            Err(error) => match errno_of(&error) {
                // All of its ports.
                Errno::EADDRINUSE => Ok(true),
                Errno::EADDRNOTAVAIL | Errno::EAFNOSUPPORT => Ok(false),
                errno => Err(entry_error(&self.path, errno, "no socket there says if an address is its own")),
            },
        };
        self.run(|| {
            for address in addresses {
                if has(address)? {
                    return Ok(true);
                }
            }
            Ok(false)
        })?
    }

    /// The number of levels by which its user namespace is below the process's own: 0 if it belongs to that one. A pod with
    /// `hostUsers: false` has 1; what a process made without any capability, one more than the process itself. `EPERM`: it
    /// belongs to a user namespace that isn't within the process's own.
    pub fn user_namespace_depth(&self) -> io::Result<usize> {
        depth(self).map_err(io::Error::from)
    }

    fn enter(&self) -> Result<(), Error> {
        setns(&self.file, CloneFlags::CLONE_NEWNET).map_err(|errno| {
            let advice = match errno {
                Errno::EINVAL => NOT_A_NAMESPACE,
                Errno::EPERM => "run as root or with CAP_SYS_ADMIN",
                _ => "the kernel may lack network namespaces (CONFIG_NET_NS)",
            };
            entry_error(&self.path, errno, advice)
        })
    }
}

/// For a program that enters it by setns(2) itself: one that has nothing else to do afterwards saves a thread.
impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn open_error(path: &Path, errno: Errno) -> Error {
    let advice = match errno {
        Errno::EACCES | Errno::EPERM => "run as root, or as a user who may open that file",
        _ => "name the file of a namespace, such as /var/run/netns/NAME or /proc/PID/ns/net",
    };
    entry_error(path, errno, advice)
}

fn entry_error(path: &Path, errno: Errno, advice: &'static str) -> Error {
    Error::Netns { path: path.to_owned(), errno, advice }
}

const NOT_A_NAMESPACE: &str =
    "this is not the file of a network namespace; name one such as /var/run/netns/NAME or /proc/PID/ns/net";

/// Runs `work` on a thread of its own, and waits for it. A panic of it goes on here. It is an error if no thread can be
/// started.
pub(crate) fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, work)?;
        // The process's signals go to the thread that works, which holds back those that may not disturb it.
        let _held = hold();
        Ok(thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

/// Runs `work` in the namespace at `path`; without a path, in the namespace of the calling thread, on that thread.
pub(crate) fn run_in<T: Send>(path: Option<&Path>, work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    match path {
        Some(path) => Namespace::open(path)?.run(work)?,
        None => work(),
    }
}
