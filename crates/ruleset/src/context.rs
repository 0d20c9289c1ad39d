//! Finds the connections for which conditions hold that depend on more than the packet.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::family::Family;
use crate::field::Field;
use crate::intervals::Intervals;
use crate::name::Name;
use crate::rule::{Context, Holding, LOOPBACK, address, interface};

/// All packets, or none.
fn always(holds: bool) -> Holding {
    let all = if holds { Field::Family.any() } else { Intervals::default() };
    vec![(Field::Family, all)]
}

/// The known facts beside packets on which conditions depend.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    pub local: Vec<LocalEntry>,
    /// The names of lo and of the device by which the route back to the other host leaves, if there is one. None: that isn't
    /// known.
    pub back: Option<Intervals>,
    /// The content of ipset's sets that rules ask, as far as it is understood.
    pub ip_sets: HashMap<Name, IpSet>,
    /// Every socket's class is 0, as no process can have another; false: that isn't known.
    pub has_no_classes: bool,
    /// No limit is reached; false: that isn't known.
    pub is_below_limits: bool,
}

/// An entry of the local table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalEntry {
    /// `RTN_*`
    pub kind: u8,
    pub family: Family,
    pub addresses: (u128, u128),
    /// The number of its device.
    pub device: u32,
}

/// The content of one of ipset's sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IpSet {
    /// Addresses of this family.
    Addresses(Family, Intervals),
    Ports(Intervals),
}

/// `RTN_*`
const UNSPEC: u8 = 0;
const UNICAST: u8 = 1;
const LOCAL: u8 = 2;
const BROADCAST: u8 = 3;
const ANYCAST: u8 = 4;
const MULTICAST: u8 = 5;

impl Facts {
    /// Adds an address of one of the namespace's devices.
    pub fn add_own(&mut self, own: IpAddr, device: u32) {
        let addresses = (address(own), address(own));
        self.local.push(LocalEntry { kind: LOCAL, family: Family::of(own), addresses, device });
    }

    /// The connections for which a condition holds, whose packets pass this device, if that is known; none: not known.
    pub fn holding(&self, context: &Context, device: Option<u32>) -> Option<Holding> {
        match *context {
            Context::AddressType { is_source, types, negated, is_xt, of_device } => {
                let device = if of_device.is_some() { Some(device?) } else { None };
                let field = if is_source { Field::Source } else { Field::Destination };
                let held = Family::ALL.into_iter().filter_map(|family| {
                    let (field, addresses) = (field(family), self.of_types(family, types, is_xt, device)?);
                    Some((field, if negated { field.any().without(&addresses) } else { addresses }))
                });
                Some(held.collect())
            }
            Context::ReversePath { is_loose, negated, .. } => {
                let back = self.back.as_ref()?;
                // lo always counts as the right device (`rpfilter_is_loopback`, `nft_fib_is_loopback`).
                let lo = Intervals::one(interface(LOOPBACK));
                let any = Field::InInterface.any();
                let by = if is_loose && *back != lo { any.clone() } else { back.clone() };
                let held = if negated { any.without(&by) } else { by };
                Some(vec![(Field::InInterface, held)])
            }
            Context::IpSet { ref set, ref are_sources, family, negated } => {
                let is_source = *are_sources.first()?;
                let (field, held) = match self.ip_sets.get(set)? {
                    IpSet::Addresses(of, held) => {
                        let field = if is_source { Field::Source(family) } else { Field::Destination(family) };
                        // A set of the other family has none of its packets (`ip_set_test` in ipset/ip_set_core.c).
                        (field, if *of == family { held.clone() } else { Intervals::default() })
                    }
                    IpSet::Ports(held) => {
                        (if is_source { Field::SourcePort } else { Field::DestinationPort }, held.clone())
                    }
                };
                Some(vec![(field, if negated { field.any().without(&held) } else { held })])
            }
            Context::SocketClass { ref classes, negated } => {
                let holds = self.has_no_classes.then(|| classes.contains(&0) != negated)?;
                let ids = if holds { Field::Uid.any() } else { Intervals::default() };
                // A packet without a socket has no class (`nft_meta_get_eval_cgroup` in net/netfilter/nft_meta.c,
                // `cgroup_mt_v1` in net/netfilter/xt_cgroup.c).
                Some([vec![(Field::Uid, ids)], always(false)].concat())
            }
            Context::Limit { holds_below, .. } => self.is_below_limits.then(|| always(holds_below)),
        }
    }

    /// The addresses that have one of these types, by the entries of this device or of all; none if that depends on more
    /// than the local table.
    fn of_types(&self, family: Family, types: u16, is_xt: bool, device: Option<u32>) -> Option<Intervals> {
        let has = |kind: u8| types & 1 << kind != 0;
        let entries = |kind: u8, device: Option<u32>| {
            let entries = self.local.iter().filter(move |entry| (entry.kind, entry.family) == (kind, family));
            let entries = entries.filter(|entry| device.is_none_or(|device| device == entry.device));
            Intervals::new(entries.map(|entry| entry.addresses))
        };
        let table = |kind| entries(kind, device);
        let (unspecified, broadcast, multicast) = match family {
            // `__inet_dev_addr_type` in net/ipv4/fib_frontend.c
            Family::V4 => {
                let broadcast = Intervals::new([(0, (1 << 24) - 1), (u32::MAX.into(), u32::MAX.into())]);
                (Intervals::default(), broadcast.or(&table(BROADCAST)), (0xe0 << 24, (0xf0 << 24) - 1))
            }
            Family::V6 => (Intervals::one(0), Intervals::default(), (0xff << 120, u128::MAX)),
        };
        let multicast = Intervals::new([multicast]);
        // Without an address of its own, the namespace takes no packet.
        if entries(LOCAL, None).without(&family.loopback()).is_empty() {
            return None;
        }
        let anycast = table(ANYCAST);
        // The narrower entries come first.
        let local = table(LOCAL).without(&broadcast).without(&anycast);
        let all = Field::Source(family).any();
        if family == Family::V6 && is_xt {
            // `match_type6` in net/netfilter/xt_addrtype.c: the address must have each of the types.
            return match types.trailing_zeros() as u8 {
                _ if !types.is_power_of_two() => None,
                LOCAL => Some(local),
                MULTICAST => Some(multicast),
                UNSPEC => Some(unspecified),
                UNICAST => Some(all.without(&unspecified).without(&multicast)),
                _ => None,
            };
        }
        // IPv6 addresses without a route have other types.
        const UNROUTED: u16 = 0b1111 << 6;
        let unrouted = if has(UNICAST) { UNROUTED } else { 0 };
        if family == Family::V6 && types & UNROUTED != unrouted {
            return None;
        }
        let named =
            [(UNSPEC, unspecified), (BROADCAST, broadcast), (MULTICAST, multicast), (ANYCAST, anycast), (LOCAL, local)];
        let of_unicast = named.iter().fold(all, |rest, (_, addresses)| rest.without(addresses));
        let named = named.into_iter().chain([(UNICAST, of_unicast)]);
        let held = named.filter(|(kind, _)| has(*kind));
        Some(held.fold(Intervals::default(), |held, (_, addresses)| held.or(&addresses)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip;

    const OWN: u128 = 0x0a4d_0002;

    fn facts() -> Facts {
        let entry = |kind, family, first: u128, last| LocalEntry { kind, family, addresses: (first, last), device: 2 };
        let mut facts = Facts {
            local: vec![
                entry(LOCAL, Family::V4, 127 << 24, (128 << 24) - 1),
                entry(BROADCAST, Family::V4, 0x0a4d_00ff, 0x0a4d_00ff),
                entry(BROADCAST, Family::V4, (128 << 24) - 1, (128 << 24) - 1),
                entry(LOCAL, Family::V6, 1, 1),
                entry(LOCAL, Family::V6, 0xfd << 120 | 2, 0xfd << 120 | 2),
                entry(ANYCAST, Family::V6, 0xfd << 120, 0xfd << 120),
            ],
            ..Facts::default()
        };
        facts.add_own(ip(Family::V4, OWN).unwrap(), 3);
        facts
    }

    /// True if an address of a family is of these types; none: not known.
    fn holds(types: &[u8], is_xt: bool, negated: bool, family: Family, address: u128) -> Option<bool> {
        let context = Context::AddressType {
            is_source: true,
            types: types.iter().fold(0, |types, kind| types | 1 << kind),
            negated,
            is_xt,
            of_device: None,
        };
        let holding = facts().holding(&context, None)?;
        let (_, numbers) = holding.into_iter().find(|(field, _)| *field == Field::Source(family))?;
        Some(numbers.meets(&[(address, address)]))
    }

    /// As `ip route get` names them, and tests with iptables and nft found them.
    #[test]
    fn each_address_is_of_one_type() {
        for (address, kind) in [
            (OWN, LOCAL),
            ((127 << 24) | 1, LOCAL),
            ((128 << 24) - 1, BROADCAST),
            (0x0a4d_00ff, BROADCAST),
            (u32::MAX.into(), BROADCAST),
            (1, BROADCAST),
            ((1 << 24) - 1, BROADCAST),
            (1 << 24, UNICAST),
            (0xe0 << 24, MULTICAST),
            ((0xf0 << 24) - 1, MULTICAST),
            (0xf0 << 24, UNICAST),
            (0xc000_0201, UNICAST),
        ] {
            for other in [UNICAST, LOCAL, BROADCAST, MULTICAST] {
                for negated in [false, true] {
                    let want = Some((other == kind) != negated);
                    assert_eq!(holds(&[other], true, negated, Family::V4, address), want, "{address:x} {other}");
                }
            }
        }
        assert_eq!(holds(&[UNICAST, LOCAL], false, false, Family::V4, OWN), Some(true));
    }

    #[test]
    fn of_ipv6s_addresses_nft_asks_for_a_route_and_xt_does_not() {
        let (own, other, group) = (0xfd << 120 | 2, 0x2 << 124, 0xff << 120);
        let v6 = |types: &[u8], is_xt, address| holds(types, is_xt, false, Family::V6, address);
        for is_xt in [false, true] {
            assert_eq!(v6(&[LOCAL], is_xt, own), Some(true));
            assert_eq!(v6(&[LOCAL], is_xt, other), Some(false));
            assert_eq!(v6(&[MULTICAST], is_xt, group), Some(true));
        }
        assert_eq!(v6(&[UNICAST], true, own), Some(true));
        for (kinds, address, is_so) in
            [(UNSPEC, 0, true), (UNSPEC, own, false), (UNICAST, 0, false), (UNICAST, group, false)]
        {
            assert_eq!(v6(&[kinds], true, address), Some(is_so), "{kinds} {address:x}");
        }
        assert_eq!(v6(&[UNICAST], false, other), None);
        assert_eq!(v6(&[UNICAST, 6, 7, 8, 9], false, other), Some(true));
        assert_eq!(v6(&[UNICAST, 6, 7, 8, 9], false, own), Some(false));
        assert_eq!(v6(&[7], false, other), None);
        assert_eq!(v6(&[LOCAL, MULTICAST], true, own), None);
    }

    /// Nothing can be said about arriving packets.
    #[test]
    fn without_an_address_nothing_is_known() {
        let mut facts = facts();
        facts.local.retain(|entry| entry.addresses.0 != OWN);
        let context =
            Context::AddressType { is_source: false, types: 1 << LOCAL, negated: false, is_xt: false, of_device: None };
        let fields = facts.holding(&context, None).into_iter().flatten().map(|(field, _)| field);
        assert_eq!(fields.collect::<Vec<_>>(), [Field::Destination(Family::V6)]);
    }

    #[test]
    fn the_way_back_is_by_a_device_or_by_any() {
        let (lo, eth0, eth1) = (interface(LOOPBACK), interface(b"eth0"), interface(b"eth1"));
        let holds = |back: &[u128], is_loose, negated, by: u128| {
            let facts =
                Facts { back: (!back.is_empty()).then(|| Intervals::each(back.iter().copied())), ..Facts::default() };
            let holding = facts.holding(&Context::ReversePath { is_loose, negated, xt_flags: None }, None)?;
            Some(holding.iter().any(|(_, numbers)| numbers.meets(&[(by, by)])))
        };
        for (back, is_loose, by, want) in [
            (&[lo, eth0][..], false, eth0, Some(true)),
            (&[lo, eth0], false, eth1, Some(false)),
            (&[lo, eth0], false, lo, Some(true)),
            (&[lo, eth0], true, eth1, Some(true)),
            (&[lo], true, eth1, Some(false)),
            (&[lo], false, eth0, Some(false)),
            (&[], false, eth0, None),
        ] {
            assert_eq!(holds(back, is_loose, false, by), want);
            assert_eq!(holds(back, is_loose, true, by), want.map(|holds| !holds));
        }
    }
}
