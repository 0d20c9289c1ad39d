//! Pure data and pure functions: what is asked for, the rules that do it, and what the kernel holds.
//!
//! Nothing here does I/O or imports anything of the crate but this module, so all of it can be tested without root.

pub mod config;
pub mod flags;
pub mod mode;
pub mod plan;
pub mod ruleset;
#[cfg(feature = "serde")]
mod serialize;
pub mod warnings;
pub mod xtables;
