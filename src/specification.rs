//! Start here: the purpose of the program in one function, and a test that nft and native mode fulfil it.
//!
//! [`redirects`] says which connections of a pod go to its proxy. It is written from linkerd's words about its flags,
//! and from nothing of this program's: linkerd-init's help (`proxy-init/cmd/root.go` of linkerd/linkerd2-proxy-init)
//! and linkerd's page "IPTables Reference"; for a flag that linkerd-init lacks, from our help. The test
//! below makes random configs and connections, plans the rules, writes them as nft and native mode do, reads the bytes
//! back, has the connection go through the rules that were read, and compares.

use std::net::{IpAddr, SocketAddr};

use ruleset::Direction;

use crate::config::{Config, IdRange, Interface, Port, PortRange, Subnet};

/// A connection, seen from the pod.
#[derive(Debug, Clone, Copy)]
struct Connection {
    direction: Direction,
    from: IpAddr,
    to: SocketAddr,
    /// The user and the group of the process that opens an outbound one.
    owner: (u32, u32),
    /// The device by which it comes in or leaves: the loopback device, if it is within the pod.
    device: &'static str,
}

/// The proxy's port to which a connection is redirected; none if it bypasses the proxy.
fn redirects(config: &Config, connection: &Connection) -> Option<Port> {
    // Without `..`, so that the compiler asks for the effect of a new flag.
    let Config {
        inbound_port,
        outbound_port,
        proxy_uid,
        proxy_gid,
        redirected_ports,
        ignored_inbound_ports,
        ignored_outbound_ports,
        ignored_inbound_subnets,
        ignored_outbound_subnets,
        redirected_outbound_ports,
        redirected_outbound_subnets,
        ignored_uids,
        ignored_gids,
        ignored_inbound_interfaces,
        ignored_outbound_interfaces,
        ipv6,
    } = config;
    let port = connection.to.port();
    let among = |ports: &[PortRange]| ports.iter().any(|range| range.contains(port));
    let within = |subnets: &[Subnet], address| subnets.iter().any(|subnet| subnet.net().contains(&address));
    let by_one_of = |interfaces: &[Interface]| interfaces.iter().any(|it| it.to_string() == connection.device);
    let by_proxy = (proxy_uid.is_some_and(|uid| uid.get() == connection.owner.0))
        || (proxy_gid.is_some_and(|gid| gid.get() == connection.owner.1));
    let among_ids = |ids: &[IdRange], id| ids.iter().any(|range| range.contains(id));
    let exempt = among_ids(ignored_uids, connection.owner.0) || among_ids(ignored_gids, connection.owner.1);
    let (ignored, to) = match connection.direction {
        _ if connection.to.is_ipv6() && !*ipv6 => return None,
        // "Ports to redirect to proxy, if no port is specified then ALL ports are redirected."
        Direction::Inbound => {
            let chosen = redirected_ports.is_empty() || redirected_ports.iter().any(|it| it.get() == port);
            let listed = ignored_inbound_subnets;
            // iptables ignores an address before /0, so that such a subnet alone is everybody, of either family.
            let everybody = !listed.is_empty() && listed.iter().all(|subnet| subnet.net().prefix_len() == 0);
            let subnets = everybody || within(listed, connection.from);
            (!chosen || among(ignored_inbound_ports) || subnets || by_one_of(ignored_inbound_interfaces), *inbound_port)
        }
        // "Any traffic coming from this user will be ignored to avoid infinite redirection loops."
        Direction::Outbound => {
            let subnets = within(ignored_outbound_subnets, connection.to.ip());
            let skipped = by_proxy || exempt || connection.device == "lo" || by_one_of(ignored_outbound_interfaces);
            let (ports, destinations) = (redirected_outbound_ports, redirected_outbound_subnets);
            let chosen = (ports.is_empty() || among(ports))
                && (destinations.is_empty() || within(destinations, connection.to.ip()));
            (skipped || !chosen || among(ignored_outbound_ports) || subnets, *outbound_port)
        }
    };
    (!ignored).then_some(to)
}

#[cfg(test)]
mod tests {
    use netfilter::tests::replay::replayed;
    use proptest::prelude::*;
    use proptest::sample::select;
    use ruleset::Name;
    use ruleset::Ruleset;
    use ruleset::testing::random;

    use super::*;
    use crate::config::Mode;
    use crate::config::testing::{ADDRESSES, IDS, PORTS, any_config_with};
    use crate::diagnose::explain::answer::{self, Verdict, explain};
    use crate::modes::install_edits;
    use crate::plan::tables::expected;

    prop_compose! {
        fn connection()(
            direction in select(&Direction::ALL[..]),
            (from, to) in select(vec![&ADDRESSES[..4], &ADDRESSES[4..]])
                .prop_flat_map(|family| (select(family), select(family)))
                .prop_map(|(from, to)| (from.parse::<IpAddr>().unwrap(), to.parse::<IpAddr>().unwrap())),
            port in select(&PORTS[..]),
            owner in (select(&IDS[..]), select(&IDS[..])),
            device in select(&["lo", "eth0", "eth0", "eth1"][..]),
        ) -> Connection {
            // The kernel doesn't ask for packets that lo brings back.
            let device = if direction == Direction::Inbound && device == "lo" { "eth0" } else { device };
            Connection { direction, from, to: SocketAddr::new(to, port), owner, device }
        }
    }

    /// Where the rules that were found send a connection.
    fn goes(ruleset: &Ruleset, connection: &Connection) -> Verdict {
        let outbound = connection.direction == Direction::Outbound;
        let connection = answer::Connection {
            from: Some(connection.from),
            from_port: Some(40_000),
            uid: outbound.then_some(connection.owner.0),
            gid: outbound.then_some(connection.owner.1),
            device: Some(Name::from(connection.device)),
            ..answer::Connection::new(connection.direction, connection.to)
        };
        explain(ruleset, &connection).verdict
    }

    proptest! {
        #![proptest_config(random(500))]

        #[test]
        fn nft_and_native_mode_redirect_what_linkerd_says(config in any_config_with(20), connections in prop::collection::vec(connection(), 8)) {
            let modes = [
                (Mode::Nft, replayed(&install_edits(Mode::Nft, &[], &expected(Mode::Nft, &config)).unwrap())),
                (Mode::Native, replayed(&install_edits(Mode::Native, &[], &expected(Mode::Native, &config)).unwrap())),
                // Legacy mode's rules are written as text, which iptables reads: here they are as they are planned.
                (Mode::Legacy, expected(Mode::Legacy, &config)),
            ];
            for (mode, tables) in modes {
                let ruleset = Ruleset { tables, not_known: Vec::new() };
                for connection in &connections {
                    let wanted = match redirects(&config, connection) {
                        Some(port) => Verdict::Proxy(port.get()),
                        None => Verdict::Bypass,
                    };
                    prop_assert_eq!(goes(&ruleset, connection), wanted, "{} mode, {:?}", mode, connection);
                }
            }
        }
    }
}
