//! The kernel's routing: its additions to a connection, and its treatment of connections that the rules let through.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use netfilter::netlink::ReadError;
use netfilter::netlink::route::{self, Neighbour, Packet, Route, RouteKind};
use nix::errno::Errno;
use ruleset::{
    Action, Direction, Effect, Family, Field, Hook, Intervals, LOOPBACK, Name, Table, address, interface, ip,
};
use ruleset::{Device, Listener, Network, Ruleset};
use trace::{self, Leg, Matched, Neighbours, Place, Step, names_except_lo};

use crate::diagnose::explain::answer::{Answer, Connection, Verdict, proxy};
use crate::diagnose::snapshot::{network, setting};
use crate::error::Error;

/// The kernel's routing in the thread's network namespace. A question that it doesn't answer is none; then the user's
/// answer is that it isn't known ([`Routing::doubt`]).
#[derive(Debug)]
pub(in crate::diagnose) struct Routing {
    /// The reason why it did not answer a question, if there was one.
    silent: OnceCell<String>,
    pub(in crate::diagnose) network: Network,
}

/// A connection with its destination and its route, as far as routing knows them.
pub(super) struct Routed<'r> {
    routing: &'r Routing,
    pub(super) connection: Connection,
    destination: Destination,
}

/// The kind of a connection's destination, before any rule changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Destination {
    /// An inbound connection goes to an address of this namespace, or an outbound one where routing leads.
    Usual,
    /// An outbound connection leaves by the named device, to which its socket is bound.
    Bound,
    /// An inbound connection on another device than lo goes to an address of 127.0.0.0/8.
    Loopback,
    /// An inbound connection goes to an address that this namespace doesn't have.
    NotHere,
}

impl Routing {
    pub(in crate::diagnose) fn read() -> Self {
        Self { silent: OnceCell::new(), network: network() }
    }

    fn note_silence<T>(&self, answer: Result<T, ReadError>) -> Option<T> {
        answer.map_err(|error| self.silent.set(error.to_string())).ok()
    }

    fn route(&self, packet: Packet) -> Option<Result<Route, Errno>> {
        self.note_silence(route::route(packet))
    }

    /// The route of a packet to this address from a socket that may be bound to a device.
    fn outbound_route(
        &self,
        bound: Option<&Name>,
        to: SocketAddr,
        connection: &Connection,
    ) -> Option<Result<Route, Errno>> {
        let device = match bound {
            Some(bound) => Some(self.known_device(self.network.device_named(bound))?.index),
            None => None,
        };
        let to_it = Packet { device, ..packet(to, connection) };
        let leaving = Packet { from: connection.from, from_port: connection.from_port, ..to_it };
        if to.is_ipv6() && device.is_some() {
            // With a source, the device is only a wish to IPv6 (`ip6_route_output_flags`).
            let refused = match self.route(to_it)? {
                Err(refused) if connection.from.is_some() => refused,
                route => return Some(route),
            };
            let route = self.route(leaving)?.ok();
            return Some(route.filter(|route| Some(route.device) == device).ok_or(refused));
        }
        match self.route(leaving)? {
            // IPv4's connect() asks again when the first route has told the source (`ip_route_connect` in net/route.h).
            Ok(Route { source: Some(source), .. }) if to.is_ipv4() && connection.from.is_none() => {
                self.route(Packet { from: Some(source), ..leaving })
            }
            route => Some(route),
        }
    }

    /// Returns a listed device. If it is missing, it was made since, so it isn't known where routes lead.
    fn known_device<'a>(&self, device: Option<&'a Device>) -> Option<&'a Device> {
        if device.is_none() {
            let _ = self.silent.set("a network device was made meanwhile: try again".to_owned());
        }
        device
    }

    fn device_name(&self, route: Route) -> Option<&Name> {
        Some(&self.known_device(self.network.device(route.device))?.name)
    }

    /// The beginning of an answer that isn't known, because routing did not answer a question that may decide otherwise.
    pub(super) fn doubt(&self) -> Option<String> {
        let error = self.network.links_not_known.as_ref().or(self.silent.get())?;
        Some(format!("the kernel's routing cannot be asked ({error}); by the rules alone"))
    }

    /// The connection, if it can exist. An alternative name of its device becomes the name that rules see.
    pub(super) fn check(&self, asked: &Connection) -> Result<Connection, Error> {
        let to = asked.to.ip();
        if to.is_multicast() || to == Ipv4Addr::BROADCAST {
            return refuse_connection(to, NOT_UNICAST);
        }
        let mut connection = asked.clone();
        if let Some(named) = &asked.device {
            let device = match route::device(named.as_bytes()) {
                Err(ReadError::Socket(Errno::ENODEV)) => return Err(Error::NoDevice { device: named.to_string() }),
                device => self.note_silence(device),
            };
            connection.device = device.map(|device| device.name).or(connection.device);
        }
        Ok(connection)
    }

    /// The connection, completed by routing.
    pub(super) fn route_connection(&self, connection: Connection) -> Result<Routed<'_>, Error> {
        match connection.direction {
            Direction::Inbound => self.route_inbound(connection),
            Direction::Outbound => self.route_outbound(connection),
        }
    }

    /// The same destination, or the pod's own first address in place of the unspecified one.
    pub(super) fn own_address(&self, to: SocketAddr) -> SocketAddr {
        let own = self.network.wide_addresses(Family::of(to.ip())).next().filter(|_| to.ip().is_unspecified());
        own.map_or(to, |own| SocketAddr::new(own.address, to.port()))
    }

    fn route_inbound(&self, mut connection: Connection) -> Result<Routed<'_>, Error> {
        connection.to = self.own_address(connection.to);
        let to = connection.to.ip();
        if connection.from.is_some_and(|from| self.is_source_dropped(from, &connection)) {
            let why = "the kernel drops packets from that source address that arrive on another device than lo: \
                       name another host's";
            return refuse_connection(to, why);
        }
        if to.is_unspecified() {
            return refuse_connection(to, "name an address of this network namespace");
        }
        // `ip6_rcv_core` drops it before any hook.
        if to == Ipv6Addr::LOCALHOST {
            return refuse_connection(
                to,
                "the kernel drops what comes in to it from another host: use `explain outbound`",
            );
        }
        let destination = if to.is_loopback() {
            Destination::Loopback
        } else {
            match self.route(packet(connection.to, &connection)).map(|route| route.map(|route| route.kind)) {
                Some(Ok(RouteKind::NotUnicast)) => return refuse_connection(to, NOT_UNICAST),
                Some(Ok(RouteKind::Unicast) | Err(_)) => Destination::NotHere,
                Some(Ok(RouteKind::Local)) | None => Destination::Usual,
            }
        };
        Ok(Routed { routing: self, connection, destination })
    }

    /// Returns true if the kernel drops packets from this address that arrive on another device than lo: it is no
    /// host's, or this host's own (`ip_route_input_slow` in net/ipv4/route.c, `ip6_rcv_core` in net/ipv6/ip6_input.c).
    fn is_source_dropped(&self, from: IpAddr, connection: &Connection) -> bool {
        let is_nobodys = match from {
            IpAddr::V4(v4) => v4.octets()[0] == 0 || v4 == Ipv4Addr::BROADCAST,
            IpAddr::V6(v6) => v6.is_unspecified(),
        };
        let own = || self.route(packet(SocketAddr::new(from, connection.to.port()), connection));
        from.is_loopback()
            || from.is_multicast()
            || is_nobodys
            || (from.is_ipv4() && matches!(own(), Some(Ok(route)) if route.kind != RouteKind::Unicast))
    }

    fn route_outbound(&self, mut connection: Connection) -> Result<Routed<'_>, Error> {
        // connect() to no address is one to this host (`ip_route_output_key_hash`, `tcp_v6_connect`).
        if connection.to.ip().is_unspecified() {
            connection.to.set_ip(match connection.to {
                SocketAddr::V4(_) => connection.from.unwrap_or(Ipv4Addr::LOCALHOST.into()),
                SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        let to = connection.to.ip();
        let is_link_local = is_link_local(to);
        if is_link_local && connection.device.is_none() {
            return refuse_connection(to, "it is a link-local address: name the device by which it is reached");
        }
        let route = match self.outbound_route(connection.device.as_ref(), connection.to, &connection) {
            Some(Err(errno)) => {
                return Err(Error::NoRoute { to, from: connection.from, errno });
            }
            route => route.and_then(Result::ok),
        };
        let mut destination = Destination::Usual;
        match (&connection.device, route) {
            // An address of this namespace is reached by lo, whatever device the socket is bound to.
            (Some(_), Some(route)) if route.kind == RouteKind::Local => {
                connection.device = self.device_name(route).cloned();
            }
            (Some(named), _) if named.as_bytes() != LOOPBACK => destination = Destination::Bound,
            (None, Some(route)) if route.kind == RouteKind::NotUnicast => {
                return refuse_connection(to, NOT_UNICAST);
            }
            (None, Some(route)) => {
                connection.device = self.device_name(route).cloned();
                connection.from = route.source;
            }
            (Some(_) | None, _) => {}
        }
        Ok(Routed { routing: self, connection, destination })
    }
}

fn refuse_connection<T>(to: IpAddr, reason: &'static str) -> Result<T, Error> {
    Err(Error::NoConnection { to, reason })
}

const NOT_UNICAST: &str = "it is a broadcast, multicast or anycast address: name a host's address";

/// Returns true if the address says nothing without a device.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// A packet of the connection's user to this address, from any.
fn packet(to: SocketAddr, connection: &Connection) -> Packet {
    Packet { to, from: None, from_port: None, uid: connection.uid, device: None }
}

impl<'r> Routed<'r> {
    /// The destination, if this namespace doesn't have it, and no device is named by which it may come to be forwarded.
    pub(super) fn stray_destination(&self, asked: &Connection) -> Option<IpAddr> {
        (self.destination == Destination::NotHere && asked.device.is_none()).then(|| self.connection.to.ip())
    }

    pub(super) fn network(&self) -> &'r Network {
        &self.routing.network
    }

    /// Returns true if the connection stays in this namespace.
    pub(super) fn is_by_lo(&self) -> bool {
        self.connection.direction == Direction::Outbound
            && self.connection.device.as_ref().is_some_and(|device| device.as_bytes() == LOOPBACK)
    }

    /// The names, as numbers, of the devices on which it may arrive.
    fn devices(&self) -> Intervals {
        self.connection.device.as_ref().map_or_else(names_except_lo, |name| Intervals::one(interface(name.as_bytes())))
    }

    /// The route of one of its packets to this address.
    fn route_to(&self, to: SocketAddr) -> Option<Result<Route, Errno>> {
        let bound = self.connection.device.as_ref().filter(|_| self.destination == Destination::Bound);
        match self.connection.direction {
            Direction::Inbound => self.routing.route(packet(to, &self.connection)),
            Direction::Outbound => self.routing.outbound_route(bound, to, &self.connection),
        }
    }

    /// The names of lo and of the device by which the route back to the other host leaves, if there is one. None: that host
    /// isn't known, or routing can't be asked.
    pub(super) fn device_back(&self) -> Option<Intervals> {
        let (to, from) = match self.connection.direction {
            Direction::Inbound => {
                let is_here = self.destination == Destination::Usual;
                (self.connection.from?, is_here.then_some(self.connection.to.ip()))
            }
            Direction::Outbound => (self.connection.to.ip(), self.connection.from),
        };
        if is_link_local(to) {
            return Some(Field::InInterface.any());
        }
        let lo = interface(LOOPBACK);
        let back = Packet { from, uid: None, ..packet(SocketAddr::new(to, 0), &self.connection) };
        let back = self.routing.route(back)?;
        let Ok(route) = back else {
            return Some(Intervals::one(lo));
        };
        // Then every packet arrives on that.
        if self.network().only_device().is_some_and(|only| only.index == route.device) {
            return Some(Field::InInterface.any());
        }
        Some(Intervals::each([lo, interface(self.routing.device_name(route)?.as_bytes())]))
    }

    /// The devices by which connections leave that nat rules send to other addresses: lo for addresses of this namespace,
    /// none if routing refuses them.
    pub(super) fn routes_of_nat(&self, ruleset: &Ruleset) -> Vec<(IpAddr, Option<Name>)> {
        /// The most addresses about which routing is asked.
        const MOST: usize = 32;
        let Connection { to, direction, .. } = self.connection;
        let mut addresses = BTreeSet::new();
        for rule in ruleset.tables.iter().flat_map(Table::rules) {
            if let Action::Nat(nat) = &rule.action {
                addresses.extend(nat.address().filter(|address| address.is_ipv4() == to.is_ipv4()));
            }
        }
        let mut routes = Vec::new();
        for address in addresses.into_iter().take(MOST) {
            match self.route_to(SocketAddr::new(address, to.port())) {
                Some(Ok(ruleset)) => {
                    routes.extend(self.routing.device_name(ruleset).map(|name| (address, Some(name.clone()))))
                }
                // Inbound packets may have another route, by the device on which they arrive.
                Some(Err(_)) if direction == Direction::Outbound => routes.push((address, None)),
                _ => {}
            }
        }
        routes
    }

    /// Applies routing's treatment of a connection that the rules let through to an answer.
    pub(super) fn deliver(&self, answer: &mut Answer<'_>) {
        let Connection { to, direction, ref device, .. } = self.connection;
        let is_inbound = direction == Direction::Inbound;
        let (is_sent, is_redirected) = match answer.verdict {
            Verdict::Proxy(_) => (true, true),
            Verdict::Elsewhere(_) => (true, matches!(answer.action, Some(Action::Redirect(_)))),
            _ => (false, false),
        };
        // To IPv4, a packet to an address of this namespace comes by the device that has it
        // (`ip_route_output_key_hash_rcu`).
        if let (Some(bound), Destination::Bound, Verdict::Rejected) = (device, self.destination, &answer.verdict)
            && to.is_ipv6()
        {
            answer.verdict = Verdict::Lost(format!("rejected, and the rejection comes by lo, not to {bound}"));
        }
        if let Some(Action::Nat(nat)) = answer.action
            && let Some(to) = nat.address()
            && is_sent
            && is_inbound
            && to.is_loopback()
        {
            if let Some(verdict) = self.loopback_verdict(to, &format!("a rule sends it to {to}")) {
                answer.verdict = verdict;
            }
            return;
        }
        if is_redirected {
            let lost = match device {
                _ if is_inbound => self.loss_on_device(),
                // The kernel routes it again, still by that device (`ip_route_me_harder`, `ip6_route_me_harder` in
                // net/netfilter).
                Some(device) if self.destination == Destination::Bound => {
                    Some(format!("it is redirected to this host, and its socket is bound to {device}"))
                }
                _ => self.loss_on_lo(&answer.verdict),
            };
            if let Some(why) = lost {
                lose_connection(direction, answer, why);
            }
            return;
        }
        if answer.verdict == Verdict::Bypass && self.is_by_lo() && self.network().is_lo_down() {
            lose_connection(direction, answer, "lo is down".to_owned());
        }
        let to = to.ip();
        let verdict = match self.destination {
            Destination::Usual | Destination::Bound => return,
            Destination::Loopback => match self.loopback_verdict(to, "no rule redirects it") {
                Some(verdict) => verdict,
                None => return,
            },
            Destination::NotHere => Verdict::Elsewhere(format!(
                "no rule redirects it, and this network namespace, which does not have {to}, can only forward it"
            )),
        };
        // A packet that isn't for this namespace doesn't pass the input hook.
        let dropped_at_input = matches!(answer.verdict, Verdict::Dropped | Verdict::Rejected | Verdict::Lost(_))
            && answer.at.is_some_and(|at| answer.steps.iter().any(|step| step.at == at && is_here(step)))
            && !answer.steps.iter().any(|step| matches!(step.matched, Matched::Yes(Action::Redirect(_))));
        if answer.verdict != Verdict::Bypass && !dropped_at_input {
            return;
        }
        answer.steps.retain(|step| !is_here(step));
        if dropped_at_input || self.destination == Destination::Loopback {
            answer.at = None;
        }
        answer.verdict = verdict;
    }

    /// The fate of a connection that arrives for an address of lo; none if the kernel lets the connection through.
    fn loopback_verdict(&self, to: IpAddr, what: &str) -> Option<Verdict> {
        let why = format!("{what}, and the kernel drops packets to {to} that arrive on another device than lo");
        let is_taken = if to.is_ipv4() { self.takes_localnet() } else { Some(false) };
        match is_taken {
            Some(true) => None,
            Some(false) => Some(Verdict::Lost(why)),
            None => Some(Verdict::NotKnown(format!("{why}, unless net.ipv4.conf.*.route_localnet is set"))),
        }
    }

    /// True if the setting route_localnet makes the kernel accept packets for 127.0.0.0/8; none: it can't be read, or
    /// differs between devices (`IN_DEV_NET_ROUTE_LOCALNET` in linux/inetdevice.h).
    fn takes_localnet(&self) -> Option<bool> {
        let is_set = |device: &str| Some(setting(&format!("ipv4/conf/{device}/route_localnet"))? != 0);
        if is_set("all")? {
            return Some(true);
        }
        let by = self.devices();
        let devices = self.network().devices.iter().filter(|device| by.includes(&Device::names([*device])));
        let mut all = devices.map(|device| is_set(&device.name.to_string()));
        let first = all.next()??;
        all.all(|other| other == Some(first)).then_some(first)
    }

    /// The reason why a redirected outbound connection is lost, if it is: it goes to 127.0.0.1 or ::1, by lo
    /// (`nf_nat_redirect_ipv4`, `nf_nat_redirect_ipv6`).
    fn loss_on_lo(&self, verdict: &Verdict) -> Option<String> {
        let localhost = Family::of(self.connection.to.ip()).localhost();
        let port = match verdict {
            Verdict::Proxy(port) => *port,
            _ => self.connection.to.port(),
        };
        let route = self.routing.route(packet(SocketAddr::new(localhost, port), &self.connection))?;
        if self.network().is_lo_down() {
            return Some(format!("it is redirected to {localhost}, and lo is down"));
        }
        let is_local = route.is_ok_and(|route| route.kind == RouteKind::Local);
        (!is_local)
            .then(|| format!("it is redirected to {localhost}, to which this network namespace has no local route"))
    }

    /// The reason why a redirected inbound connection is lost, if it is: it goes to an address of the device on which
    /// it arrives.
    fn loss_on_device(&self) -> Option<String> {
        let network = self.network();
        let family = Family::of(self.connection.to.ip());
        let having = network.devices_with(family, &Field::Source(family).any());
        if network.links_not_known.is_some() || having.meets(self.devices().as_slice()) {
            return None;
        }
        let why = match &self.connection.device {
            Some(name) => format!("of {name}, which has none"),
            None => "of the device by which it comes in, and no device but lo has one".to_owned(),
        };
        Some(format!("it is redirected to an {family} address {why}"))
    }

    /// The address to which a redirected inbound connection goes; none if that isn't known.
    fn redirect_address(&self) -> Option<IpAddr> {
        let to = self.connection.to.ip();
        let family = Family::of(to);
        let own = self.network().redirect_addresses(family, &self.devices())?;
        match own.as_slice() {
            &[(first, last)] if first == last => ip(family, first),
            _ if own.meets(&[(address(to), address(to))]) => Some(to),
            _ => None,
        }
    }

    /// The device by which the server's packets go back to the client, or why they don't; none: that isn't known. The
    /// kernel routes them by the address and the port at which the connection has arrived, and by the user who listens
    /// there (`inet_csk_route_req` in net/ipv4/inet_connection_sock.c).
    pub(super) fn way_back(&self, ruleset: &Ruleset, answer: &Answer<'_>) -> Option<Result<&'r Name, String>> {
        let Connection { to, direction, from_port, .. } = self.connection;
        let client = self.connection.from?;
        let is_inbound = direction == Direction::Inbound;
        let family = Family::of(to.ip());
        let (address, port) = match (&answer.verdict, answer.action) {
            (Verdict::Proxy(port), Some(Action::Nat(nat))) => (nat.address()?, *port),
            (Verdict::Proxy(port), _) if is_inbound => (self.redirect_address()?, *port),
            (Verdict::Proxy(port), _) => (family.localhost(), *port),
            _ if is_inbound => (to.ip(), to.port()),
            _ => return None,
        };
        let listening = self.network().listeners.iter().filter(|listener| {
            let bound = listener.address.to_canonical();
            let takes_address = bound.is_unspecified() || bound == address;
            listener.port == port && takes_address && listener.accepts(direction, family)
        });
        // A listener on the address goes before a listener on any address.
        let uid = match listening.min_by_key(|listener| listener.address.to_canonical().is_unspecified()) {
            Some(listener) => Some(listener.uid).filter(|uid| *uid != Listener::UNMAPPED),
            None if matches!(answer.verdict, Verdict::Proxy(_)) => {
                proxy(&ruleset.tables).uids.as_slice().first().and_then(|&(first, _)| u32::try_from(first).ok())
            }
            None => None,
        };
        let to = SocketAddr::new(client, from_port.unwrap_or_default());
        let reply = Packet { to, from: Some(address), from_port: Some(port), uid, device: None };
        match self.routing.route(reply)? {
            Ok(route) => self.routing.device_name(route).map(Ok),
            Err(errno) if matches!(answer.verdict, Verdict::Proxy(_) | Verdict::Bypass) => {
                Some(Err(format!("the reply, which the kernel does not route from {address} to {client} ({errno})")))
            }
            Err(_) => None,
        }
    }

    /// The connection as other users would make it, if `ip rule` routes by users; none for users to whom routing
    /// refuses it. `asked` is the connection that was asked about.
    pub(super) fn for_other_users(&self, ruleset: &Ruleset, asked: &Connection) -> Vec<Option<Self>> {
        if asked.uid.is_some() || asked.direction == Direction::Inbound || asked.to.ip().is_unspecified() {
            return Vec::new();
        }
        let rules = self.routing.note_silence(route::rules(Family::of(asked.to.ip()))).unwrap_or_default();
        let proxys = proxy(&ruleset.tables).uids;
        let mut others = Vec::new();
        for (first, last) in rules.into_iter().filter_map(|rule| rule.users) {
            for uid in [first.checked_sub(1), Some(first), Some(last), last.checked_add(1)] {
                let Some(uid) = uid.filter(|&uid| !proxys.meets(&[(uid.into(), uid.into())]) && uid != u32::MAX) else {
                    continue;
                };
                let other = self.routing.route_outbound(Connection { uid: Some(uid), ..asked.clone() }).ok();
                let other =
                    other.map(|other| Self { connection: Connection { uid: None, ..other.connection }, ..other });
                if other.as_ref().is_none_or(|other| other.connection != self.connection) {
                    others.push(other);
                }
            }
        }
        others
    }

    /// The rule that gives a packet a mark by which `ip rule` routes it, or may route it. Before these rules, the local
    /// table routes packets for this namespace, redirected outbound ones among them.
    pub(super) fn marking_rule<'a>(&self, answer: &Answer<'a>) -> Option<Place<'a>> {
        if self.is_by_lo() || matches!(answer.verdict, Verdict::Dropped | Verdict::Rejected | Verdict::NotKnown(_)) {
            return None;
        }
        let is_inbound = self.connection.direction == Direction::Inbound;
        let sets_mark = |effect: &Effect| matches!(effect, Effect::Mark { field: Field::Mark, .. });
        let is_before = |step: &&Step<'_>| is_inbound || !matches!(step.matched, Matched::Yes(Action::Redirect(_)));
        let at = answer.steps.iter().take_while(is_before).find_map(|step| {
            let is_routed = match step.packet {
                // An accepted connection's socket may take over the mark of its first packet.
                Leg::First if is_inbound => self.network().settings.keeps_mark,
                Leg::First => step.hook == Hook::Output,
                Leg::Reply => is_inbound && step.hook == Hook::Output,
                _ => false,
            };
            let may_match = !matches!(step.matched, Matched::No(_));
            let rule = step.at.rule().filter(|_| is_routed && may_match)?;
            rule.effects.iter().any(sets_mark).then_some(step.at)
        })?;
        let rules = self.routing.note_silence(route::rules(Family::of(self.connection.to.ip())))?;
        rules.iter().any(|rule| rule.is_by_mark).then_some(at)
    }

    /// The neighbours that have to find each other before the connection's first packet, if any.
    pub(super) fn neighbours(&self, answer: &Answer<'_>) -> Option<Neighbours> {
        match self.connection.direction {
            Direction::Inbound if self.destination == Destination::Usual => self.neighbours_who_ask(),
            Direction::Outbound if answer.verdict == Verdict::Bypass => self.neighbours_to_ask(),
            _ => None,
        }
    }

    /// The host that connects asks for the address to which the connection goes.
    fn neighbours_who_ask(&self) -> Option<Neighbours> {
        let Connection { to, from, from_port, .. } = self.connection;
        let family = Family::of(to.ip());
        let having = self.network().devices_with(family, &Field::Source(family).any());
        let devices = having.and(&self.devices()).and(&names_except_lo());
        let finding = Device::names(self.network().devices.iter().filter(|device| device.has_neighbours));
        if devices.is_empty() || !finding.includes(&devices) {
            return None;
        }
        let known = self.routing.note_silence(route::neighbours(family))?;
        let asking = match from {
            Some(from) => {
                let back = packet(SocketAddr::new(from, from_port.unwrap_or_default()), &self.connection);
                let back = self.routing.route(back)?.ok()?;
                let first = back.gateway.unwrap_or(from);
                if is_known(&known, back.device, first) {
                    return None;
                }
                // A router asks from its own address on the link.
                if back.gateway.is_some() { Neighbours::link_local() } else { Intervals::one(address(from)) }
            }
            None if known.iter().any(|neighbour| neighbour.is_pinned) => return None,
            None => Neighbours::unicast(),
        };
        let asked = Intervals::one(address(to.ip()));
        Some(Neighbours { family, direction: Direction::Inbound, devices, asking, asked })
    }

    /// This namespace asks for the host to which the connection goes first.
    fn neighbours_to_ask(&self) -> Option<Neighbours> {
        let Connection { to, from, ref device, .. } = self.connection;
        let device = self.network().device_named(device.as_ref()?).filter(|device| device.has_neighbours)?;
        let gateway = self.route_to(to).and_then(|route| route.ok()?.gateway);
        let first = gateway.unwrap_or(to.ip());
        let family = Family::of(first);
        if is_known(&self.routing.note_silence(route::neighbours(family))?, device.index, first) {
            return None;
        }
        Some(Neighbours {
            family,
            direction: Direction::Outbound,
            devices: Device::names([device]),
            asking: from.map_or_else(Neighbours::unicast, |from| Intervals::one(address(from))),
            asked: Intervals::one(address(first)),
        })
    }
}

/// Returns true if only a connection to this namespace reaches this step.
fn is_here(step: &Step<'_>) -> bool {
    step.hook == Hook::Input || step.packet != Leg::First
}

/// Makes the verdict that the connection is lost before it arrives, or before it arrives again on lo.
fn lose_connection(direction: Direction, answer: &mut Answer<'_>, why: String) {
    let after = match direction {
        Direction::Outbound => [Hook::Prerouting, Hook::Input],
        Direction::Inbound => [Hook::Input, Hook::Forward],
    };
    answer.steps.retain(|step| step.packet == Leg::First && !after.contains(&step.hook));
    answer.verdict = Verdict::Lost(why);
}

fn is_known(known: &[Neighbour], device: u32, host: IpAddr) -> bool {
    known.iter().any(|neighbour| (neighbour.device, neighbour.address) == (device, host))
}
