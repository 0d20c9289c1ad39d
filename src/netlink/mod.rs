//! Netlink under nft and native mode: requests and batches out, answers in. All of the crate's `unsafe` is here.
//!
//! libnftnl and libmnl open the socket and write batches, tables and chains. Rules and requests are written, and
//! answers read, by bounds-checked Rust ([`message`]): answers because whoever answers may be a damaged kernel, a
//! sandbox or a fuzzer, rules for the time that they take ([`rule`]).

#![allow(unsafe_code)] // the one place for it: see the module's text

pub(crate) mod batch;
pub(crate) mod expr;
pub(crate) mod message;
pub(crate) mod rule;
pub(crate) mod set;
pub(crate) mod socket;
pub(crate) mod sockopt;
pub(crate) mod uapi;

pub(crate) use batch::{Batch, Finished};
pub(crate) use socket::{CommitError, Failure, ReadError, Socket};

use crate::rules::config::Family;

/// The generation of a network namespace's ruleset: 1 in a fresh one, and another after each commit
/// (`nft_net->base_seq` in net/netfilter/nf_tables_api.c).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Generation(pub(crate) u32);

impl Generation {
    /// The generation of a namespace in which nobody has committed anything yet.
    pub(crate) const FRESH: Self = Self(1);
}

impl Family {
    /// The protocol family in nfnetlink's header: `NFPROTO_IPV4`, `NFPROTO_IPV6`.
    pub(crate) fn protocol(self) -> nftnl::ProtoFamily {
        match self {
            Family::V4 => nftnl::ProtoFamily::Ipv4,
            Family::V6 => nftnl::ProtoFamily::Ipv6,
        }
    }
}
