//! One rule against one set of connections.

use std::collections::HashMap;

use crate::connections::{Connections, Meeting, is_few, meeting, split as divide};
use crate::state::State;
use crate::step::Reason;
use ruleset::{Condition, Context, Field, Holding, Hook, Intervals, Network, Table};

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
    network: &'g Network,
    /// By the context, and the device on which it depends.
    known: HashMap<(&'a Context, Option<u32>), Option<Holding>>,
}

impl<'a, 'g> Holdings<'a, 'g> {
    pub(super) fn new(network: &'g Network) -> Self {
        Self { network, known: HashMap::new() }
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
        let device = match context {
            Context::AddressType { of_device: Some(field), .. } => {
                self.network.only_device_of(connections.get(*field)?).map(|device| device.index)
            }
            _ => None,
        };
        let find = || self.network.facts.holding(context, device);
        let holding = self.known.entry((context, device)).or_insert_with(find).as_ref()?;
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
        let look = held.map(|(field, _)| *field).or_else(|| condition.field()).map(|field| state.look_at(field));
        let field = look.as_ref().map(|look| look.field);
        let narrowed = look.as_ref().filter(|look| look.numbers.is_some() && look.is_of_packet).and_then(|look| {
            let mut narrowed = split.narrowed.iter().rev().chain(split.told_apart.iter().rev());
            narrowed.find(|(known, _)| *known == look.field)
        });
        let numbers = narrowed.map(|(_, numbers)| numbers).or(look.as_ref().and_then(|look| look.numbers));
        let meeting = match (held, numbers) {
            (Some((_, held)), Some(numbers)) => divide(numbers, held, false),
            _ => meeting(numbers, table, condition),
        };
        let reason = || Reason::Condition(condition, field, connections.clone());
        match (field, meeting) {
            (_, Meeting::All) => continue,
            (_, Meeting::None) => return Err(reason()),
            (Some(field), Meeting::Some(held)) if is_few(&held) && look.is_some_and(|look| look.is_of_packet) => {
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
    use crate::connections::names_except_lo;
    use ruleset::testing::{device, rule, table};
    use ruleset::{Action, Bound, Direction, Facts, Family, LocalEntry, interface};

    /// The inbound IPv4 connections that meet a condition in a context; none: not known.
    fn held(name: &str, hook: Hook, context: &Context, network: &Network) -> Option<Option<(Field, Intervals)>> {
        let rule = rule([Condition::Context(context.clone())], Action::Accept);
        let all = Connections::all(Family::V4, Direction::Inbound);
        let state = State::new(all.narrowed(Field::InInterface, &names_except_lo()), true);
        match split_by_conditions(&table(name, vec![]), &rule.conditions, &state, hook, &mut Holdings::new(network)) {
            Ok(split) => (!split.is_open).then(|| split.told_apart.first().cloned()),
            Err(_) => Some(Some((Field::Family, Intervals::default()))),
        }
    }

    #[test]
    fn what_depends_on_more_than_the_packet_is_looked_up() {
        let network = |facts| Network { facts, ..Network::default() };
        let back = Some(Intervals::one(interface(b"eth0")));
        let facts = Facts { back, is_below_limits: true, has_no_classes: true, ..Facts::default() };
        let known = network(facts);
        let (all, none) = (Some(None), Some(Some((Field::Family, Intervals::default()))));
        let at_input = |context: &Context, network: &Network| held("inet mine", Hook::Input, context, network);
        let limit = |holds_below| Context::Limit { holds_below, of: Bound::Connections(5) };
        assert_eq!(at_input(&limit(true), &known), all);
        assert_eq!(at_input(&limit(false), &known), none);
        assert_eq!(at_input(&limit(true), &Network::default()), None);
        // A packet that arrives has no socket.
        for (classes, negated) in [(vec![0], false), (vec![0], true), (vec![5], false), (vec![5], true)] {
            let of_class = Context::SocketClass { classes, negated };
            assert_eq!(at_input(&of_class, &known), none);
            assert_eq!(at_input(&of_class, &Network::default()), None);
        }
        // nft's lookup of the route back is another one at input.
        let back = Context::ReversePath { is_loose: false, negated: false, xt_flags: None };
        for (name, hook, is_known) in [
            ("inet mine", Hook::Input, false),
            ("inet mine", Hook::Prerouting, true),
            ("netdev mine", Hook::Ingress, true),
            ("ip filter", Hook::Input, true),
        ] {
            let by_eth0 = (Field::InInterface, Intervals::one(interface(b"eth0")));
            assert_eq!(held(name, hook, &back, &known), is_known.then_some(Some(by_eth0)), "{name} {hook}");
        }
        // Of several fields, the one that the connections have counts.
        let entry = |family, at: u128| LocalEntry { kind: 2, family, addresses: (at, at), device: 2 };
        let local = vec![entry(Family::V6, 5), entry(Family::V4, 5 << 24)];
        let mut own = network(Facts { local, ..Facts::default() });
        let to_own = |of_device| {
            let (is_source, types) = (false, 1 << 2);
            Context::AddressType { is_source, types, negated: false, is_xt: false, of_device }
        };
        let want = Some(Some((Field::Destination(Family::V4), Intervals::one(5 << 24))));
        assert_eq!(at_input(&to_own(None), &own), want);
        // The only device by which they may arrive has the address, or another one has it.
        let by_its_device = to_own(Some(Field::InInterface));
        assert_eq!(at_input(&by_its_device, &own), None);
        own.devices = vec![device(1, "lo"), device(2, "eth0")];
        assert_eq!(at_input(&by_its_device, &own), want);
        own.devices[1].index = 3;
        assert_eq!(at_input(&by_its_device, &own), none);
        own.devices.push(device(4, "eth1"));
        assert_eq!(at_input(&by_its_device, &own), None);
    }
}
