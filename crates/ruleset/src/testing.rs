//! Makes tables, chains and rules in few words, for tests here and in the crates above.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::net::IpAddr;

use proptest::prelude::ProptestConfig;
use proptest::test_runner::RngSeed;

use crate::family::Family;
use crate::field::Field;
use crate::hook::Hook;
use crate::intervals::Intervals;
use crate::name::Name;
use crate::network::Device;
use crate::rule::{Action, Case, Condition, Effect, Lookup, Nat, NatKind, Rule, Value};
use crate::set::Set;
use crate::table::{Base, Chain, Kind, Policy, Subsystem, Table, TableFamily};

/// A random test of so many cases. It prints its seed, which PROPTEST_RNG_SEED then takes.
pub fn random(cases: u32) -> ProptestConfig {
    const NAME: &str = "PROPTEST_RNG_SEED";
    let given = std::env::var(NAME).map(|seed| seed.parse().unwrap());
    let seed = given.unwrap_or_else(|_| RandomState::new().build_hasher().finish());
    println!("{NAME}={seed}");
    ProptestConfig { failure_persistence: None, rng_seed: RngSeed::Fixed(seed), ..ProptestConfig::with_cases(cases) }
}

/// A table by the name by which people know it: `ip nat`, `inet mine`, `legacy ip6 nat`.
pub fn table(name: &str, chains: Vec<Chain>) -> Table {
    let mut words: Vec<&str> = name.split(' ').collect();
    let subsystem = match words[0] {
        "legacy" => {
            words.remove(0);
            Subsystem::Legacy
        }
        _ => Subsystem::NfTables,
    };
    let family = match words[0] {
        "ip" => TableFamily::Ip(Family::V4),
        "ip6" => TableFamily::Ip(Family::V6),
        "inet" => TableFamily::Inet,
        "netdev" => TableFamily::Netdev,
        "arp" => TableFamily::Arp,
        "bridge" => TableFamily::Bridge,
        other => panic!("no family: {other}"),
    };
    Table { chains, ..Table::new(subsystem, family, Name::from(words[1])) }
}

pub fn chain(name: &str, rules: Vec<Rule>) -> Chain {
    Chain::new(Name::from(name), None, rules)
}

/// A base chain whose policy is accept.
pub fn base(name: &str, kind: Kind, hook: Hook, priority: i32, rules: Vec<Rule>) -> Chain {
    let base = Base { kind, hook, priority, policy: Policy::Accept };
    Chain::new(Name::from(name), Some(base), rules)
}

/// A rule without a comment and a counter.
pub fn rule<const N: usize>(conditions: [Condition; N], action: Action) -> Rule {
    let is_of_connection = |field| matches!(field, Field::State | Field::ConnectionMark);
    Rule {
        needs_tracking: conditions.iter().filter_map(Condition::field).any(is_of_connection),
        ..Rule::new(conditions.into(), action)
    }
}

/// A rule that does this and decides nothing.
pub fn effect_of<const N: usize>(conditions: [Condition; N], effect: Effect) -> Rule {
    Rule { effects: vec![effect], ..rule(conditions, Action::Continue) }
}

/// The same with a comment.
pub fn commented(comment: &str, rule: Rule) -> Rule {
    Rule { comment: Some(Name::from(comment)), ..rule }
}

/// A condition that holds where this one doesn't.
pub fn not(condition: Condition) -> Condition {
    match condition {
        Condition::In { field, values, negated } => Condition::In { field, values, negated: !negated },
        other => panic!("not negated: {other:?}"),
    }
}

/// `tcp dport PORT`, without the condition on the protocol.
pub fn to_port(port: u16) -> Condition {
    Condition::is(Field::DestinationPort, u128::from(port))
}

/// An Ethernet device that is up.
pub fn device(index: u32, name: &str) -> Device {
    Device {
        index,
        name: Name::from(name),
        kind: Vec::new(),
        is_up: true,
        lower: None,
        master: None,
        has_neighbours: true,
        group: 0,
        hardware: 1,
    }
}

/// Whatever arrives goes to this address; none: that isn't known.
pub fn dnat(address: Option<IpAddr>) -> Nat {
    Nat { addresses: address.map(|address| (address, address)), ..Nat::of(NatKind::Destination) }
}

/// A rule that does what a map has for a number of a field.
pub fn by_map(map: &str, field: Field, values: impl IntoIterator<Item = (u128, Action)>) -> Rule {
    let cases = values.into_iter().map(|(number, action)| Case {
        conditions: vec![Condition::is(field, number)],
        value: Some(Value::Action(action)),
    });
    let (set, key) = (Name::from(map), field.facts().nft.to_owned());
    let lookup = Lookup { set: set.clone(), key, negated: false, cases: cases.collect() };
    Rule { lookup: Some(lookup), ..rule([], Action::ByCase(set)) }
}

pub fn ports(name: &str, elements: &[(u128, u128)]) -> Set {
    Set {
        name: Name::from(name),
        bits: 16,
        elements: Some(Intervals::new(elements.iter().copied())),
        keys: None,
        expires: false,
    }
}

impl Field {
    /// Every field, for which tests ask of other modules what the compiler asks of [`Field::facts`].
    pub const ALL: [Self; 26] = [
        Self::Family,
        Self::Protocol,
        Self::Source(Family::V4),
        Self::Source(Family::V6),
        Self::Destination(Family::V4),
        Self::Destination(Family::V6),
        Self::SourcePort,
        Self::DestinationPort,
        Self::Uid,
        Self::Gid,
        Self::InInterface,
        Self::OutInterface,
        Self::State,
        Self::Mark,
        Self::ConnectionMark,
        Self::TcpFlags,
        Self::IcmpType,
        Self::HopLimit,
        Self::EtherType,
        Self::PacketType,
        Self::OriginalSource(Family::V4),
        Self::OriginalSource(Family::V6),
        Self::OriginalDestination(Family::V4),
        Self::OriginalDestination(Family::V6),
        Self::OriginalSourcePort,
        Self::OriginalDestinationPort,
    ];
}
