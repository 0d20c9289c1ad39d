//! The message that adds, deletes or flushes rules.

use std::ffi::{c_char, c_void};

use nftnl::nftnl_sys as sys;
use nftnl::{MsgType, NlMsg, ProtoFamily};

use super::expr::Expressions;
use super::message::Writer;
use super::uapi::*;

/// More bytes than any rule of ours has.
const USUAL: usize = 512;

/// A rule for a [`Batch`](super::Batch).
///
/// Added, it goes behind its chain's last rule. Deleted, it is the rule with its handle, or, without one, every rule
/// of the chain.
///
/// Not one of nftnl's: those can't carry the compat protocol, and libnftnl's objects, an allocation each for rule and
/// expressions, took half of the encoding's time.
pub(crate) struct RuleMessage {
    family: ProtoFamily,
    attributes: Writer,
}

impl RuleMessage {
    /// A rule without expressions.
    pub(crate) fn new(family: ProtoFamily, table: &str, chain: &str) -> Self {
        let mut attributes = Writer::with_capacity(USUAL);
        attributes.string(NFTA_RULE_TABLE, table);
        attributes.string(NFTA_RULE_CHAIN, chain);
        Self { family, attributes }
    }

    /// What the rule does.
    pub(crate) fn expressions(&mut self, write: impl FnOnce(&mut Expressions<'_>)) {
        self.attributes
            .nest(NFTA_RULE_EXPRESSIONS, |list| write(&mut Expressions(list)));
    }

    /// The protocol that xt extensions in this rule are checked against: multiport refuses a rule that doesn't say
    /// that it is for TCP, whatever it compares before.
    pub(crate) fn compat_protocol(&mut self, protocol: u32) {
        self.attributes.nest(NFTA_RULE_COMPAT, |compat| {
            compat.be32(NFTA_RULE_COMPAT_PROTO, protocol);
            compat.be32(NFTA_RULE_COMPAT_FLAGS, 0);
        });
    }

    /// Which of the chain's rules to delete.
    pub(crate) fn handle(&mut self, handle: u64) {
        self.attributes.bytes(NFTA_RULE_HANDLE, &handle.to_be_bytes());
    }

    /// The comment, as nft and iptables-nft keep it: a type, a length and a C string in the rule's user data
    /// (`struct nftnl_udata`). Cut off at 127 bytes, libnftnl's and nft's limit.
    pub(crate) fn comment(&mut self, comment: &str) {
        let text = comment.as_bytes();
        let text = text.get(..sys::NFTNL_UDATA_COMMENT_MAXLEN as usize - 1).unwrap_or(text);
        let head = [sys::NFTNL_UDATA_RULE_COMMENT as u8, text.len() as u8 + 1];
        self.attributes.bytes(NFTA_RULE_USERDATA, &[&head, text, &[0]].concat());
    }
}

// SAFETY: write_message() writes no more than the largest message.
unsafe impl NlMsg for RuleMessage {
    unsafe fn write(&self, buffer: *mut c_void, sequence: u32, action: MsgType) {
        let (message, flags) = match action {
            MsgType::Add => (libc::NFT_MSG_NEWRULE, libc::NLM_F_CREATE | libc::NLM_F_APPEND),
            MsgType::Del => (libc::NFT_MSG_DELRULE, 0),
        };
        // SAFETY: the caller says that the buffer has room for the largest message.
        unsafe { write_message(buffer, message, flags, self.family, sequence, &self.attributes) };
    }
}

/// Writes an nf_tables message: a header and the attributes, as many of their bytes as the largest message holds. (No
/// message of ours comes near that; of one that did, the kernel would refuse the torn one.)
///
/// # Safety
/// The buffer must have room for the largest message, `nftnl::nft_nlmsg_maxsize()` bytes.
pub(super) unsafe fn write_message(
    buffer: *mut c_void,
    message: i32,
    flags: i32,
    family: ProtoFamily,
    sequence: u32,
    attributes: &Writer,
) {
    // SAFETY: the buffer has room.
    let header = unsafe {
        sys::nftnl_nlmsg_build_hdr(
            buffer.cast::<c_char>(),
            message as u16,
            family as u16,
            flags as u16,
            sequence,
        )
    };
    // SAFETY: the header was just built; this is its end.
    let start = unsafe { (*header).nlmsg_len };
    let room = (nftnl::nft_nlmsg_maxsize() - start) as usize;
    let attributes = attributes.bytes_written();
    let attributes = attributes.get(..room).unwrap_or(attributes);
    // SAFETY: within the largest message, for which there is room.
    let end = unsafe { buffer.cast::<u8>().add(start as usize) };
    // SAFETY: as before, and `attributes` is no part of that buffer.
    unsafe { end.copy_from_nonoverlapping(attributes.as_ptr(), attributes.len()) };
    // SAFETY: as before.
    unsafe { (*header).nlmsg_len = start + attributes.len() as u32 };
}
