//! What Rust's own start-up does for a program, but for the part that takes its time; see main.rs.

use std::fs::OpenOptions;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, IntoRawFd as _};

use caps::{CapSet, Capability};
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::geteuid;

/// Makes a broken pipe an error instead of a death; sees that stdout and stderr are open (else a socket could get their
/// number, and be written to); and takes up CAP_NET_ADMIN, if the binary's file capability permits it.
///
/// A file capability that were effective by itself would have the kernel refuse to start the program at all where the
/// capability has been dropped, and nobody could say why.
pub fn prepare() {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGPIPE);
    // Blocked rather than ignored, which would take `unsafe`. Processes that we start get it unblocked (std::process).
    let _ = signals.thread_block();
    let is_open = |file: BorrowedFd<'_>| fcntl(file, FcntlArg::F_GETFD).is_ok();
    if !(is_open(std::io::stdout().as_fd()) && is_open(std::io::stderr().as_fd())) {
        // A file gets the lowest number that is free.
        while let Ok(file) = OpenOptions::new().read(true).write(true).open("/dev/null")
            && file.as_raw_fd() <= 2
        {
            let _stays_open = file.into_raw_fd();
        }
    }
    let net_admin = Capability::CAP_NET_ADMIN;
    let has = |set| caps::has_cap(None, set, net_admin).unwrap_or(false);
    // Root has what is permitted in effect already.
    if !geteuid().is_root() && !has(CapSet::Effective) && has(CapSet::Permitted) {
        // If it can't be had, the kernel will say so of what needs it.
        let _ = caps::raise(None, CapSet::Effective, net_admin);
    }
}
