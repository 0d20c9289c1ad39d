//! Looks for the proxy: the listeners on its ports, and their users.

use std::fmt;

use ruleset::{Direction, Family, address};
use ruleset::{Listener, Network};
use trace::names_except_lo;

use crate::config::warnings::{self, warnings as of_flags};
use crate::config::{Config, OwnerId, Port};
use crate::diagnose::explain::answer::{Connection, Verdict};

/// Probable defects of the proxy, beside correct rules.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProxyWarning {
    /// The flags with which the rules are installed are probably a mistake.
    Config(warnings::Warning),
    /// Connections are redirected to a port on which nothing listens.
    NotListening {
        /// The port.
        port: Port,
        /// The families for which nothing listens.
        families: Vec<Family>,
    },
    /// Another user listens than the one that the rules exempt, so the proxy's own connections are redirected to it.
    OtherUser {
        /// The port.
        port: Port,
        /// The user who listens there.
        uid: u32,
        /// The user that the rules exempt.
        exempt: OwnerId,
    },
    /// The listeners could not be seen; the text gives the reason.
    NotKnown(String),
}

impl fmt::Display for ProxyWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(warning) => warning.fmt(f),
            Self::NotListening { port, families } => {
                write!(f, "nothing listens on port {port}")?;
                match families.as_slice() {
                    [Family::V6] => f.write_str(
                        " for IPv6 connections, so they are refused: where the proxy is for IPv4 alone, install the rules with \
                         --ipv6=false",
                    ),
                    [only] => write!(f, " for {only} connections, so they are refused"),
                    _ => Ok(()),
                }
            }
            Self::OtherUser { port, uid, exempt } => write!(
                f,
                "what listens on port {port} is user {uid}, and the rules exempt user {exempt}: what it sends is redirected back \
                 to it"
            ),
            Self::NotKnown(reason) => write!(f, "not known: whether the proxy listens ({reason})"),
        }
    }
}

impl ProxyWarning {
    /// Returns true if the warning may concern a connection with this verdict: not if it is about another port or
    /// family.
    pub(crate) fn is_about(&self, connection: &Connection, verdict: &Verdict) -> bool {
        match self {
            Self::NotListening { port, families } => {
                let family = Family::of(connection.to.ip());
                *verdict == Verdict::Proxy(port.get()) && (families.is_empty() || families.contains(&family))
            }
            Self::OtherUser { .. } => matches!(verdict, Verdict::Proxy(_)),
            Self::Config(_) | Self::NotKnown(_) => true,
        }
    }
}

/// Probable defects of the proxy of these rules in this network.
pub fn warnings(config: &Config, network: &Network) -> Vec<ProxyWarning> {
    let mut warnings: Vec<ProxyWarning> = of_flags(config).into_iter().map(ProxyWarning::Config).collect();
    if let Some(reason) = &network.listeners_not_known {
        warnings.push(ProxyWarning::NotKnown(format!("sock_diag: {reason}")));
        return warnings;
    }
    // Without any address, as where a sysctl disables IPv6, a family has no connections.
    let mut families = config.families().to_vec();
    families.retain(|&family| network.addresses.is_empty() || !network.own_addresses(family).is_empty());
    for (direction, port) in [(Direction::Inbound, config.inbound_port), (Direction::Outbound, config.outbound_port)] {
        let mut at_port: Vec<&Listener> = network.listeners.iter().collect();
        at_port.retain(|listener| listener.port == port.get() && is_reached(listener, network));
        let mut without = families.clone();
        without.retain(|&family| !at_port.iter().any(|listener| listener.accepts(direction, family)));
        if without.len() == families.len() {
            // If nothing listens for any family, the families say nothing.
            warnings.push(ProxyWarning::NotListening { port, families: Vec::new() });
        } else if !without.is_empty() {
            warnings.push(ProxyWarning::NotListening { port, families: without });
        }
        // The kernel doesn't tell a listener's group, by which it may be exempt as well.
        let Some(exempt) = config.proxy_uid.filter(|_| config.proxy_gid.is_none()) else {
            continue;
        };
        for &Listener { uid, .. } in at_port {
            let is_known = warnings
                .iter()
                .any(|known| matches!(known, ProxyWarning::OtherUser { uid: known, .. } if *known == uid));
            if uid != exempt.get() && uid != Listener::UNMAPPED && !is_known {
                warnings.push(ProxyWarning::OtherUser { port, uid, exempt });
            }
        }
    }
    warnings
}

/// Returns true if redirected connections may reach the listener: inbound connections go to an address of their device.
fn is_reached(listener: &Listener, network: &Network) -> bool {
    let own = listener.address.to_canonical();
    let is_bound = !own.is_unspecified() && !own.is_loopback();
    let redirected_to = || network.redirect_addresses(Family::of(own), &names_except_lo());
    !is_bound || redirected_to().is_none_or(|to| to.meets(&[(address(own), address(own))]))
}

/// Tells in words if something listens on all ports of the proxy, as far as these warnings tell.
pub fn listening_in_words(warnings: &[ProxyWarning]) -> String {
    let mut missing = Vec::new();
    for warning in warnings {
        match warning {
            ProxyWarning::NotKnown(_) => return "not known whether the proxy listens".to_owned(),
            ProxyWarning::NotListening { families, .. } => missing.push(families.as_slice()),
            ProxyWarning::Config(_) | ProxyWarning::OtherUser { .. } => {}
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
        Listener { address: address.parse().unwrap(), port, device: 0, is_ipv6_only: true, uid }
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
    fn a_proxy_that_is_there_gives_no_warning() {
        assert_eq!(said(&config(), proxy(2102)), [""; 0]);
        assert_eq!(listening_in_words(&warnings(&config(), &where_listen(proxy(2102)))), "the proxy listens");
    }

    #[test]
    fn each_port_needs_a_listener_for_each_family_that_has_rules() {
        assert_eq!(said(&config(), vec![]), ["nothing listens on port 4143", "nothing listens on port 4140"]);
        assert_eq!(listening_in_words(&warnings(&config(), &where_listen(vec![]))), "the proxy does not listen");
        let mut without = proxy(2102);
        without.retain(|listener| listener.address.is_ipv4() || listener.port == 4140);
        assert_eq!(
            said(&config(), without.clone()),
            [
                "nothing listens on port 4143 for IPv6 connections, so they are refused: where the proxy is for IPv4 alone, install \
                 the rules with --ipv6=false"
            ]
        );
        let for_v6 = listening_in_words(&warnings(&config(), &where_listen(without.clone())));
        assert_eq!(for_v6, "the proxy does not listen for IPv6");
        let v4 = Config { ipv6: false, ..config() };
        assert_eq!(said(&v4, without.clone()), [""; 0]);
        // As where a sysctl disables IPv6.
        let own = Address { device: 2, address: "10.77.0.2".parse().unwrap(), prefix: 24, broadcast: None };
        let network = Network { addresses: vec![own], ..where_listen(without) };
        assert_eq!(warnings(&config(), &network), []);
        // Inbound connections don't come to 127.0.0.1.
        let mut local = proxy(2102);
        local.push(listener("127.0.0.1", 4143, 2102));
        local.retain(|listener| listener.port == 4140 || listener.address.is_loopback());
        assert_eq!(said(&v4, local), ["nothing listens on port 4143"]);
    }

    #[test]
    fn another_user_than_the_exempt_one_is_named_once() {
        let other = Config { proxy_uid: OwnerId::new(1000), ..config() };
        assert_eq!(
            said(&other, proxy(2102)),
            [
                "what listens on port 4143 is user 2102, and the rules exempt user 1000: what it sends is redirected back to it"
            ]
        );
        // The listener may be exempt by its group, and an unmapped user may be anybody.
        let by_group = Config { proxy_gid: OwnerId::new(7), ..other.clone() };
        assert_eq!(said(&by_group, proxy(2102)), [""; 0]);
        assert_eq!(said(&other, proxy(Listener::UNMAPPED)), [""; 0]);
    }

    #[test]
    fn without_a_user_the_flags_are_what_is_wrong() {
        let none = Config { proxy_uid: None, ..config() };
        let said = said(&none, proxy(2102));
        assert!(said.len() == 1 && said[0].contains("redirected back to the proxy"), "{said:?}");
    }

    #[test]
    fn what_cannot_be_seen_is_not_known() {
        let network = Network { listeners_not_known: Some("ENOENT".to_owned()), ..Network::default() };
        let warnings = warnings(&config(), &network);
        assert_eq!(warnings, [ProxyWarning::NotKnown("sock_diag: ENOENT".to_owned())]);
        assert_eq!(listening_in_words(&warnings), "not known whether the proxy listens");
    }
}
