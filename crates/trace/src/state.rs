//! Connections on their way, and which of them are taken together.

use std::cmp::Ordering;
use std::rc::Rc;

use crate::connections::{Connections, DISCOVERY_HOPS, client_ports, few_numbers};
use crate::doubt::Doubt;
use crate::step::{Leg, Outcome, Place, Treatment};
use ruleset::flags::{ACK, CtState, RESET, SYN_ACK, Tracked};
use ruleset::{Action, Bits, Family, Field, Hook, ICMP, ICMPV6, Intervals, Rejection, nat_priority};

/// The most sets of connections that are kept apart; beyond this, results are over-approximated.
pub(super) const MOST_STATES: usize = 16;

/// The most sets that are compared with each other: 10,000 rules may each let others through.
const MOST_COMPARED: usize = 64;

/// The first question of every walk: from which set connections are that were merged from too many.
pub(super) const OF_MANY: usize = 0;

/// Where connection tracking sees packets: `NF_IP_PRI_CONNTRACK` in linux/netfilter_ipv4.h.
const TRACKING: i32 = -200;

/// The users and the groups of a socket.
pub(super) type Owner = (Intervals, Intervals);

/// A packet of connections on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct State<'a> {
    pub(super) connections: Connections,
    /// The certainty that they get here.
    pub(super) doubt: Doubt,
    /// They have been in the watched chain.
    pub(super) after_watched: bool,
    /// Their translation is settled: no nat chain is asked any more.
    pub(super) is_settled: bool,
    /// The rule that last ended a chain for them.
    pub(super) left: Option<Place<'a>>,
    /// The rule that has translated them, and its action; without an action, it has exempted them from connection
    /// tracking.
    pub(super) taken: Option<(Place<'a>, Option<&'a Action>)>,
    pub(super) packet: Leg,
    /// Connection tracking has seen the packet, or was told to leave it alone.
    pub(super) is_seen: bool,
    pub(super) is_tracked: bool,
    /// The packet's state once connection tracking has seen it.
    pub(super) tracked: CtState,
    /// True if the connections' source and destination were translated to others; none: not known.
    pub(super) has_nat: [Option<bool>; 2],
    /// The packet's socket is the server's.
    pub(super) is_servers: bool,
    /// The part that few rules change, so copies of a state share it.
    pub(super) flow: Rc<Flow>,
}

/// The known facts about connections beside their packet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Flow {
    /// The connections' fields before their translation, and the fields to which they were translated.
    pub(super) original: Vec<(Field, Intervals)>,
    pub(super) translated: Vec<(Field, Intervals)>,
    /// Fields of this packet that are still to be translated, as those of the first packet were, and their new numbers.
    pub(super) pending: Vec<(Field, Intervals)>,
    pub(super) mark: Intervals,
    /// The port at which the first packet has arrived.
    pub(super) port: Option<Intervals>,
    /// The owners of the sockets at both ends, as far as they are in this namespace.
    pub(super) client: Option<Owner>,
    pub(super) server: Option<Owner>,
    /// The devices on which the client's packets arrive, and by which they leave before they are routed again.
    pub(super) came_by: Intervals,
    pub(super) sent_by: Intervals,
    /// The devices by which this packet leaves once it has been routed.
    pub(super) via: Intervals,
}

/// The place in which a packet has the number at which a condition looks.
pub(super) struct Look<'s> {
    /// The field of the packet.
    pub(super) field: Field,
    /// None: the packet has no such number.
    pub(super) numbers: Option<&'s Intervals>,
    /// The packet's field has these numbers; false: it had them before its translation.
    pub(super) is_of_packet: bool,
}

impl<'a> State<'a> {
    /// The first packet, of a family whose connections are tracked or not.
    pub(super) fn new(connections: Connections, is_tracked: bool) -> Self {
        let via = connections.get(Field::OutInterface).cloned().unwrap_or_default();
        Self {
            connections,
            doubt: Doubt::NONE,
            after_watched: false,
            is_settled: !is_tracked,
            left: None,
            taken: None,
            packet: Leg::First,
            is_seen: false,
            is_tracked,
            tracked: if is_tracked { CtState::New } else { CtState::Invalid },
            has_nat: [Some(false); 2],
            is_servers: false,
            flow: Rc::new(Flow { mark: Intervals::one(0), via, ..Flow::default() }),
        }
    }

    /// A packet of neighbour discovery, which connection tracking leaves alone (`nf_conntrack_icmpv6_error` in
    /// net/netfilter/nf_conntrack_proto_icmpv6.c).
    pub(super) fn of_neighbours(connections: Connections, packet: Leg, is_tracked: bool) -> Self {
        Self {
            packet,
            is_settled: true,
            tracked: if is_tracked { CtState::Untracked } else { CtState::Invalid },
            ..Self::new(connections, is_tracked)
        }
    }

    /// Finds the numbers at which a condition on this field looks.
    pub(super) fn look_at(&self, field: Field) -> Look<'_> {
        let Some(of_client) = field.of_first_packet() else {
            return Look { field, numbers: self.connections.get(field), is_of_packet: true };
        };
        let field = if self.is_reply(self.tracked) { of_client.reversed() } else { of_client };
        let mut translated = self.flow.original.iter();
        let before = translated.find(|(known, _)| *known == of_client).map(|(_, numbers)| numbers);
        // What rejects a packet may have other things in its place.
        let is_of_packet = before.is_none() && self.packet != Leg::Rejection;
        // Only a packet with an entry has a connection's mark.
        let has_entry = self.connections.get(Field::ConnectionMark).is_some();
        let numbers = before.or_else(|| self.connections.get(field)).filter(|_| has_entry);
        Look { field, numbers, is_of_packet }
    }

    /// Returns true if a packet with this state is one of the way back. A packet that is taken for a connection's first one
    /// counts as original, whoever sends it.
    fn is_reply(&self, state: CtState) -> bool {
        let is_back = matches!(self.packet, Leg::Reply | Leg::Rejection);
        state.has_entry() && is_back && state != CtState::New
    }

    pub(super) fn flow_mut(&mut self) -> &mut Flow {
        Rc::make_mut(&mut self.flow)
    }

    /// Those whose field has one of these numbers, and all others: [`Connections::split`].
    pub(super) fn split(&self, field: Field, numbers: &Intervals) -> (Option<Self>, Option<Self>) {
        let (of_these, others) = self.connections.split(field, numbers);
        let with = |connections| Self { connections, ..self.clone() };
        (of_these.map(with), others.map(with))
    }

    /// The same packet, which leaves by these devices.
    pub(super) fn leave_by(mut self, via: Intervals) -> Self {
        self.flow_mut().via = via;
        self
    }

    /// The answer to a first packet that has arrived.
    pub(super) fn reply(self, keeps_mark: bool) -> Self {
        let tracked = match self.tracked {
            CtState::New => CtState::Established,
            // Connection tracking knows no connection to which it belongs (`tcp_new` in nf_conntrack_proto_tcp.c).
            _ => CtState::Invalid,
        };
        let mut this = self.with_client_ports();
        let port = this.connections.get(Field::DestinationPort).cloned();
        let flow = this.flow_mut();
        flow.pending = flow.original.iter().map(|(field, from)| (field.reversed(), from.clone())).collect();
        flow.port = port;
        let mark = this.connections.get(Field::Mark).filter(|_| keeps_mark).cloned();
        let mut reply = this.reversed(Leg::Reply, &SYN_ACK, tracked);
        if let Some(mark) = mark {
            reply.set(Field::Mark, mark);
        }
        reply
    }

    /// The reset or the ICMP message by which a rule rejects a first packet, which no socket sends. It belongs to the
    /// packet's connection, if connection tracking has seen that (`nf_ct_attach` in net/netfilter/core.c).
    pub(super) fn rejection(mut self, rejection: Rejection) -> Self {
        let is_attached = self.is_seen && self.tracked == CtState::New;
        let tracked = if is_attached { CtState::Related } else { CtState::Invalid };
        let flow = self.flow_mut();
        let translated = flow.original.iter().filter(|_| is_attached);
        flow.pending = translated.map(|(field, from)| (field.reversed(), from.clone())).collect();
        let mut this = self.reversed(Leg::Rejection, &RESET, tracked);
        this.drop_socket();
        if rejection != Rejection::Reset {
            // Where TCP has its ports and flags, it has its type, its code and a checksum.
            for field in [Field::SourcePort, Field::DestinationPort, Field::TcpFlags] {
                this.set(field, field.any());
            }
            // ICMPv6's type is "destination unreachable" (RFC 4443, section 3.1).
            let is_v6 = this.connections.get(Field::Source(Family::V6)).is_some();
            this.set(Field::Protocol, Intervals::one(if is_v6 { ICMPV6 } else { ICMP }));
            if is_v6 {
                this.connections = this.connections.with_field(Field::IcmpType, Intervals::one(1));
            }
        }
        this
    }

    /// The client's answer to a reply that has arrived.
    pub(super) fn ack(mut self, tracks_from_any: bool) -> Self {
        let tracked = match self.tracked {
            CtState::Established => CtState::Established,
            // Connection tracking doesn't know the connection, so it takes this for a first packet
            // (net.netfilter.nf_conntrack_tcp_loose).
            _ if self.is_untracked() && self.is_tracked && tracks_from_any => CtState::New,
            // It comes too early (`tcp_conntracks` in nf_conntrack_proto_tcp.c).
            _ => CtState::Invalid,
        };
        let flow = self.flow_mut();
        flow.pending = if tracked == CtState::Established { flow.translated.clone() } else { Vec::new() };
        Self { is_settled: tracked != CtState::New, ..self.reversed(Leg::Ack, &ACK, tracked) }
    }

    /// Returns true if connection tracking takes the server's next packet for a connection's first one, because it has
    /// tracked none before.
    pub(super) fn is_unknown_to_the_end(&self, tracks_from_any: bool) -> bool {
        tracks_from_any && self.is_tracked && self.is_untracked() && self.tracked == CtState::Untracked
    }

    pub(super) fn next_reply(self) -> Self {
        Self { is_settled: false, ..self.reversed(Leg::Reply, &ACK, CtState::New) }
    }

    /// The packet that answers one: it goes the other way.
    fn reversed(self, packet: Leg, flags: &[u8], tracked: CtState) -> Self {
        let connections = self.connections.reversed();
        let connections = connections.with_numbers(Field::TcpFlags, Intervals::each(flags.iter().copied()));
        let this = Self {
            connections: connections.with_numbers(Field::Mark, Intervals::one(0)),
            packet,
            tracked,
            is_settled: true,
            is_seen: false,
            ..self
        };
        let via = this.connections.get(Field::OutInterface).cloned().unwrap_or_default();
        this.leave_by(via)
    }

    /// Takes the packet off its socket, whose owners are remembered.
    pub(super) fn leave_socket(&mut self) {
        let ids = |field| self.connections.get(field).cloned();
        if let Some(owner) = ids(Field::Uid).zip(ids(Field::Gid)) {
            match self.packet {
                Leg::Reply => self.flow_mut().server = Some(owner),
                Leg::First | Leg::Ack => self.flow_mut().client = Some(owner),
                Leg::Rejection | Leg::Solicitation | Leg::Advertisement => {}
            }
        }
        self.drop_socket();
    }

    pub(super) fn drop_socket(&mut self) {
        self.connections = self.connections.without_fields(&[Field::Uid, Field::Gid]);
    }

    /// Gives the packet the server's socket, or the client's, if that is of this namespace.
    pub(super) fn join_socket(&mut self, is_servers: bool) {
        let owner = if is_servers { &self.flow.server } else { &self.flow.client };
        if let Some((uids, gids)) = owner.clone() {
            let connections = self.connections.with_field(Field::Uid, uids);
            self.connections = connections.with_field(Field::Gid, gids);
            self.is_servers = is_servers;
        }
    }

    /// Returns true if a field tells connections apart. The server's owner, and the marks of its connections, may not
    /// be known, but are the same for all of them.
    pub(super) fn are_told_apart_by(&self, field: Field) -> bool {
        match field {
            Field::Uid | Field::Gid => !self.is_servers,
            Field::State | Field::Mark | Field::ConnectionMark | Field::HopLimit | Field::PacketType => false,
            _ => true,
        }
    }

    pub(super) fn set(&mut self, field: Field, numbers: Intervals) {
        self.connections.set(field, numbers);
    }

    /// The same connections; where their source port isn't known, those from ports that clients get.
    pub(super) fn with_client_ports(mut self) -> Self {
        if let (Some(of_clients), _) = self.connections.split(Field::SourcePort, &client_ports()) {
            self.connections = of_clients;
        }
        self
    }

    pub(super) fn is_redirected(&self) -> bool {
        matches!(self.taken, Some((_, Some(Action::Redirect(_)))))
    }

    /// True if translating the connections has changed their source or destination; none: not known.
    pub(super) fn is_translated(&self) -> Option<bool> {
        match self.has_nat {
            [Some(true), _] | [_, Some(true)] => Some(true),
            [Some(false), Some(false)] => Some(false),
            _ => None,
        }
    }

    /// Returns true if connection tracking was told to leave the first packet alone.
    pub(super) fn is_untracked(&self) -> bool {
        matches!(self.taken, Some((_, None)))
    }

    /// The packet with any connection-tracking state and any marks and, where it may be translated, any addresses and
    /// ports.
    pub(super) fn with_unknown_fields(&self, is_translated: bool) -> Connections {
        let mut fields = vec![Field::State, Field::Mark];
        if is_translated {
            fields.extend([Field::SourcePort, Field::DestinationPort]);
            fields.extend(Family::ALL.map(Field::Source));
            fields.extend(Family::ALL.map(Field::Destination));
        }
        let marked = self.connections.with_field(Field::ConnectionMark, Field::ConnectionMark.any());
        fields.into_iter().fold(marked, |packets, field| packets.with_numbers(field, field.any()))
    }

    /// Says if a chain of this priority runs before or after connection tracking; where the priorities are equal, that
    /// isn't known.
    pub(super) fn order_to_tracking(&self, hook: Hook, priority: i32) -> Ordering {
        match hook {
            _ if self.is_seen => Ordering::Greater,
            Hook::Ingress => Ordering::Less,
            Hook::Prerouting | Hook::Output => priority.cmp(&TRACKING),
            _ => Ordering::Greater,
        }
    }

    /// Gives the packet the state that rules read once connection tracking has `seen` it, or before.
    pub(super) fn show_tracking(&mut self, seen: bool) {
        if let Some(mark) = self.connections.get(Field::ConnectionMark).cloned()
            && mark != self.flow.mark
        {
            self.flow_mut().mark = mark;
        }
        // `nft_ct_get_eval` in net/netfilter/nft_ct.c
        let state = if seen { self.tracked } else { CtState::Invalid };
        let is_reply = self.is_reply(state);
        let [snat, dnat] = if state.has_entry() { self.has_nat } else { [Some(false); 2] };
        let may_be = |known: Option<bool>, so: bool| known.is_none_or(|known| known == so);
        let numbers = Tracked::all().filter(|tracked| {
            let is_of_nat = may_be(snat, tracked.has_snat) && may_be(dnat, tracked.has_dnat);
            tracked.state == state && tracked.is_reply == is_reply && is_of_nat
        });
        let numbers = Intervals::each(numbers.map(Tracked::number));
        if self.connections.get(Field::State) == Some(&numbers) {
            return;
        }
        self.set(Field::State, numbers);
        self.connections = if state.has_entry() {
            self.connections.with_field(Field::ConnectionMark, self.flow.mark.clone())
        } else {
            self.connections.without_fields(&[Field::ConnectionMark])
        };
    }

    /// Returns true if the packet's state reads as invalid, so that it may still be exempted from connection tracking.
    pub(super) fn is_invalid(&self) -> bool {
        self.connections.get(Field::State) == Some(&Intervals::one(CtState::Invalid.bit().into()))
    }

    /// Says if a chain of this priority runs before or after the hook at which this packet is translated as the first
    /// one was; before it, if nothing is translated at this hook. A reply's destination is what the source was
    /// (`nf_nat_packet` in net/netfilter/nf_nat_core.c).
    pub(super) fn order_to_translation(&self, hook: Hook, priority: i32) -> Ordering {
        let mut pending = self.flow.pending.iter();
        if pending.any(|(field, _)| is_translated_at(*field, hook)) {
            priority.cmp(&nat_priority(hook))
        } else {
            Ordering::Less
        }
    }

    /// Translates the packet as the first one was, or back.
    pub(super) fn translate_pending(&mut self, hook: Hook) {
        if self.flow.pending.is_empty() {
            return;
        }
        let due = |(field, _): &(Field, Intervals)| is_translated_at(*field, hook);
        let pending = std::mem::take(&mut self.flow_mut().pending);
        let (due, rest): (Vec<_>, Vec<_>) = pending.into_iter().partition(due);
        for (field, numbers) in due {
            self.set(field, numbers);
        }
        self.flow_mut().pending = rest;
    }

    /// Translates fields of the first packet: those of its source, or those of its destination.
    pub(super) fn translate(&mut self, is_source: bool, fields: Vec<(Field, Intervals)>) {
        let mut has_changed = Some(false);
        for (field, to) in fields {
            let Some(from) = self.connections.get(field).cloned() else {
                continue;
            };
            let is_same = from == to && to.size() == 1;
            // Some of many may already be what they are translated to.
            has_changed = match (has_changed, from.without(&to).is_empty()) {
                (Some(true), _) | (_, false) => Some(true),
                (changed, true) if is_same => changed,
                _ => None,
            };
            self.set(field, to.clone());
            let flow = self.flow_mut();
            flow.original.push((field, from));
            flow.translated.push((field, to));
        }
        let [source, destination] = &mut self.has_nat;
        *(if is_source { source } else { destination }) = has_changed;
    }

    /// True if a neighbour ignores the packet for its hop limit; none: not known.
    pub(super) fn is_ignored(&self) -> Option<bool> {
        if !matches!(self.packet, Leg::Solicitation | Leg::Advertisement) {
            return Some(false);
        }
        let heeded = Intervals::one(DISCOVERY_HOPS);
        match self.connections.get(Field::HopLimit) {
            Some(hops) if !hops.meets(heeded.as_slice()) => Some(true),
            Some(hops) if *hops != heeded => None,
            _ => Some(false),
        }
    }

    /// Sets one of the marks; returns true if the rule goes on.
    pub(super) fn set_mark(&mut self, field: Field, to: Option<Bits>) -> bool {
        let numbers = match to {
            Some(bits) if bits.mask != 0 => match self.connections.get(bits.field).map(few_numbers) {
                Some(Some(known)) => Intervals::each(known.into_iter().map(|number| bits.of(number))),
                Some(None) => field.any(),
                // Such a rule ends where it reads something missing (`NFT_BREAK` in `nft_ct_get_eval`).
                None => return false,
            },
            Some(bits) => Intervals::one(bits.xor),
            None => field.any(),
        };
        self.set(field, numbers);
        true
    }

    /// The connections' outcome here.
    pub(super) fn outcome(&self, treatment: Treatment, at: Option<Place<'a>>) -> Outcome<'a> {
        Outcome {
            // A reply's connections are described as the client opened them.
            connections: match self.packet {
                Leg::Reply | Leg::Rejection => self.connections.reversed(),
                _ => self.connections.clone(),
            },
            treatment,
            at,
            action: self.taken.and_then(|(_, action)| action),
            doubt: self.doubt.clone(),
            after_watched: self.after_watched,
            packet: self.packet,
            port: match self.packet {
                Leg::First => self.connections.get(Field::DestinationPort).cloned(),
                _ => self.flow.port.clone(),
            },
        }
    }

    /// The facts that packets in the same place must share to be merged.
    fn kind(&self) -> impl PartialEq + use<'a> {
        let action = self.taken.map(|(_, action)| action);
        let tracking = (self.packet, self.is_seen, self.tracked, self.has_nat);
        (self.after_watched, self.is_settled, tracking, action)
    }

    /// Returns true if the rule by which they leave the watched chain is reported.
    pub(super) fn is_reported(&self) -> bool {
        self.after_watched && !self.is_settled
    }

    /// Merges with another state in the same place, if both are the same connections, or if the sets of both are one
    /// that is as certain. Returns true if it did.
    fn try_join(&mut self, other: &Self) -> bool {
        if self.kind() != other.kind() {
            return false;
        }
        let is_as_certain = self.doubt.is(&other.doubt);
        if self.connections == other.connections {
            self.doubt.add(&other.doubt);
        } else if self.is_reported() {
            return false;
        } else if (is_as_certain || self.doubt.is_none()) && self.connections.includes(&other.connections) {
            // It stays as it is.
        } else if (is_as_certain || other.doubt.is_none()) && other.connections.includes(&self.connections) {
            self.connections = other.connections.clone();
            self.doubt = other.doubt.clone();
        } else if is_as_certain
            && self.left == other.left
            && self.flow == other.flow
            && let Some(both) = self.connections.joined(&other.connections)
        {
            self.connections = both;
        } else {
            return false;
        }
        self.left = self.left.or(other.left);
        self.widen(other);
        true
    }

    /// Adds the known facts about other connections of the same kind, beside their packets.
    fn widen(&mut self, other: &Self) {
        let owners = |one: &Option<Owner>, other: &Option<Owner>| {
            let ((uids, gids), (other_uids, other_gids)) = (one.as_ref()?, other.as_ref()?);
            Some((uids.or(other_uids), gids.or(other_gids)))
        };
        if Rc::ptr_eq(&self.flow, &other.flow) {
            return;
        }
        let (flow, other) = (self.flow_mut(), &other.flow);
        widen_fields(&mut flow.original, &other.original);
        widen_fields(&mut flow.translated, &other.translated);
        widen_fields(&mut flow.pending, &other.pending);
        flow.mark = flow.mark.or(&other.mark);
        flow.came_by = flow.came_by.or(&other.came_by);
        flow.sent_by = flow.sent_by.or(&other.sent_by);
        flow.via = flow.via.or(&other.via);
        if let (Some(port), Some(other)) = (&mut flow.port, &other.port) {
            *port = port.or(other);
        }
        flow.client = owners(&flow.client, &other.client);
        flow.server = owners(&flow.server, &other.server);
    }
}

/// Adds the numbers that others have in the same fields.
fn widen_fields(fields: &mut [(Field, Intervals)], others: &[(Field, Intervals)]) {
    for (field, numbers) in fields {
        if let Some((_, others)) = others.iter().find(|(other, _)| other == field) {
            *numbers = numbers.or(others);
        }
    }
}

/// Returns true if a field is translated at a hook: sources where the packet leaves a host's routing, destinations
/// where it comes to it.
fn is_translated_at(field: Field, hook: Hook) -> bool {
    match field {
        Field::Source(_) | Field::SourcePort => matches!(hook, Hook::Postrouting | Hook::Input),
        _ => matches!(hook, Hook::Prerouting | Hook::Output),
    }
}

/// The same states in fewer sets: one that another includes is left out and, if there are too many, those of a kind are
/// merged.
pub(super) fn merge_states(mut states: Vec<State<'_>>) -> Vec<State<'_>> {
    if states.len() < 2 {
        return states;
    }
    // Those that were too many before need not be compared again.
    let were_many = |state: &State<'_>| state.doubt.questions.first() == Some(&OF_MANY);
    if states.len() > MOST_COMPARED && states.first().is_some_and(were_many) {
        return merge_kinds(states);
    }
    let mut merged: Vec<State<'_>> = Vec::with_capacity(states.len().min(MOST_COMPARED));
    let mut rest = states.drain(..);
    for mut state in rest.by_ref() {
        // A state that was merged with another may merge with a third.
        while let Some(index) = merged.iter_mut().position(|known| known.try_join(&state)) {
            state = merged.remove(index);
        }
        merged.push(state);
        if merged.len() > MOST_COMPARED {
            break;
        }
    }
    if merged.len() > MOST_STATES {
        merged = merge_kinds(merged.into_iter().chain(rest));
    }
    merged
}

/// Merges the states of each kind.
fn merge_kinds<'a>(states: impl IntoIterator<Item = State<'a>>) -> Vec<State<'a>> {
    let mut few: Vec<State<'a>> = Vec::new();
    for state in states {
        let Some(known) = few.iter_mut().find(|known| known.kind() == state.kind()) else {
            few.push(state);
            continue;
        };
        if !known.try_join(&state) {
            known.doubt = Doubt::NONE.denied(OF_MANY);
            known.connections.extend(&state.connections);
            known.widen(&state);
        }
    }
    few
}

#[cfg(test)]
mod tests {
    use super::*;
    use ruleset::Direction;

    /// All connections, which got where they are by these answers.
    fn all(doubt: &Doubt) -> State<'static> {
        State { doubt: doubt.clone(), ..State::new(Connections::all(Family::V4, Direction::Inbound), true) }
    }

    /// The same to this port.
    fn state(port: u128, doubt: &Doubt) -> State<'static> {
        let all = all(doubt);
        State { connections: all.connections.narrowed(Field::DestinationPort, &Intervals::one(port)), ..all }
    }

    /// The ports and the doubts of these outcomes.
    fn merged(states: &[State<'static>]) -> Vec<(Intervals, Doubt)> {
        let merged = merge_states(states.to_vec()).into_iter();
        merged.map(|state| (state.connections.get(Field::DestinationPort).unwrap().clone(), state.doubt)).collect()
    }

    fn ports(list: &[u128]) -> Intervals {
        Intervals::each(list.iter().copied())
    }

    fn is_same(one: &[(Intervals, Doubt)], other: &[(Intervals, &Doubt)]) -> bool {
        let mut pairs = one.iter().zip(other);
        one.len() == other.len() && pairs.all(|((one, doubt), (other, wanted))| one == other && doubt.is(wanted))
    }

    #[test]
    fn connections_that_others_include_as_certainly_are_one_with_them() {
        let (none, yes, no) = (&Doubt::NONE, &Doubt::NONE.affirmed(1), &Doubt::NONE.denied(1));
        let any = Field::DestinationPort.any();
        assert!(is_same(&merged(&[all(none), state(80, none)]), &[(any.clone(), none)]));
        assert!(is_same(&merged(&[state(80, yes), all(none)]), &[(any.clone(), none)]));
        assert!(is_same(&merged(&[state(80, yes), all(yes)]), &[(any.clone(), yes)]));
        // It isn't certain that all get here, or the rule that has let them out of the watched chain tells of them.
        assert!(is_same(&merged(&[all(yes), state(80, none)]), &[(any.clone(), yes), (ports(&[80]), none)]));
        assert!(is_same(&merged(&[all(yes), state(80, no)]), &[(any, yes), (ports(&[80]), no)]));
        let told = [all(none), state(80, none)].map(|state| State { after_watched: true, ..state });
        assert_eq!(merged(&told).len(), 2);
    }

    #[test]
    fn sets_that_differ_in_one_field_are_one() {
        let none = &Doubt::NONE;
        assert!(is_same(&merged(&[state(80, none), state(82, none)]), &[(ports(&[80, 82]), none)]));
        let two = all(none).connections.narrowed(Field::DestinationPort, &ports(&[82, 84]));
        let two = State { connections: two, ..all(none) };
        assert!(is_same(&merged(&[state(80, none), two]), &[(ports(&[80, 82, 84]), none)]));
        let yes = &none.affirmed(1);
        assert!(is_same(&merged(&[state(80, none), state(82, yes)]), &[(ports(&[80]), none), (ports(&[82]), yes)]));
        let mut other = state(82, none);
        other.set(Field::SourcePort, Intervals::one(7));
        assert_eq!(merged(&[state(80, none), other]).len(), 2, "in two fields");

        let mut marked = state(82, none);
        marked.flow_mut().mark = Intervals::one(7);
        assert_eq!(merged(&[state(80, none), marked]).len(), 2, "what is known of them differs");
    }

    #[test]
    fn the_same_connections_are_one() {
        let (none, yes, no) = (&Doubt::NONE, &Doubt::NONE.affirmed(1), &Doubt::NONE.denied(1));
        let of_80 = |doubts: &[&Doubt]| {
            let merged = merged(&doubts.iter().map(|doubt| state(80, doubt)).collect::<Vec<_>>());
            let [(_, doubt)] = merged.as_slice() else { panic!("{merged:?}") };
            doubt.clone()
        };
        // Whatever the answer is, they get here, or they get here anyway.
        assert!(of_80(&[yes, no]).is_none() && of_80(&[yes, none]).is_none() && of_80(&[none, yes]).is_none());
        assert!(of_80(&[&yes.affirmed(2), no, &yes.denied(2)]).is_none());
        assert!(of_80(&[&yes.affirmed(2), &yes.denied(2)]).is(yes));
        assert!(!of_80(&[yes, &none.denied(2)]).is_none());
        // Others of which something else has become.
        let settled = State { is_settled: true, ..state(80, no) };
        assert_eq!(merged(&[state(80, yes), settled]).len(), 2);
    }

    #[test]
    fn more_than_sixteen_sets_of_a_kind_are_one() {
        let doubt = |port: u128| Doubt::NONE.denied(port as usize);
        let states =
            |count: u128| -> Vec<State<'_>> { (1..=count).map(|port| state(2 * port, &doubt(port))).collect() };
        assert_eq!(merge_states(states(16)).len(), 16);
        assert!(merged(&states(17))[0].1.is(&Doubt::NONE.denied(OF_MANY)));
        let ports = |states| {
            let merged = merge_states(states);
            let [state] = merged.as_slice() else {
                panic!("not one state");
            };
            state.connections.get(Field::DestinationPort).cloned().unwrap()
        };
        assert_eq!(ports(states(17)), Intervals::new((1..=17).map(|port| (2 * port, 2 * port))));
        // Those of another kind stay apart.
        let mut two_kinds = states(16);
        two_kinds.push(State { after_watched: true, ..state(80, &Doubt::NONE) });
        assert_eq!(merge_states(two_kinds).len(), 2);
    }

    #[test]
    fn what_is_known_of_states_that_become_one_is_of_both() {
        let numbers = |list: &[u128]| Intervals::new(list.iter().map(|&number| (number, number)));
        let one = |number: u128, owner: Option<u128>| {
            let owner = owner.map(|id| (numbers(&[id]), numbers(&[id + 10])));
            let state = state(80, &Doubt::NONE);
            let flow = Flow {
                original: vec![(Field::DestinationPort, numbers(&[number]))],
                translated: vec![(Field::DestinationPort, numbers(&[number + 100]))],
                pending: vec![(Field::SourcePort, numbers(&[number])), (Field::DestinationPort, numbers(&[7]))],
                mark: numbers(&[number]),
                came_by: numbers(&[number + 2]),
                sent_by: numbers(&[number]),
                via: numbers(&[number + 1]),
                port: Some(numbers(&[number])),
                client: owner.clone(),
                server: owner,
            };
            State { flow: Rc::new(flow), ..state }
        };
        let both = |other: State<'static>| {
            let merged = merge_states(vec![one(1, Some(1)), other]);
            assert_eq!(merged.len(), 1);
            merged[0].flow.as_ref().clone()
        };
        let state = both(one(5, Some(2)));
        assert_eq!(state.original, [(Field::DestinationPort, numbers(&[1, 5]))]);
        assert_eq!(state.translated, [(Field::DestinationPort, numbers(&[101, 105]))]);
        assert_eq!(state.pending, [(Field::SourcePort, numbers(&[1, 5])), (Field::DestinationPort, numbers(&[7])),]);
        assert_eq!(state.mark, numbers(&[1, 5]));
        assert_eq!((state.came_by, state.sent_by, state.via), (numbers(&[3, 7]), numbers(&[1, 5]), numbers(&[2, 6])));
        assert_eq!(state.port, Some(numbers(&[1, 5])));
        let owner = Some((numbers(&[1, 2]), numbers(&[11, 12])));
        assert_eq!((&state.client, &state.server), (&owner, &owner));
        // Whose they are isn't known of both.
        let state = both(one(5, None));
        assert_eq!((state.client, state.server), (None, None));
    }

    #[test]
    fn a_translation_has_changed_what_it_cannot_have_left() {
        let has_nat = |is_source, from: Intervals, to: Intervals| {
            let field = if is_source { Field::SourcePort } else { Field::DestinationPort };
            let mut state = state(80, &Doubt::NONE);
            state.set(field, from);
            state.translate(is_source, vec![(field, to.clone()), (Field::Uid, Intervals::one(1))]);
            assert_eq!(state.connections.get(field), Some(&to));
            assert_eq!(state.flow.original.len(), 1, "what doesn't exist isn't translated");
            state.has_nat
        };
        let ports = |first, last| Intervals::new([(first, last)]);
        for (from, to, changed) in [
            (ports(80, 80), ports(81, 81), Some(true)),
            (ports(80, 80), ports(80, 80), Some(false)),
            (ports(80, 81), ports(80, 81), None),
            (ports(80, 80), ports(80, 90), None),
            (ports(0, 65535), ports(80, 90), Some(true)),
        ] {
            assert_eq!(has_nat(false, from.clone(), to.clone()), [Some(false), changed]);
            assert_eq!(has_nat(true, from, to), [changed, Some(false)]);
        }
    }

    #[test]
    fn the_port_is_that_at_which_the_first_packet_arrives() {
        let port = |state: &State<'_>| state.outcome(Treatment::Accepted, None).port;
        let first = state(80, &Doubt::NONE);
        assert_eq!(port(&first), Some(Intervals::one(80)));
        let reply = first.reply(false);
        assert_eq!(port(&reply), Some(Intervals::one(80)));
        let told = reply.outcome(Treatment::Accepted, None).connections;
        assert_eq!(told.get(Field::DestinationPort), Some(&Intervals::one(80)), "as it has set out");
        assert_ne!(reply.connections.get(Field::DestinationPort), Some(&Intervals::one(80)));
    }

    #[test]
    fn a_connection_is_translated_if_its_source_or_its_destination_is() {
        let (yes, no) = (Some(true), Some(false));
        for (has_nat, want) in [
            ([no, no], no),
            ([yes, no], yes),
            ([no, yes], yes),
            ([None, yes], yes),
            ([None, no], None),
            ([no, None], None),
            ([None, None], None),
        ] {
            assert_eq!(State { has_nat, ..state(80, &Doubt::NONE) }.is_translated(), want, "{has_nat:?}");
        }
    }

    #[test]
    fn a_mark_is_set_to_what_is_known() {
        let mut one = state(80, &Doubt::NONE);
        one.set(Field::Mark, Intervals::new([(0, 3)]));
        let set = |to| {
            let mut state = one.clone();
            let goes_on = state.set_mark(Field::Mark, to);
            (goes_on, state.connections.get(Field::Mark).cloned().unwrap())
        };
        let bits = |field, mask, xor| Some(Bits { field, mask, xor });
        let any = Intervals::up_to(Field::Mark.largest());
        assert_eq!(set(bits(Field::Mark, 0, 9)), (true, Intervals::one(9)));
        assert_eq!(set(bits(Field::Mark, 2, 0)), (true, Intervals::new([(0, 0), (2, 2)])));
        assert_eq!(set(bits(Field::Mark, 1, 4)), (true, Intervals::new([(4, 5)])));
        assert_eq!(set(bits(Field::DestinationPort, 1, 0)), (true, Intervals::one(0)));
        assert_eq!(set(bits(Field::SourcePort, 1, 0)), (true, any.clone()), "of too many to look at");
        assert_eq!(set(None), (true, any));
        // The rule ends where it reads something missing; a constant is read nowhere.
        assert!(!set(bits(Field::Uid, 1, 0)).0);
        assert_eq!(set(bits(Field::Uid, 0, 9)), (true, Intervals::one(9)));
    }
}
