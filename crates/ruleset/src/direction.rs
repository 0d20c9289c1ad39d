//! Inbound and outbound.

use derive_more::Display;

/// The direction of connections, seen from the network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Display)]
#[display("{}", self.name())]
pub enum Direction {
    Inbound,
    Outbound,
}

impl Direction {
    pub const ALL: [Self; 2] = [Self::Inbound, Self::Outbound];

    pub fn name(self) -> &'static str {
        match self {
            Direction::Inbound => "inbound",
            Direction::Outbound => "outbound",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_are_named() {
        assert_eq!(Direction::ALL.map(|direction| direction.to_string()), ["inbound", "outbound"]);
    }
}
