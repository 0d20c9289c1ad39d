//! Rules that are to be added. What a rule's expressions mean is in [`meaning`](super::meaning).

use std::fmt;

use ruleset::nftables::{NftAction, NftCondition, NftRule};
use ruleset::xtables::IptablesRule;
use ruleset::{Action, Condition, Counters, Field, Rule, Set, TCP, TableFamily};

use super::expression::{Counter, Expression};
use super::uapi::*;
use super::{ChainId, Missing, TableId};
use super::{nftables, user_data, xtables};
use crate::netlink::message::Writer;
use crate::netlink::{Batch, Socket};

pub struct NewRule<'a> {
    pub table: TableId,
    pub chain: ChainId,
    pub rule: &'a Rule,
    pub sets: &'a [Set],
    /// The handle of the rule before which it comes; without one, it comes last.
    pub before: Option<u64>,
}

impl NewRule<'_> {
    pub(super) fn write(&self, batch: &mut Batch) {
        // Without NLM_F_APPEND, a position is that of the rule before which it comes (nf_tables_newrule).
        let append = if self.before.is_none() { libc::NLM_F_APPEND } else { 0 };
        let flags = libc::NLM_F_CREATE | append;
        self.table.message(batch, libc::NFT_MSG_NEWRULE, flags, |to| {
            to.string(NFTA_RULE_CHAIN, self.chain.name);
            if let Some(handle) = self.before {
                to.be64(NFTA_RULE_POSITION, handle);
            }
            to.nest(NFTA_RULE_EXPRESSIONS, |list| self.write_expressions(list));
            if self.is_for_tcp() {
                to.nest(NFTA_RULE_COMPAT, |compat| {
                    compat.be32(NFTA_RULE_COMPAT_PROTO, libc::IPPROTO_TCP as u32);
                    compat.be32(NFTA_RULE_COMPAT_FLAGS, 0);
                });
            }
            if let Some(comment) = &self.rule.comment {
                user_data::write_comment(to, NFTA_RULE_USERDATA, comment.as_bytes());
            }
        });
    }

    /// In the tables of one IP family as iptables-nft writes them, elsewhere as nft does. What they have no way to say is
    /// refused.
    fn write_expressions(&self, list: &mut Writer) {
        let (rule, table) = (self.rule, self.table.family);
        for effect in &rule.effects {
            list.refuse(effect.text().to_owned());
        }
        for condition in &rule.conditions {
            let written = match table {
                TableFamily::Ip(family) => xtables::write_condition(list, family, condition),
                _ => nftables::write_condition(list, self.sets, condition),
            };
            if written.is_none() {
                list.refuse(NftCondition(condition).to_string());
            }
        }
        if let Some(Counters { packets, bytes }) = rule.counters {
            Expression::Counter(Counter { packets, bytes }).write(list);
        }
        match (&rule.action, table) {
            (Action::Return, _) => Expression::decide(libc::NFT_RETURN, None).write(list),
            (Action::Jump(chain), _) => Expression::decide(libc::NFT_JUMP, Some(chain.as_bytes())).write(list),
            (Action::Redirect(ports), TableFamily::Ip(family)) => xtables::write_redirect(list, family, *ports),
            (Action::Redirect(ports), _) if nftables::write_redirect(list, *ports).is_some() => {}
            (other, _) => list.refuse(NftAction(other).to_string()),
        }
    }

    /// What the kernel lacks for the rule, once it has answered ENOENT; none if nothing that is known.
    pub fn missing(&self, socket: &Socket) -> Option<Missing> {
        match self.table.family {
            TableFamily::Ip(family) => xtables::missing(socket, family, self.rule),
            _ => Some(nftables::missing(self.rule)),
        }
    }

    /// Whether it is written as iptables-nft would write it.
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
