//! Netlink at the level of bytes: sends requests and batches, receives answers. All of the library's `unsafe` is here.
//!
//! libmnl opens the socket, and libnftnl writes the messages that begin and end a batch. Everything between is written,
//! and answers are read, by safe Rust that checks every bound ([`message`]), because what answers may be a damaged
//! kernel, a sandbox or a fuzzer.

#![allow(unsafe_code)] // the one place for it: see the module's text

pub(crate) mod batch;
pub(crate) mod listeners;
pub(crate) mod message;
pub(crate) mod privilege;
pub(crate) mod route;
pub(crate) mod signals;
pub(crate) mod socket;
pub(crate) mod sockopt;
pub(crate) mod uapi;
pub(crate) mod user_namespace;

pub(crate) use batch::{Batch, Change, FinishedBatch, Generation};
pub(crate) use socket::{Ask, CommitError, Failure, ReadError, Socket};
