//! The hooks that connections pass, there and back.

use std::net::IpAddr;

use crate::connections::{Connections, lo_name, names_except_lo};
use crate::order::tracks;
use crate::state::{Owner, State, merge_states};
use crate::step::{Leg, Open, Outcome, Treatment};
use crate::walker::{Walk, Walker, Watched};
use ruleset::flags::DATA;
use ruleset::{Action, Direction, Family, Field, Hook, Intervals, Name, Nat, Rejection, Rule, Table, interface};
use ruleset::{Device, Listener, Network, Ruleset, Settings};

/// The hooks that a connection's first packet passes up to and including the one at which it may be redirected, in order.
pub fn first_hooks(direction: Direction) -> &'static [Hook] {
    match direction {
        Direction::Inbound => &[Hook::Ingress, Hook::Prerouting],
        Direction::Outbound => &[Hook::Output],
    }
}

/// The known facts about the namespace beside its rules: the proxy, as far as the rules name it, listeners, and
/// routing.
#[derive(Debug, Clone, Default)]
pub struct Environment<'p> {
    /// The ports of the proxy, to which connections are redirected.
    pub ports: Intervals,
    /// The users whose connections bypass the proxy. Their processes answer the redirected ones.
    pub uids: Intervals,
    pub gids: Intervals,
    /// The namespace's devices, addresses and listeners.
    pub network: &'p Network,
    /// The devices by which packets to some addresses leave: lo for those that stay here, none if routing refuses them.
    pub routes: &'p [(IpAddr, Option<Name>)],
    /// The device by which replies to inbound connections leave; none: the one on which they arrived.
    pub back: Option<&'p Name>,
}

impl Environment<'_> {
    /// The devices by which a connection leaves that a rule sends elsewhere; none if routing refuses it.
    fn devices_to(&self, nat: &Nat) -> Intervals {
        let route = self.routes.iter().find(|(address, _)| Some(*address) == nat.address());
        match route {
            Some((_, Some(device))) => Intervals::one(interface(device.as_bytes())),
            Some((_, None)) => Intervals::default(),
            None => Field::OutInterface.any(),
        }
    }

    /// Returns true if a rule sends connections to an address of this namespace.
    pub fn is_here(&self, nat: &Nat) -> bool {
        self.devices_to(nat) == lo_name()
    }

    /// Returns true if any of these connections could exist: between addresses that hosts have, on devices that exist.
    pub fn could_live(&self, connections: &Connections, family: Family, direction: Direction) -> bool {
        let names = self.network.device_names();
        let is_by_none = |field| {
            let known = connections.get(field).filter(|known| **known != Intervals::one(0));
            known.is_some_and(|known| !known.meets(names.as_slice()))
        };
        let is_all_in = |field, nobodys: Intervals| connections.get(field).is_some_and(|known| nobodys.includes(known));
        let is_forged =
            direction == Direction::Inbound && is_all_in(Field::Source(family), self.network.own_addresses(family));
        let is_for_none = is_all_in(Field::Destination(family), self.network.broadcasts(family));
        !(is_by_none(Field::InInterface) || is_by_none(Field::OutInterface) || is_forged || is_for_none)
    }

    /// Returns true if a reply goes to addresses of another device than the one by which the first packet left. It may
    /// then arrive on any device: the other host has a route of its own.
    fn sends_from_another_device(&self, reply: &State<'_>) -> bool {
        let Some(leaving) = reply.connections.get(Field::InInterface) else {
            return false;
        };
        Family::ALL.into_iter().any(|family| {
            let to = reply.connections.get(Field::Destination(family));
            let having = to.map(|to| self.network.devices_with(family, to)).unwrap_or_default();
            !having.is_empty() && !having.meets(leaving.as_slice())
        })
    }

    /// The owner of the socket that answers connections to these ports.
    fn server_owner(&self, ports: Option<&Intervals>) -> Owner {
        let listening = self.network.listeners.iter();
        let listening = listening.filter(|listener| ports == Some(&Intervals::one(listener.port.into())));
        let uids: Vec<u32> = listening.map(|listener| listener.uid).collect();
        if !uids.is_empty() {
            let uids = if uids.contains(&Listener::UNMAPPED) { Field::Uid.any() } else { Intervals::each(uids) };
            // The kernel doesn't tell the group of a socket's file.
            return (uids, Field::Gid.any());
        }
        let is_proxys = ports.is_some_and(|ports| self.ports.includes(ports));
        let ids = |field: Field, known: &Intervals| {
            if is_proxys && !known.is_empty() { known.clone() } else { field.any().without(known) }
        };
        (ids(Field::Uid, &self.uids), ids(Field::Gid, &self.gids))
    }
}

/// The way of a packet through the hooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// From outside to a socket of this namespace.
    In,
    /// From a socket of this namespace to the outside.
    Out,
    /// From one socket of this namespace to another, by lo.
    Within,
    /// From outside to another host.
    Through,
}

impl Way {
    fn hooks(self) -> &'static [Hook] {
        use Hook::{Egress, Forward, Ingress, Input, Output, Postrouting, Prerouting};

        match self {
            Way::In => &[Ingress, Prerouting, Input],
            Way::Out => &[Output, Postrouting, Egress],
            Way::Within => &[Output, Postrouting, Egress, Ingress, Prerouting, Input],
            Way::Through => &[Ingress, Prerouting, Forward, Postrouting, Egress],
        }
    }

    /// The way of the answering side.
    fn reversed(self) -> Self {
        match self {
            Way::In => Way::Out,
            Way::Out => Way::In,
            Way::Within => Way::Within,
            Way::Through => Way::Through,
        }
    }

    fn is_from_here(self) -> bool {
        matches!(self, Way::Out | Way::Within)
    }
}

/// Takes the first packet of connections, the reply and the client's ACK through all hooks that each passes. With a
/// watched chain, this records the decisions about connections that should reach it, and the fate of those that it
/// redirects; arriving connections have bypassed it. Without one, it records each step.
pub fn there_and_back<'a>(
    ruleset: &'a Ruleset,
    family: Family,
    direction: Direction,
    connections: Connections,
    around: &Environment<'_>,
    watched: Option<Watched<'_>>,
) -> Walk<'a> {
    let mut walker = Walker::new(ruleset, Some(family), watched, around.network);
    walker.routes = around.routes;
    walker.back = around.back;
    // With a watched chain, it doesn't matter if clients are told.
    walker.send_rejection = watched.is_none().then_some(match direction {
        Direction::Inbound => |walker, state, hook, rejection| send_rejection(walker, state, hook, Way::Out, rejection),
        Direction::Outbound => {
            |walker, state, hook, rejection| send_rejection(walker, state, hook, Way::Within, rejection)
        }
    });
    let mut first = State::new(connections, tracks(ruleset, family));
    // Connection tracking already knows a packet that arrives on lo.
    first.is_seen = first.connections.get(Field::InInterface) == Some(&lo_name());
    let mut states = vec![first];
    for &hook in first_hooks(direction) {
        states = pass_with_lower_devices(&mut walker, hook, states);
    }
    let mut arrived = Vec::new();
    if watched.is_some() {
        let (redirected, others): (Vec<_>, Vec<_>) = states.into_iter().partition(State::is_redirected);
        states = redirected;
        let passing_by = others.iter().filter(|state| !state.after_watched && !state.is_settled);
        arrived.extend(passing_by.filter_map(|state| Some(state.outcome(Treatment::Accepted, Some(state.left?)))));
    }
    // From here on, nat rules change sources.
    states.iter_mut().for_each(|state| state.is_settled = !state.tracked.has_entry());
    let at = first_hooks(direction).last().copied();
    let Settings { always_sends_cookies, tracks_from_any, .. } = around.network.settings;
    let is_data_different = always_sends_cookies || ruleset.tables.iter().flat_map(Table::rules).any(reads_flags);
    let mut is_any_alive = states.is_empty();
    for (way, states) in divide_by_way(&mut walker, direction, states, around) {
        let there = follow(&mut walker, way, at, states);
        let replies: Vec<_> = there.into_iter().map(|state| reply(state, way, around)).collect();
        let data = is_data_different.then(|| replies.clone());
        let mut back = follow(&mut walker, way.reversed(), None, replies);
        if let Some(data) = data.filter(|_| !back.is_empty())
            && !gets_through(&mut walker, way.reversed(), data)
        {
            back.clear();
        }
        let acks = back.into_iter().map(|state| ack(state, way, around)).collect();
        let made = follow(&mut walker, way, None, acks);
        // Where none of the three is tracked, the packets after them have to get through too.
        let (unknown, mut made): (Vec<_>, Vec<_>) =
            made.into_iter().partition(|state| state.is_unknown_to_the_end(tracks_from_any));
        let next = unknown.into_iter().map(|state| set_out(state.next_reply(), way.reversed()));
        made.extend(follow(&mut walker, way.reversed(), None, next.collect()));
        is_any_alive |= !made.is_empty();
        if watched.is_none() {
            arrived.extend(made.into_iter().map(arrival));
        }
    }
    walker.finish(arrived, is_any_alive)
}

fn reads_flags(rule: &Rule) -> bool {
    rule.all_conditions().any(|condition| condition.field() == Some(Field::TcpFlags))
}

/// Takes servers' packets after their first reply the same way; they differ from it in TCP's flags, and always have a
/// socket. Returns true if any of them gets through.
fn gets_through<'a>(walker: &mut Walker<'a, '_>, way: Way, replies: Vec<State<'a>>) -> bool {
    let (untracked, mut data): (Vec<_>, Vec<_>) = replies.into_iter().partition(State::is_untracked);
    for state in &mut data {
        state.set(Field::TcpFlags, Intervals::one(DATA.into()));
        if way.is_from_here() {
            state.join_socket(true);
        }
    }
    let through = walker.look_for_decisions(|walker| follow(walker, way, None, data));
    !(untracked.is_empty() && through.is_empty())
}

/// Neighbours that have to find each other before a connection's first packet: by ICMPv6 over IPv6, by ARP over IPv4.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbours {
    pub family: Family,
    /// The direction of the question: inbound, the neighbour asks; outbound, this namespace.
    pub direction: Direction,
    /// The names of the devices between them, as numbers.
    pub devices: Intervals,
    /// The addresses that may ask.
    pub asking: Intervals,
    /// The addresses that may be asked for.
    pub asked: Intervals,
}

impl Neighbours {
    /// Every address of IPv6 that is of one link alone: fe80::/10.
    pub fn link_local() -> Intervals {
        Intervals::new([(0xfe80 << 112, (0xfec0 << 112) - 1)])
    }

    /// Every address of IPv6 that one host has: 2000::/3, fc00::/7 and those of one link.
    pub fn unicast() -> Intervals {
        let wide = [(0x2 << 124, (0x4 << 124) - 1), (0xfc << 120, (0xfe << 120) - 1)];
        Intervals::new([&wide, Self::link_local().as_slice()].concat())
    }
}

/// Takes the solicitation and the advertisement by which neighbours find each other through the hooks of their way.
pub fn discovery<'a>(ruleset: &'a Ruleset, network: &Network, neighbours: &Neighbours) -> Walk<'a> {
    let Neighbours { family, direction, devices, asking, asked } = neighbours;
    let is_ipv6 = *family == Family::V6;
    let mut walker = Walker::new(ruleset, is_ipv6.then_some(Family::V6), None, network);
    let is_tracked = is_ipv6 && tracks(ruleset, Family::V6);
    let (way, field) = match direction {
        Direction::Inbound => (Way::In, Field::InInterface),
        Direction::Outbound => (Way::Out, Field::OutInterface),
    };
    let message =
        |kind, from: &Intervals, to, device| Connections::discovery(is_ipv6.then(|| (kind, from.clone(), to)), device);
    let question = message(SOLICITATION, asking, solicited_node_addresses(asked), (field, devices.clone()));
    let question = State::of_neighbours(question, Leg::Solicitation, is_tracked);
    let there = follow(&mut walker, way, None, vec![question]).into_iter();
    let answer = message(ADVERTISEMENT, asked, asking.clone(), (field.reversed(), devices.clone()));
    let answers = there.map(|question| State {
        doubt: question.doubt,
        ..State::of_neighbours(answer.clone(), Leg::Advertisement, is_tracked)
    });
    let answers = answers.collect();
    let back = follow(&mut walker, way.reversed(), None, merge_states(answers));
    let arrived = back.iter().map(|state| state.outcome(Treatment::Accepted, None)).collect();
    walker.finish(arrived, true)
}

/// ICMPv6's types of neighbour discovery (RFC 4861).
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

/// The solicited-node multicast addresses of these addresses: ff02::1:ff and the last three bytes (RFC 4291, section
/// 2.7.1).
fn solicited_node_addresses(addresses: &Intervals) -> Intervals {
    const PREFIX: u128 = 0xff02_0000_0000_0000_0000_0001_ff00_0000;
    const LAST: u128 = 0xff_ffff;
    let each = addresses.as_slice().iter().map(|&(first, last)| {
        if last - first > LAST || first & LAST > last & LAST {
            return (PREFIX, PREFIX + LAST);
        }
        (PREFIX + (first & LAST), PREFIX + (last & LAST))
    });
    Intervals::new(each)
}

/// Divides connections by the way that they go once their first packet is routed.
fn divide_by_way<'a>(
    walker: &mut Walker<'a, '_>,
    direction: Direction,
    states: Vec<State<'a>>,
    around: &Environment<'_>,
) -> [(Way, Vec<State<'a>>); 2] {
    let is_inbound = direction == Direction::Inbound;
    let (here, elsewhere) = if is_inbound { (Way::In, Way::Through) } else { (Way::Within, Way::Out) };
    let mut ways = [(here, Vec::new()), (elsewhere, Vec::new())];
    let question = walker.add_question(Open::Other);
    for mut state in states {
        let [came_by, sent_by] = [Field::InInterface, Field::OutInterface]
            .map(|field| state.connections.get(field).cloned().unwrap_or_default());
        let flow = state.flow_mut();
        (flow.came_by, flow.sent_by) = (came_by, sent_by.clone());
        let devices = match state.taken {
            Some((at, Some(Action::Nat(nat)))) => {
                let devices = around.devices_to(nat);
                if devices.is_empty() {
                    walker.decide(&state, at, Treatment::Dropped);
                }
                devices
            }
            // The kernel routes an outbound packet again after it was redirected, to this host.
            _ if is_inbound || state.is_redirected() => lo_name(),
            _ => sent_by,
        };
        let by = [devices.and(&lo_name()), devices.without(&lo_name())];
        // A connection that was sent elsewhere may be forwarded, which depends on the place.
        let is_open = is_inbound && by.iter().all(|by| !by.is_empty());
        let doubts = if is_open { state.doubt.divided(question, 2) } else { vec![state.doubt.clone(); 2] };
        for ((by, (_, states)), doubt) in by.into_iter().zip(&mut ways).zip(doubts) {
            if !by.is_empty() {
                states.push(State { doubt, ..state.clone().leave_by(by) });
            }
        }
    }
    ways
}

/// Takes packets through the hooks of their way, all or those after one of them.
fn follow<'a>(
    walker: &mut Walker<'a, '_>,
    way: Way,
    after: Option<Hook>,
    mut states: Vec<State<'a>>,
) -> Vec<State<'a>> {
    let settings = walker.network.settings;
    let hooks = way.hooks();
    let passed = hooks.iter().position(|hook| Some(*hook) == after).map_or(0, |index| index + 1);
    for &hook in hooks.iter().skip(passed) {
        states.iter_mut().for_each(|state| enter_hook(state, way, hook, settings));
        states = pass_with_lower_devices(walker, hook, states);
    }
    for state in &mut states {
        match way {
            Way::Out => state.leave_socket(),
            _ => state.drop_socket(),
        }
    }
    states
}

/// Takes packets through a hook, and through the hooks of the lower devices by which they arrive and leave.
fn pass_with_lower_devices<'a>(walker: &mut Walker<'a, '_>, hook: Hook, mut states: Vec<State<'a>>) -> Vec<State<'a>> {
    if hook == Hook::Ingress {
        states = pass_lower_devices(walker, hook, states, MOST_LOWER);
    }
    states = walker.pass_hook(hook, states);
    if hook == Hook::Egress {
        states = pass_lower_devices(walker, hook, states, MOST_LOWER);
    }
    states
}

/// The kernel allows this many devices on top of each other (`MAX_NEST_DEV` in linux/netdevice.h).
const MOST_LOWER: usize = 8;

/// Takes packets through the hooks of lower devices: first on the way in, last on the way out. A bridge has hooks of its
/// own in between (`br_handle_frame`, `br_pass_frame_up` and `__br_forward` in net/bridge).
fn pass_lower_devices<'a>(
    walker: &mut Walker<'a, '_>,
    at: Hook,
    mut states: Vec<State<'a>>,
    most: usize,
) -> Vec<State<'a>> {
    let arrives = at == Hook::Ingress;
    let (field, bridge_hooks) = if arrives {
        (Field::InInterface, [Hook::Prerouting, Hook::Input])
    } else {
        (Field::OutInterface, [Hook::Output, Hook::Postrouting])
    };
    let network = walker.network;
    for upper in &network.devices {
        let beneath = Device::names(network.lower_devices(upper));
        if beneath.is_empty() || most == 0 {
            continue;
        }
        let name = Device::names([upper]);
        let (mut inside, mut others) = (Vec::new(), Vec::new());
        for state in states {
            let (by_it, by_others) = state.split(field, &name);
            inside.extend(by_it);
            others.extend(by_others);
        }
        inside.iter_mut().for_each(|state| state.set(field, beneath.clone()));
        if arrives {
            inside = pass_lower_devices(walker, at, inside, most - 1);
            inside = walker.pass_hook(at, inside);
        }
        if upper.kind == b"bridge" {
            for hook in bridge_hooks {
                inside = pass_bridge(walker, hook, inside);
            }
        }
        if !arrives {
            inside = walker.pass_hook(at, inside);
            inside = pass_lower_devices(walker, at, inside, most - 1);
        }
        inside.iter_mut().for_each(|state| state.set(field, name.clone()));
        others.extend(inside);
        states = others;
    }
    states
}

/// Takes packets through a bridge's hook. Arriving packets may have a new destination by then.
fn pass_bridge<'a>(walker: &mut Walker<'a, '_>, hook: Hook, states: Vec<State<'a>>) -> Vec<State<'a>> {
    if !(walker.network.settings.bridges_call_ip && hook == Hook::Input) {
        return walker.pass_bridge_hook(hook, states);
    }
    let mut passed = Vec::new();
    for mut anywhere in states {
        let before = anywhere.connections.clone();
        for field in [Field::DestinationPort, Field::Destination(Family::V4), Field::Destination(Family::V6)] {
            anywhere.set(field, field.any());
        }
        for mut state in walker.pass_bridge_hook(hook, vec![anywhere]) {
            state.connections = before.clone();
            passed.push(state);
        }
    }
    merge_states(passed)
}

/// Changes a packet's facts at its coming to a hook.
fn enter_hook(state: &mut State<'_>, way: Way, hook: Hook, settings: Settings) {
    let no_device = || Intervals::one(0);
    match (way, hook) {
        (Way::Out | Way::Within, Hook::Postrouting) | (Way::Through, Hook::Forward) => {
            state.set(Field::OutInterface, state.flow.via.clone());
        }
        // A packet arrives on lo without its socket. Its translation is settled, and connection tracking knows it.
        (Way::Within, Hook::Ingress) => {
            state.leave_socket();
            state.is_settled = true;
            state.set(Field::InInterface, lo_name());
            state.set(Field::OutInterface, no_device());
        }
        // The kernel finds the socket of a packet before it delivers it, except for a first packet, which has none
        // (`tcp_v4_early_demux`); it doesn't look up packets that arrive on lo.
        (Way::In, Hook::Input) if settings.finds_sockets => match state.packet {
            Leg::First | Leg::Rejection | Leg::Solicitation | Leg::Advertisement => {}
            Leg::Reply => state.join_socket(false),
            Leg::Ack if settings.always_sends_cookies => {}
            Leg::Ack => state.join_socket(true),
        },
        _ => {}
    }
}

/// The reply to a packet that went this way.
fn reply<'a>(state: State<'a>, way: Way, around: &Environment<'_>) -> State<'a> {
    let mut reply = state.reply(around.network.settings.keeps_mark);
    let is_from_here = way.reversed().is_from_here();
    if let Some(device) = around.back.filter(|_| way == Way::In) {
        let device = Intervals::one(interface(device.as_bytes()));
        reply.set(Field::OutInterface, device.clone());
        reply = reply.leave_by(device);
    }
    if way == Way::Out && around.sends_from_another_device(&reply) {
        reply.set(Field::InInterface, names_except_lo());
    }
    let server = is_from_here.then(|| around.server_owner(reply.flow.port.as_ref()));
    reply.flow_mut().server = server;
    let mut reply = set_out(reply, way.reversed());
    // A reply with a cookie has no socket (`tcp_make_synack` in net/ipv4/tcp_output.c).
    if around.network.settings.always_sends_cookies {
        reply.drop_socket();
    }
    reply
}

/// Takes the rejection of a first packet at a hook back to its sender. Returns those that get there.
fn send_rejection<'a>(
    walker: &mut Walker<'a, '_>,
    state: &State<'a>,
    hook: Hook,
    way: Way,
    rejection: Rejection,
) -> Vec<State<'a>> {
    let mut back = state.clone().rejection(rejection);
    let devices = match (way, walker.back) {
        (Way::Within, _) => lo_name(),
        (_, Some(device)) => Intervals::one(interface(device.as_bytes())),
        _ => back.connections.get(Field::OutInterface).cloned().unwrap_or_default(),
    };
    if way == Way::Within && rejection != Rejection::Reset {
        // The kernel chooses an address of this namespace.
        for field in Family::ALL.map(Field::Source) {
            back.set(field, field.any());
        }
    }
    back.set(Field::OutInterface, devices.clone());
    back.set(Field::InInterface, Intervals::one(0));
    // A device's hook sends it from under IP's (`nft_reject_netdev_eval` in net/netfilter/nft_reject_netdev.c).
    let passed = (hook == Hook::Ingress).then_some(Hook::Postrouting);
    follow(walker, way, passed, vec![back.leave_by(devices)])
}

/// The client's answer to a reply, on the way of the first packet.
fn ack<'a>(state: State<'a>, way: Way, around: &Environment<'_>) -> State<'a> {
    let mut ack = set_out(state.ack(around.network.settings.tracks_from_any), way);
    // The client routes it as it did the first packet, whichever way the reply went.
    if way.is_from_here() {
        ack.set(Field::OutInterface, ack.flow.sent_by.clone());
    } else {
        ack.set(Field::InInterface, ack.flow.came_by.clone());
    }
    ack
}

/// A packet at the beginning of its way.
fn set_out(mut state: State<'_>, way: Way) -> State<'_> {
    if way.is_from_here() {
        state.join_socket(state.packet == Leg::Reply);
        state.set(Field::InInterface, Intervals::one(0));
    } else {
        state.set(Field::OutInterface, Intervals::one(0));
    }
    state
}

/// The outcome for connections that nothing has dropped.
fn arrival(mut state: State<'_>) -> Outcome<'_> {
    state.join_socket(false);
    match state.taken {
        Some((at, _)) if !state.is_untracked() => state.outcome(Treatment::Translated, Some(at)),
        taken => state.outcome(Treatment::Accepted, taken.map(|(at, _)| at)),
    }
}

#[cfg(test)]
mod tests;
