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
    use crate::config::testing::any_config;
    use crate::modes::batch as batch_of;

    fn batch(config: &Config) -> Vec<u8> {
        batch_of(Mode::Nft, config).unwrap()
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
