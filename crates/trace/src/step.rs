//! The records of a walk: decisions, their places, and the questions on which they depend.

use std::collections::HashMap;
use std::fmt;

use crate::connections::Connections;
use crate::doubt::Doubt;
use crate::order::Slot;
use ruleset::Line;
use ruleset::{Action, Chain, Condition, Field, Hook, Intervals, Lookup, Rule, Table};

/// With so many outcomes at its place, one is compared.
const MOST_COMPARED: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place<'a> {
    Rule(Line<'a>),
    Policy(Slot<'a>),
}

impl<'a> Place<'a> {
    /// Where the rule is in memory, or the chain with the policy: no other place has the same.
    pub(super) fn memory(&self) -> usize {
        match self {
            Place::Rule(line) => std::ptr::from_ref(line.rule).addr(),
            Place::Policy(slot) => std::ptr::from_ref(slot.chain).addr(),
        }
    }

    pub fn table(&self) -> &'a Table {
        match self {
            Place::Rule(line) => line.table,
            Place::Policy(slot) => slot.table,
        }
    }

    pub fn chain(&self) -> &'a Chain {
        match self {
            Place::Rule(line) => line.chain,
            Place::Policy(slot) => slot.chain,
        }
    }

    pub fn line(&self) -> Option<Line<'a>> {
        if let Place::Rule(line) = self { Some(*line) } else { None }
    }

    pub fn rule(&self) -> Option<&'a Rule> {
        self.line().map(|line| line.rule)
    }

    /// Returns true if both are in the same chain.
    pub fn is_in_chain_of(&self, other: &Self) -> bool {
        self.chain().name == other.chain().name && self.table().is(other.table())
    }
}

/// The rule, or that it is the policy, and where it is.
impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (table, chain) = (self.table(), &self.chain().name);
        match self {
            Place::Rule(line) => write!(f, "`{}` in {table}, chain {chain}", line.to_string().trim_end()),
            Place::Policy(_) => write!(f, "the policy of {table}, chain {chain}"),
        }
    }
}

/// The treatment of connections by a rule or a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Treatment {
    /// It ends the base chain, or the watched chain, before later rules are asked.
    Accepted,
    /// It redirects them to a port of this host, or sends them elsewhere.
    Translated,
    Dropped,
    /// It exempts them from connection tracking, so that they can't be redirected.
    Untracked,
    /// It does something that isn't understood, which may be any of these.
    NotUnderstood,
    /// The same, because it leads to more rules, or to more undecided ones, than are followed.
    Unfollowed,
}

/// One of the packets of a connection, or of those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Leg {
    /// The first one, a SYN.
    First,
    /// The reply to it, a SYN and ACK, or a later packet of the same direction.
    Reply,
    /// The client's ACK, which completes the handshake.
    Ack,
    /// Instead of a reply, the reset or the ICMP message by which a rule rejects the first packet.
    Rejection,
    /// Before them, a neighbour's question for a hardware address: ICMPv6 135, or an ARP request.
    Solicitation,
    /// The answer to it: ICMPv6 136, or an ARP reply.
    Advertisement,
}

/// Outcomes with one for each place and set of connections: shares of the same ones are added.
pub(super) fn add_shares(outcomes: Vec<Outcome<'_>>) -> Vec<Outcome<'_>> {
    let mut places: HashMap<(usize, Treatment, Leg), Vec<usize>> = HashMap::new();
    let mut added: Vec<Outcome<'_>> = Vec::with_capacity(outcomes.len());
    for outcome in outcomes {
        let place = outcome.at.map_or(0, |at| at.memory());
        let known = places.entry((place, outcome.treatment, outcome.packet)).or_default();
        let is_same = |&&index: &&usize| added.get(index).is_some_and(|known| known.is_same_as(&outcome));
        // The latest is the likeliest.
        match known.iter().rev().take(MOST_COMPARED).find(is_same).copied().and_then(|index| added.get_mut(index)) {
            Some(known) => known.doubt.add(&outcome.doubt),
            None => {
                known.push(added.len());
                added.push(outcome);
            }
        }
    }
    added
}

/// Outcomes in which a certain loss is one: where several rules drop shares of the same connections, and all of them, the
/// last one drops whatever gets there. Where some tell the sender and others don't, it is the last of those that don't.
pub(super) fn join_losses(outcomes: Vec<Outcome<'_>>) -> Vec<Outcome<'_>> {
    // For each set of connections: its outcomes, and their shares together.
    let mut losses: Vec<(Vec<usize>, Doubt)> = Vec::new();
    for (index, outcome) in outcomes.iter().enumerate() {
        if outcome.treatment != Treatment::Dropped || outcome.doubt.is_none() {
            continue;
        }
        let is_of_same = |(indices, _): &&mut (Vec<usize>, Doubt)| {
            let first = indices.first().and_then(|first| outcomes.get(*first));
            first.is_some_and(|first| {
                (first.packet, first.after_watched) == (outcome.packet, outcome.after_watched)
                    && first.connections == outcome.connections
            })
        };
        match losses.iter_mut().rev().take(MOST_COMPARED).find(is_of_same) {
            Some((indices, doubt)) => {
                indices.push(index);
                doubt.add(&outcome.doubt);
            }
            None => losses.push((vec![index], outcome.doubt.clone())),
        }
    }
    let mut outcomes: Vec<Option<Outcome<'_>>> = outcomes.into_iter().map(Some).collect();
    for (indices, _) in losses.into_iter().filter(|(_, doubt)| doubt.is_none()) {
        let is_silent = |index: &&usize| {
            let outcome = outcomes.get(**index).and_then(Option::as_ref);
            outcome.is_some_and(|outcome| !outcome.is_rejection())
        };
        let last = indices.iter().rfind(is_silent).or(indices.last()).copied();
        for index in indices {
            match outcomes.get_mut(index) {
                Some(Some(outcome)) if Some(index) == last => outcome.doubt = Doubt::NONE,
                Some(outcome) => *outcome = None,
                None => {}
            }
        }
    }
    outcomes.into_iter().flatten().collect()
}

/// The fate of connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome<'a> {
    /// The rule or policy that decided it; none if none has decided where they go.
    pub at: Option<Place<'a>>,
    pub treatment: Treatment,
    /// The connections. If the outcome isn't certain, it is for some of these, or none.
    pub connections: Connections,
    /// The action there, if that is a translation.
    pub action: Option<&'a Action>,
    pub doubt: Doubt,
    /// True if these connections passed the watched chain before.
    pub after_watched: bool,
    pub packet: Leg,
    /// The port at which their first packet arrives, or would arrive.
    pub port: Option<Intervals>,
}

impl Outcome<'_> {
    /// Returns true if both are of the same connections at the same place, by whichever answers.
    fn is_same_as(&self, other: &Self) -> bool {
        let connections = (&self.connections, &self.port, self.after_watched, self.packet);
        (self.at, self.treatment, self.action) == (other.at, other.treatment, other.action)
            && connections == (&other.connections, &other.port, other.after_watched, other.packet)
    }

    /// Returns true if a rule rejects them, and the client is told.
    pub fn is_rejection(&self) -> bool {
        let rule = self.at.and_then(|at| at.rule());
        self.packet == Leg::First
            && self.treatment == Treatment::Dropped
            && rule.is_some_and(|rule| matches!(rule.action, Action::Reject(_)))
    }

    pub fn is_certain(&self) -> bool {
        self.doubt.is_none() && !matches!(self.treatment, Treatment::NotUnderstood | Treatment::Unfollowed)
    }
}

/// A rule or a policy that a connection on its way was compared with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step<'a> {
    pub packet: Leg,
    pub hook: Hook,
    /// The number of jumps and gotos that lead to the chain from its base chain.
    pub depth: usize,
    pub at: Place<'a>,
    pub matched: Matched<'a>,
}

/// The match of a connection with a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Matched<'a> {
    /// It does, and this is the action: the rule's, or the one in its verdict map.
    Yes(&'a Action),
    No(Reason<'a>),
    Perhaps(Reason<'a>),
}

/// The reason why a connection doesn't match a rule, or the question on which the match depends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason<'a> {
    /// A condition on these connections, by this field of theirs; none if it isn't understood.
    Condition(&'a Condition, Option<Field>, Connections),
    /// No case of a rule's lookup holds for these connections.
    Lookup(&'a Lookup, Connections),
    /// The base chain sees the packets of some devices only.
    Device(Hook),
}

impl Reason<'_> {
    /// The numbers in the field that decides; none: the field doesn't exist, or something else decides.
    pub fn numbers(&self) -> Option<&Intervals> {
        match self {
            Reason::Condition(_, field, connections) => connections.get((*field)?),
            Reason::Lookup(lookup, connections) => connections.get(lookup.field()?),
            Reason::Device(_) => None,
        }
    }
}

/// Something that the rules leave open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Open<'a> {
    /// Does this packet of the connection match here, at this hook, and for which reason is it unclear?
    Match(Place<'a>, Reason<'a>, Leg, Hook),
    /// Tells which of these base chains with equal priorities runs first.
    Order(Slot<'a>, Slot<'a>),
    /// Does this base chain see the packet before or after connection tracking, or before or after it is translated
    /// back? (The priorities are equal.)
    Side(Slot<'a>, &'static str),
    /// The order of many base chains with equal priorities.
    Orders,
    /// A user can't answer these: the effect of an unknown rule, the set of many from which connections are, or
    /// whether they stay in this namespace.
    Other,
}

#[cfg(test)]
mod tests {
    use super::*;
    use ruleset::testing::{base, chain, rule, table};
    use ruleset::{Direction, Family, Kind};

    #[test]
    fn a_place_is_told_with_what_is_there() {
        let table = table("ip one", vec![base("a", Kind::Filter, Hook::Input, 0, vec![rule([], Action::Drop)])]);
        let chain = &table.chains[0];
        let rule = Line::all(&table, chain).map(Place::Rule).next().unwrap();
        assert_eq!(rule.to_string(), "`drop` in ip one, chain a");
        let policy = Place::Policy(Slot { table: &table, chain, base: chain.base.unwrap() });
        assert_eq!(policy.to_string(), "the policy of ip one, chain a");
    }

    /// The advice depends on the connections that are meant.
    #[test]
    fn a_reason_has_the_numbers_of_the_field_that_decides() {
        let connections = Connections::all(Family::V4, Direction::Inbound);
        let to_80 = connections.narrowed(Field::DestinationPort, &Intervals::one(80));
        let port = Condition::is(Field::DestinationPort, 443);
        assert_eq!(Reason::Condition(&port, port.field(), to_80.clone()).numbers(), Some(&Intervals::one(80)));
        let user = Condition::is(Field::Uid, 7);
        assert_eq!(Reason::Condition(&user, user.field(), to_80).numbers(), None, "who sends what comes in isn't here");
        assert_eq!(Reason::Device(Hook::Ingress).numbers(), None);
    }

    #[test]
    fn places_are_in_the_same_chain_by_its_name_and_its_table() {
        let rules = || vec![rule([], Action::Drop), rule([], Action::Accept)];
        let one = table("ip one", vec![chain("a", rules()), chain("b", rules())]);
        let two = table("ip two", vec![chain("a", rules())]);
        let places = |table, chain| Line::all(table, chain).map(Place::Rule).collect::<Vec<_>>();
        let (a, b) = (places(&one, &one.chains[0]), places(&one, &one.chains[1]));
        assert!(a[0].is_in_chain_of(&a[1]));
        assert!(!a[0].is_in_chain_of(&b[0]));
        assert!(!a[0].is_in_chain_of(&places(&two, &two.chains[0])[0]));
    }
}
