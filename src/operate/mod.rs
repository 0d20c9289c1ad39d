//! What a user can ask for, one file for each subcommand, and what those share.

pub mod choose;
mod close_wait;
pub mod detect;
pub mod explain;
pub mod host_network;
pub mod install;
mod json;
pub mod neighbours;
pub mod notice;
pub mod recognize;
pub mod show;
mod style;
pub mod uninstall;
#[cfg(feature = "cli")]
pub mod validate;
pub mod verify;
mod words;
