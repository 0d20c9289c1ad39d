//! The registers that a rule's expressions hand values to each other in.

use packets::rules::{Bits, Field, Name};

/// What is in a register.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Loaded {
    /// A field, or the first bytes of an address.
    Field {
        field: Field,
        bytes: usize,
        host_order: bool,
    },
    /// An address under a mask.
    Masked { field: Field, mask: Vec<u8> },
    /// conntrack's state of the connection, under a mask.
    State(u32),
    /// Its status of it, under a mask.
    Status(u32),
    /// Which way the packet goes, as conntrack knows it.
    Direction,
    /// Some bits of a field.
    Bits(Bits),
    /// The protocol that the network device's header names.
    EtherType,
    /// The number of a device, whose name is this field.
    Index(Field),
    /// What a map has for a field.
    Mapped { field: Field, map: Name },
    /// A constant of the rule.
    Value(Vec<u8>),
    /// Something that isn't understood; the text says how it was loaded.
    Other(String),
}

impl Loaded {
    /// How many 4-byte registers it fills; at most as many, where that isn't known.
    fn slots(&self) -> u32 {
        let bytes = match self {
            Self::Field { bytes, .. } => *bytes,
            Self::Masked { mask, .. } => mask.len(),
            Self::Value(value) => value.len(),
            Self::State(_) | Self::Status(_) | Self::Direction | Self::Bits(_) | Self::EtherType | Self::Index(_) => 4,
            Self::Mapped { .. } | Self::Other(_) => 16,
        };
        bytes.div_ceil(4) as u32
    }
}

/// What each register holds, as far as expressions have loaded it.
#[derive(Debug, Default)]
pub(super) struct Registers {
    /// By the [`slot`] of each.
    held: Vec<(u32, Loaded)>,
}

/// Where a register begins, counted in units of 4 bytes: the 16-byte registers 1 to 4 overlap the 4-byte registers 8 to
/// 23 (`enum nft_registers` in linux/netfilter/nf_tables.h).
fn slot(register: u32) -> u32 {
    match register {
        1..=4 => (register - 1) * 4,
        other => other.saturating_sub(8),
    }
}

impl Registers {
    /// Loads a register, and with it those that it overlaps.
    pub(super) fn load(&mut self, register: u32, loaded: Loaded) {
        let first = slot(register);
        // The kernel has no such registers; a garbled message may name them.
        let after = |first: u32, loaded: &Loaded| first.saturating_add(loaded.slots());
        let end = after(first, &loaded);
        self.held
            .retain(|(other, before)| *other >= end || after(*other, before) <= first);
        self.held.push((first, loaded));
    }

    /// What a register holds, if anything was loaded there.
    pub(super) fn get(&self, register: u32) -> Option<&Loaded> {
        let slot = slot(register);
        let held = self.held.iter().find(|(other, _)| *other == slot);
        held.map(|(_, loaded)| loaded)
    }

    /// Forgets what all of them hold.
    pub(super) fn clear(&mut self) {
        self.held.clear();
    }

    /// How the content of a register was loaded, for the text of something that isn't understood.
    pub(super) fn describe(&self, register: u32) -> String {
        match self.get(register) {
            Some(Loaded::Other(text)) => format!("{text} "),
            Some(Loaded::Mapped { .. }) => "[map] ".to_owned(),
            Some(Loaded::State(_) | Loaded::Status(_) | Loaded::Direction) => "[ct] ".to_owned(),
            Some(Loaded::Index(_)) => "[meta] ".to_owned(),
            Some(Loaded::Field { field, .. } | Loaded::Bits(Bits { field, .. })) => match field {
                Field::Mark | Field::Uid | Field::Gid => "[meta] ".to_owned(),
                Field::ConnectionMark => "[ct] ".to_owned(),
                _ => "[payload] ".to_owned(),
            },
            Some(Loaded::Masked { .. } | Loaded::EtherType) => "[payload] ".to_owned(),
            Some(Loaded::Value(_)) | None => String::new(),
        }
    }
}
