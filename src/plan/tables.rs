//! The tables that a mode makes, as plain data: they are installed, and verifying expects them. In nft and legacy mode they
//! are nat tables with the planned rules. In native mode, rules on ports become one rule on a set, and so do rules on
//! subnets; a rule that both families have becomes one rule for both.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Display;

use ruleset::nftables::{LONGEST_COMMENT, family_condition};
use ruleset::{
    Action, Chain, Condition, Counters, Family, Field, Intervals, Name, Rule, Set, Subsystem, Table, TableFamily,
    Values,
};

use crate::config::lists;
use crate::config::{Config, PortRange};
use crate::config::{Mode, NATIVE};
use crate::plan::names::{ChainName, Purpose, rules_of};
use crate::plan::plan;

/// The tables that a mode makes for a config.
pub fn expected(mode: Mode, config: &Config) -> Vec<Table> {
    let mut tables = plan(config);
    match mode {
        Mode::Nft => tables,
        Mode::Legacy => {
            tables.iter_mut().for_each(|table| table.subsystem = Subsystem::Legacy);
            tables
        }
        Mode::Native => vec![native(&tables)],
    }
}

/// Native mode's table, which does what was planned for each family.
fn native(planned: &[Table]) -> Table {
    let mut sets = Sets(Vec::new());
    let merged = ChainName::IN_ORDER.map(|name| (name, merge_families(&mut sets, name, planned)));
    let sets = sets.finish();
    let mut chains = merged.map(|(name, merged)| {
        let mut rules: Vec<Rule> = merged.into_iter().map(|rule| rule.rule(&sets)).collect();
        if let [Table { family: TableFamily::Ip(only), .. }] = planned
            && name.hook().is_some()
        {
            rules.iter_mut().for_each(|rule| rule.conditions.insert(0, family_condition(*only)));
        }
        name.holding(rules)
    });
    let sets = drop_needless_sets(sets, &mut chains);
    Table { chains: chains.into(), sets, ..Table::new(Subsystem::NfTables, TableFamily::Inet, Name::from(NATIVE)) }
}

/// Merges the planned rules of a chain; sets get the numbers in which they differ.
fn merge_families<'a>(sets: &mut Sets, name: ChainName, planned: &'a [Table]) -> Vec<Merged<'a>> {
    let mut merged: Vec<Merged<'_>> = Vec::new();
    // The index of each rule. There are as many rules on users as users, so they aren't compared one by one.
    let mut places: BTreeMap<(Vec<Condition>, &Action), usize> = BTreeMap::new();
    for family in Family::ALL {
        for rule in Mode::Nft.table_among(planned, family).map_or(&[][..], |table| rules_of(table, name)) {
            let conditions = conditions(sets, name, family, rule);
            match places.entry((conditions, &rule.action)) {
                Entry::Occupied(place) => match merged.get_mut(*place.get()) {
                    // The second family's names are the same, and a comment has no room for more than these.
                    Some(known)
                        if known.family == family
                            && known.comments.len() <= LONGEST_COMMENT
                            && !known.comments.contains(&&rule.comment) =>
                    {
                        known.comments.push(&rule.comment);
                    }
                    _ => {}
                },
                Entry::Vacant(place) => {
                    merged.push(Merged {
                        family,
                        conditions: place.key().0.clone(),
                        action: &rule.action,
                        comments: vec![&rule.comment],
                    });
                    place.insert(merged.len() - 1);
                }
            }
        }
    }
    // In each family the redirections come last. Here they have to come after the exceptions of both families.
    merged.sort_by_key(|rule| *rule.action != Action::Return);
    merged
}

/// Drops needless sets, because making one takes the kernel longer than making a rule: a comparison replaces a set of one
/// number, and equal sets of both directions become one.
fn drop_needless_sets(sets: Vec<Set>, chains: &mut [Chain]) -> Vec<Set> {
    let mut needed: Vec<Set> = Vec::new();
    for set in sets {
        let name = Values::Set(set.name.clone());
        if let Some(&[(number, last)]) = set.elements.as_ref().map(Intervals::as_slice)
            && number == last
        {
            replace_values(chains, &name, &number.into());
            continue;
        }
        let shared = set.name.as_bytes().strip_prefix(b"outbound-");
        let twin = shared.and_then(|shared| {
            let twin = needed.iter_mut().find(|twin| {
                twin.name.as_bytes().strip_prefix(b"inbound-") == Some(shared) && twin.elements == set.elements
            })?;
            Some((Name::from(shared), twin))
        });
        match twin {
            Some((shared, twin)) => {
                let other = Values::Set(std::mem::replace(&mut twin.name, shared.clone()));
                let shared = Values::Set(shared);
                replace_values(chains, &name, &shared);
                replace_values(chains, &other, &shared);
            }
            None => needed.push(set),
        }
    }
    needed
}

/// Replaces values by others in every rule.
fn replace_values(chains: &mut [Chain], values: &Values, by: &Values) {
    let rules = chains.iter_mut().flat_map(|chain| &mut chain.rules);
    for condition in rules.flat_map(|rule| &mut rule.conditions) {
        if let Condition::In { values: held, .. } = condition
            && held == values
        {
            held.clone_from(by);
        }
    }
}

/// A rule that stands for several planned ones.
struct Merged<'a> {
    /// The first family that has it.
    family: Family,
    conditions: Vec<Condition>,
    action: &'a Action,
    /// The comments of that family's planned rules.
    comments: Vec<&'a Option<Name>>,
}

impl Merged<'_> {
    fn rule(self, sets: &[Set]) -> Rule {
        Rule {
            comment: Some(Name::of(self.comment(sets))),
            counters: Some(Counters::default()),
            ..Rule::new(self.conditions, self.action.clone())
        }
    }

    /// The comment of the planned rule or, if several rules were merged, one that lists the ports or subnets of all of them
    /// as they were written. Without room for all, it lists those of the set, as far as there is room: then it depends on
    /// nothing but the set, and [`recognize`](crate::diagnose::recognize::config) can recover it.
    fn comment(&self, sets: &[Set]) -> String {
        let comments = self.comments.iter().copied();
        let comments: Vec<String> =
            comments.map(|comment| comment.as_ref().map(ToString::to_string).unwrap_or_default()).collect();
        let first = comments.first().map(String::as_str).unwrap_or_default();
        let Some((before, _, after)) = Purpose::list(first) else {
            return first.to_owned();
        };
        let written = comments.iter().filter_map(|comment| Purpose::list(comment));
        let names = written.map(|(_, names, _)| names).collect::<Vec<_>>().join(",");
        let room = LONGEST_COMMENT.saturating_sub(before.len() + after.len());
        if names.len() <= room {
            return format!("{before}{names}{after}");
        }
        let names = self.listed_names(sets, room);
        format!("{before}{names}{after}")
    }

    /// The ports or subnets that the rule is for, as its set has them, as far as there is room.
    fn listed_names(&self, sets: &[Set], room: usize) -> String {
        let set = self.conditions.iter().rev().find_map(|condition| match condition {
            Condition::In { field, values: Values::Set(name), .. } => Some((field, name)),
            _ => None,
        });
        let Some((field, name)) = set else {
            return lists::all(self.family).to_owned();
        };
        let set = sets.iter().find(|set| set.name == *name);
        let Some(numbers) = set.and_then(|set| set.elements.as_ref()) else {
            return String::new();
        };
        match (field, self.action) {
            (Field::Source(family) | Field::Destination(family), _) => {
                fit_names(lists::subnets(*family, numbers), room)
            }
            (_, Action::Redirect(_)) => fit_names(lists::ports(numbers), room),
            _ => fit_names(lists::ranges(numbers).into_iter().map(PortRange::in_iptables), room),
        }
    }
}

/// The names, separated by commas, as far as there is room, with dots if some are left out.
fn fit_names(names: impl IntoIterator<Item = impl Display>, room: usize) -> String {
    const DOTS: &str = ",...";
    let mut fitting = String::new();
    // How much of it leaves room for dots.
    let mut before_dots = 0;
    for name in names {
        let comma = if fitting.is_empty() { "" } else { "," };
        fitting += &format!("{comma}{name}");
        if fitting.len() > room {
            fitting.truncate(before_dots);
            return fitting + DOTS;
        }
        if fitting.len() + DOTS.len() <= room {
            before_dots = fitting.len();
        }
    }
    fitting
}

/// A set whose numbers are merged once all of them are known.
struct GrowingSet {
    name: Name,
    field: Field,
    numbers: Vec<(u128, u128)>,
}

struct Sets(Vec<GrowingSet>);

impl Sets {
    /// Adds numbers to the set of this name, which it makes if necessary, and returns the condition that the field is in
    /// that set or, if negated, isn't.
    fn add(&mut self, name: &str, field: Field, intervals: &[(u128, u128)], negated: bool) -> Condition {
        let name = Name::from(name);
        match self.0.iter_mut().find(|set| set.name == name) {
            Some(set) => set.numbers.extend_from_slice(intervals),
            None => self.0.push(GrowingSet { name: name.clone(), field, numbers: intervals.to_vec() }),
        }
        Condition::compare(field, Values::Set(name), negated)
    }

    fn finish(self) -> Vec<Set> {
        let mut sets = Vec::new();
        for set in self.0 {
            sets.push(Set {
                name: set.name,
                bits: set.field.bits(),
                elements: Some(Intervals::new(set.numbers)),
                verdicts: Vec::new(),
                expires: false,
            });
        }
        sets
    }
}

/// A planned rule's conditions, with sets for ports and subnets, each after those on which it depends.
fn conditions(sets: &mut Sets, chain: ChainName, family: Family, rule: &Rule) -> Vec<Condition> {
    let direction = match chain {
        ChainName::Prerouting | ChainName::ProxyInitRedirect => "inbound",
        ChainName::Output | ChainName::ProxyInitOutput => "outbound",
    };
    let of_family = match family {
        Family::V4 => "v4",
        Family::V6 => "v6",
    };
    let mut conditions = Vec::new();
    for condition in &rule.conditions {
        let listed = match condition {
            Condition::In { field, values, negated } => values.listed().map(|list| (*field, list, *negated)),
            _ => None,
        };
        let is_redirected = matches!(rule.action, Action::Redirect(_));
        match listed {
            Some((field @ Field::DestinationPort, list, negated)) => {
                let set = match (negated, is_redirected) {
                    (true, _) => "redirected-outbound-ports",
                    (false, true) => "redirected-ports",
                    (false, false) => &format!("{direction}-ports"),
                };
                let in_set = sets.add(set, field, list, negated);
                // All of a rule's pieces of a list are one set.
                if !conditions.contains(&in_set) {
                    conditions.push(in_set);
                }
            }
            Some((field @ (Field::Source(_) | Field::Destination(_)), list, false)) => {
                let which = if is_redirected { "redirected" } else { direction };
                conditions.push(family_condition(family));
                conditions.push(sets.add(&format!("{which}-subnets-{of_family}"), field, list, false));
            }
            _ => conditions.push(condition.clone()),
        }
    }
    // A rule for every address has no condition, but is for its own family only.
    let is_for_all = match Purpose::of(rule) {
        Some(Purpose::RedirectSubnet(subnet)) => subnet.is_of_all(),
        _ => conditions.is_empty() && rule.action == Action::Return,
    };
    if is_for_all {
        conditions.insert(0, family_condition(family));
    }
    conditions
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use ruleset::TCP;

    use super::*;
    use crate::config::IdRange;

    fn config() -> Config {
        let mut config = Config::new("4143".parse().unwrap(), "4140".parse().unwrap());
        config.proxy_uid = crate::config::OwnerId::new(2102);
        config
    }

    #[test]
    fn what_both_families_have_is_one_rule() {
        let table = native(&plan(&config()));
        let output = table.chain(&Name::from("PROXY_INIT_OUTPUT")).unwrap();
        assert_eq!(output.rules.len(), 3);
        assert_eq!(output.rules[2].conditions, [Condition::is(Field::Protocol, TCP)]);
        assert_eq!(table.sets, []);
    }

    #[test]
    fn what_both_directions_have_is_one_set() {
        let sets = |inbound: [&str; 2], outbound: [&str; 2]| {
            let mut config = config();
            config.ignored_inbound_ports = inbound.map(|ports| ports.parse().unwrap()).to_vec();
            config.ignored_outbound_ports = outbound.map(|ports| ports.parse().unwrap()).to_vec();
            let sets = native(&plan(&config)).sets;
            sets.iter().map(|set| set.name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(sets(["25", "80-90"], ["25", "80-90"]), ["ports"]);
        let each = ["inbound-ports", "outbound-ports"];
        assert_eq!(sets(["25", "80-90"], ["25", "80-91"]), each);
    }

    /// Two by two, they would be compared for minutes: an annotation can list as many.
    #[test]
    fn many_users_are_no_work_of_minutes() {
        const USERS: u32 = 60_000;
        let start = Instant::now();
        let mut config = config();
        let ranges = (0..USERS).filter_map(|number| IdRange::new(2 * number, 2 * number));
        config.ignored_uids = ranges.collect();
        let table = native(&plan(&config));
        let output = table.chain(&Name::from("PROXY_INIT_OUTPUT")).unwrap();
        assert!(output.rules.len() > USERS as usize);
        assert!(start.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn every_rule_counts() {
        let planned = plan(&config());
        let table = native(&planned);
        let planned = planned.iter().flat_map(Table::rules);
        let own = table.chains.iter().filter(|chain| chain.base.is_none());
        for rule in planned.chain(own.flat_map(|chain| &chain.rules)) {
            assert_eq!(rule.counters, Some(Default::default()), "{rule:?}");
        }
    }

    #[test]
    fn a_comment_names_what_fits() {
        let mut config = config();
        config.ignored_inbound_ports = (1..=100).map(|port| format!("{}", port * 100).parse().unwrap()).collect();
        let table = native(&plan(&config));
        let inbound = table.chain(&Name::from("PROXY_INIT_REDIRECT")).unwrap();
        let comment = inbound.rules[0].comment.as_ref().unwrap().to_string();
        assert!(comment.starts_with("proxy-init/ignore-port-100,200,"), "{comment}");
        assert!(comment.ends_with(",..."), "{comment}");
        assert!(comment.len() <= LONGEST_COMMENT, "{comment}");
        let [set] = table.sets.as_slice() else {
            panic!("{:?}", table.sets);
        };
        assert_eq!(set.elements.as_ref().unwrap().as_slice().len(), 100);
    }

    /// A rule has room for fifteen.
    #[test]
    fn a_comment_names_ports_once_that_two_rules_have() {
        let ports: Vec<String> = (1..=15).map(|port: u16| port.to_string()).collect();
        let mut config = config();
        config.ignored_inbound_ports = [&ports[..], &ports].concat().iter().map(|port| port.parse().unwrap()).collect();
        let table = native(&plan(&config));
        let inbound = table.chain(&Name::from("PROXY_INIT_REDIRECT")).unwrap();
        let comment = inbound.rules[0].comment.as_ref().unwrap().to_string();
        assert_eq!(comment, format!("proxy-init/ignore-port-{}", ports.join(",")));
    }

    #[test]
    fn for_one_family_alone_its_jumps_say_so() {
        let table = native(&plan(&Config { ipv6: false, ..config() }));
        for base in table.chains.iter().filter(|chain| chain.base.is_some()) {
            assert_eq!(base.rules[0].conditions, [family_condition(Family::V4)]);
        }
    }
}
