//! Plans the rules: a pure function from a config to the rules of each of its families.

mod names;
pub mod tables;

use ruleset::{Action, Condition, Family, Field, NAT, Name, Subsystem, TCP, Table, TableFamily, Values, addresses};

pub use self::names::{ChainName, Multiport, Purpose};
pub(crate) use self::names::{chain_of, is_on_owner, owner, rules_of};
use crate::config::{Config, IdRange, Interface, Port, PortRange, Subnet};

/// A planned rule: a packet that meets all the conditions gets the action.
#[derive(Debug, Clone)]
pub struct Planned {
    pub purpose: Purpose,
    pub conditions: Vec<Condition>,
    pub action: Action,
}

/// The rules that `config` asks for: linkerd-init's, in its order, with its purposes. Each family has a nat table, whose
/// chains are in the order of `ChainName::IN_ORDER`.
pub fn plan(config: &Config) -> Vec<Table<Planned>> {
    let table = |&family: &Family| Table {
        chains: ChainName::IN_ORDER.map(|name| name.holding(rules(config, family, name))).into(),
        ..Table::new(Subsystem::NfTables, TableFamily::Ip(family), Name::from(NAT))
    };
    config.families().iter().map(table).collect()
}

fn rules(config: &Config, family: Family, chain: ChainName) -> Vec<Planned> {
    match chain {
        ChainName::ProxyInitRedirect => inbound_rules(config, family),
        ChainName::ProxyInitOutput => outbound_rules(config, family),
        ChainName::Prerouting | ChainName::Output => {
            let action = Action::Jump(Name::from(chain.counterpart().as_str()));
            vec![Planned { purpose: chain.jump_purpose(), conditions: vec![], action }]
        }
    }
}

fn inbound_rules(config: &Config, family: Family) -> Vec<Planned> {
    let redirect = |purpose, conditions| redirect_to(config.inbound_port, purpose, conditions);
    let mut rules = ignore_ports(&config.ignored_inbound_ports);
    for subnet in config.ignored_sources(family) {
        rules.push(ignore(Purpose::IgnoreSubnet(subnet.clone()), in_subnet(Field::Source, subnet)));
    }
    for name in &config.ignored_inbound_interfaces {
        rules.push(ignore(
            Purpose::IgnoreInterface(name.clone()),
            vec![Condition::is(Field::InInterface, name.number())],
        ));
    }
    if config.redirected_ports.is_empty() {
        rules.push(redirect(Purpose::RedirectInbound, vec![tcp()]));
    }
    for &port in &config.redirected_ports {
        let to_port = Condition::is(Field::DestinationPort, u128::from(port.get()));
        rules.push(redirect(Purpose::RedirectPort(port), vec![tcp(), to_port]));
    }
    rules
}

/// Exceptions that linkerd-init doesn't know come after its own, which stay where they are. A list of ports to redirect
/// becomes an exception for all other ports, so that a list of subnets can narrow the rest: each subnet has a rule, in place
/// of the rule that redirects everything.
fn outbound_rules(config: &Config, family: Family) -> Vec<Planned> {
    let redirect = |purpose, conditions| redirect_to(config.outbound_port, purpose, conditions);
    let mut rules = Vec::new();
    let owned = |field, ids: IdRange| vec![Condition::is(field, ids.numbers())];
    rules.extend(config.proxy_uid.map(|id| ignore(Purpose::IgnoreUser, owned(Field::Uid, id.into()))));
    rules.extend(config.proxy_gid.map(|id| ignore(Purpose::IgnoreGroup, owned(Field::Gid, id.into()))));
    let by_loopback = Condition::is(Field::OutInterface, Interface::loopback().number());
    rules.push(ignore(Purpose::IgnoreLoopback, vec![by_loopback]));
    rules.extend(ignore_ports(&config.ignored_outbound_ports));
    for subnet in of_family(&config.ignored_outbound_subnets, family) {
        rules.push(ignore(Purpose::IgnoreSubnet(subnet.clone()), in_subnet(Field::Destination, subnet)));
    }
    for &ids in &config.ignored_uids {
        rules.push(ignore(Purpose::IgnoreUsers(ids), owned(Field::Uid, ids)));
    }
    for &ids in &config.ignored_gids {
        rules.push(ignore(Purpose::IgnoreGroups(ids), owned(Field::Gid, ids)));
    }
    for name in &config.ignored_outbound_interfaces {
        rules.push(ignore(
            Purpose::IgnoreInterface(name.clone()),
            vec![Condition::is(Field::OutInterface, name.number())],
        ));
    }
    if !config.redirected_outbound_ports.is_empty() {
        let mut conditions = vec![tcp()];
        conditions
            .extend(Multiport::pieces(&config.redirected_outbound_ports).iter().map(|ports| to_ports(ports, true)));
        rules.push(ignore(Purpose::IgnoreUnlistedPorts, conditions));
    }
    if config.redirected_outbound_subnets.is_empty() {
        rules.push(redirect(Purpose::RedirectOutbound, vec![tcp()]));
    }
    for subnet in of_family(&config.redirected_outbound_subnets, family) {
        let mut conditions = in_subnet(Field::Destination, subnet);
        conditions.push(tcp());
        rules.push(redirect(Purpose::RedirectSubnet(subnet.clone()), conditions));
    }
    rules
}

fn ignore_ports(ports: &[PortRange]) -> Vec<Planned> {
    let mut rules = Vec::new();
    for ports in Multiport::pieces(ports) {
        let conditions = vec![tcp(), to_ports(&ports, false)];
        rules.push(ignore(Purpose::IgnorePorts(ports), conditions));
    }
    rules
}

fn ignore(purpose: Purpose, conditions: Vec<Condition>) -> Planned {
    Planned { purpose, conditions, action: Action::Return }
}

fn redirect_to(port: Port, purpose: Purpose, conditions: Vec<Condition>) -> Planned {
    Planned { purpose, conditions, action: Action::Redirect(Some((port.get(), port.get()))) }
}

fn tcp() -> Condition {
    Condition::is(Field::Protocol, TCP)
}

/// To one of these ports or, if negated, to none of them.
fn to_ports(ports: &Multiport, negated: bool) -> Condition {
    let numbers = ports.ranges().iter().map(|range| range.numbers());
    Condition::compare(Field::DestinationPort, Values::Listed(numbers.collect()), negated)
}

/// A subnet of all addresses needs no match; iptables leaves it out too.
fn in_subnet(side: fn(Family) -> Field, subnet: &Subnet) -> Vec<Condition> {
    if subnet.is_of_all() { Vec::new() } else { vec![Condition::is(side(subnet.family()), addresses(subnet.net()))] }
}

fn of_family(subnets: &[Subnet], family: Family) -> impl Iterator<Item = &Subnet> {
    subnets.iter().filter(move |subnet| subnet.family() == family)
}

#[cfg(test)]
mod tests {
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
            assert_eq!(plan.family, TableFamily::Ip(family));
            let comments = purposes(plan).map(ToString::to_string).filter(|comment| comment.contains("subnet"));
            assert_eq!(comments.collect::<Vec<_>>(), [comment]);
        }
    }

    fn purposes(plan: &Table<Planned>) -> impl Iterator<Item = &Purpose> {
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

    fn subnets_in(plan: &Table<Planned>) -> Vec<String> {
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
            for (plan, family) in plan(&config).iter().zip(Family::ALL) {
                let own = of_family(&config.ignored_outbound_subnets, family).map(ToString::to_string);
                assert_eq!(subnets_in(plan), own.collect::<Vec<_>>(), "{listed}");
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
