//! Limits how often a file may be written, so that neither a war with another program nor a failure costs more than it
//! must: a pause after each try, which grows as long as tries follow each other. Pure functions of time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The pauses after a try: the first, and the longest. A file on which another program insists has the entry again so
/// long after that program ends.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// A file that was written so often that its pause has become so long is contested.
const CONTESTED: Duration = Duration::from_secs(3);
/// The time after its pause for which a file has to stay as it is, before all is forgotten.
const CALM: Duration = Duration::from_secs(5);

/// The files that were written, or couldn't be, by their names.
#[derive(Debug, Default)]
pub(crate) struct Throttle(BTreeMap<String, File>);

#[derive(Debug)]
struct File {
    pause: Duration,
    end: Instant,
    /// The reason if the last try failed.
    failure: Option<String>,
}

impl Throttle {
    /// The time for which a file may not be written yet.
    pub(crate) fn wait(&self, name: &str, now: Instant) -> Duration {
        self.0.get(name).map_or(Duration::ZERO, |file| file.end.saturating_duration_since(now))
    }

    /// Notes a try, and the reason if it failed.
    pub(crate) fn tried(&mut self, name: &str, now: Instant, failure: Option<String>) {
        // The pauses after failures say nothing about another program.
        let before = self.0.get(name).filter(|file| file.failure.is_none() || failure.is_some());
        let pause = before.map_or(Duration::ZERO, |file| file.pause * 2).clamp(PAUSES.0, PAUSES.1);
        self.0.insert(name.to_owned(), File { pause, end: now + pause, failure });
    }

    /// The files in trouble, and when that will be over if nothing more happens: those that couldn't be written, with the
    /// reason, and those that are contested. Trouble that is over is forgotten.
    pub(crate) fn troubles(&mut self, now: Instant) -> Vec<(String, Option<String>, Duration)> {
        self.0.retain(|_, file| file.end + CALM > now);
        let in_trouble = self.0.iter().filter(|(_, file)| file.failure.is_some() || file.pause >= CONTESTED);
        let trouble = |(name, file): (&String, &File)| {
            (name.clone(), file.failure.clone(), (file.end + CALM).saturating_duration_since(now))
        };
        in_trouble.map(trouble).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When a file is written that needs it all the time, in milliseconds, and how often before it is contested.
    fn writes(throttle: &mut Throttle, start: Instant, until: u64) -> (Vec<u64>, usize) {
        let (mut times, mut before) = (Vec::new(), 0);
        for millis in (0..until).step_by(100) {
            let now = start + Duration::from_millis(millis);
            if throttle.wait("a", now).is_zero() {
                throttle.tried("a", now, None);
                times.push(millis);
                before += usize::from(throttle.troubles(now).is_empty());
            }
        }
        (times, before)
    }

    #[test]
    fn a_file_is_written_at_growing_pauses_and_others_are_not_held_up() {
        let (start, mut throttle) = (Instant::now(), Throttle::default());
        let (times, before) = writes(&mut throttle, start, 20_000);
        assert_eq!(times, [0, 100, 300, 700, 1500, 3100, 6300, 11_300, 16_300]);
        assert_eq!(before, 5);
        assert_eq!(throttle.wait("b", start), Duration::ZERO);
    }

    #[test]
    fn a_contest_is_over_once_the_file_has_stayed_as_it_is() {
        let (start, mut throttle) = (Instant::now(), Throttle::default());
        writes(&mut throttle, start, 4000);
        let at = |millis| start + Duration::from_millis(millis);
        assert_eq!(throttle.troubles(at(4000)), [("a".to_owned(), None, Duration::from_millis(7300))]);
        assert_eq!(throttle.troubles(at(11_300)), []);
        assert!(throttle.0.is_empty());
    }

    #[test]
    fn failures_are_repeated_at_growing_pauses_and_a_write_ends_them() {
        let (mut now, mut throttle) = (Instant::now(), Throttle::default());
        let mut pauses = Vec::new();
        for _ in 0..7 {
            assert_eq!(throttle.wait("a", now), Duration::ZERO);
            throttle.tried("a", now, Some("full".to_owned()));
            let [(_, Some(_), _)] = &throttle.troubles(now)[..] else { panic!("{throttle:?}") };
            let pause = throttle.wait("a", now);
            pauses.push(pause.as_millis());
            now += pause;
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000]);
        throttle.tried("a", now, None);
        assert_eq!((throttle.troubles(now), throttle.wait("a", now)), (vec![], PAUSES.0));
    }
}
