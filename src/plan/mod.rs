//! Plans the rules: a pure function from a config to the rules of each of its families.

mod names;
pub mod tables;

use ipnet::IpNet;
use ruleset::Family;

pub use self::names::{ChainName, Multiport, Purpose};
pub(crate) use self::names::{chain_of, is_on_owner, owner, rules_of};
use crate::config::{Config, IdRange, Interface, Port, PortRange, Subnet};

/// The rules that a config asks for in one family.
#[derive(Debug, Clone)]
pub struct FamilyPlan {
    pub family: Family,
    /// In the order of [`ChainName::IN_ORDER`].
    pub chains: [PlannedChain; 4],
}

#[derive(Debug, Clone)]
pub struct PlannedChain {
    pub name: ChainName,
    pub rules: Vec<Planned>,
}

/// A planned rule: a packet that meets all the matches gets the verdict.
#[derive(Debug, Clone)]
pub struct Planned {
    pub purpose: Purpose,
    pub matches: Vec<Match>,
    pub verdict: Verdict,
}

/// The condition of a planned rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    Tcp,
    /// To this port.
    Port(Port),
    /// To one of these ports.
    Ports(Multiport),
    /// To none of these ports.
    OtherPorts(Multiport),
    Source(IpNet),
    Destination(IpNet),
    /// Sent by one of these users.
    User(IdRange),
    /// Sent by one of these groups.
    Group(IdRange),
    InInterface(Interface),
    OutInterface(Interface),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    Return,
    /// To this port of the proxy's.
    Redirect(Port),
    Jump(ChainName),
}

/// The rules that `config` asks for: linkerd-init's, in its order, with its purposes.
pub fn plan(config: &Config) -> Vec<FamilyPlan> {
    let chains = |family| ChainName::IN_ORDER.map(|name| PlannedChain { name, rules: rules(config, family, name) });
    config.families().iter().map(|&family| FamilyPlan { family, chains: chains(family) }).collect()
}

fn rules(config: &Config, family: Family, chain: ChainName) -> Vec<Planned> {
    match chain {
        ChainName::ProxyInitRedirect => inbound_rules(config, family),
        ChainName::ProxyInitOutput => outbound_rules(config, family),
        ChainName::Prerouting | ChainName::Output => {
            let verdict = Verdict::Jump(chain.counterpart());
            vec![Planned { purpose: chain.jump_purpose(), matches: vec![], verdict }]
        }
    }
}

fn inbound_rules(config: &Config, family: Family) -> Vec<Planned> {
    let to_proxy = Verdict::Redirect(config.inbound_port);
    let mut rules = ignore_ports(&config.ignored_inbound_ports);
    for subnet in config.ignored_sources(family) {
        rules.push(ignore(Purpose::IgnoreSubnet(subnet.clone()), in_subnet(Match::Source, subnet)));
    }
    for name in &config.ignored_inbound_interfaces {
        rules.push(ignore(Purpose::IgnoreInterface(name.clone()), vec![Match::InInterface(name.clone())]));
    }
    if config.redirected_ports.is_empty() {
        rules.push(Planned { purpose: Purpose::RedirectInbound, matches: vec![Match::Tcp], verdict: to_proxy });
    }
    for &port in &config.redirected_ports {
        let matches = vec![Match::Tcp, Match::Port(port)];
        rules.push(Planned { purpose: Purpose::RedirectPort(port), matches, verdict: to_proxy });
    }
    rules
}

/// Exceptions that linkerd-init doesn't know come after its own, which stay where they are. A list of ports to redirect
/// becomes an exception for all other ports, so that a list of subnets can narrow the rest: each subnet has a rule, in place
/// of the rule that redirects everything.
fn outbound_rules(config: &Config, family: Family) -> Vec<Planned> {
    let to_proxy = Verdict::Redirect(config.outbound_port);
    let mut rules = Vec::new();
    rules.extend(config.proxy_uid.map(|id| ignore(Purpose::IgnoreUser, vec![Match::User(id.into())])));
    rules.extend(config.proxy_gid.map(|id| ignore(Purpose::IgnoreGroup, vec![Match::Group(id.into())])));
    rules.push(ignore(Purpose::IgnoreLoopback, vec![Match::OutInterface(Interface::loopback())]));
    rules.extend(ignore_ports(&config.ignored_outbound_ports));
    for subnet in of_family(&config.ignored_outbound_subnets, family) {
        rules.push(ignore(Purpose::IgnoreSubnet(subnet.clone()), in_subnet(Match::Destination, subnet)));
    }
    for &ids in &config.ignored_uids {
        rules.push(ignore(Purpose::IgnoreUsers(ids), vec![Match::User(ids)]));
    }
    for &ids in &config.ignored_gids {
        rules.push(ignore(Purpose::IgnoreGroups(ids), vec![Match::Group(ids)]));
    }
    for name in &config.ignored_outbound_interfaces {
        rules.push(ignore(Purpose::IgnoreInterface(name.clone()), vec![Match::OutInterface(name.clone())]));
    }
    if !config.redirected_outbound_ports.is_empty() {
        let mut matches = vec![Match::Tcp];
        matches.extend(Multiport::pieces(&config.redirected_outbound_ports).into_iter().map(Match::OtherPorts));
        rules.push(ignore(Purpose::IgnoreUnlistedPorts, matches));
    }
    if config.redirected_outbound_subnets.is_empty() {
        rules.push(Planned { purpose: Purpose::RedirectOutbound, matches: vec![Match::Tcp], verdict: to_proxy });
    }
    for subnet in of_family(&config.redirected_outbound_subnets, family) {
        let mut matches = in_subnet(Match::Destination, subnet);
        matches.push(Match::Tcp);
        rules.push(Planned { purpose: Purpose::RedirectSubnet(subnet.clone()), matches, verdict: to_proxy });
    }
    rules
}

fn ignore_ports(ports: &[PortRange]) -> Vec<Planned> {
    let mut rules = Vec::new();
    for ports in Multiport::pieces(ports) {
        let matches = vec![Match::Tcp, Match::Ports(ports.clone())];
        rules.push(ignore(Purpose::IgnorePorts(ports), matches));
    }
    rules
}

fn ignore(purpose: Purpose, matches: Vec<Match>) -> Planned {
    Planned { purpose, matches, verdict: Verdict::Return }
}

/// A subnet of all addresses needs no match; iptables leaves it out too.
fn in_subnet(side: fn(IpNet) -> Match, subnet: &Subnet) -> Vec<Match> {
    if subnet.is_of_all() { Vec::new() } else { vec![side(subnet.net())] }
}

fn of_family(subnets: &[Subnet], family: Family) -> impl Iterator<Item = &Subnet> {
    subnets.iter().filter(move |subnet| subnet.family() == family)
}

#[cfg(test)]
mod tests {
    use ruleset::Table;
    use ruleset::xtables::IptablesRule;

    use super::*;
    use crate::config::{Mode, OwnerId};
    use crate::plan::tables::expected;

    #[test]
    fn a_subnet_goes_to_its_own_family() {
        let port = |number| Port::new(number).unwrap();
        let mut config = Config::new(port(4143), port(4140));
        config.ignored_inbound_subnets = vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        let want =
            [(Family::V4, "proxy-init/ignore-subnet-10.0.0.0/8"), (Family::V6, "proxy-init/ignore-subnet-fd00::/8")];
        for (plan, (family, comment)) in plan(&config).iter().zip(want) {
            assert_eq!(plan.family, family);
            let comments = purposes(plan).map(ToString::to_string).filter(|comment| comment.contains("subnet"));
            assert_eq!(comments.collect::<Vec<_>>(), [comment]);
        }
    }

    fn purposes(plan: &FamilyPlan) -> impl Iterator<Item = &Purpose> {
        plan.chains.iter().flat_map(|chain| &chain.rules).map(|planned| &planned.purpose)
    }

    #[test]
    fn only_listed_subnets_are_redirected() {
        let port = |number| Port::new(number).unwrap();
        let mut config = Config::new(port(4143), port(4140));
        config.redirected_outbound_subnets = vec!["10.1.2.3/8".parse().unwrap(), "0.0.0.0/0".parse().unwrap()];
        let redirections = |table: &Table| -> Vec<String> {
            let rules = rules_of(table, ChainName::ProxyInitOutput).iter();
            let rules = rules.map(|rule| IptablesRule(rule).to_string());
            rules.filter(|rule| rule.contains("-j REDIRECT")).collect()
        };
        let [v4, v6] = expected(Mode::Nft, &config).try_into().unwrap();
        assert_eq!(
            redirections(&v4),
            [
                "-d 10.0.0.0/8 -p tcp -m comment --comment \"proxy-init/redirect-subnet-10.1.2.3/8-to-proxy-port\" -j REDIRECT --to-ports 4140",
                "-p tcp -m comment --comment \"proxy-init/redirect-subnet-0.0.0.0/0-to-proxy-port\" -j REDIRECT --to-ports 4140",
            ]
        );
        assert_eq!(redirections(&v6), [""; 0]);
    }

    fn subnets_in(plan: &FamilyPlan) -> Vec<String> {
        let subnet = |purpose: &Purpose| match purpose {
            Purpose::IgnoreSubnet(subnet) => Some(subnet.to_string()),
            _ => None,
        };
        purposes(plan).filter_map(subnet).collect()
    }

    /// linkerd-init's iptables reads such a list so: each of these is all that `-s` gets there.
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
            for (plan, want) in plan(&config).iter().zip([v4, v6]) {
                assert_eq!(subnets_in(plan).join(","), want, "{listed}");
            }
            // linkerd-init has no such flag.
            (config.ignored_inbound_subnets, config.ignored_outbound_subnets) = (vec![], subnets());
            for plan in plan(&config) {
                let own = of_family(&config.ignored_outbound_subnets, plan.family).map(ToString::to_string);
                assert_eq!(subnets_in(&plan), own.collect::<Vec<_>>(), "{listed}");
            }
        }
    }

    /// In linkerd-init's order and with its comments.
    #[test]
    fn each_setting_has_its_rules_in_order() {
        let written = |config: &Config, family: Family| -> Vec<String> {
            let tables = expected(Mode::Nft, config);
            let table = tables.iter().find(|table| table.family.sees(family)).unwrap();
            let mut written = Vec::new();
            for chain in &table.chains {
                written.extend(chain.rules.iter().map(|rule| format!("{} {:#}", chain.name, IptablesRule(rule))));
            }
            written
        };
        let port = |number| Port::new(number).unwrap();
        let config = Config::new(port(4143), port(4140));
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
        let config = Config {
            inbound_port: port(4143),
            outbound_port: port(4140),
            proxy_uid: OwnerId::new(2102),
            proxy_gid: OwnerId::new(2103),
            redirected_ports: vec![port(80), port(443)],
            ignored_inbound_ports: vec!["4190".parse().unwrap(), "8000-8100".parse().unwrap()],
            ignored_outbound_ports: vec!["25".parse().unwrap()],
            ignored_inbound_subnets: vec!["10.1.2.3/8".parse().unwrap(), "0.0.0.0/0".parse().unwrap()],
            ignored_outbound_subnets: vec!["192.0.2.1/32".parse().unwrap()],
            redirected_outbound_ports: vec!["80".parse().unwrap(), "8000-8100".parse().unwrap()],
            // In a test of their own, above.
            redirected_outbound_subnets: vec![],
            ignored_uids: vec!["0".parse().unwrap(), "1000-1999".parse().unwrap()],
            ignored_gids: vec!["7".parse().unwrap()],
            ignored_inbound_interfaces: vec!["net1".parse().unwrap(), "net2".parse().unwrap()],
            ignored_outbound_interfaces: vec!["net1".parse().unwrap()],
            ipv6: false,
        };
        assert_eq!(plan(&config).len(), 1);
        assert_eq!(
            written(&config, Family::V4),
            [
                "PROXY_INIT_REDIRECT -p tcp -m multiport --dports 4190,8000:8100 -m comment --comment proxy-init/ignore-port-4190,8000:8100 -j RETURN",
                "PROXY_INIT_REDIRECT -s 10.0.0.0/8 -m comment --comment proxy-init/ignore-subnet-10.1.2.3/8 -j RETURN",
                "PROXY_INIT_REDIRECT -m comment --comment proxy-init/ignore-subnet-0.0.0.0/0 -j RETURN",
                "PROXY_INIT_REDIRECT -i net1 -m comment --comment proxy-init/ignore-interface-net1 -j RETURN",
                "PROXY_INIT_REDIRECT -i net2 -m comment --comment proxy-init/ignore-interface-net2 -j RETURN",
                "PROXY_INIT_REDIRECT -p tcp -m tcp --dport 80 -m comment --comment proxy-init/redirect-port-80-to-proxy-port -j REDIRECT --to-ports 4143",
                "PROXY_INIT_REDIRECT -p tcp -m tcp --dport 443 -m comment --comment proxy-init/redirect-port-443-to-proxy-port -j REDIRECT --to-ports 4143",
                "PREROUTING -m comment --comment proxy-init/install-proxy-init-prerouting -j PROXY_INIT_REDIRECT",
                "PROXY_INIT_OUTPUT -m owner --uid-owner 2102 -m comment --comment proxy-init/ignore-proxy-user-id -j RETURN",
                "PROXY_INIT_OUTPUT -m owner --gid-owner 2103 -m comment --comment proxy-init/ignore-proxy-group-id -j RETURN",
                "PROXY_INIT_OUTPUT -o lo -m comment --comment proxy-init/ignore-loopback -j RETURN",
                "PROXY_INIT_OUTPUT -p tcp -m multiport --dports 25 -m comment --comment proxy-init/ignore-port-25 -j RETURN",
                "PROXY_INIT_OUTPUT -d 192.0.2.1/32 -m comment --comment proxy-init/ignore-subnet-192.0.2.1/32 -j RETURN",
                "PROXY_INIT_OUTPUT -m owner --uid-owner 0 -m comment --comment proxy-init/ignore-user-id-0 -j RETURN",
                "PROXY_INIT_OUTPUT -m owner --uid-owner 1000-1999 -m comment --comment proxy-init/ignore-user-id-1000-1999 -j RETURN",
                "PROXY_INIT_OUTPUT -m owner --gid-owner 7 -m comment --comment proxy-init/ignore-group-id-7 -j RETURN",
                "PROXY_INIT_OUTPUT -o net1 -m comment --comment proxy-init/ignore-interface-net1 -j RETURN",
                "PROXY_INIT_OUTPUT -p tcp -m multiport ! --dports 80,8000:8100 -m comment --comment proxy-init/ignore-unlisted-ports -j RETURN",
                "PROXY_INIT_OUTPUT -p tcp -m comment --comment proxy-init/redirect-all-outgoing-to-proxy-port -j REDIRECT --to-ports 4140",
                "OUTPUT -m comment --comment proxy-init/install-proxy-init-output -j PROXY_INIT_OUTPUT",
            ]
        );
    }
}
