//! Follows connections through everything that the kernel runs at a hook.
//!
//! The walk takes a set of connections ([`Connections`]: each field may be of these numbers) through the base chains in
//! the kernel's order, and splits it where a rule takes only some of them. One connection is a set of one. How the
//! kernel decides is in docs/facts.md, with its sources.
//!
//! Before a connection's first packet over IPv6, neighbours find each other ([`discovery`]) by packets that pass the
//! same chains. A connection is three packets: the first one, the reply, and the ACK after it. Each goes its way
//! through the hooks as a `State` (state.rs). The last two are translated as the first one was.
//!
//! Its decisions, and the arriving connections, are [`Outcome`]s; it can record each [`Step`] too. There are three
//! kinds of unknowns:
//! - what could not be seen ([`Unseen`](ruleset::Unseen)), about which the walk knows nothing;
//! - what is not understood, and has that name everywhere ([`Treatment::NotUnderstood`]);
//! - what depends on an open question ([`Open`]): connections that get somewhere only by some of its answers carry a
//!   [`Doubt`].

// Nothing panics, on any input. Tests may: that is how they fail.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]
// Nobody reads these crates' documentation but here: what a name says already isn't said again.
#![allow(missing_docs)]

mod connections;
mod doubt;
mod evaluate;
mod order;
mod route;
mod state;
mod step;
mod walker;

pub use self::connections::{Connections, Meeting, client_ports, names_except_lo};
pub use self::doubt::Doubt;
pub use self::order::{Slot, chains_at};
pub use self::route::{Environment, Neighbours, discovery, first_hooks, there_and_back};
pub use self::step::{Leg, Matched, Open, Outcome, Place, Reason, Step, Treatment};
pub use self::walker::{Walk, Watched};
