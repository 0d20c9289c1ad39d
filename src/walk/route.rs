//! Which hooks connections pass.

use crate::found::Found;
use crate::rules::family::Family;
use crate::rules::hook::Hook;
use crate::rules::intervals::Intervals;
use crate::rules::rule::{Action, Field, LOOPBACK, interface};
use crate::walk::connections::Connections;
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

/// Takes connections through the hooks up to the one at which they are redirected, and records what decides about them. What
/// arrives has got past the watched chain, because some rule ended its base chain.
pub fn before<'a>(
    found: &'a Found,
    family: Family,
    direction: Direction,
    watched: Watched<'_>,
    connections: Connections,
) -> Walk<'a> {
    let mut walker = Walker::watching(found, family, watched);
    let mut states = vec![State::new(connections)];
    for &hook in direction.hooks() {
        states = walker.hook(hook, states);
    }
    let passing_by = states.iter().filter(|state| !state.after_watched && !state.is_settled);
    let arrived = passing_by.filter_map(|state| Some(state.outcome(Fate::Accepted, Some(state.left?))));
    let arrived = arrived.collect();
    walker.finish(arrived)
}

/// Takes one connection, of which some fields may not be known, through all hooks that its first packet passes, and records
/// its way.
pub fn follow(found: &Found, family: Family, direction: Direction, connection: Connections) -> Walk<'_> {
    let mut walker = Walker::recording(found, family);
    let mut states = vec![State::new(connection)];
    for &hook in direction.hooks() {
        states = walker.hook(hook, states);
    }
    // What comes now changes sources.
    states
        .iter_mut()
        .for_each(|state| state.is_settled = state.is_untracked());
    let arrived = match direction {
        Direction::Inbound => come_in(&mut walker, states),
        Direction::Outbound => go_out(&mut walker, states),
    };
    let arrived = arrived.into_iter().map(arrival).collect();
    walker.finish(arrived)
}

/// What has become of connections that nothing has dropped.
fn arrival(state: State<'_>) -> Outcome<'_> {
    match state.taken {
        Some((at, _)) if !state.is_untracked() => state.outcome(Fate::Translated, Some(at)),
        taken => state.outcome(Fate::Accepted, taken.map(|(at, _)| at)),
    }
}

/// After [`Hook::Prerouting`]: to a socket of this namespace, or on to another host.
fn come_in<'a>(walker: &mut Walker<'a, '_>, mut here: Vec<State<'a>>) -> Vec<State<'a>> {
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
    let mut arrived = walker.hook(Hook::Input, here);
    forwarded = walker.hook(Hook::Forward, forwarded);
    arrived.extend(walker.hook(Hook::Postrouting, forwarded));
    arrived
}

/// After [`Hook::Output`]: to another host, or within this namespace by its loopback device.
fn go_out<'a>(walker: &mut Walker<'a, '_>, mut states: Vec<State<'a>>) -> Vec<State<'a>> {
    let lo = Intervals::one(interface(LOOPBACK));
    for state in &mut states {
        // It is routed again: if it was redirected, to this host.
        let devices = match state.taken {
            Some((_, Action::Redirect(_))) => lo.clone(),
            Some((_, Action::Nat(_))) => any_device(),
            _ => continue,
        };
        state.connections = state.connections.replaced(Field::OutInterface, devices);
    }
    let mut looped = Vec::new();
    let mut leaving = Vec::new();
    for state in walker.hook(Hook::Postrouting, states) {
        let (by_lo, by_others) = state.connections.split(Field::OutInterface, &lo);
        let with = |connections| State {
            connections,
            ..state.clone()
        };
        leaving.extend(by_others.map(with));
        // It comes in by the device by which it left, without its socket. Its translation is settled.
        looped.extend(by_lo.map(|connections| {
            State {
                is_settled: true,
                ..with(
                    connections
                        .lacking(&[Field::Uid, Field::Gid])
                        .replaced(Field::InInterface, lo.clone())
                        .replaced(Field::OutInterface, Intervals::one(0)),
                )
            }
        }));
    }
    let mut arrived = walker.hook(Hook::Egress, leaving);
    for hook in [Hook::Ingress, Hook::Prerouting, Hook::Input] {
        looped = walker.hook(hook, looped);
    }
    arrived.extend(looped);
    arrived
}

fn any_device() -> Intervals {
    Intervals::up_to(Field::OutInterface.largest())
}
