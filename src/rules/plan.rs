//! A config becomes the rulesets of its families: a pure function.

use std::borrow::Cow;

use ipnet::IpNet;

use crate::rules::config::{Config, Family, Port, PortRange, Subnet};
use crate::rules::ruleset::{Chain, ChainName, Match, Multiport, Rule, Ruleset, Target};

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
                rules: vec![jump(
                    ChainName::ProxyInitRedirect,
                    "proxy-init/install-proxy-init-prerouting",
                )],
            },
            Chain {
                name: ChainName::ProxyInitOutput,
                rules: outbound(config, family),
            },
            Chain {
                name: ChainName::Output,
                rules: vec![jump(ChainName::ProxyInitOutput, "proxy-init/install-proxy-init-output")],
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
            "proxy-init/redirect-all-incoming-to-proxy-port",
        ));
    }
    rules.extend(config.redirected_ports.iter().map(|&port| {
        redirect(
            vec![Match::Tcp, Match::DestinationPort(port)],
            config.inbound_port,
            format!("proxy-init/redirect-port-{port}-to-proxy-port"),
        )
    }));
    rules
}

fn outbound(config: &Config, family: Family) -> Vec<Rule> {
    let mut rules = Vec::new();
    if let Some(uid) = config.proxy_uid {
        rules.push(bypass(vec![Match::UidOwner(uid)], "proxy-init/ignore-proxy-user-id"));
    }
    if let Some(gid) = config.proxy_gid {
        rules.push(bypass(vec![Match::GidOwner(gid)], "proxy-init/ignore-proxy-group-id"));
    }
    rules.push(bypass(vec![Match::OutLoopback], "proxy-init/ignore-loopback"));
    rules.extend(ignored_ports(&config.ignored_outbound_ports));
    rules.extend(ignored_subnets(
        &config.ignored_outbound_subnets,
        family,
        Match::Destination,
    ));
    rules.push(redirect(
        vec![Match::Tcp],
        config.outbound_port,
        "proxy-init/redirect-all-outgoing-to-proxy-port",
    ));
    rules
}

fn ignored_ports(ports: &[PortRange]) -> impl Iterator<Item = Rule> {
    Multiport::pieces(ports).into_iter().map(|piece| {
        let comment = format!("proxy-init/ignore-port-{piece}");
        bypass(vec![Match::Tcp, Match::DestinationPorts(piece)], comment)
    })
}

fn ignored_subnets(subnets: &[Subnet], family: Family, side: fn(IpNet) -> Match) -> impl Iterator<Item = Rule> {
    let ours = subnets.iter().filter(move |subnet| subnet.family() == family);
    ours.map(move |subnet| {
        // Every address: no condition, as iptables has it too.
        let net = Some(subnet.net()).filter(|net| net.prefix_len() > 0);
        bypass(
            net.into_iter().map(side).collect(),
            format!("proxy-init/ignore-subnet-{subnet}"),
        )
    })
}

fn bypass(matches: Vec<Match>, comment: impl Into<Cow<'static, str>>) -> Rule {
    Rule {
        matches,
        target: Target::Return,
        comment: comment.into(),
    }
}

fn redirect(matches: Vec<Match>, to: Port, comment: impl Into<Cow<'static, str>>) -> Rule {
    Rule {
        matches,
        target: Target::Redirect(to),
        comment: comment.into(),
    }
}

fn jump(to: ChainName, comment: &'static str) -> Rule {
    Rule {
        matches: Vec::new(),
        target: Target::Jump(to),
        comment: comment.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
                .filter(|(_, rule)| rule.comment.contains("subnet"))
                .map(|(_, rule)| rule.comment.clone())
                .collect();
            assert_eq!(subnets, [comment]);
        }
    }
}
