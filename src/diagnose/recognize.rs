//! Recovers the config of an installation from the found rules.

use std::str::FromStr;

use derive_more::Display;
use ruleset::Ruleset;
use ruleset::nftables::family_condition;
use ruleset::{
    Action, Condition, Direction, Family, Field, Intervals, Name, Rule, TCP, Table, TableFamily, addresses, device,
};

use crate::config::lists::{self, all};
use crate::config::{Config, IdRange, Interface, Mode, OwnerId, Port, PortRange, Subnet};
use crate::plan::{ChainName, Purpose, chain_of, rules_of};

/// The reason why no config can be recovered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display)]
pub enum NoConfig {
    /// proxy-init has no rules in this mode.
    #[display("no proxy-init rules were found")]
    Nothing,
    /// No rule redirects the connections of this direction, so the proxy's port isn't known.
    #[display("no proxy-init rule redirects {_0} connections")]
    NoRedirect(Direction),
    /// No rule redirects connections of either direction, as after `iptables -F`.
    #[display("proxy-init's chains are there, and no rule redirects connections, inbound or outbound")]
    Flushed,
}

impl NoConfig {
    /// The lack and its place, such as `in nft mode`.
    pub(crate) fn at(&self, place: &str) -> String {
        let comma = if *self == Self::Flushed { "," } else { "" };
        format!("{self}{comma} {place}")
    }
}

/// The config that comes closest to the found rules. If they are one complete, untouched installation, installing the
/// config in the same mode makes exactly that: [`differences`](crate::diagnose::verify::difference::differences) shows
/// whether it is.
///
/// # Errors
/// Too little was found.
pub fn config(mode: Mode, ruleset: &Ruleset) -> Result<Config, NoConfig> {
    let tables = tables(mode, ruleset);
    // Both families should have the same ports, owners and interfaces. Where they don't, a rule is more likely gone
    // than new.
    let first = tables.into_iter().flatten().rev().max_by_key(|table| count_without_subnets(table));
    let first = first.ok_or(NoConfig::Nothing)?;
    let mut config = match (port(tables, Direction::Inbound), port(tables, Direction::Outbound)) {
        (Err(_), Err(_)) => return Err(NoConfig::Flushed),
        (inbound, outbound) => Config::new(inbound?, outbound?),
    };
    config.ipv6 = tables.last().is_some_and(Option::is_some);
    config.ignored_inbound_subnets = subnets(tables, Direction::Inbound, is_exemption);
    config.ignored_outbound_subnets = subnets(tables, Direction::Outbound, is_exemption);
    config.redirected_outbound_subnets = subnets(tables, Direction::Outbound, redirects_subnets);
    config.redirected_outbound_ports = listed_ports(first);
    add_settings(&mut config, first);
    for other in tables.into_iter().flatten().filter(|other| !std::ptr::eq(*other, first)) {
        let mut of_other = Config::new(config.inbound_port, config.outbound_port);
        add_settings(&mut of_other, other);
        add_missing(&mut config, of_other);
    }
    Ok(config)
}

/// Adds the settings of one family that the other lacks altogether: a rule under our comment was meant for both.
fn add_missing(config: &mut Config, other: Config) {
    if config.proxy_uid.is_none() && config.proxy_gid.is_none() {
        (config.proxy_uid, config.proxy_gid) = (other.proxy_uid, other.proxy_gid);
    }
    fill(&mut config.ignored_inbound_ports, other.ignored_inbound_ports);
    fill(&mut config.ignored_outbound_ports, other.ignored_outbound_ports);
    fill(&mut config.ignored_uids, other.ignored_uids);
    fill(&mut config.ignored_gids, other.ignored_gids);
    fill(&mut config.ignored_inbound_interfaces, other.ignored_inbound_interfaces);
    fill(&mut config.ignored_outbound_interfaces, other.ignored_outbound_interfaces);
}

fn fill<T>(list: &mut Vec<T>, other: Vec<T>) {
    if list.is_empty() {
        *list = other;
    }
}

fn add_settings(config: &mut Config, table: &Table) {
    for direction in Direction::ALL {
        for rule in known_rules(table, direction) {
            add_setting(config, direction, table, rule);
        }
    }
}

/// The tables with a mode's rules for IPv4 and for IPv6. Native mode has one for both, which may be for IPv4 alone.
fn tables(mode: Mode, ruleset: &Ruleset) -> [Option<&Table>; 2] {
    Family::ALL.map(|family| {
        mode.table_among(&ruleset.tables, family).filter(|table| {
            let mut names = Direction::ALL.map(ChainName::of).into_iter();
            match mode {
                Mode::Nft | Mode::Legacy => names.any(|name| chain_of(table, name).is_some()),
                Mode::Native => {
                    let mut jumps = names.flat_map(|name| rules_of(table, name.counterpart()));
                    family == Family::V4 || !jumps.any(|jump| jump.conditions.contains(&family_condition(Family::V4)))
                }
            }
        })
    })
}

/// The rules of a direction with conditions like those of ours: for a rule with another condition, it isn't known
/// for which connections it is.
fn known_rules(table: &Table, direction: Direction) -> impl Iterator<Item = &Rule> {
    rules_of(table, ChainName::of(direction)).iter().filter(|rule| {
        rule.conditions.iter().all(|condition| matches!(condition, Condition::In { negated: false, .. }))
    })
}

/// Counts a table's rules of both directions that compare no addresses.
fn count_without_subnets(table: &Table) -> usize {
    let rules = Direction::ALL.into_iter().flat_map(|direction| known_rules(table, direction));
    let rules =
        rules.filter(|rule| !matches!(compared(table, rule), Some((Field::Source(_) | Field::Destination(_), _))));
    rules.count()
}

/// The proxy's port. The lists of subnets may leave one family without a rule that redirects.
fn port(tables: [Option<&Table>; 2], direction: Direction) -> Result<Port, NoConfig> {
    let mut rules = tables.into_iter().flatten().flat_map(|table| known_rules(table, direction));
    rules.find_map(|rule| Port::new(rule.redirects_to()?)).ok_or(NoConfig::NoRedirect(direction))
}

/// Takes ports, owners and interfaces from a rule.
fn add_setting(config: &mut Config, direction: Direction, table: &Table, rule: &Rule) {
    let Some((field, numbers)) = compared(table, rule) else {
        return;
    };
    let purpose = Purpose::of(rule);
    let is_other = purpose.as_ref().is_some_and(Purpose::is_about_others);
    let is_of_interface = matches!(purpose, Some(Purpose::IgnoreInterface(_)));
    let first = numbers.as_slice().first().copied();
    let ids = first.and_then(|(first, last)| IdRange::new(first.try_into().ok()?, last.try_into().ok()?));
    let id = ids.and_then(|ids| OwnerId::new(ids.first()));
    match (field, &rule.action) {
        (Field::Uid, Action::Return) if is_other => config.ignored_uids.extend(ids),
        (Field::Gid, Action::Return) if is_other => config.ignored_gids.extend(ids),
        (Field::Uid, Action::Return) => config.proxy_uid = id,
        (Field::Gid, Action::Return) => config.proxy_gid = id,
        // lo's own rule is always there.
        (Field::InInterface | Field::OutInterface, Action::Return) if is_of_interface => {
            let interfaces = match direction {
                Direction::Inbound => &mut config.ignored_inbound_interfaces,
                Direction::Outbound => &mut config.ignored_outbound_interfaces,
            };
            interfaces.extend(first.and_then(|(first, _)| interface_named(first)));
        }
        (Field::DestinationPort, Action::Return) => {
            let ports = match direction {
                Direction::Inbound => &mut config.ignored_inbound_ports,
                Direction::Outbound => &mut config.ignored_outbound_ports,
            };
            ports.extend(written_or_fewest(listed_items(rule), &numbers, |range| range.numbers(), lists::ranges));
        }
        (Field::DestinationPort, Action::Redirect(_)) => {
            let ports = listed_items(rule);
            let ports = written_or_fewest(ports, &numbers, |port| (port.get().into(), port.get().into()), lists::ports);
            config.redirected_ports.extend(ports);
        }
        _ => {}
    }
}

/// The outbound ports to redirect: the rule that exempts all others has them.
fn listed_ports(table: &Table) -> Vec<PortRange> {
    let mut rules = rules_of(table, ChainName::ProxyInitOutput).iter();
    let unlisted = rules.find(|rule| Purpose::of(rule) == Some(Purpose::IgnoreUnlistedPorts));
    let mut ports = Vec::new();
    for condition in unlisted.into_iter().flat_map(|rule| &rule.conditions) {
        if let Condition::In { field: Field::DestinationPort, values, negated: true } = condition {
            for &(first, last) in table.numbers(values).unwrap_or_default() {
                if let (Ok(first), Ok(last)) = (first.try_into(), last.try_into()) {
                    ports.extend(PortRange::new(first, last));
                }
            }
        }
    }
    ports
}

/// The subnets in such rules of both families. The other family's rules may have subnets of all addresses.
fn subnets(tables: [Option<&Table>; 2], direction: Direction, is_such: fn(&Rule) -> bool) -> Vec<Subnet> {
    let [v4, v6] = tables;
    let mut subnets = v4.map(|table| subnets_of(Family::V4, table, direction, is_such)).unwrap_or_default();
    if let Some(table) = v6 {
        let v6 = subnets_of(Family::V6, table, direction, is_such);
        if subnets != v6 {
            subnets.retain(|subnet| subnet.family() == Family::V4);
            subnets.extend(v6.into_iter().filter(|subnet| subnet.family() == Family::V6));
        }
    }
    subnets
}

/// The subnets that such rules for a family name.
fn subnets_of(family: Family, table: &Table, direction: Direction, is_such: fn(&Rule) -> bool) -> Vec<Subnet> {
    let mut subnets = Vec::new();
    for rule in known_rules(table, direction).filter(|rule| is_such(rule)) {
        let mut written = listed_items::<Subnet>(rule);
        let tcp = Condition::is(Field::Protocol, TCP);
        let conditions = rule.conditions.iter().filter(|&condition| is_exemption(rule) || *condition != tcp);
        let conditions: Vec<&Condition> = conditions.collect();
        // Every address of a family needs no condition.
        let of_all = match (conditions.as_slice(), table.family) {
            ([], TableFamily::Ip(family)) => Some(family),
            ([one], _) => Family::ALL.into_iter().find(|&family| **one == family_condition(family)),
            _ => None,
        };
        match (of_all, compared(table, rule)) {
            (Some(of), _) if of == family && !written.is_empty() && written.iter().all(Subnet::is_of_all) => {
                subnets.extend(written);
            }
            (Some(of), _) if of == family => subnets.extend(all(family).parse::<Subnet>()),
            (None, Some((Field::Source(of) | Field::Destination(of), numbers))) if of == family => {
                // Subnets of all addresses have no condition.
                if written.iter().any(Subnet::is_of_all) {
                    written.clear();
                }
                subnets.extend(written_or_fewest(
                    written,
                    &numbers,
                    |subnet| addresses(subnet.net()),
                    |numbers| {
                        let nets = lists::subnets(family, numbers).into_iter();
                        nets.filter_map(|net| net.to_string().parse().ok()).collect()
                    },
                ));
            }
            _ => {}
        }
    }
    subnets
}

/// The field that a rule compares beside the family and the protocol, and the numbers; none if they aren't known.
fn compared(table: &Table, rule: &Rule) -> Option<(Field, Intervals)> {
    rule.conditions.iter().rev().find_map(|condition| match condition {
        Condition::In { field, values, .. } if !matches!(field, Field::Family | Field::Protocol) => {
            Some((*field, Intervals::new(table.numbers(values)?.iter().copied())))
        }
        _ => None,
    })
}

fn is_exemption(rule: &Rule) -> bool {
    rule.action == Action::Return
}

/// Returns true if a rule redirects connections to some subnets, by its conditions or its comment.
fn redirects_subnets(rule: &Rule) -> bool {
    let mut fields = rule.conditions.iter().filter_map(Condition::field);
    matches!(rule.action, Action::Redirect(_))
        && (fields.any(|field| matches!(field, Field::Destination(_))) || !listed_items::<Subnet>(rule).is_empty())
}

/// A rule's numbers as its comment lists them or, if the comment lists others, as the fewest items.
fn written_or_fewest<T>(
    written: Vec<T>,
    numbers: &Intervals,
    interval: impl Fn(&T) -> (u128, u128),
    fewest: impl Fn(&Intervals) -> Vec<T>,
) -> Vec<T> {
    if Intervals::new(written.iter().map(interval)) == *numbers { written } else { fewest(numbers) }
}

/// The items that a rule's comment lists; none if it doesn't list all, or something else.
fn listed_items<T: FromStr>(rule: &Rule) -> Vec<T> {
    let comment = rule.comment.as_ref().map(Name::as_bytes).unwrap_or_default();
    let list = std::str::from_utf8(comment).ok().and_then(Purpose::list);
    let list = list.map(|(_, names, _)| names).unwrap_or_default();
    let mut items = Vec::new();
    for item in list.split(',') {
        // A subnet's colons are its own.
        let is_range = !item.contains('/');
        let item = if is_range { item.replace(':', "-").parse() } else { item.parse() };
        match item {
            Ok(item) => items.push(item),
            // Where items were left out, the last is "...".
            Err(_) => return Vec::new(),
        }
    }
    items
}

/// The interface whose name is this number (see [`Field::InInterface`]).
fn interface_named(number: u128) -> Option<Interface> {
    String::from_utf8(device(number)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ruleset::testing::random;

    use ruleset::Network;

    use super::*;
    use crate::config::testing::{any_config, of_every_setting};
    use crate::diagnose::verify::difference::differences;
    use crate::plan::tables::expected;
    use crate::plan::{Planned, plan};

    /// As somebody deletes a rule by hand, or `iptables -F` does of one family.
    #[test]
    fn what_one_family_has_lost_is_taken_from_the_other() {
        let port = |number| Port::new(number).unwrap();
        let config = Config {
            proxy_uid: OwnerId::new(2102),
            ignored_inbound_ports: vec![PortRange::new(4190, 4191).unwrap()],
            ignored_outbound_subnets: vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()],
            ..Config::new(port(4143), port(4140))
        };
        for family in [0, 1] {
            for name in ["proxy-init/ignore-proxy-user-id", "proxy-init/ignore-port-4190:4191"] {
                let mut tables = expected(Mode::Nft, &config);
                for chain in &mut tables[family].chains {
                    chain.rules.retain(|rule| rule.comment.as_ref().is_some_and(|comment| *comment != *name));
                }
                let ruleset = Ruleset { tables, not_known: vec![] };
                assert_eq!(super::config(Mode::Nft, &ruleset).as_ref(), Ok(&config), "{family} {name}");
            }
        }
    }

    fn ruleset(tables: Vec<Table>) -> Ruleset {
        Ruleset { tables, not_known: vec![] }
    }

    proptest! {
        #![proptest_config(random(100))]

        #[test]
        fn the_recovered_config_installs_the_same(wanted in any_config()) {
            for Planned { purpose, .. } in plan(&wanted).into_iter().flat_map(|plan| plan.chains).flat_map(|chain| chain.rules) {
                prop_assert_eq!(Purpose::from_comment(&purpose.to_string()), Some(purpose));
            }
            for &mode in Mode::ALL {
                let installed = ruleset(expected(mode, &wanted));
                let recovered = config(mode, &installed).unwrap();
                prop_assert_eq!(&expected(mode, &recovered), &installed.tables, "{:?} {:?}", mode, recovered);
                prop_assert_eq!(differences(mode, &expected(mode, &recovered), &installed, &Network::default()), []);
            }
        }
    }

    #[test]
    fn each_flag_comes_back_as_it_was_written() {
        let mut config = of_every_setting();
        for &mode in Mode::ALL {
            for ipv6 in [true, false] {
                config.ipv6 = ipv6;
                if !ipv6 {
                    for subnets in [
                        &mut config.ignored_inbound_subnets,
                        &mut config.ignored_outbound_subnets,
                        &mut config.redirected_outbound_subnets,
                    ] {
                        subnets.retain(|subnet| subnet.family() == Family::V4);
                    }
                }
                let installed = ruleset(expected(mode, &config));
                assert_eq!(super::config(mode, &installed), Ok(config.clone()), "{mode}");
            }
        }
    }

    /// The other family's subnet of all addresses, which iptables takes for its own.
    #[test]
    fn a_subnet_of_all_addresses_that_was_lent_comes_back() {
        let mut config = Config::new("4143".parse().unwrap(), "4140".parse().unwrap());
        config.ignored_inbound_subnets = vec!["::/0".parse().unwrap()];
        for (mode, ipv6) in Mode::ALL.iter().flat_map(|&mode| [(mode, true), (mode, false)]) {
            config.ipv6 = ipv6;
            let installed = ruleset(expected(mode, &config));
            let recovered = super::config(mode, &installed).unwrap();
            assert_eq!(recovered.ignored_inbound_subnets.len(), 1, "{mode} {ipv6}");
            assert_eq!(expected(mode, &recovered), installed.tables, "{mode} {ipv6}");
        }
    }

    #[test]
    fn a_rule_for_all_addresses_needs_no_comment() {
        let mut config = Config::new("4143".parse().unwrap(), "4140".parse().unwrap());
        config.ignored_inbound_subnets = vec!["0.0.0.0/0".parse().unwrap()];
        config.ipv6 = false;
        let mut tables = expected(Mode::Nft, &config);
        let rules = tables[0].chains.iter_mut().flat_map(|chain| &mut chain.rules);
        for rule in rules.filter(|rule| rule.action == Action::Return && rule.conditions.is_empty()) {
            rule.comment = Some(Name::from("mine"));
        }
        assert_eq!(super::config(Mode::Nft, &ruleset(tables)), Ok(config));
    }

    #[test]
    fn a_comment_that_says_otherwise_than_the_set_is_not_believed() {
        let mut config = Config::new("4143".parse().unwrap(), "4140".parse().unwrap());
        config.ignored_inbound_ports = vec!["4190".parse().unwrap(), "4191".parse().unwrap()];
        let mut tables = expected(Mode::Native, &config);
        let set = tables[0].sets.iter_mut().find(|set| set.name == *"inbound-ports").unwrap();
        set.elements = Some(ruleset::Intervals::new([(4190, 4191), (9090, 9090)]));
        let recovered = super::config(Mode::Native, &ruleset(tables)).unwrap();
        assert_eq!(recovered.ignored_inbound_ports, ["4190-4191".parse().unwrap(), "9090".parse().unwrap()]);
    }

    #[test]
    fn an_interface_is_known_by_its_number() {
        let known: Interface = "eth0.100".parse().unwrap();
        assert_eq!(interface_named(known.number()), Some(known));
        for number in [
            0,
            u128::MAX,
            ruleset::interface(b"net+"),
            ruleset::interface(b"a\xff"),
            ruleset::interface(b"1234567890abcdef"),
        ] {
            assert_eq!(interface_named(number), None);
        }
    }
}
