//! The readers of what others write, for the fuzzer (fuzz/) and for the tests that run its corpus. Nothing that they
//! are given may make them panic, or pass for a rule of ours that wouldn't be written the same.

use crate::backend::{legacy, nft};
use crate::netlink::message::Messages;
use crate::rules::config::{Family, Port, PortRange, Subnet};
use crate::rules::xtables::Saved;

/// Feeds one input to every reader.
pub fn read_all(input: &[u8]) {
    let families = [Family::V4, Family::V6];
    for message in Messages(input).flatten() {
        if let Ok(attributes) = message.attributes() {
            families.iter().for_each(|&family| nft::read_back(attributes, family));
        }
    }
    for family in families {
        nft::read_back(crate::netlink::message::Attributes(input), family);
        let _ = legacy::read_entries(input, family);
    }
    if let Ok(text) = std::str::from_utf8(input) {
        let _ = (text.parse::<Port>(), text.parse::<PortRange>(), text.parse::<Subnet>());
        Saved::parse(text).read_back();
        #[cfg(feature = "cli")]
        let _ = crate::cli::parse(
            std::iter::once("proxy-init").chain(text.split('\0')).map(Into::into),
            None,
        );
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::backend::nft::Prepared;
    use crate::{Config, plan};

    fn batch(config: &Config) -> Vec<u8> {
        let rulesets: Vec<_> = plan(config);
        Prepared::new(&rulesets).bytes().to_vec()
    }

    fn any_config() -> impl Strategy<Value = Config> {
        let ports = || prop::collection::vec((any::<u16>(), 0..300u16), 0..40);
        let subnets = || prop::collection::vec((any::<[u8; 16]>(), 0..=128u8, any::<bool>()), 0..4);
        (
            1..=u16::MAX,
            1..u32::MAX,
            ports(),
            subnets(),
            prop::collection::vec(1..=u16::MAX, 0..3),
        )
            .prop_map(|(port, id, ports, subnets, redirected)| {
                let mut config = Config::new(Port::new(port).unwrap(), Port::new(port).unwrap());
                config.proxy_uid = crate::OwnerId::new(id);
                config.proxy_gid = crate::OwnerId::new(id);
                config.redirected_ports = redirected.into_iter().filter_map(Port::new).collect();
                config.ignored_inbound_ports = ports
                    .iter()
                    .filter_map(|&(first, more)| PortRange::new(first, first.saturating_add(more)))
                    .collect();
                config.ignored_outbound_ports = config.ignored_inbound_ports.clone();
                config.ignored_inbound_subnets = subnets
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
                config.ignored_outbound_subnets = config.ignored_inbound_subnets.clone();
                config
            })
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
        /// What nft mode writes is read back as the same rules.
        #[test]
        fn rules_survive_the_kernels_encoding(config in any_config()) {
            for ruleset in plan(&config) {
                let family = ruleset.family;
                let rules: Vec<_> = ruleset.rules().map(|(_, rule)| rule.clone()).collect();
                let bytes = Prepared::new(std::slice::from_ref(&ruleset)).bytes().to_vec();
                prop_assert_eq!(nft::rules_in(&bytes, family), rules);
            }
        }

        /// And so with what legacy mode and --simulate write.
        #[test]
        fn rules_survive_iptables_syntax(config in any_config()) {
            for ruleset in plan(&config) {
                for (chain, rule) in ruleset.rules() {
                    let saved = Saved::parse(&format!("-A {chain} {rule}\n"));
                    let read: Vec<_> = saved.lines(chain).map(crate::rules::xtables::Line::rule).collect();
                    prop_assert_eq!(read, [Some(rule.clone())]);
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
