//! Address families.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use derive_more::Display;

use crate::intervals::Intervals;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Display)]
pub enum Family {
    #[display("IPv4")]
    V4,
    #[display("IPv6")]
    V6,
}

impl Family {
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    pub fn localhost(self) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::LOCALHOST.into(),
            Self::V6 => Ipv6Addr::LOCALHOST.into(),
        }
    }

    /// Every address of the loopback device's network.
    pub fn loopback(self) -> Intervals {
        Intervals::new([match self {
            Self::V4 => (0x7f00_0000, 0x7fff_ffff),
            Self::V6 => (1, 1),
        }])
    }

    pub fn nft_name(self) -> &'static str {
        match self {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        }
    }

    pub fn iptables(self) -> &'static str {
        match self {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        }
    }
}
