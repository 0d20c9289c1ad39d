//! Rules that are to be added. What a rule's expressions mean is in [`decode`](super::decode).

use std::fmt;

use nftnl::expr::{Counter, Verdict};
use nftnl::{Chain, MsgType, Rule as NftnlRule, Table};
use ruleset::nftables::{NftAction, NftCondition, NftEffect, NftRule};
use ruleset::xtables::IptablesRule;
use ruleset::{Action, Condition, Field, Rule, Set, TCP, TableFamily};

use super::uapi::*;
use super::{ChainId, Missing, TableId, c_string};
use super::{nftables, user_data, xtables};
use crate::netlink::message::{Unwritable, be32_attribute};
use crate::netlink::{Batch, Socket};

pub struct NewRule<'a> {
    pub table: TableId,
    pub chain: ChainId,
    pub rule: &'a Rule,
    pub sets: &'a [Set],
}

impl NewRule<'_> {
    pub(super) fn write(&self, batch: &mut Batch, table: &Table) -> Result<(), Unwritable> {
        let chain = Chain::new(c_string(self.chain.name)?, table);
        let mut rule = NftnlRule::new(&chain);
        self.add_expressions(&mut rule)?;
        let compat =
            [be32_attribute(NFTA_RULE_COMPAT_PROTO, TCP as u32), be32_attribute(NFTA_RULE_COMPAT_FLAGS, 0)].concat();
        let comment =
            self.rule.comment.as_ref().map(|comment| user_data::of_comment(comment.as_bytes())).transpose()?;
        let mut attributes = Vec::with_capacity(2);
        if self.is_for_tcp() {
            attributes.push((NFTA_RULE_COMPAT | libc::NLA_F_NESTED as u16, compat.as_slice()));
        }
        attributes.extend(comment.as_deref().map(|comment| (NFTA_RULE_USERDATA, comment)));
        batch.add(&rule, MsgType::Add, libc::NLM_F_CREATE | libc::NLM_F_APPEND, &attributes)
    }

    /// In the tables of one IP family as iptables-nft writes them, elsewhere as nft does. What they have no way to say is
    /// refused. A counter begins at 0.
    fn add_expressions(&self, to: &mut NftnlRule<'_>) -> Result<(), Unwritable> {
        let (rule, table) = (self.rule, self.table.family);
        if let Some(effect) = rule.effects.first() {
            return Err(Unwritable(NftEffect(effect).to_string()));
        }
        for condition in &rule.conditions {
            let added = match table {
                TableFamily::Ip(family) => xtables::add_condition(to, family, condition),
                _ => nftables::add_condition(to, self.sets, condition),
            };
            added.ok_or_else(|| Unwritable(NftCondition(condition).to_string()))?;
        }
        if let Some(lookup) = &rule.lookup {
            return Err(Unwritable(lookup.key.clone()));
        }
        if rule.counters.is_some() {
            to.add_expr(&Counter);
        }
        match (&rule.action, table) {
            (Action::Return, _) => to.add_expr(&Verdict::Return),
            (Action::Jump(chain), _) => to.add_expr(&Verdict::Jump { chain: c_string(chain.as_bytes())? }),
            (Action::Redirect(ports), TableFamily::Ip(family)) => xtables::add_redirect(to, family, *ports),
            (&Action::Redirect(Some((port, last))), _) if port == last => nftables::add_redirect(to, port),
            (other, _) => return Err(Unwritable(NftAction(other).to_string())),
        }
        Ok(())
    }

    /// The part that the kernel lacks for the rule, once it has answered ENOENT; none: not known.
    pub fn missing(&self, socket: &Socket) -> Option<Missing> {
        match self.table.family {
            TableFamily::Ip(family) => xtables::missing(socket, family, self.rule),
            _ => Some(nftables::missing(self.rule)),
        }
    }

    /// Returns true if the rule is written as iptables-nft would write it.
    pub fn is_of_xtables(&self) -> bool {
        matches!(self.table.family, TableFamily::Ip(_))
    }

    /// Then it declares the protocol to its xt extensions: multiport refuses a rule without that, even if an earlier
    /// expression compares the protocol.
    fn is_for_tcp(&self) -> bool {
        self.is_of_xtables() && self.rule.conditions.contains(&Condition::is(Field::Protocol, TCP))
    }
}

/// In the syntax of the tool that shows the table.
impl fmt::Display for NewRule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_of_xtables() { write!(f, "{:#}", IptablesRule(self.rule)) } else { NftRule(self.rule).fmt(f) }
    }
}
