//! The numbers of a set as a list of ports or subnets, as flags take them.

use ipnet::{IpNet, IpSubnets, Ipv4Subnets, Ipv6Subnets};
use ruleset::{Family, Field, Intervals};

use crate::config::{Port, PortRange};

/// The ports as ranges. Numbers that are no ports are left out.
pub fn ranges(numbers: &Intervals) -> Vec<PortRange> {
    let mut ranges = Vec::new();
    for &(first, last) in numbers.and(&Field::DestinationPort.any()).as_slice() {
        if let (Ok(first), Ok(last)) = (u16::try_from(first), u16::try_from(last)) {
            ranges.extend(PortRange::new(first, last));
        }
    }
    ranges
}

/// Each port by itself, without 0, which is no port to listen on.
pub fn ports(numbers: &Intervals) -> Vec<Port> {
    let each = ranges(numbers).into_iter().flat_map(|range| range.first()..=range.last());
    each.filter_map(Port::new).collect()
}

/// The fewest subnets that have exactly these addresses. None of them is the subnet of all addresses: a rule for that one has
/// no condition, and so no set.
pub fn subnets(family: Family, numbers: &Intervals) -> Vec<IpNet> {
    let mut subnets = Vec::new();
    for &(first, last) in numbers.and(&Field::Destination(family).any()).as_slice() {
        subnets.extend(match family {
            Family::V4 => IpSubnets::V4(Ipv4Subnets::new((first as u32).into(), (last as u32).into(), 1)),
            Family::V6 => IpSubnets::V6(Ipv6Subnets::new(first.into(), last.into(), 1)),
        });
    }
    subnets
}

/// The subnet that is every address of a family.
pub fn all(family: Family) -> &'static str {
    match family {
        Family::V4 => "0.0.0.0/0",
        Family::V6 => "::/0",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ruleset::addresses;
    use ruleset::testing::random;

    use super::*;
    use crate::config::Subnet;

    #[test]
    fn every_address_of_a_family_is_a_subnet() {
        for family in Family::ALL {
            let subnet: Subnet = all(family).parse().unwrap();
            assert!(subnet.is_of_all() && subnet.family() == family);
        }
    }

    #[test]
    fn ports_are_listed_one_by_one_or_as_ranges() {
        let numbers = Intervals::new([(0, 2), (443, 443), (65535, 70000), (80000, 90000)]);
        let shown: Vec<_> = ranges(&numbers).iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["0-2", "443", "65535"]);
        let shown: Vec<_> = ports(&numbers).iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["1", "2", "443", "65535"]);
    }

    #[test]
    fn addresses_are_the_fewest_subnets() {
        let v4 = |list: &[(u128, u128)]| -> Vec<String> {
            let subnets = subnets(Family::V4, &Intervals::new(list.iter().copied()));
            subnets.iter().map(ToString::to_string).collect()
        };
        assert_eq!(v4(&[(0x0a00_0000, 0x0aff_ffff)]), ["10.0.0.0/8"]);
        assert_eq!(v4(&[(0x0b00_0000, 0x0cff_ffff)]), ["11.0.0.0/8", "12.0.0.0/8"]);
        assert_eq!(v4(&[(1, 6)]), ["0.0.0.1/32", "0.0.0.2/31", "0.0.0.4/31", "0.0.0.6/32"]);
        assert_eq!(v4(&[(0, u128::from(u32::MAX))]), ["0.0.0.0/1", "128.0.0.0/1"]);
        // Not an address at all.
        assert_eq!(v4(&[(1 << 32, u128::MAX)]), Vec::<String>::new());
        let v6 = subnets(Family::V6, &Intervals::up_to(u128::MAX));
        assert_eq!(v6, ["::/1".parse().unwrap(), "8000::/1".parse().unwrap()]);
    }

    proptest! {
        #![proptest_config(random(256))]

        #[test]
        fn subnets_have_the_same_addresses(list in prop::collection::vec((any::<u128>(), any::<u128>()), 0..5)) {
            for family in Family::ALL {
                let all = Field::Destination(family).largest();
                let numbers = Intervals::new(list.iter().map(|&(first, last)| (first & all, last & all)));
                let subnets = subnets(family, &numbers);
                prop_assert_eq!(Intervals::new(subnets.into_iter().map(addresses)), numbers);
            }
        }
    }
}
