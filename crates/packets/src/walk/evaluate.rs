//! One rule against one set of connections.

use crate::rules::{Rule, Table};
use crate::walk::connections::{Connections, Meeting, is_few};
use crate::walk::state::State;
use crate::walk::step::Reason;

/// How a rule's conditions divide connections, of which some may meet them all.
pub(super) struct Split<'a> {
    pub(super) matching: Connections,
    /// Those that don't match, if any don't.
    pub(super) rest: Option<Connections>,
    /// The first condition that any may fail.
    pub(super) reason: Option<Reason<'a>>,
    /// Whether it can be told which are which. Otherwise either part may have them, and not both.
    pub(super) is_told: bool,
}

/// Asks a rule of this table how its conditions divide connections.
///
/// # Errors
/// None of them meets this condition. Most rules are for others.
pub(super) fn ask<'a>(table: &Table, rule: &'a Rule, state: &State<'_>) -> Result<Split<'a>, Reason<'a>> {
    let all = &state.connections;
    let mut split = Split { matching: all.clone(), rest: None, reason: None, is_told: true };
    for condition in &rule.conditions {
        let reason = || Reason::Condition(condition, all.clone());
        let others = match (all.field_of(condition), split.matching.meeting(table, condition)) {
            (_, Meeting::All) => continue,
            (_, Meeting::None) => return Err(reason()),
            (Some(field), Meeting::Some(held)) => {
                split.is_told &= is_few(&held) && state.tells(field);
                let others = all.but_for(field, &held);
                if is_few(&held) {
                    split.matching.set(field, held);
                }
                others
            }
            _ => {
                split.is_told = false;
                all.clone()
            }
        };
        // Those that don't meet one of several conditions are of any kind.
        split.rest = Some(if split.rest.is_none() { others } else { all.clone() });
        split.reason = split.reason.or_else(|| Some(reason()));
    }
    Ok(split)
}
