//! nf_tables expressions, the pieces that a rule is made of. Each function is one line of
//! `nft --debug=netlink list ruleset`.

use super::message::Writer;
use super::uapi::*;

/// The register that every expression here loads into and compares.
const REGISTER: u32 = libc::NFT_REG_1 as u32;

/// Where evaluation goes on.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Verdict {
    /// Back to the calling chain.
    Return,
    /// On to this chain, and back from it.
    Jump(&'static str),
}

/// A rule's expressions, being written.
pub(crate) struct Expressions<'a>(pub(super) &'a mut Writer);

impl Expressions<'_> {
    /// `[ meta load KEY => reg 1 ]`; the key is one of `NFT_META_*`.
    pub(crate) fn meta(&mut self, key: i32) {
        self.add("meta", |data| {
            data.be32(NFTA_META_KEY, key as u32);
            data.be32(NFTA_META_DREG, REGISTER);
        });
    }

    /// `[ cmp eq reg 1 VALUE ]`
    pub(crate) fn equals(&mut self, value: &[u8]) {
        self.add("cmp", |data| {
            data.be32(NFTA_CMP_SREG, REGISTER);
            data.be32(NFTA_CMP_OP, libc::NFT_CMP_EQ as u32);
            data.nest(NFTA_CMP_DATA, |data| data.bytes(NFTA_DATA_VALUE, value));
        });
    }

    /// `[ payload load LENGTH @ network header + OFFSET => reg 1 ]`
    pub(crate) fn network_header(&mut self, offset: u32, length: u32) {
        self.payload(libc::NFT_PAYLOAD_NETWORK_HEADER, offset, length);
    }

    /// `[ payload load LENGTH @ transport header + OFFSET => reg 1 ]`
    pub(crate) fn transport_header(&mut self, offset: u32, length: u32) {
        self.payload(libc::NFT_PAYLOAD_TRANSPORT_HEADER, offset, length);
    }

    fn payload(&mut self, base: i32, offset: u32, length: u32) {
        self.add("payload", |data| {
            data.be32(NFTA_PAYLOAD_DREG, REGISTER);
            data.be32(NFTA_PAYLOAD_BASE, base as u32);
            data.be32(NFTA_PAYLOAD_OFFSET, offset);
            data.be32(NFTA_PAYLOAD_LEN, length);
        });
    }

    /// `[ bitwise reg 1 = ( reg 1 & MASK ) ^ 0 ]`
    pub(crate) fn mask(&mut self, mask: &[u8]) {
        self.add("bitwise", |data| {
            data.be32(NFTA_BITWISE_SREG, REGISTER);
            data.be32(NFTA_BITWISE_DREG, REGISTER);
            data.be32(NFTA_BITWISE_LEN, mask.len() as u32);
            data.nest(NFTA_BITWISE_MASK, |data| data.bytes(NFTA_DATA_VALUE, mask));
            data.nest(NFTA_BITWISE_XOR, |data| {
                data.bytes(NFTA_DATA_VALUE, &vec![0; mask.len()])
            });
        });
    }

    /// `[ lookup reg 1 set SET ]`
    pub(crate) fn lookup(&mut self, set: &str) {
        self.add("lookup", |data| {
            data.string(NFTA_LOOKUP_SET, set);
            data.be32(NFTA_LOOKUP_SREG, REGISTER);
        });
    }

    /// `[ immediate reg 1 PORT ]`, `[ redir proto_min reg 1 flags 0x2 ]`
    pub(crate) fn redirect(&mut self, port: u16) {
        self.add("immediate", |data| {
            data.be32(NFTA_IMMEDIATE_DREG, REGISTER);
            data.nest(NFTA_IMMEDIATE_DATA, |data| {
                data.bytes(NFTA_DATA_VALUE, &port.to_be_bytes())
            });
        });
        self.add("redir", |data| {
            data.be32(NFTA_REDIR_REG_PROTO_MIN, REGISTER);
            data.be32(NFTA_REDIR_FLAGS, PROTO_SPECIFIED);
        });
    }

    /// `[ counter pkts 0 bytes 0 ]`
    pub(crate) fn counter(&mut self) {
        self.add("counter", |_| ());
    }

    /// `[ immediate reg 0 VERDICT ]`
    pub(crate) fn verdict(&mut self, verdict: Verdict) {
        self.add("immediate", |data| {
            data.be32(NFTA_IMMEDIATE_DREG, libc::NFT_REG_VERDICT as u32);
            data.nest(NFTA_IMMEDIATE_DATA, |data| {
                data.nest(NFTA_DATA_VERDICT, |data| match verdict {
                    Verdict::Return => data.be32(NFTA_VERDICT_CODE, libc::NFT_RETURN as u32),
                    Verdict::Jump(chain) => {
                        data.be32(NFTA_VERDICT_CODE, libc::NFT_JUMP as u32);
                        data.string(NFTA_VERDICT_CHAIN, chain);
                    }
                });
            });
        });
    }

    /// `[ match name NAME rev REVISION ]`: an xt match, through nft_compat.
    pub(crate) fn xt_match(&mut self, name: &str, revision: u32, info: &[u8]) {
        self.xt("match", name, revision, info);
    }

    /// `[ target name NAME rev REVISION ]`: an xt target, through nft_compat.
    pub(crate) fn xt_target(&mut self, name: &str, revision: u32, info: &[u8]) {
        self.xt("target", name, revision, info);
    }

    fn xt(&mut self, kind: &str, name: &str, revision: u32, info: &[u8]) {
        self.add(kind, |data| {
            data.string(NFTA_XT_NAME, name);
            data.be32(NFTA_XT_REV, revision);
            data.bytes(NFTA_XT_INFO, info);
        });
    }

    fn add(&mut self, name: &str, data: impl FnOnce(&mut Writer)) {
        self.0.nest(NFTA_LIST_ELEM, |element| {
            element.string(NFTA_EXPR_NAME, name);
            element.nest(NFTA_EXPR_DATA, data);
        });
    }
}
