//! The xt extensions that our rules use through nft_compat: their structures as bytes, both ways.
//!
//! Each layout is that of the kernel's header, padded to 8 bytes (`XT_ALIGN`), for nft_compat refuses any other size.
//! Numbers are in the machine's byte order but where a comment says otherwise.

use crate::netlink::message::{Malformed, u16_at, u32_at};
use crate::rules::config::{Family, OwnerId, Port, PortRange};
use crate::rules::ruleset::{Match, Multiport};

/// An xt match or target, as the kernel finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Extension {
    /// `struct xt_multiport_v1`, linux/netfilter/xt_multiport.h
    Multiport,
    /// `struct xt_owner_match_info`, linux/netfilter/xt_owner.h
    Owner,
    /// `struct xt_tcp`, linux/netfilter/xt_tcpudp.h
    Tcp,
    /// `struct nf_nat_ipv4_multi_range_compat` (IPv4) and `struct nf_nat_range` (IPv6), linux/netfilter/nf_nat.h
    Redirect,
}

impl Extension {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Multiport => "multiport",
            Self::Owner => "owner",
            Self::Tcp => "tcp",
            Self::Redirect => "REDIRECT",
        }
    }

    pub(super) fn revision(self) -> u32 {
        match self {
            Self::Multiport | Self::Owner => 1,
            Self::Tcp | Self::Redirect => 0,
        }
    }

    /// The module it is in, and the option that builds it.
    pub(super) fn module(self) -> (&'static str, &'static str) {
        match self {
            Self::Multiport => ("xt_multiport", "CONFIG_NETFILTER_XT_MATCH_MULTIPORT"),
            Self::Owner => ("xt_owner", "CONFIG_NETFILTER_XT_MATCH_OWNER"),
            Self::Tcp => ("xt_tcpudp", "CONFIG_NETFILTER_XTABLES"),
            Self::Redirect => ("xt_REDIRECT", "CONFIG_NETFILTER_XT_TARGET_REDIRECT"),
        }
    }

    pub(super) fn is_target(self) -> bool {
        self == Self::Redirect
    }
}

const XT_MULTIPORT_DESTINATION: u8 = 1;
const XT_OWNER_UID: u8 = 1;
const XT_OWNER_GID: u8 = 2;
const NF_NAT_RANGE_PROTO_SPECIFIED: u32 = 2;

/// Offsets in `struct xt_multiport_v1`: flags, count, 15 ports, for each whether a range starts there, invert.
const MULTIPORT_PORTS: usize = 2;
const MULTIPORT_RANGE_FLAGS: usize = 32;
const MULTIPORT_INVERT: usize = 47;

/// Writes `bytes` at an offset of a structure that is known to have room there.
fn put(structure: &mut [u8], offset: usize, bytes: &[u8]) {
    for (slot, byte) in structure.iter_mut().skip(offset).zip(bytes) {
        *slot = *byte;
    }
}

pub(super) fn multiport(ports: &Multiport) -> [u8; 48] {
    let mut info = [0; 48];
    let mut slot = 0;
    for range in ports.ranges() {
        put(&mut info, MULTIPORT_PORTS + 2 * slot, &range.first().to_ne_bytes());
        if range.first() != range.last() {
            put(&mut info, MULTIPORT_RANGE_FLAGS + slot, &[1]);
            slot += 1;
            put(&mut info, MULTIPORT_PORTS + 2 * slot, &range.last().to_ne_bytes());
        }
        slot += 1;
    }
    put(&mut info, 0, &[XT_MULTIPORT_DESTINATION, slot as u8]);
    info
}

/// A multiport match that ours can express: destination ports, not inverted.
pub(super) fn read_multiport(info: &[u8]) -> Result<Option<Match>, Malformed> {
    let &[kind, count, ..] = info else {
        return Err(Malformed);
    };
    if kind != XT_MULTIPORT_DESTINATION || byte_at(info, MULTIPORT_INVERT)? != 0 {
        return Ok(None);
    }
    let mut ranges = Vec::new();
    let mut slot = 0;
    while slot < usize::from(count).min(Multiport::MAX_REFERENCES) {
        let first = u16_at(info, MULTIPORT_PORTS + 2 * slot)?;
        if byte_at(info, MULTIPORT_RANGE_FLAGS + slot)? != 0 {
            slot += 1;
            if slot == Multiport::MAX_REFERENCES {
                return Err(Malformed);
            }
        }
        let last = u16_at(info, MULTIPORT_PORTS + 2 * slot)?;
        slot += 1;
        let Some(range) = PortRange::new(first, last) else {
            return Ok(None);
        };
        ranges.push(range);
    }
    Ok(Multiport::new(ranges).map(Match::DestinationPorts))
}

pub(super) fn uid_owner(id: OwnerId) -> [u8; 24] {
    owner(id, 0, XT_OWNER_UID)
}

pub(super) fn gid_owner(id: OwnerId) -> [u8; 24] {
    owner(id, 8, XT_OWNER_GID)
}

/// uid min, uid max, gid min, gid max, which of them count, which are inverted.
fn owner(id: OwnerId, offset: usize, kind: u8) -> [u8; 24] {
    let mut info = [0; 24];
    put(&mut info, offset, &id.get().to_ne_bytes());
    put(&mut info, offset + 4, &id.get().to_ne_bytes());
    put(&mut info, 16, &[kind]);
    info
}

/// An owner match that ours can express: one uid or one gid, not inverted.
pub(super) fn read_owner(info: &[u8]) -> Result<Option<Match>, Malformed> {
    let (offset, wrap): (_, fn(OwnerId) -> Match) = match (byte_at(info, 16)?, byte_at(info, 17)?) {
        (XT_OWNER_UID, 0) => (0, Match::UidOwner),
        (XT_OWNER_GID, 0) => (8, Match::GidOwner),
        _ => return Ok(None),
    };
    let (low, high) = (u32_at(info, offset)?, u32_at(info, offset + 4)?);
    Ok(OwnerId::new(low).filter(|_| low == high).map(wrap))
}

/// Source ports, destination ports, option, flags' mask, flags, what is inverted.
pub(super) fn tcp(port: Port) -> [u8; 16] {
    let mut info = [0; 16];
    put(&mut info, 2, &u16::MAX.to_ne_bytes());
    put(&mut info, 4, &port.get().to_ne_bytes());
    put(&mut info, 6, &port.get().to_ne_bytes());
    info
}

/// A tcp match that ours can express: one destination port and nothing else.
pub(super) fn read_tcp(info: &[u8]) -> Result<Option<Match>, Malformed> {
    let port = Port::new(u16_at(info, 4)?);
    let wanted = port.filter(|&port| info.get(..12) == tcp(port).get(..12));
    Ok(wanted.map(Match::DestinationPort))
}

/// IPv4: how many ranges (1), then flags, addresses (none), ports in network byte order. IPv6: flags, addresses,
/// ports in network byte order.
pub(super) fn redirect(family: Family, to: Port) -> Vec<u8> {
    let (size, flags, ports) = redirect_layout(family);
    let mut info = vec![0; size];
    if family == Family::V4 {
        put(&mut info, 0, &1u32.to_ne_bytes());
    }
    put(&mut info, flags, &NF_NAT_RANGE_PROTO_SPECIFIED.to_ne_bytes());
    put(&mut info, ports, &to.get().to_be_bytes());
    put(&mut info, ports + 2, &to.get().to_be_bytes());
    info
}

/// A redirect that ours can express: to one port.
pub(super) fn read_redirect(family: Family, info: &[u8]) -> Result<Option<Port>, Malformed> {
    let (size, _, ports) = redirect_layout(family);
    if info.len() < size {
        return Err(Malformed);
    }
    let port = Port::new(u16::from_be(u16_at(info, ports)?));
    // The padding at the end may hold anything.
    let meaning = ports + 4;
    Ok(port.filter(|&port| info.get(..meaning) == redirect(family, port).get(..meaning)))
}

/// Size, and where the flags and the ports are.
fn redirect_layout(family: Family) -> (usize, usize, usize) {
    match family {
        Family::V4 => (24, 4, 16),
        Family::V6 => (40, 0, 36),
    }
}

fn byte_at(info: &[u8], offset: usize) -> Result<u8, Malformed> {
    info.get(offset).copied().ok_or(Malformed)
}
