//! The work of Rust's own start-up, without its slow parts.

use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, IntoRawFd as _};

use caps::{CapSet, Capability};
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::geteuid;

/// Prepares the process:
/// - A broken pipe, or a file at its limit of size, is an error instead of the end of the process.
/// - No other file, such as a socket, gets the number of a closed stdout or stderr and is written to.
/// - CAP_NET_ADMIN is raised if the binary's file capability permits it.
///
/// The file capability is permitted only: if it were also effective, execve would fail in containers that drop it, and
/// no error could say why.
pub(crate) fn prepare() {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGPIPE);
    // Output to a file at its limit of size (RLIMIT_FSIZE): the rules are in by then.
    signals.add(Signal::SIGXFSZ);
    // Blocked rather than ignored, which would need `unsafe`. The processes that it starts have them blocked too.
    let _ = signals.thread_block();
    let is_open = |file: BorrowedFd<'_>| fcntl(file, FcntlArg::F_GETFD).is_ok();
    if !(is_open(std::io::stdout().as_fd()) && is_open(std::io::stderr().as_fd())) {
        // A file gets the lowest free number.
        // For reading only: writing to it fails as writing to a closed file does.
        while let Ok(file) = File::open("/dev/null")
            && file.as_raw_fd() <= 2
        {
            let _stays_open = file.into_raw_fd();
        }
    }
    let net_admin = Capability::CAP_NET_ADMIN;
    let has = |set| caps::has_cap(None, set, net_admin).unwrap_or(false);
    // For root, permitted capabilities are effective already.
    if !geteuid().is_root() && !has(CapSet::Effective) && has(CapSet::Permitted) {
        // If this fails, the kernel refuses whatever needs the capability, and that is reported.
        let _ = caps::raise(None, CapSet::Effective, net_admin);
    }
}
