//! Waiting for what happens by itself.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::shell::Result;

/// The time limit for any of a node to be there, on a machine that others use too.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Waits until something is so.
pub fn wait_for(what: &str, is_so: impl Fn() -> bool) -> Result<()> {
    let answer = until(PATIENCE, || is_so().then_some(()));
    answer.ok_or_else(|| format!("{what} is not there in time").into())
}

/// Asks again and again until there is an answer; none if there is none for this long, which is only a bound against
/// hanging. The pauses get longer, so that a question that starts a process doesn't take the time of what it waits for.
pub fn until<T>(limit: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    const LONGEST: Duration = Duration::from_millis(200);
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        let waited = begun.elapsed();
        if waited > limit {
            return None;
        }
        sleep((waited / 10).clamp(Duration::from_millis(5), LONGEST));
    }
}
