//! The numbers of fields, families and hooks: where a field is in a packet's headers, and how nf_tables numbers
//! families and hooks. Each fact is here once, for writing and for reading.

use nftnl::ProtoFamily;
use packets::rules::{Family, Field, Hook, TableFamily};

/// Where a field is in a packet: the header (`NFT_PAYLOAD_*_HEADER`), and the field's offset and length in bytes; none
/// for those that are loaded by another expression, as [`META_FIELDS`], or have no expression that writes them.
///
/// `struct iphdr` and `struct ipv6hdr` in linux/ip.h and linux/ipv6.h, `struct tcphdr` in linux/tcp.h.
pub(crate) fn place(field: Field) -> Option<(i32, u32, u32)> {
    let network = libc::NFT_PAYLOAD_NETWORK_HEADER;
    let transport = libc::NFT_PAYLOAD_TRANSPORT_HEADER;
    Some(match field {
        Field::Source(Family::V4) => (network, 12, 4),
        Field::Destination(Family::V4) => (network, 16, 4),
        Field::Source(Family::V6) => (network, 8, 16),
        Field::Destination(Family::V6) => (network, 24, 16),
        Field::SourcePort => (transport, 0, 2),
        Field::DestinationPort => (transport, 2, 2),
        Field::Family | Field::Protocol | Field::InInterface | Field::OutInterface | Field::Uid | Field::Gid => {
            return None;
        }
        Field::State | Field::Mark | Field::ConnectionMark | Field::TcpFlags => return None,
    })
}

/// The place of the protocol in `struct iphdr`. Some versions of iptables-nft write `-p tcp` for IPv4 with it.
pub(crate) const IPV4_PROTOCOL: (i32, u32, u32) = (libc::NFT_PAYLOAD_NETWORK_HEADER, 9, 1);

/// The place of the protocol in `struct ipv6hdr`, where there are no extension headers.
pub(crate) const IPV6_PROTOCOL: (i32, u32, u32) = (libc::NFT_PAYLOAD_NETWORK_HEADER, 6, 1);

/// The place of TCP's flags in `struct tcphdr`.
pub(crate) const TCP_FLAGS: (i32, u32, u32) = (libc::NFT_PAYLOAD_TRANSPORT_HEADER, 13, 1);

/// The fields that rules may load from a packet's headers.
pub(crate) const PAYLOAD_FIELDS: [Field; 6] = [
    Field::Source(Family::V4),
    Field::Destination(Family::V4),
    Field::Source(Family::V6),
    Field::Destination(Family::V6),
    Field::SourcePort,
    Field::DestinationPort,
];

/// Which `NFT_META_*` a field is.
pub(crate) const META_FIELDS: [(Field, i32); 7] = [
    (Field::Family, libc::NFT_META_NFPROTO),
    (Field::Protocol, libc::NFT_META_L4PROTO),
    (Field::InInterface, libc::NFT_META_IIFNAME),
    (Field::OutInterface, libc::NFT_META_OIFNAME),
    (Field::Uid, libc::NFT_META_SKUID),
    (Field::Gid, libc::NFT_META_SKGID),
    (Field::Mark, libc::NFT_META_MARK),
];

/// The last bytes of a number that is written with 16, as many as its field has; none if it has more.
pub(crate) fn last_bytes(number: &[u8; 16], length: usize) -> Option<&[u8]> {
    let (rest, bytes) = number.split_at_checked(16usize.checked_sub(length)?)?;
    rest.iter().all(|&byte| byte == 0).then_some(bytes)
}

/// Whether a change of these bytes of a packet leaves it on its way: those of IP's class of traffic and of its hops.
/// nft writes the byte beside one too, as it was.
pub(crate) fn is_harmless(family: Option<Family>, (base, offset, length): (i32, u32, u32)) -> bool {
    let is_of_ip = base == libc::NFT_PAYLOAD_NETWORK_HEADER;
    let is_in = |first: u32, bytes: u32| is_of_ip && offset >= first && offset.saturating_add(length) <= first + bytes;
    let is_of = |known: Family| family.is_none_or(|family| family == known);
    let traffic_class = is_in(0, 2);
    // `struct iphdr` has the protocol after the hops, `struct ipv6hdr` before them.
    let hops_of_v4 = is_of(Family::V4) && is_in(8, 2) && offset == 8;
    let hops_of_v6 = is_of(Family::V6) && is_in(6, 2) && offset + length == 8;
    traffic_class || (family.is_some() && (hops_of_v4 || hops_of_v6))
}

/// The family in nfnetlink's header: `NFPROTO_*` in linux/netfilter.h.
pub fn protocol(family: TableFamily) -> ProtoFamily {
    match family {
        TableFamily::Ip(Family::V4) => ProtoFamily::Ipv4,
        TableFamily::Ip(Family::V6) => ProtoFamily::Ipv6,
        TableFamily::Inet => ProtoFamily::Inet,
        TableFamily::Netdev => ProtoFamily::NetDev,
    }
}

/// The family with this number, if its chains can decide where a TCP connection over IP goes.
pub(crate) fn table_family(number: u8) -> Option<TableFamily> {
    [
        TableFamily::Ip(Family::V4),
        TableFamily::Ip(Family::V6),
        TableFamily::Inet,
        TableFamily::Netdev,
    ]
    .into_iter()
    .find(|&family| protocol(family) as u8 == number)
}

/// The number of a hook of IP packets.
pub(crate) fn hook_number(hook: Hook) -> Option<u32> {
    let index = Hook::INET.iter().position(|&known| known == hook)?;
    u32::try_from(index).ok()
}

/// The hook with this number in tables of a family.
pub(crate) fn hook(family: TableFamily, number: u32) -> Option<Hook> {
    let hooks: &[Hook] = match family {
        TableFamily::Netdev => &Hook::NETDEV,
        TableFamily::Ip(_) | TableFamily::Inet => &Hook::INET,
    };
    hooks.get(usize::try_from(number).ok()?).copied()
}
