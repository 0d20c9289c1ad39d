//! Rulesets to the kernel, by libnftnl, and from the kernel, byte by byte.
//!
//! [`netlink`] sends and receives: batches, dumps, routes, listeners, and ip_tables' socket options; all `unsafe` is
//! there. [`nf_tables`] writes and reads tables, chains, rules and sets as nf_tables has them, [`ip_tables`]
//! reads legacy tables, and [`xt`] has the matches and targets of both. A rule is one of [`ruleset`].

// Nothing panics, on any input or kernel answer. Tests may: that is how they fail.
#![cfg_attr(
    not(any(test, feature = "testing")),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod ip_tables;
pub mod netlink;
pub mod nf_tables;
#[cfg(any(test, fuzzing, feature = "testing"))]
pub mod tests;
pub mod xt;
