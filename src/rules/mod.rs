//! Pure data and pure functions: what is asked for, the rules that do it, and what the kernel holds.
//!
//! Nothing here does I/O or imports anything of the crate but this module, so all of it can be tested without root.

pub mod config;
pub mod difference;
pub mod expected;
pub mod flags;
pub mod found;
pub mod hook;
pub mod intervals;
pub mod line;
pub mod mode;
pub mod nftables;
pub mod plan;
pub mod ruleset;
#[cfg(feature = "serde")]
mod serialize;
pub mod walk;
pub mod warnings;
pub mod xtables;
