//! The messages that add and delete rules. What a rule's expressions mean is in [`meaning`](super::meaning).

use super::TableId;
use super::header;
use super::uapi::*;
use super::user_data;
use crate::netlink::message::Writer;
use crate::netlink::{Batch, Change};
use crate::rules::Name;

/// Adds a rule to a chain.
pub(crate) struct AddRule<'a> {
    /// The table of the chain.
    pub(crate) table: TableId,
    /// The chain.
    pub(crate) chain: &'a str,
    /// The handle of the rule before which it comes; without one, it comes last.
    pub(crate) before: Option<u64>,
    /// Declares the rule's protocol as TCP to the xt extensions in it (`NFTA_RULE_COMPAT`). The multiport match refuses
    /// a rule without that declaration, even if an earlier expression compares the protocol.
    pub(crate) for_tcp: bool,
    /// The rule's comment.
    pub(crate) comment: Option<&'a Name>,
}

impl AddRule<'_> {
    /// Adds the message to a batch; `expressions` adds what the rule does.
    pub(crate) fn write(&self, batch: &mut Batch, acknowledge: bool, expressions: impl FnOnce(&mut Writer)) {
        let family = header::protocol(self.table.family);
        // Without NLM_F_APPEND, a position is that of the rule before which it comes (nf_tables_newrule).
        let change = self.before.map_or(Change::Append, |_| Change::Add);
        batch.add(libc::NFT_MSG_NEWRULE, change, family, acknowledge, |to| {
            to.string(NFTA_RULE_TABLE, self.table.name);
            to.string(NFTA_RULE_CHAIN, self.chain);
            if let Some(handle) = self.before {
                to.be64(NFTA_RULE_POSITION, handle);
            }
            to.nest(NFTA_RULE_EXPRESSIONS, expressions);
            if self.for_tcp {
                to.nest(NFTA_RULE_COMPAT, |compat| {
                    compat.be32(NFTA_RULE_COMPAT_PROTO, libc::IPPROTO_TCP as u32);
                    compat.be32(NFTA_RULE_COMPAT_FLAGS, 0);
                });
            }
            if let Some(comment) = self.comment {
                user_data::write_comment(to, NFTA_RULE_USERDATA, comment.as_bytes());
            }
        });
    }
}

/// Deletes the rule of a chain that has this handle or, without a handle, all of the chain's rules.
pub(crate) fn delete(batch: &mut Batch, acknowledge: bool, table: TableId, chain: &[u8], handle: Option<u64>) {
    let family = header::protocol(table.family);
    batch.add(libc::NFT_MSG_DELRULE, Change::Delete, family, acknowledge, |to| {
        to.string(NFTA_RULE_TABLE, table.name);
        to.string(NFTA_RULE_CHAIN, chain);
        if let Some(handle) = handle {
            to.be64(NFTA_RULE_HANDLE, handle);
        }
    });
}
