//! Netlink messages as bytes, both ways. An invalid message is a [`Malformed`] error, never a panic.

use std::ffi::CStr;
#[cfg(any(test, feature = "decode"))]
use std::net::IpAddr;

use nftnl::ProtoFamily;
use nix::errno::Errno;
use ruleset::{Field, interface, names_beginning_with};
use thiserror::Error;

/// Length of `struct nlmsghdr`: length, type, flags, sequence, port.
const HEADER: usize = 16;
/// Length of `struct nfgenmsg`, which follows it in every nfnetlink message: family, version, resource.
const SUBHEADER: usize = 4;
/// `NLA_TYPE_MASK` in linux/netlink.h: an attribute's type without its two flag bits.
const TYPE_MASK: u16 = 0x3fff;

/// The protocol doesn't allow the kernel's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the kernel's answer is cut off or garbled")]
pub struct Malformed;

/// Something that can't be written into a message, by its name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Unwritable(pub(crate) String);

#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    /// `nlmsg_type`: a control message such as `NLMSG_ERROR`, or subsystem and message.
    pub(crate) kind: u16,
    /// `nlmsg_flags`: `NLM_F_DUMP_INTR` says that the rules changed during a dump.
    pub(crate) flags: u16,
    /// `nlmsg_seq`: which request it answers.
    pub(crate) sequence: u32,
    pub(crate) payload: &'a [u8],
}

impl<'a> Message<'a> {
    pub(crate) fn family(&self) -> Result<u8, Malformed> {
        u8_at(self.payload, 0)
    }

    /// Those of a message of nfnetlink.
    pub(crate) fn attributes(&self) -> Result<Attributes<'a>, Malformed> {
        self.attributes_after(SUBHEADER)
    }

    /// Those that follow a header of this length, which its subsystem has for itself.
    pub(super) fn attributes_after(&self, header: usize) -> Result<Attributes<'a>, Malformed> {
        self.payload.get(header..).map(Attributes).ok_or(Malformed)
    }
}

pub(crate) struct Messages<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        // Nothing follows a malformed message.
        let bytes = std::mem::take(&mut self.0);
        (!bytes.is_empty()).then(|| {
            let length = u32_at(bytes, 0)? as usize;
            let payload = bytes.get(HEADER..length).ok_or(Malformed)?;
            let (kind, flags, sequence) = (u16_at(bytes, 4)?, u16_at(bytes, 6)?, u32_at(bytes, 8)?);
            self.0 = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
            Ok(Message { kind, flags, sequence, payload })
        })
    }
}

/// A run of attributes: type and value each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attributes<'a>(pub(crate) &'a [u8]);

impl<'a> Attributes<'a> {
    /// The value of the first attribute of this type; without one, the message is invalid.
    pub(crate) fn get(self, kind: u16) -> Result<&'a [u8], Malformed> {
        self.find(kind)?.ok_or(Malformed)
    }

    pub(crate) fn find(self, kind: u16) -> Result<Option<&'a [u8]>, Malformed> {
        for attribute in self {
            let (found, value) = attribute?;
            if found == kind {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<(u16, &'a [u8]), Malformed>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let bytes = std::mem::take(&mut self.0);
        (!bytes.is_empty()).then(|| {
            let &[one, two, three, four] = bytes.first_chunk().ok_or(Malformed)?;
            let length = usize::from(u16::from_ne_bytes([one, two]));
            let value = bytes.get(4..length).ok_or(Malformed)?;
            self.0 = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
            Ok((u16::from_ne_bytes([three, four]) & TYPE_MASK, value))
        })
    }
}

/// An attribute's value as a number, in network byte order, as nf_tables has numbers.
pub(crate) fn be32(value: &[u8]) -> Result<u32, Malformed> {
    value.try_into().map(u32::from_be_bytes).map_err(|_| Malformed)
}

pub(crate) fn be64(value: &[u8]) -> Result<u64, Malformed> {
    value.try_into().map(u64::from_be_bytes).map_err(|_| Malformed)
}

/// An attribute's value as a C string, without its NUL. It need not be UTF-8.
pub(crate) fn string(value: &[u8]) -> Result<&[u8], Malformed> {
    CStr::from_bytes_until_nul(value).map(CStr::to_bytes).map_err(|_| Malformed)
}

pub(crate) fn u8_at(bytes: &[u8], offset: usize) -> Result<u8, Malformed> {
    bytes.get(offset).copied().ok_or(Malformed)
}

fn at<const N: usize>(bytes: &[u8], offset: usize) -> Result<[u8; N], Malformed> {
    let field = bytes.get(offset..).and_then(|rest| rest.first_chunk());
    field.copied().ok_or(Malformed)
}

/// The number at an offset, in the machine's byte order.
pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> Result<u16, Malformed> {
    at(bytes, offset).map(u16::from_ne_bytes)
}

pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> Result<u32, Malformed> {
    at(bytes, offset).map(u32::from_ne_bytes)
}

pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> Result<u64, Malformed> {
    at(bytes, offset).map(u64::from_ne_bytes)
}

/// The number that these bytes are in network byte order: at most 16, of which more would be the last ones.
pub(crate) fn number(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0, |number, &byte| (number << 8) + u128::from(byte))
}

/// An address by its bytes: 4 of IPv4, 16 of IPv6.
#[cfg(any(test, feature = "decode"))]
pub(crate) fn address(bytes: &[u8]) -> Result<IpAddr, Malformed> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).map_err(|_| Malformed)
}

/// An attribute that is a number, in network byte order.
pub(crate) fn be32_attribute(kind: u16, value: u32) -> [u8; 8] {
    let ([a, b], [c, d], [e, f, g, h]) = (8u16.to_ne_bytes(), kind.to_ne_bytes(), value.to_be_bytes());
    [a, b, c, d, e, f, g, h]
}

/// The numbers of a field that are this one under a mask; none if the mask has holes.
pub(crate) fn under_mask(field: Field, number: u128, mask: u128) -> Option<(u128, u128)> {
    let rest = field.largest() & !mask;
    let is_contiguous = rest & rest.wrapping_add(1) == 0;
    is_contiguous.then_some((number & mask, (number & mask) + rest))
}

/// The numbers of the devices whose names begin with these bytes or, with a NUL, are these; none if no device has such a
/// name.
pub(crate) fn devices(value: &[u8]) -> Option<(u128, u128)> {
    // For a whole name, nft compares all 16 bytes, and iptables the name with its NUL. A prefix has no NUL.
    let name = value.split(|&byte| byte == 0).next().unwrap_or_default();
    let has_other_padding = value.iter().skip(name.len()).any(|&byte| byte != 0);
    if value.len() > 16 || has_other_padding {
        return None;
    }
    let is_whole = name.len() < value.len() || value.len() == 16;
    Some(if is_whole { (interface(name), interface(name)) } else { names_beginning_with(name) })
}

/// Writes bytes at an offset of one of the kernel's structures, which has room for them there.
pub(crate) fn put(structure: &mut [u8], offset: usize, bytes: &[u8]) {
    for (slot, byte) in structure.iter_mut().skip(offset).zip(bytes) {
        *slot = *byte;
    }
}

/// A request: a message's header and its attributes, of which a few bytes each are asked. What is committed is written by
/// libnftnl.
#[derive(Debug)]
pub struct Request {
    bytes: Vec<u8>,
    is_too_long: bool,
}

impl Request {
    /// One of this type, with these flags of netlink(7) beside `NLM_F_REQUEST`, and the header that its subsystem has for
    /// itself.
    pub(crate) fn new(kind: i32, flags: i32, subheader: &[u8]) -> Self {
        let [kind, flags] = [kind, libc::NLM_F_REQUEST | flags].map(|number| (number as u16).to_ne_bytes());
        // The length, set at the end; then the number, and the port, which stands for the kernel.
        let bytes = [&[0; 4], &kind[..], &flags, &[0; 8], subheader].concat();
        Self { bytes, is_too_long: false }
    }

    /// One to a subsystem of nfnetlink (`NFNL_SUBSYS_*`).
    pub(crate) fn nfnetlink(subsystem: i32, message: i32, flags: i32, family: ProtoFamily) -> Self {
        Self::new((subsystem << 8) + message, flags, &[family as u8, libc::NFNETLINK_V0 as u8, 0, 0])
    }

    pub(crate) fn string(&mut self, kind: u16, value: impl AsRef<[u8]>) {
        self.bytes(kind, &[value.as_ref(), &[0]].concat());
    }

    pub(crate) fn be32(&mut self, kind: u16, value: u32) {
        self.bytes.extend(be32_attribute(kind, value));
    }

    pub(crate) fn bytes(&mut self, kind: u16, value: &[u8]) {
        let Ok(length) = u16::try_from(4 + value.len()) else {
            self.is_too_long = true;
            return;
        };
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// The request's bytes. The error is the kernel's for a message that is too long.
    pub(crate) fn finish(mut self) -> Result<Vec<u8>, Errno> {
        let length = self.bytes.len() as u32;
        put(&mut self.bytes, 0, &length.to_ne_bytes());
        if self.is_too_long { Err(Errno::EMSGSIZE) } else { Ok(self.bytes) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ruleset::testing::random;

    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let written = || {
            let mut request = Request::nfnetlink(10, 7, libc::NLM_F_ACK, ProtoFamily::Ipv4);
            request.string(1, "nat");
            request.string(2, b"\xff");
            request.finish().unwrap()
        };
        let bytes = [written(), written()].concat();
        let messages: Vec<_> = Messages(&bytes).collect::<Result<_, _>>().unwrap();
        assert_eq!(messages.len(), 2);
        assert_eq!((messages[1].kind, messages[1].sequence), (10 << 8 | 7, 0));
        assert_eq!(i32::from(messages[1].flags), libc::NLM_F_REQUEST | libc::NLM_F_ACK);
        assert_eq!(messages[1].family(), Ok(libc::NFPROTO_IPV4 as u8));
        let attributes = messages[1].attributes().unwrap();
        assert_eq!(string(attributes.get(1).unwrap()), Ok(&b"nat"[..]));
        assert_eq!(string(attributes.get(2).unwrap()), Ok(&b"\xff"[..]));
        assert_eq!(attributes.find(3), Ok(None));
    }

    /// The length of an attribute has 16 bits, its header of 4 bytes included.
    #[test]
    fn what_does_not_fit_is_an_error() {
        let written = |length| {
            let mut request = Request::new(0, 0, &[]);
            request.bytes(1, &vec![7; length]);
            request.finish()
        };
        assert_eq!(Attributes(&written(65_531).unwrap()[HEADER..]).get(1).unwrap().len(), 65_531);
        assert_eq!(written(65_532), Err(Errno::EMSGSIZE));
    }

    proptest! {
        #![proptest_config(random(256))]

        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            for message in Messages(&bytes).flatten() {
                for attribute in message.attributes().into_iter().flatten() {
                    let _ = attribute.map(|(_, value)| (be32(value), be64(value), string(value).is_ok()));
                }
            }
        }
    }
}
