//! A batch: messages that the kernel commits together or not at all.

use std::ffi::c_char;

use mnl::mnl_sys::mnl_attr_put_u32;
use nftnl::ProtoFamily;
use nftnl::nftnl_sys as sys;

use super::Generation;
use super::message::{Header, Writer, u32_at};
use super::uapi::NFNL_BATCH_GENID;

/// Room for the batch of a usual run (5 KB for Linkerd's defaults), so that it never moves.
const USUAL: usize = 8 * 1024;

/// A batch that is being written. Its messages are numbered from 1; the kernel's answers carry those numbers.
///
/// nftnl has a `Batch` of its own, but one whose first message can't carry a generation, that asks for an answer to
/// each message, and that lies in several pieces; this one lies in one piece. libnftnl writes how it begins and ends.
/// The messages between are written by safe code, because libnftnl's objects took half of the encoding's time, and can't
/// say all that is needed (a rule's compat protocol, a table's user data, a set's intervals).
pub(crate) struct Batch {
    writer: Writer,
    sequence: u32,
}

/// What a message of a batch asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Make it, unless it is there.
    Add,
    /// Make it, behind what is there: a rule.
    Append,
    /// Delete it.
    Delete,
}

impl Change {
    fn flags(self) -> i32 {
        match self {
            Change::Add => libc::NLM_F_CREATE,
            Change::Append => libc::NLM_F_CREATE | libc::NLM_F_APPEND,
            Change::Delete => 0,
        }
    }
}

impl Batch {
    /// Starts a batch. With a generation, the kernel refuses it with `ERESTART` in a namespace at any other one.
    pub(crate) fn begin(generation: Option<Generation>) -> Self {
        let mut batch = Self {
            writer: Writer::with_capacity(USUAL),
            sequence: 0,
        };
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

    /// Adds a message to nf_tables: `message` is one of `NFT_MSG_*`, and `write` adds its attributes. Only one that asks
    /// for an acknowledgement gets an answer when it is good; a bad one always does.
    pub(crate) fn add(
        &mut self,
        message: i32,
        change: Change,
        family: ProtoFamily,
        acknowledge: bool,
        write: impl FnOnce(&mut Writer),
    ) {
        self.sequence += 1;
        let header = Header {
            subsystem: libc::NFNL_SUBSYS_NFTABLES,
            message,
            flags: change.flags() | if acknowledge { libc::NLM_F_ACK } else { 0 },
            sequence: self.sequence,
            family,
        };
        self.writer.message(header, write);
    }

    /// Ends the batch.
    pub(crate) fn end(mut self) -> FinishedBatch {
        let sequence = self.sequence + 1;
        self.delimiter(|buffer| {
            // SAFETY: the buffer has room for a header of 20 bytes, and is aligned for it.
            unsafe { sys::nftnl_batch_end(buffer, sequence) };
        });
        FinishedBatch(self.writer.finish())
    }

    /// Leaves the batch without an end: the kernel checks its messages, answers as ever, and forgets them
    /// (nfnetlink_rcv_batch() commits at the end message only; `nft --check` works so too).
    pub(crate) fn without_end(self) -> FinishedBatch {
        FinishedBatch(self.writer.finish())
    }

    /// Has libnftnl write the batch's first or last message.
    fn delimiter(&mut self, write: impl FnOnce(*mut c_char)) {
        // Numbers, so that the buffer is aligned for a netlink header.
        let mut buffer = [0u32; 16];
        write(buffer.as_mut_ptr().cast());
        let bytes: Vec<u8> = buffer.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let length = u32_at(&bytes, 0).unwrap_or_default() as usize;
        self.writer.messages(bytes.get(..length).unwrap_or_default());
    }
}

/// A batch, ready to send. It goes out in one `sendmsg`: the kernel commits each datagram by itself, so that a batch
/// sent in pieces would not be atomic.
pub(crate) struct FinishedBatch(pub(crate) Vec<u8>);
