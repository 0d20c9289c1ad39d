//! Compares what is expected with what was found: a pure function, the same for every mode.
//!
//! It compares proxy-init's chains rule by rule, and then asks the [walk](packets::walk) whether anything that runs
//! before them, or instead of them, takes connections away.

use std::collections::HashSet;
use std::fmt;

use packets::found::{Found, Line, Listener};
use packets::rules::nftables::{is_of, set_element};
use packets::rules::{
    Action, Chain, Direction, Family, Field, Intervals, NAT, Rule, Set, Subsystem, Table, TableFamily, set_field,
};
use packets::walk::{Connections, Fate, Outcome, Packet, Place, Surroundings, Watched, any_but_lo, there_and_back};

use crate::findings::explain::proxy;
use crate::ours::{chain_of, leads_to};
use crate::wanted::{ChainName, Mode};

/// One difference between what is expected and what was found. Rules are in iptables' syntax, native mode's in nft's.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Finding {
    /// In whose table: `IPv4`, `IPv6`, or native mode's `inet`.
    pub family: String,
    /// In which chain, or native mode's set or table.
    pub chain: String,
    /// What is wrong.
    pub(crate) problem: Problem,
}

impl Finding {
    /// What is wrong.
    pub fn kind(&self) -> FindingKind {
        self.problem.kind()
    }
}

/// What kind of difference a [`Finding`] is. Its text is the word that docs/verify.md explains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FindingKind {
    /// The family has none of proxy-init's rules.
    NoRules,
    /// The chain, or native mode's table, was not found.
    NoChain,
    /// The table is dormant, so none of its chains is hooked.
    Dormant,
    /// The base chain is not hooked where it should be.
    NotHooked,
    /// A rule was not found.
    Missing,
    /// A rule was found that isn't expected.
    Unexpected,
    /// A rule with the right comment says something else.
    Different,
    /// All rules were found, but in another order.
    OutOfOrder,
    /// The jump to proxy-init's chain was found more than once.
    Doubled,
    /// Another program's rule keeps connections from proxy-init's chain.
    Shadowed,
    /// The base chain's policy drops what bypasses the proxy.
    Policy,
    /// Another program's rule drops what proxy-init's rules have redirected.
    Dropped,
}

impl FindingKind {
    /// Its word.
    pub fn as_str(self) -> &'static str {
        match self {
            FindingKind::NoRules => "no-rules",
            FindingKind::NoChain => "no-chain",
            FindingKind::Dormant => "dormant",
            FindingKind::NotHooked => "not-hooked",
            FindingKind::Missing => "missing",
            FindingKind::Unexpected => "unexpected",
            FindingKind::Different => "different",
            FindingKind::OutOfOrder => "out-of-order",
            FindingKind::Doubled => "doubled",
            FindingKind::Shadowed => "shadowed",
            FindingKind::Policy => "policy",
            FindingKind::Dropped => "dropped",
        }
    }
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Problem {
    /// The family has none of proxy-init's rules. As many are expected.
    NoRules(usize),
    /// The chain, or native mode's table, was not found.
    NoChain,
    /// The table is dormant, so none of its chains is hooked.
    Dormant,
    /// The base chain is not hooked where it should be.
    NotHooked,
    /// A rule was not found.
    Missing(String),
    /// A rule was found that isn't expected.
    Unexpected(String),
    /// A rule with the right comment says something else.
    Different {
        /// The rule that is expected.
        expected: String,
        /// The one that was found.
        found: String,
    },
    /// All rules were found, but in another order.
    OutOfOrder {
        /// The rules in the right order.
        expected: Vec<String>,
        /// The rules in the order in which they were found.
        found: Vec<String>,
    },
    /// The jump to proxy-init's chain was found more than once.
    Doubled(String),
    /// Another rule keeps connections from proxy-init's chain.
    Shadowed {
        /// The jump to proxy-init's chain; none if there is none.
        jump: Option<String>,
        /// The other rule, or the policy.
        by: String,
        /// What it does.
        fate: Fate,
        /// Which connections.
        connections: String,
        /// Whether that is certain, or depends on something that isn't understood.
        certain: bool,
    },
    /// The base chain's policy drops what bypasses the proxy.
    Policy,
    /// Another rule drops what proxy-init's rules have redirected.
    Dropped {
        /// The other rule, or the policy.
        by: String,
        /// Which connections.
        connections: String,
        /// Which of their packets.
        packet: Packet,
        /// Whether that is certain, or depends on something that isn't understood.
        certain: bool,
    },
}

impl Problem {
    pub fn kind(&self) -> FindingKind {
        match self {
            Problem::NoRules(_) => FindingKind::NoRules,
            Problem::NoChain => FindingKind::NoChain,
            Problem::Dormant => FindingKind::Dormant,
            Problem::NotHooked => FindingKind::NotHooked,
            Problem::Missing(_) => FindingKind::Missing,
            Problem::Unexpected(_) => FindingKind::Unexpected,
            Problem::Different { .. } => FindingKind::Different,
            Problem::OutOfOrder { .. } => FindingKind::OutOfOrder,
            Problem::Doubled(_) => FindingKind::Doubled,
            Problem::Shadowed { .. } => FindingKind::Shadowed,
            Problem::Policy => FindingKind::Policy,
            Problem::Dropped { .. } => FindingKind::Dropped,
        }
    }

    /// Whether it is about rules of other programs, which proxy-init's are right beside.
    pub fn is_about_others(&self) -> bool {
        matches!(
            self,
            Problem::Shadowed { .. } | Problem::Policy | Problem::Dropped { .. }
        )
    }

    /// Whether it is only a warning: connections get to the proxy, unless something that isn't understood is so.
    pub fn is_warning(&self) -> bool {
        matches!(self, Problem::Dropped { certain: false, .. })
    }

    /// The rules that are expected, and those that were found instead.
    pub fn sides(&self) -> (Vec<&str>, Vec<&str>) {
        match self {
            Problem::NoRules(_) | Problem::NoChain | Problem::Dormant | Problem::NotHooked | Problem::Policy => {
                (vec![], vec![])
            }
            Problem::Missing(rule) => (vec![rule], vec![]),
            Problem::Unexpected(rule) | Problem::Doubled(rule) => (vec![], vec![rule]),
            Problem::Different { expected, found } => (vec![expected], vec![found]),
            Problem::OutOfOrder { expected, found } => (
                expected.iter().map(String::as_str).collect(),
                found.iter().map(String::as_str).collect(),
            ),
            Problem::Shadowed { jump, by, .. } => (jump.iter().map(String::as_str).collect(), vec![by]),
            Problem::Dropped { by, .. } => (vec![], vec![by]),
        }
    }

    /// What is wrong, in words.
    fn words(&self) -> String {
        let does = |verb: &str, certain: &bool| match certain {
            true => format!("{verb}s"),
            false => format!("may {verb}"),
        };
        let words = match self {
            Problem::NoRules(rules) => return format!("all {rules} rules are missing"),
            Problem::NoChain => "not found",
            Problem::Dormant => "the table is dormant: none of its chains is hooked",
            Problem::NotHooked => "the chain is not hooked where it should be, so it sees no connection",
            Problem::Missing(_) => "missing",
            Problem::Unexpected(_) => "unexpected",
            Problem::Different { .. } => "different",
            Problem::OutOfOrder { .. } => "out of order",
            Problem::Doubled(_) => "found more than once",
            Problem::Policy => "the chain's policy drops the connections that bypass the proxy",
            Problem::Shadowed {
                fate,
                connections,
                certain,
                ..
            } => {
                let does = match fate {
                    Fate::NotUnderstood => "may take connections away (it is not understood)".to_owned(),
                    Fate::Accepted => does("let", certain) + " connections pass by",
                    Fate::Translated => does("redirect", certain) + " connections",
                    Fate::Dropped => does("drop", certain) + " connections",
                    Fate::Untracked => does("keep", certain) + " connections from being redirected",
                };
                return format!("shadowed: the rule marked + {does}: {connections}");
            }
            Problem::Dropped {
                connections,
                packet,
                certain,
                ..
            } => {
                let does = does("drop", certain);
                let what = match packet {
                    Packet::Reply => "the replies to connections that were redirected",
                    Packet::First | Packet::Ack => "connections that were redirected",
                };
                return format!("dropped: the rule marked + {does} {what}: {connections}");
            }
        };
        words.to_owned()
    }
}

impl Finding {
    /// As a sentence: where, what is wrong, and the rules that were found or, if there are none, those that are missing.
    pub fn in_a_line(&self) -> String {
        let text = format!("{}, {}: {}", self.family, self.chain, self.problem.words());
        let (expected, found) = self.problem.sides();
        let rules = if found.is_empty() { expected } else { found };
        if rules.is_empty() {
            return text;
        }
        format!("{text} ({})", rules.join("; "))
    }
}

/// As a diff: what is missing after `-`, what was found instead after `+`.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, {}: {}", self.family, self.chain, self.problem.words())?;
        let (expected, found) = self.problem.sides();
        for rule in expected {
            writeln!(f, "  - {rule}")?;
        }
        for rule in found {
            writeln!(f, "  + {rule}")?;
        }
        Ok(())
    }
}

/// What differs, in the tables that a mode keeps its rules in, between what it would install and what was found, where
/// this listens.
pub fn differences(mode: Mode, expected: &[Table], found: &Found, listeners: &[Listener]) -> Vec<Finding> {
    let mut findings = match mode {
        Mode::Native => native(expected, found),
        Mode::Nft | Mode::Legacy => Family::ALL
            .into_iter()
            .flat_map(|family| xtables(mode.subsystem(), family, expected, found))
            .collect(),
    };
    for table in expected {
        for family in Family::ALL.into_iter().filter(|&family| sees(table, family)) {
            for direction in Direction::ALL {
                let around = Surroundings {
                    listeners,
                    ..proxy(std::slice::from_ref(table))
                };
                findings.extend(shadows(table, family, direction, found, &around, &findings));
            }
        }
    }
    findings
}

/// Whether a table has rules for a family. Native mode's table sees both families, but its jumps may be for only one.
fn sees(table: &Table, family: Family) -> bool {
    let is_of_other = |rule: &Rule| {
        let mut others = Family::ALL.into_iter().filter(|&other| other != family);
        others.any(|other| rule.conditions.contains(&is_of(other)))
    };
    let base = table.chains.iter().find(|chain| chain.base.is_some());
    let jump = base.and_then(|chain| chain.rules.first());
    table.family.sees(family) && !jump.is_some_and(is_of_other)
}

/// What differs in a family's nat table.
fn xtables(subsystem: Subsystem, family: Family, expected: &[Table], found: &Found) -> Vec<Finding> {
    let table_family = TableFamily::Ip(family);
    let held = found.table(subsystem, table_family, NAT);
    let Some(expected) = expected.iter().find(|table| table.family == table_family) else {
        return held.map(leftovers).unwrap_or_default();
    };
    if held.is_none_or(|table| leftovers(table).is_empty()) {
        let problem = Problem::NoRules(expected.rules().count());
        return vec![finding(expected, &format!("table {expected}"), problem)];
    }
    let mut findings = Vec::new();
    for chain in &expected.chains {
        let held_chain = held.and_then(|table| table.chain(&chain.name));
        let problems = match (chain.base, held.zip(held_chain)) {
            (None, None) => vec![Problem::NoChain],
            (None, Some((table, held))) => compare(&lines(expected, chain), &lines(table, held)),
            (Some(_), None) => {
                let lines = lines(expected, chain).into_iter();
                lines.map(|line| Problem::Missing(line.text)).collect()
            }
            (Some(_), Some((table, held))) => {
                let mut problems = compare_jumps(expected, chain, table, held);
                problems.extend(is_hooked_elsewhere(chain, held).then_some(Problem::NotHooked));
                problems
            }
        };
        findings.extend(
            problems
                .into_iter()
                .map(|problem| finding(expected, &chain.name, problem)),
        );
    }
    if held.is_some_and(|table| table.dormant) {
        findings.push(finding(expected, &format!("table {expected}"), Problem::Dormant));
    }
    findings
}

/// proxy-init's rules in a table that should have none.
fn leftovers(table: &Table) -> Vec<Finding> {
    let mut findings = Vec::new();
    for chain in &table.chains {
        let is_ours = ChainName::own(&chain.name).is_some();
        for line in Line::all(table, chain).filter(|line| is_ours || leads_to(line.rule, table).is_some()) {
            findings.push(finding(table, &chain.name, Problem::Unexpected(line.to_string())));
        }
    }
    findings
}

/// What differs in native mode's table.
fn native(expected: &[Table], found: &Found) -> Vec<Finding> {
    let mut findings = Vec::new();
    for table in expected {
        match found.table(table.subsystem, table.family, &table.name.to_string()) {
            Some(held) => findings.extend(differences_of(table, held)),
            None => findings.push(finding(table, &format!("table {table}"), Problem::NoChain)),
        }
    }
    findings
}

/// What differs between a table that belongs to proxy-init alone and the one that was found: chains, their rules, sets.
fn differences_of(expected: &Table, found: &Table) -> Vec<Finding> {
    let mut findings = Vec::new();
    if found.dormant {
        findings.push(finding(expected, &format!("table {expected}"), Problem::Dormant));
    }
    for chain in &expected.chains {
        let name = &chain.name;
        let held = found.chain(name);
        let found_lines = held.map(|held| lines(found, held)).unwrap_or_default();
        let mut problems = compare(&lines(expected, chain), &found_lines);
        let is_elsewhere = held.is_some_and(|held| is_hooked_elsewhere(chain, held));
        problems.extend(is_elsewhere.then_some(Problem::NotHooked));
        findings.extend(problems.into_iter().map(|problem| finding(expected, name, problem)));
    }
    findings.extend(compare_sets(expected, found));
    findings
}

fn is_hooked_elsewhere(expected: &Chain, held: &Chain) -> bool {
    let hook = |chain: &Chain| chain.base.map(|base| (base.kind, base.hook));
    hook(held) != hook(expected)
}

fn compare_sets(expected: &Table, held: &Table) -> Vec<Finding> {
    let mut findings = Vec::new();
    let place = |set: &Set| format!("set {}", set.name);
    for set in &held.sets {
        let what = match expected.set(&set.name) {
            None => "the set",
            Some(_) if set.expires => "elements that expire",
            Some(_) => continue,
        };
        findings.push(finding(expected, &place(set), Problem::Unexpected(what.to_owned())));
    }
    for set in &expected.sets {
        let lines = |set: &Set| -> Vec<Comparable<'_>> {
            let intervals = set.elements.as_ref().map(Intervals::as_slice).unwrap_or_default();
            let text = |&interval| set_element(set_field(set), interval);
            intervals.iter().map(text).map(Comparable::element).collect()
        };
        let found = held.set(&set.name).map(lines).unwrap_or_default();
        let problems = compare(&lines(set), &found).into_iter();
        findings.extend(problems.map(|problem| finding(expected, &place(set), problem)));
    }
    findings
}

fn finding(table: &Table, chain: &impl ToString, problem: Problem) -> Finding {
    Finding {
        family: table.family.title(),
        chain: chain.to_string(),
        problem,
    }
}

/// Something that is compared: a rule, or a set's element.
struct Comparable<'a> {
    rule: Option<&'a Rule>,
    text: String,
}

impl Comparable<'_> {
    fn element(text: String) -> Self {
        Self { rule: None, text }
    }

    /// Whether they are the same. Rules are compared by what they do, because their text may leave out what isn't
    /// understood.
    fn is(&self, other: &Self) -> bool {
        match (self.rule, other.rule) {
            (Some(rule), Some(other)) => rule.same_rule(other),
            _ => self.text == other.text,
        }
    }

    /// Whether both are rules with the same comment, and so meant for the same purpose.
    fn is_named_like(&self, other: &Self) -> bool {
        let comment = |rule: Option<&Rule>| rule.and_then(|rule| rule.comment.clone());
        comment(self.rule).is_some_and(|own| Some(own) == comment(other.rule))
    }
}

fn lines<'a>(table: &'a Table, chain: &'a Chain) -> Vec<Comparable<'a>> {
    let comparable = |line: Line<'a>| Comparable {
        rule: Some(line.rule),
        text: line.to_string(),
    };
    Line::all(table, chain).map(comparable).collect()
}

/// What differs between two lists.
fn compare(expected: &[Comparable<'_>], found: &[Comparable<'_>]) -> Vec<Problem> {
    if expected.len() == found.len() && expected.iter().zip(found).all(|(expected, found)| expected.is(found)) {
        return Vec::new();
    }
    let mut extra: Vec<&Comparable<'_>> = found.iter().collect();
    let mut missing: Vec<&Comparable<'_>> = Vec::new();
    for rule in expected {
        match extra.iter().position(|found| found.is(rule)) {
            Some(index) => drop(extra.remove(index)),
            None => missing.push(rule),
        }
    }
    let texts = |list: &[Comparable<'_>]| list.iter().map(|line| line.text.clone()).collect();
    if missing.is_empty() && extra.is_empty() {
        return vec![Problem::OutOfOrder {
            expected: texts(expected),
            found: texts(found),
        }];
    }
    let mut problems = Vec::new();
    for rule in missing {
        match extra.iter().position(|found| found.is_named_like(rule)) {
            Some(index) => problems.push(Problem::Different {
                expected: rule.text.clone(),
                found: extra.remove(index).text.clone(),
            }),
            None => problems.push(Problem::Missing(rule.text.clone())),
        }
    }
    problems.extend(extra.into_iter().map(|line| Problem::Unexpected(line.text.clone())));
    problems
}

/// What is wrong with the jump to proxy-init's chain among the rules of a base chain.
fn compare_jumps(expected: &Table, chain: &Chain, table: &Table, held: &Chain) -> Vec<Problem> {
    let mut problems = Vec::new();
    let found = lines(table, held);
    for jump in lines(expected, chain) {
        match found.iter().filter(|line| line.is(&jump)).count() {
            0 => problems.push(Problem::Missing(jump.text.clone())),
            1 => {}
            _ => problems.push(Problem::Doubled(jump.text.clone())),
        }
        for line in found.iter().filter(|line| !line.is(&jump)) {
            if line.rule.is_some_and(|rule| leads_to(rule, table).is_some()) {
                problems.push(Problem::Unexpected(line.text.clone()));
            }
        }
    }
    problems
}

/// What keeps the connections of one direction from proxy-init's chain, apart from what is already known to be wrong.
fn shadows(
    expected: &Table,
    family: Family,
    direction: Direction,
    found: &Found,
    around: &Surroundings<'_>,
    known: &[Finding],
) -> Vec<Finding> {
    let watched = Watched {
        table: expected,
        chain: ChainName::of(direction).as_str(),
    };
    let mut connections = Connections::all(family, direction);
    if direction == Direction::Inbound {
        connections = connections.with(Field::InInterface, &any_but_lo());
    }
    let walk = there_and_back(found, family, direction, connections, around, Some(watched));
    let base = chain_of(expected, ChainName::of(direction).counterpart());
    let jump = base
        .and_then(|chain| Line::all(expected, chain).next())
        .map(|line| line.to_string());
    // If the way to the chain is broken, every connection passes it by, and no other rule is to blame for that.
    let is_broken = known.iter().any(|finding| {
        matches!(
            finding.problem,
            Problem::NoRules(_) | Problem::NoChain | Problem::Dormant | Problem::NotHooked | Problem::Missing(_)
        ) && finding.family == expected.family.title()
            && base.is_some_and(|base| finding.chain == base.name.to_string() || finding.chain.starts_with("table "))
    });
    let report = |outcome: &Outcome<'_>| -> Option<Finding> {
        let at = outcome.at?;
        let (table, name) = (at.table(), &at.chain().name);
        let is_ours = table.is(expected);
        // proxy-init's rules in another mode are reported separately.
        if !is_ours && ChainName::own(name).is_some() {
            return None;
        }
        let by = || match at {
            Place::Rule(line) => line.to_string(),
            Place::Policy(_) => format!("policy drop of {table} {name}"),
        };
        let is_redirected = outcome.after_watched && matches!(outcome.action, Some(Action::Redirect(_)));
        let problem = if is_redirected && matches!(outcome.fate, Fate::Dropped | Fate::NotUnderstood) {
            // What its device and its sender are, a reply doesn't tell of a connection.
            let of_sender = [Field::InInterface, Field::OutInterface, Field::Uid, Field::Gid];
            let connections = match outcome.packet {
                Packet::Reply => outcome.connections.lacking(&of_sender),
                Packet::First | Packet::Ack => outcome.connections.clone(),
            };
            Problem::Dropped {
                by: by(),
                connections: connections.to_string(),
                packet: outcome.packet,
                certain: outcome.is_certain(),
            }
        } else if outcome.after_watched {
            // What runs after proxy-init's chain sees the connections that bypass the proxy, and is free to decide
            // about them. The policy of the base chain that holds proxy-init's jump is the exception: it counts as part
            // of the rules.
            let is_base = base.is_some_and(|base| *name == base.name);
            if !(is_ours && is_base && matches!(at, Place::Policy(_))) {
                return None;
            }
            Problem::Policy
        } else {
            if is_broken && outcome.fate == Fate::Accepted {
                return None;
            }
            Problem::Shadowed {
                jump: jump.clone(),
                by: by(),
                fate: outcome.fate,
                connections: outcome.connections.to_string(),
                certain: outcome.is_certain(),
            }
        };
        Some(Finding {
            family: family.to_string(),
            chain: match is_ours {
                true => name.to_string(),
                false => format!("{table} {name}"),
            },
            problem,
        })
    };
    // A rule that several ways lead to decides several times. There may be thousands of rules.
    let mut seen = HashSet::new();
    let findings = walk.decisions.iter().chain(&walk.arrived).filter_map(report);
    findings.filter(|finding| seen.insert(finding.clone())).collect()
}

#[cfg(test)]
mod tests {
    use packets::rules::flags::{CtState, ct_state};
    use packets::rules::{Action, Condition, Field, Hook, Intervals, Kind, Name, Policy, TCP, Values, interface};
    use packets::rules::{
        examples::base, examples::chain, examples::commented, examples::ports, examples::rule, examples::table,
        examples::to_port,
    };

    use super::*;
    use crate::wanted::tables::expected;
    use crate::wanted::{Config, OwnerId, Port, plan};

    const JUMP_IN: &str =
        "-A PREROUTING -m comment --comment \"proxy-init/install-proxy-init-prerouting\" -j PROXY_INIT_REDIRECT";
    const JUMP_OUT: &str =
        "-A OUTPUT -m comment --comment \"proxy-init/install-proxy-init-output\" -j PROXY_INIT_OUTPUT";

    /// linkerd-init's usual rules for IPv4.
    fn config() -> Config {
        let port = |number| Port::new(number).unwrap();
        let mut config = Config::new(port(4143), port(4140));
        config.proxy_uid = OwnerId::new(2102);
        config.ipv6 = false;
        config
    }

    fn of(mode: Mode, config: &Config) -> Vec<Table> {
        expected(mode, &plan(config))
    }

    fn installed() -> Vec<Table> {
        of(Mode::Nft, &config())
    }

    /// What is said in nft mode where these tables were found.
    fn said(tables: Vec<Table>) -> Vec<String> {
        let found = Found {
            tables,
            not_known: vec![],
        };
        let findings = differences(Mode::Nft, &installed(), &found, &[]);
        findings.iter().map(ToString::to_string).collect()
    }

    /// What is said where the installed table has been changed so.
    fn after(change: impl FnOnce(&mut Table)) -> Vec<String> {
        let mut tables = installed();
        change(&mut tables[0]);
        said(tables)
    }

    fn in_chain<'a>(table: &'a mut Table, name: &str) -> &'a mut Chain {
        table.chains.iter_mut().find(|chain| chain.name == *name).unwrap()
    }

    fn rules_of<'a>(table: &'a mut Table, name: &str) -> &'a mut Vec<Rule> {
        &mut in_chain(table, name).rules
    }

    /// A foreign table with a filter chain that runs before nat.
    fn early(rules: Vec<Rule>) -> Table {
        table(
            "ip mine",
            vec![base("early", Kind::Filter, Hook::Prerouting, -150, rules)],
        )
    }

    fn shadowed(place: &str, does: &str, by: &str) -> String {
        format!("IPv4, {place}: shadowed: the rule marked + {does}\n  - {JUMP_IN}\n  + {by}\n")
    }

    #[test]
    fn what_is_as_expected_is_not_mentioned() {
        assert!(said(installed()).is_empty());
        let mut both = config();
        both.ipv6 = true;
        for mode in [Mode::Nft, Mode::Legacy] {
            let tables = of(mode, &both);
            let found = Found {
                tables: tables.clone(),
                not_known: vec![],
            };
            assert_eq!(differences(mode, &tables, &found, &[]), []);
        }
        // Rules of others after the jumps, counters, and another mode's rules are none of its business.
        let mut tables = installed();
        let table = &mut tables[0];
        rules_of(table, "PREROUTING").push(rule([], Action::Accept));
        rules_of(table, "OUTPUT").push(rule([to_port(80)], Action::Jump(Name::from("KUBE-SERVICES"))));
        table
            .chains
            .push(chain("KUBE-SERVICES", vec![rule([], Action::Redirect(None))]));
        rules_of(table, "PROXY_INIT_OUTPUT")[0].handle = 7;
        tables.extend(of(Mode::Legacy, &config()));
        assert!(said(tables).is_empty());
    }

    #[test]
    fn nothing_at_all_is_one_finding() {
        let want = ["IPv4, table ip nat: all 6 rules are missing\n"];
        assert_eq!(said(vec![]), want);
        let elsewhere = of(Mode::Legacy, &config());
        assert_eq!(said(elsewhere), want, "rules in another mode");
    }

    #[test]
    fn rules_that_differ() {
        let user = "-A PROXY_INIT_OUTPUT -m owner --uid-owner 2102 -m comment --comment \"proxy-init/ignore-proxy-user-id\" -j RETURN";
        let loopback = "-A PROXY_INIT_OUTPUT -o lo -m comment --comment \"proxy-init/ignore-loopback\" -j RETURN";
        let redirect = "-A PROXY_INIT_OUTPUT -p tcp -m comment --comment \"proxy-init/redirect-all-outgoing-to-proxy-port\" -j REDIRECT --to-ports";
        let output = "PROXY_INIT_OUTPUT";
        assert_eq!(
            after(|table| drop(rules_of(table, output).remove(0))),
            [format!("IPv4, {output}: missing\n  - {user}\n")]
        );
        assert_eq!(
            after(|table| rules_of(table, output).swap(0, 1)),
            [format!(
                "IPv4, {output}: out of order\n  - {user}\n  - {loopback}\n  - {redirect} 4140\n  + {loopback}\n  + \
                 {user}\n  + {redirect} 4140\n"
            )]
        );
        assert_eq!(
            after(|table| rules_of(table, output)[2].action = Action::Redirect(Some((1, 1)))),
            [format!(
                "IPv4, {output}: different\n  - {redirect} 4140\n  + {redirect} 1\n"
            )]
        );
        assert_eq!(
            after(|table| rules_of(table, output).push(rule([to_port(80)], Action::Accept))),
            [format!(
                "IPv4, {output}: unexpected\n  + -A {output} -m tcp --dport 80 -j ACCEPT\n"
            )]
        );
        // One rule twice is one too many, and a rule without its comment isn't the one that is missing.
        assert_eq!(
            after(|table| {
                let rules = rules_of(table, output);
                rules.push(rules[1].clone());
            }),
            [format!("IPv4, {output}: unexpected\n  + {loopback}\n")]
        );
        assert_eq!(
            after(|table| rules_of(table, output)[1].comment = None),
            [
                format!("IPv4, {output}: missing\n  - {loopback}\n"),
                format!("IPv4, {output}: unexpected\n  + -A {output} -o lo -j RETURN\n"),
            ]
        );
        // Both are compared by what they do: this condition isn't understood, though it is written alike.
        let same_text = after(|table| {
            rules_of(table, output)[1].conditions = vec![Condition::Unknown("-o lo".to_owned())];
        });
        assert_eq!(same_text.len(), 1, "{same_text:?}");
        assert!(
            same_text[0].starts_with("IPv4, PROXY_INIT_OUTPUT: different\n"),
            "{same_text:?}"
        );
    }

    #[test]
    fn jumps_that_differ() {
        let twice = after(|table| {
            let rules = rules_of(table, "PREROUTING");
            rules.push(rules[0].clone());
        });
        assert_eq!(
            twice,
            [format!("IPv4, PREROUTING: found more than once\n  + {JUMP_IN}\n")]
        );

        let goto = Action::Goto(Name::from("PROXY_INIT_REDIRECT"));
        let too = after(|table| rules_of(table, "PREROUTING").push(rule([to_port(80)], goto)));
        let line = "-A PREROUTING -m tcp --dport 80 -g PROXY_INIT_REDIRECT";
        assert_eq!(too, [format!("IPv4, PREROUTING: unexpected\n  + {line}\n")]);

        let missing = after(|table| {
            *rules_of(table, "PREROUTING") =
                vec![rule([to_port(80)], Action::Accept), rule([to_port(81)], Action::Drop)];
        });
        assert_eq!(
            missing,
            [
                format!("IPv4, PREROUTING: missing\n  - {JUMP_IN}\n"),
                // Without a jump nothing gets past the accept's rule either, so only the drop is worse than nothing.
                shadowed(
                    "PREROUTING",
                    "drops connections: to port 81",
                    "-A PREROUTING -m tcp --dport 81 -j DROP"
                ),
            ]
        );
    }

    #[test]
    fn chains_that_see_no_connection() {
        let dormant = "IPv4, table ip nat: the table is dormant: none of its chains is hooked\n";
        assert_eq!(after(|table| table.dormant = true), [dormant]);
        let changes: [fn(&mut Chain); 3] = [
            |chain| chain.base = None,
            |chain| chain.base.as_mut().unwrap().hook = Hook::Input,
            |chain| chain.base.as_mut().unwrap().kind = Kind::Filter,
        ];
        for change in changes {
            assert_eq!(
                after(|table| change(in_chain(table, "PREROUTING"))),
                ["IPv4, PREROUTING: the chain is not hooked where it should be, so it sees no connection\n"]
            );
        }
        // Another priority is no difference.
        assert!(after(|table| in_chain(table, "PREROUTING").base.as_mut().unwrap().priority = -90).is_empty());
    }

    #[test]
    fn a_broken_way_is_not_blamed_on_rules_that_let_connections_pass() {
        // The jump of the other direction is there: the accept takes connections from it.
        let accept = |chain: &'static str| {
            after(move |table| {
                rules_of(table, "PREROUTING").insert(0, rule([to_port(80)], Action::Accept));
                rules_of(table, "OUTPUT").insert(0, rule([to_port(80)], Action::Accept));
                rules_of(table, chain).pop();
            })
        };
        let said = accept("OUTPUT");
        assert_eq!(
            said,
            [
                format!("IPv4, OUTPUT: missing\n  - {JUMP_OUT}\n"),
                shadowed(
                    "PREROUTING",
                    "lets connections pass by: to port 80",
                    "-A PREROUTING -m tcp --dport 80 -j ACCEPT"
                ),
            ]
        );
        // A rule that is missing in proxy-init's own chain doesn't break the way to it.
        let said = accept("PROXY_INIT_REDIRECT");
        assert_eq!(said.len(), 3, "{said:?}");
        let dormant = after(|table| {
            table.dormant = true;
            rules_of(table, "PREROUTING").insert(0, rule([to_port(80)], Action::Accept));
        });
        assert_eq!(dormant.len(), 1, "{dormant:?}");
    }

    #[test]
    fn what_is_missing_in_one_family_breaks_no_way_of_the_other() {
        let rules = vec![
            rule([to_port(80)], Action::Accept),
            // With this, connections are tracked.
            rule([ct_state(|state| state == CtState::Invalid)], Action::Drop),
        ];
        let other = base("PREROUTING", Kind::Nat, Hook::Prerouting, -100, rules);
        assert_eq!(said(vec![table("ip nat", vec![other])]).len(), 1, "no rules");
        let mut both = config();
        both.ipv6 = true;
        let expected = of(Mode::Nft, &both);
        let mut tables = expected.clone();
        for table in &mut tables {
            rules_of(table, "PREROUTING").insert(0, rule([to_port(80)], Action::Accept));
        }
        rules_of(&mut tables[1], "PREROUTING").pop();
        let found = Found {
            tables,
            not_known: vec![],
        };
        let findings = differences(Mode::Nft, &expected, &found, &[]);
        let said: Vec<_> = findings
            .iter()
            .map(Finding::kind)
            .zip(findings.iter().map(|one| &one.family))
            .collect();
        assert_eq!(
            said,
            [
                (FindingKind::Missing, &"IPv6".to_owned()),
                (FindingKind::Shadowed, &"IPv4".to_owned())
            ]
        );
    }

    #[test]
    fn rules_that_come_first() {
        let first = |action| after(|table| rules_of(table, "PREROUTING").insert(0, rule([to_port(80)], action)));
        let line = |target: &str| format!("-A PREROUTING -m tcp --dport 80 -j {target}");
        for (action, does, target) in [
            (Action::Accept, "lets connections pass by", "ACCEPT"),
            (Action::Drop, "drops connections", "DROP"),
            (
                Action::Redirect(Some((1, 1))),
                "redirects connections",
                "REDIRECT --to-ports 1",
            ),
        ] {
            let want = shadowed("PREROUTING", &format!("{does}: to port 80"), &line(target));
            assert_eq!(first(action), [want]);
        }
        // There, connection tracking has seen the packet already.
        assert!(first(Action::Untrack).is_empty());
        let unknown = first(Action::Unknown("NFQUEUE".to_owned()));
        let does = "may take connections away (it is not understood): to port 80";
        assert_eq!(unknown, [shadowed("PREROUTING", does, &line("NFQUEUE"))]);

        // A rule in a table of another name is in nft's syntax, and its table is named.
        let mut tables = installed();
        tables.push(early(vec![rule([to_port(80)], Action::Drop)]));
        let want = shadowed("ip mine early", "drops connections: to port 80", "tcp dport 80 drop");
        assert_eq!(said(tables), [want]);
    }

    /// What comes by lo was sent in the pod, and counts as outbound.
    #[test]
    fn a_rule_for_lo_takes_no_inbound_connections_away() {
        let from = |device| Condition::is(Field::InInterface, interface(device));
        let first =
            |device| after(move |table| rules_of(table, "PREROUTING").insert(0, rule([from(device)], Action::Drop)));
        assert!(first(b"lo").is_empty());
        assert_eq!(first(b"el").len(), 1);
    }

    #[test]
    fn a_rule_that_is_met_twice_is_reported_once() {
        let twice = after(|table| {
            table.chains.push(chain(
                "sub",
                vec![rule([to_port(80)], Action::Unknown("NFQUEUE".to_owned()))],
            ));
            let jump = rule([], Action::Jump(Name::from("sub")));
            rules_of(table, "PREROUTING").splice(0..0, [jump.clone(), jump]);
        });
        let line = "-A sub -m tcp --dport 80 -j NFQUEUE";
        let does = "may take connections away (it is not understood): to port 80";
        assert_eq!(twice, [shadowed("sub", does, line)]);
    }

    #[test]
    fn policies_that_drop() {
        let policy = |chain: &'static str| {
            after(move |table| in_chain(table, chain).base.as_mut().unwrap().policy = Policy::Drop)
        };
        assert_eq!(
            policy("OUTPUT"),
            ["IPv4, OUTPUT: the chain's policy drops the connections that bypass the proxy\n"]
        );
        assert!(policy("PREROUTING").is_empty(), "nothing bypasses the proxy inbound");

        let with_policy = |priority, name| {
            let mut table = table(
                name,
                vec![base("mine", Kind::Filter, Hook::Prerouting, priority, vec![])],
            );
            table.chains[0].base.as_mut().unwrap().policy = Policy::Drop;
            let mut tables = installed();
            tables.push(table);
            said(tables)
        };
        let line = "policy drop of inet mine mine";
        let want = shadowed("inet mine mine", "drops connections: all TCP connections", line);
        let back =
            "IPv4, inet mine mine: dropped: the rule marked + drops connections that were redirected: to 127.0.0.1 \
                    to port 4140 in by \"lo\"\n  + policy drop of inet mine mine\n"
                .to_owned();
        assert_eq!(with_policy(-150, "inet mine"), [want, back.clone()]);
        assert_eq!(
            with_policy(0, "inet mine"),
            [
                back.replace("to 127.0.0.1 to port 4140 in by \"lo\"", "to port 4143"),
                back
            ]
        );
        // The other table's base chain has the same name as proxy-init's.
        let mut other = table("ip mine", vec![base("OUTPUT", Kind::Filter, Hook::Output, 0, vec![])]);
        other.chains[0].base.as_mut().unwrap().policy = Policy::Drop;
        let mut tables = installed();
        tables.push(other);
        let said = said(tables);
        assert!(
            !said.is_empty()
                && said
                    .iter()
                    .all(|said| said.starts_with("IPv4, ip mine OUTPUT: dropped: ")),
            "{said:?}"
        );
    }

    #[test]
    fn a_family_without_rules_should_have_none() {
        let mut both = config();
        both.ipv6 = true;
        let mut tables = of(Mode::Nft, &both);
        let v6 = &mut tables[1];
        v6.chains.push(chain("KUBE-SERVICES", vec![rule([], Action::Return)]));
        rules_of(v6, "PREROUTING").push(rule([], Action::Jump(Name::from("KUBE-SERVICES"))));
        assert_eq!(
            said(tables),
            [
                "IPv6, PROXY_INIT_REDIRECT: unexpected\n  + -A PROXY_INIT_REDIRECT -p tcp -m comment --comment \
                 \"proxy-init/redirect-all-incoming-to-proxy-port\" -j REDIRECT --to-ports 4143\n",
                &format!("IPv6, PREROUTING: unexpected\n  + {JUMP_IN}\n"),
                "IPv6, PROXY_INIT_OUTPUT: unexpected\n  + -A PROXY_INIT_OUTPUT -m owner --uid-owner 2102 -m comment \
                 --comment \"proxy-init/ignore-proxy-user-id\" -j RETURN\n",
                "IPv6, PROXY_INIT_OUTPUT: unexpected\n  + -A PROXY_INIT_OUTPUT -o lo -m comment --comment \
                 \"proxy-init/ignore-loopback\" -j RETURN\n",
                "IPv6, PROXY_INIT_OUTPUT: unexpected\n  + -A PROXY_INIT_OUTPUT -p tcp -m comment --comment \
                 \"proxy-init/redirect-all-outgoing-to-proxy-port\" -j REDIRECT --to-ports 4140\n",
                &format!("IPv6, OUTPUT: unexpected\n  + {JUMP_OUT}\n"),
            ]
        );
    }

    /// A small table as native mode makes them: the jumps for one family or for both, ports in a set.
    fn native_table(only: Option<Family>) -> Table {
        let conditions: Vec<Condition> = only.into_iter().map(is_of).collect();
        let jump = |to: &str| Rule {
            conditions: conditions.clone(),
            ..commented("jump", rule([], Action::Jump(Name::from(to))))
        };
        let ignored = Condition::is(Field::DestinationPort, Values::Set(Name::from("ignored")));
        let tcp = Condition::is(Field::Protocol, TCP);
        let nat = |name, hook, to| base(name, Kind::Nat, hook, -100, vec![jump(to)]);
        let chains = vec![
            nat("PREROUTING", Hook::Prerouting, "PROXY_INIT_REDIRECT"),
            nat("OUTPUT", Hook::Output, "PROXY_INIT_OUTPUT"),
            chain(
                "PROXY_INIT_REDIRECT",
                vec![
                    commented("ignored", rule([tcp.clone(), ignored], Action::Return)),
                    commented("all", rule([tcp.clone()], Action::Redirect(Some((4143, 4143))))),
                ],
            ),
            chain(
                "PROXY_INIT_OUTPUT",
                vec![commented("all", rule([tcp], Action::Redirect(Some((4140, 4140)))))],
            ),
        ];
        let mut table = table("inet proxy-init", chains);
        table.sets = vec![ports("ignored", &[(25, 25), (8000, 8100)])];
        table
    }

    fn natively(only: Option<Family>, change: impl FnOnce(&mut Vec<Table>)) -> Vec<String> {
        let expected = [native_table(only)];
        let mut found = Found {
            tables: expected.to_vec(),
            not_known: vec![],
        };
        change(&mut found.tables);
        let findings = differences(Mode::Native, &expected, &found, &[]);
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn native_modes_table_is_compared_as_a_whole() {
        assert!(natively(None, |_| ()).is_empty());
        let not_found = "inet, table inet proxy-init: not found\n";
        assert_eq!(natively(None, Vec::clear), [not_found]);
        assert_eq!(
            natively(None, |tables| tables[0].name = Name::from("other")),
            [not_found]
        );
        assert_eq!(
            natively(None, |tables| tables[0].dormant = true),
            ["inet, table inet proxy-init: the table is dormant: none of its chains is hooked\n"]
        );
        assert_eq!(
            natively(None, |tables| in_chain(&mut tables[0], "OUTPUT").base = None),
            ["inet, OUTPUT: the chain is not hooked where it should be, so it sees no connection\n"]
        );
        assert_eq!(
            natively(None, |tables| in_chain(&mut tables[0], "OUTPUT")
                .base
                .as_mut()
                .unwrap()
                .kind = Kind::Filter),
            ["inet, OUTPUT: the chain is not hooked where it should be, so it sees no connection\n"]
        );
        assert_eq!(
            natively(None, |tables| drop(
                rules_of(&mut tables[0], "PROXY_INIT_REDIRECT").remove(0)
            )),
            ["inet, PROXY_INIT_REDIRECT: missing\n  - tcp dport @ignored return comment \"ignored\"\n"]
        );
        assert_eq!(
            natively(None, |tables| drop(tables[0].chains.pop())),
            [
                "inet, PROXY_INIT_OUTPUT: missing\n  - meta l4proto tcp redirect to :4140 comment \"all\"\n".to_owned(),
                // The jump leads nowhere.
                native_shadow(
                    "IPv4",
                    "OUTPUT",
                    "may take connections away (it is not understood): all TCP connections"
                ),
                native_shadow(
                    "IPv6",
                    "OUTPUT",
                    "may take connections away (it is not understood): all TCP connections"
                ),
            ]
        );
    }

    fn native_shadow(family: &str, chain: &str, does: &str) -> String {
        let jump = "jump PROXY_INIT_OUTPUT comment \"jump\"";
        format!("{family}, {chain}: shadowed: the rule marked + {does}\n  - {jump}\n  + {jump}\n")
    }

    #[test]
    fn native_modes_sets_are_compared_element_by_element() {
        let with_elements = |elements: Option<&[(u128, u128)]>| {
            let elements = elements.map(|list| Intervals::new(list.iter().copied()));
            natively(None, |tables| tables[0].sets[0].elements = elements)
        };
        assert!(with_elements(Some(&[(8000, 8100), (25, 25)])).is_empty());
        assert_eq!(
            with_elements(Some(&[(25, 25), (443, 443)])),
            [
                "inet, set ignored: missing\n  - 8000-8100\n",
                "inet, set ignored: unexpected\n  + 443\n",
            ]
        );
        let missing = [
            "inet, set ignored: missing\n  - 25\n",
            "inet, set ignored: missing\n  - 8000-8100\n",
        ];
        assert_eq!(with_elements(Some(&[])), missing);
        assert_eq!(
            natively(None, |tables| tables[0].sets.push(ports("other", &[(1, 1)]))),
            ["inet, set other: unexpected\n  + the set\n"]
        );
    }

    #[test]
    fn native_modes_table_may_be_for_one_family() {
        let dropping = |tables: &mut Vec<Table>| {
            tables.push(table(
                "inet mine",
                vec![base(
                    "early",
                    Kind::Filter,
                    Hook::Prerouting,
                    -150,
                    vec![rule([], Action::Drop)],
                )],
            ));
        };
        let families = |only| -> Vec<String> {
            let said = natively(only, dropping);
            let mut families: Vec<_> = said
                .iter()
                .map(|line| line.split(',').next().unwrap().to_owned())
                .collect();
            families.dedup();
            families
        };
        assert_eq!(families(None), ["IPv4", "IPv6"]);
        assert_eq!(families(Some(Family::V4)), ["IPv4"]);
        assert_eq!(families(Some(Family::V6)), ["IPv6"]);
    }

    #[test]
    fn problems_have_names_and_sides_and_words() {
        let text = |text: &str| text.to_owned();
        let shadowed = |jump: Option<&str>, fate, certain| Problem::Shadowed {
            jump: jump.map(text),
            by: text("b"),
            fate,
            connections: text("to port 80"),
            certain,
        };
        let different = Problem::Different {
            expected: text("a"),
            found: text("b"),
        };
        let order = Problem::OutOfOrder {
            expected: vec![text("a"), text("b")],
            found: vec![text("b"), text("a")],
        };
        let (a, b) = (vec!["a"], vec!["b"]);
        for (problem, kind, expected, found) in [
            (Problem::NoChain, "no-chain", vec![], vec![]),
            (Problem::Dormant, "dormant", vec![], vec![]),
            (Problem::NotHooked, "not-hooked", vec![], vec![]),
            (Problem::Policy, "policy", vec![], vec![]),
            (Problem::Missing(text("a")), "missing", a.clone(), vec![]),
            (Problem::Unexpected(text("b")), "unexpected", vec![], b.clone()),
            (Problem::Doubled(text("b")), "doubled", vec![], b.clone()),
            (different, "different", a.clone(), b.clone()),
            (order, "out-of-order", vec!["a", "b"], vec!["b", "a"]),
            (shadowed(Some("a"), Fate::Accepted, true), "shadowed", a, b.clone()),
            (shadowed(None, Fate::Accepted, true), "shadowed", vec![], b),
        ] {
            assert_eq!(problem.kind().to_string(), kind);
            assert_eq!(problem.sides(), (expected, found), "{kind}");
        }
        let of_others: Vec<FindingKind> = [
            shadowed(None, Fate::Dropped, true),
            Problem::Policy,
            Problem::NoChain,
            Problem::NoRules(6),
        ]
        .iter()
        .filter(|problem| problem.is_about_others())
        .map(Problem::kind)
        .collect();
        assert_eq!(of_others, [FindingKind::Shadowed, FindingKind::Policy]);
        assert_eq!(Problem::NoRules(6).kind().to_string(), "no-rules");
        for (fate, certain, does) in [
            (Fate::Accepted, true, "lets connections pass by"),
            (Fate::Translated, true, "redirects connections"),
            (Fate::Dropped, true, "drops connections"),
            (Fate::Untracked, true, "keeps connections from being redirected"),
            (
                Fate::NotUnderstood,
                false,
                "may take connections away (it is not understood)",
            ),
            (Fate::Accepted, false, "may let connections pass by"),
            (Fate::Translated, false, "may redirect connections"),
            (Fate::Dropped, false, "may drop connections"),
            (Fate::Untracked, false, "may keep connections from being redirected"),
        ] {
            let words = shadowed(None, fate, certain).words();
            assert!(words.ends_with(&format!(" marked + {does}: to port 80")), "{words}");
        }
    }

    #[test]
    fn what_drops_redirected_connections_is_a_finding_or_only_a_warning() {
        let of = |packet, certain| Finding {
            family: "IPv4".to_owned(),
            chain: "ip mine late".to_owned(),
            problem: Problem::Dropped {
                by: "drop".to_owned(),
                connections: "to port 80".to_owned(),
                packet,
                certain,
            },
        };
        for (packet, certain, words) in [
            (Packet::First, true, "drops connections that were redirected"),
            (Packet::Ack, true, "drops connections that were redirected"),
            (
                Packet::Reply,
                true,
                "drops the replies to connections that were redirected",
            ),
            (Packet::First, false, "may drop connections that were redirected"),
            (
                Packet::Reply,
                false,
                "may drop the replies to connections that were redirected",
            ),
        ] {
            let finding = of(packet, certain);
            let said = format!("IPv4, ip mine late: dropped: the rule marked + {words}: to port 80");
            assert_eq!(finding.to_string(), format!("{said}\n  + drop\n"));
            assert_eq!(finding.in_a_line(), format!("{said} (drop)"));
            let of = |problem| Finding {
                problem,
                ..finding.clone()
            };
            let missing = of(Problem::Missing("return".to_owned())).in_a_line();
            assert_eq!(missing, "IPv4, ip mine late: missing (return)");
            assert_eq!(of(Problem::NoChain).in_a_line(), "IPv4, ip mine late: not found");
            assert_eq!(finding.kind(), FindingKind::Dropped);
            assert_eq!(finding.problem.is_warning(), !certain);
            assert!(finding.problem.is_about_others());
        }
        assert!(!Problem::NoChain.is_warning());
    }

    /// Whose the answers are, what listens tells, and otherwise whom the rules exempt.
    #[test]
    fn replies_are_of_whoever_listens() {
        let dropping = |uid: u128| {
            let rules = vec![rule([Condition::is(Field::Uid, uid)], Action::Drop)];
            table("ip mine", vec![base("late", Kind::Filter, Hook::Output, 10, rules)])
        };
        let listener = Listener {
            address: std::net::Ipv4Addr::UNSPECIFIED.into(),
            port: 4143,
            device: 0,
            is_ipv6_only: false,
            uid: 7,
        };
        let loses_replies = |uid, listeners: &[Listener]| {
            let found = Found {
                tables: [installed(), vec![dropping(uid)]].concat(),
                not_known: vec![],
            };
            let findings = differences(Mode::Nft, &installed(), &found, listeners);
            findings.iter().any(|finding| {
                matches!(
                    finding.problem,
                    Problem::Dropped {
                        packet: Packet::Reply,
                        certain: true,
                        ..
                    }
                )
            })
        };
        assert!(loses_replies(2102, &[]));
        assert!(loses_replies(7, &[listener]));
        assert!(!loses_replies(7, &[]));
        assert!(!loses_replies(8, &[listener]));
    }
}
