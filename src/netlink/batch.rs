//! A batch: messages that the kernel commits together or not at all.

use std::ffi::{c_char, c_void};
use std::io::IoSlice;
use std::ptr::NonNull;

use libc::nlmsghdr;
use mnl::mnl_sys::mnl_attr_put_u32;
use nftnl::nftnl_sys as sys;
use nftnl::{MsgType, NlMsg};

use super::Generation;
use super::uapi::NFNL_BATCH_GENID;

/// A batch that is being written. Its messages are numbered from 1; the kernel's answers carry those numbers.
///
/// nftnl has a `Batch` of its own, but one whose first message can't carry a generation and that asks for an answer
/// to each message; this one writes nftnl's messages too.
pub(crate) struct Batch {
    raw: NonNull<sys::nftnl_batch>,
    sequence: u32,
}

impl Batch {
    /// Starts a batch. With a generation, the kernel refuses it with `ERESTART` in a namespace at any other one.
    pub(crate) fn begin(generation: Option<Generation>) -> Self {
        // SAFETY: plain allocation; the sizes leave room for the largest message behind each page.
        let raw = unsafe { sys::nftnl_batch_alloc(nftnl::default_batch_page_size(), nftnl::nft_nlmsg_maxsize()) };
        let mut batch = Self {
            raw: super::expr::allocated(raw),
            sequence: 0,
        };
        let buffer = batch.buffer();
        // SAFETY: the buffer has room for any message, and this one is the first in it.
        let header = unsafe { sys::nftnl_batch_begin(buffer.cast(), 0) };
        if let Some(Generation(generation)) = generation {
            // SAFETY: the header was just built in the buffer, which has room for 8 more bytes.
            unsafe { mnl_attr_put_u32(header, NFNL_BATCH_GENID, generation.to_be()) };
        }
        batch.advance();
        batch
    }

    /// Adds a message. Only one that asks for an acknowledgement gets an answer when it is good; a bad one always does.
    pub(crate) fn add(&mut self, message: &impl NlMsg, action: MsgType, acknowledge: bool) {
        self.sequence += 1;
        let buffer = self.buffer();
        // SAFETY: the buffer has room for the largest message, as NlMsg::write asks for.
        unsafe { message.write(buffer, self.sequence, action) };
        // SAFETY: write() has put a netlink header at the start of the buffer, which nftnl aligns for it.
        let header = unsafe { &mut *buffer.cast::<nlmsghdr>() };
        let ack = libc::NLM_F_ACK as u16;
        header.nlmsg_flags = if acknowledge {
            header.nlmsg_flags | ack
        } else {
            header.nlmsg_flags & !ack
        };
        self.advance();
    }

    /// Ends the batch.
    pub(crate) fn end(mut self) -> Finished {
        let buffer = self.buffer();
        // SAFETY: the buffer has room for any message.
        unsafe { sys::nftnl_batch_end(buffer.cast::<c_char>(), self.sequence + 1) };
        self.advance();
        Finished(self)
    }

    /// Leaves the batch without an end: the kernel checks its messages, answers as ever, and forgets them
    /// (nfnetlink_rcv_batch() commits at the end message only; `nft --check` works so too).
    pub(crate) fn unfinished(self) -> Finished {
        Finished(self)
    }

    fn buffer(&mut self) -> *mut c_void {
        // SAFETY: `raw` is a live batch.
        unsafe { sys::nftnl_batch_buffer(self.raw.as_ptr()) }
    }

    fn advance(&mut self) {
        // SAFETY: `raw` is a live batch, and a whole message was just written to its buffer.
        let result = unsafe { sys::nftnl_batch_update(self.raw.as_ptr()) };
        if result < 0 {
            super::expr::out_of_memory();
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // SAFETY: `raw` was allocated by nftnl_batch_alloc and is freed only here.
        unsafe { sys::nftnl_batch_free(self.raw.as_ptr()) };
    }
}

/// A batch, ready to send.
pub(crate) struct Finished(Batch);

impl Finished {
    /// The batch's memory, page by page. All of it goes out in one `sendmsg`: the kernel commits each datagram by
    /// itself, so that a batch sent page by page would not be atomic.
    pub(crate) fn pages(&self) -> Vec<IoSlice<'_>> {
        // SAFETY: the batch is live.
        let count = unsafe { sys::nftnl_batch_iovec_len(self.0.raw.as_ptr()) };
        let empty = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        let mut pages = vec![empty; usize::try_from(count).unwrap_or(0)];
        // SAFETY: `pages` has room for as many entries as it says.
        unsafe { sys::nftnl_batch_iovec(self.0.raw.as_ptr(), pages.as_mut_ptr(), pages.len() as u32) };
        pages
            .iter()
            .filter(|page| page.iov_len > 0)
            // SAFETY: nftnl says where each page's written part lies; the batch, which `self` borrows, keeps it alive
            // and unchanged.
            .map(|page| IoSlice::new(unsafe { std::slice::from_raw_parts(page.iov_base.cast(), page.iov_len) }))
            .collect()
    }
}
