//! The expressions that load a field, both ways.

use nftnl::Rule as NftnlRule;
use ruleset::{Family, Field};

use crate::netlink::objects::{add_meta, add_payload};

/// Bytes of a packet: the header that they are in (`NFT_PAYLOAD_*_HEADER`), and their offset and length there.
pub(crate) type Place = (i32, u32, u32);

/// The fields that are loaded from a packet's headers: `struct iphdr` and `struct ipv6hdr` in linux/ip.h and linux/ipv6.h,
/// `struct tcphdr` in linux/tcp.h.
pub(super) const PAYLOAD_FIELDS: [(Field, Place); 6] = [
    (Field::Source(Family::V4), (libc::NFT_PAYLOAD_NETWORK_HEADER, 12, 4)),
    (Field::Destination(Family::V4), (libc::NFT_PAYLOAD_NETWORK_HEADER, 16, 4)),
    (Field::Source(Family::V6), (libc::NFT_PAYLOAD_NETWORK_HEADER, 8, 16)),
    (Field::Destination(Family::V6), (libc::NFT_PAYLOAD_NETWORK_HEADER, 24, 16)),
    (Field::SourcePort, (libc::NFT_PAYLOAD_TRANSPORT_HEADER, 0, 2)),
    (Field::DestinationPort, (libc::NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2)),
];

/// The `NFT_META_*` of a field.
pub(super) const META_FIELDS: [(Field, i32); 9] = [
    (Field::Family, libc::NFT_META_NFPROTO),
    (Field::Protocol, libc::NFT_META_L4PROTO),
    (Field::InInterface, libc::NFT_META_IIFNAME),
    (Field::OutInterface, libc::NFT_META_OIFNAME),
    (Field::Uid, libc::NFT_META_SKUID),
    (Field::Gid, libc::NFT_META_SKGID),
    (Field::Mark, libc::NFT_META_MARK),
    (Field::EtherType, libc::NFT_META_PROTOCOL),
    (Field::PacketType, libc::NFT_META_PKTTYPE),
];

/// Adds the expression that loads a field; none if it isn't one that rules are written with.
pub(super) fn add_load(to: &mut NftnlRule<'_>, field: Field) -> Option<()> {
    let meta = META_FIELDS.into_iter().find(|(known, _)| *known == field);
    let payload = PAYLOAD_FIELDS.into_iter().find(|(known, _)| *known == field);
    match (field, meta, payload) {
        // These are only read.
        (Field::EtherType | Field::PacketType, ..) => return None,
        (_, Some((_, key)), _) => add_meta(to, key),
        (_, None, Some((_, place))) => add_payload(to, place),
        (_, None, None) => return None,
    }
    Some(())
}
