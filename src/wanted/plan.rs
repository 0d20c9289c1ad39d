//! Plans the rules: a pure function from a config to the rulesets of its families.

use crate::rules::family::Family;
use crate::wanted::config::{Config, PortRange};
use crate::wanted::ruleset::{ChainName, Multiport, Proxy, Purpose, Ruleset};

/// The rules that `config` asks for, one ruleset per family: linkerd-init's, in its order, with its comments.
pub fn plan(config: &Config) -> Vec<Ruleset> {
    let proxy = Proxy {
        inbound_port: config.inbound_port,
        outbound_port: config.outbound_port,
        uid: config.proxy_uid,
        gid: config.proxy_gid,
    };
    let ruleset = |&family: &Family| Ruleset {
        family,
        proxy,
        purposes: purposes(config, family),
    };
    config.families().iter().map(ruleset).collect()
}

fn purposes(config: &Config, family: Family) -> Vec<(ChainName, Purpose)> {
    let mut purposes = Vec::new();
    let mut chain = |name: ChainName, of: Vec<Purpose>| purposes.extend(of.into_iter().map(|purpose| (name, purpose)));
    chain(ChainName::ProxyInitRedirect, inbound(config, family));
    chain(ChainName::Prerouting, vec![Purpose::LookAtInbound]);
    chain(ChainName::ProxyInitOutput, outbound(config, family));
    chain(ChainName::Output, vec![Purpose::LookAtOutbound]);
    purposes
}

fn inbound(config: &Config, family: Family) -> Vec<Purpose> {
    let mut purposes = Vec::new();
    purposes.extend(ignored_ports(&config.ignored_inbound_ports));
    purposes.extend(config.ignored_sources(family).cloned().map(Purpose::IgnoreSubnet));
    if config.redirected_ports.is_empty() {
        purposes.push(Purpose::RedirectInbound);
    }
    purposes.extend(config.redirected_ports.iter().copied().map(Purpose::RedirectPort));
    purposes
}

fn outbound(config: &Config, family: Family) -> Vec<Purpose> {
    let mut purposes = Vec::new();
    purposes.extend(config.proxy_uid.map(|_| Purpose::IgnoreUser));
    purposes.extend(config.proxy_gid.map(|_| Purpose::IgnoreGroup));
    purposes.push(Purpose::IgnoreLoopback);
    purposes.extend(ignored_ports(&config.ignored_outbound_ports));
    let destinations = config.ignored_outbound_subnets.iter();
    let destinations = destinations.filter(|subnet| subnet.family() == family);
    purposes.extend(destinations.cloned().map(Purpose::IgnoreSubnet));
    purposes.push(Purpose::RedirectOutbound);
    purposes
}

fn ignored_ports(ports: &[PortRange]) -> impl Iterator<Item = Purpose> {
    Multiport::pieces(ports).into_iter().map(Purpose::IgnorePorts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::xtables::IptablesRule;
    use crate::wanted::config::{OwnerId, Port};

    #[test]
    fn a_subnet_goes_to_its_own_family() {
        let port = |number| Port::new(number).unwrap();
        let mut config = Config::new(port(4143), port(4140));
        config.ignored_inbound_subnets = vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        let want = [
            (Family::V4, "proxy-init/ignore-subnet-10.0.0.0/8"),
            (Family::V6, "proxy-init/ignore-subnet-fd00::/8"),
        ];
        for (ruleset, (family, comment)) in plan(&config).iter().zip(want) {
            assert_eq!(ruleset.family, family);
            let subnets: Vec<_> = ruleset
                .rules()
                .filter_map(|(_, rule)| rule.comment.map(|comment| comment.to_string()))
                .filter(|comment| comment.contains("subnet"))
                .collect();
            assert_eq!(subnets, [comment]);
        }
    }

    fn subnets_in(ruleset: &Ruleset) -> Vec<String> {
        let subnet = |(_, purpose): &(ChainName, Purpose)| match purpose {
            Purpose::IgnoreSubnet(subnet) => Some(subnet.to_string()),
            _ => None,
        };
        ruleset.purposes.iter().filter_map(subnet).collect()
    }

    /// What linkerd-init's iptables make of such a list: each of these is all that `-s` gets there.
    #[test]
    fn all_addresses_are_those_of_both_families() {
        let port = |number| Port::new(number).unwrap();
        let mut config = Config::new(port(4143), port(4140));
        for (listed, v4, v6) in [
            ("0.0.0.0/0", "0.0.0.0/0", "0.0.0.0/0"),
            ("::/0", "::/0", "::/0"),
            ("0.0.0.0/0,1.2.3.4/0", "0.0.0.0/0,1.2.3.4/0", "0.0.0.0/0,1.2.3.4/0"),
            // Each its own.
            ("0.0.0.0/0,::/0", "0.0.0.0/0", "::/0"),
            // Lists that linkerd-init fails with.
            ("0.0.0.0/0,10.0.0.0/8", "0.0.0.0/0,10.0.0.0/8", ""),
            ("0.0.0.0/0,fd00::/8", "0.0.0.0/0", "fd00::/8"),
        ] {
            let subnets = || listed.split(',').map(|subnet| subnet.parse().unwrap()).collect();
            (config.ignored_inbound_subnets, config.ignored_outbound_subnets) = (subnets(), vec![]);
            for (ruleset, want) in plan(&config).iter().zip([v4, v6]) {
                assert_eq!(subnets_in(ruleset).join(","), want, "{listed}");
            }
            // linkerd-init has no such flag.
            (config.ignored_inbound_subnets, config.ignored_outbound_subnets) = (vec![], subnets());
            for ruleset in plan(&config) {
                let own = config.ignored_outbound_subnets.iter();
                let own: Vec<_> = own
                    .filter(|it| it.family() == ruleset.family)
                    .map(ToString::to_string)
                    .collect();
                assert_eq!(subnets_in(&ruleset), own, "{listed}");
            }
        }
    }

    /// In linkerd-init's order and with its comments.
    #[test]
    fn each_setting_has_its_rules_in_order() {
        let written = |config: &Config, family: Family| -> Vec<String> {
            let rulesets = plan(config);
            let ruleset = rulesets.iter().find(|ruleset| ruleset.family == family).unwrap();
            ruleset
                .rules()
                .map(|(chain, rule)| format!("{chain} {:#}", IptablesRule(&rule)))
                .collect()
        };
        let port = |number| Port::new(number).unwrap();
        let mut config = Config::new(port(4143), port(4140));
        assert_eq!(
            written(&config, Family::V6),
            [
                "PROXY_INIT_REDIRECT -p tcp -m comment --comment proxy-init/redirect-all-incoming-to-proxy-port -j REDIRECT --to-ports 4143",
                "PREROUTING -m comment --comment proxy-init/install-proxy-init-prerouting -j PROXY_INIT_REDIRECT",
                "PROXY_INIT_OUTPUT -o lo -m comment --comment proxy-init/ignore-loopback -j RETURN",
                "PROXY_INIT_OUTPUT -p tcp -m comment --comment proxy-init/redirect-all-outgoing-to-proxy-port -j REDIRECT --to-ports 4140",
                "OUTPUT -m comment --comment proxy-init/install-proxy-init-output -j PROXY_INIT_OUTPUT",
            ]
        );
        config.proxy_uid = OwnerId::new(2102);
        config.proxy_gid = OwnerId::new(2103);
        config.redirected_ports = vec![port(80), port(443)];
        config.ignored_inbound_ports = vec!["4190".parse().unwrap(), "8000-8100".parse().unwrap()];
        config.ignored_outbound_ports = vec!["25".parse().unwrap()];
        config.ignored_inbound_subnets = vec!["10.1.2.3/8".parse().unwrap(), "0.0.0.0/0".parse().unwrap()];
        config.ignored_outbound_subnets = vec!["192.0.2.1/32".parse().unwrap()];
        config.ipv6 = false;
        assert_eq!(plan(&config).len(), 1);
        assert_eq!(
            written(&config, Family::V4),
            [
                "PROXY_INIT_REDIRECT -p tcp -m multiport --dports 4190,8000:8100 -m comment --comment proxy-init/ignore-port-4190,8000:8100 -j RETURN",
                "PROXY_INIT_REDIRECT -s 10.0.0.0/8 -m comment --comment proxy-init/ignore-subnet-10.1.2.3/8 -j RETURN",
                "PROXY_INIT_REDIRECT -m comment --comment proxy-init/ignore-subnet-0.0.0.0/0 -j RETURN",
                "PROXY_INIT_REDIRECT -p tcp -m tcp --dport 80 -m comment --comment proxy-init/redirect-port-80-to-proxy-port -j REDIRECT --to-ports 4143",
                "PROXY_INIT_REDIRECT -p tcp -m tcp --dport 443 -m comment --comment proxy-init/redirect-port-443-to-proxy-port -j REDIRECT --to-ports 4143",
                "PREROUTING -m comment --comment proxy-init/install-proxy-init-prerouting -j PROXY_INIT_REDIRECT",
                "PROXY_INIT_OUTPUT -m owner --uid-owner 2102 -m comment --comment proxy-init/ignore-proxy-user-id -j RETURN",
                "PROXY_INIT_OUTPUT -m owner --gid-owner 2103 -m comment --comment proxy-init/ignore-proxy-group-id -j RETURN",
                "PROXY_INIT_OUTPUT -o lo -m comment --comment proxy-init/ignore-loopback -j RETURN",
                "PROXY_INIT_OUTPUT -p tcp -m multiport --dports 25 -m comment --comment proxy-init/ignore-port-25 -j RETURN",
                "PROXY_INIT_OUTPUT -d 192.0.2.1/32 -m comment --comment proxy-init/ignore-subnet-192.0.2.1/32 -j RETURN",
                "PROXY_INIT_OUTPUT -p tcp -m comment --comment proxy-init/redirect-all-outgoing-to-proxy-port -j REDIRECT --to-ports 4140",
                "OUTPUT -m comment --comment proxy-init/install-proxy-init-output -j PROXY_INIT_OUTPUT",
            ]
        );
    }
}
