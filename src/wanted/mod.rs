//! What is asked for: the configuration, and the rules that it leads to.

mod config;
mod draft;
pub mod flags;
pub mod lists;
mod mode;
mod plan;
pub mod restore;
mod ruleset;
pub mod tables;
pub mod warnings;

pub use self::config::{Config, IdRange, Interface, InvalidValue, NumberRange, OwnerId, Port, PortRange, Subnet};
pub(crate) use self::draft::Draft;
pub use self::mode::{Mode, ModeChoice, NATIVE};
pub use self::plan::plan;
pub use self::ruleset::{ChainName, Purpose, Ruleset};
pub(crate) use self::ruleset::{is_on_owner, owner};
