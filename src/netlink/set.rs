//! The messages that add sets and their elements.

use std::ffi::c_void;

use nftnl::{MsgType, NlMsg, ProtoFamily};

use super::message::Writer;
use super::rule::write_message;

/// A set of the inet family, or some of a set's elements, for a [`Batch`](super::Batch).
///
/// nftnl's own sets hold no intervals.
pub(crate) struct SetMessage {
    kind: i32,
    attributes: Writer,
}

impl SetMessage {
    /// A set; `write` adds its `NFTA_SET_*` attributes.
    pub(crate) fn set(write: impl FnOnce(&mut Writer)) -> Self {
        Self::new(libc::NFT_MSG_NEWSET, write)
    }

    /// Elements; `write` adds `NFTA_SET_ELEM_LIST_*` attributes.
    pub(crate) fn elements(write: impl FnOnce(&mut Writer)) -> Self {
        Self::new(libc::NFT_MSG_NEWSETELEM, write)
    }

    fn new(kind: i32, write: impl FnOnce(&mut Writer)) -> Self {
        let mut attributes = Writer::with_capacity(256);
        write(&mut attributes);
        Self { kind, attributes }
    }
}

// SAFETY: write_message() writes no more than the largest message.
unsafe impl NlMsg for SetMessage {
    unsafe fn write(&self, buffer: *mut c_void, sequence: u32, _: MsgType) {
        // SAFETY: the caller says that the buffer has room for the largest message.
        unsafe {
            write_message(
                buffer,
                self.kind,
                libc::NLM_F_CREATE,
                ProtoFamily::Inet,
                sequence,
                &self.attributes,
            );
        }
    }
}
