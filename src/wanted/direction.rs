//! Inbound and outbound.

use std::fmt;

use crate::wanted::ruleset::ChainName;

/// Which way connections go, seen from the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// To the pod.
    Inbound,
    /// From the pod.
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

    /// The chain that redirects them.
    pub(crate) fn chain(self) -> ChainName {
        match self {
            Direction::Inbound => ChainName::ProxyInitRedirect,
            Direction::Outbound => ChainName::ProxyInitOutput,
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_have_their_hooks_and_chains() {
        let [inbound, outbound] = Direction::ALL;
        assert_eq!(
            (inbound.to_string(), outbound.to_string()),
            ("inbound".into(), "outbound".into())
        );
        assert_eq!(inbound.chain().as_str(), "PROXY_INIT_REDIRECT");
        assert_eq!(outbound.chain().as_str(), "PROXY_INIT_OUTPUT");
    }
}
