//! Network namespaces for tests. Making one takes root: without it, nothing is tested there.

use std::panic::resume_unwind;
use std::sync::Mutex;
use std::thread;

use nix::sched::{CloneFlags, unshare};

/// Held by tests that start children, or change what is known of those that ended.
pub(crate) static CHILDREN: Mutex<()> = Mutex::new(());

/// Runs this in a network namespace of its own, if one may be made.
pub(crate) fn in_a_namespace(test: impl FnOnce() + Send) {
    thread::scope(|scope| {
        let tested = scope.spawn(|| match unshare(CloneFlags::CLONE_NEWNET) {
            Ok(()) => test(),
            Err(errno) => eprintln!("not tested: {errno}"),
        });
        tested.join().unwrap_or_else(|panic| resume_unwind(panic));
    });
}
