//! One rule against one set of connections.

use crate::rules::{Field, Intervals, Rule, Table};
use crate::walk::connections::{Meeting, is_few, meeting};
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
    // What conditions have left of fields, in their order. No connections are made of it until all conditions are met:
    // most rules are for others.
    let mut left: Vec<(Field, Intervals)> = Vec::new();
    let mut setting_apart = 0;
    for condition in &rule.conditions {
        let field = condition.field();
        let numbers = field.and_then(|field| state.connections.get(field));
        let is_its = |(known, numbers): &&(Field, Intervals)| Some(*known) == field && is_few(numbers);
        let narrowed = left.iter().rev().find(is_its).map(|(_, numbers)| numbers);
        let meeting = meeting(narrowed.or(numbers), table, condition);
        let looked_at = || Reason::Condition(condition, numbers.cloned());
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
        match (field, meeting) {
            (Some(field), Meeting::Some(held)) => {
                is_told &= is_few(&held) && state.tells(field);
                left.push((field, held));
            }
            _ => is_told = false,
        }
    }
    let rest = match (setting_apart, left.as_slice()) {
        (0, _) => None,
        (1, [(field, held)]) => Some(State {
            connections: state.connections.but_for(*field, held),
            ..state.clone()
        }),
        _ => Some(state.clone()),
    };
    let mut matching = state;
    for (field, numbers) in left.into_iter().filter(|(_, numbers)| is_few(numbers)) {
        matching.set(field, numbers);
    }
    Split {
        matching: Some(matching),
        rest,
        reason,
        is_told,
    }
}
