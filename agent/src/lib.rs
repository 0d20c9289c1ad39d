//! The agent of a node: it installs the CNI plugin linkerd-cni and keeps it there. docs/node.md describes it.
//!
//! What there is to decide is decided by pure functions: [`conflist`] and [`plan`] say what a folder shall hold, given what it
//! holds; [`settings`] reads arguments and environment. [`folder`] reads and writes, [`keeper`] takes one to the other, and
//! [`install`] does that whenever something changes.

// Nothing panics, on any input, answer of the API server or environment. Tests may: that is how they fail.
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod admin;
pub mod api;
pub mod conflist;
pub mod folder;
pub mod hook;
pub mod install;
pub mod keeper;
pub mod kubeconfig;
pub mod metrics;
pub mod owner;
pub mod plan;
pub mod settings;
pub mod status;
pub mod throttle;
pub mod watch;
