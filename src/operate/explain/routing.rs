//! What the kernel's routing adds to a connection, and what it does with one that the rules let through.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use netfilter::netlink::ReadError;
use netfilter::netlink::route::{self, Neighbour, Packet, Route, RouteKind};
use nix::errno::Errno;
use packets::found::{Device, Found, Listener, Network};
use packets::rules::{
    Action, Direction, Effect, Family, Field, Hook, Intervals, LOOPBACK, LOOPBACK_INDEX, Name, Nat, Table, address,
    interface, ip,
};
use packets::walk::{self, Matched, Neighbours, Place, Step, any_but_lo};

use crate::error::{self, Error};
use crate::findings::explain::{Answer, Connection, Verdict, proxy};
use crate::operate::neighbours::{is_refusal, network, setting};

/// The kernel's routing in the thread's network namespace.
#[derive(Debug)]
pub(super) struct Routing {
    /// Why it did not answer, if it once didn't.
    silent: Cell<Option<error::Errno>>,
    pub(super) network: Network,
}

impl Routing {
    pub(super) fn ask() -> Self {
        let silent = Cell::default();
        let network = network(&|error| silent.set(Some(errno(error))));
        Self { silent, network }
    }

    fn route(&self, packet: Packet) -> Result<Route, ReadError> {
        self.answer(route::route(packet))
    }

    fn device(&self, name: &[u8]) -> Result<Device, ReadError> {
        self.answer(route::device(name))
    }

    /// The numbers of the devices that have an address of this one's family.
    fn having_address_like(&self, to: IpAddr) -> Option<Vec<u32>> {
        let addresses = self.network.addresses.as_ref()?.iter();
        let of_family = addresses.filter(|known| known.address.is_ipv4() == to.is_ipv4());
        Some(of_family.map(|known| known.device).collect())
    }

    /// The address that an inbound connection gets that is redirected; none if that isn't known.
    fn redirected_to(&self, connection: &Connection) -> Option<IpAddr> {
        let to = connection.to.ip();
        let family = Family::of(to);
        let devices = match &connection.device {
            Some(name) => Intervals::one(interface(name.as_bytes())),
            None => any_but_lo(),
        };
        let own = self.network.redirected_to(family, &devices)?;
        match own.as_slice() {
            &[(first, last)] if first == last => ip(family, first),
            _ if own.meets(&[(address(to), address(to))]) => Some(to),
            _ => None,
        }
    }

    fn neighbours_like(&self, address: IpAddr) -> Result<Vec<Neighbour>, ReadError> {
        self.answer(route::neighbours_like(address))
    }

    fn answer<T>(&self, result: Result<T, ReadError>) -> Result<T, ReadError> {
        if let Err(error) = &result
            && !is_refusal(error)
            && !matches!(error, ReadError::Socket(Errno::ENODEV))
        {
            self.silent.set(Some(errno(error)));
        }
        result
    }

    /// An answer by routing and rules or, if routing did not answer, that it isn't known: that may decide otherwise.
    pub(super) fn as_far_as_asked<'a>(&self, answer: Answer<'a>) -> Answer<'a> {
        match self.silent.get() {
            Some(errno) => Answer {
                verdict: Verdict::NotKnown(format!(
                    "the kernel's routing cannot be asked ({errno}); by the rules alone it {}",
                    answer.verdict.clause()
                )),
                ..answer
            },
            None => answer,
        }
    }
}

/// Whose the destination of a connection is, as long as no rule changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Destination {
    /// It is what an outbound connection is routed to, or an address of this namespace.
    Usual,
    /// An outbound connection leaves by the device to which its socket is bound: the one that was named.
    Bound,
    /// An inbound connection goes to an address of 127.0.0.0/8, by another device than lo.
    Loopback,
    /// An inbound connection goes to an address that this namespace doesn't have.
    NotHere,
}

/// Asks for an outbound connection's device and source address, and for whose an inbound one's destination is.
pub(super) fn complete(routing: &Routing, connection: &mut Connection) -> Result<Destination, Error> {
    let to = connection.to.ip();
    if to.is_multicast() || to == Ipv4Addr::BROADCAST {
        return no_connection(to, NOT_UNICAST);
    }
    check_device(routing, connection)?;
    if connection.direction == Direction::Outbound {
        return add_route(routing, connection);
    }
    if connection.from.is_some_and(|from| is_refused(routing, from, connection)) {
        let why = "the kernel drops what comes in by another device than lo from the source address that was named: name \
                   another host's";
        return no_connection(to, why);
    }
    if to.is_unspecified() {
        return no_connection(to, "name an address of this network namespace");
    }
    // `ip6_rcv_core` drops it before any hook.
    if to == Ipv6Addr::LOCALHOST {
        return no_connection(to, "the kernel drops what comes in to it from another host: use `explain outbound`");
    }
    if to.is_loopback() {
        return Ok(Destination::Loopback);
    }
    match routing.route(packet(connection.to, connection)).map(|found| found.kind) {
        Ok(RouteKind::Local) => Ok(Destination::Usual),
        Ok(RouteKind::Unicast) => Ok(Destination::NotHere),
        Ok(RouteKind::NotUnicast) => no_connection(to, NOT_UNICAST),
        Err(error) if is_refusal(&error) => Ok(Destination::NotHere),
        // Where routing can't be asked, the answer says so.
        Err(_) => Ok(Destination::Usual),
    }
}

fn no_connection(to: IpAddr, reason: &'static str) -> Result<Destination, Error> {
    Err(Error::NoConnection { to, reason })
}

/// Whether the kernel drops what comes in from this address by another device than lo: it is no host's, or this host's
/// (`ip_route_input_slow` in net/ipv4/route.c, `ip6_rcv_core` in net/ipv6/ip6_input.c).
fn is_refused(routing: &Routing, from: IpAddr, connection: &Connection) -> bool {
    let is_nobodys = match from {
        IpAddr::V4(v4) => v4.octets()[0] == 0 || v4 == Ipv4Addr::BROADCAST,
        IpAddr::V6(v6) => v6.is_unspecified(),
    };
    let own = || routing.route(packet(SocketAddr::new(from, connection.to.port()), connection));
    from.is_loopback()
        || from.is_multicast()
        || is_nobodys
        || (from.is_ipv4() && own().is_ok_and(|route| route.kind != RouteKind::Unicast))
}

const NOT_UNICAST: &str = "it is a broadcast, multicast or anycast address: name a host's address";

/// The device that is named has to exist. Rules see it by its own name, also if another name was given.
fn check_device(routing: &Routing, connection: &mut Connection) -> Result<(), Error> {
    let Some(named) = &connection.device else {
        return Ok(());
    };
    match routing.device(named.as_bytes()) {
        Ok(device) => connection.device = Some(device.name),
        Err(ReadError::Socket(Errno::ENODEV)) => {
            return Err(Error::NoDevice { device: named.to_string() });
        }
        // Where that can't be asked, the answer says so.
        Err(_) => (),
    }
    Ok(())
}

fn add_route(routing: &Routing, connection: &mut Connection) -> Result<Destination, Error> {
    // connect() to no address is one to this host (`ip_route_output_key_hash`, `tcp_v6_connect`).
    if connection.to.ip().is_unspecified() {
        connection.to.set_ip(match connection.to {
            SocketAddr::V4(_) => connection.from.unwrap_or(Ipv4Addr::LOCALHOST.into()),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    let to = connection.to.ip();
    let is_link_local = matches!(to, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let named = connection.device.clone();
    if is_link_local && named.is_none() {
        return no_connection(to, "it is a link-local address: name the device by which it is reached");
    }
    let found = match route_out(routing, named.as_ref(), connection.to, connection) {
        Err(error) if is_refusal(&error) => return Err(no_route(connection, &error)),
        // Where routing can't be asked, the answer says so.
        found => found.ok(),
    };
    match (named, found) {
        // An address of this namespace's own is reached by lo, whatever device its socket is bound to.
        (Some(_), Some(found)) if is_link_local && found.kind == RouteKind::Local => {
            connection.device = Some(Name::from(LOOPBACK));
        }
        (Some(named), _) if named.as_bytes() != LOOPBACK => return Ok(Destination::Bound),
        (None, Some(found)) if found.kind == RouteKind::NotUnicast => return no_connection(to, NOT_UNICAST),
        (None, Some(found)) => {
            connection.device = Some(found.device.name);
            connection.from = found.source;
        }
        (Some(_) | None, _) => {}
    }
    Ok(Destination::Usual)
}

/// The names of the device by which the route back to the other host leaves, and of lo; of lo alone, if there is none. None: it
/// isn't known which host that is, or routing can't be asked.
pub(super) fn device_back(routing: &Routing, connection: &Connection) -> Option<Intervals> {
    let to = match connection.direction {
        Direction::Inbound => connection.from?,
        Direction::Outbound => connection.to.ip(),
    };
    // It has one on each link.
    if matches!(to, IpAddr::V6(v6) if v6.is_unicast_link_local()) {
        return Some(Field::InInterface.any());
    }
    let lo = interface(LOOPBACK);
    match routing.route(Packet { uid: None, ..packet(SocketAddr::new(to, 0), connection) }) {
        // Then whatever comes in comes by that.
        Ok(found) if routing.network.only_device().is_some_and(|only| only.name == found.device.name) => {
            Some(Field::InInterface.any())
        }
        Ok(found) => Some(Intervals::each([lo, interface(found.device.name.as_bytes())])),
        Err(error) if is_refusal(&error) => Some(Intervals::one(lo)),
        Err(_) => None,
    }
}

fn no_route(connection: &Connection, error: &ReadError) -> Error {
    Error::NoRoute { to: connection.to.ip(), from: connection.from, errno: errno(error) }
}

/// By which devices connections leave that other programs' rules send to other addresses: by lo, if these are of this
/// namespace; by none, if routing refuses them.
pub(super) fn of_others(
    routing: &Routing,
    found: &Found,
    connection: &Connection,
    destination: Destination,
) -> Vec<(IpAddr, Option<Name>)> {
    /// For more addresses, routing isn't asked.
    const MOST: usize = 32;
    let mut addresses = BTreeSet::new();
    for rule in found.tables.iter().flat_map(Table::rules) {
        if let Action::Nat(nat) = &rule.action {
            addresses.extend(nat.address.filter(|to| to.is_ipv4() == connection.to.is_ipv4()));
        }
    }
    let bound = connection.device.as_ref().filter(|_| destination == Destination::Bound);
    let mut routes = Vec::new();
    for to in addresses.into_iter().take(MOST) {
        let target = SocketAddr::new(to, connection.to.port());
        let found = match connection.direction {
            Direction::Inbound => routing.route(packet(target, connection)),
            Direction::Outbound => route_out(routing, bound, target, connection),
        };
        match found {
            Ok(found) => routes.push((to, Some(found.device.name))),
            // What comes in may have a route of its own, by the device at which it does.
            Err(error) if is_refusal(&error) && connection.direction == Direction::Outbound => routes.push((to, None)),
            Err(_) => {}
        }
    }
    routes
}

/// The route of a packet to this address from a socket that may be bound to a device.
fn route_out(
    routing: &Routing,
    bound: Option<&Name>,
    to: SocketAddr,
    connection: &Connection,
) -> Result<Route, ReadError> {
    let Some(bound) = bound else {
        return routing.route(leaving(to, connection));
    };
    let index = routing.device(bound.as_bytes())?.index;
    // With a source, the device is only a wish to IPv6 (`ip6_route_output_flags`).
    routing.route(Packet { device: Some(index), ..packet(to, connection) }).or_else(|refused| {
        match routing.route(Packet { device: Some(index), ..leaving(to, connection) }) {
            Ok(found) if connection.from.is_some() && found.device.index == index => Ok(found),
            _ => Err(refused),
        }
    })
}

/// A packet of the connection, to this address.
fn leaving(to: SocketAddr, connection: &Connection) -> Packet {
    Packet { from: connection.from, from_port: connection.from_port, ..packet(to, connection) }
}

/// A packet of the connection's user, to this address from any.
fn packet(to: SocketAddr, connection: &Connection) -> Packet {
    Packet { to, from: None, from_port: None, uid: connection.uid, device: None }
}

fn errno(error: &ReadError) -> error::Errno {
    error::Errno::of(match error {
        ReadError::Socket(errno) | ReadError::NotAsked(errno) => *errno,
        ReadError::Malformed(_) | ReadError::Interrupted => Errno::EBADMSG,
    })
}

/// What routing does with a connection that the rules let through.
pub(super) fn deliver(routing: &Routing, connection: &Connection, destination: Destination, answer: &mut Answer<'_>) {
    let is_redirected = match answer.verdict {
        Verdict::Proxy(_) => true,
        Verdict::Elsewhere(_) => matches!(answer.action, Some(Action::Redirect(_))),
        _ => false,
    };
    if connection.direction == Direction::Inbound
        && let Some(Action::Nat(Nat { address: Some(to), .. })) = answer.action
        && to.is_loopback()
        && matches!(answer.verdict, Verdict::Proxy(_) | Verdict::Elsewhere(_))
    {
        if let Some(verdict) = to_loopback(routing, connection, *to, &format!("a rule sends it to {to}")) {
            answer.verdict = verdict;
        }
        return;
    }
    if is_redirected {
        let lost = match connection.direction {
            // Routing it again to lo keeps that (`ip_route_me_harder`, `ip6_route_me_harder` in net/netfilter).
            Direction::Outbound if destination == Destination::Bound => connection
                .device
                .as_ref()
                .map(|device| format!("it is redirected to this host, and its socket is bound to {device}")),
            Direction::Outbound => lost_on_lo(routing, connection, &answer.verdict),
            Direction::Inbound => lost_on_device(routing, connection),
        };
        if let Some(why) = lost {
            lose(connection.direction, answer, why);
        }
        return;
    }
    let leaves_by_lo = connection.direction == Direction::Outbound
        && connection.device.as_ref().is_some_and(|device| device.as_bytes() == LOOPBACK);
    if answer.verdict == Verdict::Bypass && leaves_by_lo && routing.device(LOOPBACK).is_ok_and(|lo| !lo.is_up) {
        lose(connection.direction, answer, "lo is down".to_owned());
    }
    let to = connection.to.ip();
    let verdict = match destination {
        Destination::Usual | Destination::Bound => return,
        Destination::Loopback => match to_loopback(routing, connection, to, "no rule redirects it") {
            Some(verdict) => verdict,
            None => return,
        },
        Destination::NotHere => Verdict::Elsewhere(format!(
            "no rule redirects it, and this network namespace, which does not have {to}, can only forward it"
        )),
    };
    // What isn't for this namespace doesn't pass its hook for what is.
    let dropped_at_input = matches!(answer.verdict, Verdict::Dropped | Verdict::Rejected | Verdict::Lost(_))
        && answer.at.is_some_and(|at| answer.steps.iter().any(|step| step.at == at && is_here(step)))
        && !answer.steps.iter().any(|step| matches!(step.matched, Matched::Yes(Action::Redirect(_))));
    if answer.verdict != Verdict::Bypass && !dropped_at_input {
        return;
    }
    answer.steps.retain(|step| !is_here(step));
    if dropped_at_input || destination == Destination::Loopback {
        answer.at = None;
    }
    answer.verdict = verdict;
}

/// What becomes of a connection that arrives for an address of this host alone; none if the kernel lets it through.
fn to_loopback(routing: &Routing, connection: &Connection, to: IpAddr, what: &str) -> Option<Verdict> {
    let why = format!("{what}, and the kernel drops what comes in to {to} by another device than lo");
    match to {
        IpAddr::V4(_) => match takes_localnet(routing, connection) {
            Some(true) => None,
            Some(false) => Some(Verdict::Lost(why)),
            None => Some(Verdict::NotKnown(format!("{why}, unless net.ipv4.conf.*.route_localnet is set"))),
        },
        IpAddr::V6(_) => Some(Verdict::Lost(why)),
    }
}

/// Whether the setting route_localnet has the kernel take what arrives for 127.0.0.0/8; none: that can't be read, or isn't
/// so for each device (`IN_DEV_NET_ROUTE_LOCALNET` in linux/inetdevice.h).
fn takes_localnet(routing: &Routing, connection: &Connection) -> Option<bool> {
    let is_set = |device: &str| Some(setting(&format!("ipv4/conf/{device}/route_localnet"))? != 0);
    if is_set("all")? {
        return Some(true);
    }
    let mut all = match &connection.device {
        Some(name) => vec![is_set(&name.to_string())],
        None => {
            let others = routing.network.devices.iter().flatten().filter(|device| device.index != LOOPBACK_INDEX);
            others.map(|device| is_set(&device.name.to_string())).collect()
        }
    }
    .into_iter();
    let first = all.next()??;
    all.all(|other| other == Some(first)).then_some(first)
}

/// Whether only a connection to this namespace gets there.
fn is_here(step: &Step<'_>) -> bool {
    step.hook == Hook::Input || step.packet != walk::Packet::First
}

/// It does not come in, to this namespace or again by lo.
fn lose(direction: Direction, answer: &mut Answer<'_>, why: String) {
    let after = match direction {
        Direction::Outbound => [Hook::Prerouting, Hook::Input],
        Direction::Inbound => [Hook::Input, Hook::Forward],
    };
    answer.steps.retain(|step| step.packet == walk::Packet::First && !after.contains(&step.hook));
    answer.verdict = Verdict::Lost(why);
}

/// Why a connection that is redirected on its way out is lost: it goes to 127.0.0.1 or ::1, by lo
/// (`nf_nat_redirect_ipv4`, `nf_nat_redirect_ipv6`).
fn lost_on_lo(routing: &Routing, connection: &Connection, verdict: &Verdict) -> Option<String> {
    let localhost = Family::of(connection.to.ip()).localhost();
    let port = match verdict {
        Verdict::Proxy(port) => *port,
        _ => connection.to.port(),
    };
    let is_delivered = match routing.route(packet(SocketAddr::new(localhost, port), connection)) {
        Ok(found) => found.kind == RouteKind::Local && found.device.is_up,
        Err(error) => !is_refusal(&error),
    };
    if is_delivered {
        return None;
    }
    Some(match routing.device(LOOPBACK) {
        Ok(lo) if !lo.is_up => format!("it is redirected to {localhost}, and lo is down"),
        _ => format!("it is redirected to {localhost}, to which this network namespace has no local route"),
    })
}

/// Why a connection that is redirected on its way in is lost: it goes to an address of the device by which it comes in.
fn lost_on_device(routing: &Routing, connection: &Connection) -> Option<String> {
    let to = connection.to.ip();
    let family = Family::of(to);
    let having = routing.having_address_like(to)?;
    let why = match &connection.device {
        Some(name) if having.contains(&routing.device(name.as_bytes()).ok()?.index) => return None,
        None if having.iter().any(|&index| index != LOOPBACK_INDEX) => return None,
        Some(name) => format!("of {name}, which has none"),
        None => "of the device by which it comes in, and no device but lo has one".to_owned(),
    };
    Some(format!("it is redirected to an {family} address {why}"))
}

/// By which device the server's packets go back to who connected, or why they don't; none: that isn't known. The kernel
/// routes them by the address and the port where the connection has arrived, and by the user who listens there
/// (`inet_csk_route_req` in net/ipv4/inet_connection_sock.c).
pub(super) fn way_back(
    routing: &Routing,
    found: &Found,
    connection: &Connection,
    answer: &Answer<'_>,
) -> Option<Result<Option<Name>, String>> {
    let (client, to, direction) = (connection.from?, connection.to, connection.direction);
    let family = Family::of(to.ip());
    let (address, port) = match (&answer.verdict, answer.action) {
        (Verdict::Bypass, _) if direction == Direction::Inbound => (to.ip(), to.port()),
        (Verdict::Proxy(port), Some(Action::Nat(nat))) => (nat.address?, *port),
        (Verdict::Proxy(port), _) if direction == Direction::Outbound => (family.localhost(), *port),
        (Verdict::Proxy(port), _) => (routing.redirected_to(connection)?, *port),
        _ if direction == Direction::Inbound => (to.ip(), to.port()),
        _ => return None,
    };
    let network = &routing.network;
    let mut listening = network.listeners.iter().flatten().filter(|listener| listener.port == port);
    let listening = listening.find(|listener| listener.accepts(direction, family));
    let proxys = || u32::try_from(proxy(&found.tables).uids.as_slice().first()?.0).ok();
    let uid = match listening {
        Some(listener) => Some(listener.uid).filter(|uid| *uid != Listener::UNMAPPED),
        None => proxys().filter(|_| matches!(answer.verdict, Verdict::Proxy(_))),
    };
    let is_known = matches!(answer.verdict, Verdict::Proxy(_) | Verdict::Bypass);
    let reply = Packet {
        to: SocketAddr::new(client, connection.from_port.unwrap_or_default()),
        from: Some(address),
        from_port: Some(port),
        uid,
        device: None,
    };
    match routing.route(reply) {
        Ok(route) => Some(Ok(Some(route.device.name))),
        Err(error) if is_refusal(&error) && is_known => Some(Err(format!(
            "the reply, which the kernel does not route from {address} to {client} ({})",
            errno(&error)
        ))),
        Err(_) => None,
    }
}

/// The connection as it is of other users, if `ip rule` routes by users; none for those to whom routing refuses it.
pub(super) fn of_other_users(
    routing: &Routing,
    found: &Found,
    asked: &Connection,
    connection: &Connection,
) -> Vec<Option<Connection>> {
    if asked.uid.is_some() || asked.direction == Direction::Inbound || asked.to.ip().is_unspecified() {
        return Vec::new();
    }
    let Ok(rules) = routing.answer(route::rules_like(asked.to.ip())) else {
        return Vec::new();
    };
    let is_proxys = |uid: u32| proxy(&found.tables).uids.meets(&[(uid.into(), uid.into())]);
    let mut others = Vec::new();
    for (first, last) in rules.into_iter().filter_map(|rule| rule.users) {
        for uid in [first.checked_sub(1), Some(first), Some(last), last.checked_add(1)] {
            let Some(uid) = uid.filter(|uid| !is_proxys(*uid) && *uid != u32::MAX) else {
                continue;
            };
            let mut other = Connection { uid: Some(uid), ..asked.clone() };
            let route = add_route(routing, &mut other);
            other.uid = None;
            if route.is_err() || (&other.device, other.from) != (&connection.device, connection.from) {
                others.push(route.ok().map(|_| other));
            }
        }
    }
    others
}

/// The rule that gives a packet a mark after which it is, or may be, routed by another route: `ip rule` has rules about
/// marks. What is for this namespace, as what was redirected on its way out, the local table routes before these.
pub(super) fn marked<'a>(routing: &Routing, connection: &Connection, answer: &Answer<'a>) -> Option<Place<'a>> {
    let is_inbound = connection.direction == Direction::Inbound;
    let is_local = !is_inbound && connection.device.as_ref().is_some_and(|name| name.as_bytes() == LOOPBACK);
    if is_local || matches!(answer.verdict, Verdict::Dropped | Verdict::Rejected | Verdict::NotKnown(_)) {
        return None;
    }
    let sets_mark = |effect: &Effect| matches!(effect, Effect::Mark { field: Field::Mark, .. });
    let is_before = |step: &&Step<'_>| is_inbound || !matches!(step.matched, Matched::Yes(Action::Redirect(_)));
    let at = answer.steps.iter().take_while(is_before).find_map(|step| {
        let is_routed = match step.packet {
            // A socket may take over the mark of what it accepts.
            walk::Packet::First if is_inbound => routing.network.settings.keeps_mark,
            walk::Packet::First => step.hook == Hook::Output,
            walk::Packet::Reply => is_inbound && step.hook == Hook::Output,
            _ => false,
        };
        let may_match = !matches!(step.matched, Matched::No(_));
        let rule = step.at.rule().filter(|_| is_routed && may_match)?;
        rule.effects.iter().any(sets_mark).then_some(step.at)
    })?;
    let rules = routing.answer(route::rules_like(connection.to.ip())).ok()?;
    rules.iter().any(|rule| rule.is_by_mark).then_some(at)
}

/// The neighbours who have to find each other before the connection's first packet; none if there is nothing to find.
pub(super) fn neighbours(
    routing: &Routing,
    connection: &Connection,
    destination: Destination,
    answer: &Answer<'_>,
) -> Option<Neighbours> {
    match connection.direction {
        Direction::Inbound if destination == Destination::Usual => asked_from_outside(routing, connection),
        Direction::Outbound if answer.verdict == Verdict::Bypass => asking_outside(routing, connection, destination),
        _ => None,
    }
}

/// Who comes in asks for the address to which the connection goes.
fn asked_from_outside(routing: &Routing, connection: &Connection) -> Option<Neighbours> {
    let to = connection.to.ip();
    let having = routing.having_address_like(to)?;
    let mut devices = match &connection.device {
        Some(name) => vec![routing.device(name.as_bytes()).ok()?],
        None => routing.network.devices.clone()?,
    };
    devices.retain(|device| device.index != LOOPBACK_INDEX && having.contains(&device.index));
    if devices.is_empty() || devices.iter().any(|device| !device.has_neighbours) {
        return None;
    }
    let known = routing.neighbours_like(to).ok()?;
    let asking = match connection.from {
        Some(from) => {
            let port = connection.from_port.unwrap_or_default();
            let back = routing.route(packet(SocketAddr::new(from, port), connection)).ok()?;
            let first = back.gateway.unwrap_or(from);
            if is_known(&known, &back.device, first) {
                return None;
            }
            // A router asks from its own address on the link.
            if back.gateway.is_some() { Neighbours::link_local() } else { Intervals::one(address(from)) }
        }
        None => {
            let is_pinned = |neighbour: &Neighbour| neighbour.is_permanent && !neighbour.address.is_multicast();
            if known.iter().any(is_pinned) {
                return None;
            }
            Neighbours::unicast()
        }
    };
    Some(Neighbours {
        family: Family::of(to),
        direction: Direction::Inbound,
        devices: Intervals::each(devices.iter().map(|device| interface(device.name.as_bytes()))),
        asking,
        asked: Intervals::one(address(to)),
    })
}

/// What goes out asks for whom it goes to first.
fn asking_outside(routing: &Routing, connection: &Connection, destination: Destination) -> Option<Neighbours> {
    let device = routing.device(connection.device.as_ref()?.as_bytes()).ok()?;
    if !device.has_neighbours {
        return None;
    }
    let bound = Some(&device.name).filter(|_| destination == Destination::Bound);
    let gateway = route_out(routing, bound, connection.to, connection).ok().and_then(|route| route.gateway);
    let first = gateway.unwrap_or(connection.to.ip());
    if is_known(&routing.neighbours_like(first).ok()?, &device, first) {
        return None;
    }
    Some(Neighbours {
        family: Family::of(first),
        direction: Direction::Outbound,
        devices: Intervals::one(interface(device.name.as_bytes())),
        asking: match connection.from {
            Some(from) => Intervals::one(address(from)),
            None => Neighbours::unicast(),
        },
        asked: Intervals::one(address(first)),
    })
}

fn is_known(known: &[Neighbour], device: &Device, host: IpAddr) -> bool {
    known.iter().any(|neighbour| (neighbour.device, neighbour.address) == (device.index, host))
}
