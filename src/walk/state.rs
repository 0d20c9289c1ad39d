//! Connections on their way, and which of them are taken together.

use crate::rules::rule::Action;
use crate::walk::connections::Connections;
use crate::walk::step::{Assumption, Fate, Outcome, Place, Question};

/// More sets of connections than this are not told apart; beyond this, results are over-approximated.
const MOST_STATES: usize = 16;

/// Connections on their way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct State<'a> {
    pub(super) connections: Connections,
    /// What must be so for them to get here; with nothing, that they do is certain.
    pub(super) assumptions: Vec<Assumption>,
    /// They have been in the watched chain.
    pub(super) after_watched: bool,
    /// Where they go is settled: no nat chain is asked any more.
    pub(super) is_settled: bool,
    /// What last ended a chain for them.
    pub(super) left: Option<Place<'a>>,
    /// What has translated them, or exempted them from connection tracking.
    pub(super) taken: Option<(Place<'a>, &'a Action)>,
}

impl<'a> State<'a> {
    pub(super) fn new(connections: Connections) -> Self {
        Self {
            connections,
            assumptions: Vec::new(),
            after_watched: false,
            is_settled: false,
            left: None,
            taken: None,
        }
    }

    pub(super) fn is_sent_elsewhere(&self) -> bool {
        matches!(self.taken, Some((_, Action::Nat(_))))
    }

    pub(super) fn is_untracked(&self) -> bool {
        matches!(self.taken, Some((_, Action::Untrack)))
    }

    /// What has become of them here.
    pub(super) fn outcome(&self, fate: Fate, at: Option<Place<'a>>) -> Outcome<'a> {
        Outcome {
            connections: self.connections.clone(),
            fate,
            at,
            action: self.taken.map(|(_, action)| action),
            assumptions: self.assumptions.clone(),
            after_watched: self.after_watched,
        }
    }

    /// What sets of connections that get to the same place must have in common to be told as one.
    fn kind(&self) -> (bool, bool, Option<&'a Action>) {
        let Self {
            after_watched,
            is_settled,
            taken,
            ..
        } = self;
        (*after_watched, *is_settled, taken.map(|(_, action)| action))
    }

    /// Whether these are the same connections under the same assumptions, however they got here.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.connections == other.connections && self.assumptions == other.assumptions && self.kind() == other.kind()
    }

    /// The assumptions that are left where the same connections get to a place in both ways; none if these are different
    /// connections.
    fn joined(&self, other: &Self) -> Option<Vec<Assumption>> {
        if self.connections != other.connections || self.kind() != other.kind() {
            return None;
        }
        let only_in = |these: &[Assumption], those: &[Assumption]| -> Vec<Assumption> {
            let only = these.iter().filter(|assumption| !those.contains(assumption));
            only.copied().collect()
        };
        let (one, two) = (&self.assumptions, &other.assumptions);
        match (only_in(one, two).as_slice(), only_in(two, one).as_slice()) {
            // One way to get here includes the other.
            ([], _) => Some(one.clone()),
            (_, []) => Some(two.clone()),
            // Whatever the answer is, they get here.
            ([here], [there]) if here.is_opposite(*there) => {
                let common = one.iter().filter(|assumption| two.contains(assumption));
                Some(common.copied().collect())
            }
            _ => None,
        }
    }
}

/// The same states with fewer sets: equal ones are one, and of too many, all of a kind are taken together.
pub(super) fn merged(states: Vec<State<'_>>) -> Vec<State<'_>> {
    let mut merged: Vec<State<'_>> = Vec::with_capacity(states.len());
    for mut state in states {
        // A state that is made one with another may be one with a third.
        while let Some((index, assumptions)) = merged
            .iter()
            .enumerate()
            .find_map(|(index, known)| Some((index, known.joined(&state)?)))
        {
            let known = merged.remove(index);
            state.assumptions = assumptions;
            state.left = known.left.or(state.left);
            state.taken = known.taken;
        }
        merged.push(state);
    }
    if merged.len() <= MOST_STATES {
        return merged;
    }
    let mut few: Vec<State<'_>> = Vec::new();
    for state in merged {
        match few.iter_mut().find(|known| known.kind() == state.kind()) {
            Some(known) => {
                known.assumptions = vec![Assumption::no(Question::WHICH_OF_MANY)];
                known.connections.extend(&state.connections);
            }
            None => few.push(state),
        }
    }
    few
}
