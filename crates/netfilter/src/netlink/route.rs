//! Asks the kernel how it would route a packet: rtnetlink(7).

use std::net::{IpAddr, SocketAddr};

use mnl::Bus;
use nix::errno::Errno;
use ruleset::{Address, Device, LocalEntry};
use ruleset::{Family, LOOPBACK_INDEX, Name};

use super::message::{Attributes, Malformed, Message, Request, address, put, string, u8_at, u16_at, u32_at};
use super::{ReadError, Socket};

/// From linux/rtnetlink.h, linux/if_link.h and linux/fib_rules.h, which libc lacks for musl.
const RTA_UID: u16 = 25;
const RTA_IP_PROTO: u16 = 27;
const RTA_SPORT: u16 = 28;
const RTA_DPORT: u16 = 29;
const IFLA_LINK_NETNSID: u16 = 37;
const FRA_FWMARK: u16 = 10;
/// `struct fib_rule_uid_range`: the first and the last user.
const FRA_UID_RANGE: u16 = 20;

/// Lengths of `struct rtmsg`, `struct ifinfomsg` (linux/rtnetlink.h), `struct ifaddrmsg` (linux/if_addr.h), `struct ndmsg`
/// (linux/neighbour.h) and `struct fib_rule_hdr` (linux/fib_rules.h), which follow a message's header.
const RTMSG: usize = 12;
const IFINFOMSG: usize = 16;
const IFADDRMSG: usize = 8;
const NDMSG: usize = 12;
const FIB_RULE_HDR: usize = 12;

/// The kinds of devices whose packets arrive and leave unchanged by a lower device.
const IS_ON_ANOTHER: [&[u8]; 5] = [b"vlan", b"macvlan", b"macvtap", b"ipvlan", b"ipvtap"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    pub kind: RouteKind,
    /// The number of the device by which it leaves; the loopback device's for packets that stay in this namespace.
    pub device: u32,
    /// The source address, if the route has one.
    pub source: Option<IpAddr>,
    /// The router to which it goes first; none if the destination is on the link.
    pub gateway: Option<IpAddr>,
}

/// Where a route leads (`rtm_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteKind {
    /// To this namespace: the destination is one of its own addresses.
    Local,
    Unicast,
    /// To no single host: the destination is a broadcast, multicast or anycast address, to which TCP does not connect.
    NotUnicast,
}

/// A packet of a TCP connection, as far as it is known.
#[derive(Debug, Clone, Copy)]
pub struct Packet {
    pub to: SocketAddr,
    pub from: Option<IpAddr>,
    pub from_port: Option<u16>,
    pub uid: Option<u32>,
    /// The number of the device to which its socket is bound.
    pub device: Option<u32>,
}

/// Asks for the route of a packet in the thread's network namespace, or the reason why routing refuses it: there is no
/// route, or it refuses such packets. This needs no privileges.
pub fn route(packet: Packet) -> Result<Result<Route, Errno>, ReadError> {
    use Errno::{EACCES, EHOSTUNREACH, EINVAL, ENETUNREACH};

    let to = octets(packet.to.ip());
    let from = packet.from.map(octets).unwrap_or_default();
    let mut subheader = [0; RTMSG];
    // The number of bits of either address that count.
    let [to_bits, from_bits] = [&to, &from].map(|address| 8 * address.len() as u8);
    put(&mut subheader, 0, &[family_number(Family::of(packet.to.ip())) as u8, to_bits, from_bits]);
    let mut request = Request::new(libc::RTM_GETROUTE.into(), libc::NLM_F_ACK, &subheader);
    request.bytes(libc::RTA_DST, &to);
    if packet.from.is_some() {
        request.bytes(libc::RTA_SRC, &from);
    }
    if let Some(uid) = packet.uid {
        request.bytes(RTA_UID, &uid.to_ne_bytes());
    }
    if let Some(device) = packet.device {
        request.bytes(libc::RTA_OIF, &device.to_ne_bytes());
    }
    request.bytes(RTA_IP_PROTO, &[libc::IPPROTO_TCP as u8]);
    request.bytes(RTA_DPORT, &packet.to.port().to_be_bytes());
    if let Some(port) = packet.from_port {
        request.bytes(RTA_SPORT, &port.to_be_bytes());
    }
    match ask_once(request, read_route) {
        Ok(route) => {
            let route = route.ok_or(Malformed)?;
            Ok(Ok(Route { source: route.source.or(packet.from), ..route }))
        }
        Err(ReadError::Socket(errno @ (EACCES | EHOSTUNREACH | EINVAL | ENETUNREACH))) => Ok(Err(errno)),
        Err(error) => Err(error),
    }
}

/// Sends a request with one answer; none: there is no answer.
fn ask_once<T>(request: Request, read: impl Fn(&Message<'_>) -> Result<T, Malformed>) -> Result<Option<T>, ReadError> {
    Ok(open()?.list(request, |message| read(message).map(Some))?.pop())
}

fn open() -> Result<Socket, ReadError> {
    Socket::open_bus(Bus::Route).map_err(ReadError::NotAsked)
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// A family's number, with which every message of rtnetlink begins.
fn family_number(family: Family) -> i32 {
    match family {
        Family::V4 => libc::AF_INET,
        Family::V6 => libc::AF_INET6,
    }
}

pub(crate) fn read_route(message: &Message<'_>) -> Result<Route, Malformed> {
    // `rtm_type`
    let kind = match u8_at(message.payload, 7)? {
        libc::RTN_LOCAL => RouteKind::Local,
        libc::RTN_BROADCAST | libc::RTN_MULTICAST | libc::RTN_ANYCAST => RouteKind::NotUnicast,
        _ => RouteKind::Unicast,
    };
    let attributes = message.attributes_after(RTMSG)?;
    let address_in = |kind| attributes.find(kind)?.map(address).transpose();
    let device = u32_at(attributes.get(libc::RTA_OIF)?, 0)?;
    Ok(Route {
        kind,
        // For an IPv6 address of this namespace, the answer has the device that has the address.
        device: if kind == RouteKind::Local { LOOPBACK_INDEX } else { device },
        source: address_in(libc::RTA_PREFSRC)?,
        gateway: address_in(libc::RTA_GATEWAY)?,
    })
}

/// The device with this name, or with this alternative one, in the thread's network namespace.
pub fn device(name: &[u8]) -> Result<Device, ReadError> {
    let mut request = Request::new(libc::RTM_GETLINK.into(), libc::NLM_F_ACK, &[0; IFINFOMSG]);
    request.string(libc::IFLA_IFNAME, name);
    ask_once(request, read_device)?.ok_or(ReadError::Socket(Errno::ENODEV))
}

pub fn devices() -> Result<Vec<Device>, ReadError> {
    dump(libc::RTM_GETLINK, libc::AF_UNSPEC, IFINFOMSG, |message| read_device(message).map(Some))
}

pub(crate) fn read_device(message: &Message<'_>) -> Result<Device, Malformed> {
    let attributes = message.attributes_after(IFINFOMSG)?;
    let info = attributes.find(libc::IFLA_LINKINFO)?.unwrap_or_default();
    let kind = Attributes(info).find(libc::IFLA_INFO_KIND)?;
    let kind = kind.map(string).transpose()?.unwrap_or_default();
    let flags = u32_at(message.payload, 8)? as i32;
    let number = |attribute| attributes.find(attribute)?.map(|bytes| u32_at(bytes, 0)).transpose();
    // The kernel also names the other end of a veth pair as the lower device, and one in another namespace by its number
    // there.
    let is_on_another = IS_ON_ANOTHER.contains(&kind) && attributes.find(IFLA_LINK_NETNSID)?.is_none();
    Ok(Device {
        // `ifi_index` and `ifi_flags`
        index: u32_at(message.payload, 4)?,
        name: Name::from(string(attributes.get(libc::IFLA_IFNAME)?)?),
        kind: kind.to_vec(),
        is_up: flags & libc::IFF_UP != 0,
        lower: number(libc::IFLA_LINK)?.filter(|_| is_on_another),
        master: number(libc::IFLA_MASTER)?,
        // `ndisc_constructor` in net/ipv6/ndisc.c
        has_neighbours: [libc::IFF_LOOPBACK, libc::IFF_NOARP, libc::IFF_POINTOPOINT]
            .iter()
            .all(|flag| flags & flag == 0),
        group: number(libc::IFLA_GROUP)?.unwrap_or_default(),
        // `ifi_type`
        hardware: u16_at(message.payload, 2)?,
    })
}

pub fn addresses() -> Result<Vec<Address>, ReadError> {
    dump(libc::RTM_GETADDR, libc::AF_UNSPEC, IFADDRMSG, read_address)
}

fn read_address(message: &Message<'_>) -> Result<Option<Address>, Malformed> {
    let attributes = message.attributes_after(IFADDRMSG)?;
    // On a point-to-point link, IFA_ADDRESS is the other end's address.
    let local = attributes.find(libc::IFA_LOCAL)?;
    let Some(bytes) = local.map_or_else(|| attributes.find(libc::IFA_ADDRESS), |local| Ok(Some(local)))? else {
        return Ok(None);
    };
    let broadcast = attributes.find(libc::IFA_BROADCAST)?.map(address).transpose()?;
    Ok(Some(Address {
        // `ifa_index` and `ifa_prefixlen`
        device: u32_at(message.payload, 4)?,
        address: address(bytes)?,
        prefix: u8_at(message.payload, 1)?,
        broadcast: match broadcast {
            Some(IpAddr::V4(broadcast)) => Some(broadcast),
            _ => None,
        },
    }))
}

/// The packets that a rule of `ip rule` is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoutingRule {
    /// The first and the last user, if it is for some alone.
    pub users: Option<(u32, u32)>,
    /// True if the rule looks at the packet's mark.
    pub is_by_mark: bool,
}

/// The rules of `ip rule` for a family.
pub fn rules(family: Family) -> Result<Vec<RoutingRule>, ReadError> {
    dump(libc::RTM_GETRULE, family_number(family), FIB_RULE_HDR, |message| {
        let attributes = message.attributes_after(FIB_RULE_HDR)?;
        let users = attributes.find(FRA_UID_RANGE)?;
        Ok(Some(RoutingRule {
            users: users.map(|range| Ok((u32_at(range, 0)?, u32_at(range, 4)?))).transpose()?,
            is_by_mark: attributes.find(FRA_FWMARK)?.is_some(),
        }))
    })
}

pub fn local_table(family: Family) -> Result<Vec<LocalEntry>, ReadError> {
    dump(libc::RTM_GETROUTE, family_number(family), RTMSG, |message| read_local_entry(message, family))
}

/// None: the entry is of another table.
fn read_local_entry(message: &Message<'_>, family: Family) -> Result<Option<LocalEntry>, Malformed> {
    // `rtm_dst_len`, `rtm_table` and `rtm_type`
    let byte = |place| u8_at(message.payload, place);
    let (length, table, kind) = (byte(1)?, byte(4)?, byte(7)?);
    if table != libc::RT_TABLE_LOCAL {
        return Ok(None);
    }
    let bits: u32 = if family == Family::V4 { 32 } else { 128 };
    let free = bits.checked_sub(length.into()).ok_or(Malformed)?;
    let attributes = message.attributes_after(RTMSG)?;
    let to = attributes.find(libc::RTA_DST)?.map(address).transpose()?;
    let first = to.map_or(0, ruleset::address);
    let last = first | u128::MAX.checked_shr(128 - free).unwrap_or(0);
    let device = attributes.find(libc::RTA_OIF)?.map_or(Ok(0), |value| u32_at(value, 0))?;
    Ok(Some(LocalEntry { kind, family, addresses: (first, last), device }))
}

/// Another host on a device's link, whose hardware address is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbour {
    pub device: u32,
    pub address: IpAddr,
    /// The hardware address was written down (`NUD_PERMANENT`) for one host, which is never asked for it.
    pub is_pinned: bool,
}

pub fn neighbours(family: Family) -> Result<Vec<Neighbour>, ReadError> {
    dump(libc::RTM_GETNEIGH, family_number(family), NDMSG, read_neighbour)
}

/// None: the hardware address isn't known.
fn read_neighbour(message: &Message<'_>) -> Result<Option<Neighbour>, Malformed> {
    let attributes = message.attributes_after(NDMSG)?;
    let Some(bytes) = attributes.find(libc::NDA_DST)? else {
        return Ok(None);
    };
    // `ndm_ifindex` and `ndm_state`
    let (device, state) = (u32_at(message.payload, 4)?, u16_at(message.payload, 8)?);
    let address = address(bytes)?;
    let is_pinned = state & libc::NUD_PERMANENT != 0 && !address.is_multicast();
    let is_known = state & !libc::NUD_INCOMPLETE & !libc::NUD_FAILED != 0;
    Ok(is_known.then_some(Neighbour { device, address, is_pinned }))
}

/// Requests a list by a header of this length that begins with a family, again whenever it changes while it is read.
fn dump<T>(
    kind: u16,
    family: i32,
    header: usize,
    read: impl Fn(&Message<'_>) -> Result<Option<T>, Malformed>,
) -> Result<Vec<T>, ReadError> {
    const TRIES: usize = 100;
    let mut subheader = vec![0; header];
    put(&mut subheader, 0, &[family as u8]);
    for _ in 1..TRIES {
        match open()?.list(Request::new(kind.into(), libc::NLM_F_DUMP, &subheader), &read) {
            Err(ReadError::Interrupted) => {}
            answer => return answer,
        }
    }
    Err(ReadError::Interrupted)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use ruleset::LOOPBACK;
    use ruleset::testing::random;

    use super::super::message::Messages;
    use super::*;
    use crate::tests::namespace::in_a_namespace;

    /// A message with these attributes.
    fn written(kind: u16, flags: i32, header: &[u8], attributes: &[(u16, &[u8])]) -> Request {
        let mut message = Request::new(kind.into(), flags, header);
        attributes.iter().for_each(|(kind, value)| message.bytes(*kind, value));
        message
    }

    /// An answer with this type of route and these attributes.
    fn answer(kind: u8, attributes: &[(u16, &[u8])]) -> Result<(RouteKind, u32, Option<IpAddr>), Malformed> {
        let mut subheader = [0; RTMSG];
        subheader[7] = kind;
        let bytes = written(libc::RTM_NEWROUTE, 0, &subheader, attributes).finish().unwrap();
        let Route { kind, device, source, .. } = read_route(&Messages(&bytes).next().unwrap()?)?;
        Ok((kind, device, source))
    }

    #[test]
    fn a_route_has_a_device_and_perhaps_a_source() {
        let device: (u16, &[u8]) = (libc::RTA_OIF, &7u32.to_ne_bytes());
        assert_eq!(answer(libc::RTN_UNICAST, &[device]), Ok((RouteKind::Unicast, 7, None)));
        let v4 = (libc::RTA_PREFSRC, &[10, 77, 0, 2][..]);
        assert_eq!(answer(libc::RTN_LOCAL, &[v4, device]), Ok((RouteKind::Local, 1, Some([10, 77, 0, 2].into()))));
        for kind in [libc::RTN_BROADCAST, libc::RTN_MULTICAST, libc::RTN_ANYCAST] {
            assert_eq!(answer(kind, &[device]), Ok((RouteKind::NotUnicast, 7, None)));
        }
        let v6 = [0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
        assert_eq!(
            answer(libc::RTN_UNICAST, &[device, (libc::RTA_PREFSRC, &v6)]),
            Ok((RouteKind::Unicast, 7, Some(v6.into())))
        );
    }

    #[test]
    fn an_answer_without_them_is_malformed() {
        assert_eq!(answer(libc::RTN_UNICAST, &[]), Err(Malformed));
        assert_eq!(answer(libc::RTN_UNICAST, &[(libc::RTA_OIF, &[7, 0])]), Err(Malformed));
        let device: (u16, &[u8]) = (libc::RTA_OIF, &7u32.to_ne_bytes());
        assert_eq!(answer(libc::RTN_UNICAST, &[device, (libc::RTA_PREFSRC, &[10])]), Err(Malformed));
    }

    /// A message of this type, with this header and these attributes, as read by this.
    fn answered<T>(
        header: &[u8],
        attributes: &[(u16, &[u8])],
        read: impl Fn(&Message<'_>) -> Result<T, Malformed>,
    ) -> Result<T, Malformed> {
        let bytes = written(0, 0, header, attributes).finish().unwrap();
        read(&Messages(&bytes).next().unwrap()?)
    }

    #[test]
    fn the_local_table_has_types_of_addresses() {
        let v4 = Family::V4;
        let entry = |length, table, attributes: &[(u16, &[u8])], of: Family| {
            let header = [0, length, 0, 0, table, 0, 0, libc::RTN_LOCAL, 0, 0, 0, 0];
            answered(&header, attributes, |message| read_local_entry(message, of))
        };
        let to: (u16, &[u8]) = (libc::RTA_DST, &[127, 0, 0, 0]);
        let device = 7u32.to_ne_bytes();
        let by: (u16, &[u8]) = (libc::RTA_OIF, &device);
        let local = |family, first, last, device| {
            Ok(Some(LocalEntry { kind: libc::RTN_LOCAL, family, addresses: (first, last), device }))
        };
        let v6 = Family::V6;
        for (length, attributes, of, want) in [
            (8, &[to, by][..], v4, local(v4, 127 << 24, (128 << 24) - 1, 7)),
            (32, &[to], v4, local(v4, 127 << 24, 127 << 24, 0)),
            (0, &[], v4, local(v4, 0, u32::MAX.into(), 0)),
            (0, &[by], v6, local(v6, 0, u128::MAX, 7)),
        ] {
            assert_eq!(entry(length, libc::RT_TABLE_LOCAL, attributes, of), want, "{length}");
        }
        assert_eq!(entry(8, libc::RT_TABLE_MAIN, &[to], v4), Ok(None));
        assert_eq!(entry(33, libc::RT_TABLE_LOCAL, &[to], v4), Err(Malformed));
    }

    #[test]
    fn a_neighbour_has_an_address_that_is_known() {
        let neighbour = |state: u16, attributes: &[(u16, &[u8])]| {
            let mut header = [0; NDMSG];
            put(&mut header, 4, &7u32.to_ne_bytes());
            put(&mut header, 8, &state.to_ne_bytes());
            answered(&header, attributes, read_neighbour)
        };
        let to: (u16, &[u8]) = (libc::NDA_DST, &[10, 0, 0, 1]);
        let want = Neighbour { device: 7, address: [10, 0, 0, 1].into(), is_pinned: false };
        assert_eq!(neighbour(libc::NUD_REACHABLE, &[to]), Ok(Some(want)));
        assert_eq!(neighbour(libc::NUD_PERMANENT, &[to]), Ok(Some(Neighbour { is_pinned: true, ..want })));
        for state in [0, libc::NUD_FAILED, libc::NUD_INCOMPLETE] {
            assert_eq!(neighbour(state, &[to]), Ok(None));
        }
        assert_eq!(neighbour(libc::NUD_REACHABLE, &[]), Ok(None));
    }

    #[test]
    fn an_address_is_the_own_one_of_a_link() {
        let address = |attributes: &[(u16, &[u8])]| {
            let mut header = [0, 24, 0, 0, 0, 0, 0, 0];
            put(&mut header, 4, &7u32.to_ne_bytes());
            answered(&header, attributes, read_address)
        };
        let other: (u16, &[u8]) = (libc::IFA_ADDRESS, &[10, 0, 0, 2]);
        let want = Address { device: 7, address: [10, 0, 0, 2].into(), prefix: 24, broadcast: None };
        assert_eq!(address(&[other]), Ok(Some(want)));
        let own = (libc::IFA_LOCAL, &[10, 0, 0, 1][..]);
        let broadcast = (libc::IFA_BROADCAST, &[10, 0, 0, 255][..]);
        let want = Address { address: [10, 0, 0, 1].into(), broadcast: Some([10, 0, 0, 255].into()), ..want };
        assert_eq!(address(&[other, own, broadcast]), Ok(Some(want)));
        assert_eq!(address(&[]), Ok(None));
    }

    /// Makes or changes something in the thread's network namespace.
    fn change(kind: u16, header: &[u8], attributes: &[(u16, &[u8])]) {
        let request = written(kind, libc::NLM_F_ACK | libc::NLM_F_CREATE, header, attributes);
        open().unwrap().list(request, |_| Ok(None::<()>)).unwrap();
    }

    /// Makes a pair of devices; the first has this name.
    pub(crate) fn add_veth(name: &[u8]) -> Device {
        let info = b"\x08\0\x01\0veth";
        change(libc::RTM_NEWLINK, &[0; IFINFOMSG], &[(libc::IFLA_IFNAME, name), (libc::IFLA_LINKINFO, info)]);
        device(name).unwrap()
    }

    #[test]
    fn a_device_has_the_neighbours_that_were_written_down() {
        in_a_namespace(|| {
            let veth = add_veth(b"first");
            assert_eq!(
                (&veth.kind[..], veth.is_up, veth.lower, veth.has_neighbours),
                (&b"veth"[..], false, None, true)
            );
            let mut header = [0; NDMSG];
            put(&mut header, 0, &[libc::AF_INET as u8]);
            put(&mut header, 4, &veth.index.to_ne_bytes());
            put(&mut header, 8, &libc::NUD_PERMANENT.to_ne_bytes());
            let address = [10, 0, 0, 9];
            change(libc::RTM_NEWNEIGH, &header, &[(libc::NDA_DST, &address), (libc::NDA_LLADDR, &[2, 0, 0, 0, 0, 1])]);
            let want = Neighbour { device: veth.index, address: address.into(), is_pinned: true };
            assert_eq!(neighbours(Family::V4).unwrap(), [want]);
            assert_eq!(neighbours(Family::V6).unwrap(), []);
        });
    }

    /// In a namespace whose lo is up, and which has nothing else.
    #[test]
    fn lo_is_asked_for_as_the_kernel_has_it() {
        in_a_namespace(|| {
            let mut up = [0; IFINFOMSG];
            // `ifi_index`, `ifi_flags` and `ifi_change`
            for (place, number) in [(4, LOOPBACK_INDEX), (8, libc::IFF_UP as u32), (12, libc::IFF_UP as u32)] {
                put(&mut up, place, &number.to_ne_bytes());
            }
            change(libc::RTM_NEWLINK, &up, &[]);
            let lo = device(b"lo").unwrap();
            assert_eq!(
                (lo.index, lo.name.as_bytes(), lo.is_up, lo.has_neighbours),
                (LOOPBACK_INDEX, &b"lo"[..], true, false)
            );
            assert_eq!(device(LOOPBACK).unwrap(), lo);
            assert!(devices().unwrap().contains(&lo));
            assert!(matches!(device(b"eth9"), Err(ReadError::Socket(Errno::ENODEV))));
            let own = IpAddr::from([127, 0, 0, 1]);
            assert!(addresses().unwrap().iter().any(|address| (address.address, address.prefix) == (own, 8)));
            let lo = LocalEntry {
                kind: libc::RTN_LOCAL,
                family: Family::V4,
                addresses: (127 << 24, (128 << 24) - 1),
                device: LOOPBACK_INDEX,
            };
            assert!(local_table(Family::V4).unwrap().contains(&lo));
            // Those of the local, the main and the default table.
            let plain = RoutingRule { users: None, is_by_mark: false };
            assert_eq!(rules(Family::V4).unwrap(), [plain; 3]);
            let mut packet =
                Packet { to: (own, 80).into(), from: None, from_port: Some(5), uid: Some(7), device: None };
            let want = Route { kind: RouteKind::Local, device: LOOPBACK_INDEX, source: Some(own), gateway: None };
            assert_eq!(route(packet).unwrap(), Ok(want));
            packet.from = Some([127, 0, 0, 2].into());
            assert_eq!(route(packet).unwrap(), Ok(Route { source: packet.from, ..want }));
            packet.to = ([10, 0, 0, 1], 80).into();
            assert!(matches!(route(packet), Ok(Err(Errno::ENETUNREACH))));
        });
    }

    /// The kernel's words about `ip link add wg0 type wireguard`, without most attributes, and of lo.
    #[test]
    fn a_device_may_have_a_kind() {
        let read = |attributes: &[(u16, &[u8])]| answered(&[0; IFINFOMSG], attributes, read_device);
        let info = b"\x0e\0\x01\0wireguard\0\0\0";
        let wireguard = read(&[(libc::IFLA_IFNAME, b"wg0\0"), (libc::IFLA_LINKINFO, info)]);
        let device = |name: &str, kind: &str| Device {
            index: 0,
            name: Name::from(name),
            kind: kind.into(),
            is_up: false,
            lower: None,
            master: None,
            has_neighbours: true,
            group: 0,
            hardware: 0,
        };
        assert_eq!(wireguard, Ok(device("wg0", "wireguard")));
        assert_eq!(read(&[(libc::IFLA_IFNAME, b"lo\0")]), Ok(device("lo", "")));
        assert_eq!(read(&[]), Err(Malformed));
    }

    #[test]
    fn a_device_may_be_on_another_of_its_namespace() {
        let name: (u16, &[u8]) = (libc::IFLA_IFNAME, b"a\0");
        let lower: (u16, &[u8]) = (libc::IFLA_LINK, &7u32.to_ne_bytes());
        let elsewhere: (u16, &[u8]) = (IFLA_LINK_NETNSID, &0u32.to_ne_bytes());
        let (vlan, veth): (&[u8], &[u8]) = (b"\x09\0\x01\0vlan\0", b"\x09\0\x01\0veth\0");
        for (info, namespace, want) in
            [(vlan, &[][..], Some(7)), (vlan, &[elsewhere], None), (veth, &[], None), (veth, &[elsewhere], None)]
        {
            let attributes = [&[name, lower, (libc::IFLA_LINKINFO, info)], namespace].concat();
            assert_eq!(answered(&[0; IFINFOMSG], &attributes, read_device).unwrap().lower, want);
        }
    }

    #[test]
    fn a_device_has_neighbours_unless_it_leads_to_one_host_or_to_none() {
        for (flags, has_neighbours) in [
            (libc::IFF_UP, true),
            (libc::IFF_BROADCAST, true),
            (libc::IFF_LOOPBACK, false),
            (libc::IFF_NOARP, false),
            (libc::IFF_POINTOPOINT, false),
            (libc::IFF_NOARP | libc::IFF_POINTOPOINT, false),
        ] {
            let mut header = [0; IFINFOMSG];
            put(&mut header, 8, &flags.to_ne_bytes());
            let read = answered(&header, &[(libc::IFLA_IFNAME, b"a\0")], read_device).unwrap();
            assert_eq!((read.has_neighbours, read.is_up), (has_neighbours, flags == libc::IFF_UP), "{flags:#x}");
        }
    }

    proptest! {
        #![proptest_config(random(256))]

        #[test]
        fn no_bytes_make_it_panic(payload: Vec<u8>) {
            let message = Message { kind: 0, flags: 0, sequence: 0, payload: &payload };
            let _ = (read_route(&message), read_device(&message), read_address(&message));
        }
    }
}
