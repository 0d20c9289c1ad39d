//! Plans the rules: a pure function from a config to a table for each of its families.

mod names;
pub mod tables;

use ruleset::{
    Action, Condition, Counters, Family, Field, LOOPBACK, NAT, Name, Rule, Subsystem, TCP, Table, TableFamily, Values,
    addresses, interface,
};

use self::names::Multiport;
pub use self::names::{ChainName, Purpose};
pub(crate) use self::names::{chain_of, is_on_owner, owner, rules_of};
use crate::config::{Config, Interface, Port, PortRange, Subnet};

/// The rules that `config` asks for, in a nat table for each family: linkerd-init's, in its order, with its comments.
pub fn plan(config: &Config) -> Vec<Table> {
    let mut tables = Vec::new();
    for &family in config.families() {
        let chains = ChainName::IN_ORDER.map(|chain| chain.holding(rules(config, family, chain)));
        let table = Table::new(Subsystem::NfTables, TableFamily::Ip(family), Name::from(NAT));
        tables.push(Table { chains: chains.into(), ..table });
    }
    tables
}

fn rules(config: &Config, family: Family, chain: ChainName) -> Vec<Rule> {
    let jump = Action::Jump(Name::from(chain.counterpart().as_str()));
    match chain {
        ChainName::ProxyInitRedirect => inbound_rules(config, family),
        ChainName::Prerouting => vec![rule(&Purpose::LookAtInbound, [], jump)],
        ChainName::ProxyInitOutput => outbound_rules(config, family),
        ChainName::Output => vec![rule(&Purpose::LookAtOutbound, [], jump)],
    }
}

fn inbound_rules(config: &Config, family: Family) -> Vec<Rule> {
    let mut rules = Vec::new();
    rules.extend(ignore_ports(&config.ignored_inbound_ports));
    rules.extend(config.ignored_sources(family).map(|subnet| ignore_subnet(Field::Source(family), subnet)));
    rules.extend(ignore_interfaces(Field::InInterface, &config.ignored_inbound_interfaces));
    if config.redirected_ports.is_empty() {
        rules.push(redirect(&Purpose::RedirectInbound, [tcp_condition()], config.inbound_port));
    }
    for &port in &config.redirected_ports {
        let on_port = Condition::is(Field::DestinationPort, u128::from(port.get()));
        rules.push(redirect(&Purpose::RedirectPort(port), [tcp_condition(), on_port], config.inbound_port));
    }
    rules
}

/// Exceptions that linkerd-init doesn't know come after its own, which stay where they are. A list of ports to redirect
/// becomes an exception for all other ports, so that a list of subnets can narrow the rest: each subnet has a rule, in place
/// of the rule that redirects everything.
fn outbound_rules(config: &Config, family: Family) -> Vec<Rule> {
    let (destination, device) = (Field::Destination(family), Field::OutInterface);
    let is_own = |subnet: &&Subnet| subnet.family() == family;
    let mut rules = Vec::new();
    for (field, purpose, id) in
        [(Field::Uid, Purpose::IgnoreUser, config.proxy_uid), (Field::Gid, Purpose::IgnoreGroup, config.proxy_gid)]
    {
        rules.extend(id.map(|id| ignore(&purpose, [Condition::is(field, u128::from(id.get()))])));
    }
    rules.push(ignore(&Purpose::IgnoreLoopback, [Condition::is(device, interface(LOOPBACK))]));
    rules.extend(ignore_ports(&config.ignored_outbound_ports));
    let ignored = config.ignored_outbound_subnets.iter().filter(is_own);
    rules.extend(ignored.map(|subnet| ignore_subnet(destination, subnet)));
    for &ids in &config.ignored_uids {
        rules.push(ignore(&Purpose::IgnoreUsers(ids), [Condition::is(Field::Uid, ids.numbers())]));
    }
    for &ids in &config.ignored_gids {
        rules.push(ignore(&Purpose::IgnoreGroups(ids), [Condition::is(Field::Gid, ids.numbers())]));
    }
    rules.extend(ignore_interfaces(device, &config.ignored_outbound_interfaces));
    if !config.redirected_outbound_ports.is_empty() {
        let listed = Multiport::pieces(&config.redirected_outbound_ports);
        let unlisted = listed.iter().map(|ports| port_condition(ports, true));
        rules.push(ignore(&Purpose::IgnoreUnlistedPorts, [tcp_condition()].into_iter().chain(unlisted)));
    }
    if config.redirected_outbound_subnets.is_empty() {
        rules.push(redirect(&Purpose::RedirectOutbound, [tcp_condition()], config.outbound_port));
    }
    for subnet in config.redirected_outbound_subnets.iter().filter(is_own) {
        let conditions = subnet_condition(destination, subnet).into_iter().chain([tcp_condition()]);
        rules.push(redirect(&Purpose::RedirectSubnet(subnet.clone()), conditions, config.outbound_port));
    }
    rules
}

fn ignore_ports(ports: &[PortRange]) -> impl Iterator<Item = Rule> {
    Multiport::pieces(ports).into_iter().map(|ports| {
        let on_ports = port_condition(&ports, false);
        ignore(&Purpose::IgnorePorts(ports), [tcp_condition(), on_ports])
    })
}

fn ignore_subnet(side: Field, subnet: &Subnet) -> Rule {
    ignore(&Purpose::IgnoreSubnet(subnet.clone()), subnet_condition(side, subnet))
}

fn ignore_interfaces(device: Field, names: &[Interface]) -> impl Iterator<Item = Rule> {
    names
        .iter()
        .map(move |name| ignore(&Purpose::IgnoreInterface(name.clone()), [Condition::is(device, name.number())]))
}

fn ignore(purpose: &Purpose, conditions: impl IntoIterator<Item = Condition>) -> Rule {
    rule(purpose, conditions, Action::Return)
}

fn redirect(purpose: &Purpose, conditions: impl IntoIterator<Item = Condition>, to: Port) -> Rule {
    rule(purpose, conditions, Action::Redirect(Some((to.get(), to.get()))))
}

fn rule(purpose: &Purpose, conditions: impl IntoIterator<Item = Condition>, action: Action) -> Rule {
    Rule {
        comment: Some(purpose.comment()),
        counters: Some(Counters::default()),
        ..Rule::new(conditions.into_iter().collect(), action)
    }
}

fn tcp_condition() -> Condition {
    Condition::is(Field::Protocol, TCP)
}

fn port_condition(ports: &Multiport, negated: bool) -> Condition {
    let ranges = ports.ranges().iter().map(|range| range.numbers());
    Condition::compare(Field::DestinationPort, Values::Listed(ranges.collect()), negated)
}

/// A subnet of all addresses needs no condition; iptables leaves it out too.
fn subnet_condition(side: Field, subnet: &Subnet) -> Option<Condition> {
    (!subnet.is_of_all()).then(|| Condition::is(side, addresses(subnet.net())))
}

#[cfg(test)]
mod tests {
    use ruleset::xtables::IptablesRule;

    use super::*;
    use crate::config::{OwnerId, Port};
    use crate::plan::names::rules_of;

    #[test]
    fn a_subnet_goes_to_its_own_family() {
        let port = |number| Port::new(number).unwrap();
        let mut config = Config::new(port(4143), port(4140));
        config.ignored_inbound_subnets = vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        let want =
            [(Family::V4, "proxy-init/ignore-subnet-10.0.0.0/8"), (Family::V6, "proxy-init/ignore-subnet-fd00::/8")];
        for (table, (family, comment)) in plan(&config).iter().zip(want) {
            assert_eq!(table.family, TableFamily::Ip(family));
            let subnets: Vec<_> = table
                .rules()
                .filter_map(|rule| rule.comment.as_ref().map(ToString::to_string))
                .filter(|comment| comment.contains("subnet"))
                .collect();
            assert_eq!(subnets, [comment]);
        }
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
        let [v4, v6] = plan(&config).try_into().unwrap();
        assert_eq!(
            redirections(&v4),
            [
                "-d 10.0.0.0/8 -p tcp -m comment --comment \"proxy-init/redirect-subnet-10.1.2.3/8-to-proxy-port\" -j REDIRECT --to-ports 4140",
                "-p tcp -m comment --comment \"proxy-init/redirect-subnet-0.0.0.0/0-to-proxy-port\" -j REDIRECT --to-ports 4140",
            ]
        );
        assert_eq!(redirections(&v6), [""; 0]);
    }

    fn subnets_in(table: &Table) -> Vec<String> {
        let subnet = |rule: &Rule| match Purpose::of(rule) {
            Some(Purpose::IgnoreSubnet(subnet)) => Some(subnet.to_string()),
            _ => None,
        };
        table.rules().filter_map(subnet).collect()
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
            for (table, want) in plan(&config).iter().zip([v4, v6]) {
                assert_eq!(subnets_in(table).join(","), want, "{listed}");
            }
            // linkerd-init has no such flag.
            (config.ignored_inbound_subnets, config.ignored_outbound_subnets) = (vec![], subnets());
            for table in plan(&config) {
                let own = config.ignored_outbound_subnets.iter();
                let own: Vec<_> = own.filter(|it| table.family.sees(it.family())).map(ToString::to_string).collect();
                assert_eq!(subnets_in(&table), own, "{listed}");
            }
        }
    }

    /// In linkerd-init's order and with its comments.
    #[test]
    fn each_setting_has_its_rules_in_order() {
        let written = |config: &Config, family: Family| -> Vec<String> {
            let tables = plan(config);
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
