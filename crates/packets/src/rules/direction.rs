//! Inbound and outbound.

use std::fmt;

/// Which way connections go, seen from the network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// To it.
    Inbound,
    /// From it.
    Outbound,
}

impl Direction {
    /// Both directions.
    pub const ALL: [Self; 2] = [Self::Inbound, Self::Outbound];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Direction::Inbound => "inbound",
            Direction::Outbound => "outbound",
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
