//! A difference between expected and found rules, as a value, and its words.

use std::fmt;

use derive_more::Display;
use ruleset::{Name, Table, TableFamily};
use trace::Treatment;

/// One difference between expected and found rules, or another program's rule in the way of ours. Rules are in iptables'
/// syntax, those of native mode in nft's.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Finding {
    pub(crate) family: TableFamily,
    pub(crate) subject: Subject,
    pub(crate) kind: FindingKind,
    /// The difference in words; of another program's rule, what it does.
    pub(crate) words: String,
    /// The rules that are expected; beside another program's rule, the jump to our chain, before which it runs.
    pub(crate) wanted: Vec<String>,
    /// The rules that were found instead; of another program, its rule or its policy.
    pub(crate) found: Vec<String>,
    /// The connections with which another program's rule interferes.
    pub(crate) interference: Option<Interference>,
    /// The cure, in words that end the difference's.
    pub(crate) remedy: &'static str,
}

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

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Interference {
    /// None if there is no connection before it: then the finding's words say all.
    pub(crate) connections: Option<String>,
    /// If it isn't certain, it depends on something that isn't understood.
    pub(crate) is_certain: bool,
    /// The rule leads to more undecided rules than are followed.
    pub(crate) is_unfollowed: bool,
    /// The rule drops packets from or to hosts that it names, as a firewall does that keeps these out.
    pub(crate) is_barring: bool,
    /// The connections are those that the proxy makes.
    pub(crate) is_from_proxy: bool,
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

impl FindingKind {
    /// The words of a difference that need no more than its kind.
    fn words(self) -> &'static str {
        match self {
            Self::NoRules => "all rules are missing",
            Self::NoChain => "not found",
            Self::Dormant => "the table is dormant: none of its chains is hooked",
            Self::NotHooked => "the chain is not hooked where it should be, so it sees no connection",
            Self::Missing => "missing",
            Self::Unexpected => "unexpected",
            Self::Different => "different",
            Self::OutOfOrder => "out of order",
            Self::Doubled => "found more than once",
            Self::Shadowed => "takes connections away",
            Self::Policy => "the chain's policy drops the connections that bypass the proxy",
            Self::Dropped => "drops connections",
        }
    }
}

/// A treatment of connections by another program's rule, in words after the rule.
pub(crate) fn deed(treatment: Treatment, is_certain: bool, what: &str) -> String {
    let (verb, end) = match treatment {
        Treatment::NotUnderstood => return format!("may take {what} away (it is not understood)"),
        Treatment::Unfollowed => return format!("may take {what} away (it leads to too many undecided rules)"),
        Treatment::Accepted => ("let", " pass by"),
        Treatment::Translated => ("redirect", ""),
        Treatment::Dropped => ("drop", ""),
        Treatment::Untracked => ("keep", " from being redirected"),
    };
    if is_certain { format!("{verb}s {what}{end}") } else { format!("may {verb} {what}{end}") }
}

impl Finding {
    /// A finding about a table of our rules.
    pub(super) fn new(table: &Table, subject: Subject, kind: FindingKind) -> Self {
        Self {
            family: table.family,
            subject,
            kind,
            words: kind.words().to_owned(),
            wanted: Vec::new(),
            found: Vec::new(),
            interference: None,
            remedy: "",
        }
    }

    /// The family of the table: `IPv4`, `IPv6`, or native mode's `inet`.
    pub fn family(&self) -> String {
        self.family.title()
    }

    /// The chain, or native mode's set or table.
    pub fn chain(&self) -> String {
        self.subject.to_string()
    }

    pub fn kind(&self) -> FindingKind {
        self.kind
    }

    /// Returns true if the finding is about hosts that a rule keeps out.
    pub(crate) fn is_barring(&self) -> bool {
        self.interference.as_ref().is_some_and(|interference| interference.is_barring)
    }

    /// Returns true if the finding is about other programs' rules, while ours are as they should be.
    pub(crate) fn is_about_others(&self) -> bool {
        matches!(self.kind, FindingKind::Shadowed | FindingKind::Policy | FindingKind::Dropped)
    }

    /// Returns true if the finding is only a warning: connections reach the proxy, except perhaps by something unknown,
    /// or from hosts that a rule keeps out.
    pub(crate) fn is_warning(&self) -> bool {
        let is_doubtful = |interference: &Interference| !interference.is_certain || interference.is_barring;
        self.kind == FindingKind::Dropped && self.interference.as_ref().is_some_and(is_doubtful)
    }

    /// The difference in words; `rule` stands for the other program's rule.
    fn words(&self, rule: &str) -> String {
        match &self.interference {
            Some(Interference { connections: Some(connections), .. }) => {
                format!("{rule} {}: {connections}", self.words)
            }
            Some(Interference { connections: None, .. }) => format!("{rule} {}", self.words),
            None => self.words.clone(),
        }
    }

    /// The same with the remedy, and with the kind before the other program's deed.
    fn in_full(&self, rule: &str) -> String {
        let kind =
            if self.interference.is_some() && !self.is_barring() { format!("{}: ", self.kind) } else { String::new() };
        format!("{kind}{}{}", self.words(rule), self.remedy)
    }

    /// As a sentence: the place, the defect, and the rules that were found or, if there are none, those that are
    /// missing.
    pub fn in_a_line(&self) -> String {
        self.sentence(&self.in_full("a rule"))
    }

    /// The same, without the kind, for where that is said already.
    pub(crate) fn without_kind(&self) -> String {
        self.sentence(&(self.words("a rule") + self.remedy))
    }

    fn sentence(&self, defect: &str) -> String {
        let text = format!("{}, {}: {defect}", self.family(), self.subject);
        let rules = if self.found.is_empty() { &self.wanted } else { &self.found };
        if rules.is_empty() {
            return text;
        }
        format!("{text} ({})", rules.join("; "))
    }

    /// The effect of another program's rule on connections, without the rule; none if the finding is about our rules.
    pub(crate) fn interference(&self) -> Option<String> {
        self.is_about_others().then(|| format!("{}, {}: {}", self.family(), self.subject, self.words("a rule")))
    }
}

/// As a diff: missing rules after `-`, the rules found instead after `+`.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, {}: {}", self.family(), self.subject, self.in_full("the rule marked +"))?;
        // The jump before which another program's rule runs isn't missing.
        let is_before = self.kind == FindingKind::Shadowed;
        for rule in self.wanted.iter().filter(|_| !is_before) {
            writeln!(f, "  - {rule}")?;
        }
        for rule in &self.found {
            writeln!(f, "  + {rule}")?;
        }
        for rule in self.wanted.iter().filter(|_| is_before) {
            writeln!(f, "  before {rule}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ruleset::{Family, testing};

    use super::*;

    #[test]
    fn deeds_are_told_by_treatment_and_certainty() {
        for (treatment, is_certain, words) in [
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
            assert_eq!(deed(treatment, is_certain, "connections"), words);
        }
    }

    #[test]
    fn what_drops_redirected_connections_is_a_finding_or_only_a_warning() {
        let table = testing::table("ip mine", vec![]);
        for is_certain in [true, false] {
            let connections = Some("to port 80".to_owned());
            let interference = Interference { connections, is_certain, ..Interference::default() };
            let finding = Finding {
                words: deed(Treatment::Dropped, is_certain, "connections that were redirected"),
                found: vec!["drop".to_owned()],
                interference: Some(interference),
                ..Finding::new(&table, Subject::Other("ip mine".to_owned(), Name::from("late")), FindingKind::Dropped)
            };
            let does = if is_certain { "drops" } else { "may drop" };
            let said = format!("{does} connections that were redirected: to port 80");
            let place = format!("{}, ip mine late: dropped:", Family::V4);
            assert_eq!(finding.to_string(), format!("{place} the rule marked + {said}\n  + drop\n"));
            assert_eq!(finding.in_a_line(), format!("{place} a rule {said} (drop)"));
            assert_eq!(finding.is_warning(), !is_certain);
            assert!(finding.is_about_others());
        }
        let chain = || Subject::Chain(Name::from("OUTPUT"));
        let missing =
            Finding { wanted: vec!["return".to_owned()], ..Finding::new(&table, chain(), FindingKind::Missing) };
        assert_eq!(missing.in_a_line(), "IPv4, OUTPUT: missing (return)");
        let not_found = Finding::new(&table, chain(), FindingKind::NoChain);
        assert_eq!(not_found.in_a_line(), "IPv4, OUTPUT: not found");
        assert!(!not_found.is_warning() && !not_found.is_about_others());
        assert_eq!(FindingKind::OutOfOrder.to_string(), "out-of-order");
    }
}
