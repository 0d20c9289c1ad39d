//! Waiting for what happens by itself.

use std::thread::sleep;
use std::time::{Duration, Instant};

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
