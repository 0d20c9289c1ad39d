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
//! - A redirected packet has its new destination from there on: at later chains of the hook, and at later hooks.

pub mod order;

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ptr;

use crate::found::Found;
use crate::found::line::Line;
use crate::rules::family::Family;
use crate::rules::hook::Hook;
use crate::rules::intervals::Intervals;
use crate::rules::name::Name;
use crate::rules::nftables::{element, nfproto};
use crate::rules::rule::{Action, Condition, Field, LOOPBACK, Rule, TCP, Values, interface};
use crate::rules::table::{Chain, Kind, Policy, Subsystem, Table, TableFamily};
use crate::walk::order::Slot;
use crate::wanted::direction::Direction;
use crate::wanted::ruleset::ChainName;

impl Direction {
    /// The hooks that a connection's first packet passes up to and including that one, in order.
    pub fn hooks(self) -> &'static [Hook] {
        match self {
            Direction::Inbound => &[Hook::Ingress, Hook::Prerouting],
            Direction::Outbound => &[Hook::Output],
        }
    }

    /// Every hook that it may pass until it has arrived or left.
    fn passed(self) -> &'static [Hook] {
        match self {
            Direction::Inbound => &[
                Hook::Ingress,
                Hook::Prerouting,
                Hook::Input,
                // If it is sent elsewhere.
                Hook::Forward,
                Hook::Postrouting,
            ],
            Direction::Outbound => &[
                Hook::Output,
                Hook::Postrouting,
                Hook::Egress,
                // What stays within this host comes in again, by the loopback device.
                Hook::Ingress,
                Hook::Prerouting,
                Hook::Input,
            ],
        }
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

    /// The numbers that a field may have; none if it doesn't exist.
    pub fn get(&self, field: Field) -> Option<&Intervals> {
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

impl<'a> Place<'a> {
    /// The rule with its chain; none for a policy.
    pub fn line(&self) -> Option<Line<'a>> {
        let Self { table, chain, rule } = *self;
        rule.map(|rule| Line { table, chain, rule })
    }
}

/// The rule, or that it is the policy, and where it is.
impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { table, chain, .. } = *self;
        match self.line() {
            Some(line) => write!(f, "`{}` in {table}, chain {}", line.to_string().trim_end(), chain.name),
            None => write!(f, "the policy of {table}, chain {}", chain.name),
        }
    }
}

/// What a rule or a policy does to connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
    let mut walker = Walker::new(Some(goal));
    let mut states = vec![State::new(connections)];
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

/// A rule or a policy that a connection on its way was compared with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step<'a> {
    /// The hook at which that was.
    pub hook: Hook,
    /// How many jumps and gotos lead to the chain from its base chain.
    pub depth: usize,
    /// The rule, or the policy.
    pub at: Place<'a>,
    /// Whether the connection matched.
    pub matched: Matched<'a>,
}

/// Whether a connection matches a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Matched<'a> {
    /// It does, and this is done: the rule's action, or what its verdict map says.
    Yes(&'a Action),
    /// It doesn't.
    No(Reason<'a>),
    /// That isn't known; the question has this number.
    Perhaps(Reason<'a>, usize),
}

/// Why a connection doesn't match a rule, or why that isn't known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason<'a> {
    /// This condition decides. The field that it looks at may have these numbers; none: it doesn't exist, or the condition
    /// looks at something else.
    Condition(&'a Condition, Option<Intervals>),
    /// A verdict map decides, by this field, which may have these numbers.
    Map(Field, &'a Name, Option<Intervals>),
    /// Of which devices the base chain sees the packets.
    Device,
}

/// What may become of a connection that was followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End<'a> {
    /// The connection as it is in the end.
    pub connections: Connections,
    /// What has become of it.
    pub fate: Fate,
    /// Where that was decided; none if nothing has decided where it goes.
    pub at: Option<Place<'a>>,
    /// What was done there.
    pub action: Option<&'a Action>,
    /// The numbers of the questions on whose answers it depends.
    pub questions: Vec<usize>,
}

/// A connection's whole way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Followed<'a> {
    /// Everything that it was compared with, in the kernel's order.
    pub steps: Vec<Step<'a>>,
    /// Everything that may become of it. One of these does.
    pub ends: Vec<End<'a>>,
}

/// An order in which base chains may run.
#[derive(Debug, Clone)]
pub struct Order<'a>(Vec<Slot<'a>>);

impl<'a> Order<'a> {
    /// The chains at the first place where two orders differ, each behind the name of its table.
    pub fn differs_from(&self, other: &Self) -> Option<(String, String)> {
        let name = |slot: &Slot<'a>| format!("{} {}", slot.table, slot.chain.name);
        let mut pairs = self.0.iter().zip(&other.0);
        let (one, two) = pairs.find(|(one, two)| !ptr::eq(one.chain, two.chain))?;
        Some((name(one), name(two)))
    }
}

/// The orders in which the base chains may run that a connection passes; none if there are too many, or if a nat chain and
/// another one have the same priority. There is one, unless chains of several tables have the same priority.
pub fn orders(found: &Found, family: Family, direction: Direction) -> Option<Vec<Order<'_>>> {
    /// More orders than this are not tried.
    const MOST: usize = 24;
    /// Of more chains than this, there would be more.
    const MOST_TIED: usize = 4;
    let mut orders = vec![Order(Vec::new())];
    for &hook in direction.passed() {
        let mut slots = found.chains_at(family, hook);
        slots.retain(|slot| !is_blank(slot));
        while let Some(first) = slots.first().copied() {
            let count = slots.iter().take_while(|slot| slot.order() == first.order()).count();
            let tied: Vec<Slot<'_>> = slots.drain(..count).collect();
            let is_mixed = |slot: &Slot<'_>| slot.base.kind != first.base.kind && slot.order().0 == first.order().0;
            if tied.iter().chain(&slots).any(is_mixed) {
                return None;
            }
            if tied.len() > MOST_TIED && !is_one_table(&tied) {
                return None;
            }
            let arranged = arrangements(&tied);
            if arranged.len() * orders.len() > MOST {
                return None;
            }
            orders = orders
                .iter()
                .flat_map(|Order(before)| {
                    let longer = arranged.iter().map(|next| [before.as_slice(), next].concat());
                    longer.map(Order).collect::<Vec<_>>()
                })
                .collect();
        }
    }
    Some(orders)
}

fn is_one_table(slots: &[Slot<'_>]) -> bool {
    slots.windows(2).all(|pair| match pair {
        [one, other] => ptr::eq(one.table, other.table),
        _ => true,
    })
}

/// The orders in which chains of equal priority may run: those of one table run in the order in which they are here.
fn arrangements<'a>(slots: &[Slot<'a>]) -> Vec<Vec<Slot<'a>>> {
    if is_one_table(slots) {
        return vec![slots.to_vec()];
    }
    let mut arranged = Vec::new();
    for (place, first) in slots.iter().enumerate() {
        let (before, behind) = (slots.iter().take(place), slots.iter().skip(place + 1));
        if before.clone().any(|slot| ptr::eq(slot.table, first.table)) {
            continue;
        }
        let rest: Vec<Slot<'a>> = before.chain(behind).copied().collect();
        for order in arrangements(&rest) {
            arranged.push([vec![*first], order].concat());
        }
    }
    arranged
}

/// Whether a base chain leaves every packet alone.
fn is_blank(slot: &Slot<'_>) -> bool {
    slot.chain.rules.is_empty() && slot.base.policy == Policy::Accept
}

/// Takes one connection, of which some fields may not be known, through all hooks that its first packet passes, and records
/// its way.
pub fn follow<'a>(order: &Order<'a>, direction: Direction, connection: Connections) -> Followed<'a> {
    let mut walker = Walker::new(None);
    let mut states = vec![State::new(connection)];
    for &hook in direction.hooks() {
        states = walker.hook(order, hook, states);
    }
    // What comes now changes sources.
    states.iter_mut().for_each(|state| state.mapped = state.is_untracked());
    let any = || Intervals::up_to(Field::OutInterface.largest());
    let lo = Intervals::one(interface(LOOPBACK));
    let mut ended = Vec::new();
    match direction {
        Direction::Inbound => {
            // Whether what was sent elsewhere is forwarded depends on where that is.
            let mut forwarded: Vec<_> = states
                .iter()
                .filter(|state| state.is_sent_elsewhere())
                .cloned()
                .collect();
            let question = walker.question();
            states
                .iter_mut()
                .filter(|state| state.is_sent_elsewhere())
                .for_each(|state| {
                    state.doubts.push((question, false));
                });
            for state in &mut forwarded {
                state.doubts.push((question, true));
                state.connections = replaced(&state.connections, Field::OutInterface, any());
            }
            ended.extend(walker.hook(order, Hook::Input, states));
            let forwarded = walker.hook(order, Hook::Forward, forwarded);
            ended.extend(walker.hook(order, Hook::Postrouting, forwarded));
        }
        Direction::Outbound => {
            let mut here = states;
            for state in &mut here {
                // It is routed again: if it was redirected, to this host.
                let devices = match state.end {
                    Some((_, Action::Redirect(_))) => lo.clone(),
                    _ if state.is_sent_elsewhere() => any(),
                    _ => continue,
                };
                state.connections = replaced(&state.connections, Field::OutInterface, devices);
            }
            let here = walker.hook(order, Hook::Postrouting, here);
            let others = any().without(&lo);
            let by = |devices: &Intervals| {
                let narrowed = here.iter().map(|state| State {
                    connections: state.connections.with(Field::OutInterface, devices),
                    ..state.clone()
                });
                let exists = |state: &State<'a>| {
                    let devices = state.connections.get(Field::OutInterface);
                    devices.is_some_and(|devices| !devices.is_empty())
                };
                narrowed.filter(exists).collect::<Vec<_>>()
            };
            let (mut looped, leaving) = (by(&lo), by(&others));
            ended.extend(walker.hook(order, Hook::Egress, leaving));
            for state in &mut looped {
                // It comes in by the device by which it left, without its socket. Its translation is settled.
                state.mapped = true;
                state
                    .connections
                    .fields
                    .retain(|(field, _)| !matches!(field, Field::Uid | Field::Gid));
                state.connections = replaced(&state.connections, Field::InInterface, lo.clone());
                state.connections = replaced(&state.connections, Field::OutInterface, Intervals::one(0));
            }
            for hook in [Hook::Ingress, Hook::Prerouting, Hook::Input] {
                looped = walker.hook(order, hook, looped);
            }
            ended.extend(looped);
        }
    }
    let mut ends = walker.ends;
    for state in ended {
        let (fate, at, action) = match state.end {
            Some((at, action)) if !state.is_untracked() => (Fate::Mapped, Some(at), Some(action)),
            end => (Fate::Accepted, end.map(|(at, _)| at), None),
        };
        ends.push(End {
            questions: questions(&state.doubts),
            connections: state.connections,
            fate,
            at,
            action,
        });
    }
    Followed {
        steps: walker.way,
        ends,
    }
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
    goal.is_table(slot.table) && slot.chain.name == *goal.chain.counterpart().as_str()
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
    /// Of connections that are followed: what has decided where they go.
    end: Option<(Place<'a>, &'a Action)>,
}

impl State<'_> {
    fn is_sent_elsewhere(&self) -> bool {
        matches!(self.end, Some((_, Action::Nat(_))))
    }

    fn is_untracked(&self) -> bool {
        matches!(self.end, Some((_, Action::Untrack)))
    }

    fn new(connections: Connections) -> Self {
        Self {
            connections,
            doubts: Vec::new(),
            reached: false,
            mapped: false,
            left: None,
            end: None,
        }
    }
}

/// A question that can't be answered, by its number, and the answer that leads here.
type Doubt = (usize, bool);

/// More sets of connections than this are not told apart; what is said then is of more connections than it is true of.
const MOST_STATES: usize = 16;
/// More intervals than this are not kept of a field, likewise.
const MOST_INTERVALS: usize = 64;
/// The kernel allows 16 jumps (`NFT_JUMP_STACK_SIZE`); what goes on for longer is no ruleset of the kernel's.
const DEEPEST: usize = 32;
/// How many rules are asked in a walk before jumps are not followed any more. Chains that jump to the next several times
/// each would take for ever otherwise; 10,000 rules take a few times as many steps.
const MOST_STEPS: usize = 1_000_000;

struct Walker<'a, 'g> {
    /// The chain to which connections should get. Without one, a connection is followed: its way is recorded, and what
    /// becomes of it.
    goal: Option<Goal<'g>>,
    walk: Walk<'a>,
    way: Vec<Step<'a>>,
    ends: Vec<End<'a>>,
    /// The hook of the base chain.
    hook: Hook,
    /// How many questions could not be answered so far.
    questions: usize,
    /// How many rules were asked so far.
    steps: usize,
}

/// What comes out of a chain.
#[derive(Default)]
struct Out<'a> {
    /// Goes back to the chain that jumped here.
    back: Vec<State<'a>>,
    /// Has left the base chain.
    gone: Vec<State<'a>>,
}

impl<'a, 'g> Walker<'a, 'g> {
    fn new(goal: Option<Goal<'g>>) -> Self {
        Self {
            goal,
            walk: Walk::default(),
            way: Vec::new(),
            ends: Vec::new(),
            hook: Hook::Prerouting,
            questions: 0,
            steps: 0,
        }
    }

    fn follows(&self) -> bool {
        self.goal.is_none()
    }

    /// Takes a connection that is followed through the base chains of a hook.
    fn hook(&mut self, order: &Order<'a>, hook: Hook, mut states: Vec<State<'a>>) -> Vec<State<'a>> {
        for slot in order.0.iter().filter(|slot| slot.base.hook == hook) {
            states = self.base_chain(*slot, states, &[]);
        }
        states
    }

    /// Records a step of a connection that is followed.
    fn record(&mut self, depth: usize, at: Place<'a>, matched: Matched<'a>) {
        if self.follows() {
            self.way.push(Step {
                hook: self.hook,
                depth,
                at,
                matched,
            });
        }
    }

    /// The same for a rule. Where it isn't known how the connection gets to a chain, a rule is asked several times in one
    /// visit to that chain: then it is one step, and if the answers differ, it isn't known.
    fn record_or_join(&mut self, asked: usize, depth: usize, at: Place<'a>, matched: Matched<'a>) {
        let is_same = |step: &&mut Step<'a>| {
            let rules = step.at.rule.zip(at.rule);
            step.depth == depth && rules.is_some_and(|(one, other)| ptr::eq(one, other))
        };
        let before = self
            .way
            .get_mut(asked..)
            .unwrap_or_default()
            .iter_mut()
            .rev()
            .find(is_same);
        match before {
            None => self.record(depth, at, matched),
            Some(step) => match (&step.matched, &matched) {
                (Matched::Perhaps(..), _) => {}
                (_, Matched::Perhaps(..)) => step.matched = matched,
                (Matched::Yes(_), Matched::No(reason)) | (Matched::No(reason), Matched::Yes(_)) => {
                    step.matched = Matched::Perhaps(reason.clone(), 0);
                }
                (Matched::Yes(_), Matched::Yes(_)) | (Matched::No(_), Matched::No(_)) => {}
            },
        }
    }

    fn decide(&mut self, state: &State<'a>, certain: bool, at: Place<'a>, fate: Fate) {
        if self.follows() {
            if matches!(fate, Fate::Dropped | Fate::Unknown) {
                self.ends.push(End {
                    connections: state.connections.clone(),
                    fate,
                    at: Some(at),
                    action: None,
                    questions: questions(&state.doubts),
                });
            }
            return;
        }
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
        let (mut passing, mut entering): (Vec<_>, Vec<_>) =
            states.into_iter().partition(|state| is_nat && state.mapped);
        let mut uncertain = tied.contains(&slot);
        // Whether it runs before the goal's base chain.
        let order = (self.question(), true);
        self.hook = slot.base.hook;
        let policy = Place {
            table: slot.table,
            chain: slot.chain,
            rule: None,
        };
        if self.follows() && matches!(slot.base.hook, Hook::Ingress | Hook::Egress) {
            // Whether it runs at all: of which devices it sees the packets wasn't read.
            uncertain = true;
            self.record(0, policy, Matched::Perhaps(Reason::Device, order.0));
            passing.extend(entering.iter().cloned().map(|mut state| {
                state.doubts.push((order.0, false));
                state
            }));
        }
        if uncertain {
            entering.iter_mut().for_each(|state| state.doubts.push(order));
        }
        let out = self.chain(slot.table, slot.chain, entering, 0);
        let mut next = passing;
        match slot.base.policy {
            Policy::Accept => next.extend(out.back),
            Policy::Drop => {
                for state in out.back {
                    self.record(0, policy, Matched::Yes(&Action::Drop));
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
        let is_goal = self.goal.is_some_and(|goal| goal.is(table, chain));
        if is_goal {
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
            self.steps += now.len();
            let at = Place {
                table,
                chain,
                rule: Some(rule),
            };
            let mut next = Vec::with_capacity(now.len());
            let asked = self.way.len();
            for state in now {
                let goes_on = matches!(rule.action, Action::Continue(_));
                if goes_on && !self.follows() {
                    next.push(state);
                    continue;
                }
                let question = self.question();
                if let Some(index) = failed(table, rule, &state) {
                    if self.follows() {
                        let matched = matched(table, rule, &state, (None, Some(&state)), Some(index), question);
                        self.record_or_join(asked, depth, at, matched);
                    }
                    next.push(state);
                    continue;
                }
                let Split {
                    matching,
                    rest,
                    telling,
                } = split(table, rule, &state, question);
                if self.follows() {
                    let matched = matched(
                        at.table,
                        rule,
                        &state,
                        (matching.as_ref(), rest.as_ref()),
                        telling,
                        question,
                    );
                    self.record_or_join(asked, depth, at, matched);
                }
                if goes_on {
                    next.push(state);
                    continue;
                }
                next.extend(rest);
                if let Some(matching) = matching {
                    self.act(at, matching, &rule.action, depth, &mut next, &mut out);
                }
            }
            now = merged(next);
        }
        out.back.extend(now);
        if is_goal {
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
                if self.follows() {
                    translate(&mut state, self.hook, at, action);
                }
                out.gone.push(state);
            }
            Action::Untrack => {
                self.decide(&state, true, at, Fate::Untracked);
                if self.follows() && !state.mapped {
                    state.end = Some((at, action));
                }
                state.mapped = true;
                next.push(state);
            }
            Action::Unknown(_) => {
                self.decide(&state, false, at, Fate::Unknown);
                state.doubts.push((self.question(), false));
                next.push(state);
            }
            Action::Jump(name) | Action::Goto(name) => {
                let follows = depth < DEEPEST && self.steps < MOST_STEPS;
                let target = at.table.chain(name).filter(|_| follows);
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

/// The numbers of the questions, each once.
fn questions(doubts: &[Doubt]) -> Vec<usize> {
    doubts.iter().map(|(question, _)| *question).collect()
}

/// Has a nat rule's action change a connection that is followed.
///
/// A redirected connection goes to this host: on its way out to the loopback address, on its way in to an address of the
/// device (`nf_nat_redirect_ipv4` and `nf_nat_redirect_ipv6` in net/netfilter/nf_nat_redirect.c).
fn translate<'a>(state: &mut State<'a>, hook: Hook, at: Place<'a>, action: &'a Action) {
    let is_source = matches!(hook, Hook::Input | Hook::Postrouting);
    let port = if is_source {
        Field::SourcePort
    } else {
        Field::DestinationPort
    };
    let any = |field: Field| Intervals::up_to(field.largest());
    for family in Family::ALL {
        let (address, loopback) = match (is_source, family) {
            (true, _) => (Field::Source(family), None),
            (false, Family::V4) => (Field::Destination(family), Some(u32::from(Ipv4Addr::LOCALHOST).into())),
            (false, Family::V6) => (Field::Destination(family), Some(Ipv6Addr::LOCALHOST.into())),
        };
        let loopback = loopback.filter(|_| hook == Hook::Output && matches!(action, Action::Redirect(_)));
        state.connections = replaced(
            &state.connections,
            address,
            loopback.map_or_else(|| any(address), Intervals::one),
        );
    }
    let ports = match action {
        Action::Redirect(None) => None,
        Action::Redirect(Some((first, last))) => Some(Intervals::new([((*first).into(), (*last).into())])),
        _ => Some(any(port)),
    };
    if let Some(ports) = ports {
        state.connections = replaced(&state.connections, port, ports);
    }
    if !is_source {
        state.end = Some((at, action));
    }
}

/// Whether a connection that is followed matches a rule, by what `split` made of it.
fn matched<'a>(
    table: &'a Table,
    rule: &'a Rule,
    state: &State<'a>,
    (matching, rest): (Option<&State<'a>>, Option<&State<'a>>),
    telling: Option<usize>,
    question: usize,
) -> Matched<'a> {
    let numbers = |field: &Field| state.connections.get(*field).cloned();
    if let Some(condition) = telling.and_then(|index| rule.conditions.get(index)) {
        let had = match condition {
            Condition::In { field, .. } => numbers(field),
            Condition::Fixed { .. } | Condition::Unknown(_) => None,
        };
        let reason = Reason::Condition(condition, had);
        return match (matching, rest) {
            (None, _) => Matched::No(reason),
            _ => Matched::Perhaps(reason, question),
        };
    }
    let Action::Map(field, name) = &rule.action else {
        return Matched::Yes(&rule.action);
    };
    let known = numbers(field).unwrap_or_default();
    let overlaps = |numbers: &Intervals| !known.and(numbers).is_empty();
    let verdicts = table.set(name).map(|map| map.verdicts.as_slice());
    let Some(verdicts) = verdicts else {
        return Matched::Yes(&rule.action);
    };
    let said = verdicts.iter().find(|(numbers, _)| overlaps(numbers));
    let reason = Reason::Map(*field, name, numbers(field));
    match said {
        None => Matched::No(reason),
        Some((numbers, action)) if known.without(numbers).is_empty() => Matched::Yes(action),
        Some(_) => Matched::Perhaps(reason, question),
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

/// The place of the first condition that none of the connections meets. Most rules have one, so it is looked for without
/// copying what is known of the connections.
fn failed(table: &Table, rule: &Rule, state: &State<'_>) -> Option<usize> {
    rule.conditions.iter().position(|condition| match condition {
        Condition::Fixed { holds, .. } => !holds && !state.is_untracked(),
        Condition::Unknown(_) => false,
        Condition::In { field, values, negated } => {
            let Some(known) = state.connections.get(*field) else {
                return true;
            };
            match (values, negated) {
                (Values::Listed(list), false) => !known.meets(list),
                (Values::Listed(list), true) => known.without(&Intervals::new(list.iter().copied())).is_empty(),
                (Values::Set(name), _) => match table.set(name).and_then(|set| set.elements.as_ref()) {
                    None => false,
                    Some(elements) if *negated => known.without(elements).is_empty(),
                    Some(elements) => known.and(elements).is_empty(),
                },
            }
        }
    })
}

/// What a rule does to a set of connections.
struct Split<'a> {
    /// Those that meet its conditions.
    matching: Option<State<'a>>,
    /// Those that don't.
    rest: Option<State<'a>>,
    /// The place of the first condition that any may fail.
    telling: Option<usize>,
}

/// Splits connections by a rule's conditions. Where it can't be told, both parts have them, and that they get any further
/// depends on the answer to the question.
fn split<'a>(table: &Table, rule: &Rule, state: &State<'a>, question: usize) -> Split<'a> {
    let mut telling = None;
    let none = |index| Split {
        matching: None,
        rest: Some(state.clone()),
        telling: Some(index),
    };
    let mut matching = state.clone();
    let mut understood = true;
    // What the other connections are, as long as a single condition tells them apart.
    let mut rest: Option<Connections> = None;
    let mut conditions_that_tell = 0;
    for (index, condition) in rule.conditions.iter().enumerate() {
        match condition {
            Condition::Fixed { holds, .. } if !state.is_untracked() => {
                if !holds {
                    return none(index);
                }
            }
            // Connection tracking calls no packet new that it was told to leave alone.
            Condition::Fixed { .. } | Condition::Unknown(_) => {
                understood = false;
                telling = telling.or(Some(index));
                conditions_that_tell += 2;
            }
            Condition::In { field, values, negated } => {
                let Some(known) = matching.connections.get(*field) else {
                    return none(index);
                };
                let numbers = match values {
                    Values::Listed(list) => Some(Intervals::new(list.iter().copied())),
                    Values::Set(name) => table.set(name).and_then(|set| set.elements.clone()),
                };
                let Some(numbers) = numbers else {
                    understood = false;
                    telling = telling.or(Some(index));
                    conditions_that_tell += 2;
                    continue;
                };
                let (held, others) = match negated {
                    false => (known.and(&numbers), known.without(&numbers)),
                    true => (known.without(&numbers), known.and(&numbers)),
                };
                if held.is_empty() {
                    return none(index);
                }
                if others.is_empty() {
                    continue;
                }
                telling = telling.or(Some(index));
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
    Split {
        matching: Some(matching),
        rest,
        telling,
    }
}

/// The same connections, whose field has other numbers now.
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
            .find(|known| (known.reached, known.mapped, known.end) == (state.reached, state.mapped, state.end));
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
    if one.connections != other.connections
        || (one.reached, one.mapped, one.end) != (other.reached, other.mapped, other.end)
    {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::name::Name;
    use crate::rules::rule::interface;
    use crate::rules::set::Set;
    use crate::rules::{
        examples::base, examples::chain, examples::not, examples::ports, examples::rule, examples::table,
        examples::to_port,
    };

    const REDIRECT: &str = "PROXY_INIT_REDIRECT";

    fn name(text: &str) -> Name {
        Name::from(text)
    }

    fn jump(to: &str) -> Action {
        Action::Jump(name(to))
    }

    fn goto(to: &str) -> Action {
        Action::Goto(name(to))
    }

    fn redirect(port: u16) -> Action {
        Action::Redirect(Some((port, port)))
    }

    fn unknown() -> Action {
        Action::Unknown("queue to 1".to_owned())
    }

    fn fixed(holds: bool) -> Condition {
        let text = "ct state new".to_owned();
        Condition::Fixed { text, holds }
    }

    fn strange() -> Condition {
        Condition::Unknown("-m recent".to_owned())
    }

    fn any(action: Action) -> Rule {
        rule([], action)
    }

    fn prerouting(rules: Vec<Rule>) -> Chain {
        base("PREROUTING", Kind::Nat, Hook::Prerouting, -100, rules)
    }

    /// proxy-init's own chain, which redirects everything.
    fn redirecting() -> Chain {
        chain(REDIRECT, vec![any(redirect(4143))])
    }

    /// The nat table with these rules before the jump to proxy-init's chain, and other chains.
    fn nat(before: Vec<Rule>, others: Vec<Chain>) -> Table {
        let mut rules = before;
        rules.push(any(jump(REDIRECT)));
        let mut chains = vec![prerouting(rules), redirecting()];
        chains.extend(others);
        table("ip nat", chains)
    }

    /// A filter table whose chain at the hook runs before nat.
    fn mangle(name: &str, rules: Vec<Rule>) -> Table {
        table(name, vec![base("early", Kind::Filter, Hook::Prerouting, -150, rules)])
    }

    /// The decisions about connections as text, one a line: `TABLE CHAIN RULE: FATE of CONNECTIONS`, with `perhaps` where
    /// it isn't certain, and `behind` where they have been in proxy-init's chain. Before them, `reached` if any have.
    fn of(tables: Vec<Table>, direction: Direction, connections: Connections) -> Vec<String> {
        let found = Found {
            tables,
            not_known: vec![],
        };
        let goal = Goal {
            subsystem: Subsystem::NfTables,
            family: TableFamily::Ip(Family::V4),
            table: "nat",
            chain: direction.chain(),
        };
        let walk = walk(&found, Family::V4, direction, goal, connections);
        let decision = |decision: &Decision<'_>| {
            let at = decision.at;
            let rule = match at.rule {
                Some(_) => at.line().unwrap().number().unwrap(),
                None => 0,
            };
            format!(
                "{} {} {}: {:?}{}{} of {}",
                at.table,
                at.chain.name,
                if rule == 0 {
                    "policy".to_owned()
                } else {
                    rule.to_string()
                },
                decision.fate,
                if decision.certain { "" } else { " perhaps" },
                if decision.behind_ours { " behind" } else { "" },
                decision.connections
            )
        };
        let mut said: Vec<_> = walk.reached.then(|| "reached".to_owned()).into_iter().collect();
        said.extend(walk.decisions.iter().map(decision));
        said
    }

    fn inbound(tables: Vec<Table>) -> Vec<String> {
        of(
            tables,
            Direction::Inbound,
            Connections::all(Family::V4, Direction::Inbound),
        )
    }

    /// What is said of a nat table in which everything gets to proxy-init's chain.
    const ALL_WELL: [&str; 2] = [
        "reached",
        "ip nat PROXY_INIT_REDIRECT 1: Mapped behind of all TCP connections",
    ];

    /// What is said if all connections but those to port 80 get there, and this about those.
    fn but_for_port_80(about: &str) -> Vec<String> {
        let mut said = vec!["reached".to_owned()];
        let redirected = "ip nat PROXY_INIT_REDIRECT 1: Mapped behind of to port 0-79,81-65535".to_owned();
        // A connection that passes by is known to only at the end.
        match about.contains("Accepted") {
            true => said.extend([redirected, about.to_owned()]),
            false => said.extend([about.to_owned(), redirected]),
        }
        said
    }

    #[test]
    fn connections_say_what_sets_them_apart() {
        let all = |direction| Connections::all(Family::V4, direction);
        let set = |list: &[(u128, u128)]| Intervals::new(list.iter().copied());
        let lo = Intervals::one(interface(b"lo"));
        let ten = 0x0a00_0000;
        let every_second: Vec<_> = (1..=9).map(|number| (number * 2, number * 2)).collect();
        for (field, numbers, want) in [
            (
                Field::DestinationPort,
                set(&[(80, 80), (8000, 8100)]),
                "to port 80,8000-8100",
            ),
            (Field::SourcePort, set(&[(1, 2)]), "from port 1-2"),
            (
                Field::Source(Family::V4),
                set(&[(ten, ten + 0xff_ffff)]),
                "from 10.0.0.0/8",
            ),
            (
                Field::Destination(Family::V4),
                set(&[(ten, ten + 1), (ten + 3, ten + 4)]),
                "to 10.0.0.0/31,10.0.0.3-10.0.0.4",
            ),
            (Field::Uid, set(&[(2102, 2102)]), "of user 2102"),
            (Field::Gid, set(&[(0, 7)]), "of group 0-7"),
            (Field::OutInterface, lo.clone(), "out by \"lo\""),
            (
                Field::DestinationPort,
                set(&every_second[..8]),
                "to port 2,4,6,8,10,12,14,16",
            ),
            (
                Field::DestinationPort,
                set(&every_second),
                "to port 2,4,6,8,10,12,14,16,...",
            ),
            // What these connections don't have, or have anyway.
            (Field::InInterface, set(&[(0, u128::MAX)]), "all TCP connections"),
            (Field::Destination(Family::V6), set(&[(1, 1)]), "all TCP connections"),
            (Field::Protocol, set(&[(6, 6)]), "all TCP connections"),
        ] {
            assert_eq!(all(Direction::Outbound).with(field, &numbers).to_string(), want);
        }
        let to_80 = all(Direction::Inbound).with(Field::DestinationPort, &Intervals::one(80));
        assert_eq!(
            to_80.with(Field::InInterface, &lo).to_string(),
            "to port 80 in by \"lo\""
        );
        assert_eq!(to_80.with(Field::DestinationPort, &Intervals::one(80)), to_80);
        let inbound = all(Direction::Inbound);
        assert_eq!(
            inbound.with(Field::Uid, &Intervals::one(7)),
            inbound,
            "no user sends them"
        );
        let v6 = Connections::all(Family::V6, Direction::Inbound);
        let from = v6.with(Field::Source(Family::V6), &Intervals::one(1));
        assert_eq!(from.to_string(), "from ::1");
    }

    #[test]
    fn nothing_that_decides_leaves_the_way_free() {
        assert_eq!(inbound(vec![nat(vec![], vec![])]), ALL_WELL);
        let to = |port: u16| Condition::is(Field::DestinationPort, u128::from(port));
        let count = Action::Continue(None);
        for (what, before, others) in [
            ("a counter", vec![any(count.clone())], vec![]),
            ("a log", vec![any(Action::Continue(Some("log".to_owned())))], vec![]),
            ("an empty chain", vec![any(jump("empty"))], vec![chain("empty", vec![])]),
            (
                "a return in a chain",
                vec![any(jump("back"))],
                vec![chain("back", vec![any(Action::Return)])],
            ),
            (
                "nested jumps",
                vec![any(jump("one"))],
                vec![
                    chain("one", vec![any(jump("two")), any(Action::Return)]),
                    chain("two", vec![any(jump("three"))]),
                    chain("three", vec![any(Action::Return), any(Action::Drop)]),
                ],
            ),
            (
                "a goto within a jump",
                vec![any(jump("one"))],
                vec![
                    chain("one", vec![any(goto("two")), any(Action::Drop)]),
                    chain("two", vec![any(count.clone())]),
                ],
            ),
            (
                "UDP only",
                vec![rule([Condition::is(Field::Protocol, 17)], Action::Drop)],
                vec![],
            ),
            (
                "no TCP",
                vec![rule([not(Condition::is(Field::Protocol, TCP))], Action::Drop)],
                vec![],
            ),
            (
                "IPv6 only",
                vec![rule([Condition::is(Field::Family, 10)], Action::Drop)],
                vec![],
            ),
            (
                "an IPv6 address",
                vec![rule([not(Condition::is(Field::Source(Family::V6), 1))], Action::Drop)],
                vec![],
            ),
            (
                "a user, which inbound packets have none of",
                vec![rule([Condition::is(Field::Uid, 7)], Action::Drop)],
                vec![],
            ),
            (
                "not a user",
                vec![rule([not(Condition::is(Field::Uid, 7))], Action::Drop)],
                vec![],
            ),
            (
                "a way out by a device",
                vec![rule(
                    [Condition::is(Field::OutInterface, interface(b"lo"))],
                    Action::Drop,
                )],
                vec![],
            ),
            ("no new connection", vec![rule([fixed(false)], Action::Drop)], vec![]),
            (
                "no new connection and something unknown",
                vec![rule([strange(), fixed(false)], Action::Drop)],
                vec![],
            ),
            ("two ports at once", vec![rule([to(80), to(81)], Action::Drop)], vec![]),
            (
                "an unknown condition on a counter",
                vec![rule([strange()], count)],
                vec![],
            ),
        ] {
            assert_eq!(inbound(vec![nat(before, others)]), ALL_WELL, "{what}");
        }
    }

    #[test]
    fn a_rule_before_the_jump_takes_its_connections() {
        let first = "ip nat PREROUTING 1";
        for (action, others, want) in [
            (Action::Accept, vec![], "Accepted"),
            (Action::Return, vec![], "Accepted"),
            (goto("empty"), vec![chain("empty", vec![])], "Accepted"),
            (Action::Drop, vec![], "Dropped"),
            (redirect(1), vec![], "Mapped"),
            (Action::Nat("dnat to 10.0.0.1".to_owned()), vec![], "Mapped"),
        ] {
            let got = inbound(vec![nat(vec![rule([to_port(80)], action)], others)]);
            assert_eq!(got, but_for_port_80(&format!("{first}: {want} of to port 80")));
        }
    }

    #[test]
    fn a_rule_in_a_chain_before_the_jump_takes_its_connections() {
        for (way, action, want) in [
            (jump("sub"), Action::Accept, "ip nat sub 1: Accepted of to port 80"),
            (jump("sub"), Action::Drop, "ip nat sub 1: Dropped of to port 80"),
            (jump("sub"), goto("end"), ""),
        ] {
            let others = vec![
                chain("sub", vec![rule([to_port(80)], action), any(Action::Return)]),
                chain("end", vec![any(Action::Return)]),
            ];
            let got = inbound(vec![nat(vec![any(way)], others)]);
            match want {
                // The goto ends in the chain that jumped before.
                "" => assert_eq!(got[0], "reached"),
                want => assert_eq!(got, but_for_port_80(want)),
            }
        }
        // A goto from the base chain doesn't come back, wherever its target ends.
        let others = vec![chain("sub", vec![rule([to_port(80)], Action::Drop)])];
        assert_eq!(
            inbound(vec![nat(vec![any(goto("sub"))], others)]),
            [
                "ip nat sub 1: Dropped of to port 80",
                "ip nat PREROUTING 1: Accepted of to port 0-79,81-65535",
            ]
        );
    }

    #[test]
    fn a_rule_behind_the_jump_is_too_late() {
        let mut table = nat(vec![], vec![]);
        table.chains[1].rules = vec![rule([to_port(80)], Action::Return), any(redirect(4143))];
        table.chains[0].rules.push(rule([to_port(80)], redirect(1)));
        assert_eq!(
            inbound(vec![table]),
            [
                "reached",
                "ip nat PROXY_INIT_REDIRECT 2: Mapped behind of to port 0-79,81-65535",
                "ip nat PROXY_INIT_REDIRECT 1: Accepted behind of to port 80",
                "ip nat PREROUTING 2: Mapped behind of to port 80",
            ]
        );
    }

    #[test]
    fn what_one_rule_has_taken_no_later_one_takes() {
        for first in [Action::Return, Action::Accept] {
            let before = vec![
                rule([to_port(80)], first),
                rule([to_port(80)], redirect(1)),
                rule([to_port(80)], Action::Drop),
            ];
            assert_eq!(
                inbound(vec![nat(before, vec![])]),
                but_for_port_80("ip nat PREROUTING 1: Accepted of to port 80")
            );
        }
    }

    #[test]
    fn conditions_pick_their_connections() {
        let ten = || Condition::is(Field::Source(Family::V4), (0x0a00_0000, 0x0aff_ffff));
        let unlisted = Condition::is(Field::SourcePort, Values::Set(name("missing")));
        let dropped = |conditions: Vec<Condition>| {
            let drop = Rule {
                conditions,
                ..any(Action::Drop)
            };
            let got = inbound(vec![nat(vec![drop], vec![])]);
            let (of, rest) = (&got[1], &got[2..]);
            let of = of.strip_prefix("ip nat PREROUTING 1: Dropped").unwrap().to_owned();
            let prefix = "ip nat PROXY_INIT_REDIRECT 1: Mapped ";
            let rest: Vec<_> = rest
                .iter()
                .map(|line| line.strip_prefix(prefix).unwrap().replace("behind of ", ""))
                .collect();
            (of, rest)
        };
        for (conditions, of, rest) in [
            (vec![not(to_port(80))], " of to port 0-79,81-65535", "to port 80"),
            (
                vec![to_port(80), fixed(true)],
                " of to port 80",
                "to port 0-79,81-65535",
            ),
            (
                vec![Condition::is(Field::Protocol, TCP), to_port(80)],
                " of to port 80",
                "to port 0-79,81-65535",
            ),
            // Two tell them apart: the others can't be said in one set, so they are said to be all.
            (
                vec![to_port(80), ten()],
                " of from 10.0.0.0/8 to port 80",
                "all TCP connections",
            ),
            (
                vec![strange()],
                " perhaps of all TCP connections",
                "perhaps all TCP connections",
            ),
            (
                vec![strange(), to_port(80), ten()],
                " perhaps of from 10.0.0.0/8 to port 80",
                "perhaps all TCP connections",
            ),
            (
                vec![unlisted, to_port(80), ten()],
                " perhaps of from 10.0.0.0/8 to port 80",
                "perhaps all TCP connections",
            ),
            (
                vec![strange(), to_port(80)],
                " perhaps of to port 80",
                "perhaps all TCP connections",
            ),
            (
                vec![to_port(80), strange()],
                " perhaps of to port 80",
                "perhaps all TCP connections",
            ),
        ] {
            let case = format!("{conditions:?}");
            assert_eq!(dropped(conditions), (of.to_owned(), vec![rest.to_owned()]), "{case}");
        }
    }

    #[test]
    fn sets_are_looked_up_in_their_table() {
        let in_set = |set: &str| Condition::is(Field::DestinationPort, Values::Set(name(set)));
        let with_sets = |condition| {
            let mut table = nat(vec![rule([condition], Action::Drop)], vec![]);
            table.sets = vec![
                ports("web", &[(80, 80)]),
                ports("empty", &[]),
                Set {
                    elements: None,
                    ..ports("several-fields", &[])
                },
            ];
            inbound(vec![table])
        };
        assert_eq!(
            with_sets(in_set("web")),
            but_for_port_80("ip nat PREROUTING 1: Dropped of to port 80")
        );
        assert_eq!(with_sets(in_set("empty")), ALL_WELL);
        assert_eq!(
            with_sets(not(in_set("empty"))),
            ["ip nat PREROUTING 1: Dropped of all TCP connections"]
        );
        for unknown in ["several-fields", "missing"] {
            assert_eq!(
                with_sets(in_set(unknown)),
                [
                    "reached",
                    "ip nat PREROUTING 1: Dropped perhaps of all TCP connections",
                    "ip nat PROXY_INIT_REDIRECT 1: Mapped perhaps behind of all TCP connections",
                ],
                "{unknown}"
            );
        }
    }

    #[test]
    fn a_verdict_map_takes_what_it_lists() {
        let map = |field, verdicts: &[(u128, Action)]| {
            let mut table = nat(
                vec![any(Action::Map(field, name("verdicts")))],
                vec![chain("sub", vec![])],
            );
            table.sets = vec![Set {
                verdicts: verdicts
                    .iter()
                    .map(|(number, action)| (Intervals::one(*number), action.clone()))
                    .collect(),
                ..ports("verdicts", &[])
            }];
            inbound(vec![table])
        };
        let port = Field::DestinationPort;
        let drop_80 = but_for_port_80("ip nat PREROUTING 1: Dropped of to port 80");
        assert_eq!(map(port, &[(80, Action::Drop)]), drop_80);
        assert_eq!(
            map(port, &[(80, Action::Drop), (70_000, Action::Accept)]),
            drop_80,
            "no packet has such a port"
        );
        assert_eq!(
            map(port, &[(80, goto("sub")), (443, Action::Accept)]),
            [
                "reached",
                "ip nat PROXY_INIT_REDIRECT 1: Mapped behind of to port 0-79,81-442,444-65535",
                "ip nat PREROUTING 1: Accepted of to port 80",
                "ip nat PREROUTING 1: Accepted of to port 443",
            ]
        );
        assert_eq!(map(port, &[]), ALL_WELL);
        assert_eq!(map(Field::Uid, &[(7, Action::Drop)]), ALL_WELL, "no user sends them");
        assert_eq!(
            map(Field::Protocol, &[(TCP, Action::Drop)]),
            ["ip nat PREROUTING 1: Dropped of all TCP connections"]
        );
        assert_eq!(
            inbound(vec![nat(vec![any(Action::Map(port, name("missing")))], vec![])]),
            [
                "reached",
                "ip nat PREROUTING 1: Unknown perhaps of all TCP connections",
                ALL_WELL[1]
            ]
        );
    }

    #[test]
    fn what_is_not_understood_is_not_certain_nor_what_comes_behind_it() {
        let after = vec![rule([to_port(80)], unknown()), rule([to_port(80)], Action::Drop)];
        assert_eq!(
            inbound(vec![nat(after, vec![])]),
            [
                "reached",
                "ip nat PREROUTING 1: Unknown perhaps of to port 80",
                "ip nat PREROUTING 2: Dropped perhaps of to port 80",
                "ip nat PROXY_INIT_REDIRECT 1: Mapped behind of to port 0-79,81-65535",
            ]
        );
        let before = vec![any(jump("missing"))];
        assert_eq!(
            inbound(vec![nat(before, vec![])]),
            [
                "reached",
                "ip nat PREROUTING 1: Unknown perhaps of all TCP connections",
                ALL_WELL[1]
            ]
        );
    }

    #[test]
    fn an_accept_ends_only_its_own_base_chain() {
        let accept = mangle("ip mangle", vec![any(Action::Accept), any(Action::Drop)]);
        assert_eq!(inbound(vec![accept, nat(vec![], vec![])]), ALL_WELL);
    }

    #[test]
    fn a_drop_before_ends_everything_whatever_table_it_is_in() {
        for name in ["ip mangle", "inet mine", "legacy ip mangle"] {
            let dropping = mangle(name, vec![rule([to_port(80)], Action::Drop)]);
            assert_eq!(
                inbound(vec![dropping, nat(vec![], vec![])]),
                but_for_port_80(&format!("{name} early 1: Dropped of to port 80"))
            );
        }
        let other_family = mangle("ip6 mangle", vec![any(Action::Drop)]);
        let dormant = Table {
            dormant: true,
            ..mangle("ip mangle", vec![any(Action::Drop)])
        };
        let output = base("out", Kind::Filter, Hook::Output, -150, vec![any(Action::Drop)]);
        let other_hook = table("inet mine", vec![output]);
        assert_eq!(
            inbound(vec![other_family, dormant, other_hook, nat(vec![], vec![])]),
            ALL_WELL
        );
    }

    #[test]
    fn ingress_comes_before_prerouting() {
        let at_ingress = base(
            "edge",
            Kind::Filter,
            Hook::Ingress,
            500,
            vec![rule([to_port(80)], Action::Drop)],
        );
        assert_eq!(
            inbound(vec![nat(vec![], vec![]), table("netdev edge", vec![at_ingress])]),
            but_for_port_80("netdev edge edge 1: Dropped of to port 80")
        );
    }

    #[test]
    fn a_policy_drops_what_gets_to_the_end() {
        let with_policy_drop = |mut table: Table| {
            table.chains[0].base.as_mut().unwrap().policy = Policy::Drop;
            table
        };
        let accept_80 = || mangle("ip mangle", vec![rule([to_port(80)], Action::Accept)]);
        assert_eq!(
            inbound(vec![with_policy_drop(accept_80()), nat(vec![], vec![])]),
            [
                "reached",
                "ip mangle early policy: Dropped of to port 0-79,81-65535",
                "ip nat PROXY_INIT_REDIRECT 1: Mapped behind of to port 80",
            ]
        );
        let mut bypassing = nat(vec![], vec![]);
        bypassing.chains[1].rules.insert(0, rule([to_port(80)], Action::Return));
        assert_eq!(
            inbound(vec![with_policy_drop(bypassing)]),
            [
                "reached",
                "ip nat PROXY_INIT_REDIRECT 2: Mapped behind of to port 0-79,81-65535",
                "ip nat PROXY_INIT_REDIRECT 1: Accepted behind of to port 80",
                "ip nat PREROUTING policy: Dropped behind of to port 80",
            ]
        );
    }

    #[test]
    fn once_mapped_no_nat_chain_is_asked_but_filter_chains_are() {
        let later = |kind| {
            let rules = vec![any(Action::Drop)];
            table("inet later", vec![base("late", kind, Hook::Prerouting, 10, rules)])
        };
        assert_eq!(inbound(vec![nat(vec![], vec![]), later(Kind::Nat)]), ALL_WELL);
        assert_eq!(
            inbound(vec![nat(vec![], vec![]), later(Kind::Filter)]),
            [
                ALL_WELL[0],
                ALL_WELL[1],
                "inet later late 1: Dropped behind of all TCP connections"
            ]
        );
        // An earlier nat chain has mapped them: proxy-init's isn't asked.
        let earlier = base("dstnat", Kind::Nat, Hook::Prerouting, -110, vec![any(redirect(1))]);
        assert_eq!(
            inbound(vec![nat(vec![], vec![]), table("ip mine", vec![earlier])]),
            ["ip mine dstnat 1: Mapped of all TCP connections"]
        );
    }

    #[test]
    fn what_is_not_tracked_passes_no_nat_chain() {
        let raw = mangle(
            "ip raw",
            vec![
                rule([to_port(80)], Action::Untrack),
                rule([to_port(80)], Action::Accept),
            ],
        );
        assert_eq!(
            inbound(vec![raw, nat(vec![], vec![])]),
            but_for_port_80("ip raw early 1: Untracked of to port 80")
        );
    }

    #[test]
    fn between_tables_of_equal_priority_the_other_is_assumed_to_run_first() {
        let other = || {
            let rules = vec![rule([to_port(80)], redirect(1))];
            table(
                "ip mine",
                vec![base("dstnat", Kind::Nat, Hook::Prerouting, -100, rules)],
            )
        };
        let last = || {
            let rules = vec![any(redirect(2))];
            table("ip last", vec![base("dstnat", Kind::Nat, Hook::Prerouting, -99, rules)])
        };
        let want = but_for_port_80("ip mine dstnat 1: Mapped perhaps of to port 80");
        // Whichever table was made first.
        assert_eq!(inbound(vec![other(), nat(vec![], vec![]), last()]), want);
        assert_eq!(inbound(vec![last(), nat(vec![], vec![]), other()]), want);
        assert_eq!(inbound(vec![nat(vec![], vec![]), last(), other()]), want);
        // A chain named like the one that holds the jump is another one in another table.
        let namesake = base("PREROUTING", Kind::Filter, Hook::Prerouting, -150, vec![]);
        let namesake = table("ip mangle", vec![namesake]);
        assert_eq!(inbound(vec![namesake, other(), nat(vec![], vec![])]), want);
        // A filter chain's priority isn't tied with a nat chain's.
        let rules = vec![rule([to_port(80)], Action::Drop)];
        let filter = table(
            "ip mine",
            vec![base("late", Kind::Filter, Hook::Prerouting, -99, rules)],
        );
        assert_eq!(
            inbound(vec![filter, nat(vec![], vec![])]),
            [ALL_WELL[0], ALL_WELL[1], "ip mine late 1: Dropped behind of to port 80"]
        );
    }

    #[test]
    fn what_a_tied_chain_leaves_alone_is_as_certain_as_before() {
        let rules = vec![rule([to_port(80)], Action::Return)];
        let tied = table(
            "ip mine",
            vec![base("dstnat", Kind::Nat, Hook::Prerouting, -100, rules)],
        );
        let before = vec![rule([to_port(443)], Action::Drop)];
        assert_eq!(
            inbound(vec![tied.clone(), nat(before.clone(), vec![])])[..2],
            ["reached", "ip nat PREROUTING 1: Dropped of to port 443"]
        );
        // What wasn't certain before isn't now.
        let doubt = mangle("ip mangle", vec![any(unknown())]);
        let got = inbound(vec![doubt, tied, nat(before, vec![])]);
        assert_eq!(
            got[..3],
            [
                "reached",
                "ip mangle early 1: Unknown perhaps of all TCP connections",
                "ip nat PREROUTING 1: Dropped perhaps of to port 443",
            ]
        );
    }

    #[test]
    fn outbound_connections_have_a_user_and_pass_output() {
        let rules = vec![
            rule([Condition::is(Field::Uid, 2102)], Action::Return),
            any(jump("PROXY_INIT_OUTPUT")),
        ];
        let output = table(
            "ip nat",
            vec![
                base("OUTPUT", Kind::Nat, Hook::Output, -100, rules),
                chain("PROXY_INIT_OUTPUT", vec![any(redirect(4140))]),
                prerouting(vec![any(Action::Drop)]),
            ],
        );
        assert_eq!(
            of(
                vec![output],
                Direction::Outbound,
                Connections::all(Family::V4, Direction::Outbound)
            ),
            [
                "reached",
                "ip nat PROXY_INIT_OUTPUT 1: Mapped behind of of user 0-2101,2103-4294967295",
                "ip nat OUTPUT 1: Accepted of of user 2102",
            ]
        );
    }

    #[test]
    fn a_single_connection_is_followed_too() {
        let one = Connections::all(Family::V4, Direction::Inbound).with(Field::DestinationPort, &Intervals::one(80));
        let got = |port| {
            let before = vec![rule([to_port(port)], Action::Accept)];
            of(vec![nat(before, vec![])], Direction::Inbound, one.clone())
        };
        assert_eq!(got(80), ["ip nat PREROUTING 1: Accepted of to port 80"]);
        assert_eq!(
            got(81),
            ["reached", "ip nat PROXY_INIT_REDIRECT 1: Mapped behind of to port 80"]
        );
    }

    #[test]
    fn without_a_way_to_the_goal_nothing_is_reached_and_nothing_decided() {
        assert!(inbound(vec![]).is_empty());
        let only_hooked = table("ip nat", vec![prerouting(vec![]), redirecting()]);
        assert!(inbound(vec![only_hooked]).is_empty());
        // A chain of the same name in another table isn't the goal.
        for name in ["ip mine", "inet nat", "legacy ip nat"] {
            let mut other = table("ip nat", vec![prerouting(vec![any(jump(REDIRECT))]), redirecting()]);
            let of_name = table(name, vec![]);
            other.name = of_name.name;
            other.family = of_name.family;
            other.subsystem = of_name.subsystem;
            assert_eq!(
                inbound(vec![other]),
                [format!("{name} PROXY_INIT_REDIRECT 1: Mapped of all TCP connections")]
            );
        }
    }

    #[test]
    fn deep_jumps_are_followed_and_loops_end() {
        let deep = |depth: usize| {
            let link = |at: usize| {
                let next = if at == depth {
                    REDIRECT.to_owned()
                } else {
                    format!("c{}", at + 1)
                };
                chain(&format!("c{at}"), vec![any(jump(&next))])
            };
            let mut chains = vec![prerouting(vec![any(jump("c1"))]), redirecting()];
            chains.extend((1..=depth).map(link));
            inbound(vec![table("ip nat", chains)])
        };
        // The kernel's own limit, and this one's.
        assert_eq!(deep(16), ALL_WELL);
        assert_eq!(deep(31), ALL_WELL);
        assert_eq!(deep(32), ["ip nat c32 1: Unknown perhaps of all TCP connections"]);

        let circle = vec![chain("a", vec![any(jump("b"))]), chain("b", vec![any(goto("a"))])];
        let got = inbound(vec![nat(vec![any(jump("a"))], circle)]);
        assert_eq!(got.len(), 3, "{got:?}");
        assert!(got[1].contains("Unknown perhaps"), "{got:?}");
    }

    /// Sixteen levels of chains that jump to the next four times each would be four thousand million ways.
    #[test]
    fn too_many_ways_are_not_understood() {
        let level = |at: usize| {
            let next = format!("c{}", at + 1);
            chain(&format!("c{at}"), vec![any(jump(&next)); 4])
        };
        let mut chains = vec![prerouting(vec![any(jump("c1"))]), redirecting()];
        chains.extend((1..16).map(level));
        chains.push(chain("c16", vec![rule([to_port(80)], Action::Return)]));
        let got = inbound(vec![table("ip nat", chains)]);
        assert!(got.iter().any(|line| line.contains("Unknown perhaps")), "{got:?}");
    }

    /// The ports of the connections that pass proxy-init's chain by, where each port has a rule of its own that accepts
    /// it, and how many decisions say so.
    fn accepted(ports: impl Iterator<Item = u16>) -> (usize, Vec<u128>) {
        let before = ports.map(|port| rule([to_port(port)], Action::Accept)).collect();
        let mut table = nat(before, vec![]);
        // Some more that nothing decides about, but that have been in proxy-init's chain.
        table.chains[1].rules.insert(0, rule([to_port(1001)], Action::Return));
        let found = Found {
            tables: vec![table],
            not_known: vec![],
        };
        let goal = Goal {
            subsystem: Subsystem::NfTables,
            family: TableFamily::Ip(Family::V4),
            table: "nat",
            chain: ChainName::ProxyInitRedirect,
        };
        let all = Connections::all(Family::V4, Direction::Inbound);
        let walk = walk(&found, Family::V4, Direction::Inbound, goal, all);
        let decisions = walk
            .decisions
            .iter()
            .filter(|decision| decision.fate == Fate::Accepted && !decision.behind_ours);
        let ports = decisions.clone().flat_map(|decision| {
            let ports = decision.connections.get(Field::DestinationPort).unwrap();
            ports
                .as_slice()
                .to_vec()
                .into_iter()
                .flat_map(|(first, last)| first..=last)
        });
        (decisions.clone().count(), ports.collect())
    }

    /// However many sets of connections there are, each connection that is taken is said to be.
    #[test]
    fn of_many_sets_no_connection_is_lost() {
        let even = |count: u16| (1..=count).map(|number| number * 2);
        let numbers = |count: u16| even(count).map(u128::from).collect::<Vec<_>>();
        assert_eq!(accepted(even(10)), (10, numbers(10)), "few are told apart");
        assert_eq!(accepted(even(40)), (1, numbers(40)), "many are not");
        assert_eq!(accepted(even(64)), (1, numbers(64)));
        assert_eq!(accepted(even(65)), (1, (2..=130).collect()), "nor those between them");
    }

    /// A field that would be in more than 64 pieces is kept whole: what is said is of more connections than it is true of.
    #[test]
    fn of_many_intervals_no_connection_is_lost() {
        let every_second = |count: u128| {
            let list = (1..=count).map(|port| (port * 2, port * 2)).collect();
            Condition::is(Field::DestinationPort, Values::Listed(list))
        };
        let redirected = |condition| {
            let got = inbound(vec![nat(vec![rule([condition], Action::Drop)], vec![])]);
            let rest = got[2]
                .strip_prefix("ip nat PROXY_INIT_REDIRECT 1: Mapped ")
                .unwrap()
                .replace("behind of ", "");
            (got[1].clone(), rest)
        };
        let certain = "ip nat PREROUTING 1: Dropped of to port 2,4,6,8,10,12,14,16,...".to_owned();
        let odd = "to port 0-1,3,5,7,9,11,13,15,...".to_owned();
        let all = "all TCP connections".to_owned();
        // 63 holes leave 64 pieces, 64 leave 65.
        assert_eq!(redirected(every_second(63)), (certain.clone(), odd));
        assert_eq!(redirected(every_second(64)), (certain, all.clone()));
        let perhaps = "ip nat PREROUTING 1: Dropped perhaps of all TCP connections".to_owned();
        assert_eq!(redirected(every_second(65)), (perhaps, format!("perhaps {all}")));
    }
}
