//! Choosing a mode, and what is true of one mode alone.

mod choice;
mod legacy;
mod legacy_locks;
mod native;
mod nft;
