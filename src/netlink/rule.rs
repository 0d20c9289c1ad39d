//! The message that adds, deletes or flushes rules.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;

use nftnl::nftnl_sys as sys;
use nftnl::{MsgType, NlMsg, ProtoFamily};

use super::expr::{Expr, allocated, out_of_memory};

/// A rule for a [`Batch`](super::Batch). nftnl's own rule can't carry the compat protocol.
///
/// Added, it goes behind its chain's last rule. Deleted, it is the rule with its handle, or, without one, every rule
/// of the chain.
pub(crate) struct RuleMessage {
    raw: NonNull<sys::nftnl_rule>,
    family: ProtoFamily,
}

impl RuleMessage {
    /// A rule without expressions.
    pub(crate) fn new(family: ProtoFamily, table: &CStr, chain: &CStr) -> Self {
        // SAFETY: plain allocation.
        let raw = unsafe { sys::nftnl_rule_alloc() };
        let rule = Self {
            raw: allocated(raw),
            family,
        };
        rule.set_string(sys::NFTNL_RULE_TABLE, table);
        rule.set_string(sys::NFTNL_RULE_CHAIN, chain);
        rule
    }

    /// Appends an expression.
    pub(crate) fn push(&mut self, expr: Expr) {
        // SAFETY: the rule is live and takes the ownership of the expression.
        unsafe { sys::nftnl_rule_add_expr(self.raw.as_ptr(), expr.into_raw().as_ptr()) };
    }

    /// The protocol that xt extensions in this rule are checked against (`NFTA_RULE_COMPAT`): multiport refuses a
    /// rule that doesn't say that it is for TCP, whatever it compares before.
    pub(crate) fn set_compat_protocol(&mut self, protocol: u32) {
        for (attribute, value) in [
            (sys::NFTNL_RULE_COMPAT_PROTO, protocol),
            (sys::NFTNL_RULE_COMPAT_FLAGS, 0),
        ] {
            // SAFETY: the rule is live.
            unsafe { sys::nftnl_rule_set_u32(self.raw.as_ptr(), attribute as u16, value) };
        }
    }

    /// Which of the chain's rules to delete.
    pub(crate) fn set_handle(&mut self, handle: u64) {
        // SAFETY: the rule is live.
        unsafe { sys::nftnl_rule_set_u64(self.raw.as_ptr(), sys::NFTNL_RULE_HANDLE as u16, handle) };
    }

    /// The comment, as nft and iptables-nft keep it: a type, a length and a C string in the rule's user data
    /// (`struct nftnl_udata`). Cut off at 127 bytes, libnftnl's and nft's limit.
    pub(crate) fn set_comment(&mut self, comment: &str) {
        let text = comment.as_bytes();
        let text = text.get(..sys::NFTNL_UDATA_COMMENT_MAXLEN as usize - 1).unwrap_or(text);
        let mut data = Vec::with_capacity(text.len() + 3);
        data.push(sys::NFTNL_UDATA_RULE_COMMENT as u8);
        data.push(text.len() as u8 + 1);
        data.extend_from_slice(text);
        data.push(0);
        // SAFETY: the rule is live and libnftnl copies the data.
        let result = unsafe {
            sys::nftnl_rule_set_data(
                self.raw.as_ptr(),
                sys::NFTNL_RULE_USERDATA as u16,
                data.as_ptr().cast(),
                data.len() as u32,
            )
        };
        if result < 0 {
            out_of_memory();
        }
    }

    fn set_string(&self, attribute: u32, value: &CStr) {
        // SAFETY: the rule is live, `value` is a C string, and libnftnl copies it.
        let result = unsafe { sys::nftnl_rule_set_str(self.raw.as_ptr(), attribute as u16, value.as_ptr()) };
        if result < 0 {
            out_of_memory();
        }
    }
}

// SAFETY: libnftnl writes one netlink message, and a rule's is smaller than the largest: its expression list is one
// attribute, whose length is 16 bits.
unsafe impl NlMsg for RuleMessage {
    unsafe fn write(&self, buffer: *mut c_void, sequence: u32, action: MsgType) {
        let (message, flags) = match action {
            MsgType::Add => (libc::NFT_MSG_NEWRULE, libc::NLM_F_CREATE | libc::NLM_F_APPEND),
            MsgType::Del => (libc::NFT_MSG_DELRULE, 0),
        };
        // SAFETY: the caller says that the buffer has room for the largest message.
        let header = unsafe {
            sys::nftnl_nlmsg_build_hdr(
                buffer.cast::<c_char>(),
                message as u16,
                self.family as u16,
                flags as u16,
                sequence,
            )
        };
        // SAFETY: the header was just built in that buffer, and the rule is live.
        unsafe { sys::nftnl_rule_nlmsg_build_payload(header, self.raw.as_ptr()) };
    }
}

impl Drop for RuleMessage {
    fn drop(&mut self) {
        // SAFETY: allocated by nftnl_rule_alloc, freed only here.
        unsafe { sys::nftnl_rule_free(self.raw.as_ptr()) };
    }
}
