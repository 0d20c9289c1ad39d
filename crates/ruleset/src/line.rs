//! A rule with its chain as text: in iptables' syntax for the tables that iptables shows, in nft's for all others.

use std::fmt;

use crate::nftables::{NftCondition, NftRule};
use crate::xtables::IptablesRule;
use crate::{Action, Chain, Condition, Effect, Rule, Table};

/// A rule of a chain of a table. Two are equal if they are the same rule in the same place, not if they say the same.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a> {
    /// The table; it decides the syntax.
    pub table: &'a Table,
    pub chain: &'a Chain,
    pub rule: &'a Rule,
    /// The rule's place in its chain, from 1 on.
    pub number: usize,
}

impl PartialEq for Line<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number && self.chain.name == other.chain.name && self.table.is(other.table)
    }
}

impl Eq for Line<'_> {}

impl<'a> Line<'a> {
    /// The rules of a chain of a table, first to last.
    pub fn all(table: &'a Table, chain: &'a Chain) -> impl Iterator<Item = Self> {
        let numbered = chain.rules.iter().zip(1..);
        numbered.map(move |(rule, number)| Self { table, chain, rule, number })
    }
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.table.is_xtables() {
            write!(f, "-A {} {}", self.chain.name, IptablesRule(self.rule))
        } else {
            write!(f, "{}", NftRule(self.rule))
        }
    }
}

impl Table {
    /// A condition in the syntax of this table.
    pub fn condition_in_syntax(&self, condition: &Condition) -> String {
        if self.is_xtables() {
            let rule = Rule::new(vec![condition.clone()], Action::Continue);
            return IptablesRule(&rule).to_string().trim_end().to_owned();
        }
        NftCondition(condition).to_string()
    }

    /// The effects and the action of a rule, in the syntax of this table; iptables' `-j` is left out.
    pub fn action_in_syntax(&self, effects: &[Effect], action: &Action) -> String {
        let rule = Rule { effects: effects.to_vec(), ..Rule::new(Vec::new(), action.clone()) };
        if self.is_xtables() {
            let words = IptablesRule(&rule).to_string();
            return words.strip_prefix("-j ").unwrap_or(&words).to_owned();
        }
        NftRule(&rule).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{chain, rule, table, to_port};

    #[test]
    fn a_rule_is_the_same_only_in_its_own_place() {
        let rules = || vec![rule([to_port(80)], Action::Accept); 2];
        let named = |name| table(name, vec![chain("ONE", rules()), chain("TWO", rules())]);
        let tables = [named("ip nat"), named("ip mine"), named("ip6 nat"), named("legacy ip nat")];
        let lines = tables.iter().flat_map(|table| {
            let chains = table.chains.iter();
            chains.flat_map(move |chain| Line::all(table, chain))
        });
        let lines: Vec<Line<'_>> = lines.collect();
        assert_eq!(lines.len(), 16);
        assert_eq!(lines.iter().map(|line| line.number).max(), Some(2));
        for (index, one) in lines.iter().enumerate() {
            for (other, line) in lines.iter().enumerate() {
                assert_eq!(one == line, index == other);
            }
        }
    }

    #[test]
    fn the_table_decides_the_syntax() {
        let chain = chain("OUTPUT", vec![rule([to_port(80)], Action::Accept)]);
        for (name, text) in [
            ("ip nat", "-A OUTPUT -m tcp --dport 80 -j ACCEPT"),
            ("legacy ip6 filter", "-A OUTPUT -m tcp --dport 80 -j ACCEPT"),
            ("inet nat", "tcp dport 80 accept"),
            ("ip mine", "tcp dport 80 accept"),
        ] {
            let table = table(name, vec![]);
            let line = Line::all(&table, &chain).next().unwrap();
            assert_eq!(line.to_string(), text, "{name}");
        }
    }
}
