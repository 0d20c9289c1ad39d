//! How a config is spelled as flags: the names that say which rules to install, and the way back from a [`Config`].

use std::fmt::Display;

use crate::config::Config;
use crate::config::mode::ModeChoice;

pub const INCOMING_PROXY_PORT: &str = "incoming-proxy-port";
pub const OUTGOING_PROXY_PORT: &str = "outgoing-proxy-port";
pub const PROXY_UID: &str = "proxy-uid";
pub const PROXY_GID: &str = "proxy-gid";
pub const PORTS_TO_REDIRECT: &str = "ports-to-redirect";
pub const INBOUND_PORTS_TO_IGNORE: &str = "inbound-ports-to-ignore";
pub const OUTBOUND_PORTS_TO_IGNORE: &str = "outbound-ports-to-ignore";
pub const INBOUND_SUBNETS_TO_IGNORE: &str = "inbound-subnets-to-ignore";
pub const OUTBOUND_SUBNETS_TO_IGNORE: &str = "outbound-subnets-to-ignore";
pub const OUTBOUND_PORTS_TO_REDIRECT: &str = "outbound-ports-to-redirect";
pub const OUTBOUND_SUBNETS_TO_REDIRECT: &str = "outbound-subnets-to-redirect";
pub const SKIP_UID: &str = "skip-uid";
pub const SKIP_GID: &str = "skip-gid";
pub const INBOUND_INTERFACES_TO_IGNORE: &str = "inbound-interfaces-to-ignore";
pub const OUTBOUND_INTERFACES_TO_IGNORE: &str = "outbound-interfaces-to-ignore";
pub const IPV6: &str = "ipv6";
pub const IPTABLES_MODE: &str = "iptables-mode";

/// The most items of a list in one argument. The kernel takes no argument longer than 128 KiB (MAX_ARG_STRLEN), and the
/// longest item, an IPv6 subnet, takes 50 bytes; a flag that is repeated adds to its list.
const ITEMS: usize = 1000;

/// The flags that install exactly `config` in the mode of `choice`, without those that have their default.
pub fn arguments(config: &Config, choice: ModeChoice) -> Vec<String> {
    // Without `..`, so that the compiler asks for the fields of new flags.
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
    let mut flags = Flags::default();
    flags.add(INCOMING_PROXY_PORT, [inbound_port]);
    flags.add(OUTGOING_PROXY_PORT, [outbound_port]);
    flags.add(PROXY_UID, proxy_uid);
    flags.add(PROXY_GID, proxy_gid);
    flags.list(PORTS_TO_REDIRECT, redirected_ports);
    flags.list(INBOUND_PORTS_TO_IGNORE, ignored_inbound_ports);
    flags.list(OUTBOUND_PORTS_TO_IGNORE, ignored_outbound_ports);
    flags.list(INBOUND_SUBNETS_TO_IGNORE, ignored_inbound_subnets);
    flags.list(OUTBOUND_SUBNETS_TO_IGNORE, ignored_outbound_subnets);
    flags.list(OUTBOUND_PORTS_TO_REDIRECT, redirected_outbound_ports);
    flags.list(OUTBOUND_SUBNETS_TO_REDIRECT, redirected_outbound_subnets);
    flags.list(SKIP_UID, ignored_uids);
    flags.list(SKIP_GID, ignored_gids);
    flags.list(INBOUND_INTERFACES_TO_IGNORE, ignored_inbound_interfaces);
    flags.list(OUTBOUND_INTERFACES_TO_IGNORE, ignored_outbound_interfaces);
    if !ipv6 {
        // A boolean takes its value after "=" only.
        flags.0.push(format!("--{IPV6}=false"));
    }
    flags.add(IPTABLES_MODE, choice.name());
    flags.0
}

#[derive(Default)]
struct Flags(Vec<String>);

impl Flags {
    fn add(&mut self, name: &str, values: impl IntoIterator<Item = impl Display>) {
        for value in values {
            self.0.extend([format!("--{name}"), value.to_string()]);
        }
    }

    fn list(&mut self, name: &str, items: &[impl ToString]) {
        for items in items.chunks(ITEMS) {
            let items: Vec<String> = items.iter().map(ToString::to_string).collect();
            self.add(name, [items.join(",")]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::mode::Mode;
    use crate::config::{OwnerId, Port};

    fn config() -> Config {
        let port = |number| Port::new(number).unwrap();
        Config::new(port(4143), port(4140))
    }

    #[test]
    fn what_is_as_by_default_has_no_flag() {
        let ports = ["--incoming-proxy-port", "4143", "--outgoing-proxy-port", "4140"];
        assert_eq!(arguments(&config(), ModeChoice::Default), ports);
    }

    #[test]
    fn each_field_is_its_flag() {
        let config = Config {
            inbound_port: Port::new(4143).unwrap(),
            outbound_port: Port::new(4140).unwrap(),
            proxy_uid: OwnerId::new(2102),
            proxy_gid: OwnerId::new(2103),
            redirected_ports: vec![Port::new(80).unwrap(), Port::new(443).unwrap()],
            ignored_inbound_ports: vec!["4190".parse().unwrap(), "8000-8100".parse().unwrap()],
            ignored_outbound_ports: vec!["25".parse().unwrap()],
            ignored_inbound_subnets: vec!["10.1.2.3/8".parse().unwrap()],
            ignored_outbound_subnets: vec!["fd00::/8".parse().unwrap(), "192.0.2.1/32".parse().unwrap()],
            redirected_outbound_ports: vec!["80".parse().unwrap(), "8000-8100".parse().unwrap()],
            redirected_outbound_subnets: vec!["10.0.0.0/8".parse().unwrap()],
            ignored_uids: vec!["0".parse().unwrap(), "1000-1999".parse().unwrap()],
            ignored_gids: vec!["7".parse().unwrap()],
            ignored_inbound_interfaces: vec!["net1".parse().unwrap(), "net2".parse().unwrap()],
            ignored_outbound_interfaces: vec!["tun0".parse().unwrap()],
            ipv6: false,
        };
        assert_eq!(
            arguments(&config, ModeChoice::Mode(Mode::Nft)).join(" "),
            "--incoming-proxy-port 4143 --outgoing-proxy-port 4140 --proxy-uid 2102 --proxy-gid 2103 \
             --ports-to-redirect 80,443 --inbound-ports-to-ignore 4190,8000-8100 --outbound-ports-to-ignore 25 \
             --inbound-subnets-to-ignore 10.1.2.3/8 --outbound-subnets-to-ignore fd00::/8,192.0.2.1/32 \
             --outbound-ports-to-redirect 80,8000-8100 --outbound-subnets-to-redirect 10.0.0.0/8 --skip-uid 0,1000-1999 --skip-gid 7 \
             --inbound-interfaces-to-ignore net1,net2 --outbound-interfaces-to-ignore tun0 --ipv6=false --iptables-mode nft"
        );
    }

    /// The kernel takes no argument of more than 128 KiB.
    #[test]
    fn a_long_list_is_several_arguments() {
        let mut config = config();
        config.redirected_ports = (1..=2001).map(|number| Port::new(number).unwrap()).collect();
        let arguments = arguments(&config, ModeChoice::Default);
        let lists: Vec<_> = arguments[4..].chunks(2).collect();
        assert!(lists.iter().all(|list| list[0] == "--ports-to-redirect"));
        let ends: Vec<_> = lists.iter().map(|list| (list[1].split(',').next(), list[1].split(',').count())).collect();
        assert_eq!(ends, [(Some("1"), 1000), (Some("1001"), 1000), (Some("2001"), 1)]);
    }
}
