//! What is asked for: the configuration, and the rules that it leads to.

mod config;
pub mod flags;
pub mod lists;
mod mode;
mod names;
mod plan;
pub mod restore;
pub mod tables;
pub mod warnings;

pub use self::config::{Config, IdRange, Interface, InvalidValue, NumberRange, OwnerId, Port, PortRange, Subnet};
pub use self::mode::{Mode, ModeChoice, NATIVE};
pub use self::names::{ChainName, Purpose};
pub(crate) use self::names::{chain_of, is_on_owner, owner, rules_of};
pub use self::plan::plan;
