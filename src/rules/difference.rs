//! Compares what is expected with what was found: a pure function, the same for every mode.
//!
//! It compares proxy-init's chains rule by rule, and then asks the [walk](crate::rules::walk) whether anything that runs
//! before them, or instead of them, takes connections away.

use std::fmt;

use crate::rules::config::Family;
use crate::rules::found::{Chain, Found, Rule, Set, Subsystem, Table, TableFamily};
use crate::rules::line::Line;
use crate::rules::mode::Mode;
use crate::rules::nftables::set_element;
use crate::rules::ruleset::ChainName;
use crate::rules::walk::{Connections, Decision, Direction, Fate, Goal, walk};

/// One difference between what is expected and what was found. Rules are in iptables' syntax, native mode's in nft's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// In whose table: `IPv4`, `IPv6`, or native mode's `inet`.
    pub family: String,
    /// In which chain, or native mode's set or table.
    pub chain: String,
    /// What is wrong.
    pub problem: Problem,
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
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
}

impl Problem {
    /// Its name for machines.
    pub fn kind(&self) -> &'static str {
        match self {
            Problem::NoChain => "no-chain",
            Problem::Dormant => "dormant",
            Problem::NotHooked => "not-hooked",
            Problem::Missing(_) => "missing",
            Problem::Unexpected(_) => "unexpected",
            Problem::Different { .. } => "different",
            Problem::OutOfOrder { .. } => "out-of-order",
            Problem::Doubled(_) => "doubled",
            Problem::Shadowed { .. } => "shadowed",
            Problem::Policy => "policy",
        }
    }

    /// The rules that are expected, and those that were found instead.
    pub fn sides(&self) -> (Vec<&str>, Vec<&str>) {
        match self {
            Problem::NoChain | Problem::Dormant | Problem::NotHooked | Problem::Policy => (vec![], vec![]),
            Problem::Missing(rule) => (vec![rule], vec![]),
            Problem::Unexpected(rule) | Problem::Doubled(rule) => (vec![], vec![rule]),
            Problem::Different { expected, found } => (vec![expected], vec![found]),
            Problem::OutOfOrder { expected, found } => (
                expected.iter().map(String::as_str).collect(),
                found.iter().map(String::as_str).collect(),
            ),
            Problem::Shadowed { jump, by, .. } => (jump.iter().map(String::as_str).collect(), vec![by]),
        }
    }

    /// What is wrong, in words.
    fn words(&self) -> String {
        match self {
            Problem::NoChain => "not found".to_owned(),
            Problem::Dormant => "the table is dormant: none of its chains is hooked".to_owned(),
            Problem::NotHooked => "the chain is not hooked where it should be, so it sees no connection".to_owned(),
            Problem::Missing(_) => "missing".to_owned(),
            Problem::Unexpected(_) => "unexpected".to_owned(),
            Problem::Different { .. } => "different".to_owned(),
            Problem::OutOfOrder { .. } => "out of order".to_owned(),
            Problem::Doubled(_) => "found more than once".to_owned(),
            Problem::Policy => "the chain's policy drops the connections that bypass the proxy".to_owned(),
            Problem::Shadowed {
                fate,
                connections,
                certain,
                ..
            } => {
                let does = match (fate, certain) {
                    (Fate::Unknown, _) => "may take connections away (it is not understood)",
                    (Fate::Accepted, true) => "lets connections pass by",
                    (Fate::Mapped, true) => "redirects connections",
                    (Fate::Dropped, true) => "drops connections",
                    (Fate::Untracked, true) => "keeps connections from being redirected",
                    (Fate::Accepted, false) => "may let connections pass by",
                    (Fate::Mapped, false) => "may redirect connections",
                    (Fate::Dropped, false) => "may drop connections",
                    (Fate::Untracked, false) => "may keep connections from being redirected",
                };
                format!("shadowed: the rule behind + comes first and {does}: {connections}")
            }
        }
    }
}

/// As a diff: what is missing behind `-`, what was found instead behind `+`.
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

/// What differs, in the tables that a mode keeps its rules in, between what it would install and what was found.
pub fn differences(mode: Mode, expected: &[Table], found: &Found) -> Vec<Finding> {
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
                findings.extend(shadows(table, family, direction, found, &findings));
            }
        }
    }
    findings
}

/// Whether a table has rules for a family. Native mode's table sees both families, but its jumps may be for only one.
fn sees(table: &Table, family: Family) -> bool {
    let other = match family {
        Family::V4 => Family::V6,
        Family::V6 => Family::V4,
    };
    let only_other = crate::rules::nftables::is_of(other);
    let jump = table
        .chains
        .iter()
        .find(|chain| chain.base.is_some())
        .and_then(|chain| chain.rules.first());
    table.family.sees(family) && jump.is_none_or(|jump| !jump.conditions.contains(&only_other))
}

/// What differs in a family's nat table.
fn xtables(subsystem: Subsystem, family: Family, expected: &[Table], found: &Found) -> Vec<Finding> {
    let table_family = TableFamily::Ip(family);
    let held = found.table(subsystem, table_family, super::expected::NAT);
    let Some(expected) = expected.iter().find(|table| table.family == table_family) else {
        return held.map(leftovers).unwrap_or_default();
    };
    let mut findings = Vec::new();
    let mut add = |chain: &Chain, problem| findings.push(finding(expected, &chain.name.to_string(), problem));
    for chain in &expected.chains {
        let held_chain = held.and_then(|table| table.chain(&chain.name));
        match (chain.base, held.zip(held_chain)) {
            (None, None) => add(chain, Problem::NoChain),
            (None, Some((table, held))) => {
                for problem in compare(&lines(expected, chain), &lines(table, held)) {
                    add(chain, problem);
                }
            }
            (Some(_), None) => {
                for line in lines(expected, chain) {
                    add(chain, Problem::Missing(line.text));
                }
            }
            (Some(base), Some((table, held))) => {
                for problem in compare_jumps(expected, chain, table, held) {
                    add(chain, problem);
                }
                if held
                    .base
                    .is_none_or(|found| (found.kind, found.hook) != (base.kind, base.hook))
                {
                    add(chain, Problem::NotHooked);
                }
            }
        }
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
        let is_ours = ChainName::from_name(chain.name.as_bytes()).is_some_and(ChainName::is_ours);
        for rule in chain
            .rules
            .iter()
            .filter(|rule| is_ours || rule.leads_to(table).is_some())
        {
            let line = Line { table, chain, rule }.to_string();
            findings.push(finding(table, &chain.name.to_string(), Problem::Unexpected(line)));
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
pub fn differences_of(expected: &Table, found: &Table) -> Vec<Finding> {
    let mut findings = Vec::new();
    if found.dormant {
        findings.push(finding(expected, &format!("table {expected}"), Problem::Dormant));
    }
    for chain in &expected.chains {
        let name = chain.name.to_string();
        let held = found.chain(&chain.name);
        let found_lines = held.map(|held| lines(found, held)).unwrap_or_default();
        let problems = compare(&lines(expected, chain), &found_lines);
        findings.extend(problems.into_iter().map(|problem| finding(expected, &name, problem)));
        let hook = |chain: &Chain| chain.base.map(|base| (base.kind, base.hook));
        if let Some(held) = held
            && hook(held) != hook(chain)
        {
            findings.push(finding(expected, &name, Problem::NotHooked));
        }
    }
    findings.extend(compare_sets(expected, found));
    findings
}

fn compare_sets(expected: &Table, held: &Table) -> Vec<Finding> {
    let mut findings = Vec::new();
    let place = |set: &Set| format!("set {}", set.name);
    for set in held.sets.iter().filter(|set| expected.set(&set.name).is_none()) {
        let problem = Problem::Unexpected("the set".to_owned());
        findings.push(finding(expected, &place(set), problem));
    }
    for set in &expected.sets {
        let lines = |set: &Set| -> Vec<Comparable<'_>> {
            let intervals = set.elements.as_ref().map(|elements| elements.as_slice());
            let field = super::expected::set_field(set);
            let texts = intervals
                .unwrap_or_default()
                .iter()
                .map(|&interval| set_element(field, interval));
            texts.map(Comparable::element).collect()
        };
        let found = held.set(&set.name).map(lines).unwrap_or_default();
        let problems = compare(&lines(set), &found);
        findings.extend(
            problems
                .into_iter()
                .map(|problem| finding(expected, &place(set), problem)),
        );
    }
    findings
}

fn finding(table: &Table, chain: &str, problem: Problem) -> Finding {
    Finding {
        family: match table.family {
            TableFamily::Ip(family) => family.to_string(),
            other => other.to_string(),
        },
        chain: chain.to_owned(),
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
            (Some(rule), Some(other)) => rule.does_as(other),
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
    let line = |rule: &'a Rule| Comparable {
        rule: Some(rule),
        text: Line { table, chain, rule }.to_string(),
    };
    chain.rules.iter().map(line).collect()
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
            if line.rule.is_some_and(|rule| rule.leads_to(table).is_some()) {
                problems.push(Problem::Unexpected(line.text.clone()));
            }
        }
    }
    problems
}

/// What keeps the connections of one direction from proxy-init's chain, apart from what is already known to be wrong.
fn shadows(expected: &Table, family: Family, direction: Direction, found: &Found, known: &[Finding]) -> Vec<Finding> {
    let table_name = expected.name.to_string();
    let goal = Goal {
        subsystem: expected.subsystem,
        family: expected.family,
        table: &table_name,
        chain: direction.chain(),
    };
    let walked = walk(found, family, direction, goal, Connections::all(family, direction));
    let base = expected
        .chains
        .iter()
        .find(|chain| chain.name == *goal.chain.other_end().as_str());
    let jump = base
        .and_then(|chain| lines(expected, chain).into_iter().next())
        .map(|line| line.text);
    // If the way to the chain is broken, every connection passes it by, and no other rule is to blame for that.
    let is_broken = known.iter().any(|finding| {
        matches!(
            finding.problem,
            Problem::NoChain | Problem::Dormant | Problem::NotHooked | Problem::Missing(_)
        ) && base.is_some_and(|base| finding.chain == base.name.to_string() || finding.chain.starts_with("table "))
    });
    let report = |decision: &Decision<'_>| -> Option<Finding> {
        let is_ours = decision.at.table.subsystem == goal.subsystem
            && decision.at.table.family == goal.family
            && decision.at.table.name == *goal.table;
        // proxy-init's rules in another mode are reported separately.
        if !is_ours && ChainName::from_name(decision.at.chain.name.as_bytes()).is_some_and(ChainName::is_ours) {
            return None;
        }
        let chain = match is_ours {
            true => decision.at.chain.name.to_string(),
            false => format!("{} {}", decision.at.table, decision.at.chain.name),
        };
        let problem = if decision.behind_ours {
            // What runs after proxy-init's chain sees the connections that bypass the proxy, and is free to decide
            // about them. The policy of the base chain that holds proxy-init's jump is the exception: it counts as part
            // of the rules.
            let is_base = base.is_some_and(|base| decision.at.chain.name == base.name);
            if !(is_ours && is_base && decision.at.rule.is_none()) {
                return None;
            }
            Problem::Policy
        } else {
            if is_broken && decision.fate == Fate::Accepted {
                return None;
            }
            let by = match decision.at.rule {
                Some(rule) => Line {
                    table: decision.at.table,
                    chain: decision.at.chain,
                    rule,
                }
                .to_string(),
                None => format!("policy drop of {} {}", decision.at.table, decision.at.chain.name),
            };
            Problem::Shadowed {
                jump: jump.clone(),
                by,
                fate: decision.fate,
                connections: decision.connections.to_string(),
                certain: decision.certain,
            }
        };
        Some(Finding {
            family: family.to_string(),
            chain,
            problem,
        })
    };
    let mut findings: Vec<Finding> = Vec::new();
    for finding in walked.decisions.iter().filter_map(report) {
        if !findings.contains(&finding) {
            findings.push(finding);
        }
    }
    findings
}
