//! Pure data and pure functions: the configuration, the rules that it leads to, and what the kernel holds.
//!
//! Nothing here does I/O, and nothing imports any other module of the crate, so all of it can be tested without root.

pub mod config;
pub mod difference;
pub mod expected;
pub mod explain;
pub mod flags;
pub mod found;
pub mod hook;
pub mod installed;
pub mod intervals;
pub mod line;
pub mod lists;
pub mod mode;
pub mod nftables;
pub mod obstacle;
pub mod plan;
pub mod ruleset;
#[cfg(feature = "serde")]
mod serialize;
pub mod walk;
pub mod warnings;
pub mod xtables;
