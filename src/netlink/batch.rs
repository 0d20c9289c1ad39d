//! A batch: messages that the kernel commits together or not at all.

use std::ffi::{c_char, c_void};

use libc::nlmsghdr;
use mnl::mnl_sys::mnl_attr_put_u32;
use nftnl::nftnl_sys as sys;
use nftnl::{MsgType, NlMsg};

use super::Generation;
use super::uapi::NFNL_BATCH_GENID;

/// Room for the batch of a usual run (5 KB for Linkerd's defaults), so that it never moves; together with the room for
/// one largest message still below what malloc gets from the heap (128 KiB) rather than from a mapping of its own.
const USUAL: usize = 32 * 1024;

/// A batch that is being written. Its messages are numbered from 1; the kernel's answers carry those numbers.
///
/// nftnl has a `Batch` of its own, but one whose first message can't carry a generation, that asks for an answer to
/// each message, and that lies in several pieces; this one writes nftnl's messages too, into one piece.
pub(crate) struct Batch {
    bytes: Vec<u8>,
    sequence: u32,
}

impl Batch {
    /// Starts a batch. With a generation, the kernel refuses it with `ERESTART` in a namespace at any other one.
    pub(crate) fn begin(generation: Option<Generation>) -> Self {
        let mut batch = Self {
            bytes: Vec::with_capacity(nftnl::nft_nlmsg_maxsize() as usize + USUAL),
            sequence: 0,
        };
        batch.write(|buffer| {
            // SAFETY: the buffer has room for any message.
            let header = unsafe { sys::nftnl_batch_begin(buffer.cast::<c_char>(), 0) };
            if let Some(Generation(generation)) = generation {
                // SAFETY: the header was just built in the buffer, which has room for 8 more bytes.
                unsafe { mnl_attr_put_u32(header, NFNL_BATCH_GENID, generation.to_be()) };
            }
        });
        batch
    }

    /// Adds a message. Only one that asks for an acknowledgement gets an answer when it is good; a bad one always does.
    pub(crate) fn add(&mut self, message: &impl NlMsg, action: MsgType, acknowledge: bool) {
        self.sequence += 1;
        let sequence = self.sequence;
        self.write(|buffer| {
            // SAFETY: the buffer has room for the largest message, as NlMsg::write asks for.
            unsafe { message.write(buffer, sequence, action) };
            // SAFETY: write() has put a netlink header at the start of the buffer, which is aligned for it.
            let header = unsafe { &mut *buffer.cast::<nlmsghdr>() };
            let ack = libc::NLM_F_ACK as u16;
            header.nlmsg_flags = if acknowledge {
                header.nlmsg_flags | ack
            } else {
                header.nlmsg_flags & !ack
            };
        });
    }

    /// Ends the batch.
    pub(crate) fn end(mut self) -> Finished {
        let sequence = self.sequence + 1;
        self.write(|buffer| {
            // SAFETY: the buffer has room for any message.
            unsafe { sys::nftnl_batch_end(buffer.cast::<c_char>(), sequence) };
        });
        self.unfinished()
    }

    /// Leaves the batch without an end: the kernel checks its messages, answers as ever, and forgets them
    /// (nfnetlink_rcv_batch() commits at the end message only; `nft --check` works so too).
    pub(crate) fn unfinished(self) -> Finished {
        Finished(self.bytes)
    }

    /// Has one whole message written behind the others.
    fn write(&mut self, message: impl FnOnce(*mut c_void)) {
        self.bytes.reserve(nftnl::nft_nlmsg_maxsize() as usize);
        let start = self.bytes.len();
        // SAFETY: the capacity goes beyond `start`. The address is aligned for a header: malloc's addresses are, and
        // every message's length is made a multiple of 4 below.
        let buffer = unsafe { self.bytes.as_mut_ptr().add(start) };
        message(buffer.cast());
        // SAFETY: a message begins with its header.
        let length = unsafe { (*buffer.cast::<nlmsghdr>()).nlmsg_len } as usize;
        // SAFETY: the message is within the reserved capacity, and its bytes are written: libmnl fills the padding
        // behind each attribute with zeros, so that a message's length is a multiple of 4.
        unsafe { self.bytes.set_len(start + length) };
        self.bytes.resize(start + length.next_multiple_of(4), 0);
    }
}

/// A batch, ready to send. It goes out in one `sendmsg`: the kernel commits each datagram by itself, so that a batch
/// sent in pieces would not be atomic.
pub(crate) struct Finished(pub(crate) Vec<u8>);
