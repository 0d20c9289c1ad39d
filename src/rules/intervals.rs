//! Sets of numbers as intervals: ports, addresses and ids alike.

use std::sync::Arc;

/// A set of numbers: inclusive intervals, sorted, neither overlapping nor touching.
///
/// Addresses are numbers too (IPv4's 32 bits, IPv6's 128), and so are interface names: their 16 bytes, padded with
/// zeros, as the kernel compares them.
///
/// A copy shares them: connections are copied at each rule that they are compared with, and a rule changes few of their sets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Intervals(Arc<[(u128, u128)]>);

impl Intervals {
    /// The numbers of all these intervals, which may come in any order and overlap. One that runs backwards is empty.
    pub fn new(intervals: impl IntoIterator<Item = (u128, u128)>) -> Self {
        let mut sorted: Vec<_> = intervals.into_iter().filter(|(first, last)| first <= last).collect();
        // Most come in order, or as one list of each family: a stable sort finds such runs and merges them.
        sorted.sort();
        let mut merged: Vec<(u128, u128)> = Vec::with_capacity(sorted.len());
        for (first, last) in sorted {
            match merged.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => merged.push((first, last)),
            }
        }
        Self(merged.into())
    }

    /// One number.
    pub fn one(number: u128) -> Self {
        Self([(number, number)].into())
    }

    /// Every number up to this one.
    pub fn up_to(last: u128) -> Self {
        Self([(0, last)].into())
    }

    /// The intervals, in order.
    pub fn as_slice(&self) -> &[(u128, u128)] {
        &self.0
    }

    /// Whether it holds no number.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it holds a number of one of these intervals, which may come in any order.
    pub fn meets(&self, intervals: &[(u128, u128)]) -> bool {
        let holds = |&(first, last): &(u128, u128)| {
            let next = self.0.partition_point(|&(_, end)| end < first);
            first <= last && self.0.get(next).is_some_and(|&(start, _)| start <= last)
        };
        intervals.iter().any(holds)
    }

    /// The numbers that both sets have.
    pub fn and(&self, other: &Self) -> Self {
        let mut both = Vec::new();
        let (mut ours, mut theirs) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some(&&(first, last)), Some(&&(other_first, other_last))) = (ours.peek(), theirs.peek()) {
            if first.max(other_first) <= last.min(other_last) {
                both.push((first.max(other_first), last.min(other_last)));
            }
            if last < other_last {
                ours.next();
            } else {
                theirs.next();
            }
        }
        Self(both.into())
    }

    /// The numbers that only this set has.
    pub fn without(&self, other: &Self) -> Self {
        let mut only = Vec::with_capacity(self.0.len() + 1);
        let mut others = other.0.iter().peekable();
        for &(first, last) in &*self.0 {
            // What is left of this interval; nothing where another one covers the rest.
            let mut rest = Some(first);
            while let (Some(start), Some(&&(other_first, other_last))) = (rest, others.peek()) {
                if other_last < start {
                    others.next();
                    continue;
                }
                if other_first > last {
                    break;
                }
                if start < other_first {
                    only.push((start, other_first - 1));
                }
                rest = other_last.checked_add(1).filter(|next| *next <= last);
            }
            only.extend(rest.map(|start| (start, last)));
        }
        Self(only.into())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_overlaps_or_touches_is_merged() {
        let merged = |list: &[(u128, u128)]| Intervals::new(list.iter().copied()).0.to_vec();
        assert_eq!(
            merged(&[(5, 9), (1, 2), (8, 12), (3, 3), (20, 20)]),
            [(1, 3), (5, 12), (20, 20)]
        );
        assert_eq!(merged(&[(0, u128::MAX), (7, 7)]), [(0, u128::MAX)]);
        assert_eq!(merged(&[(9, 3)]), []);
        assert_eq!(merged(&[]), []);
    }

    fn any_intervals() -> impl Strategy<Value = Intervals> {
        // The ends of the range too: that is where an addition could overflow.
        let number = || prop_oneof![0..20u128, u128::MAX - 19..=u128::MAX];
        prop::collection::vec((number(), 0..5u128), 0..6).prop_map(|list| {
            Intervals::new(
                list.into_iter()
                    .map(|(first, more)| (first, first.saturating_add(more))),
            )
        })
    }

    fn has(intervals: &Intervals, number: u128) -> bool {
        intervals
            .0
            .iter()
            .any(|&(first, last)| (first..=last).contains(&number))
    }

    proptest! {
        /// Compared number by number with what the words mean.
        #[test]
        fn sets_behave_as_sets(one in any_intervals(), other in any_intervals()) {
            let (both, rest) = (one.and(&other), one.without(&other));
            for number in (0..26).chain(u128::MAX - 25..=u128::MAX) {
                prop_assert_eq!(has(&both, number), has(&one, number) && has(&other, number));
                prop_assert_eq!(has(&rest, number), has(&one, number) && !has(&other, number));
            }
            prop_assert_eq!(one.meets(other.as_slice()), !both.is_empty());
            for set in [&both, &rest] {
                prop_assert_eq!(set, &Intervals::new(set.0.iter().copied()), "sorted and merged");
            }
        }
    }
}
