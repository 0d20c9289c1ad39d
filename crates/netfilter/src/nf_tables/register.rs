//! The registers in which a rule's expressions pass values to each other, and the numbers that their bytes stand for.

use ruleset::nftables::routed_type;
use ruleset::{Bits, DeviceKey, Field, Name};

use crate::netlink::message::{devices, number, under_mask};

/// Bytes of a packet: the header that they are in (`NFT_PAYLOAD_*_HEADER`), and their offset and length there.
pub(crate) type Place = (i32, u32, u32);

/// A field in a register, or only the first bytes of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) field: Field,
    pub(super) bytes: usize,
    pub(super) host_order: bool,
}

impl Part {
    pub(super) fn whole(field: Field) -> Self {
        Self { field, bytes: field.bytes(), host_order: field.facts().is_in_host_order }
    }

    /// The numbers of the field that have these bytes in the register: a single one or, if the register has only a part
    /// of an address or a name, an interval. None: no number of the field has them.
    pub(super) fn interval(self, value: &[u8]) -> Option<(u128, u128)> {
        if matches!(self.field, Field::InInterface | Field::OutInterface) {
            return devices(value);
        }
        if value.is_empty() || value.len() > self.bytes || self.bytes > self.field.bytes() {
            return None;
        }
        if self.host_order && value.len() != self.bytes {
            return None;
        }
        if self.host_order && cfg!(target_endian = "little") {
            let swapped: Vec<u8> = value.iter().rev().copied().collect();
            return Some((number(&swapped), number(&swapped)));
        }
        // nft compares only the bytes that a prefix covers, if it ends on a whole byte.
        let rest = 8 * (self.field.bytes() - value.len()) as u32;
        let first = number(value).checked_shl(rest).unwrap_or(0);
        Some((first, first + 1u128.checked_shl(rest).unwrap_or(0).wrapping_sub(1)))
    }
}

/// The number of a whole field with these bytes.
pub(super) fn bits_of(field: Field, bytes: &[u8]) -> Option<u128> {
    let (first, last) = Part::whole(field).interval(bytes)?;
    (first == last).then_some(first)
}

/// The addresses that equal this one under a mask, both of the loaded length; none if the mask has holes.
pub(super) fn network(field: Field, address: &[u8], mask: &[u8]) -> Option<(u128, u128)> {
    if address.len() != mask.len() {
        return None;
    }
    let number = |bytes: &[u8]| number(bytes).checked_shl(field.bits() - 8 * bytes.len() as u32);
    let address = number(address)?;
    // Nothing equals an address that has bits outside of the mask.
    under_mask(field, address, number(mask)?).filter(|(first, _)| *first == address)
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Loaded {
    Field(Part),
    /// A field under a mask.
    Masked(Field, Vec<u8>),
    /// The packet's connection-tracking state, under a mask.
    State(u32),
    /// The connection's status, under a mask.
    Status(u32),
    /// The packet's direction in its connection.
    Direction,
    Bits(Bits),
    /// The number of a device, or of something of it; this field has its name.
    OfDevice(Field, DeviceKey),
    /// The type that routing gives the source or the destination.
    AddressType {
        is_source: bool,
        /// The field with the device to whose addresses this is limited.
        of_device: Option<Field>,
    },
    /// The class of the socket's cgroup.
    SocketClass,
    /// The number of the device by which the route to the source leaves: the one on which the packet arrived or, if
    /// loose, any.
    ReversePath {
        is_loose: bool,
    },
    /// One of so many numbers from the second one on, which the packet doesn't tell.
    Chosen {
        expression: &'static str,
        count: u32,
        first: u32,
    },
    /// The value of the map that the rule asks.
    Mapped,
    Value(Vec<u8>),
    /// Other bytes of a packet, under a mask if there is one.
    Bytes(Place, Option<Vec<u8>>),
    /// Something that isn't understood, by the names of the expressions that loaded it.
    Other(Vec<Name>),
}

impl Loaded {
    /// The number of 4-byte registers that it fills; the most that it may fill if that isn't known.
    fn slots(&self) -> u32 {
        let bytes = match self {
            Self::Field(part) => part.bytes,
            Self::Masked(_, mask) => mask.len(),
            Self::Value(value) => value.len(),
            Self::Mapped | Self::Bytes(..) | Self::Other(_) => 16,
            _ => 4,
        };
        bytes.div_ceil(4) as u32
    }

    /// The words of nft's that load it.
    pub(super) fn words(&self) -> &str {
        match self {
            Self::Field(Part { field, .. }) => field.facts().nft,
            &Self::AddressType { is_source, of_device } => routed_type(is_source, of_device),
            Self::SocketClass => "meta cgroup",
            Self::OfDevice(Field::InInterface, DeviceKey::Index) => "iif",
            Self::OfDevice(Field::InInterface, DeviceKey::Group) => "iifgroup",
            Self::OfDevice(Field::InInterface, DeviceKey::Hardware) => "iiftype",
            Self::OfDevice(_, DeviceKey::Index) => "oif",
            Self::OfDevice(_, DeviceKey::Group) => "oifgroup",
            Self::OfDevice(_, DeviceKey::Hardware) => "oiftype",
            Self::State(_) => "ct state",
            Self::Chosen { expression: "hash", .. } => "[hash]",
            Self::Chosen { .. } => "[numgen]",
            _ => "[...]",
        }
    }

    /// The name of the expression that loads it.
    fn loader(&self) -> &'static str {
        match self {
            Self::State(_) | Self::Status(_) | Self::Direction => "ct",
            Self::AddressType { .. } | Self::ReversePath { .. } => "fib",
            Self::OfDevice(..) | Self::SocketClass => "meta",
            Self::Chosen { expression, .. } => expression,
            Self::Mapped => "map",
            Self::Field(Part { field, .. }) | Self::Bits(Bits { field, .. }) => match field {
                Field::Mark | Field::Uid | Field::Gid | Field::EtherType | Field::PacketType => "meta",
                Field::ConnectionMark => "ct",
                _ if field.of_first_packet().is_some() => "ct",
                _ => "payload",
            },
            _ => "payload",
        }
    }
}

/// The content of each register, as far as expressions have loaded it.
#[derive(Debug, Default)]
pub(super) struct Registers {
    held: Vec<(u32, Loaded)>,
}

/// Where a register begins, counted in units of 4 bytes: the 16-byte registers 1 to 4 overlap the 4-byte registers 8 to
/// 23 (`enum nft_registers` in linux/netfilter/nf_tables.h).
pub(super) fn slot(register: u32) -> u32 {
    match register {
        1..=4 => (register - 1) * 4,
        other => other.saturating_sub(8),
    }
}

impl Registers {
    /// Loads a register, and with it those that it overlaps.
    pub(super) fn load(&mut self, register: u32, loaded: Loaded) {
        let first = slot(register);
        // A garbled message may name registers that the kernel doesn't have, up to the largest number.
        let end = first.saturating_add(loaded.slots());
        self.held.retain(|(other, before)| *other >= end || other.saturating_add(before.slots()) <= first);
        self.held.push((first, loaded));
    }

    pub(super) fn get(&self, register: u32) -> Option<&Loaded> {
        let slot = slot(register);
        let held = self.held.iter().find(|(other, _)| *other == slot);
        held.map(|(_, loaded)| loaded)
    }

    /// Everything that fills so many bytes from a register on, with its length, each whole and in registers of its own;
    /// none if a part of it isn't known.
    pub(super) fn parts(&self, register: u32, bytes: u32) -> Option<Vec<(Loaded, usize)>> {
        let mut slot = slot(register);
        let end = slot.saturating_add(bytes.div_ceil(4));
        let mut parts = Vec::new();
        while slot < end {
            let (_, loaded) = self.held.iter().find(|(held, _)| *held == slot)?;
            let loaded = match loaded {
                Loaded::Bits(bits) if *bits == Bits::all(bits.field) => &Loaded::Field(Part::whole(bits.field)),
                loaded => loaded,
            };
            let length = match loaded {
                Loaded::Field(part) if part.bytes == part.field.bytes() => part.bytes,
                Loaded::OfDevice(_, DeviceKey::Hardware) => 2,
                Loaded::State(u32::MAX)
                | Loaded::AddressType { .. }
                | Loaded::OfDevice(..)
                | Loaded::SocketClass
                | Loaded::Chosen { .. } => 4,
                _ => return None,
            };
            parts.push((loaded.clone(), length));
            slot += length.div_ceil(4) as u32;
        }
        (slot == end).then_some(parts)
    }

    pub(super) fn constant(&self, register: u32) -> Option<&[u8]> {
        match self.get(register)? {
            Loaded::Value(value) => Some(value),
            _ => None,
        }
    }

    pub(super) fn clear(&mut self) {
        self.held.clear();
    }

    /// The names of the expressions that loaded a register, and of this one, which isn't understood there.
    pub(super) fn names(&self, register: u32, expression: &str) -> Vec<Name> {
        let mut names = match self.get(register) {
            Some(Loaded::Other(names)) => names.clone(),
            Some(Loaded::Value(_)) | None => Vec::new(),
            Some(Loaded::Bytes(_, Some(_))) => ["payload", "bitwise"].map(Name::from).into(),
            Some(loaded) => vec![Name::from(loaded.loader())],
        };
        names.push(Name::from(expression));
        names
    }
}

#[cfg(test)]
mod tests {
    use ruleset::{interface, names_beginning_with};

    use super::*;

    fn constant(bytes: usize) -> Loaded {
        Loaded::Value(vec![7; bytes])
    }

    /// Register 1 has the bytes of the registers 8 to 11, register 2 those of 12 to 15.
    #[test]
    fn what_is_loaded_takes_the_place_of_what_it_overlaps() {
        for (first, second, stays) in [
            ((1, 16), (9, 4), false),
            ((9, 4), (1, 16), false),
            ((11, 4), (1, 16), false),
            ((12, 4), (1, 16), true),
            ((1, 4), (9, 4), true),
            ((1, 5), (9, 4), false),
            ((1, 16), (2, 16), true),
            ((2, 4), (12, 4), false),
            ((8, 4), (1, 4), false),
        ] {
            let mut registers = Registers::default();
            registers.load(first.0, constant(first.1));
            registers.load(second.0, constant(second.1));
            assert_eq!(registers.get(second.0), Some(&constant(second.1)));
            let is_there = registers.get(first.0) == Some(&constant(first.1)) && registers.held.len() == 2;
            assert_eq!(is_there, stays, "{first:?} {second:?}");
        }
        let mut registers = Registers::default();
        registers.load(1, Loaded::Direction);
        assert_eq!(registers.constant(1), None);
        registers.load(9, constant(2));
        assert_eq!(registers.constant(9), Some(&[7, 7][..]));
        registers.clear();
        assert_eq!(registers.get(1), None);
    }

    /// 16 bytes from register 1 on are those of the registers 8 to 11.
    #[test]
    fn what_is_loaded_fills_as_many_registers_as_it_has_bytes() {
        let v6 = Field::Source(ruleset::Family::V6);
        let bytes = Place::default();
        for (loaded, last) in [
            (Loaded::Field(Part::whole(v6)), 11),
            (Loaded::Field(Part { bytes: 6, ..Part::whole(v6) }), 9),
            (Loaded::Masked(v6, vec![255; 16]), 11),
            (Loaded::State(1), 8),
            (Loaded::Bits(Bits::all(Field::Mark)), 8),
            (Loaded::Mapped, 11),
            (Loaded::Bytes(bytes, None), 11),
            (Loaded::Other(vec![Name::from("fib")]), 11),
        ] {
            for (register, stays) in [(last, false), (last + 1, true)] {
                let mut registers = Registers::default();
                registers.load(1, loaded.clone());
                registers.load(register, constant(4));
                assert_eq!(registers.get(1) == Some(&loaded), stays, "{loaded:?} {register}");
            }
        }
    }

    #[test]
    fn what_lies_side_by_side_is_looked_up_together() {
        let (v4, port) = (Part::whole(Field::Source(ruleset::Family::V4)), Part::whole(Field::SourcePort));
        let mut registers = Registers::default();
        registers.load(1, Loaded::Field(v4));
        registers.load(9, Loaded::Field(port));
        let both = [(Loaded::Field(v4), 4), (Loaded::Field(port), 2)];
        assert_eq!(registers.parts(1, 8).as_deref(), Some(&both[..]));
        assert_eq!(registers.parts(8, 6).as_deref(), Some(&both[..]));
        assert_eq!(registers.parts(1, 4).as_deref(), Some(&both[..1]));
        for (register, bytes) in [(1, 12), (9, 8), (2, 8)] {
            assert_eq!(registers.parts(register, bytes), None);
        }
        registers.load(9, Loaded::Direction);
        assert_eq!(registers.parts(1, 8), None);
        registers.load(9, Loaded::Field(Part { bytes: 1, ..v4 }));
        assert_eq!(registers.parts(1, 8), None, "not whole");
    }

    #[test]
    fn a_network_has_the_addresses_under_a_mask_without_holes() {
        let v4 = Field::Destination(ruleset::Family::V4);
        assert_eq!(network(v4, &[10, 0, 0, 0], &[255, 0, 0, 0]), Some((0x0a00_0000, 0x0aff_ffff)));
        assert_eq!(network(v4, &[10, 128], &[255, 128]), Some((0x0a80_0000, 0x0aff_ffff)));
        for (address, mask) in [([10, 0, 0, 1], [255, 0, 0, 0]), ([10, 0, 0, 1], [255, 0, 0, 255])] {
            assert_eq!(network(v4, &address, &mask), None);
        }
        assert_eq!(network(v4, &[10], &[255, 0]), None);
    }

    #[test]
    fn a_register_is_named_by_the_expression_that_loaded_it() {
        let field = |field| Loaded::Field(Part::whole(field));
        for (loaded, loaders) in [
            (Loaded::State(1), &["ct"][..]),
            (Loaded::OfDevice(Field::InInterface, DeviceKey::Index), &["meta"]),
            (field(Field::Uid), &["meta"]),
            (field(Field::ConnectionMark), &["ct"]),
            (field(Field::SourcePort), &["payload"]),
            (Loaded::AddressType { is_source: true, of_device: None }, &["fib"]),
            (Loaded::Mapped, &["map"]),
            (Loaded::Bytes(Place::default(), None), &["payload"]),
            (Loaded::Bytes(Place::default(), Some(vec![1])), &["payload", "bitwise"]),
            (Loaded::Bits(Bits::all(Field::Mark)), &["meta"]),
            (Loaded::Other(vec![Name::from("fib")]), &["fib"]),
            (constant(4), &[]),
        ] {
            let mut registers = Registers::default();
            registers.load(1, loaded);
            let names = [loaders, &["cmp"]].concat();
            assert_eq!(registers.names(1, "cmp"), names.into_iter().map(Name::from).collect::<Vec<_>>());
        }
        assert_eq!(Registers::default().names(1, "cmp"), [Name::from("cmp")]);
    }

    #[test]
    fn the_first_bytes_of_an_address_or_a_name_are_an_interval() {
        let source = |bytes| Part { bytes, ..Part::whole(Field::Source(ruleset::Family::V4)) };
        assert_eq!(source(4).interval(&[10, 0, 0, 1]), Some((0x0a00_0001, 0x0a00_0001)));
        assert_eq!(source(1).interval(&[10]), Some((0x0a00_0000, 0x0aff_ffff)));
        assert_eq!(source(4).interval(&[10]), Some((0x0a00_0000, 0x0aff_ffff)));
        assert_eq!(source(1).interval(&[10, 0]), None, "more than was loaded");
        assert_eq!(source(4).interval(&[]), None);
        assert_eq!(source(5).interval(&[10, 0, 0, 1, 2]), None);
        let uid = Part::whole(Field::Uid).interval(&2102u32.to_ne_bytes());
        assert_eq!(uid, Some((2102, 2102)));
        assert_eq!(Part::whole(Field::Uid).interval(&[7]), None, "of the machine's order");
        let name = Part::whole(Field::OutInterface);
        assert_eq!(name.interval(b"eth"), Some(names_beginning_with(b"eth")));
        assert_eq!(name.interval(b"eth\0"), Some((interface(b"eth"), interface(b"eth"))));
        assert_eq!(name.interval(&[b'x'; 17]), None);
    }
}
