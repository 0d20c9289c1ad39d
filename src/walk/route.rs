//! Which hooks connections pass, there and back.

use crate::found::Found;
use crate::rules::family::Family;
use crate::rules::hook::Hook;
use crate::rules::intervals::Intervals;
use crate::rules::rule::{Action, Field};
use crate::walk::connections::{Connections, lo};
use crate::walk::state::State;
use crate::walk::step::{Assumption, Fate, Open, Outcome};
use crate::walk::walker::{Walk, Walker, Watched};
use crate::wanted::direction::Direction;

impl Direction {
    /// The hooks that a connection's first packet passes up to and including the one at which it is redirected, in order.
    pub(crate) fn hooks(self) -> &'static [Hook] {
        match self {
            Direction::Inbound => &[Hook::Ingress, Hook::Prerouting],
            Direction::Outbound => &[Hook::Output],
        }
    }
}

/// The proxy, as far as its rules name it.
#[derive(Debug, Clone, Default)]
pub struct Proxy {
    /// The ports to which connections are redirected.
    pub ports: Intervals,
    /// The users whose connections bypass it: whose processes answer those that don't.
    pub uids: Intervals,
    /// The groups, likewise.
    pub gids: Intervals,
}

/// Takes connections through all hooks that their first packet passes, and the answer to it through those of its way. If a
/// chain is watched, decisions about those that should get there are recorded, and what becomes of those that it redirects;
/// what arrives has got past it. Otherwise each step is recorded.
pub fn there_and_back<'a>(
    found: &'a Found,
    family: Family,
    direction: Direction,
    connections: Connections,
    proxy: &Proxy,
    watched: Option<Watched<'_>>,
) -> Walk<'a> {
    let mut walker = Walker::new(found, family, watched);
    let mut first = State::new(connections);
    // What lo brings back is known to connection tracking.
    first.is_seen = first.connections.get(Field::InInterface) == Some(&lo());
    let mut states = vec![first];
    for &hook in direction.hooks() {
        states = walker.hook(hook, states);
    }
    let mut arrived = Vec::new();
    if watched.is_some() {
        let (redirected, others): (Vec<_>, Vec<_>) = states
            .into_iter()
            .partition(|state| state.after_watched && state.is_redirected());
        states = redirected;
        let passing_by = others.iter().filter(|state| !state.after_watched && !state.is_settled);
        arrived.extend(passing_by.filter_map(|state| Some(state.outcome(Fate::Accepted, Some(state.left?)))));
    }
    // What comes now changes sources.
    states
        .iter_mut()
        .for_each(|state| state.is_settled = state.is_untracked());
    let answered = match direction {
        Direction::Inbound => inbound(&mut walker, states, proxy),
        Direction::Outbound => outbound(&mut walker, states, proxy),
    };
    if watched.is_none() {
        arrived.extend(answered.into_iter().map(arrival));
    }
    walker.finish(arrived)
}

/// What has become of connections that nothing has dropped.
fn arrival(state: State<'_>) -> Outcome<'_> {
    match state.taken {
        Some((at, _)) if !state.is_untracked() => state.outcome(Fate::Translated, Some(at)),
        taken => state.outcome(Fate::Accepted, taken.map(|(at, _)| at)),
    }
}

/// After [`Hook::Prerouting`]: to a socket of this namespace, whose answer leaves by the same device; or on to another host.
fn inbound<'a>(walker: &mut Walker<'a, '_>, mut here: Vec<State<'a>>, proxy: &Proxy) -> Vec<State<'a>> {
    // Whether what was sent elsewhere is forwarded depends on where that is.
    let question = walker.ask(Open::Delivery);
    let mut forwarded = Vec::new();
    for state in here.iter_mut().filter(|state| state.is_sent_elsewhere()) {
        let mut other = state.clone();
        state.assumptions.push(Assumption::no(question));
        other.assumptions.push(Assumption::yes(question));
        other.connections = other.connections.replaced(Field::OutInterface, any_device());
        forwarded.push(other);
    }
    let here = walker.hook(Hook::Input, here);
    let (mut arrived, here) = sent_elsewhere(here);
    arrived.extend(through_twice(walker, &OUT, answers(here, proxy)));
    forwarded = walker.hook(Hook::Forward, forwarded);
    arrived.extend(walker.hook(Hook::Postrouting, forwarded));
    arrived
}

/// After [`Hook::Output`]: to another host, whose answer comes in by the same device; or within this namespace by its
/// loopback device.
fn outbound<'a>(walker: &mut Walker<'a, '_>, mut states: Vec<State<'a>>, proxy: &Proxy) -> Vec<State<'a>> {
    for state in &mut states {
        // It is routed again: if it was redirected, to this host.
        let devices = match state.taken {
            Some((_, Action::Redirect(_))) => lo(),
            Some((_, Action::Nat(_))) => any_device(),
            _ => continue,
        };
        state.connections = state.connections.replaced(Field::OutInterface, devices);
    }
    let states = walker.hook(Hook::Postrouting, states);
    let (looped, leaving) = by_device(walker.hook(Hook::Egress, states));
    let (mut arrived, leaving) = sent_elsewhere(leaving);
    let (elsewhere, looped) = sent_elsewhere(come_back(walker, looped));
    arrived.extend(elsewhere);

    let replies = leaving.into_iter().map(|state| without_socket(state.reply()));
    arrived.extend(through_twice(walker, &IN, replies.collect()));

    let replies = through(walker, &OUT, answers(looped, proxy));
    arrived.extend(come_back(walker, replies));
    arrived
}

/// What lo brings back comes in by it, without its socket. Its translation is settled, and connection tracking knows it.
fn come_back<'a>(walker: &mut Walker<'a, '_>, looped: Vec<State<'a>>) -> Vec<State<'a>> {
    let comes_in = looped.into_iter().map(|state| {
        let mut state = without_socket(state);
        state.is_settled = true;
        state.connections = state.connections.replaced(Field::InInterface, lo());
        state.connections = state.connections.replaced(Field::OutInterface, Intervals::one(0));
        state
    });
    let looped = comes_in.collect();
    through(walker, &IN, looped)
}

/// The hooks of what a socket of this namespace sends, and of what comes to one.
const OUT: [Hook; 3] = [Hook::Output, Hook::Postrouting, Hook::Egress];
const IN: [Hook; 3] = [Hook::Ingress, Hook::Prerouting, Hook::Input];

fn through<'a>(walker: &mut Walker<'a, '_>, hooks: &[Hook], mut states: Vec<State<'a>>) -> Vec<State<'a>> {
    for &hook in hooks {
        states = walker.hook(hook, states);
    }
    states
}

/// Where answers aren't tracked, the packets after them have to get through too.
fn through_twice<'a>(walker: &mut Walker<'a, '_>, hooks: &[Hook], replies: Vec<State<'a>>) -> Vec<State<'a>> {
    let (untracked, mut arrived): (Vec<_>, Vec<_>) = through(walker, hooks, replies)
        .into_iter()
        .partition(State::is_untracked);
    let (next, ended): (Vec<_>, Vec<_>) = untracked.into_iter().partition(State::is_taken_for_new);
    arrived.extend(ended);
    arrived.extend(through(
        walker,
        hooks,
        next.into_iter().map(State::next_reply).collect(),
    ));
    arrived
}

fn without_socket(state: State<'_>) -> State<'_> {
    State {
        connections: state.connections.lacking(&[Field::Uid, Field::Gid]),
        ..state
    }
}

/// The answers of this namespace's sockets: at the proxy's ports, of the proxy; at others, of anybody else.
fn answers<'a>(states: Vec<State<'a>>, proxy: &Proxy) -> Vec<State<'a>> {
    let answer = |mut reply: State<'a>| {
        let is_proxys = reply
            .port
            .as_ref()
            .is_some_and(|port| port.without(&proxy.ports).is_empty());
        let ids = |field: Field, known: &Intervals| match is_proxys && !known.is_empty() {
            true => known.clone(),
            false => Intervals::up_to(field.largest()).without(known),
        };
        let (uids, gids) = (ids(Field::Uid, &proxy.uids), ids(Field::Gid, &proxy.gids));
        reply.connections = reply.connections.of_socket(uids, gids);
        reply
    };
    states.into_iter().map(State::reply).map(answer).collect()
}

/// Those whose destination is wherever a rule says, which isn't followed, and all others.
fn sent_elsewhere(states: Vec<State<'_>>) -> (Vec<State<'_>>, Vec<State<'_>>) {
    states.into_iter().partition(State::is_sent_elsewhere)
}

/// Those that leave by lo, and those that leave by others.
fn by_device(states: Vec<State<'_>>) -> (Vec<State<'_>>, Vec<State<'_>>) {
    let (mut looped, mut leaving) = (Vec::new(), Vec::new());
    for state in states {
        let (by_lo, by_others) = state.connections.split(Field::OutInterface, &lo());
        let with = |connections| State {
            connections,
            ..state.clone()
        };
        looped.extend(by_lo.map(with));
        leaving.extend(by_others.map(with));
    }
    (looped, leaving)
}

fn any_device() -> Intervals {
    Intervals::up_to(Field::OutInterface.largest())
}
