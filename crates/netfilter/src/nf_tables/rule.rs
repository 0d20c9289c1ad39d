//! Rules that are to be added, and the messages that add and delete rules. What a rule's expressions mean is in
//! [`meaning`](super::meaning).

use std::fmt;

use packets::rules::nftables::NftRule;
use packets::rules::xtables::IptablesRule;
use packets::rules::{Condition, Field, Rule, Set, TCP, TableFamily};

use super::body::Missing;
use super::uapi::*;
use super::{ChainId, TableId};
use super::{nftables, user_data, xtables};
use crate::netlink::message::Writer;
use crate::netlink::{Batch, Change, Socket};

/// A rule, to be added to a chain.
pub struct NewRule<'a> {
    /// The chain's table.
    pub table: TableId,
    /// The chain.
    pub chain: ChainId,
    /// What is to be added.
    pub rule: &'a Rule,
    /// Those of the table.
    pub sets: &'a [Set],
    /// The handle of the rule before which it comes; without one, it comes last.
    pub before: Option<u64>,
}

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

    /// In the tables of one IP family as iptables-nft writes them, elsewhere as nft does.
    fn write_expressions(&self, list: &mut Writer) {
        match self.table.family {
            TableFamily::Ip(family) => xtables::write(list, family, self.rule),
            _ => nftables::write(list, self.sets, self.rule),
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

/// Deletes the rule of a chain that has this handle or, without a handle, all of the chain's rules.
pub(super) fn delete(batch: &mut Batch, table: TableId, chain: &[u8], handle: Option<u64>) {
    table.message(batch, libc::NFT_MSG_DELRULE, Change::Delete, |to| {
        to.string(NFTA_RULE_CHAIN, chain);
        if let Some(handle) = handle {
            to.be64(NFTA_RULE_HANDLE, handle);
        }
    });
}
