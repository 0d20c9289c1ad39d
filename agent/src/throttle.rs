//! How often a file may be written, so that neither a war with another program nor a failure costs more than it must.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);
/// How long a file that another program rewrote has to stay as it is, before that is over.
const CALM: Duration = Duration::from_secs(10);
/// How long after a failure the next try comes. Each further failure doubles it.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What became of writing files.
#[derive(Debug)]
pub struct Throttle {
    /// How many writes there may be in a minute.
    limit: u32,
    files: BTreeMap<String, File>,
}

#[derive(Debug)]
struct File {
    /// When its writes would be over, were they spread evenly.
    even: Instant,
    /// When it was last written or held back.
    last: Instant,
    /// What there is to say about the program that rewrites it again and again.
    contest: Option<String>,
    failure: Option<Failure>,
}

#[derive(Debug)]
struct Failure {
    reason: String,
    pause: Duration,
    end: Instant,
}

/// Why a file may not be written now, and for how long.
#[derive(Debug, PartialEq, Eq)]
pub enum Held {
    /// It was written too often.
    Contested(Duration),
    /// It couldn't be written, for this reason.
    Failed(String, Duration),
}

impl Throttle {
    /// At most `limit` writes of each file at once, and then as many in a minute.
    pub fn new(limit: usize) -> Self {
        Self { limit: u32::try_from(limit).unwrap_or(u32::MAX).max(1), files: BTreeMap::new() }
    }

    /// Whether a file may be written now.
    ///
    /// # Errors
    /// Why not, and for how long.
    pub fn permit_write(&self, name: &str, now: Instant) -> Result<(), Held> {
        let Some(file) = self.files.get(name) else {
            return Ok(());
        };
        if let Some(failure) = file.failure.as_ref().filter(|failure| failure.end > now) {
            return Err(Held::Failed(failure.reason.clone(), failure.end - now));
        }
        let even = file.even.max(now) + MINUTE / self.limit;
        let wait = even.saturating_duration_since(now + MINUTE);
        if wait.is_zero() { Ok(()) } else { Err(Held::Contested(wait)) }
    }

    /// Counts a write.
    pub fn wrote(&mut self, name: &str, now: Instant) {
        let pace = MINUTE / self.limit;
        let file = self.file(name, now);
        file.even = file.even.max(now) + pace;
        file.last = now;
        file.failure = None;
    }

    /// Counts a failure; how long to wait.
    pub fn failed(&mut self, name: &str, reason: String, now: Instant) -> Duration {
        let file = self.file(name, now);
        let pause = match &file.failure {
            Some(failure) => (failure.pause * 2).min(LONGEST_PAUSE),
            None => PAUSE,
        };
        file.failure = Some(Failure { reason, pause, end: now + pause });
        pause
    }

    /// Notes that a file was held back because another program rewrites it, and what there is to say about that.
    pub fn contest(&mut self, name: &str, line: String, now: Instant) {
        let file = self.file(name, now);
        file.contest = Some(line);
        file.last = now;
    }

    /// The files that another program rewrites again and again, what there is to say, and how long that holds if
    /// nothing more happens. What is over is forgotten.
    pub fn contested(&mut self, now: Instant) -> Vec<(String, String, Duration)> {
        let mut contested = Vec::new();
        self.files.retain(|name, file| {
            let rest = (file.last + CALM).saturating_duration_since(now);
            if rest.is_zero() {
                file.contest = None;
            }
            if let Some(line) = &file.contest {
                contested.push((name.clone(), line.clone(), rest));
            }
            // A failure counts until it would have been repeated.
            let is_failing = file.failure.as_ref().is_some_and(|failure| failure.end + CALM > now);
            file.contest.is_some() || is_failing || file.even > now
        });
        contested
    }

    fn file(&mut self, name: &str, now: Instant) -> &mut File {
        self.files.entry(name.to_owned()).or_insert(File { even: now, last: now, contest: None, failure: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_so_often_at_once_and_then_evenly_and_others_are_not_held_up() {
        let start = Instant::now();
        let mut throttle = Throttle::new(20);
        let at = |seconds| start + Duration::from_secs(seconds);
        for _ in 0..20 {
            assert_eq!(throttle.permit_write("a", at(0)), Ok(()));
            throttle.wrote("a", at(0));
        }
        assert_eq!(throttle.permit_write("a", at(1)), Err(Held::Contested(Duration::from_secs(2))));
        assert_eq!(throttle.permit_write("b", at(1)), Ok(()));
        assert_eq!(throttle.permit_write("a", at(3)), Ok(()));
        throttle.wrote("a", at(3));
        assert_eq!(throttle.permit_write("a", at(3)), Err(Held::Contested(Duration::from_secs(3))));
        assert_eq!(throttle.permit_write("a", at(6)), Ok(()));
    }

    #[test]
    fn a_contest_is_over_once_the_file_has_stayed_as_it_is() {
        let start = Instant::now();
        let mut throttle = Throttle::new(1);
        let at = |seconds| start + Duration::from_secs(seconds);
        let contested = |throttle: &mut Throttle, seconds| throttle.contested(at(seconds)).into_iter().next();
        throttle.wrote("a", at(0));
        assert_eq!(contested(&mut throttle, 0), None);
        throttle.contest("a", "by b".to_owned(), at(8));
        let line = |rest| Some(("a".to_owned(), "by b".to_owned(), Duration::from_secs(rest)));
        assert_eq!(contested(&mut throttle, 8), line(10));
        assert_eq!(contested(&mut throttle, 17), line(1));
        assert_eq!(contested(&mut throttle, 18), None);
        assert_eq!(throttle.permit_write("a", at(18)), Err(Held::Contested(Duration::from_secs(42))));
        assert_eq!(contested(&mut throttle, 60), None);
        assert!(throttle.files.is_empty());
    }

    #[test]
    fn failures_are_repeated_at_growing_pauses_and_are_no_writes() {
        let mut now = Instant::now();
        let mut throttle = Throttle::new(1);
        let mut pauses = Vec::new();
        for _ in 0..7 {
            assert_eq!(throttle.permit_write("a", now), Ok(()));
            let pause = throttle.failed("a", "full".to_owned(), now);
            assert_eq!(throttle.permit_write("a", now), Err(Held::Failed("full".to_owned(), pause)));
            assert!(throttle.contested(now).is_empty());
            pauses.push(pause.as_secs());
            now += pause;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        throttle.wrote("a", now);
        assert_eq!(throttle.failed("a", "full".to_owned(), now).as_secs(), 1);
    }
}
