//! The user namespace that a network namespace belongs to, where that isn't the process's own, as in a pod with
//! `hostUsers: false`. The kernel takes xtables' rules on owners only from in there. Nothing enters it: whoever has
//! capabilities in there could then look into the process, and take what it has open.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;

/// The namespace that another one belongs to, or its parent (ioctl_ns(2)). `EPERM`: it is neither the user namespace that the
/// process is in nor within that one.
fn related_namespace(namespace: impl AsFd, how: libc::Ioctl) -> Result<OwnedFd, Errno> {
    // SAFETY: such an ioctl takes no argument, and returns a new file descriptor or -1.
    let it = Errno::result(unsafe { libc::ioctl(namespace.as_fd().as_raw_fd(), how) })?;
    // SAFETY: the kernel has just made it, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(it) })
}

/// How far below the process's own user namespace the one is that a network namespace belongs to: 0 if it is that one, 1
/// if it is right below. `EPERM`: it is neither that one nor within it.
///
/// Looking at /proc would take four times as long, for the kernel makes each folder as it is looked up.
pub fn depth(network: impl AsFd) -> Result<usize, Errno> {
    let mut users = related_namespace(network, libc::NS_GET_USERNS)?;
    let mut depth = 0;
    loop {
        users = match related_namespace(&users, libc::NS_GET_PARENT) {
            Ok(parent) => parent,
            // The parent of the process's own is out of its sight.
            Err(Errno::EPERM) => return Ok(depth),
            Err(errno) => return Err(errno),
        };
        depth += 1;
    }
}

/// Whether this process has opened a network namespace that belongs to another user namespace.
static HAS_OPENED_OTHER: AtomicBool = AtomicBool::new(false);

/// Says that this process has opened a network namespace, to enter it.
pub fn note_opened_network(network: impl AsFd) {
    if depth(network).is_ok_and(|depth| depth > 0) {
        HAS_OPENED_OTHER.store(true, Ordering::Relaxed);
    }
}

/// Whether the thread's network namespace belongs to the user namespace that the process is in; none if that can't be
/// told.
pub fn owns_network() -> Option<bool> {
    match depth(File::open("/proc/thread-self/ns/net").ok()?) {
        Ok(depth) => Some(depth == 0),
        Err(Errno::EPERM) => Some(false),
        Err(_) => None,
    }
}

/// Whether it is known that the thread's network namespace belongs to another user namespace than the process's. As
/// long as the process has opened no such network namespace, nobody asks, which would take a pod's init container time.
/// Whoever entered one before the program began learns it when the kernel refuses a rule.
pub fn is_known_to_be_outside() -> bool {
    HAS_OPENED_OTHER.load(Ordering::Relaxed) && owns_network() == Some(false)
}
