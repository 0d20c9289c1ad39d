//! The readers of other programs' output, for the fuzzer (fuzz/) and for the tests that run its corpus. Nothing that
//! they are given may make them panic, or pass for a rule of ours that wouldn't be written the same.

use std::net::SocketAddr;

use ruleset::{Direction, Table};
use ruleset::{Line, Network, Ruleset};

use crate::config::{Config, Mode, Port, PortRange, Subnet};
use crate::diagnose::explain::Explained;
use crate::diagnose::explain::answer::Connection;
use crate::diagnose::verify::difference::differences;
use crate::plan::tables::expected;

/// Feeds one input to every reader.
pub fn read_all(input: &[u8]) {
    netfilter::tests::fuzzed::read_all(input, exercise);
    if let Ok(text) = std::str::from_utf8(input) {
        let _ = (text.parse::<Port>(), text.parse::<PortRange>(), text.parse::<Subnet>());
        #[cfg(feature = "cli")]
        let _ = crate::cli::parse(std::iter::once("proxy-init").chain(text.split('\0')).map(Into::into), |_| None);
    }
}

/// Prints each rule of a table, follows a connection each way through it, and verifies beside it.
fn exercise(table: Table) {
    for chain in &table.chains {
        for line in Line::all(&table, chain) {
            let _ = line.to_string();
        }
    }
    let ruleset = Ruleset { tables: vec![table], not_known: Vec::new() };
    for direction in Direction::ALL {
        let connection = Connection::new(direction, SocketAddr::from(([10, 0, 0, 1], 80)));
        let _ = Explained::of(&ruleset, &connection).to_string();
    }
    if let Some((inbound, outbound)) = Port::new(4143).zip(Port::new(4140)) {
        let config = Config::new(inbound, outbound);
        for mode in [Mode::Nft, Mode::Legacy] {
            let findings = differences(mode, &expected(mode, &config), &ruleset, &Network::default());
            assert!(!findings.is_empty(), "a single chain can't pass for an installation");
        }
    }
}

#[cfg(test)]
mod tests {
    use netfilter::tests::written_and_read;
    use proptest::prelude::*;
    use ruleset::testing::random;

    use super::*;
    use crate::modes::batch as batch_of;

    fn batch(config: &Config) -> Vec<u8> {
        batch_of(Mode::Nft, config).unwrap()
    }

    fn any_config() -> impl Strategy<Value = Config> {
        let ports = || prop::collection::vec((any::<u16>(), 0..300u16), 0..40);
        let subnets = || prop::collection::vec((any::<[u8; 16]>(), 0..=128u8, any::<bool>()), 0..4);
        (1..=u16::MAX, 1..u32::MAX, ports(), subnets(), prop::collection::vec(1..=u16::MAX, 0..3)).prop_map(
            |(port, id, ports, subnets, redirected)| {
                let port = Port::new(port).unwrap();
                let ports: Vec<_> = ports
                    .iter()
                    .filter_map(|&(first, more)| PortRange::new(first, first.saturating_add(more)))
                    .collect();
                let subnets: Vec<crate::Subnet> = subnets
                    .iter()
                    .map(|&(address, prefix, v4)| {
                        let text = if v4 {
                            let [a, b, c, d, ..] = address;
                            format!("{a}.{b}.{c}.{d}/{}", prefix % 33)
                        } else {
                            format!("{}/{prefix}", std::net::Ipv6Addr::from(address))
                        };
                        text.parse().unwrap()
                    })
                    .collect();
                let ids: Vec<_> = crate::IdRange::new(id / 2, id).into_iter().collect();
                let interfaces: Vec<crate::Interface> = format!("net{}", id % 7).parse().into_iter().collect();
                Config {
                    inbound_port: port,
                    outbound_port: port,
                    proxy_uid: crate::OwnerId::new(id),
                    proxy_gid: crate::OwnerId::new(id),
                    redirected_ports: redirected.into_iter().filter_map(Port::new).collect(),
                    ignored_inbound_ports: ports.clone(),
                    ignored_outbound_ports: ports.clone(),
                    ignored_inbound_subnets: subnets.clone(),
                    ignored_outbound_subnets: subnets.clone(),
                    redirected_outbound_ports: ports,
                    redirected_outbound_subnets: subnets,
                    ignored_uids: ids.clone(),
                    ignored_gids: ids,
                    ignored_inbound_interfaces: interfaces.clone(),
                    ignored_outbound_interfaces: interfaces,
                    ipv6: true,
                }
            },
        )
    }

    #[test]
    fn the_corpus() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/read_all");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            read_all(&std::fs::read(entry.unwrap().path()).unwrap());
            count += 1;
        }
        assert!(count > 5, "{count} files");
    }

    proptest! {
        #![proptest_config(random(256))]

        /// Rules that nft mode wrote are read back as the same rules.
        #[test]
        fn rules_survive_the_kernels_encoding(config in any_config()) {
            for table in expected(Mode::Nft, &config) {
                for rule in table.rules() {
                    prop_assert_eq!(written_and_read(table.family, rule, &[]), Ok(rule.clone()));
                }
            }
        }

        #[test]
        fn no_bytes_make_it_panic(input: Vec<u8>) {
            read_all(&input);
        }

        /// Damage to a real batch: bytes changed, the end cut off.
        #[test]
        fn no_damage_makes_it_panic(
            config in any_config(),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
            end: prop::sample::Index,
        ) {
            let mut bytes = batch(&config);
            for (index, byte) in damage {
                let index = index.index(bytes.len());
                bytes[index] = byte;
            }
            bytes.truncate(end.index(bytes.len() + 1));
            read_all(&bytes);
        }
    }
}
