//! Follows connections through everything that the kernel runs at a hook.
//!
//! The walk takes a set of connections ([`Connections`]: each field may be of these numbers) through the base chains in the
//! kernel's order, and splits it where a rule takes only some of them. One connection is a set of one; "any TCP connection"
//! is the largest set.
//!
//! How the kernel decides:
//! - Only the first packet of a connection passes nat chains. The first one that sets up a mapping ends it: later nat chains
//!   are not asked (`nf_nat_inet_fn` in net/netfilter/nf_nat_core.c).
//! - An accept, explicit or by policy, ends only its own base chain. A drop ends everything (nf_hook_slow in
//!   net/netfilter/core.c).
//! - A goto never comes back to the chain that it left: the end of its target returns to whoever jumped before. The end of a
//!   base chain is its policy (nft_do_chain in net/netfilter/nf_tables_core.c, ipt_do_table in ip_tables.c).
//! - A packet that connection tracking is told to ignore passes no nat chain.

use std::fmt;

use crate::rules::config::Family;
use crate::rules::found::{
    Action, Chain, Condition, Field, Found, Kind, Policy, Rule, Slot, Subsystem, TCP, Table, TableFamily, Values,
};
use crate::rules::hook::Hook;
use crate::rules::intervals::Intervals;
use crate::rules::nftables::{element, nfproto};
use crate::rules::ruleset::ChainName;

/// Which way connections go, seen from the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// To the pod.
    Inbound,
    /// From the pod.
    Outbound,
}

impl Direction {
    /// Both directions.
    pub const ALL: [Self; 2] = [Self::Inbound, Self::Outbound];

    /// The hook at which connections are redirected.
    pub fn hook(self) -> Hook {
        match self {
            Direction::Inbound => Hook::Prerouting,
            Direction::Outbound => Hook::Output,
        }
    }

    /// The chain that redirects them.
    pub fn chain(self) -> ChainName {
        match self {
            Direction::Inbound => ChainName::ProxyInitRedirect,
            Direction::Outbound => ChainName::ProxyInitOutput,
        }
    }

    /// The hooks that a connection's first packet passes up to and including that one, in order.
    fn hooks(self) -> &'static [Hook] {
        match self {
            Direction::Inbound => &[Hook::Ingress, Hook::Prerouting],
            Direction::Outbound => &[Hook::Output],
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::Inbound => "inbound",
            Direction::Outbound => "outbound",
        })
    }
}

/// A set of TCP connections, described by their first packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connections {
    /// The numbers that each field may have. A field that isn't listed doesn't exist for these packets, and no
    /// condition on it holds: a packet from outside has no owning user, for example.
    fields: Vec<(Field, Intervals)>,
}

impl Connections {
    /// Every TCP connection of a family in a direction.
    pub fn all(family: Family, direction: Direction) -> Self {
        let any = |field: Field| (field, Intervals::up_to(field.largest()));
        let none = |field: Field| (field, Intervals::one(0));
        let mut fields = vec![
            (Field::Family, Intervals::one(nfproto(family))),
            (Field::Protocol, Intervals::one(TCP)),
            any(Field::Source(family)),
            any(Field::Destination(family)),
            any(Field::SourcePort),
            any(Field::DestinationPort),
        ];
        match direction {
            Direction::Inbound => fields.extend([any(Field::InInterface), none(Field::OutInterface)]),
            Direction::Outbound => fields.extend([
                none(Field::InInterface),
                any(Field::OutInterface),
                any(Field::Uid),
                any(Field::Gid),
            ]),
        }
        Self { fields }
    }

    /// The connections of this set whose field is one of these numbers.
    #[must_use]
    pub fn with(&self, field: Field, numbers: &Intervals) -> Self {
        let mut narrowed = self.clone();
        for (known, intervals) in &mut narrowed.fields {
            if *known == field {
                *intervals = intervals.and(numbers);
            }
        }
        narrowed
    }

    fn get(&self, field: Field) -> Option<&Intervals> {
        self.fields
            .iter()
            .find(|(known, _)| *known == field)
            .map(|(_, intervals)| intervals)
    }
}

/// What sets them apart, such as `to port 80`; or `all TCP connections`.
impl fmt::Display for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// At most this many intervals are listed.
        const MOST: usize = 8;
        let mut said = false;
        for (field, intervals) in &self.fields {
            let what = match field {
                Field::Source(_) => "from",
                Field::Destination(_) => "to",
                Field::SourcePort => "from port",
                Field::DestinationPort => "to port",
                Field::Uid => "of user",
                Field::Gid => "of group",
                Field::InInterface => "in by",
                Field::OutInterface => "out by",
                Field::Family | Field::Protocol => continue,
            };
            let list = intervals.as_slice();
            let fixed = Intervals::one(0);
            if *intervals == Intervals::up_to(field.largest())
                || (matches!(field, Field::InInterface | Field::OutInterface) && *intervals == fixed)
            {
                continue;
            }
            let mut elements: Vec<_> = list
                .iter()
                .take(MOST)
                .map(|&interval| element(*field, interval))
                .collect();
            if list.len() > MOST {
                elements.push("...".to_owned());
            }
            write!(f, "{}{what} {}", if said { " " } else { "" }, elements.join(","))?;
            said = true;
        }
        if !said {
            f.write_str("all TCP connections")?;
        }
        Ok(())
    }
}

/// A place in what the kernel runs: a rule, or a base chain's policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place<'a> {
    /// The table of the chain.
    pub table: &'a Table,
    /// The chain.
    pub chain: &'a Chain,
    /// The rule; none for the chain's policy.
    pub rule: Option<&'a Rule>,
}

/// What a rule or a policy does to connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It ends the base chain, or proxy-init's chain, before the rules behind it are asked.
    Accepted,
    /// It redirects them to a port of this host, or sends them elsewhere.
    Mapped,
    /// It drops them.
    Dropped,
    /// It has connection tracking leave them alone, so that they can't be redirected.
    Untracked,
    /// It does something that isn't understood, and that may be any of these.
    Unknown,
}

/// Connections whose way has been decided by one rule or policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision<'a> {
    /// Which connections. If it isn't certain, the decision is about some of these, or none.
    pub connections: Connections,
    /// Where it was decided.
    pub at: Place<'a>,
    /// What becomes of them.
    pub fate: Fate,
    /// Whether this certainly happens. Otherwise it depends on something that isn't understood, or on an order of
    /// chains that isn't known.
    pub certain: bool,
    /// Whether these connections passed proxy-init's chain before.
    pub behind_ours: bool,
}

/// The one of proxy-init's chains that connections should get to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Goal<'a> {
    /// The part of the kernel that holds its table.
    pub subsystem: Subsystem,
    /// The table's family.
    pub family: TableFamily,
    /// The table's name.
    pub table: &'a str,
    /// The chain.
    pub chain: ChainName,
}

impl Goal<'_> {
    fn is_table(&self, table: &Table) -> bool {
        table.subsystem == self.subsystem && table.family == self.family && table.name == *self.table
    }

    fn is(&self, table: &Table, chain: &Chain) -> bool {
        self.is_table(table) && chain.name == *self.chain.as_str()
    }
}

/// The outcome of a walk.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Walk<'a> {
    /// The decisions about connections, in the order in which the kernel makes them.
    pub decisions: Vec<Decision<'a>>,
    /// Some connections got to the goal.
    pub reached: bool,
}

/// Takes connections through the hooks of their direction, and records what decides about them and whether any get to
/// the goal.
///
/// If it isn't known whether the goal's base chain or one of another table runs first, the other is assumed to.
pub fn walk<'a>(
    found: &'a Found,
    family: Family,
    direction: Direction,
    goal: Goal<'_>,
    connections: Connections,
) -> Walk<'a> {
    let mut walker = Walker {
        goal,
        walk: Walk::default(),
        questions: 0,
    };
    let mut states = vec![State {
        connections,
        doubts: Vec::new(),
        reached: false,
        mapped: false,
        left: None,
    }];
    for &hook in direction.hooks() {
        let mut slots = found.chains_at(family, hook);
        let tied = last_among_ties(&mut slots, goal);
        for slot in slots {
            states = walker.base_chain(slot, states, &tied);
        }
    }
    // What never got to the goal, though nothing took it: some rule ended the goal's base chain.
    for state in states {
        if let Some(at) = state.left.filter(|_| !state.reached && !state.mapped) {
            walker.walk.decisions.push(Decision {
                connections: state.connections,
                at,
                fate: Fate::Accepted,
                certain: state.doubts.is_empty(),
                behind_ours: false,
            });
        }
    }
    walker.walk
}

/// Moves the goal's base chain behind those of other tables that it ties with. Returns those.
fn last_among_ties<'a>(slots: &mut Vec<Slot<'a>>, goal: Goal<'_>) -> Vec<Slot<'a>> {
    let Some(place) = slots.iter().position(|slot| leads_to_goal(slot, goal)) else {
        return Vec::new();
    };
    let ours = slots.remove(place);
    let tied: Vec<_> = slots.iter().filter(|slot| slot.ties_with(&ours)).copied().collect();
    let last = slots
        .iter()
        .rposition(|slot| slot.ties_with(&ours))
        .map_or(place, |last| last + 1);
    slots.insert(last.max(place.min(slots.len())), ours);
    tied
}

/// Whether it is the base chain of the goal's table that jumps to the goal.
fn leads_to_goal(slot: &Slot<'_>, goal: Goal<'_>) -> bool {
    goal.is_table(slot.table) && slot.chain.name == *goal.chain.other_end().as_str()
}

/// Connections on their way.
#[derive(Debug, Clone, PartialEq, Eq)]
struct State<'a> {
    connections: Connections,
    /// What isn't understood and must be so for them to get here; nothing: that they do is certain.
    doubts: Vec<Doubt>,
    /// They have been in the goal's chain.
    reached: bool,
    /// A nat chain has decided where they go, or none will: no more are asked.
    mapped: bool,
    /// What last ended a chain for them.
    left: Option<Place<'a>>,
}

/// A question that can't be answered, by its number, and the answer that leads here.
type Doubt = (usize, bool);

/// More sets of connections than this are not told apart; what is said then is of more connections than it is true of.
const MOST_STATES: usize = 16;
/// More intervals than this are not kept of a field, likewise.
const MOST_INTERVALS: usize = 64;
/// The kernel allows 16 jumps (`NFT_JUMP_STACK_SIZE`); what goes on for longer is no ruleset of the kernel's.
const DEEPEST: usize = 32;

struct Walker<'a, 'g> {
    goal: Goal<'g>,
    walk: Walk<'a>,
    /// How many questions could not be answered so far.
    questions: usize,
}

/// What comes out of a chain.
#[derive(Default)]
struct Out<'a> {
    /// Goes back to the chain that jumped here.
    back: Vec<State<'a>>,
    /// Has left the base chain.
    gone: Vec<State<'a>>,
}

impl<'a> Walker<'a, '_> {
    fn decide(&mut self, state: &State<'a>, certain: bool, at: Place<'a>, fate: Fate) {
        self.walk.decisions.push(Decision {
            connections: state.connections.clone(),
            at,
            fate,
            certain: state.doubts.is_empty() && certain,
            behind_ours: state.reached,
        });
    }

    /// The number of a question that can't be answered.
    fn question(&mut self) -> usize {
        self.questions += 1;
        self.questions
    }

    fn base_chain(&mut self, slot: Slot<'a>, states: Vec<State<'a>>, tied: &[Slot<'a>]) -> Vec<State<'a>> {
        let is_nat = slot.base.kind == Kind::Nat;
        let (passing, mut entering): (Vec<_>, Vec<_>) = states.into_iter().partition(|state| is_nat && state.mapped);
        let uncertain = tied.contains(&slot);
        // Whether it runs before the goal's base chain.
        let order = (self.question(), true);
        if uncertain {
            entering.iter_mut().for_each(|state| state.doubts.push(order));
        }
        let out = self.chain(slot.table, slot.chain, entering, 0);
        let policy = Place {
            table: slot.table,
            chain: slot.chain,
            rule: None,
        };
        let mut next = passing;
        match slot.base.policy {
            Policy::Accept => next.extend(out.back),
            Policy::Drop => {
                for state in out.back {
                    self.decide(&state, true, policy, Fate::Dropped);
                }
            }
        }
        next.extend(out.gone);
        // What it leaves alone doesn't depend on the order.
        for state in next.iter_mut().filter(|state| !state.mapped) {
            state.doubts.retain(|doubt| *doubt != order);
        }
        merged(next)
    }

    fn chain(&mut self, table: &'a Table, chain: &'a Chain, entering: Vec<State<'a>>, depth: usize) -> Out<'a> {
        let mut out = Out::default();
        let mut now = entering;
        if self.goal.is(table, chain) {
            self.walk.reached |= !now.is_empty();
            for state in &mut now {
                state.reached = true;
                state.left = None;
            }
        }
        for rule in &chain.rules {
            if now.is_empty() {
                break;
            }
            let at = Place {
                table,
                chain,
                rule: Some(rule),
            };
            let mut next = Vec::with_capacity(now.len());
            for state in now {
                if matches!(rule.action, Action::Continue(_)) {
                    next.push(state);
                    continue;
                }
                let question = self.question();
                let (matching, rest) = split(table, rule, &state, question);
                next.extend(rest);
                if let Some(matching) = matching {
                    self.act(at, matching, &rule.action, depth, &mut next, &mut out);
                }
            }
            now = merged(next);
        }
        out.back.extend(now);
        if self.goal.is(table, chain) {
            // Those that a rule of the goal lets bypass the proxy.
            for state in out.back.iter().chain(&out.gone).filter(|state| !state.mapped) {
                if let Some(at) = state.left {
                    self.decide(state, true, at, Fate::Accepted);
                }
            }
        }
        out
    }

    /// What a rule does with connections that match it.
    fn act(
        &mut self,
        at: Place<'a>,
        mut state: State<'a>,
        action: &'a Action,
        depth: usize,
        next: &mut Vec<State<'a>>,
        out: &mut Out<'a>,
    ) {
        match action {
            Action::Continue(_) => next.push(state),
            Action::Accept => {
                state.left = Some(at);
                out.gone.push(state);
            }
            Action::Drop => self.decide(&state, true, at, Fate::Dropped),
            Action::Return => {
                state.left = Some(at);
                out.back.push(state);
            }
            Action::Redirect(_) | Action::Nat(_) => {
                self.decide(&state, true, at, Fate::Mapped);
                state.mapped = true;
                out.gone.push(state);
            }
            Action::Untrack => {
                self.decide(&state, true, at, Fate::Untracked);
                state.mapped = true;
                next.push(state);
            }
            Action::Unknown(_) => {
                self.decide(&state, false, at, Fate::Unknown);
                state.doubts.push((self.question(), false));
                next.push(state);
            }
            Action::Jump(name) | Action::Goto(name) => {
                let target = at.table.chain(name).filter(|_| depth < DEEPEST);
                let Some(target) = target else {
                    self.decide(&state, false, at, Fate::Unknown);
                    next.push(state);
                    return;
                };
                let through = self.chain(at.table, target, vec![state], depth + 1);
                out.gone.extend(through.gone);
                if matches!(action, Action::Jump(_)) {
                    next.extend(through.back);
                } else {
                    out.back.extend(through.back.into_iter().map(|state| State {
                        left: Some(at),
                        ..state
                    }));
                }
            }
            Action::Map(field, name) => {
                let Some(map) = at.table.set(name) else {
                    self.decide(&state, false, at, Fate::Unknown);
                    next.push(state);
                    return;
                };
                let mut rest = state.clone();
                for (numbers, action) in &map.verdicts {
                    let taken = state.connections.with(*field, numbers);
                    if taken.get(*field).is_some_and(|numbers| !numbers.is_empty()) {
                        let taken = State {
                            connections: taken,
                            ..state.clone()
                        };
                        self.act(at, taken, action, depth, next, out);
                    }
                    rest.connections = without(&rest.connections, *field, numbers);
                }
                if rest.connections.get(*field).is_none_or(|numbers| !numbers.is_empty()) {
                    next.push(rest);
                }
            }
        }
    }
}

/// Connections whose field is none of these numbers.
fn without(connections: &Connections, field: Field, numbers: &Intervals) -> Connections {
    let mut narrowed = connections.clone();
    for (known, intervals) in &mut narrowed.fields {
        if *known == field {
            let rest = intervals.without(numbers);
            if rest.as_slice().len() <= MOST_INTERVALS {
                *intervals = rest;
            }
        }
    }
    narrowed
}

/// Those connections that meet the rule's conditions, and those that don't. Where it can't be told, both have them, and that
/// they get any further depends on the answer to the question.
fn split<'a>(table: &Table, rule: &Rule, state: &State<'a>, question: usize) -> (Option<State<'a>>, Option<State<'a>>) {
    let mut matching = state.clone();
    let mut understood = true;
    // What the other connections are, as long as a single condition tells them apart.
    let mut rest: Option<Connections> = None;
    let mut conditions_that_tell = 0;
    for condition in &rule.conditions {
        match condition {
            Condition::Fixed { holds: true, .. } => {}
            Condition::Fixed { holds: false, .. } => return (None, Some(state.clone())),
            Condition::Unknown(_) => {
                understood = false;
                conditions_that_tell += 2;
            }
            Condition::In { field, values, negated } => {
                let Some(known) = matching.connections.get(*field) else {
                    return (None, Some(state.clone()));
                };
                let numbers = match values {
                    Values::Listed(list) => Some(Intervals::new(list.iter().copied())),
                    Values::Set(name) => table.set(name).and_then(|set| set.elements.clone()),
                };
                let Some(numbers) = numbers else {
                    understood = false;
                    conditions_that_tell += 2;
                    continue;
                };
                let (held, others) = match negated {
                    false => (known.and(&numbers), known.without(&numbers)),
                    true => (known.without(&numbers), known.and(&numbers)),
                };
                if held.is_empty() {
                    return (None, Some(state.clone()));
                }
                if others.is_empty() {
                    continue;
                }
                conditions_that_tell += 1;
                let few = |intervals: &Intervals| intervals.as_slice().len() <= MOST_INTERVALS;
                if few(&others) {
                    rest = Some(replaced(&state.connections, *field, others));
                }
                if few(&held) {
                    matching.connections = replaced(&matching.connections, *field, held);
                } else {
                    understood = false;
                }
            }
        }
    }
    let rest = match conditions_that_tell {
        0 => None,
        1 => Some(rest.unwrap_or_else(|| state.connections.clone())),
        _ => Some(state.connections.clone()),
    };
    let mut rest = rest.map(|connections| State {
        connections,
        ..state.clone()
    });
    if !understood {
        matching.doubts.push((question, true));
        rest.iter_mut().for_each(|rest| rest.doubts.push((question, false)));
    }
    (Some(matching), rest)
}

fn replaced(connections: &Connections, field: Field, intervals: Intervals) -> Connections {
    let mut connections = connections.clone();
    for (known, old) in &mut connections.fields {
        if *known == field {
            old.clone_from(&intervals);
        }
    }
    connections
}

/// The same states with fewer sets: equal ones are one, and of too many, all are taken together.
fn merged(mut states: Vec<State<'_>>) -> Vec<State<'_>> {
    let mut merged: Vec<State<'_>> = Vec::with_capacity(states.len());
    for mut state in states.drain(..) {
        // A state that is made one with another may be one with a third.
        while let Some((index, doubts)) = merged
            .iter()
            .enumerate()
            .find_map(|(index, known)| Some((index, joined(known, &state)?)))
        {
            let known = merged.remove(index);
            state.doubts = doubts;
            state.left = known.left.or(state.left);
        }
        merged.push(state);
    }
    if merged.len() <= MOST_STATES {
        return merged;
    }
    let mut few: Vec<State<'_>> = Vec::new();
    for state in merged {
        let known = few
            .iter_mut()
            .find(|known| known.reached == state.reached && known.mapped == state.mapped);
        match known {
            Some(known) => {
                // Which of them get here isn't told apart any more.
                known.doubts = vec![(0, false)];
                for (field, intervals) in &mut known.connections.fields {
                    if let Some(others) = state.connections.get(*field) {
                        let all = intervals.as_slice().iter().chain(others.as_slice());
                        *intervals = hull(Intervals::new(all.copied()));
                    }
                }
            }
            None => few.push(state),
        }
    }
    few
}

/// The doubts that are left where two states are one; none if they aren't.
fn joined(one: &State<'_>, other: &State<'_>) -> Option<Vec<Doubt>> {
    if one.connections != other.connections || (one.reached, one.mapped) != (other.reached, other.mapped) {
        return None;
    }
    let only_in = |these: &[Doubt], those: &[Doubt]| -> Vec<Doubt> {
        these.iter().filter(|doubt| !those.contains(doubt)).copied().collect()
    };
    let (first, second) = (only_in(&one.doubts, &other.doubts), only_in(&other.doubts, &one.doubts));
    match (first.as_slice(), second.as_slice()) {
        // One way to get here includes the other.
        ([], _) => Some(one.doubts.clone()),
        (_, []) => Some(other.doubts.clone()),
        // Whatever the answer is, they get here.
        ([(question, answer)], [(same, opposite)]) if question == same && answer != opposite => {
            let common = one.doubts.iter().filter(|doubt| other.doubts.contains(doubt));
            Some(common.copied().collect())
        }
        _ => None,
    }
}

/// The intervals, or where they are too many, one that has all of them.
fn hull(intervals: Intervals) -> Intervals {
    match intervals.as_slice() {
        [(first, _), .., (_, last)] if intervals.as_slice().len() > MOST_INTERVALS => Intervals::new([(*first, *last)]),
        _ => intervals,
    }
}
