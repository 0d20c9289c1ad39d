//! What rules are made of, as plain data: tables, chains, conditions and actions, and nft's words for them.
//!
//! What is wanted and what was [found](crate::found) have these types.

mod context;
mod direction;
mod family;
mod field;
pub mod flags;
mod hook;
mod intervals;
mod name;
pub mod nftables;
mod rule;
mod set;
mod subnet;
mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod xtables;

pub use self::context::{RoutingFacts, always};
pub use self::direction::Direction;
pub use self::family::Family;
pub use self::field::{Field, FieldFacts, IptablesOption};
pub use self::hook::{Hook, NAT, NAT_PRIORITY, XTABLES, nat_priority};
pub use self::intervals::Intervals;
pub use self::name::{Name, is_hidden};
pub use self::rule::{
    Action, Bits, Condition, Context, Counters, Effect, Holding, ICMPV6, LOOPBACK, LOOPBACK_INDEX, Nat, Rule, TCP,
    Values, address, device, interface, names_beginning_with, span,
};
pub use self::set::{Set, Shape, set_elements, set_field, set_size};
pub use self::subnet::{addresses, ip, subnet};
pub use self::table::{Base, Chain, Kind, Policy, Subsystem, Table, TableFamily};
