//! How often a file may be rewritten.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);

/// What was rewritten in the last minute.
#[derive(Debug)]
pub struct Throttle {
    limit: usize,
    times: BTreeMap<String, VecDeque<Instant>>,
}

impl Throttle {
    /// At most `limit` times a minute, each file.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            times: BTreeMap::new(),
        }
    }

    /// Counts a rewrite, if there may be one now.
    ///
    /// # Errors
    /// How long to wait.
    pub fn ask(&mut self, name: &str, now: Instant) -> Result<(), Duration> {
        let times = self.times.entry(name.to_owned()).or_default();
        while times.front().is_some_and(|time| now.duration_since(*time) >= MINUTE) {
            times.pop_front();
        }
        match times.front() {
            Some(first) if times.len() >= self.limit => Err(MINUTE.saturating_sub(now.duration_since(*first))),
            _ => {
                times.push_back(now);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_rewritten_so_often_a_minute_and_others_are_not_held_up() {
        let start = Instant::now();
        let mut throttle = Throttle::new(2);
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(throttle.ask("a", at(0)), Ok(()));
        assert_eq!(throttle.ask("a", at(10)), Ok(()));
        assert_eq!(throttle.ask("a", at(20)), Err(Duration::from_secs(40)));
        assert_eq!(throttle.ask("b", at(20)), Ok(()));
        assert_eq!(throttle.ask("a", at(60)), Ok(()));
        assert_eq!(throttle.ask("a", at(61)), Err(Duration::from_secs(9)));
    }
}
