//! The devices of a network namespace, their addresses and listeners.

use std::cell::LazyCell;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::LazyLock;

use crate::context::Facts;
use crate::listener::Listener;
use crate::{Family, Field, Intervals, LOOPBACK, LOOPBACK_INDEX, Name, address, interface};

/// The known facts about a network namespace beside its rules.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Network {
    pub devices: Vec<Device>,
    /// The addresses of each device, in their order.
    pub addresses: Vec<Address>,
    pub listeners: Vec<Listener>,
    pub settings: Settings,
    pub facts: Facts,
    /// The reason why devices or addresses are missing here, if the kernel didn't tell them.
    pub links_not_known: Option<String>,
    pub listeners_not_known: Option<String>,
}

/// The kernel's settings (sysctl) that decide about packets. The default has the kernel's defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Before its own input hook, a bridge calls the IP hooks at prerouting: net.bridge.bridge-nf-call-iptables and
    /// -ip6tables. Without the module br_netfilter, there are no such settings.
    pub bridges_call_ip: bool,
    /// An accepted connection's socket has the mark of its first packet: net.ipv4.tcp_fwmark_accept.
    pub keeps_mark: bool,
    /// Packets have their socket at input: net.ipv4.ip_early_demux and tcp_early_demux.
    pub finds_sockets: bool,
    /// The kernel keeps no state of a connection before the ACK: net.ipv4.tcp_syncookies is 2.
    pub always_sends_cookies: bool,
    /// Connection tracking takes any packet as the first one of a connection: net.netfilter.nf_conntrack_tcp_loose.
    pub tracks_from_any: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            bridges_call_ip: true,
            keeps_mark: false,
            finds_sockets: true,
            always_sends_cookies: false,
            tracks_from_any: true,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    pub index: u32,
    pub name: Name,
    /// The device's kind, such as `veth` (`IFLA_INFO_KIND`); empty for lo and for hardware.
    pub kind: Vec<u8>,
    /// `IFF_UP`
    pub is_up: bool,
    /// The number of the lower device, if it is made on top of another one of this namespace.
    pub lower: Option<u32>,
    /// The number of the bridge or the bond of which it is a port.
    pub master: Option<u32>,
    /// True if the device finds other hosts by neighbour discovery on its link. lo doesn't, nor does a device that
    /// leads to a single host.
    pub has_neighbours: bool,
    /// `ip link set DEVICE group GROUP`
    pub group: u32,
    /// `ARPHRD_*` in linux/if_arp.h.
    pub hardware: u16,
}

/// Something of a device that rules compare, beside its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKey {
    Index,
    Group,
    Hardware,
}

/// The things of a network namespace that its rules have by their numbers. They are listed once, if a rule has one.
#[derive(Debug, Default)]
pub struct Numbered {
    pub devices: LazyCell<Vec<Device>>,
    /// The indices and the names of ipset's sets.
    pub ip_sets: LazyCell<Vec<(u16, Name)>>,
}

impl Numbered {
    /// The names of the devices of which something is this number; none: no device has this index, or the devices aren't
    /// known.
    pub fn devices(&self, key: DeviceKey, number: u32) -> Option<Vec<Name>> {
        if (key, number) == (DeviceKey::Index, LOOPBACK_INDEX) {
            return Some(vec![Name::from(LOOPBACK)]);
        }
        let is_of = |device: &&Device| match key {
            DeviceKey::Index => device.index == number,
            DeviceKey::Group => device.group == number,
            DeviceKey::Hardware => u32::from(device.hardware) == number,
        };
        let names: Vec<Name> = self.devices.iter().filter(is_of).map(|device| device.name.clone()).collect();
        let is_known = if key == DeviceKey::Index { !names.is_empty() } else { !self.devices.is_empty() };
        is_known.then_some(names)
    }

    pub fn ip_set(&self, index: u16) -> Option<&Name> {
        self.ip_sets.iter().find(|(known, _)| *known == index).map(|(_, name)| name)
    }
}

impl Device {
    /// The names of these, as numbers.
    pub fn names<'a>(devices: impl IntoIterator<Item = &'a Self>) -> Intervals {
        Intervals::each(devices.into_iter().map(|device| interface(device.name.as_bytes())))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The number of its device.
    pub device: u32,
    pub address: IpAddr,
    pub prefix: u8,
    /// Its network's broadcast address, if one was set (`IFA_BROADCAST`).
    pub broadcast: Option<Ipv4Addr>,
}

/// A network about which nothing is known.
impl Default for &Network {
    fn default() -> Self {
        static UNKNOWN: LazyLock<Network> = LazyLock::new(|| {
            let reason = Some("it was not asked for".to_owned());
            Network { links_not_known: reason.clone(), listeners_not_known: reason, ..Network::default() }
        });
        &UNKNOWN
    }
}

impl Network {
    pub fn device(&self, index: u32) -> Option<&Device> {
        self.devices.iter().find(|device| device.index == index)
    }

    pub fn is_lo_down(&self) -> bool {
        self.device(LOOPBACK_INDEX).is_some_and(|lo| !lo.is_up)
    }

    pub fn device_named(&self, name: &Name) -> Option<&Device> {
        self.devices.iter().find(|device| device.name == *name)
    }

    /// The devices by which this one's packets arrive and leave: the ports of a bridge or a bond, and the device under
    /// a VLAN or a macvlan; none for most devices.
    pub fn lower_devices<'a>(&'a self, upper: &'a Device) -> impl Iterator<Item = &'a Device> {
        self.devices.iter().filter(|device| device.master == Some(upper.index) || upper.lower == Some(device.index))
    }

    /// The names, as numbers, of the ports of bridges and bonds, which hand on all of their packets.
    pub fn port_names(&self) -> Intervals {
        Device::names(self.devices.iter().filter(|device| {
            let master = device.master.and_then(|index| self.device(index));
            // A VRF's packets stay those of the device.
            master.is_some_and(|master| master.kind != b"vrf")
        }))
    }

    /// The only device beside lo that is up, if there is one.
    pub fn only_device(&self) -> Option<&Device> {
        only(self.devices.iter().filter(|device| device.is_up && device.index != LOOPBACK_INDEX))
    }

    /// The only device of those with these names, if there is one.
    pub fn only_device_of(&self, names: &Intervals) -> Option<&Device> {
        only(self.devices.iter().filter(|device| names.includes(&Device::names([*device]))))
    }

    /// The names of the devices, as numbers; every name if only lo is known.
    pub fn device_names(&self) -> Intervals {
        if self.devices.iter().any(|device| device.index != LOOPBACK_INDEX) {
            Device::names(&self.devices)
        } else {
            Field::InInterface.any()
        }
    }

    /// The addresses of a family that no other host has: those of this namespace, and the broadcast addresses of its
    /// networks (`fib_add_ifaddr` in net/ipv4/fib_frontend.c).
    pub fn own_addresses(&self, family: Family) -> Intervals {
        let own = Intervals::each(self.addresses_of(family).map(|known| address(known.address)));
        own.or(&self.broadcasts(family))
    }

    pub fn broadcasts(&self, family: Family) -> Intervals {
        let mut broadcasts: Vec<u32> = Vec::new();
        for known in self.addresses_of(family) {
            if let IpAddr::V4(own) = known.address {
                let hosts = u32::MAX.checked_shr(known.prefix.into()).filter(|hosts| *hosts > 1);
                broadcasts.extend(hosts.map(|hosts| u32::from(own) | hosts));
                broadcasts.extend(known.broadcast.map(u32::from));
            }
        }
        Intervals::each(broadcasts)
    }

    /// The destinations that a redirected connection may get if it arrives on one of these devices: over IPv4 the device's
    /// first address, over IPv6 one of its addresses (`nf_nat_redirect_ipv4` and `nf_nat_redirect_ipv6` in
    /// net/netfilter/nf_nat_redirect.c). None: that isn't known.
    pub fn redirect_addresses(&self, family: Family, devices: &Intervals) -> Option<Intervals> {
        let most = if family == Family::V4 { 1 } else { usize::MAX };
        let is_one = |device: &&Device| device.index != LOOPBACK_INDEX && devices.includes(&Device::names([*device]));
        let addresses = self.devices.iter().filter(is_one).flat_map(|device| {
            let own = self.addresses_of(family).filter(|known| known.device == device.index);
            own.take(most)
        });
        let addresses = Intervals::each(addresses.map(|known| address(known.address)));
        (!addresses.is_empty()).then_some(addresses)
    }

    /// The names, as numbers, of the devices that have any of these addresses.
    pub fn devices_with(&self, family: Family, addresses: &Intervals) -> Intervals {
        let having = self.addresses_of(family).filter(|known| {
            let known = address(known.address);
            addresses.meets(&[(known, known)])
        });
        Device::names(having.filter_map(|known| self.device(known.device)))
    }

    /// The addresses of this family that other hosts beyond the link know: not lo's, nor those of one link.
    pub fn wide_addresses(&self, family: Family) -> impl Iterator<Item = &Address> {
        let is_of_link = |known: &Address| matches!(known.address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        self.addresses_of(family).filter(move |known| known.device != LOOPBACK_INDEX && !is_of_link(known))
    }

    fn addresses_of(&self, family: Family) -> impl Iterator<Item = &Address> {
        self.addresses.iter().filter(move |known| Family::of(known.address) == family)
    }
}

/// The item of which there is no other.
fn only<T>(mut items: impl Iterator<Item = T>) -> Option<T> {
    items.next().filter(|_| items.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::device;

    fn network() -> Network {
        let of = |device, address: &str, prefix| Address {
            device,
            address: address.parse().unwrap(),
            prefix,
            broadcast: None,
        };
        Network {
            devices: vec![device(1, "lo"), device(2, "eth0"), device(3, "eth1")],
            addresses: vec![
                of(1, "127.0.0.1", 8),
                of(2, "10.77.0.2", 24),
                of(2, "10.77.0.9", 32),
                Address { broadcast: Some(Ipv4Addr::new(10, 78, 0, 77)), ..of(3, "10.78.0.2", 31) },
                of(2, "fd77::2", 64),
                of(2, "fe80::2", 64),
            ],
            ..Network::default()
        }
    }

    fn numbers(addresses: &[&str]) -> Intervals {
        Intervals::each(addresses.iter().map(|text| address(text.parse().unwrap())))
    }

    #[test]
    fn devices_are_named_as_soon_as_there_is_one_beside_lo() {
        let all = network();
        assert_eq!(all.device_names(), Device::names(&all.devices));
        let only_lo = Network { devices: all.devices[..1].to_vec(), ..Network::default() };
        assert_eq!(only_lo.device_names(), Field::InInterface.any());
        assert_eq!(only_lo.only_device(), None);
    }

    #[test]
    fn no_other_host_has_what_is_this_namespaces() {
        let broadcasts = ["127.255.255.255", "10.77.0.255", "10.78.0.77"];
        assert_eq!(network().broadcasts(Family::V4), numbers(&broadcasts));
        assert_eq!(network().broadcasts(Family::V6), Intervals::default());
        let own = network().own_addresses(Family::V4);
        let hosts = ["127.0.0.1", "10.77.0.2", "10.77.0.9", "10.78.0.2"];
        assert_eq!(own, numbers(&[&hosts[..], &broadcasts].concat()));
        assert_eq!(network().own_addresses(Family::V6), numbers(&["fd77::2", "fe80::2"]));
        let known = network();
        let wide = Family::ALL.iter().flat_map(|family| known.wide_addresses(*family));
        let wide: Vec<_> = wide.map(|known| known.address.to_string()).collect();
        assert_eq!(wide, ["10.77.0.2", "10.77.0.9", "10.78.0.2", "fd77::2"]);
    }

    #[test]
    fn a_device_is_the_only_one_if_all_others_are_lo_or_down() {
        let up = |names: &[&str]| {
            let mut network = network();
            for device in &mut network.devices {
                device.is_up = names.iter().any(|name| device.name == **name);
            }
            network.only_device().map(|device| device.name.to_string())
        };
        assert_eq!(up(&["lo", "eth0"]).as_deref(), Some("eth0"));
        assert_eq!(up(&["eth1"]).as_deref(), Some("eth1"));
        assert_eq!(up(&["lo"]), None);
        assert_eq!(up(&["lo", "eth0", "eth1"]), None);
        assert_eq!(Network::default().only_device(), None);
    }

    #[test]
    fn a_device_is_known_by_its_number_and_its_addresses() {
        let mut network = network();
        assert_eq!(network.device(3).map(|device| &device.name), Some(&Name::from("eth1")));
        assert_eq!(network.device(4), None);
        assert_eq!(network.device_named(&Name::from("eth1")), network.device(3));
        assert_eq!(network.device_named(&Name::from("eth9")), None);
        let name = |name: &str| Intervals::one(interface(name.as_bytes()));
        assert_eq!(network.devices_with(Family::V4, &numbers(&["10.78.0.2", "10.78.0.3"])), name("eth1"));
        assert_eq!(network.devices_with(Family::V6, &numbers(&["fd77::2"])), name("eth0"));
        assert_eq!(network.devices_with(Family::V4, &numbers(&["10.78.0.3"])), Intervals::default());
        // A bridge takes all packets of its ports, a VRF none of those that are for this host.
        for (kind, ports) in [("bridge", name("eth1")), ("bond", name("eth1")), ("vrf", Intervals::default())] {
            for device in &mut network.devices {
                match device.index {
                    2 => device.kind = kind.into(),
                    3 => device.master = Some(2),
                    _ => {}
                }
            }
            assert_eq!(network.port_names(), ports, "{kind}");
            assert_eq!(Device::names(network.lower_devices(network.device(2).unwrap())), name("eth1"));
            assert_eq!(network.lower_devices(network.device(3).unwrap()).count(), 0);
        }
    }
}
