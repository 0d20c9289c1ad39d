//! When each pod is looked at: at the same distance in time as all others, and not all at once. A pure function.

use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::time::{Duration, Instant};

/// In how many groups the pods are looked at. What a group costs besides its pods is a look at all processes.
const GROUPS: u32 = 10;
/// After how long a pod is looked at that has no turn: `--verify-every` is 0, or its status alone tells what becomes of it.
pub(crate) const NEVER: Duration = Duration::from_secs(365 * 86400);

/// Looks at every pod, so often; never, if that isn't asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schedule {
    start: Instant,
    every: Option<Duration>,
}

impl Schedule {
    /// From now on.
    pub(crate) fn new(start: Instant, every: Option<Duration>) -> Self {
        Self { start, every }
    }

    /// When a pod is looked at next. Its group is by its UID, or by its sandbox's, so it stays in it.
    pub(crate) fn next(&self, uid: &impl Hash, now: Instant) -> Instant {
        let Some(every) = self.every else {
            return now + NEVER;
        };
        let mut hasher = DefaultHasher::new();
        uid.hash(&mut hasher);
        let group = u32::try_from(hasher.finish() % u64::from(GROUPS)).unwrap_or_default();
        let first = self.start + every * group / GROUPS;
        let Some(since) = now.checked_duration_since(first) else {
            return first;
        };
        let rounds = since.as_nanos() / every.as_nanos().max(1) + 1;
        // More rounds than that take a century.
        first + every * u32::try_from(rounds).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::Uid;

    fn uid(number: usize) -> Uid {
        Uid::new(&format!("{number:08x}-b29f-11e7-9350-020968147796")).unwrap()
    }

    #[test]
    fn each_pod_has_its_turn_once_in_that_time_whenever_it_was_looked_at() {
        let start = Instant::now();
        let every = Duration::from_secs(30);
        let schedule = Schedule::new(start, Some(every));
        for number in 0..50 {
            let uid = uid(number);
            let first = schedule.next(&uid, start);
            assert!(first >= start && first <= start + every);
            let second = schedule.next(&uid, first);
            assert_eq!(second, first + every);
            for seconds in 1..30 {
                assert_eq!(schedule.next(&uid, first + Duration::from_secs(seconds)), second);
            }
            assert_eq!(schedule.next(&uid, first + every * 1000), first + every * 1001);
        }
    }

    #[test]
    fn no_moment_has_more_than_its_share() {
        let start = Instant::now();
        let schedule = Schedule::new(start, Some(Duration::from_secs(30)));
        let mut turns: Vec<Instant> = (0..110).map(|number| schedule.next(&uid(number), start)).collect();
        turns.sort_unstable();
        let groups: Vec<usize> = turns.chunk_by(|a, b| a == b).map(<[_]>::len).collect();
        assert!(groups.len() >= 9 && groups.iter().all(|&pods| pods < 25), "{groups:?}");
    }
}
