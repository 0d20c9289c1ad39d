//! Waiting until something in a folder changes.

use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::net::unix::pipe::Receiver;

/// Reading isn't among them: what the agent reads, and a runtime, wakes nobody up.
const CHANGES: AddWatchFlags = AddWatchFlags::IN_CLOSE_WRITE
    .union(AddWatchFlags::IN_CREATE)
    .union(AddWatchFlags::IN_DELETE)
    .union(AddWatchFlags::IN_MOVED_FROM)
    .union(AddWatchFlags::IN_MOVED_TO)
    .union(AddWatchFlags::IN_ATTRIB)
    .union(AddWatchFlags::IN_DELETE_SELF)
    .union(AddWatchFlags::IN_MOVE_SELF)
    .union(AddWatchFlags::IN_ONLYDIR);

/// Folders that are watched (inotify(7)).
pub struct Watch {
    queue: Inotify,
    /// The same queue, as tokio can wait for it.
    events: Receiver,
}

impl Watch {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// As of inotify_init1(2).
    pub fn new() -> io::Result<Self> {
        let queue = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        // What is read and waited for as a pipe is.
        let events = Receiver::from_owned_fd_unchecked(queue.as_fd().try_clone_to_owned()?)?;
        Ok(Self { queue, events })
    }

    /// Watches the folder that has this path now. Doing it again changes nothing, unless the path leads elsewhere by
    /// now.
    ///
    /// # Errors
    /// As of inotify_add_watch(2).
    pub fn add(&self, folder: &Path) -> io::Result<()> {
        self.queue.add_watch(folder, CHANGES)?;
        Ok(())
    }

    /// Waits until something has changed since the last time.
    ///
    /// # Errors
    /// As of read(2).
    pub async fn changed(&self) -> io::Result<()> {
        self.events.readable().await?;
        let mut buffer = [0; 4096];
        loop {
            match self.events.try_read(&mut buffer) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}
