//! What is asked for: the configuration, and the rules that it leads to.

pub mod config;
pub mod direction;
pub mod flags;
pub mod lists;
pub mod mode;
pub mod plan;
pub mod restore;
pub mod ruleset;
pub mod tables;
pub mod warnings;
