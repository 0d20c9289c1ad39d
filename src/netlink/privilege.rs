//! What this process may do, and where. It is in this module because it needs `unsafe`.

use std::fs::File;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::sys::stat::{fstat, stat};

/// Whether the kernel gave the program privileges when it started it, which the user who did so need not have: by file
/// capabilities, or by a set-user-ID or set-group-ID bit (`AT_SECURE` in getauxval(3); `bprm->secureexec` in
/// security/commoncap.c). What that user wrote into the environment is not to be trusted then.
pub(crate) fn is_borrowed() -> bool {
    // SAFETY: getauxval takes any number, and reads what the kernel wrote onto this process's stack.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Whether the thread's network namespace belongs to the user namespace that the process is in (ioctl_ns(2)); none if that
/// can't be told.
pub(crate) fn owns_network() -> Option<bool> {
    let network = File::open("/proc/thread-self/ns/net").ok()?;
    // SAFETY: this ioctl takes no argument, and returns a new file descriptor or -1.
    let owner = unsafe { libc::ioctl(network.as_raw_fd(), libc::NS_GET_USERNS) };
    if owner < 0 {
        // An ancestor's, or a stranger's.
        return (Errno::last() == Errno::EPERM).then_some(false);
    }
    // SAFETY: the kernel has just made it, and nobody else knows it.
    let owner = unsafe { OwnedFd::from_raw_fd(owner) };
    let (owner, own) = (fstat(owner).ok()?, stat("/proc/thread-self/ns/user").ok()?);
    Some((owner.st_dev, owner.st_ino) == (own.st_dev, own.st_ino))
}
