//! Network namespaces for tests. Making one takes root: without it, these tests fail.

use std::panic::resume_unwind;
use std::sync::Mutex;
use std::thread;

use nix::sched::{CloneFlags, unshare};

/// Held by tests that start children, or change the known facts about ended ones.
pub(crate) static CHILDREN: Mutex<()> = Mutex::new(());

/// Runs this in a network namespace of its own.
pub(crate) fn in_a_namespace(test: impl FnOnce() + Send) {
    thread::scope(|scope| {
        let tested = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("it takes root to make a network namespace");
            test();
        });
        tested.join().unwrap_or_else(|panic| resume_unwind(panic));
    });
}
