//! The tables that a mode makes, as plain data: they are installed, and verifying expects them. In nft and legacy mode they
//! are nat tables with the planned rules. In native mode, rules on ports become one rule on a set, and so do rules on
//! subnets; a rule that both families have becomes one rule for both.

use std::collections::BTreeMap;
use std::fmt::Display;

use ruleset::nftables::{LONGEST_COMMENT, family_condition};
use ruleset::{
    Action, Chain, Condition, Counters, Family, Field, Intervals, Name, Rule, Set, Subsystem, Table, TableFamily,
    Values,
};

use crate::config::{Config, Mode, NATIVE, PortRange, lists};
use crate::plan::names::{ChainName, Purpose};
use crate::plan::{Planned, plan, rules_of};

/// The tables that a mode makes for a config.
pub fn expected(mode: Mode, config: &Config) -> Vec<Table> {
    let plans = plan(config);
    match mode {
        Mode::Nft | Mode::Legacy => plans.into_iter().map(|plan| nat(plan, mode.subsystem())).collect(),
        Mode::Native => vec![native(&plans)],
    }
}

/// A family's nat table, each rule of which is a planned one.
pub(crate) fn nat(plan: Table<Planned>, subsystem: Subsystem) -> Table {
    let mut table = Table::new(subsystem, plan.family, plan.name);
    for chain in plan.chains {
        let rules = chain.rules.into_iter().map(|it| rule(it.conditions, it.action, it.purpose.comment()));
        table.chains.push(Chain::new(chain.name, chain.base, rules.collect()));
    }
    table
}

fn rule(conditions: Vec<Condition>, action: Action, comment: Name) -> Rule {
    Rule { comment: Some(comment), counters: Some(Counters::default()), ..Rule::new(conditions, action) }
}

/// Native mode's table, which has the planned rules of each family.
fn native(plans: &[Table<Planned>]) -> Table {
    let mut lists = Vec::new();
    let merged = ChainName::IN_ORDER.map(|name| (name, merge_families(&mut lists, name, plans)));
    let (sets, values) = sets(&lists);
    let mut table = Table { sets, ..Table::new(Subsystem::NfTables, TableFamily::Inet, Name::from(NATIVE)) };
    for (name, merged) in merged {
        let mut rules: Vec<Rule> = merged.iter().map(|merged| merged.rule(&lists, &values)).collect();
        if let [Table { family: TableFamily::Ip(family), .. }] = plans
            && name.hook().is_some()
        {
            rules.iter_mut().for_each(|rule| rule.conditions.insert(0, family_condition(*family)));
        }
        table.chains.push(name.holding(rules));
    }
    table
}

/// A list of ports or subnets that rules compare with.
struct List {
    /// The name of its set.
    name: String,
    field: Field,
    numbers: Vec<(u128, u128)>,
}

/// The condition of a rule of native mode.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Test {
    Condition(Condition),
    /// In the list with this index or, if negated, not in it.
    Listed {
        list: usize,
        negated: bool,
    },
}

/// A rule that stands for several planned ones.
struct Merged<'a> {
    /// The first family that has it.
    family: Family,
    tests: Vec<Test>,
    action: &'a Action,
    /// Those of that family's planned rules.
    purposes: Vec<&'a Purpose>,
}

/// Merges the planned rules of a chain; the lists get the ports and subnets in which they differ.
fn merge_families<'a>(lists: &mut Vec<List>, name: ChainName, plans: &'a [Table<Planned>]) -> Vec<Merged<'a>> {
    let mut merged: Vec<Merged<'_>> = Vec::new();
    // The index of each rule. There are as many rules on users as users, so they aren't compared one by one.
    let mut places: BTreeMap<(Vec<Test>, &Action), usize> = BTreeMap::new();
    for plan in plans {
        let TableFamily::Ip(family) = plan.family else { continue };
        for planned in rules_of(plan, name) {
            let tests = tests(lists, name, family, planned);
            let place = *places.entry((tests.clone(), &planned.action)).or_insert(merged.len());
            let Some(known) = merged.get_mut(place) else {
                merged.push(Merged { family, tests, action: &planned.action, purposes: vec![&planned.purpose] });
                continue;
            };
            // The second family's names are the same, and a comment has no room for more than these.
            if known.family == family
                && known.purposes.len() <= LONGEST_COMMENT
                && !known.purposes.contains(&&planned.purpose)
            {
                known.purposes.push(&planned.purpose);
            }
        }
    }
    // In each family the redirections come last. Here they have to come after the exceptions of both families.
    merged.sort_by_key(|rule| *rule.action != Action::Return);
    merged
}

/// A planned rule's conditions, with lists for ports and subnets, each after those on which it depends.
fn tests(lists: &mut Vec<List>, chain: ChainName, family: Family, planned: &Planned) -> Vec<Test> {
    let is_redirected = matches!(planned.action, Action::Redirect(_));
    let direction = match chain {
        ChainName::Prerouting | ChainName::ProxyInitRedirect => "inbound",
        ChainName::Output | ChainName::ProxyInitOutput => "outbound",
    };
    let of_family = match family {
        Family::V4 => "v4",
        Family::V6 => "v6",
    };
    let is_of_family = || Test::Condition(family_condition(family));
    let mut tests = Vec::new();
    // A rule for every address has no condition, but is for its own family only.
    if let Purpose::IgnoreSubnet(subnet) | Purpose::RedirectSubnet(subnet) = &planned.purpose
        && subnet.is_of_all()
    {
        tests.push(is_of_family());
    }
    for condition in &planned.conditions {
        let test = match condition {
            Condition::In { field: field @ Field::DestinationPort, values, negated } => {
                let name = match (negated, is_redirected) {
                    (true, _) => "redirected-outbound-ports".to_owned(),
                    (false, true) => "redirected-ports".to_owned(),
                    (false, false) => format!("{direction}-ports"),
                };
                add(lists, &name, *field, values, *negated)
            }
            Condition::In { field: field @ (Field::Source(_) | Field::Destination(_)), values, negated } => {
                tests.push(is_of_family());
                let which = if is_redirected { "redirected" } else { direction };
                add(lists, &format!("{which}-subnets-{of_family}"), *field, values, *negated)
            }
            other => Test::Condition(other.clone()),
        };
        // All of a rule's pieces of a list are one list.
        if !tests.contains(&test) {
            tests.push(test);
        }
    }
    tests
}

/// Adds numbers to the list of this name, which it makes if necessary, and returns the test whether the field is in
/// that list.
fn add(lists: &mut Vec<List>, name: &str, field: Field, values: &Values, negated: bool) -> Test {
    let numbers = values.listed().unwrap_or_default();
    let list = lists.iter().position(|list| list.name == name).unwrap_or(lists.len());
    match lists.get_mut(list) {
        Some(list) => list.numbers.extend(numbers),
        None => lists.push(List { name: name.to_owned(), field, numbers: numbers.to_vec() }),
    }
    Test::Listed { list, negated }
}

/// The sets that the table needs, and what rules compare with for each list. Making a set takes the kernel longer than
/// making a rule: a comparison replaces a set of one number, and equal sets of both directions become one.
fn sets(lists: &[List]) -> (Vec<Set>, Vec<Values>) {
    let mut sets: Vec<Set> = Vec::new();
    let mut values: Vec<Values> = Vec::new();
    for List { name, field, numbers } in lists {
        let elements = Intervals::new(numbers.iter().copied());
        if let &[(number, last)] = elements.as_slice()
            && number == last
        {
            values.push(number.into());
            continue;
        }
        let shared = name.strip_prefix("outbound-");
        let twin = shared.and_then(|shared| {
            let inbound = format!("inbound-{shared}");
            let is_twin = |set: &&mut Set| set.name == *inbound && set.elements.as_ref() == Some(&elements);
            Some((shared, sets.iter_mut().find(is_twin)?))
        });
        if let Some((shared, twin)) = twin {
            let inbound = Values::Set(std::mem::replace(&mut twin.name, Name::from(shared)));
            let shared = Values::Set(Name::from(shared));
            values.iter_mut().filter(|values| **values == inbound).for_each(|values| values.clone_from(&shared));
            values.push(shared);
            continue;
        }
        let name = Name::from(name.as_str());
        values.push(Values::Set(name.clone()));
        sets.push(Set { name, bits: field.bits(), elements: Some(elements), keys: None, expires: false });
    }
    (sets, values)
}

impl Merged<'_> {
    /// The rule, where these values stand for the lists.
    fn rule(&self, lists: &[List], values: &[Values]) -> Rule {
        let conditions = self.tests.iter().filter_map(|test| match test {
            Test::Condition(condition) => Some(condition.clone()),
            Test::Listed { list, negated } => {
                Some(Condition::compare(lists.get(*list)?.field, values.get(*list)?.clone(), *negated))
            }
        });
        rule(conditions.collect(), self.action.clone(), Name::of(self.comment(lists)))
    }

    /// The planned rule's comment or, if several rules were merged, a comment that lists the ports or subnets of all of
    /// them as they were written. Without room for all, it lists those of the set, as far as there is room: then it
    /// depends on nothing but the set, and [`recognize`](crate::diagnose::recognize::config) can recover it.
    fn comment(&self, lists: &[List]) -> String {
        let Some(first) = self.purposes.first() else {
            return String::new();
        };
        let Some((before, after)) = first.around_list() else {
            return first.to_string();
        };
        let names: Vec<String> = self.purposes.iter().map(|purpose| purpose.name().to_string()).collect();
        let room = LONGEST_COMMENT.saturating_sub(Purpose::PREFIX.len() + before.len() + after.len());
        let names = Some(names.join(",")).filter(|names| names.len() <= room);
        let names = names.unwrap_or_else(|| self.listed_names(lists, room));
        format!("{}{before}{names}{after}", Purpose::PREFIX)
    }

    /// The ports or subnets that the rule is for, as its set has them, as far as there is room.
    fn listed_names(&self, lists: &[List], room: usize) -> String {
        let list = self.tests.iter().find_map(|test| match test {
            Test::Listed { list, .. } => lists.get(*list),
            Test::Condition(_) => None,
        });
        let Some(List { field, numbers, .. }) = list else {
            return lists::all(self.family).to_owned();
        };
        let numbers = Intervals::new(numbers.iter().copied());
        match (field, self.action) {
            (Field::Source(family) | Field::Destination(family), _) => {
                fit_names(lists::subnets(*family, &numbers), room)
            }
            (_, Action::Redirect(_)) => fit_names(lists::ports(&numbers), room),
            _ => fit_names(lists::ranges(&numbers).into_iter().map(PortRange::in_iptables), room),
        }
    }
}

/// The names, separated by commas, as far as there is room, with dots if some are left out.
fn fit_names(names: impl IntoIterator<Item = impl Display>, room: usize) -> String {
    const DOTS: &str = ",...";
    let mut fitting = String::new();
    // So much of it leaves room for dots.
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
