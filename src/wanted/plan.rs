//! Plans the rules: a pure function from a config to the rulesets of its families.

use ipnet::IpNet;

use crate::rules::family::Family;
use crate::wanted::config::{Config, Port, PortRange, Subnet};
use crate::wanted::ruleset::{Chain, ChainName, Match, Multiport, Purpose, Rule, Ruleset, Target};

/// The rules that `config` asks for, one ruleset per family: linkerd-init's, in its order, with its comments.
pub fn plan(config: &Config) -> Vec<Ruleset> {
    config
        .families()
        .iter()
        .map(|&family| of_family(config, family))
        .collect()
}

fn of_family(config: &Config, family: Family) -> Ruleset {
    Ruleset {
        family,
        chains: vec![
            Chain {
                name: ChainName::ProxyInitRedirect,
                rules: inbound(config, family),
            },
            Chain {
                name: ChainName::Prerouting,
                rules: vec![jump(ChainName::ProxyInitRedirect, Purpose::LookAtInbound)],
            },
            Chain {
                name: ChainName::ProxyInitOutput,
                rules: outbound(config, family),
            },
            Chain {
                name: ChainName::Output,
                rules: vec![jump(ChainName::ProxyInitOutput, Purpose::LookAtOutbound)],
            },
        ],
    }
}

fn inbound(config: &Config, family: Family) -> Vec<Rule> {
    let mut rules = Vec::new();
    rules.extend(ignored_ports(&config.ignored_inbound_ports));
    rules.extend(ignored_subnets(&config.ignored_inbound_subnets, family, Match::Source));
    if config.redirected_ports.is_empty() {
        rules.push(redirect(
            vec![Match::Tcp],
            config.inbound_port,
            Purpose::RedirectInbound,
        ));
    }
    rules.extend(config.redirected_ports.iter().map(|&port| {
        redirect(
            vec![Match::Tcp, Match::DestinationPort(port)],
            config.inbound_port,
            Purpose::RedirectPort(port),
        )
    }));
    rules
}

fn outbound(config: &Config, family: Family) -> Vec<Rule> {
    let mut rules = Vec::new();
    if let Some(uid) = config.proxy_uid {
        rules.push(bypass(vec![Match::UidOwner(uid)], Purpose::IgnoreUser));
    }
    if let Some(gid) = config.proxy_gid {
        rules.push(bypass(vec![Match::GidOwner(gid)], Purpose::IgnoreGroup));
    }
    rules.push(bypass(vec![Match::OutLoopback], Purpose::IgnoreLoopback));
    rules.extend(ignored_ports(&config.ignored_outbound_ports));
    rules.extend(ignored_subnets(
        &config.ignored_outbound_subnets,
        family,
        Match::Destination,
    ));
    rules.push(redirect(
        vec![Match::Tcp],
        config.outbound_port,
        Purpose::RedirectOutbound,
    ));
    rules
}

fn ignored_ports(ports: &[PortRange]) -> impl Iterator<Item = Rule> {
    Multiport::pieces(ports).into_iter().map(|piece| {
        bypass(
            vec![Match::Tcp, Match::DestinationPorts(piece.clone())],
            Purpose::IgnorePorts(piece),
        )
    })
}

fn ignored_subnets(subnets: &[Subnet], family: Family, side: fn(IpNet) -> Match) -> impl Iterator<Item = Rule> {
    let ours = subnets.iter().filter(move |subnet| subnet.family() == family);
    ours.map(move |subnet| {
        // A subnet of all addresses needs no condition; iptables leaves it out too.
        let net = Some(subnet.net()).filter(|net| net.prefix_len() > 0);
        bypass(
            net.into_iter().map(side).collect(),
            Purpose::IgnoreSubnet(subnet.clone()),
        )
    })
}

fn bypass(matches: Vec<Match>, purpose: Purpose) -> Rule {
    Rule {
        matches,
        target: Target::Return,
        purpose,
    }
}

fn redirect(matches: Vec<Match>, to: Port, purpose: Purpose) -> Rule {
    Rule {
        matches,
        target: Target::Redirect(to),
        purpose,
    }
}

fn jump(to: ChainName, purpose: Purpose) -> Rule {
    Rule {
        matches: Vec::new(),
        target: Target::Jump(to),
        purpose,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wanted::config::OwnerId;

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
                .map(|(_, rule)| rule.purpose.to_string())
                .filter(|comment| comment.contains("subnet"))
                .collect();
            assert_eq!(subnets, [comment]);
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
                .map(|(chain, rule)| format!("{chain} {rule:#}"))
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
