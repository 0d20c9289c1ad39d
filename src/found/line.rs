//! A rule with its chain as text: in iptables' syntax for the tables that iptables shows, in nft's for all others.

use std::fmt;
use std::ptr;

use crate::found::xtables::IptablesRule;
use crate::rules::name::Name;
use crate::rules::nftables::NftRule;
use crate::rules::rule::Rule;
use crate::rules::table::{Chain, Table};
use crate::wanted::mode::NAT;
use crate::wanted::ruleset::ChainName;

/// A rule of a chain of a table. Two are equal if they are the same rule in the same place, not if they are alike.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a> {
    /// The table; it decides the syntax.
    pub table: &'a Table,
    /// The chain.
    pub chain: &'a Chain,
    /// The rule.
    pub rule: &'a Rule,
}

impl PartialEq for Line<'_> {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self.rule, other.rule)
    }
}

impl Eq for Line<'_> {}

impl Line<'_> {
    /// The rule's place in its chain, from 1 on; none if it is another chain's.
    pub fn number(&self) -> Option<usize> {
        let rule = ptr::from_ref(self.rule);
        // How far it is from the first tells its place without looking at all of them; there may be thousands.
        let offset = rule.addr().checked_sub(self.chain.rules.as_ptr().addr())?;
        let index = offset / size_of::<Rule>();
        let is_it = ptr::eq(self.chain.rules.get(index)?, rule);
        is_it.then_some(index + 1)
    }
}

impl Table {
    /// The rules that lead to a chain of proxy-init's and aren't proxy-init's own jumps to it, in nat tables as xtables
    /// has them. Those within proxy-init's chains don't count.
    pub fn foreign_jumps(&self) -> impl Iterator<Item = Line<'_>> {
        let ours = |name: &Name| ChainName::from_name(name.as_bytes()).filter(|chain| chain.is_ours());
        let is_nat = self.is_xtables() && self.name == *NAT;
        let chains = self
            .chains
            .iter()
            .filter(move |chain| is_nat && ours(&chain.name).is_none());
        let lines = chains.flat_map(move |chain| {
            chain.rules.iter().map(move |rule| Line {
                table: self,
                chain,
                rule,
            })
        });
        lines.filter(|line| {
            let goal = line.rule.leads_to(self);
            goal.is_some_and(|goal| !line.rule.is_own_jump(&line.chain.name, goal))
        })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::examples::{chain, rule, table, to_port};
    use crate::rules::rule::Action;

    #[test]
    fn a_rule_is_found_in_its_own_chain_only() {
        let rules = vec![rule([to_port(80)], Action::Accept); 3];
        let (table, one, other) = (
            table("ip nat", vec![]),
            chain("ONE", rules.clone()),
            chain("TWO", rules),
        );
        let number = |chain, rule| {
            let table = &table;
            Line { table, chain, rule }.number()
        };
        for (index, rule) in one.rules.iter().enumerate() {
            assert_eq!(number(&one, rule), Some(index + 1));
            assert_eq!(number(&other, rule), None);
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
            let line = Line {
                table: &table(name, vec![]),
                chain: &chain,
                rule: &chain.rules[0],
            };
            assert_eq!(line.to_string(), text, "{name}");
        }
    }
}
