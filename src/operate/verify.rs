//! Comparing what the kernel holds with what the flags ask for.

use std::fmt::{self, Write as _};

use serde_json::{Value, json};

use crate::backend::{Backend, FoundChain, FoundRule};
use crate::error::Error;
use crate::rules::config::Family;
use crate::rules::mode::Mode;
use crate::rules::ruleset::{Chain, ChainName, Rule, Ruleset};

/// One difference between what is wanted and what is there. Rules are in iptables' syntax, native mode's in nft's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// In whose table: `IPv4`, `IPv6`, or native mode's `inet`.
    pub family: String,
    /// In which chain, or native mode's set or table.
    pub chain: String,
    /// What is wrong.
    pub problem: Problem,
}

impl Finding {
    /// A table that isn't there.
    pub(crate) fn no_table(name: &str) -> Self {
        Self {
            family: "inet".to_owned(),
            chain: format!("table {name}"),
            problem: Problem::NoChain,
        }
    }
}

/// What is wrong in a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// The chain, or native mode's table, isn't there.
    NoChain,
    /// A rule isn't there.
    Missing(String),
    /// A rule is there that nobody asked for.
    Unexpected(String),
    /// A rule with the right comment says something else.
    Different {
        /// The rule that was asked for.
        wanted: String,
        /// The one that is there.
        found: String,
    },
    /// All rules are there, in another order.
    OutOfOrder {
        /// The rules in the right order.
        wanted: Vec<String>,
        /// As they are.
        found: Vec<String>,
    },
    /// The jump to our chain is there more than once.
    Doubled(String),
    /// An earlier rule keeps connections from the jump to our chain.
    Shadowed {
        /// Our jump.
        jump: String,
        /// The earlier rule.
        by: String,
    },
}

impl Problem {
    fn kind(&self) -> &'static str {
        match self {
            Problem::NoChain => "no-chain",
            Problem::Missing(_) => "missing",
            Problem::Unexpected(_) => "unexpected",
            Problem::Different { .. } => "different",
            Problem::OutOfOrder { .. } => "out-of-order",
            Problem::Doubled(_) => "doubled",
            Problem::Shadowed { .. } => "shadowed",
        }
    }

    /// What should be there, and what is.
    fn sides(&self) -> (Vec<&str>, Vec<&str>) {
        match self {
            Problem::NoChain => (vec![], vec![]),
            Problem::Missing(rule) => (vec![rule], vec![]),
            Problem::Unexpected(rule) | Problem::Doubled(rule) => (vec![], vec![rule]),
            Problem::Different { wanted, found } => (vec![wanted], vec![found]),
            Problem::OutOfOrder { wanted, found } => (
                wanted.iter().map(String::as_str).collect(),
                found.iter().map(String::as_str).collect(),
            ),
            Problem::Shadowed { jump, by } => (vec![jump], vec![by]),
        }
    }
}

/// As a diff: what is missing behind `-`, what is there instead behind `+`.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.problem {
            Problem::NoChain => "not there at all",
            Problem::Missing(_) => "missing",
            Problem::Unexpected(_) => "unexpected",
            Problem::Different { .. } => "different",
            Problem::OutOfOrder { .. } => "out of order",
            Problem::Doubled(_) => "there more than once",
            Problem::Shadowed { .. } => "shadowed: the rule behind + comes first and takes connections away",
        };
        writeln!(f, "{}, {}: {what}", self.family, self.chain)?;
        let (wanted, found) = self.problem.sides();
        for rule in wanted {
            writeln!(f, "  - {rule}")?;
        }
        for rule in found {
            writeln!(f, "  + {rule}")?;
        }
        Ok(())
    }
}

/// What a verification found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The backend that was looked at.
    pub mode: Mode,
    /// Every difference.
    pub findings: Vec<Finding>,
    /// Other backends with rules of ours.
    pub others: Vec<Mode>,
}

impl Verdict {
    /// Whether all is as asked.
    pub fn is_in_place(&self) -> bool {
        self.findings.is_empty() && self.others.is_empty()
    }

    /// For machines; docs/verify.md has the schema.
    pub fn json(&self) -> Value {
        let finding = |finding: &Finding| {
            let (wanted, found) = finding.problem.sides();
            json!({
                "family": finding.family,
                "chain": finding.chain,
                "kind": finding.problem.kind(),
                "wanted": wanted,
                "found": found,
            })
        };
        json!({
            "in_place": self.is_in_place(),
            "mode": self.mode.to_string(),
            "findings": self.findings.iter().map(finding).collect::<Vec<_>>(),
            "other_backends": self.others.iter().map(ToString::to_string).collect::<Vec<_>>(),
        })
    }
}

/// For people: one line if all is well, else each difference.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_in_place() {
            return writeln!(f, "in place: the rules in {} mode are as asked", self.mode);
        }
        writeln!(f, "not in place: in {} mode, - is asked for and + is there", self.mode)?;
        let mut text = String::new();
        for finding in &self.findings {
            write!(text, "\n{finding}")?;
        }
        for other in &self.others {
            writeln!(
                text,
                "\nrules of ours are in {other} mode too: `proxy-init uninstall` takes out all, --replace-other-backend \
                 those when installing"
            )?;
        }
        f.write_str(&text)
    }
}

/// Reads back what `backend` holds and compares it with the rulesets; `others` are looked at for rules of ours.
///
/// # Errors
/// The kernel can't be asked.
pub(crate) fn verify(
    backend: &dyn Backend,
    others: &[Box<dyn Backend>],
    rulesets: &[Ruleset],
) -> Result<Verdict, Error> {
    let findings = backend.differences(rulesets)?;
    let mut with_rules = Vec::new();
    for other in others {
        match other.held() {
            Ok(held) if held.ours => with_rules.push(other.mode()),
            Err(error) if !error.is_lack() => return Err(error),
            _ => {}
        }
    }
    Ok(Verdict {
        mode: backend.mode(),
        findings,
        others: with_rules,
    })
}

/// What differs in backends that hold xtables' rules; `read` reads a family's.
pub(crate) fn differences(
    rulesets: &[Ruleset],
    read: impl Fn(Family) -> Result<Vec<FoundChain>, Error>,
) -> Result<Vec<Finding>, Error> {
    let mut findings = Vec::new();
    for family in [Family::V4, Family::V6] {
        let found = read(family)?;
        let mut add = |chain: ChainName, problems: Vec<Problem>| {
            findings.extend(problems.into_iter().map(|problem| Finding {
                family: family.to_string(),
                chain: chain.to_string(),
                problem,
            }));
        };
        match rulesets.iter().find(|ruleset| ruleset.family == family) {
            Some(ruleset) => {
                for chain in &ruleset.chains {
                    let held = found.iter().find(|held| held.name == chain.name);
                    add(chain.name, compare(chain, held));
                }
            }
            // A family that shall have no rules of ours.
            None => {
                for chain in &found {
                    let ours = chain
                        .rules
                        .iter()
                        .filter(|rule| chain.name.is_ours() || rule.jumps_to_ours());
                    let unexpected = ours.map(|rule| Problem::Unexpected(line(chain.name, &rule.text)));
                    add(chain.name, unexpected.collect());
                }
            }
        }
    }
    Ok(findings)
}

/// A rule with its chain, in iptables' syntax.
fn line(chain: ChainName, rule: impl fmt::Display) -> String {
    format!("-A {chain} {rule}")
}

fn compare(chain: &Chain, held: Option<&FoundChain>) -> Vec<Problem> {
    let found = held.map(|held| held.rules.as_slice()).unwrap_or_default();
    if !chain.name.is_ours() {
        return chain
            .rules
            .iter()
            .flat_map(|jump| compare_jump(chain.name, jump, found))
            .collect();
    }
    if held.is_none() {
        return vec![Problem::NoChain];
    }
    let wanted: Vec<_> = chain.rules.iter().map(|rule| line(chain.name, rule)).collect();
    let found: Vec<_> = found.iter().map(|rule| line(chain.name, &rule.text)).collect();
    compare_texts(&wanted, &found)
}

/// What differs in a list of native mode's: a chain's rules, or a set's elements.
pub(crate) fn compare_lists(family: &str, chain: &str, wanted: &[String], found: &[String]) -> Vec<Finding> {
    let finding = |problem| Finding {
        family: family.to_owned(),
        chain: chain.to_owned(),
        problem,
    };
    compare_texts(wanted, found).into_iter().map(finding).collect()
}

/// Rules are compared by their text: that of a rule of ours tells all of it, and no other's is the same.
fn compare_texts(wanted: &[String], found: &[String]) -> Vec<Problem> {
    if wanted == found {
        return Vec::new();
    }
    let mut extra: Vec<&String> = found.iter().collect();
    let mut missing: Vec<&String> = Vec::new();
    for rule in wanted {
        match extra.iter().position(|found| *found == rule) {
            Some(index) => drop(extra.remove(index)),
            None => missing.push(rule),
        }
    }
    if missing.is_empty() && extra.is_empty() {
        return vec![Problem::OutOfOrder {
            wanted: wanted.to_vec(),
            found: found.to_vec(),
        }];
    }
    let mut problems = Vec::new();
    for rule in missing {
        let same_comment = |found: &&&String| comment(found).is_some() && comment(found) == comment(rule);
        match extra.iter().find(same_comment).copied() {
            Some(other) => {
                extra.retain(|found| !std::ptr::eq(*found, other));
                problems.push(Problem::Different {
                    wanted: rule.clone(),
                    found: other.clone(),
                });
            }
            None => problems.push(Problem::Missing(rule.clone())),
        }
    }
    problems.extend(extra.into_iter().cloned().map(Problem::Unexpected));
    problems
}

/// A rule's comment, in either syntax.
fn comment(rule: &str) -> Option<&str> {
    rule.split_once("comment \"")?.1.split('"').next()
}

/// Our jump among a base chain's rules.
fn compare_jump(chain: ChainName, jump: &Rule, found: &[FoundRule]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let is_jump = |found: &FoundRule| found.rule.as_ref() == Some(jump);
    match found.iter().filter(|found| is_jump(found)).count() {
        0 => problems.push(Problem::Missing(line(chain, jump))),
        1 => {}
        _ => problems.push(Problem::Doubled(line(chain, jump))),
    }
    let others = found.iter().filter(|found| found.jumps_to_ours() && !is_jump(found));
    problems.extend(others.map(|found| Problem::Unexpected(line(chain, &found.text))));
    if let Some(place) = found.iter().position(is_jump) {
        let earlier = found
            .iter()
            .take(place)
            .filter(|earlier| earlier.ends && earlier.takes_tcp);
        problems.extend(earlier.map(|earlier| Problem::Shadowed {
            jump: line(chain, jump),
            by: line(chain, &earlier.text),
        }));
    }
    problems
}
