//! A difference between expected and found rules, as a value, and its words.

use std::fmt;

use derive_more::Display;
use ruleset::{Direction, Family, Name, TableFamily};
use trace::{Leg, Treatment};

/// One difference between expected and found rules. Rules are in iptables' syntax, those of native mode in nft's.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Finding {
    pub(crate) family: TableFamily,
    pub(crate) subject: Subject,
    pub(crate) problem: Problem,
}

/// The subject of a [`Finding`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, Display)]
pub(crate) enum Subject {
    /// A table in which our rules are, or should be.
    #[display("table {_0}")]
    Table(String),
    /// A chain of that table.
    Chain(Name),
    /// A set of native mode's table.
    #[display("set {_0}")]
    Set(Name),
    /// A chain of another program's table.
    #[display("{_0} {_1}")]
    Other(String, Name),
}

impl Finding {
    /// The family of the table: `IPv4`, `IPv6`, or native mode's `inet`.
    pub fn family(&self) -> String {
        self.family.title()
    }

    /// The chain, or native mode's set or table.
    pub fn chain(&self) -> String {
        self.subject.to_string()
    }

    /// The kind of the difference.
    pub fn kind(&self) -> FindingKind {
        self.problem.kind()
    }

    /// Returns true if the finding is about hosts that a rule keeps out.
    pub(crate) fn is_barring(&self) -> bool {
        matches!(self.problem, Problem::Barred { .. })
    }
}

/// The kind of a [`Finding`]'s difference. Its text is the word that docs/commands.md explains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Display)]
#[non_exhaustive]
#[display(rename_all = "kebab-case")]
pub enum FindingKind {
    /// The family has none of our rules.
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
    /// The jump to our chain was found more than once.
    Doubled,
    /// Another program's rule keeps connections from our chain.
    Shadowed,
    /// The base chain's policy drops connections that bypass the proxy.
    Policy,
    /// Another program's rule drops connections that our rules have redirected.
    Dropped,
}

/// The difference and its subject, by [`FindingKind`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Problem {
    /// With how many are expected.
    NoRules(usize),
    NoTable,
    NoChain,
    Dormant,
    NotHooked,
    Missing(String),
    Unexpected(String),
    Different {
        expected: String,
        found: String,
    },
    OutOfOrder {
        expected: Vec<String>,
        found: Vec<String>,
    },
    Doubled(String),
    /// `by` is the other rule, or the policy. If it isn't certain, it depends on something that isn't understood.
    Shadowed {
        /// The jump to our chain; none if there is none.
        jump: Option<String>,
        by: String,
        treatment: Treatment,
        connections: String,
        certain: bool,
    },
    Policy,
    Dropped {
        by: String,
        connections: String,
        /// The client's, or the reply.
        packet: Leg,
        certain: bool,
        /// The connections are those that the proxy makes.
        is_onward: bool,
    },
    /// Another rule drops packets from or to hosts that it names, as a firewall does that keeps these out.
    Barred {
        by: String,
        connections: String,
    },
    /// Another rule drops packets of neighbour discovery, before the first packet of any connection.
    Undiscovered {
        family: Family,
        by: String,
        /// The command that lets them through; none if a rule loses them by changing them.
        admit: Option<String>,
        packet: Leg,
        /// The direction of the question: inbound, the neighbour asks.
        direction: Direction,
    },
}

impl Problem {
    pub fn kind(&self) -> FindingKind {
        match self {
            Problem::NoRules(_) => FindingKind::NoRules,
            Problem::NoTable | Problem::NoChain => FindingKind::NoChain,
            Problem::Dormant => FindingKind::Dormant,
            Problem::NotHooked => FindingKind::NotHooked,
            Problem::Missing(_) => FindingKind::Missing,
            Problem::Unexpected(_) => FindingKind::Unexpected,
            Problem::Different { .. } => FindingKind::Different,
            Problem::OutOfOrder { .. } => FindingKind::OutOfOrder,
            Problem::Doubled(_) => FindingKind::Doubled,
            Problem::Shadowed { .. } => FindingKind::Shadowed,
            Problem::Policy => FindingKind::Policy,
            Problem::Dropped { .. } | Problem::Barred { .. } | Problem::Undiscovered { .. } => FindingKind::Dropped,
        }
    }

    /// Returns true if the finding is about other programs' rules, while ours are as they should be.
    pub fn is_about_others(&self) -> bool {
        matches!(self.kind(), FindingKind::Shadowed | FindingKind::Policy | FindingKind::Dropped)
    }

    /// Returns true if the finding is only a warning: connections reach the proxy, except perhaps by something unknown,
    /// or from hosts that a rule keeps out.
    pub fn is_warning(&self) -> bool {
        matches!(self, Problem::Dropped { certain: false, .. } | Problem::Barred { .. })
    }

    /// Returns true if the finding is that more undecided rules were found than are followed.
    pub(super) fn is_unfollowed(&self) -> bool {
        matches!(self, Problem::Shadowed { treatment: Treatment::Unfollowed, .. })
    }

    pub fn connections_mut(&mut self) -> Option<&mut String> {
        match self {
            Problem::Shadowed { connections, .. }
            | Problem::Dropped { connections, .. }
            | Problem::Barred { connections, .. } => Some(connections),
            _ => None,
        }
    }

    /// The rules that are expected, and those that were found instead.
    pub fn sides(&self) -> (Vec<&str>, Vec<&str>) {
        match self {
            Problem::NoRules(_)
            | Problem::NoTable
            | Problem::NoChain
            | Problem::Dormant
            | Problem::NotHooked
            | Problem::Policy => (vec![], vec![]),
            Problem::Missing(rule) => (vec![rule], vec![]),
            Problem::Unexpected(rule) | Problem::Doubled(rule) => (vec![], vec![rule]),
            Problem::Different { expected, found } => (vec![expected], vec![found]),
            Problem::OutOfOrder { expected, found } => {
                (expected.iter().map(String::as_str).collect(), found.iter().map(String::as_str).collect())
            }
            Problem::Shadowed { jump, by, .. } => (jump.iter().map(String::as_str).collect(), vec![by]),
            Problem::Dropped { by, .. } | Problem::Barred { by, .. } => (vec![], vec![by]),
            Problem::Undiscovered { by, admit, .. } => (admit.iter().map(String::as_str).collect(), vec![by]),
        }
    }

    /// The difference in words; `rule` stands for the other program's rule.
    fn words(&self, rule: &str) -> String {
        let does = |verb: &str, certain: &bool| {
            if *certain { format!("{rule} {verb}s") } else { format!("{rule} may {verb}") }
        };
        let words = match self {
            Problem::NoRules(rules) => return format!("all {rules} rules are missing"),
            Problem::NoTable | Problem::NoChain => "not found",
            Problem::Dormant => "the table is dormant: none of its chains is hooked",
            Problem::NotHooked => "the chain is not hooked where it should be, so it sees no connection",
            Problem::Missing(_) => "missing",
            Problem::Unexpected(_) => "unexpected",
            Problem::Different { .. } => "different",
            Problem::OutOfOrder { .. } => "out of order",
            Problem::Doubled(_) => "found more than once",
            Problem::Policy => "the chain's policy drops the connections that bypass the proxy",
            Problem::Shadowed { treatment, connections, certain, .. } => {
                let does = match treatment {
                    Treatment::NotUnderstood => format!("{rule} may take connections away (it is not understood)"),
                    Treatment::Unfollowed => {
                        format!("{rule} may take connections away (it leads to too many undecided rules)")
                    }
                    Treatment::Accepted => does("let", certain) + " connections pass by",
                    Treatment::Translated => does("redirect", certain) + " connections",
                    Treatment::Dropped => does("drop", certain) + " connections",
                    Treatment::Untracked => does("keep", certain) + " connections from being redirected",
                };
                return format!("{does}: {connections}");
            }
            Problem::Undiscovered { family, packet, direction, .. } => {
                let what = match (family, packet) {
                    (Family::V4, Leg::Advertisement) => "ARP's replies",
                    (Family::V4, _) => "ARP's requests",
                    (Family::V6, Leg::Advertisement) => "neighbour advertisements (ICMPv6 136)",
                    (Family::V6, _) => "neighbour solicitations (ICMPv6 135)",
                };
                let so = match direction {
                    Direction::Inbound => format!("no neighbour finds an {family} address of this network namespace"),
                    Direction::Outbound => format!("this network namespace finds no neighbour over {family}"),
                };
                return format!("{rule} drops {what}, so {so}");
            }
            Problem::Barred { connections, .. } => {
                return format!("{rule} keeps out hosts that it names: {connections}");
            }
            Problem::Dropped { connections, packet, certain, is_onward, .. } => {
                let what = match (packet, is_onward) {
                    (Leg::Reply, false) => "the replies to connections that were redirected",
                    (Leg::Reply, true) => "the replies to connections from the proxy",
                    (_, false) => "connections that were redirected",
                    (_, true) => "connections from the proxy",
                };
                return format!("{} {what}: {connections}", does("drop", certain));
            }
        };
        words.to_owned()
    }

    /// The same, with the remedy, if there is one.
    fn with_remedy(&self, rule: &str) -> String {
        let words = self.words(rule);
        match self {
            Problem::Undiscovered { admit: Some(_), .. } => format!("{words}; the command marked - lets them through"),
            Problem::Undiscovered { admit: None, .. } => format!("{words}; they need a hop limit of 255"),
            _ => words,
        }
    }

    /// The same, with the kind before the other program's deed.
    fn in_full(&self, rule: &str) -> String {
        let words = self.with_remedy(rule);
        match self {
            Problem::Shadowed { .. } | Problem::Dropped { .. } | Problem::Undiscovered { .. } => {
                format!("{}: {words}", self.kind())
            }
            _ => words,
        }
    }
}

impl Finding {
    /// As a sentence: the place, the defect, and the rules that were found or, if there are none, those that are
    /// missing.
    pub fn in_a_line(&self) -> String {
        self.sentence(&self.problem.in_full("a rule"))
    }

    /// The same, without the kind, for where that is said already.
    pub(crate) fn without_kind(&self) -> String {
        self.sentence(&self.problem.with_remedy("a rule"))
    }

    fn sentence(&self, defect: &str) -> String {
        let text = format!("{}, {}: {defect}", self.family(), self.subject);
        let (expected, found) = self.problem.sides();
        let rules = if found.is_empty() { expected } else { found };
        if rules.is_empty() {
            return text;
        }
        format!("{text} ({})", rules.join("; "))
    }

    /// The effect of another program's rule on connections, without the rule; none if the finding is about our rules.
    pub(crate) fn interference(&self) -> Option<String> {
        let is_about_others = self.problem.is_about_others();
        is_about_others.then(|| format!("{}, {}: {}", self.family(), self.subject, self.problem.words("a rule")))
    }
}

/// As a diff: missing rules after `-`, the rules found instead after `+`.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, {}: {}", self.family(), self.subject, self.problem.in_full("the rule marked +"))?;
        let (expected, found) = self.problem.sides();
        let is_before = matches!(self.problem, Problem::Shadowed { .. });
        for rule in expected.iter().filter(|_| !is_before) {
            writeln!(f, "  - {rule}")?;
        }
        for rule in found {
            writeln!(f, "  + {rule}")?;
        }
        // That rule isn't missing.
        for rule in expected.iter().filter(|_| is_before) {
            writeln!(f, "  before {rule}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_have_names_and_sides_and_words() {
        let text = |text: &str| text.to_owned();
        let shadowed = |jump: Option<&str>, treatment, certain| Problem::Shadowed {
            jump: jump.map(text),
            by: text("b"),
            treatment,
            connections: text("to port 80"),
            certain,
        };
        let different = Problem::Different { expected: text("a"), found: text("b") };
        let order = Problem::OutOfOrder { expected: vec![text("a"), text("b")], found: vec![text("b"), text("a")] };
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
            (shadowed(Some("a"), Treatment::Accepted, true), "shadowed", a, b.clone()),
            (shadowed(None, Treatment::Accepted, true), "shadowed", vec![], b),
        ] {
            assert_eq!(problem.kind().to_string(), kind);
            assert_eq!(problem.sides(), (expected, found), "{kind}");
        }
        let of_others: Vec<FindingKind> =
            [shadowed(None, Treatment::Dropped, true), Problem::Policy, Problem::NoChain, Problem::NoRules(6)]
                .iter()
                .filter(|problem| problem.is_about_others())
                .map(Problem::kind)
                .collect();
        assert_eq!(of_others, [FindingKind::Shadowed, FindingKind::Policy]);
        assert_eq!(Problem::NoRules(6).kind().to_string(), "no-rules");
        for (treatment, certain, does) in [
            (Treatment::Accepted, true, "lets connections pass by"),
            (Treatment::Translated, true, "redirects connections"),
            (Treatment::Dropped, true, "drops connections"),
            (Treatment::Untracked, true, "keeps connections from being redirected"),
            (Treatment::NotUnderstood, false, "may take connections away (it is not understood)"),
            (Treatment::Unfollowed, false, "may take connections away (it leads to too many undecided rules)"),
            (Treatment::Accepted, false, "may let connections pass by"),
            (Treatment::Translated, false, "may redirect connections"),
            (Treatment::Dropped, false, "may drop connections"),
            (Treatment::Untracked, false, "may keep connections from being redirected"),
        ] {
            let words = shadowed(None, treatment, certain).words("the rule marked +");
            assert_eq!(words, format!("the rule marked + {does}: to port 80"));
        }
    }

    #[test]
    fn what_drops_redirected_connections_is_a_finding_or_only_a_warning() {
        let of = |packet, certain| Finding {
            family: TableFamily::Ip(Family::V4),
            subject: Subject::Other("ip mine".to_owned(), Name::from("late")),
            problem: Problem::Dropped {
                by: "drop".to_owned(),
                connections: "to port 80".to_owned(),
                packet,
                certain,
                is_onward: false,
            },
        };
        for (packet, certain, words) in [
            (Leg::First, true, "drops connections that were redirected"),
            (Leg::Ack, true, "drops connections that were redirected"),
            (Leg::Reply, true, "drops the replies to connections that were redirected"),
            (Leg::First, false, "may drop connections that were redirected"),
            (Leg::Reply, false, "may drop the replies to connections that were redirected"),
        ] {
            let finding = of(packet, certain);
            let said = format!("IPv4, ip mine late: dropped: the rule marked + {words}: to port 80");
            assert_eq!(finding.to_string(), format!("{said}\n  + drop\n"));
            let in_a_line = said.replace("the rule marked +", "a rule");
            assert_eq!(finding.in_a_line(), format!("{in_a_line} (drop)"));
            let of = |problem| Finding { problem, ..finding.clone() };
            let missing = of(Problem::Missing("return".to_owned())).in_a_line();
            assert_eq!(missing, "IPv4, ip mine late: missing (return)");
            assert_eq!(of(Problem::NoChain).in_a_line(), "IPv4, ip mine late: not found");
            assert_eq!(finding.kind(), FindingKind::Dropped);
            assert_eq!(finding.problem.is_warning(), !certain);
            assert!(finding.problem.is_about_others());
        }
        assert!(!Problem::NoChain.is_warning());
    }
}
