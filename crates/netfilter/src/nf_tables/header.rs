//! The numbers of fields, families and hooks: where a field is in a packet's headers, and how nf_tables numbers
//! families and hooks. Each fact is here once, for writing and for reading.

use nftnl::ProtoFamily;
use ruleset::{Effect, Family, Field, Hook, TableFamily};

/// Bytes of a packet: the header that they are in (`NFT_PAYLOAD_*_HEADER`), and their offset and length there.
pub(crate) type Place = (i32, u32, u32);

/// The fields that are loaded from a packet's headers: `struct iphdr` and `struct ipv6hdr` in linux/ip.h and linux/ipv6.h,
/// `struct tcphdr` in linux/tcp.h.
pub(crate) const PAYLOAD_FIELDS: [(Field, Place); 6] = [
    (Field::Source(Family::V4), (libc::NFT_PAYLOAD_NETWORK_HEADER, 12, 4)),
    (Field::Destination(Family::V4), (libc::NFT_PAYLOAD_NETWORK_HEADER, 16, 4)),
    (Field::Source(Family::V6), (libc::NFT_PAYLOAD_NETWORK_HEADER, 8, 16)),
    (Field::Destination(Family::V6), (libc::NFT_PAYLOAD_NETWORK_HEADER, 24, 16)),
    (Field::SourcePort, (libc::NFT_PAYLOAD_TRANSPORT_HEADER, 0, 2)),
    (Field::DestinationPort, (libc::NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2)),
];

/// Some versions of iptables-nft write `-p tcp` for IPv4 with it.
pub(crate) const IPV4_PROTOCOL: Place = (libc::NFT_PAYLOAD_NETWORK_HEADER, 9, 1);
/// Where there are no extension headers.
pub(crate) const IPV6_PROTOCOL: Place = (libc::NFT_PAYLOAD_NETWORK_HEADER, 6, 1);
pub(crate) const IPV6_HOPS: Place = (libc::NFT_PAYLOAD_NETWORK_HEADER, 7, 1);
/// The first byte of `struct icmp6hdr`.
pub(crate) const ICMPV6_TYPE: Place = (libc::NFT_PAYLOAD_TRANSPORT_HEADER, 0, 1);
/// `h_proto` of `struct ethhdr` in linux/if_ether.h.
pub(crate) const ETHER_TYPE: Place = (libc::NFT_PAYLOAD_LL_HEADER, 12, 2);
pub(crate) const TCP_FLAGS: Place = (libc::NFT_PAYLOAD_TRANSPORT_HEADER, 13, 1);

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

/// The fragment's offset (`IP_OFFSET` in net/ip.h), and its place.
pub(crate) const IPV4_FRAGMENT: (Place, [u8; 2]) = ((libc::NFT_PAYLOAD_NETWORK_HEADER, 6, 2), [0x1f, 0xff]);

/// What writing these bytes of a packet does, of which the bits under the mask are as they were: nothing to its way where
/// that is IP's class of traffic or IPv4's time to live. None: it may go elsewhere. nft writes two bytes, also where one
/// field is smaller.
pub(crate) fn rewritten(family: Option<Family>, (base, offset, length): Place, kept: &[u8]) -> Option<Effect> {
    if base != libc::NFT_PAYLOAD_NETWORK_HEADER {
        return None;
    }
    // The bits that may change of each of the first bytes of `struct iphdr` and `struct ipv6hdr`.
    let free: &[u8] = match family {
        Some(Family::V4) => &[0, 0xff, 0, 0, 0, 0, 0, 0, 0xff],
        Some(Family::V6) => &[0x0f, 0xf0, 0, 0, 0, 0, 0, 0xff],
        // What is in both.
        None => &[0, 0xf0],
    };
    let mut changes_hops = false;
    for index in 0..length {
        let place = offset.saturating_add(index);
        let changed = !kept.get(index as usize).copied().unwrap_or(0);
        if changed & !free.get(place as usize).copied().unwrap_or(0) != 0 {
            return None;
        }
        changes_hops |= family == Some(Family::V6) && place == IPV6_HOPS.1 && changed != 0;
    }
    let text = "[payload]".to_owned();
    Some(if changes_hops { Effect::Mark { field: Field::HopLimit, to: None, text } } else { Effect::Other(text) })
}

/// The family in nfnetlink's header: `NFPROTO_*` in linux/netfilter.h.
pub fn protocol(family: TableFamily) -> ProtoFamily {
    match family {
        TableFamily::Ip(Family::V4) => ProtoFamily::Ipv4,
        TableFamily::Ip(Family::V6) => ProtoFamily::Ipv6,
        TableFamily::Inet => ProtoFamily::Inet,
        TableFamily::Netdev => ProtoFamily::NetDev,
        TableFamily::Arp => ProtoFamily::Arp,
        TableFamily::Bridge => ProtoFamily::Bridge,
    }
}

/// The family with this number, if it is one of nf_tables'.
pub(crate) fn table_family(number: u8) -> Option<TableFamily> {
    use TableFamily::{Arp, Bridge, Inet, Ip, Netdev};
    let all = [Ip(Family::V4), Ip(Family::V6), Inet, Netdev, Arp, Bridge];
    all.into_iter().find(|&family| protocol(family) as u8 == number)
}

pub(crate) fn hook_number(hook: Hook) -> Option<u32> {
    Hook::INET.iter().position(|&known| known == hook).map(|index| index as u32)
}

/// The hook with this number in tables of a family.
pub(crate) fn hook(family: TableFamily, number: u32) -> Option<Hook> {
    let hooks: &[Hook] = match family {
        TableFamily::Netdev => &Hook::NETDEV,
        TableFamily::Arp => &Hook::ARP,
        // Those of bridges have the same numbers (`NF_BR_PRE_ROUTING` and the others in linux/netfilter_bridge.h).
        TableFamily::Ip(_) | TableFamily::Inet | TableFamily::Bridge => &Hook::INET,
    };
    hooks.get(usize::try_from(number).ok()?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_stays_on_its_way_if_only_its_class_of_traffic_or_its_hops_change() {
        #[derive(Debug, PartialEq)]
        enum Rewritten {
            Harmless,
            HopLimit,
            Other,
        }
        use Rewritten::{Harmless, HopLimit, Other};

        let (ip, tcp) = (libc::NFT_PAYLOAD_NETWORK_HEADER, libc::NFT_PAYLOAD_TRANSPORT_HEADER);
        let (v4, v6) = (Some(Family::V4), Some(Family::V6));
        // As nft 1.0.6 writes them, but for the last ones.
        for (family, place, kept, want) in [
            (v4, (ip, 0, 2), &[0xff, 0x03][..], Harmless), // ip dscp
            (v4, (ip, 0, 2), &[0x0f, 0xff], Other),        // ip version
            (v4, (ip, 0, 2), &[0xf0, 0xff], Other),        // ip hdrlength
            (v4, (ip, 8, 2), &[0x00, 0xff], Harmless),     // ip ttl
            (v4, (ip, 8, 2), &[0xff, 0x00], Other),        // ip protocol
            (v6, (ip, 0, 2), &[0xf0, 0x3f], Harmless),     // ip6 dscp
            (v6, (ip, 0, 2), &[0x0f, 0xff], Other),        // ip6 version
            (v6, (ip, 6, 2), &[0xff, 0x00], HopLimit),     // ip6 hoplimit
            (v6, (ip, 6, 2), &[0x00, 0xff], Other),        // ip6 nexthdr
            (v4, (tcp, 0, 2), &[0xff, 0x00], Other),
            // Nothing is known to be kept.
            (v4, (ip, 8, 2), &[], Other),
            (v4, (ip, 8, 1), &[], Harmless),
            (v6, (ip, 7, 1), &[], HopLimit),
            (v6, (ip, 7, 2), &[], Other),
            // The family may be either.
            (None, (ip, 0, 2), &[0xff, 0x03], Other),
            (None, (ip, 0, 2), &[0xff, 0x0f], Harmless),
            (None, (ip, 8, 1), &[], Other),
            (v4, (ip, u32::MAX, 2), &[], Other),
        ] {
            let is = match rewritten(family, place, kept) {
                Some(Effect::Mark { field: Field::HopLimit, to: None, .. }) => HopLimit,
                Some(effect) => (effect == Effect::Other("[payload]".to_owned())).then_some(Harmless).unwrap(),
                None => Other,
            };
            assert_eq!(is, want, "{family:?} {place:?} {kept:?}");
        }
    }

    #[test]
    fn a_family_is_known_by_its_number() {
        let ip = Family::ALL.map(TableFamily::Ip);
        let others = [TableFamily::Inet, TableFamily::Netdev, TableFamily::Arp, TableFamily::Bridge];
        for family in ip.into_iter().chain(others) {
            assert_eq!(table_family(protocol(family) as u8), Some(family));
        }
        assert_eq!(table_family(libc::NFPROTO_UNSPEC as u8), None);
    }

    #[test]
    fn a_hook_is_known_by_its_number_and_the_family() {
        for (number, known) in (0..).zip(Hook::INET) {
            assert_eq!(hook_number(known), Some(number));
            for family in [TableFamily::Ip(Family::V4), TableFamily::Inet, TableFamily::Bridge] {
                assert_eq!(hook(family, number), Some(known));
            }
        }
        assert_eq!(hook_number(Hook::Egress), None);
        assert_eq!(hook(TableFamily::Netdev, 1), Some(Hook::Egress));
        assert_eq!(hook(TableFamily::Arp, 1), Some(Hook::Output));
        assert_eq!(hook(TableFamily::Inet, 6), None);
    }

    #[test]
    fn a_number_has_the_bytes_of_its_field_or_none() {
        let number = 0x1234u128.to_be_bytes();
        assert_eq!(last_bytes(&number, 2), Some(&[0x12, 0x34][..]));
        assert_eq!(last_bytes(&number, 16), Some(&number[..]));
        assert_eq!(last_bytes(&number, 1), None);
        assert_eq!(last_bytes(&number, 17), None);
    }
}
