//! A batch: messages that the kernel commits together or not at all.

use std::ffi::c_char;

use mnl::mnl_sys::mnl_attr_put_u32;
use nftnl::ProtoFamily;
use nftnl::nftnl_sys as sys;

use super::message::{Header, Unwritable, Writer, u32_at};

/// In linux/netfilter/nfnetlink.h.
const NFNL_BATCH_GENID: u16 = 1;

/// Room for the batch of a usual run (5 KB for Linkerd's rules in both families), so that it is never reallocated.
const USUAL: usize = 8192;

/// The generation of a network namespace's ruleset: 1 in a fresh namespace, and a new number after each commit
/// (`nft_net->base_seq` in net/netfilter/nf_tables_api.c).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generation(pub(crate) u32);

impl Generation {
    /// The generation of a namespace in which nothing has been committed yet.
    pub const FRESH: Self = Self(1);
}

/// A batch that is being written. Its messages are numbered from 1; the kernel's answers carry those numbers.
///
/// nftnl has a `Batch` of its own, but its first message can't carry a generation, it asks for an answer to each
/// message, and it consists of several pieces, while this one is in one piece. libnftnl writes its first and its last
/// message. The messages between are written by safe code, because libnftnl's objects took half of the time for
/// encoding, and can't express all that is needed (a rule's compat protocol, a table's user data, a set's intervals).
pub struct Batch {
    writer: Writer,
    sequence: u32,
    last: Option<usize>,
    is_trial: bool,
}

impl Batch {
    /// Starts a batch, which the kernel refuses with `ERESTART` unless the ruleset is at the generation that is given.
    pub(crate) fn begin(generation: Option<Generation>) -> Self {
        let mut batch =
            Self { writer: Writer::with_capacity(USUAL), sequence: 0, last: None, is_trial: generation.is_none() };
        batch.delimiter(|buffer| {
            // SAFETY: the buffer has room for a header of 20 bytes, and is aligned for it.
            let header = unsafe { sys::nftnl_batch_begin(buffer, 0) };
            if let Some(Generation(generation)) = generation {
                // SAFETY: the header was just built in the buffer, which has room for 8 more bytes.
                unsafe { mnl_attr_put_u32(header, NFNL_BATCH_GENID, generation.to_be()) };
            }
        });
        batch
    }

    /// Adds a message to nf_tables, one of `NFT_MSG_*`, with these flags of netlink(7); `write` adds its attributes. The
    /// kernel always answers a bad message; of good ones, only the last asks for an acknowledgement.
    pub(crate) fn add(&mut self, message: i32, flags: i32, family: ProtoFamily, write: impl FnOnce(&mut Writer)) {
        self.sequence += 1;
        let header = Header { subsystem: libc::NFNL_SUBSYS_NFTABLES, message, flags, sequence: self.sequence, family };
        self.last = Some(self.writer.message(header, write));
    }

    pub(crate) fn unwritable(&self) -> Option<&Unwritable> {
        self.writer.unwritable()
    }

    /// The batch's bytes. Without a generation, the message that ends a batch is left out: the kernel checks the messages,
    /// answers as usual, and discards them (nfnetlink_rcv_batch() commits only at the end message; `nft --check` works the
    /// same way).
    pub(crate) fn finish(mut self) -> Result<FinishedBatch, Unwritable> {
        if !self.is_trial {
            let sequence = self.sequence + 1;
            self.delimiter(|buffer| {
                // SAFETY: the buffer has room for a header of 20 bytes, and is aligned for it.
                unsafe { sys::nftnl_batch_end(buffer, sequence) };
            });
        }
        if let Some(last) = self.last {
            self.writer.acknowledge(last);
        }
        self.writer.finish().map(FinishedBatch)
    }

    /// Has libnftnl write the batch's first or last message.
    fn delimiter(&mut self, write: impl FnOnce(*mut c_char)) {
        // An array of u32, so that the buffer is aligned for a netlink header.
        let mut buffer = [0u32; 16];
        write(buffer.as_mut_ptr().cast());
        let bytes: Vec<u8> = buffer.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let length = u32_at(&bytes, 0).unwrap_or_default() as usize;
        self.writer.raw(bytes.get(..length).unwrap_or_default());
    }
}

/// A batch, ready to send. It goes out in one `sendmsg`: the kernel commits each datagram by itself, so that a batch
/// sent in pieces would not be atomic.
pub struct FinishedBatch(pub Vec<u8>);
