//! Netlink at the level of bytes: sends requests and batches, receives answers. All of the library's `unsafe` is here.
//!
//! libmnl opens the socket, and libnftnl writes the batch ([`batch`], `objects`). Answers are read by safe Rust that
//! checks every bound ([`message`]): the answering side may be a damaged kernel, a sandbox or a fuzzer, and libnftnl
//! gives up a whole rule for one expression that it doesn't know.

#![allow(unsafe_code)] // the one place for it: see the module's text

pub mod batch;
#[cfg(any(test, feature = "decode"))]
pub mod ip_set;
#[cfg(any(test, feature = "decode"))]
pub mod listeners;
pub mod message;
pub(crate) mod objects;
pub mod privilege;
#[cfg(any(test, feature = "decode"))]
pub mod route;
pub mod signals;
pub mod socket;
pub mod sockopt;
pub mod user_namespace;

pub(crate) use batch::Batch;
pub use batch::{FinishedBatch, Generation};
pub use socket::{CommitError, Failure, ReadError, Respondent, Socket};
