//! What Rust's own start-up leaves to the program.

use caps::{CapSet, Capability};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::geteuid;

/// Prepares the process:
/// - A file at its limit of size (RLIMIT_FSIZE) is an error instead of the end of the process: the rules are in by then.
/// - CAP_NET_ADMIN is raised if the binary's file capability permits it.
///
/// The file capability is permitted only: if it were also effective, execve would fail in containers that drop it, and
/// no error could say why.
pub fn prepare() {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGXFSZ);
    // Blocked rather than ignored, which would need `unsafe`.
    let _ = signals.thread_block();
    // For root, what is permitted is effective already.
    if geteuid().is_root() || has_net_admin(CapSet::Effective) || !has_net_admin(CapSet::Permitted) {
        return;
    }
    // If this fails, the kernel refuses whatever needs the capability, and that is reported.
    let _ = caps::raise(None, CapSet::Effective, Capability::CAP_NET_ADMIN);
}

fn has_net_admin(set: CapSet) -> bool {
    caps::has_cap(None, set, Capability::CAP_NET_ADMIN).unwrap_or(false)
}
