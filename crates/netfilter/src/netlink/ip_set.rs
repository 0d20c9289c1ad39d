//! Asks the kernel what ipset's sets hold: linux/netfilter/ipset/ip_set.h.

use nftnl::ProtoFamily;
use ruleset::{Family, Intervals, IpSet, Name};

use super::message::{Attributes, Malformed, Message, Request, number, string, u8_at};
use super::{ReadError, Respondent};

/// `IPSET_CMD_LIST`, and the oldest version that all kernels understand (`IPSET_PROTOCOL_MIN`).
const LIST: i32 = 7;
const VERSION: u8 = 6;

/// `IPSET_ATTR_*` of a set, of an element, and of an address.
const PROTOCOL: u16 = 1;
const SET_NAME: u16 = 2;
const TYPE_NAME: u16 = 3;
const FAMILY: u16 = 5;
const DATA: u16 = 7;
const ELEMENTS: u16 = 8;
const IP: u16 = 1;
const PREFIX: u16 = 3;
const PORT: u16 = 4;
const FLAGS: u16 = 8;
const BITMASK: u16 = 12;
const NETMASK: u16 = 20;
const V4: u16 = 1;
const V6: u16 = 2;

/// `IPSET_FLAG_NOMATCH`
const NO_MATCH: u32 = 1 << 2;

/// More elements than this of one set aren't followed.
const MOST: usize = 1 << 16;

/// The content of a set of addresses, networks or ports; none if the set has several fields or something else, or more
/// than is followed.
///
/// # Errors
/// ENOENT: there is no such set.
pub fn content(socket: &impl Respondent, set: &Name) -> Result<Option<IpSet>, ReadError> {
    let mut listed = Listed::default();
    let flags = libc::NLM_F_DUMP | libc::NLM_F_ACK;
    let mut request = Request::nfnetlink(libc::NFNL_SUBSYS_IPSET, LIST, flags, ProtoFamily::Ipv4);
    request.bytes(PROTOCOL, &[VERSION]);
    request.string(SET_NAME, set.as_bytes());
    socket.ask(request, &mut |message| listed.read(message))?;
    Ok(listed.finish())
}

/// A set, as far as it was listed.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    /// What its elements are; none: something else, or that wasn't told yet.
    of: Option<Elements>,
    numbers: Vec<(u128, u128)>,
    is_unknown: bool,
}

#[derive(Debug, Clone, Copy)]
enum Elements {
    Addresses(Family),
    Ports,
}

impl Elements {
    /// Those of a type of sets, for a family (`NFPROTO_*`).
    fn of(kind: &[u8], family: u8) -> Option<Self> {
        match (kind, i32::from(family)) {
            (b"hash:ip" | b"hash:net" | b"bitmap:ip", libc::AF_INET) => Some(Self::Addresses(Family::V4)),
            (b"hash:ip" | b"hash:net", libc::AF_INET6) => Some(Self::Addresses(Family::V6)),
            (b"bitmap:port", _) => Some(Self::Ports),
            _ => None,
        }
    }
}

impl Listed {
    pub(crate) fn read(&mut self, message: &Message<'_>) -> Result<(), Malformed> {
        let set = message.attributes()?;
        if let Some(kind) = set.find(TYPE_NAME)? {
            let family = set.find(FAMILY)?.map_or(Ok(0), |family| u8_at(family, 0))?;
            self.of = Elements::of(string(kind)?, family);
            let made = Attributes(set.find(DATA)?.unwrap_or_default());
            // Elements stand for all addresses that are the same under a mask.
            self.is_unknown |= made.find(NETMASK)?.is_some() || made.find(BITMASK)?.is_some();
        }
        let Some(of) = self.of else { return Ok(()) };
        for element in Attributes(set.find(ELEMENTS)?.unwrap_or_default()) {
            let element = Attributes(element?.1);
            let flags = element.find(FLAGS)?.map_or(0, number);
            self.is_unknown |= flags & u128::from(NO_MATCH) != 0 || self.numbers.len() == MOST;
            if !self.is_unknown {
                self.numbers.push(match of {
                    Elements::Addresses(_) => addresses(element)?,
                    Elements::Ports => port(element)?,
                });
            }
        }
        Ok(())
    }

    fn finish(self) -> Option<IpSet> {
        let of = self.of.filter(|_| !self.is_unknown)?;
        let numbers = Intervals::new(self.numbers);
        Some(match of {
            Elements::Addresses(family) => IpSet::Addresses(family, numbers),
            Elements::Ports => IpSet::Ports(numbers),
        })
    }
}

fn port(element: Attributes<'_>) -> Result<(u128, u128), Malformed> {
    let port = number(element.get(PORT)?);
    Ok((port, port))
}

/// An element's address, or its network.
fn addresses(element: Attributes<'_>) -> Result<(u128, u128), Malformed> {
    let ip = Attributes(element.find(IP)?.unwrap_or_default());
    let (address, bits) = match ip.find(V4)? {
        Some(v4) => (number(v4), 32u32),
        None => (number(ip.get(V6)?), 128),
    };
    let prefix = element.find(PREFIX)?.map_or(Ok(bits), |prefix| u8_at(prefix, 0).map(u32::from))?;
    let free = bits.checked_sub(prefix).ok_or(Malformed)?;
    Ok((address, address | u128::MAX.checked_shr(128 - free).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::errno::Errno;
    use proptest::prelude::*;
    use ruleset::testing::random;

    use super::super::Socket;
    use super::*;
    use crate::netlink::sockopt::ip_sets;
    use crate::tests::namespace::{CHILDREN, in_a_namespace};

    #[test]
    fn sets_are_read_as_the_kernel_holds_them() {
        in_a_namespace(|| {
            let _children = CHILDREN.lock();
            let ipset = |arguments: &str| {
                let status = Command::new("ipset").args(arguments.split(' ')).status();
                assert!(status.expect("cargo xtask setup installs ipset").success(), "{arguments}");
            };
            assert_eq!(ip_sets(), []);
            for made in [
                "create a hash:ip",
                "add a 10.0.0.1",
                "add a 10.0.0.3",
                "create b hash:net family inet6",
                "add b fd77::/64",
                "create c bitmap:port range 1-100",
                "add c 80",
                "add c 81",
                "create d hash:ip,port",
                "add d 10.0.0.1,tcp:80",
                "create e hash:net",
                "add e 10.0.0.0/8",
                "add e 10.1.0.0/16 nomatch",
                "create f hash:ip netmask 24",
                "add f 10.0.0.1",
                "create g hash:ip timeout 100",
                "destroy c",
            ] {
                ipset(made);
            }
            let names: Vec<String> = ip_sets().into_iter().map(|(index, name)| format!("{index} {name}")).collect();
            assert_eq!(names, ["0 a", "1 b", "3 d", "4 e", "5 f", "6 g"]);
            ipset("create c bitmap:port range 1-100 timeout 100");
            ipset("add c 80");
            let socket = Socket::open().unwrap();
            let content = |name: &str| content(&socket, &Name::from(name)).unwrap();
            let v4 = |list: &[(u128, u128)]| Some(IpSet::Addresses(Family::V4, Intervals::new(list.iter().copied())));
            let network = 0xfd77 << 112;
            assert_eq!(content("a"), v4(&[(0x0a00_0001, 0x0a00_0001), (0x0a00_0003, 0x0a00_0003)]));
            let v6 = Intervals::new([(network, network + u128::from(u64::MAX))]);
            assert_eq!(content("b"), Some(IpSet::Addresses(Family::V6, v6)));
            assert_eq!(content("c"), Some(IpSet::Ports(Intervals::one(80))));
            assert_eq!(content("g"), v4(&[]));
            assert_eq!([content("d"), content("e"), content("f")], [const { None }; 3]);
            let missing = super::content(&socket, &Name::from("missing"));
            assert!(matches!(missing, Err(ReadError::Socket(Errno::ENOENT))), "{missing:?}");
        });
    }

    proptest! {
        #![proptest_config(random(256))]

        #[test]
        fn no_bytes_make_it_panic(payload: Vec<u8>) {
            let mut listed = Listed { of: Some(Elements::Addresses(Family::V4)), ..Listed::default() };
            let _ = listed.read(&Message { kind: 0, flags: 0, sequence: 0, payload: &payload });
            listed.finish();
        }
    }
}
