//! One rule against one set of connections.

use std::collections::HashMap;

use crate::connections::{Connections, Meeting, is_few, meeting, split as divide};
use crate::state::State;
use crate::step::Reason;
use ruleset::{Condition, Context, Facts, Field, Holding, Hook, Intervals, Table};

/// The way in which a rule's conditions divide connections, of which some may meet them all.
#[derive(Default)]
pub(super) struct Split<'a> {
    /// The first condition that some of them may fail.
    pub(super) reason: Option<Reason<'a>>,
    /// The numbers that conditions leave in fields, where these are the connections that meet them.
    told_apart: Vec<(Field, Intervals)>,
    /// The same, where each connection may meet the condition or not.
    narrowed: Vec<(Field, Intervals)>,
    /// True if it isn't known which connections meet a condition.
    pub(super) is_open: bool,
}

impl<'a> Split<'a> {
    /// Those that meet all conditions, and those that don't, in up to `most` sets: first those that fail the first
    /// condition, then those that meet it and fail the second, and so on. If these are more, one set has all,
    /// over-approximated. Where a question is open, those that may do either are in both.
    pub(super) fn parts(self, state: State<'a>, question: Option<usize>, most: usize) -> (State<'a>, Vec<State<'a>>) {
        let is_exact = self.told_apart.len() <= most.max(1);
        let mut rest = if is_exact { Vec::new() } else { vec![state.clone()] };
        let mut matching = state;
        for (field, numbers) in self.told_apart {
            if is_exact {
                let connections = matching.connections.without_numbers(field, &numbers);
                rest.push(State { connections, ..matching.clone() });
            }
            matching.set(field, numbers);
        }
        if let Some(question) = question {
            let no = matching.doubt.denied(question);
            if is_exact {
                rest.push(State { doubt: no, ..matching.clone() });
            }
            matching.doubt = matching.doubt.affirmed(question);
        }
        for (field, numbers) in self.narrowed {
            matching.set(field, numbers);
        }
        (matching, rest)
    }
}

/// Where conditions hold that depend on more than the packet. Each is worked out once.
pub(super) struct Holdings<'a, 'g> {
    facts: &'g Facts,
    known: HashMap<&'a Context, Option<Holding>>,
}

impl<'a, 'g> Holdings<'a, 'g> {
    pub(super) fn new(facts: &'g Facts) -> Self {
        Self { facts, known: HashMap::new() }
    }

    /// The field of these connections that decides whether such a condition of a rule of this table holds at a hook,
    /// and the numbers for which it does; none if that isn't known.
    fn of(
        &mut self,
        context: &'a Context,
        hook: Hook,
        table: &Table,
        connections: &Connections,
    ) -> Option<&(Field, Intervals)> {
        // At input, nft's lookup of the route back fails for packets that arrive on lo, which isn't followed.
        let is_first = table.is_xtables() || matches!(hook, Hook::Ingress | Hook::Prerouting);
        if matches!(context, Context::ReversePath { .. }) && !is_first {
            return None;
        }
        let holding = self.known.entry(context).or_insert_with(|| self.facts.holding(context)).as_ref()?;
        holding.iter().find(|(field, _)| connections.get(*field).is_some())
    }
}

/// Divides connections at a hook by these conditions of a rule of this table.
///
/// # Errors
/// None of them meets this condition, as most rules are for other connections.
pub(super) fn split_by_conditions<'a>(
    table: &Table,
    conditions: &'a [Condition],
    state: &State<'_>,
    hook: Hook,
    holdings: &mut Holdings<'a, '_>,
) -> Result<Split<'a>, Reason<'a>> {
    let mut split = Split::default();
    for condition in conditions {
        let connections = &state.connections;
        let held = match condition {
            Condition::Context(context) => holdings.of(context, hook, table, connections),
            _ => None,
        };
        let field = held.map(|(field, _)| *field).or_else(|| condition.field());
        let numbers = field.and_then(|field| connections.get(field));
        let is_its = |(known, _): &&(Field, Intervals)| Some(*known) == field;
        let narrowed = split.narrowed.iter().rev().chain(split.told_apart.iter().rev()).find(is_its);
        let numbers = narrowed.map(|(_, numbers)| numbers).or(numbers);
        let meeting = match (held, numbers) {
            (Some((_, held)), Some(numbers)) => divide(numbers, held, false),
            _ => meeting(numbers, table, condition),
        };
        let reason = || Reason::Condition(condition, field, connections.clone());
        match (field, meeting) {
            (_, Meeting::All) => continue,
            (_, Meeting::None) => return Err(reason()),
            (Some(field), Meeting::Some(held)) if is_few(&held) => {
                // Of two conditions on a field, the second holds for a part of the first one's.
                split.told_apart.retain(|(known, _)| *known != field);
                if state.are_told_apart_by(field) {
                    split.told_apart.push((field, held));
                } else {
                    split.narrowed.push((field, held));
                    split.is_open = true;
                }
            }
            _ => split.is_open = true,
        }
        split.reason = split.reason.or_else(|| Some(reason()));
    }
    Ok(split)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ruleset::testing::{rule, table};
    use ruleset::{Action, Bound, Direction, Family, interface};

    /// The inbound IPv4 connections that meet a condition in a context; none: not known.
    fn held(name: &str, hook: Hook, context: &Context, facts: &Facts) -> Option<Option<(Field, Intervals)>> {
        let rule = rule([Condition::Context(context.clone())], Action::Accept);
        let state = State::new(Connections::all(Family::V4, Direction::Inbound), true);
        match split_by_conditions(&table(name, vec![]), &rule.conditions, &state, hook, &mut Holdings::new(facts)) {
            Ok(split) => (!split.is_open).then(|| split.told_apart.first().cloned()),
            Err(_) => Some(Some((Field::Family, Intervals::default()))),
        }
    }

    #[test]
    fn what_depends_on_more_than_the_packet_is_looked_up() {
        let facts = Facts { back: Some(Intervals::one(interface(b"eth0"))), is_below_limits: true, ..Facts::default() };
        let limit = |holds_below| Context::Limit { holds_below, of: Bound::Connections(5) };
        let at_input = |context: &Context, facts: &Facts| held("inet mine", Hook::Input, context, facts);
        assert_eq!(at_input(&limit(true), &facts), Some(None), "all");
        assert_eq!(at_input(&limit(false), &facts), Some(Some((Field::Family, Intervals::default()))), "none");
        assert_eq!(at_input(&limit(true), &Facts::default()), None);
        // nft's lookup of the route back is another one at input.
        let back = Context::ReversePath { is_loose: false, negated: false, xt_flags: None };
        for (name, hook, is_known) in [
            ("inet mine", Hook::Input, false),
            ("inet mine", Hook::Prerouting, true),
            ("netdev mine", Hook::Ingress, true),
            ("ip filter", Hook::Input, true),
        ] {
            let by_eth0 = (Field::InInterface, Intervals::one(interface(b"eth0")));
            assert_eq!(held(name, hook, &back, &facts), is_known.then_some(Some(by_eth0)), "{name} {hook}");
        }
        // Of several fields, the one that the connections have counts.
        let own =
            Facts { local: vec![(2, Family::V6, (5, 5)), (2, Family::V4, (5 << 24, 5 << 24))], ..Facts::default() };
        let to_own = Context::AddressType { is_source: false, types: 1 << 2, negated: false, is_xt: false };
        let want = (Field::Destination(Family::V4), Intervals::one(5 << 24));
        assert_eq!(at_input(&to_own, &own), Some(Some(want)));
    }
}
