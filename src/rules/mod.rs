//! What rules are made of, as plain data: tables, chains, conditions and actions, and nft's words for them.
//!
//! What is [wanted](crate::wanted) and what was [found](crate::found) is said in this vocabulary.

#[cfg(test)]
pub(crate) mod examples;
pub mod family;
pub mod flags;
pub mod hook;
pub mod intervals;
pub mod name;
pub mod nftables;
pub mod rule;
pub mod set;
pub mod subnet;
pub mod table;
pub mod xtables;
