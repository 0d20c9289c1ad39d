//! Subnets as intervals of addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::family::Family;
use crate::field::Field;

pub fn addresses(net: IpNet) -> (u128, u128) {
    match net {
        IpNet::V4(net) => (u32::from(net.network()).into(), u32::from(net.broadcast()).into()),
        IpNet::V6(net) => (net.network().into(), net.broadcast().into()),
    }
}

/// The subnet that has exactly these addresses; none if no subnet has.
pub fn subnet(family: Family, (first, last): (u128, u128)) -> Option<IpNet> {
    let hosts = first ^ last;
    if hosts & hosts.wrapping_add(1) != 0 || first & hosts != 0 {
        return None;
    }
    let host_bits = 128 - hosts.leading_zeros();
    let length = Field::Source(family).bits().checked_sub(host_bits)?;
    IpNet::new(ip(family, first)?, u8::try_from(length).ok()?).ok()
}

/// The address of a family that has this number; the opposite of [`address`](crate::address).
pub fn ip(family: Family, number: u128) -> Option<IpAddr> {
    Some(match family {
        Family::V4 => Ipv4Addr::from_bits(u32::try_from(number).ok()?).into(),
        Family::V6 => Ipv6Addr::from_bits(number).into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_a_subnet_only_if_they_are_all_of_one() {
        assert_eq!(subnet(Family::V4, (0x0a00_0000, 0x0aff_ffff)).unwrap().to_string(), "10.0.0.0/8");
        assert_eq!(subnet(Family::V4, (0, u128::from(u32::MAX))).unwrap().to_string(), "0.0.0.0/0");
        assert_eq!(subnet(Family::V6, (0, u128::MAX)).unwrap().to_string(), "::/0");
        assert_eq!(subnet(Family::V6, (1, 1)).unwrap().to_string(), "::1/128");
        for text in ["10.0.0.0/8", "192.0.2.4/30", "fd00::/8", "::1/128"] {
            let net: IpNet = text.parse().unwrap();
            assert_eq!(subnet(Family::of(net.addr()), addresses(net)), Some(net));
        }
        for interval in [(1, 2), (3, 1), (0, 2), (1, 3)] {
            assert_eq!(subnet(Family::V4, interval), None, "{interval:?}");
        }
    }
}
