//! Any configuration, for tests.

use std::fmt::Debug;
use std::str::FromStr;

use proptest::prelude::*;
use proptest::sample::select;
use ruleset::Family;

use super::{Config, IdRange, Interface, OwnerId, Port, PortRange, Subnet};

/// Few values, which configurations often have, so that tests' connections meet them: the ends of ranges among them.
pub(crate) const PORTS: [u16; 8] = [1, 2, 25, 80, 81, 443, 4190, 65535];
pub(crate) const IDS: [u32; 4] = [1, 7, 2102, 4_294_967_294];
pub(crate) const ADDRESSES: [&str; 8] =
    ["10.0.0.1", "10.1.2.3", "192.0.2.7", "0.0.0.1", "fd00::1", "fd00:1::7", "2001:db8::1", "ffff::ffff"];

fn port() -> impl Strategy<Value = Port> {
    prop_oneof![select(&PORTS[..]), 1..20u16, 1..=u16::MAX].prop_map(|port| Port::new(port).unwrap())
}

/// Numbers that are often close together, so that ranges overlap and touch.
fn range() -> impl Strategy<Value = PortRange> {
    let of_few = (select(&PORTS[..]), select(&PORTS[..])).prop_map(|(one, other)| (one.min(other), one.max(other)));
    let others = (prop_oneof![0..40u16, any::<u16>()], prop_oneof![Just(0), 0..5u16, any::<u16>()])
        .prop_map(|(first, more)| (first, first.saturating_add(more)));
    prop_oneof![select(&PORTS[..]).prop_map(|one| (one, one)), of_few, others]
        .prop_map(|(first, last)| PortRange::new(first, last).unwrap())
}

fn subnet() -> impl Strategy<Value = Subnet> {
    let v4 = (any::<[u8; 4]>(), 0..=32).prop_map(|(ip, length)| format!("{}/{length}", std::net::Ipv4Addr::from(ip)));
    let v6 = (any::<[u16; 8]>(), 0..=128).prop_map(|(ip, length)| format!("{}/{length}", std::net::Ipv6Addr::from(ip)));
    let of_few = (select(&ADDRESSES[..]), 0..=128).prop_map(|(address, length)| {
        let length = if address.contains(':') { length } else { length % 33 };
        format!("{address}/{length}")
    });
    prop_oneof![
        of_few,
        v4,
        v6,
        select(vec!["0.0.0.0/0", "::/0", "::1/0", "1.2.3.4/0", "0.0.0.0/1", "128.0.0.0/1", "10.1.2.3/8"])
            .prop_map(str::to_owned),
    ]
    .prop_filter_map("IPv4-mapped", |text| text.parse().ok())
}

/// Short lists, whose comments have room, and long ones.
fn list<S: Strategy + 'static>(item: fn() -> S, most: usize) -> impl Strategy<Value = Vec<S::Value>> {
    prop_oneof![prop::collection::vec(item(), 0..4), prop::collection::vec(item(), 0..=most)]
}

fn ids() -> impl Strategy<Value = IdRange> {
    let of_few = (select(&IDS[..]), select(&IDS[..])).prop_map(|(one, other)| (one.min(other), one.max(other)));
    let others = (0..u32::MAX, prop_oneof![Just(0), any::<u32>()])
        .prop_map(|(first, more)| (first, first.saturating_add(more).min(u32::MAX - 1)));
    prop_oneof![of_few, others].prop_map(|(first, last)| IdRange::new(first, last).unwrap())
}

/// lo, which has a rule anyway, and others.
fn name() -> impl Strategy<Value = Interface> {
    let of_few = select(vec!["lo", "eth0", "eth1", "eth10"]).prop_map(str::to_owned);
    prop_oneof![of_few, "[a-z][a-z0-9._@-]{0,14}"].prop_map(|name| name.parse().unwrap())
}

/// One in which each setting has a value of its own, which can be told from its rules.
pub(crate) fn of_every_setting() -> Config {
    fn list<T: FromStr<Err: Debug>>(text: &str) -> Vec<T> {
        text.split(',').map(|item| item.parse().unwrap()).collect()
    }
    Config {
        inbound_port: "4143".parse().unwrap(),
        outbound_port: "4140".parse().unwrap(),
        proxy_uid: OwnerId::new(2102),
        proxy_gid: OwnerId::new(2103),
        redirected_ports: list("443,80"),
        ignored_inbound_ports: list("8000-8100,4191"),
        ignored_outbound_ports: list("25,7"),
        ignored_inbound_subnets: list("10.1.2.3/8,fd00::/8"),
        ignored_outbound_subnets: list("0.0.0.0/0,2001:db8::1/128"),
        redirected_outbound_ports: list("80,8080-8090"),
        redirected_outbound_subnets: list("192.0.2.7/24,fd01::/16"),
        ignored_uids: list("0,1000-1999"),
        ignored_gids: list("7"),
        ignored_inbound_interfaces: list("lo,net1"),
        ignored_outbound_interfaces: list("net2"),
        ipv6: true,
    }
}

/// Subnets of IPv6 alone are no choice without rules for IPv6: flags with such a list are refused.
pub(crate) fn any_config() -> impl Strategy<Value = Config> {
    any_config_with(60)
}

/// One whose lists have no more items than this.
pub(crate) fn any_config_with(most: usize) -> impl Strategy<Value = Config> {
    let id = || prop::option::of(prop_oneof![select(&IDS[..]), 1..u32::MAX].prop_map(|id| OwnerId::new(id).unwrap()));
    (
        (port(), port(), id(), id(), any::<bool>()),
        list(port, most),
        (list(range, most), list(range, most), list(subnet, most), list(subnet, most)),
        (list(ids, most), list(ids, most)),
        (list(range, most), list(subnet, most)),
        (list(name, most), list(name, most)),
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
