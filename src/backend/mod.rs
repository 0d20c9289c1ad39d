//! How a [`Ruleset`](crate::ruleset::Ruleset) reaches the kernel: one module a mode.

pub mod nft;
