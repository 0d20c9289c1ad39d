//! Any configuration, for tests.

use proptest::prelude::*;
use ruleset::Family;

use super::{Config, IdRange, Interface, OwnerId, Port, PortRange, Subnet};

fn port() -> impl Strategy<Value = Port> {
    prop_oneof![1..20u16, Just(u16::MAX), 1..=u16::MAX].prop_map(|port| Port::new(port).unwrap())
}

/// Numbers that are often close together, so that ranges overlap and touch.
fn range() -> impl Strategy<Value = PortRange> {
    let first = prop_oneof![0..40u16, any::<u16>()];
    (first, prop_oneof![Just(0), 0..5u16, any::<u16>()])
        .prop_map(|(first, more)| PortRange::new(first, first.saturating_add(more)).unwrap())
}

fn subnet() -> impl Strategy<Value = Subnet> {
    let v4 = (any::<[u8; 4]>(), 0..=32).prop_map(|(ip, length)| format!("{}/{length}", std::net::Ipv4Addr::from(ip)));
    let v6 = (any::<[u16; 8]>(), 0..=128).prop_map(|(ip, length)| format!("{}/{length}", std::net::Ipv6Addr::from(ip)));
    prop_oneof![
        v4,
        v6,
        prop::sample::select(vec!["0.0.0.0/0", "::/0", "::1/0", "1.2.3.4/0", "0.0.0.0/1", "128.0.0.0/1", "10.1.2.3/8"])
            .prop_map(str::to_owned),
    ]
    .prop_filter_map("IPv4-mapped", |text| text.parse().ok())
}

/// Short lists, whose comments have room, and long ones.
fn list<S: Strategy + 'static>(item: fn() -> S) -> impl Strategy<Value = Vec<S::Value>> {
    prop_oneof![prop::collection::vec(item(), 0..4), prop::collection::vec(item(), 0..60)]
}

fn ids() -> impl Strategy<Value = IdRange> {
    (0..u32::MAX, prop_oneof![Just(0), any::<u32>()])
        .prop_map(|(first, more)| IdRange::new(first, first.saturating_add(more).min(u32::MAX - 1)).unwrap())
}

/// lo, which has a rule anyway, and others.
fn name() -> impl Strategy<Value = Interface> {
    prop_oneof![Just("lo".to_owned()), "[a-z][a-z0-9._@-]{0,14}"].prop_map(|name| name.parse().unwrap())
}

/// Subnets of IPv6 alone are no choice without rules for IPv6: flags with such a list are refused.
pub(crate) fn any_config() -> impl Strategy<Value = Config> {
    let id = || prop::option::of((1..u32::MAX).prop_map(|id| OwnerId::new(id).unwrap()));
    (
        (port(), port(), id(), id(), any::<bool>()),
        list(port),
        (list(range), list(range), list(subnet), list(subnet)),
        (list(ids), list(ids)),
        (list(range), list(subnet)),
        (list(name), list(name)),
    )
        .prop_map(
            |((inbound_port, outbound_port, uid, gid, ipv6), redirected_ports, lists, ids, mut chosen, interfaces)| {
                chosen.1.retain(|subnet| ipv6 || subnet.family() == Family::V4);
                Config {
                    inbound_port,
                    outbound_port,
                    proxy_uid: uid,
                    proxy_gid: gid,
                    redirected_ports,
                    ignored_inbound_ports: lists.0,
                    ignored_outbound_ports: lists.1,
                    ignored_inbound_subnets: lists.2,
                    ignored_outbound_subnets: lists.3,
                    redirected_outbound_ports: chosen.0,
                    redirected_outbound_subnets: chosen.1,
                    ignored_uids: ids.0,
                    ignored_gids: ids.1,
                    ignored_inbound_interfaces: interfaces.0,
                    ignored_outbound_interfaces: interfaces.1,
                    ipv6,
                }
            },
        )
}
