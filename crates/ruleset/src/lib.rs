//! Tables, chains, rules and sets as values, with their words in iptables' and nft's syntax.
//!
//! [`Ruleset`] has all tables of a network namespace, and [`Network`] its devices, addresses and listeners. Nothing here
//! does I/O, and nothing knows who made a rule.

// Nothing panics, on any input. Tests may: that is how they fail.
#![cfg_attr(
    not(any(test, feature = "testing")),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]
// Nobody reads these crates' documentation but here: what a name says already isn't said again.
#![allow(missing_docs)]

mod context;
mod direction;
mod family;
mod field;
pub mod flags;
mod hook;
mod intervals;
mod line;
mod listener;
mod name;
mod network;
pub mod nftables;
mod rule;
#[allow(clippy::module_inception)] // the crate is named after its main type
mod ruleset;
mod set;
mod subnet;
mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod xtables;

pub use self::context::{Facts, IpSet, LocalEntry};
pub use self::direction::Direction;
pub use self::family::Family;
pub use self::field::{Field, FieldFacts, IptablesOption};
pub use self::hook::{Hook, NAT, NAT_PRIORITY, XTABLES, nat_priority};
pub use self::intervals::Intervals;
pub use self::line::Line;
pub use self::listener::{Listener, Queue};
pub use self::name::{Name, is_hidden};
pub use self::network::{Address, Device, DeviceKey, Network, Numbered, Settings};
pub use self::rule::{
    Action, Bits, Bound, Case, Condition, Context, Counters, Effect, Holding, ICMP, ICMPV6, LOOPBACK, LOOPBACK_INDEX,
    Label, Lookup, Nat, NatKind, Rejection, Rule, TCP, Value, Values, address, device, interface, names_beginning_with,
    span,
};
pub use self::ruleset::{Ruleset, Unseen};
pub use self::set::{Key, Mapped, Set, Shape, set_elements, set_field, set_size};
pub use self::subnet::{addresses, ip, subnet};
pub use self::table::{Base, Chain, Kind, Policy, Subsystem, Table, TableFamily};
