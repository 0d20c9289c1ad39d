//! Listeners in a network namespace.

use std::net::IpAddr;

use crate::{Direction, Family, LOOPBACK_INDEX};

/// A TCP socket that listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listener {
    /// The address that it is bound to; the unspecified one for any.
    pub address: IpAddr,
    pub port: u16,
    /// The number of the device that it is bound to; 0 for any.
    pub device: u32,
    /// True if a listener on IPv6's unspecified address takes no IPv4.
    pub is_ipv6_only: bool,
    /// The user that owns it, by its number in the asking process's user namespace.
    pub uid: u32,
    pub queue: Queue,
    /// It takes connections to addresses of others (`IP_TRANSPARENT`), by TPROXY's rules; none: the kernel doesn't tell
    /// (before Linux 5.10).
    pub is_transparent: Option<bool>,
}

/// The connections that a listener hasn't accepted yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Queue {
    pub waiting: u32,
    /// The length that the program asked for in listen(2), at most net.core.somaxconn.
    pub limit: u32,
}

impl Queue {
    /// Returns true if the kernel drops further connections (`sk_acceptq_is_full` in net/sock.h).
    pub fn is_full(self) -> bool {
        self.waiting > self.limit
    }
}

impl Listener {
    /// The kernel's number for a user that has no number in the asking user namespace (/proc/sys/kernel/overflowuid).
    pub const UNMAPPED: u32 = 65534;

    /// Returns true if the listener gets redirected connections of this family and direction. Outbound connections go
    /// to 127.0.0.1 or ::1 by lo, inbound ones to an address of the device on which they arrived, any except lo
    /// (`nf_nat_redirect_ipv4`, `nf_nat_redirect_ipv6`).
    pub fn accepts(&self, direction: Direction, family: Family) -> bool {
        let is_outbound = direction == Direction::Outbound;
        // An IPv6 socket that is bound to an IPv4 address takes IPv4 alone.
        let address = self.address.to_canonical();
        let is_of_family = Family::of(address) == family;
        let is_for_address = match address {
            any if any.is_unspecified() => is_of_family || (any.is_ipv6() && !self.is_ipv6_only),
            address if is_outbound => address == family.localhost(),
            address => is_of_family && !address.is_loopback(),
        };
        let is_by_device = self.device == 0 || (self.device == LOOPBACK_INDEX) == is_outbound;
        is_for_address && is_by_device
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(address: &str, is_ipv6_only: bool, device: u32) -> Vec<(Direction, Family)> {
        let listener = Listener {
            address: address.parse().unwrap(),
            port: 4143,
            device,
            is_ipv6_only,
            uid: 2102,
            queue: Queue::default(),
            is_transparent: Some(false),
        };
        let all = Direction::ALL.into_iter().flat_map(|direction| Family::ALL.map(|family| (direction, family)));
        all.filter(|&(direction, family)| listener.accepts(direction, family)).collect()
    }

    #[test]
    fn a_listener_gets_what_comes_to_its_address() {
        use Direction::{Inbound, Outbound};
        use Family::{V4, V6};

        let (in4, in6, out4, out6) = ((Inbound, V4), (Inbound, V6), (Outbound, V4), (Outbound, V6));
        for (address, is_ipv6_only, device, want) in [
            ("0.0.0.0", false, 0, &[in4, out4][..]),
            ("::", false, 0, &[in4, in6, out4, out6]),
            ("::", true, 0, &[in6, out6]),
            ("127.0.0.1", false, 0, &[out4]),
            ("::ffff:127.0.0.1", false, 0, &[out4]),
            ("::ffff:0.0.0.0", false, 0, &[in4, out4]),
            ("127.0.0.2", false, 0, &[]),
            ("::1", false, 0, &[out6]),
            ("10.77.0.2", false, 0, &[in4]),
            ("fd77::2", false, 0, &[in6]),
            ("0.0.0.0", false, 1, &[out4]),
            ("0.0.0.0", false, 2, &[in4]),
        ] {
            assert_eq!(accepted(address, is_ipv6_only, device), want, "{address} {device}");
        }
    }
}
