//! A rule with its chain as text: in iptables' syntax for the tables that iptables shows, in nft's for all others.

use std::fmt;

use crate::rules::found::{Chain, Rule, Table};
use crate::rules::nftables::NftRule;
use crate::rules::xtables::IptablesRule;

/// A rule of a chain of a table.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a> {
    /// The table; it decides the syntax.
    pub table: &'a Table,
    /// The chain.
    pub chain: &'a Chain,
    /// The rule.
    pub rule: &'a Rule,
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
