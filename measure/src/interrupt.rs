//! Ctrl-C: everything begun is ended and removed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::sys::signal::{SigSet, Signal};

use lab::shell::Result;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From here on, signals that end the program only stop the next run. Threads and commands that are started afterwards
/// are spared them too, so that the run of the moment comes to its end. A second signal ends the program at once.
pub(crate) fn watch() -> Result<()> {
    let mut signals = SigSet::empty();
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().for_each(|signal| signals.add(signal));
    signals.thread_block()?;
    thread::spawn(move || {
        if signals.wait().is_ok() {
            INTERRUPTED.store(true, Ordering::Relaxed);
            eprintln!("\nInterrupted: cleaning up");
        }
        // A second Ctrl-C has its default effect.
        let _ = signals.thread_unblock();
        loop {
            thread::park();
        }
    });
    Ok(())
}

/// Returns true if the program is to stop.
pub(crate) fn check() -> Result<()> {
    if INTERRUPTED.load(Ordering::Relaxed) { Err("interrupted".into()) } else { Ok(()) }
}
