//! The xtables lock: all programs that change legacy tables take it first.

use std::env;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};

use crate::error::{self, Error};

/// Where the lock is, unless XTABLES_LOCKFILE says otherwise.
const FILE: &str = "/run/xtables.lock";

/// How long to try without `-w`.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long to sleep between two tries.
const PAUSE: Duration = Duration::from_millis(1);

/// Takes the lock: with `wait` however long that takes, else within a second.
pub(super) fn take(wait: bool) -> Result<Flock<File>, Error> {
    let file = env::var_os("XTABLES_LOCKFILE").map_or_else(|| FILE.into(), PathBuf::from);
    let unusable = |errno| Error::LockFile {
        file: file.clone(),
        errno,
    };
    // As iptables opens it (xtables_lock in iptables' xshared.c): reading is enough, and there may be no right to write.
    let mut lock = OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_CREAT.bits())
        .mode(0o600)
        .open(&file)
        .map_err(|error| unusable(error::Errno::of_io(&error)))?;
    let how = if wait {
        FlockArg::LockExclusive
    } else {
        FlockArg::LockExclusiveNonblock
    };
    let deadline = Instant::now() + PATIENCE;
    loop {
        lock = match Flock::lock(lock, how) {
            Ok(locked) => return Ok(locked),
            Err((lock, Errno::EINTR)) => lock,
            Err((lock, Errno::EWOULDBLOCK)) if Instant::now() < deadline => {
                thread::sleep(PAUSE);
                lock
            }
            Err((_, Errno::EWOULDBLOCK)) => return Err(Error::LockHeld { file }),
            Err((_, errno)) => return Err(unusable(error::Errno::of(errno))),
        };
    }
}
