//! One rule against one set of connections.

use crate::connections::{Meeting, is_few, meeting};
use crate::state::State;
use crate::step::Reason;
use ruleset::{Field, Intervals, Rule, Table};

/// How a rule's conditions divide connections, of which some may meet them all.
pub(super) struct Split<'a> {
    /// The first condition that some of them may fail.
    pub(super) reason: Option<Reason<'a>>,
    /// Whether it is known which connections are in which part. Otherwise each may be in either one.
    pub(super) is_exact: bool,
    /// The numbers that conditions leave in fields, in the conditions' order.
    left: Vec<(Field, Intervals)>,
    /// How many conditions divide the connections.
    setting_apart: usize,
}

impl<'a> Split<'a> {
    /// Those that meet all conditions, and those that don't.
    pub(super) fn parts(self, state: State<'a>) -> (State<'a>, Option<State<'a>>) {
        let rest = match (self.setting_apart, self.left.as_slice()) {
            (0, _) => None,
            (1, [(field, held)]) => {
                Some(State { connections: state.connections.without_numbers(*field, held), ..state.clone() })
            }
            _ => Some(state.clone()),
        };
        let mut matching = state;
        for (field, numbers) in self.left.into_iter().filter(|(_, numbers)| is_few(numbers)) {
            matching.set(field, numbers);
        }
        (matching, rest)
    }
}

/// Divides connections by the conditions of a rule of this table.
///
/// # Errors
/// None of them meets this condition, as most rules are for other connections.
pub(super) fn split_by_rule<'a>(table: &Table, rule: &'a Rule, state: &State<'_>) -> Result<Split<'a>, Reason<'a>> {
    let mut split = Split { reason: None, is_exact: true, left: Vec::new(), setting_apart: 0 };
    for condition in &rule.conditions {
        let field = state.connections.field_of(condition);
        let numbers = field.and_then(|field| state.connections.get(field));
        let is_its = |(known, numbers): &&(Field, Intervals)| Some(*known) == field && is_few(numbers);
        let narrowed = split.left.iter().rev().find(is_its).map(|(_, numbers)| numbers);
        let meeting = meeting(field, narrowed.or(numbers), table, condition);
        let reason = || Reason::Condition(condition, state.connections.clone());
        match (field, meeting) {
            (_, Meeting::All) => continue,
            (_, Meeting::None) => return Err(reason()),
            (Some(field), Meeting::Some(held)) => {
                split.is_exact &= is_few(&held) && state.are_told_apart_by(field);
                split.left.push((field, held));
            }
            _ => split.is_exact = false,
        }
        split.reason = split.reason.or_else(|| Some(reason()));
        split.setting_apart += 1;
    }
    Ok(split)
}
