//! The user namespace to which a network namespace belongs, if that isn't the process's own, as in a pod with
//! `hostUsers: false`. The kernel takes xtables' rules on owners only from inside it. Nothing enters it: a process with
//! capabilities in there could then look into this one, and take its open descriptors.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;

/// The namespace that another one belongs to, or its parent (ioctl_ns(2)). `EPERM`: it is neither the user namespace
/// that the process is in nor within that one.
fn related_namespace(namespace: impl AsFd, how: libc::Ioctl) -> Result<OwnedFd, Errno> {
    // SAFETY: such an ioctl takes no argument, and returns a new file descriptor or -1.
    let it = Errno::result(unsafe { libc::ioctl(namespace.as_fd().as_raw_fd(), how) })?;
    // SAFETY: the kernel has just made it, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(it) })
}

/// The number of levels by which the user namespace of a network namespace is below the process's own: 0 if it is the
/// same, 1 if it is a child. `EPERM`: it is neither the same nor below.
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

/// True if this process has opened a network namespace that belongs to another user namespace.
static HAS_OPENED_OTHER: AtomicBool = AtomicBool::new(false);

/// Records that this process has opened a network namespace, to enter it.
pub fn note_opened_network(network: impl AsFd) {
    if depth(network).is_ok_and(|depth| depth > 0) {
        HAS_OPENED_OTHER.store(true, Ordering::Relaxed);
    }
}

/// True if the thread's network namespace belongs to the process's user namespace; none: not known.
pub fn owns_network() -> Option<bool> {
    match depth(File::open("/proc/thread-self/ns/net").ok()?) {
        Ok(depth) => Some(depth == 0),
        Err(Errno::EPERM) => Some(false),
        Err(_) => None,
    }
}

/// Returns true if the thread's network namespace is known to belong to another user namespace than the process's. This
/// asks the kernel only if the process has opened such a network namespace, since asking takes a pod's init container
/// time. A program that was started in one learns it when the kernel refuses a rule.
pub fn is_known_to_be_outside() -> bool {
    HAS_OPENED_OTHER.load(Ordering::Relaxed) && owns_network() == Some(false)
}
