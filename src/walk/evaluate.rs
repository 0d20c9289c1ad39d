//! One rule against one set of connections.

use crate::rules::{Rule, Table};
use crate::walk::connections::{Connections, Meeting, is_few};
use crate::walk::state::State;
use crate::walk::step::Reason;

/// What a rule's conditions make of a set of connections.
pub(super) struct Split<'a> {
    /// Those that meet them all.
    pub(super) matching: Option<State<'a>>,
    /// Those that don't.
    pub(super) rest: Option<State<'a>>,
    /// The first condition that any may fail, and what of them it looks at.
    pub(super) reason: Option<Reason<'a>>,
    /// Whether it can be told which are which. Otherwise either part may have them, and not both.
    pub(super) is_told: bool,
}

/// Splits connections by the conditions of a rule of this table.
pub(super) fn split<'a>(table: &Table, rule: &'a Rule, state: State<'a>) -> Split<'a> {
    let mut reason = None;
    let mut is_told = true;
    // Those that meet all conditions so far; none as long as those are all.
    let mut matching: Option<Connections> = None;
    // What of a field the last condition has left.
    let mut last_held = None;
    let mut setting_apart = 0;
    for condition in &rule.conditions {
        let known = matching.as_ref().unwrap_or(&state.connections);
        let looked_at = || {
            let numbers = condition.field().and_then(|field| state.connections.get(field));
            Reason::Condition(condition, numbers.cloned())
        };
        let meeting = known.meeting(table, condition);
        if meeting == Meeting::All {
            continue;
        }
        if meeting == Meeting::None {
            let reason = looked_at();
            return Split {
                matching: None,
                rest: Some(state),
                reason: Some(reason),
                is_told: true,
            };
        }
        reason = reason.or_else(|| Some(looked_at()));
        setting_apart += 1;
        match (condition.field(), meeting) {
            (Some(field), Meeting::Some(held)) => {
                is_told &= is_few(&held) && state.tells(field);
                if is_few(&held) {
                    let matching = matching.get_or_insert_with(|| state.connections.clone());
                    matching.set(field, held.clone());
                }
                last_held = Some((field, held));
            }
            _ => is_told = false,
        }
    }
    let with = |connections: Option<Connections>| State {
        connections: connections.unwrap_or_else(|| state.connections.clone()),
        ..state.clone()
    };
    let rest = match setting_apart {
        0 => None,
        1 => Some(with(
            last_held.map(|(field, held)| state.connections.but_for(field, &held)),
        )),
        _ => Some(state.clone()),
    };
    Split {
        matching: Some(match matching {
            Some(connections) => with(Some(connections)),
            None => state,
        }),
        rest,
        reason,
        is_told,
    }
}
