//! The user namespace that a network namespace belongs to, where that isn't the process's own, as in a pod with
//! `hostUsers: false`. The kernel takes some calls only from in there, and a process with several threads can't enter
//! it (setns(2)): so processes of their own make these calls.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::privilege::keep;

/// A user namespace that isn't the process's own.
#[derive(Debug)]
pub(crate) struct UserNamespace(OwnedFd);

/// The namespace that another one belongs to, or its parent (ioctl_ns(2)). `EPERM`: it is neither the user namespace that the
/// process is in nor within that one.
fn related(namespace: impl AsFd, how: libc::Ioctl) -> Result<OwnedFd, Errno> {
    // SAFETY: such an ioctl takes no argument, and returns a new file descriptor or -1.
    let it = Errno::result(unsafe { libc::ioctl(namespace.as_fd().as_raw_fd(), how) })?;
    // SAFETY: the kernel has just made it, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(it) })
}

/// The user namespace that the thread's network namespace belongs to.
fn owner() -> Result<OwnedFd, Errno> {
    let of_io = |error: io::Error| Errno::from_raw(error.raw_os_error().unwrap_or_default());
    let network = File::open("/proc/thread-self/ns/net").map_err(of_io)?;
    related(network, libc::NS_GET_USERNS)
}

/// Whether this process has opened a network namespace that belongs to another user namespace.
static HAS_OPENED_OTHER: AtomicBool = AtomicBool::new(false);

/// Says that this process has opened a network namespace, to enter it.
pub(crate) fn opened(network: impl AsFd) {
    if related(network, libc::NS_GET_USERNS).is_ok_and(|owner| is_own(owner) == Ok(false)) {
        HAS_OPENED_OTHER.store(true, Ordering::Relaxed);
    }
}

/// Whether the process is in this user namespace, and not outside of it: then its parent is out of the process's sight.
/// Looking at /proc would take four times as long, for the kernel makes each folder as it is looked up.
fn is_own(namespace: impl AsFd) -> Result<bool, Errno> {
    match related(namespace, libc::NS_GET_PARENT) {
        Ok(_) => Ok(false),
        Err(Errno::EPERM) => Ok(true),
        Err(errno) => Err(errno),
    }
}

/// Whether the thread's network namespace belongs to the user namespace that the process is in; none if that can't be
/// told.
pub(crate) fn owns_network() -> Option<bool> {
    match owner() {
        Ok(owner) => is_own(&owner).ok(),
        Err(Errno::EPERM) => Some(false),
        Err(_) => None,
    }
}

impl UserNamespace {
    /// The one that the thread's network namespace belongs to; none if that is the process's own, or can't be told.
    pub(crate) fn of_network() -> Option<Self> {
        let owner = owner().ok()?;
        (!is_own(&owner).ok()?).then_some(Self(owner))
    }

    /// As [`UserNamespace::of_network`], but without asking as long as the process has opened no network namespace of
    /// another user namespace.
    pub(crate) fn of_opened() -> Option<Self> {
        HAS_OPENED_OTHER
            .load(Ordering::Relaxed)
            .then(Self::of_network)
            .flatten()
    }

    /// As [`UserNamespace::of_network`], if the process may enter it. That takes CAP_SYS_ADMIN in there: its owner's
    /// user has that, and whoever has it outside.
    pub(crate) fn enterable() -> Option<Self> {
        Self::of_network().filter(|namespace| namespace.call(|| Ok(())) == Some(Ok(())))
    }

    /// Has a process in the user namespace make a system call on what processes share, such as a socket. Of what the
    /// call writes into memory, nothing is seen here. On an error, nothing was done; none: that process was killed or
    /// can't be waited for, and it isn't known whether anything was.
    ///
    /// `call` must not allocate: another thread may have been about to, and its lock stays locked in the new process.
    pub(super) fn call(&self, call: impl FnOnce() -> Result<(), Errno>) -> Option<Result<(), Errno>> {
        // Unlike fork(2), a clone(2) without a signal for the end leaves the new process to be waited for where SIGCHLD
        // is ignored, as a program inherits it, and where an embedding program waits for whatever child ends. This one
        // goes on only once the new one has ended (CLONE_VFORK), so that what it did is done even where wait4 fails.
        let (vfork, none): (libc::c_long, libc::c_long) = (libc::CLONE_VFORK.into(), 0);
        let (first, second) = if cfg!(target_arch = "s390x") {
            (none, vfork)
        } else {
            (vfork, none)
        };
        // SAFETY: with that flag alone, nothing is shared and nothing written. The new process makes system calls only,
        // and ends.
        let child = match Errno::result(unsafe { libc::syscall(libc::SYS_clone, first, second, none, none, none) }) {
            Err(errno) => return Some(Err(errno)),
            Ok(0) => {
                let done = setns(&self.0, CloneFlags::CLONE_NEWUSER).and_then(|()| call());
                // SAFETY: it ends the process without running anything of the program's.
                unsafe { libc::_exit(done.map_or_else(|errno| errno as libc::c_int, |()| 0)) }
            }
            Ok(child) => Pid::from_raw(child as libc::pid_t),
        };
        loop {
            match waitpid(child, Some(WaitPidFlag::__WALL)) {
                Err(Errno::EINTR) => {}
                Ok(WaitStatus::Exited(_, 0)) => return Some(Ok(())),
                Ok(WaitStatus::Exited(_, errno)) => return Some(Err(Errno::from_raw(errno))),
                _ => return None,
            }
        }
    }

    /// Has the command run in the user namespace, with these capabilities there and no others; `capabilities` are a bit
    /// each, by their numbers in linux/capability.h.
    pub(crate) fn start_within(&self, command: &mut Command, capabilities: u32) -> io::Result<()> {
        let namespace = self.0.try_clone()?;
        let enter = move || {
            // It gives all capabilities in there, but none that stay when a program is executed (user_namespaces(7)).
            setns(&namespace, CloneFlags::CLONE_NEWUSER)?;
            keep(capabilities)?;
            Ok(())
        };
        // SAFETY: in the new process, it makes system calls only.
        unsafe { command.pre_exec(enter) };
        Ok(())
    }
}
