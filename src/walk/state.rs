//! Connections on their way, and which of them are taken together.

use crate::rules::family::Family;
use crate::rules::flags::{self, ACK, SYN_ACK};
use crate::rules::hook::{Hook, nat_priority};
use crate::rules::intervals::Intervals;
use crate::rules::rule::{Action, Field};
use crate::walk::connections::{self, Connections, client_ports};
use crate::walk::step::{Assumption, Fate, Outcome, Place, Question};

/// More sets of connections than this are not told apart; beyond this, results are over-approximated.
const MOST_STATES: usize = 16;

/// Where connection tracking sees packets: `NF_IP_PRI_CONNTRACK` in linux/netfilter_ipv4.h.
const TRACKING: i32 = -200;

/// A packet of connections on its way.
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
    /// The packet is the answer to their first one.
    pub(super) is_reply: bool,
    /// Connection tracking has seen the packet, or was told to leave it alone.
    pub(super) is_seen: bool,
    /// What connection tracking says of the packet once it has seen it.
    pub(super) tracked: flags::State,
    /// What fields were before they were translated. For the reply, that is undone.
    pub(super) before: Vec<(Field, Intervals)>,
    /// The port at which the first packet has arrived.
    pub(super) port: Option<Intervals>,
}

/// Whether a base chain runs before something that the kernel itself does at its hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Before,
    After,
    /// Their priorities are equal.
    NotKnown,
}

impl Side {
    fn of(chain: i32, other: i32) -> Self {
        match chain.cmp(&other) {
            std::cmp::Ordering::Less => Self::Before,
            std::cmp::Ordering::Equal => Self::NotKnown,
            std::cmp::Ordering::Greater => Self::After,
        }
    }
}

impl<'a> State<'a> {
    /// The first packet.
    pub(super) fn new(connections: Connections) -> Self {
        Self {
            connections,
            assumptions: Vec::new(),
            after_watched: false,
            is_settled: false,
            left: None,
            taken: None,
            is_reply: false,
            is_seen: false,
            tracked: flags::State::New,
            before: Vec::new(),
            port: None,
        }
    }

    /// The answer to a first packet that has arrived: it goes the other way, by the same device.
    pub(super) fn reply(self) -> Self {
        let tracked = match self.is_untracked() {
            // It belongs to nothing that connection tracking knows of (`tcp_new` in nf_conntrack_proto_tcp.c).
            true => flags::State::Invalid,
            false => flags::State::Established,
        };
        self.turned(&SYN_ACK, tracked)
    }

    /// Whether the packet after this answer, which isn't tracked, is taken for the first one of another connection
    /// (net.netfilter.nf_conntrack_tcp_loose).
    pub(super) fn is_taken_for_new(&self) -> bool {
        self.tracked == flags::State::Invalid
    }

    /// That packet.
    pub(super) fn next_reply(self) -> Self {
        let flags = connections::flags(&ACK);
        Self {
            connections: self.connections.replaced(Field::TcpFlags, flags),
            tracked: flags::State::New,
            is_settled: false,
            is_seen: false,
            ..self
        }
    }

    fn turned(self, flags: &[u8], tracked: flags::State) -> Self {
        let this = self.of_client();
        Self {
            port: this.connections.get(Field::DestinationPort).cloned(),
            tracked,
            connections: this
                .connections
                .turned()
                .replaced(Field::TcpFlags, connections::flags(flags)),
            before: this
                .before
                .into_iter()
                .map(|(field, numbers)| (field.turned(), numbers))
                .collect(),
            is_reply: true,
            is_settled: true,
            is_seen: false,
            left: None,
            ..this
        }
    }

    /// The same from ports that clients get, where the port isn't known.
    pub(super) fn of_client(mut self) -> Self {
        if let (Some(of_clients), _) = self.connections.split(Field::SourcePort, &client_ports()) {
            self.connections = of_clients;
        }
        self
    }

    pub(super) fn is_sent_elsewhere(&self) -> bool {
        matches!(self.taken, Some((_, Action::Nat(_))))
    }

    pub(super) fn is_redirected(&self) -> bool {
        matches!(self.taken, Some((_, Action::Redirect(_))))
    }

    pub(super) fn is_untracked(&self) -> bool {
        matches!(self.taken, Some((_, Action::Untrack)))
    }

    /// The packet whatever connection tracking says of it or, where it may be translated, whatever it is translated to.
    pub(super) fn anywhere(&self, is_translated: bool) -> Connections {
        let mut fields = vec![Field::State];
        if is_translated {
            fields.extend([Field::SourcePort, Field::DestinationPort]);
            fields.extend(Family::ALL.map(Field::Source));
            fields.extend(Family::ALL.map(Field::Destination));
        }
        let all = |packets: Connections, field: Field| packets.replaced(field, Intervals::up_to(field.largest()));
        fields.into_iter().fold(self.connections.clone(), all)
    }

    /// On which side of connection tracking a chain of this priority is.
    pub(super) fn tracking(&self, hook: Hook, priority: i32) -> Side {
        match hook {
            _ if self.is_seen => Side::After,
            Hook::Ingress => Side::Before,
            Hook::Prerouting | Hook::Output => Side::of(priority, TRACKING),
            _ => Side::After,
        }
    }

    /// Has the packet look as connection tracking has it: `seen`, or not yet.
    pub(super) fn look(&mut self, seen: bool) {
        let state = match seen {
            true => self.tracked,
            // `nft_ct_get_eval` in net/netfilter/nft_ct.c
            false => flags::State::Invalid,
        };
        let numbers = Intervals::one(state.number());
        if self.connections.get(Field::State) != Some(&numbers) {
            self.connections = self.connections.replaced(Field::State, numbers);
        }
    }

    /// On which side of the translation of replies a chain of this priority is; nothing if nothing is undone at the hook.
    /// Destinations are what sources were (`nf_nat_packet` in net/netfilter/nf_nat_core.c).
    pub(super) fn translation(&self, hook: Hook, priority: i32) -> Option<Side> {
        let is_undone = self.is_reply && self.before.iter().any(|(field, _)| is_translated_at(*field, hook));
        is_undone.then(|| Side::of(priority, nat_priority(hook)))
    }

    /// Undoes the translation of a reply.
    pub(super) fn translate_back(&mut self, hook: Hook) {
        if !self.is_reply {
            return;
        }
        let (undone, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.before)
            .into_iter()
            .partition(|(field, _)| is_translated_at(*field, hook));
        for (field, numbers) in undone {
            self.connections = self.connections.replaced(field, numbers);
        }
        self.before = rest;
    }

    /// What has become of them here.
    pub(super) fn outcome(&self, fate: Fate, at: Option<Place<'a>>) -> Outcome<'a> {
        Outcome {
            // Those of a reply are told as they set out.
            connections: match self.is_reply {
                true => self.connections.turned(),
                false => self.connections.clone(),
            },
            fate,
            at,
            action: self.taken.map(|(_, action)| action),
            assumptions: self.assumptions.clone(),
            after_watched: self.after_watched,
            is_reply: self.is_reply,
            port: match self.is_reply {
                true => self.port.clone(),
                false => self.connections.get(Field::DestinationPort).cloned(),
            },
        }
    }

    /// What packets that get to the same place must have in common to be told as one.
    fn kind(&self) -> impl PartialEq + use<'a> {
        let action = self.taken.map(|(_, action)| action);
        let tracking = (self.is_reply, self.is_seen, self.tracked);
        (self.after_watched, self.is_settled, tracking, action)
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

    /// Adds what other connections were before they were translated.
    fn add_before(&mut self, other: &Self) {
        for (field, numbers) in &mut self.before {
            if let Some((_, others)) = other.before.iter().find(|(known, _)| known == field) {
                let all = numbers.as_slice().iter().chain(others.as_slice());
                *numbers = Intervals::new(all.copied());
            }
        }
    }
}

/// Whether a reply's field is translated at a hook: sources where the packet leaves a host's routing, destinations where it
/// comes to it.
fn is_translated_at(field: Field, hook: Hook) -> bool {
    match field {
        Field::Source(_) | Field::SourcePort => matches!(hook, Hook::Postrouting | Hook::Input),
        _ => matches!(hook, Hook::Prerouting | Hook::Output),
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
            state.add_before(&known);
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
                known.add_before(&state);
            }
            None => few.push(state),
        }
    }
    few
}
