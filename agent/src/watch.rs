//! Waiting until something in a folder changes. nix has all that this takes of inotify(7): one crate less than `inotify`.

use std::ffi::OsString;
use std::future::pending;
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::net::unix::pipe::Receiver;
use tokio::time::sleep;
use tracing::warn;

use crate::folder::is_unfinished;

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
#[derive(Default)]
pub(crate) struct Watch(Option<Queue>);

struct Queue {
    queue: Inotify,
    /// The same queue, as tokio can wait for it.
    events: Receiver,
}

impl Watch {
    /// Watches the folder that has this path now; one that isn't there is no error. Doing it again changes nothing, unless the
    /// path leads elsewhere by now.
    pub(crate) fn add(&mut self, folder: &Path) -> io::Result<()> {
        let queue = match &mut self.0 {
            Some(queue) => queue,
            none => none.insert(Queue::new()?),
        };
        match queue.queue.add_watch(folder, CHANGES).map_err(io::Error::from) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(()),
            added => added.map(drop),
        }
    }

    /// Waits until something has changed since the last time. What the agent itself leaves in a folder while it writes
    /// is nothing.
    pub(crate) async fn changed(&self) {
        let Some(queue) = &self.0 else {
            return pending().await;
        };
        if let Err(error) = queue.changed().await {
            warn!("inotify: {error}");
            sleep(Duration::from_secs(1)).await;
        }
    }
}

impl Queue {
    fn new() -> io::Result<Self> {
        let queue = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        // tokio has no type for it, and reads and waits for a pipe in the same way.
        let events = Receiver::from_owned_fd_unchecked(queue.as_fd().try_clone_to_owned()?)?;
        Ok(Self { queue, events })
    }

    async fn changed(&self) -> io::Result<()> {
        let mut has_changed = false;
        while !has_changed {
            self.events.readable().await?;
            loop {
                // Through tokio, so that it knows when there is nothing left to read.
                match self.events.try_io(|| Ok(self.queue.read_events()?)) {
                    Ok(events) => {
                        let is_ours = |name: &OsString| is_unfinished(name);
                        has_changed |= events.iter().any(|event| !event.name.as_ref().is_some_and(is_ours));
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_file_that_is_still_being_written_wakes_nobody() {
        let folder = std::env::temp_dir().join(format!("linkerd-cni-agent-wakes-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut watch = Watch::default();
        watch.add(&folder).unwrap();
        let unfinished = folder.join(".a.conf.linkerd-cni-unfinished");
        for _ in 0..1000 {
            fs::write(&unfinished, "").unwrap();
            fs::remove_file(&unfinished).unwrap();
        }
        let changed = timeout(Duration::from_millis(300), watch.changed()).await;
        assert!(changed.is_err(), "{changed:?}");
        fs::write(&unfinished, "").unwrap();
        fs::rename(&unfinished, folder.join("a.conf")).unwrap();
        timeout(Duration::from_secs(60), watch.changed()).await.unwrap();
        fs::remove_dir_all(folder).unwrap();
    }
}
