//! What packet filter rules are, and where they send a connection: plain data and pure functions.
//!
//! [`rules`] is the vocabulary: tables, chains, conditions and actions. [`found`] is what a kernel holds in it, and
//! [`walk`] takes connections through that, there and back. Nothing here does I/O, so that none of what it says needs
//! root to be tested; and nothing knows whose rules they are.

// Nothing panics, on any input. Tests may: that is how they fail.
#![cfg_attr(
    not(any(test, feature = "testing")),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]
// Nobody reads these crates' documentation but here: what a name says already isn't said again.
#![allow(missing_docs)]

pub mod found;
pub mod rules;
pub mod walk;
