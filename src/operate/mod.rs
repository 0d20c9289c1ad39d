//! What a user can ask for: one file per subcommand.

mod close_wait;
pub mod detect;
pub mod install;
pub mod uninstall;
pub mod verify;
