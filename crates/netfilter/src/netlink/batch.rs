//! A batch: messages that the kernel commits together or not at all.

use std::slice;

use mnl::mnl_sys::{mnl_attr_put_check, mnl_attr_put_u32};
use nftnl::nftnl_sys as sys;
use nftnl::{MsgType, NlMsg, nft_nlmsg_maxsize};

use super::message::Unwritable;

/// In linux/netfilter/nfnetlink.h.
const NFNL_BATCH_GENID: u16 = 1;

/// Bytes of a usual batch (5 KB for Linkerd's rules in both families), which is never moved to where there is more room.
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
/// The crate nftnl's own `Batch` can't name a generation in its first message, and asks for an answer to each one.
pub(crate) struct Batch {
    /// The written messages, and zeros: libmnl before 1.0.5 leaves the bytes after an attribute, up to the next one.
    words: Vec<u32>,
    /// The number of words that were written.
    length: usize,
    /// The word at which the last message begins.
    last: usize,
    /// The last message's flags.
    flags: i32,
    sequence: u32,
    is_trial: bool,
}

impl Batch {
    /// Starts a batch, which the kernel refuses with `ERESTART` unless the ruleset is at the generation that is given.
    pub(crate) fn begin(generation: Option<Generation>) -> Self {
        let words = vec![0; USUAL / 4 + room_for_one()];
        let mut batch = Self { words, length: 0, last: 0, flags: 0, sequence: 0, is_trial: generation.is_none() };
        // SAFETY: there is room for a header of 20 bytes.
        let header = unsafe { sys::nftnl_batch_begin(batch.end().cast(), 0) };
        if let Some(Generation(generation)) = generation {
            // SAFETY: the header was just built, and there is room for 8 more bytes.
            unsafe { mnl_attr_put_u32(header, NFNL_BATCH_GENID, generation.to_be()) };
        }
        batch.add_written();
        batch
    }

    /// Adds the message that adds or deletes an object, with these flags of netlink(7) beside `NLM_F_REQUEST`, and with
    /// these attributes, which the crate nftnl's type has no place for. The kernel always answers a bad message; of
    /// good ones, only the last asks for an acknowledgement.
    pub(crate) fn add(
        &mut self,
        object: &impl NlMsg,
        kind: MsgType,
        flags: i32,
        attributes: &[(u16, &[u8])],
    ) -> Result<(), Unwritable> {
        self.sequence += 1;
        let start = self.end();
        // SAFETY: there is room for the largest message.
        unsafe { object.write(start.cast(), self.sequence, kind) };
        for (attribute, value) in attributes {
            let (room, data) = (4 * room_for_one(), value.as_ptr().cast());
            // SAFETY: the message was just written, and has so much room; the value has as many bytes as it says.
            if !unsafe { mnl_attr_put_check(start.cast(), room, *attribute, value.len(), data) } {
                return Err(Unwritable(format!("an attribute of {} bytes", value.len())));
            }
        }
        self.add_written();
        // Instead of those that the crate nftnl sets, which ask for an answer to each message.
        self.set_flags(flags);
        Ok(())
    }

    /// The batch. Without a generation, the message that ends a batch is left out: the kernel checks the messages,
    /// answers as usual, and discards them (nfnetlink_rcv_batch() commits only at the end message; `nft --check` works
    /// the same way).
    pub(crate) fn finish(mut self) -> FinishedBatch {
        if self.sequence > 0 {
            self.set_flags(self.flags | libc::NLM_F_ACK);
        }
        if !self.is_trial {
            // SAFETY: there is room for a header of 20 bytes.
            unsafe { sys::nftnl_batch_end(self.end().cast(), self.sequence + 1) };
            self.add_written();
        }
        self.words.truncate(self.length);
        FinishedBatch(self.words)
    }

    /// Where the next message is written; after it is room for the largest.
    fn end(&mut self) -> *mut u32 {
        if self.words.len() < self.length + room_for_one() {
            // Unlike `resize`, this touches none of the new words.
            let mut larger = vec![0; 2 * self.words.len() + room_for_one()];
            if let Some(first) = larger.get_mut(..self.words.len()) {
                first.copy_from_slice(&self.words);
            }
            self.words = larger;
        }
        self.words.get_mut(self.length..).unwrap_or_default().as_mut_ptr()
    }

    /// Takes the message in that was written at the end. Its first word is its length in bytes, which libmnl rounds up
    /// to whole words.
    fn add_written(&mut self) {
        self.last = self.length;
        self.length += self.words.get(self.last).map_or(0, |&bytes| bytes as usize / 4);
    }

    /// Sets the last message's flags: the second half of its second word.
    fn set_flags(&mut self, flags: i32) {
        self.flags = libc::NLM_F_REQUEST | flags;
        if let Some(word) = self.words.get_mut(self.last + 1) {
            let ([a, b, ..], [c, d]) = (word.to_ne_bytes(), (self.flags as u16).to_ne_bytes());
            *word = u32::from_ne_bytes([a, b, c, d]);
        }
    }
}

/// The words of the largest message that libnftnl writes.
fn room_for_one() -> usize {
    (nft_nlmsg_maxsize() as usize).div_ceil(4)
}

/// A batch, ready to send. It goes out in one `sendmsg`: the kernel commits each datagram by itself, so that a batch
/// sent in pieces would not be atomic.
pub struct FinishedBatch(Vec<u32>);

impl FinishedBatch {
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: each word has four bytes.
        unsafe { slice::from_raw_parts(self.0.as_ptr().cast(), 4 * self.0.len()) }
    }
}
