//! Flags that a user might give, at random.

use lab::linkerd::Flags;
use lab::network::seed;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};

fn any_flags() -> impl Strategy<Value = Flags> {
    let port = 1..=u16::MAX;
    let id = || proptest::option::of(1..u32::MAX - 1);
    let ranges = || proptest::collection::vec((0..=u16::MAX, prop_oneof![Just(0), 0..200u16]), 0..40);
    let subnets = || proptest::collection::vec(prop_oneof![any_v4_subnet(), any_v6_subnet()], 0..5);
    let range = (0..u32::MAX, prop_oneof![Just(0), 0..5000u32])
        .prop_map(|(first, more)| (first, first.saturating_add(more).min(u32::MAX - 1)));
    let ids = || proptest::collection::vec(range.clone(), 0..3);
    let names = || proptest::collection::vec("[a-zA-Z0-9_@][a-zA-Z0-9._@-]{0,14}", 0..3);
    (
        (port.clone(), port.clone(), id(), id()),
        proptest::collection::vec(port, 0..4),
        (ranges(), ranges()),
        (subnets(), subnets()),
        (ids(), ids()),
        (proptest::option::of(ranges()), proptest::option::of(subnets())),
        (names(), names()),
        prop::bool::weighted(0.8),
    )
        .prop_map(
            |((inbound_port, outbound_port, uid, gid), redirect, ranges, subnets, ids, chosen, names, ipv6)| {
                let bounds = |ranges: Vec<(u16, u16)>| {
                    ranges.into_iter().map(|(low, more)| (low, low.saturating_add(more))).collect()
                };
                Flags {
                    inbound_port,
                    outbound_port,
                    uid,
                    gid,
                    redirect,
                    inbound: bounds(ranges.0),
                    outbound: bounds(ranges.1),
                    inbound_subnets: subnets.0,
                    outbound_subnets: subnets.1,
                    outbound_chosen: bounds(chosen.0.unwrap_or_default()),
                    // Subnets of IPv6 alone, without rules for it, are refused.
                    chosen_subnets: chosen
                        .1
                        .unwrap_or_default()
                        .into_iter()
                        .filter(|it| ipv6 || !it.contains(':'))
                        .collect(),
                    skip_uids: ids.0,
                    skip_gids: ids.1,
                    inbound_interfaces: names.0,
                    outbound_interfaces: names.1,
                    ipv6,
                }
            },
        )
}

fn any_v4_subnet() -> impl Strategy<Value = String> {
    (any::<[u8; 4]>(), 0..=32).prop_map(|(address, prefix)| format!("{}/{prefix}", std::net::Ipv4Addr::from(address)))
}

fn any_v6_subnet() -> impl Strategy<Value = String> {
    (any::<[u16; 8]>(), 0..=128).prop_map(|(address, prefix)| format!("{}/{prefix}", std::net::Ipv6Addr::from(address)))
}

/// Checks as many random sets of flags.
pub(crate) fn for_any_flags(cases: u32, check: impl Fn(&Flags)) {
    let mut runner = TestRunner::new(Config {
        cases,
        // A case takes dozens of processes.
        max_shrink_iters: 20,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed()),
        ..Config::default()
    });
    let checked = runner.run(&any_flags(), |flags| {
        check(&flags);
        Ok(())
    });
    checked.unwrap();
}
