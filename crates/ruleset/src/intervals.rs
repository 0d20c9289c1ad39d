//! Sets of numbers as intervals: ports, addresses and ids alike.

use std::slice;
use std::sync::Arc;

/// A set of numbers: inclusive intervals, sorted, neither overlapping nor touching.
///
/// Addresses are numbers too (IPv4's 32 bits, IPv6's 128), and so are interface names: their 16 bytes, padded with
/// zeros, as the kernel compares them.
///
/// Every rule that connections are compared with copies sets, so copies share their memory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Intervals(Held);

/// Most sets are a single interval, which is never held as a list.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Held {
    One((u128, u128)),
    List(Arc<[(u128, u128)]>),
}

impl Default for Intervals {
    fn default() -> Self {
        Self(Held::List(Arc::default()))
    }
}

impl Intervals {
    /// The numbers of all these intervals, which may be in any order and overlap. One that runs backwards is empty.
    pub fn new(intervals: impl IntoIterator<Item = (u128, u128)>) -> Self {
        let mut intervals = intervals.into_iter().filter(|(first, last)| first <= last);
        let Some(first) = intervals.next() else {
            return Self::default();
        };
        let Some(second) = intervals.next() else {
            return Self(Held::One(first));
        };
        let mut sorted = vec![first, second];
        sorted.extend(intervals);
        // Most are in order, or two ordered lists: a stable sort merges such runs.
        sorted.sort();
        let mut merged: Vec<(u128, u128)> = Vec::with_capacity(sorted.len());
        for (first, last) in sorted {
            match merged.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => merged.push((first, last)),
            }
        }
        Self::of(merged)
    }

    /// A set of these intervals, which must be sorted and neither overlap nor touch.
    fn of(list: Vec<(u128, u128)>) -> Self {
        match list.as_slice() {
            [] => Self::default(),
            [one] => Self(Held::One(*one)),
            _ => Self(Held::List(list.into())),
        }
    }

    pub fn one(number: u128) -> Self {
        Self(Held::One((number, number)))
    }

    pub fn each(numbers: impl IntoIterator<Item = impl Into<u128>>) -> Self {
        Self::new(numbers.into_iter().map(Into::into).map(|number| (number, number)))
    }

    pub fn up_to(last: u128) -> Self {
        Self(Held::One((0, last)))
    }

    pub fn as_slice(&self) -> &[(u128, u128)] {
        match &self.0 {
            Held::One(one) => slice::from_ref(one),
            Held::List(list) => list,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.as_slice().is_empty()
    }

    pub fn size(&self) -> u128 {
        let sizes = self.as_slice().iter().map(|(first, last)| (last - first).saturating_add(1));
        sizes.fold(0, u128::saturating_add)
    }

    pub fn numbers(&self) -> impl Iterator<Item = u128> {
        self.as_slice().iter().flat_map(|&(first, last)| first..=last)
    }

    /// Returns true if the set holds a number of one of these intervals, which may be in any order. This runs for each
    /// field of each rule.
    #[inline(always)]
    pub fn meets(&self, intervals: &[(u128, u128)]) -> bool {
        intervals.iter().any(|&(first, last)| first <= last && self.meeting(first, last).next().is_some())
    }

    #[inline(always)]
    pub fn includes(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Held::One(ours), Held::One(theirs)) => ours.0 <= theirs.0 && theirs.1 <= ours.1,
            // Copies share their list.
            (Held::List(ours), Held::List(theirs)) if Arc::ptr_eq(ours, theirs) => true,
            _ => other.as_slice().iter().all(|&(first, last)| {
                let meeting = self.meeting(first, last).next();
                meeting.is_some_and(|&(start, end)| start <= first && last <= end)
            }),
        }
    }

    /// The set's intervals that overlap this one.
    #[inline(always)]
    fn meeting(&self, first: u128, last: u128) -> impl Iterator<Item = &(u128, u128)> {
        let list = self.as_slice();
        let ending_from = list.iter().skip(list.partition_point(|&(_, end)| end < first));
        ending_from.take_while(move |(start, _)| *start <= last)
    }

    /// The numbers that either set has.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        if self.includes(other) {
            return self.clone();
        }
        Self::new(self.as_slice().iter().chain(other.as_slice()).copied())
    }

    /// The numbers that both sets have.
    pub fn and(&self, other: &Self) -> Self {
        if let (Held::One((first, last)), Held::One((other_first, other_last))) = (&self.0, &other.0) {
            return Self::new([(*first.max(other_first), *last.min(other_last))]);
        }
        if self.includes(other) {
            return other.clone();
        }
        let mut both = Vec::new();
        for &(first, last) in self.as_slice() {
            both.extend(other.meeting(first, last).map(|&(start, end)| (start.max(first), end.min(last))));
        }
        Self::of(both)
    }

    /// The numbers that only this set has.
    pub fn without(&self, other: &Self) -> Self {
        let mut only = Vec::with_capacity(self.as_slice().len() + 1);
        for &(first, last) in self.as_slice() {
            // The rest of this interval; none once another one covers the rest.
            let mut rest = Some(first);
            for &(other_first, other_last) in other.meeting(first, last) {
                only.extend(rest.filter(|start| *start < other_first).map(|start| (start, other_first - 1)));
                rest = other_last.checked_add(1).filter(|next| *next <= last);
            }
            only.extend(rest.map(|start| (start, last)));
        }
        Self::of(only)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::random;

    #[test]
    fn what_overlaps_or_touches_is_merged() {
        let merged = |list: &[(u128, u128)]| Intervals::new(list.iter().copied()).as_slice().to_vec();
        assert_eq!(merged(&[(5, 9), (1, 2), (8, 12), (3, 3), (20, 20)]), [(1, 3), (5, 12), (20, 20)]);
        assert_eq!(merged(&[(0, u128::MAX), (7, 7)]), [(0, u128::MAX)]);
        assert_eq!(merged(&[(9, 3)]), []);
        assert_eq!(merged(&[]), []);
    }

    fn any_intervals() -> impl Strategy<Value = Intervals> {
        // The ends of the range too: that is where an addition could overflow.
        let number = || prop_oneof![0..20u128, u128::MAX - 19..=u128::MAX];
        prop::collection::vec((number(), 0..5u128), 0..6)
            .prop_map(|list| Intervals::new(list.into_iter().map(|(first, more)| (first, first.saturating_add(more)))))
    }

    fn has(intervals: &Intervals, number: u128) -> bool {
        intervals.as_slice().iter().any(|&(first, last)| (first..=last).contains(&number))
    }

    proptest! {
        #![proptest_config(random(256))]

        /// Compared number by number with the words' meaning.
        #[test]
        fn sets_behave_as_sets(one in any_intervals(), other in any_intervals()) {
            let (both, rest, either) = (one.and(&other), one.without(&other), one.or(&other));
            let numbers: Vec<u128> = (0..26).chain(u128::MAX - 25..=u128::MAX).collect();
            for &number in &numbers {
                prop_assert_eq!(has(&both, number), has(&one, number) && has(&other, number));
                prop_assert_eq!(has(&rest, number), has(&one, number) && !has(&other, number));
                prop_assert_eq!(has(&either, number), has(&one, number) || has(&other, number));
            }
            let held: Vec<u128> = numbers.into_iter().filter(|number| has(&one, *number)).collect();
            prop_assert_eq!(one.size(), held.len() as u128);
            prop_assert_eq!(one.numbers().collect::<Vec<_>>(), held);
            prop_assert_eq!(one.meets(other.as_slice()), !both.is_empty());
            prop_assert_eq!(one.includes(&other), both == other);
            for set in [&both, &rest, &either] {
                prop_assert_eq!(set, &Intervals::new(set.as_slice().iter().copied()), "sorted and merged");
            }
        }
    }
}
