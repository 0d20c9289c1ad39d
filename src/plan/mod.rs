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
