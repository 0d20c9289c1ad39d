//! The numbers of families and hooks, as nf_tables and nfnetlink have them.

use nftnl::ProtoFamily;
use ruleset::{Family, Hook, TableFamily};

/// The last bytes of a number that is written with 16, as many as its field has; none if it has more.
pub(crate) fn last_bytes(number: &[u8; 16], length: usize) -> Option<&[u8]> {
    let (rest, bytes) = number.split_at_checked(16usize.checked_sub(length)?)?;
    rest.iter().all(|&byte| byte == 0).then_some(bytes)
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
            for family in [TableFamily::Ip(Family::V4), TableFamily::Inet, TableFamily::Bridge] {
                assert_eq!(hook(family, number), Some(known));
            }
        }
        assert_eq!(hook(TableFamily::Inet, libc::NF_INET_LOCAL_OUT as u32), Some(Hook::Output));
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
