//! Rules that are to be added, and the messages that add and delete rules. What a rule's expressions mean is in
//! [`meaning`](super::meaning).

use std::fmt;

use super::expression::{Expression, Verdict};
use super::uapi::*;
use super::user_data;
use super::{ChainId, TableId};
use crate::netlink::message::Writer;
use crate::netlink::{Batch, Change, Socket};
use crate::rules::nftables::{NftAction, NftCondition, NftRule};
use crate::rules::xtables::IptablesRule;
use crate::rules::{Action, Condition, Counters, Field, Rule, Set, TCP, TableFamily};

/// A rule, to be added to a chain.
pub(crate) struct NewRule<'a> {
    pub(crate) table: TableId,
    pub(crate) chain: ChainId,
    pub(crate) rule: &'a Rule,
    /// Those of the table.
    pub(crate) sets: &'a [Set],
    /// How it is written.
    pub(crate) dialect: &'static dyn Dialect,
    /// The handle of the rule before which it comes; without one, it comes last.
    pub(crate) before: Option<u64>,
}

/// How a mode writes rules as expressions. What it writes is read back as the same rule.
pub(crate) trait Dialect: Sync {
    /// Adds a rule's expressions; what it has no expressions for, it refuses.
    fn write(&self, new: &NewRule<'_>, expressions: &mut Writer);
    /// What the kernel lacks for the rule, once it has answered ENOENT: the thing, its module, and the kernel option.
    fn missing(&self, socket: &Socket, family: TableFamily, rule: &Rule) -> Option<Missing>;
}

/// What a kernel lacks: the thing, its module, and the kernel option.
pub(crate) type Missing = (String, &'static str, &'static str);

impl NewRule<'_> {
    /// Adds the message that adds it.
    pub(super) fn write(&self, batch: &mut Batch) {
        // Without NLM_F_APPEND, a position is that of the rule before which it comes (nf_tables_newrule).
        let change = self.before.map_or(Change::Append, |_| Change::Add);
        self.table.message(batch, libc::NFT_MSG_NEWRULE, change, |to| {
            to.string(NFTA_RULE_CHAIN, self.chain.name);
            if let Some(handle) = self.before {
                to.be64(NFTA_RULE_POSITION, handle);
            }
            to.nest(NFTA_RULE_EXPRESSIONS, |list| self.dialect.write(self, list));
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

    /// Whether it is written as iptables-nft would write it.
    pub(crate) fn is_of_xtables(&self) -> bool {
        matches!(self.table.family, TableFamily::Ip(_))
    }

    /// Whether it is a rule of xtables' for TCP: then it declares the protocol to the xt extensions in it. The multiport
    /// match refuses a rule without that declaration, even if an earlier expression compares the protocol.
    fn is_for_tcp(&self) -> bool {
        self.is_of_xtables() && self.rule.conditions.contains(&Condition::is(Field::Protocol, TCP))
    }
}

/// In the syntax of the tool that shows the table.
impl fmt::Display for NewRule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_of_xtables() {
            true => write!(f, "{:#}", IptablesRule(self.rule)),
            false => NftRule(self.rule).fmt(f),
        }
    }
}

/// Writes all of a rule, whatever the dialect: these write a condition, and where the connection is redirected to. Each
/// returns none for what it has no expressions for, which is refused, as is everything else that no dialect writes.
pub(crate) fn write_rule(
    list: &mut Writer,
    rule: &Rule,
    condition: impl Fn(&mut Writer, &Condition) -> Option<()>,
    redirect: impl FnOnce(&mut Writer, Option<(u16, u16)>) -> Option<()>,
) {
    for effect in &rule.effects {
        list.refuse(effect.text().to_owned());
    }
    for one in &rule.conditions {
        if condition(list, one).is_none() {
            list.refuse(NftCondition(one).to_string());
        }
    }
    if let Some(Counters { packets, bytes }) = rule.counters {
        Expression::Counter { packets, bytes }.write(list);
    }
    match &rule.action {
        Action::Return => Expression::decide(Verdict::Return).write(list),
        Action::Jump(chain) => Expression::decide(Verdict::Jump(chain.as_bytes())).write(list),
        Action::Redirect(ports) if redirect(list, *ports).is_some() => {}
        other => list.refuse(NftAction(other).to_string()),
    }
}

/// Deletes the rule of a chain that has this handle or, without a handle, all of the chain's rules.
pub(super) fn delete(batch: &mut Batch, table: TableId, chain: &[u8], handle: Option<u64>) {
    table.message(batch, libc::NFT_MSG_DELRULE, Change::Delete, |to| {
        to.string(NFTA_RULE_CHAIN, chain);
        if let Some(handle) = handle {
            to.be64(NFTA_RULE_HANDLE, handle);
        }
    });
}
