//! The xtables lock: all programs that change legacy tables take it first.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt as _;
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;

use super::environment::lock_file;
use crate::error::{ModeError, errno_of};

/// The time to try without `-w`.
const PATIENCE: Duration = Duration::from_secs(1);

const PAUSE: Duration = Duration::from_millis(1);

pub(super) struct Lock(pub(super) File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing the file would leave it locked while another process has a copy of it, and is enough where this
        // fails.
        let _ = self.0.unlock();
    }
}

/// Takes the lock: with `wait` however long that takes, else within a second.
pub(super) fn take(wait: bool) -> Result<Lock, ModeError> {
    let file = lock_file();
    let unusable = |errno| ModeError::LockFile { file: file.clone(), errno };
    // As iptables opens it (xtables_lock in iptables' xshared.c): reading is enough, and there may be no right to
    // write.
    let lock = OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_CREAT.bits())
        .mode(0o600)
        .open(&file)
        .map_err(|error| unusable(errno_of(&error)))?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let taken = if wait { lock.lock() } else { lock.try_lock().map_err(io::Error::from) };
        match taken.map_err(|error| (error.kind(), error)) {
            Ok(()) => return Ok(Lock(lock)),
            Err((ErrorKind::Interrupted, _)) => {}
            Err((ErrorKind::WouldBlock, _)) if Instant::now() < deadline => thread::sleep(PAUSE),
            Err((ErrorKind::WouldBlock, _)) => return Err(ModeError::LockHeld { file }),
            Err((_, error)) => return Err(unusable(errno_of(&error))),
        }
    }
}
