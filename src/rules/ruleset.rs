//! The rules in xtables' vocabulary, as plain data, and the pure function that plans them.
//!
//! A [`Ruleset`] is the only thing that a backend is handed: installing encodes it, simulating prints it.

use std::borrow::Cow;
use std::ffi::CStr;
use std::fmt::{self, Write as _};

use ipnet::IpNet;

use crate::rules::config::{Family, OwnerId, Port, PortRange};

/// One family's rules in the nat table, chain by chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruleset {
    /// Whose packets they see.
    pub family: Family,
    /// The chains in the order in which their rules are added.
    pub chains: Vec<Chain>,
}

impl Ruleset {
    /// Every rule with its chain, in order.
    pub fn rules(&self) -> impl Iterator<Item = (ChainName, &Rule)> {
        self.chains
            .iter()
            .flat_map(|chain| chain.rules.iter().map(|rule| (chain.name, rule)))
    }
}

/// A chain and our rules in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Which chain.
    pub name: ChainName,
    /// Its rules, first to last.
    pub rules: Vec<Rule>,
}

/// The chains of the nat table that we have rules in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChainName {
    /// The base chain that inbound packets enter; holds a jump of ours, and strangers' rules.
    Prerouting,
    /// The base chain that the pod's own packets enter; likewise.
    Output,
    /// Our chain for inbound packets.
    ProxyInitRedirect,
    /// Our chain for outbound packets.
    ProxyInitOutput,
}

impl ChainName {
    /// All of them, base chains first.
    pub(crate) const ALL: [Self; 4] = [
        Self::Prerouting,
        Self::Output,
        Self::ProxyInitRedirect,
        Self::ProxyInitOutput,
    ];

    /// Its name in the kernel.
    pub fn as_str(self) -> &'static str {
        self.as_c_str().to_str().unwrap_or_default()
    }

    /// The same for C.
    pub(crate) fn as_c_str(self) -> &'static CStr {
        match self {
            Self::Prerouting => c"PREROUTING",
            Self::Output => c"OUTPUT",
            Self::ProxyInitRedirect => c"PROXY_INIT_REDIRECT",
            Self::ProxyInitOutput => c"PROXY_INIT_OUTPUT",
        }
    }

    /// The chain with this name, if it is one of these.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|chain| chain.as_str() == name)
    }

    /// Whether the chain is all ours; the others are shared with strangers.
    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Self::ProxyInitRedirect | Self::ProxyInitOutput)
    }
}

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A rule: where every match holds, the target decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// What a packet must be like; no match: any packet.
    pub matches: Vec<Match>,
    /// What happens to it.
    pub target: Target,
    /// Why the rule is there, for people; without the prefix's quotes, at most 127 bytes.
    pub comment: Cow<'static, str>,
}

/// A condition on a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    /// `-p tcp`
    Tcp,
    /// `-m tcp --dport PORT`
    DestinationPort(Port),
    /// `-m multiport --dports PORTS`
    DestinationPorts(Multiport),
    /// `-s SUBNET`
    Source(IpNet),
    /// `-d SUBNET`
    Destination(IpNet),
    /// `-o lo`
    OutLoopback,
    /// `-m owner --uid-owner UID`
    UidOwner(OwnerId),
    /// `-m owner --gid-owner GID`
    GidOwner(OwnerId),
}

/// What happens to a packet that matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Back to the calling chain: the packet bypasses the proxy.
    Return,
    /// To the proxy, which listens on this port.
    Redirect(Port),
    /// On to another chain.
    Jump(ChainName),
}

/// What one multiport match holds: at most [`Multiport::MAX_REFERENCES`] port references, a range counting two
/// (`XT_MULTI_PORTS` in linux/netfilter/xt_multiport.h), and at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Multiport(Vec<PortRange>);

impl Multiport {
    /// The most references that one match holds.
    pub const MAX_REFERENCES: usize = 15;

    /// A match on these ports, if they fit.
    pub fn new(ports: Vec<PortRange>) -> Option<Self> {
        let references: usize = ports.iter().copied().map(Self::references).sum();
        (1..=Self::MAX_REFERENCES).contains(&references).then_some(Self(ports))
    }

    /// Cuts a list of any length into matches, in order, each as full as it gets.
    pub fn pieces(ports: &[PortRange]) -> Vec<Self> {
        let mut pieces = Vec::with_capacity(ports.len() / Self::MAX_REFERENCES + 1);
        let mut piece = Vec::new();
        let mut used = 0;
        for &range in ports {
            if used + Self::references(range) > Self::MAX_REFERENCES {
                pieces.push(Self(std::mem::take(&mut piece)));
                used = 0;
            }
            used += Self::references(range);
            piece.push(range);
        }
        if !piece.is_empty() {
            pieces.push(Self(piece));
        }
        pieces
    }

    /// The ports and ranges.
    pub fn ranges(&self) -> &[PortRange] {
        &self.0
    }

    fn references(range: PortRange) -> usize {
        if range.first() == range.last() { 1 } else { 2 }
    }
}

/// As iptables writes it: `4190,4191,8000:8100`.
impl fmt::Display for Multiport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, range) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_char(',')?;
            }
            range.fmt(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(list: &str) -> Vec<PortRange> {
        list.split(',').map(|item| item.parse().unwrap()).collect()
    }

    #[test]
    fn a_range_counts_two_and_a_range_of_one_port_counts_one() {
        let seven_ranges_and_one = "1-2,3-4,5-6,7-8,9-10,11-12,13-14,20-20";
        assert_eq!(Multiport::pieces(&ranges(seven_ranges_and_one)).len(), 1);
        let pieces = Multiport::pieces(&ranges(&format!("{seven_ranges_and_one},30")));
        let written: Vec<_> = pieces.iter().map(ToString::to_string).collect();
        assert_eq!(written, ["1:2,3:4,5:6,7:8,9:10,11:12,13:14,20", "30"]);
        assert!(Multiport::new(ranges(&format!("{seven_ranges_and_one},30"))).is_none());
        assert!(Multiport::new(Vec::new()).is_none());
    }
}
