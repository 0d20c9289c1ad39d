//! Looks for the proxy: the listeners on its ports, and their users.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use derive_more::Display;
use ruleset::{Direction, Family, Intervals, Name, address};
use ruleset::{Listener, Network, Queue};
use trace::names_except_lo;

use crate::config::warnings::{Warning as OfFlags, warnings as of_flags};
use crate::config::{Config, OwnerId, Port, Subnet};
use crate::diagnose::explain::answer::{Connection, Verdict};

/// Probable defects of the connections, beside correct rules.
#[derive(Debug, Clone, PartialEq, Eq, Display)]
#[non_exhaustive]
pub enum PodWarning {
    /// The flags with which the rules are installed are probably a mistake.
    #[display("{_0}")]
    Config(OfFlags),
    /// Connections are redirected to a port on which nothing listens for these families; for any, if there are none.
    #[display("nothing listens on port {port}{}", refused_families(families))]
    NotListening { port: Port, families: Vec<Family> },
    /// Connections are redirected to a port on which nothing listens, while the proxy's user listens `at` others.
    #[display(
        "nothing listens on port {port}, so connections are refused: user {uid}, the proxy's by the rules, listens on {}",
        at.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
    )]
    OtherPort { port: Port, uid: u32, at: Vec<u16> },
    /// Another user listens than the one that the rules exempt, so the proxy's own connections are redirected to it:
    /// certainly, if `is_outbound`, as the port is that of outbound connections. `exempt` is none if they exempt nobody.
    #[display(
        "what listens on port {port} is user {uid}, and the rules exempt {}: what it sends is redirected back to it",
        exempt.map_or_else(|| "nobody".to_owned(), |exempt| format!("user {exempt}"))
    )]
    OtherUser { port: Port, uid: u32, exempt: Option<OwnerId>, is_outbound: bool },
    /// The rules skip every connection of this direction.
    #[display("the rules skip every {_0} connection: none goes to the proxy")]
    EverythingSkipped(Direction),
    /// The pod has an address, of which this is the first, of a family that has no rules.
    #[display(
        "there is an {family} address here ({address}), and there are no rules for {family}: its connections bypass the \
         proxy"
    )]
    NoRulesFor { family: Family, address: IpAddr },
    /// The program on this port doesn't accept connections as fast as they come.
    #[display(
        "what listens on port {port} does not accept fast enough: {} connections wait in its queue of {}, and the kernel \
         drops further ones",
        queue.waiting, queue.limit
    )]
    QueueFull { port: u16, queue: Queue },
    /// The process on this port, which isn't the proxy's, runs as the proxy's user.
    #[display(
        "what listens on port {port} runs as the proxy's user {uid}, so the connections that it makes bypass the proxy"
    )]
    AppAsProxy { port: u16, uid: u32 },
    /// No packet can go where the rules send it, or none can come or leave. Only redirected connections are lost if it
    /// `is_of_redirected`.
    #[display("{reason}")]
    NoWay { reason: String, is_of_redirected: bool },
    /// The namespace forwards packets from a bridge, whose connections the rules redirect as if they came from outside.
    /// The subnet is the bridge's over IPv4.
    #[display(
        "{device} is a bridge, and this network namespace forwards: connections of what is behind it are redirected to the \
         proxy's inbound port, unless --inbound-interfaces-to-ignore {device}{} exempts them",
        subnet.as_ref().map_or(String::new(), |subnet| format!(" or --subnets-to-ignore {subnet}"))
    )]
    Bridge { device: Name, subnet: Option<String> },
    /// The listeners could not be seen; the text says why.
    #[display("not known: whether the proxy listens ({_0})")]
    NotKnown(String),
    /// The kernel's routing could not be asked.
    #[display("not known: what is routed over {family} ({reason})")]
    RoutesNotKnown { family: Family, reason: String },
}

/// Says that connections of these families are refused, if they aren't all.
fn refused_families(families: &[Family]) -> String {
    match families {
        [Family::V6] => {
            " for IPv6 connections, so they are refused: where the proxy is for IPv4 alone, install the rules \
                         with --ipv6=false"
                .to_owned()
        }
        [only] => format!(" for {only} connections, so they are refused"),
        _ => String::new(),
    }
}

impl PodWarning {
    /// Returns true if connections are certainly lost, however complete the rules are.
    pub fn is_fatal(&self) -> bool {
        matches!(
            self,
            Self::OtherPort { .. }
                | Self::OtherUser { is_outbound: true, .. }
                | Self::NoWay { is_of_redirected: true, .. }
        )
    }

    /// Returns true if the proxy's port refuses the connections that the warning is about.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::NotListening { .. } | Self::OtherPort { .. })
    }

    /// Returns true if it may concern a connection with this verdict, rather than another port or family.
    pub(crate) fn is_about(&self, connection: &Connection, verdict: &Verdict) -> bool {
        let of_connection = Family::of(connection.to.ip());
        let is_outbound = connection.direction == Direction::Outbound;
        match self {
            Self::NotListening { port, families } => {
                *verdict == Verdict::Proxy(port.get()) && (families.is_empty() || families.contains(&of_connection))
            }
            Self::OtherPort { port, .. } => *verdict == Verdict::Proxy(port.get()),
            Self::OtherUser { .. } => matches!(verdict, Verdict::Proxy(_)),
            Self::EverythingSkipped(direction) => *direction == connection.direction && *verdict == Verdict::Bypass,
            Self::NoRulesFor { family, .. } => *family == of_connection && *verdict == Verdict::Bypass,
            Self::QueueFull { port, .. } => {
                *verdict == Verdict::Proxy(*port) || (!is_outbound && connection.to.port() == *port)
            }
            Self::AppAsProxy { .. } => is_outbound && connection.uid.is_none(),
            // The connection's own route says so.
            Self::NoWay { .. } | Self::Bridge { .. } | Self::RoutesNotKnown { .. } => false,
            Self::Config(_) | Self::NotKnown(_) => true,
        }
    }
}

/// The first warning by which complete rules don't help: connections are lost, or the rules skip both directions.
pub fn first_fatal(warnings: &[PodWarning]) -> Option<&PodWarning> {
    let is_skipped = |direction: &Direction| warnings.contains(&PodWarning::EverythingSkipped(*direction));
    let are_both_skipped = Direction::ALL.iter().all(is_skipped);
    let is_skip = |warning: &PodWarning| matches!(warning, PodWarning::EverythingSkipped(_));
    warnings.iter().find(|warning| warning.is_fatal() || (are_both_skipped && is_skip(warning)))
}

/// Probable defects of the connections in this network, beside the rules of this config.
pub fn warnings(config: &Config, network: &Network) -> Vec<PodWarning> {
    let mut warnings: Vec<PodWarning> = of_flags(config).into_iter().map(PodWarning::Config).collect();
    let skipped = Direction::ALL.into_iter().filter(|&direction| skips_everything(config, direction));
    warnings.extend(skipped.map(PodWarning::EverythingSkipped));
    warnings.extend(address_without_rules(config, network));
    if let Some(reason) = &network.listeners_not_known {
        warnings.push(PodWarning::NotKnown(format!("sock_diag: {reason}")));
        return warnings;
    }
    let others = other_ports_of_proxy(config, network);
    let mut is_elsewhere = false;
    // A family without any address, as where a sysctl disables IPv6, has no connections. With addresses of the link alone, as IPv6
    // has in a pod of an IPv4 cluster, it has none with other hosts.
    let is_wide = |family: &Family| network.wide_addresses(*family).next().is_some();
    let mut families = config.families().to_vec();
    families.retain(|&family| network.addresses.is_empty() || !network.own_addresses(family).is_empty());
    if families.iter().any(is_wide) {
        families.retain(is_wide);
    }
    for (direction, port) in [(Direction::Inbound, config.inbound_port), (Direction::Outbound, config.outbound_port)] {
        let mut at_port: Vec<&Listener> = network.listeners.iter().collect();
        at_port.retain(|listener| listener.port == port.get() && is_reached(listener, network));
        let mut without = families.clone();
        without.retain(|&family| !at_port.iter().any(|listener| listener.accepts(direction, family)));
        let is_without = without.len() == families.len();
        match config.proxy_uid {
            Some(uid) if is_without && !others.is_empty() => {
                is_elsewhere = true;
                warnings.push(PodWarning::OtherPort { port, uid: uid.get(), at: others.clone() });
            }
            // If nothing listens for any family, the families say nothing.
            _ if is_without => warnings.push(PodWarning::NotListening { port, families: Vec::new() }),
            _ if !without.is_empty() => warnings.push(PodWarning::NotListening { port, families: without }),
            _ => {}
        }
    }
    let users = other_users(config, network);
    // They say more than the warning about the flags.
    if config.proxy_uid.is_none() && !users.is_empty() {
        warnings.retain(|warning| *warning != PodWarning::Config(OfFlags::NoOwner));
    }
    warnings.extend(users);
    if let Some(uid) = config.proxy_uid.filter(|_| !is_elsewhere) {
        warnings.extend(others.into_iter().map(|port| PodWarning::AppAsProxy { port, uid: uid.get() }));
    }
    warnings.extend(full_queues(network));
    warnings
}

/// Returns true if these flags exempt every connection of a direction, in each family that has rules.
fn skips_everything(config: &Config, direction: Direction) -> bool {
    let ports = match direction {
        Direction::Inbound => &config.ignored_inbound_ports,
        Direction::Outbound => &config.ignored_outbound_ports,
    };
    let ports = Intervals::new(ports.iter().map(|range| range.numbers()));
    let are_all_subnets = |&family: &Family| {
        let subnets: Vec<&Subnet> = match direction {
            Direction::Inbound => config.ignored_sources(family).collect(),
            Direction::Outbound => config.ignored_outbound_subnets.iter().collect(),
        };
        subnets
            .into_iter()
            .any(|subnet| subnet.is_of_all() && (direction == Direction::Inbound || subnet.family() == family))
    };
    ports.includes(&Intervals::new([(1, u16::MAX.into())])) || config.families().iter().all(are_all_subnets)
}

/// The pod's first address of a family that has no rules: of IPv6, beside rules for IPv4 alone.
fn address_without_rules(config: &Config, network: &Network) -> Option<PodWarning> {
    let family = Family::ALL.into_iter().find(|family| !config.families().contains(family))?;
    let address = network.wide_addresses(family).next()?.address;
    Some(PodWarning::NoRulesFor { family, address })
}

/// The ports on which the user listens that the rules exempt as the proxy's, beside the proxy's two ports and those that
/// inbound rules skip, such as the proxy's port for administration.
fn other_ports_of_proxy(config: &Config, network: &Network) -> Vec<u16> {
    let skipped = Intervals::new(config.ignored_inbound_ports.iter().map(|range| range.numbers()));
    let known = Intervals::each([config.inbound_port.get(), config.outbound_port.get()]).or(&skipped);
    let is_proxys = |listener: &&Listener| config.proxy_uid.is_some_and(|uid| uid.get() == listener.uid);
    let ports: BTreeSet<u16> = network.listeners.iter().filter(is_proxys).map(|listener| listener.port).collect();
    ports.into_iter().filter(|&port| !known.meets(&[(port.into(), port.into())])).collect()
}

/// A warning for each user who listens on a port of the proxy's and isn't exempt; none if one may be exempt by a group,
/// which the kernel doesn't tell.
fn other_users(config: &Config, network: &Network) -> Vec<PodWarning> {
    if config.proxy_gid.is_some() || !config.ignored_gids.is_empty() {
        return Vec::new();
    }
    let ignored = config.ignored_uids.iter().map(|range| (range.first().into(), range.last().into()));
    let mut known = Intervals::new(ignored).or(&Intervals::each(config.proxy_uid.map(OwnerId::get)));
    known = known.or(&Intervals::one(Listener::UNMAPPED.into()));
    let mut warnings = Vec::new();
    // The connections of the listener on the outbound port come back.
    for (direction, port) in [(Direction::Outbound, config.outbound_port), (Direction::Inbound, config.inbound_port)] {
        let at_port = network.listeners.iter().filter(|listener| listener.port == port.get());
        for uid in at_port.filter(|listener| is_reached(listener, network)).map(|listener| listener.uid) {
            if known.meets(&[(uid.into(), uid.into())]) {
                continue;
            }
            known = known.or(&Intervals::one(uid.into()));
            let is_outbound = direction == Direction::Outbound && !skips_everything(config, direction);
            warnings.push(PodWarning::OtherUser { port, uid, exempt: config.proxy_uid, is_outbound });
        }
    }
    warnings
}

/// A warning for each port whose queue is full.
fn full_queues(network: &Network) -> Vec<PodWarning> {
    let full = network.listeners.iter().rev().filter(|listener| listener.queue.is_full());
    let queues: BTreeMap<u16, Queue> = full.map(|listener| (listener.port, listener.queue)).collect();
    queues.into_iter().map(|(port, queue)| PodWarning::QueueFull { port, queue }).collect()
}

/// Returns true if redirected connections may reach the listener: inbound connections go to an address of their device.
fn is_reached(listener: &Listener, network: &Network) -> bool {
    let own = listener.address.to_canonical();
    let is_bound = !own.is_unspecified() && !own.is_loopback();
    let redirected_to = || network.redirect_addresses(Family::of(own), &names_except_lo());
    !is_bound || redirected_to().is_none_or(|to| to.meets(&[(address(own), address(own))]))
}

/// Tells in words if something listens on all ports of the proxy, as far as these warnings tell.
pub fn listening_in_words(warnings: &[PodWarning]) -> String {
    let mut missing = Vec::new();
    for warning in warnings {
        match warning {
            PodWarning::NotKnown(_) => return "not known whether the proxy listens".to_owned(),
            PodWarning::NotListening { families, .. } => missing.push(families.as_slice()),
            PodWarning::OtherPort { .. } => missing.push(&[]),
            _ => {}
        }
    }
    match missing.as_slice() {
        [] => "the proxy listens".to_owned(),
        [[family], others @ ..] if others.iter().all(|other| other == &[*family]) => {
            format!("the proxy does not listen for {family}")
        }
        _ => "the proxy does not listen".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use ruleset::Address;

    use super::*;

    fn config() -> Config {
        Config { proxy_uid: OwnerId::new(2102), ..Config::new(Port::new(4143).unwrap(), Port::new(4140).unwrap()) }
    }

    fn listener(address: &str, port: u16, uid: u32) -> Listener {
        Listener {
            address: address.parse().unwrap(),
            port,
            device: 0,
            is_ipv6_only: true,
            uid,
            queue: Queue::default(),
            is_transparent: Some(false),
        }
    }

    /// linkerd-proxy's, over IPv4 and IPv6.
    fn proxy(uid: u32) -> Vec<Listener> {
        [("0.0.0.0", 4143), ("::", 4143), ("127.0.0.1", 4140), ("::1", 4140)]
            .map(|(address, port)| listener(address, port, uid))
            .to_vec()
    }

    fn where_listen(listeners: Vec<Listener>) -> Network {
        Network { listeners, ..Network::default() }
    }

    fn said(config: &Config, listeners: Vec<Listener>) -> Vec<String> {
        warnings(config, &where_listen(listeners)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_port_needs_a_listener_for_each_family_that_has_rules() {
        let mut without = proxy(2102);
        without.retain(|listener| listener.address.is_ipv4() || listener.port == 4140);
        let for_v6 = listening_in_words(&warnings(&config(), &where_listen(without.clone())));
        assert_eq!(for_v6, "the proxy does not listen for IPv6");
        let v4 = Config { ipv6: false, ..config() };
        assert_eq!(said(&v4, without.clone()), [""; 0]);
        // As where a sysctl disables IPv6.
        let own = Address { device: 2, address: "10.77.0.2".parse().unwrap(), prefix: 24, broadcast: None };
        let of_link = Address { address: "fe80::2".parse().unwrap(), prefix: 64, ..own };
        for addresses in [vec![own], vec![own, of_link]] {
            let network = Network { addresses, ..where_listen(without.clone()) };
            assert_eq!(warnings(&config(), &network), []);
        }
        // Inbound connections don't come to 127.0.0.1.
        let mut local = proxy(2102);
        local.push(listener("127.0.0.1", 4143, 2102));
        local.retain(|listener| listener.port == 4140 || listener.address.is_loopback());
        assert_eq!(said(&v4, local), ["nothing listens on port 4143"]);
    }

    #[test]
    fn a_listener_that_may_be_exempt_is_not_named() {
        let other = Config { proxy_uid: OwnerId::new(1000), ..config() };
        assert_eq!(said(&other, proxy(2102)).len(), 1, "once for both ports");
        let by_group = Config { proxy_gid: OwnerId::new(7), ..other.clone() };
        assert_eq!(said(&by_group, proxy(2102)), [""; 0]);
        assert_eq!(said(&other, proxy(Listener::UNMAPPED)), [""; 0]);
    }
}
