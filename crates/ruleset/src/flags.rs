//! Fields whose numbers are flags with names: connection tracking's states, and TCP's flags.

use derive_more::Display;

use crate::field::Field;
use crate::intervals::Intervals;
use crate::rule::Condition;

/// The connection-tracking state of a packet (`ct state`): `NF_CT_STATE_BIT` and the others in
/// linux/netfilter/nf_conntrack_common.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Display)]
#[display(rename_all = "lowercase")]
pub enum CtState {
    /// The packet belongs to no connection, or connection tracking hasn't seen it yet.
    Invalid = 1,
    /// It belongs to a connection that was answered.
    Established = 2,
    /// It begins a connection that belongs to another one.
    Related = 4,
    New = 8,
    /// A rule has exempted it from connection tracking.
    Untracked = 64,
}

impl CtState {
    /// In the order in which nft lists them.
    pub const ALL: [Self; 5] = [Self::Invalid, Self::Established, Self::Related, Self::New, Self::Untracked];

    pub fn bit(self) -> u32 {
        self as u32
    }

    /// Whether there is an entry for the packet's connection, and so a direction, a status and a mark (`nf_ct_get`).
    pub fn has_entry(self) -> bool {
        !matches!(self, Self::Invalid | Self::Untracked)
    }
}

/// What connection tracking knows about a packet's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tracked {
    pub state: CtState,
    pub is_reply: bool,
    /// The connection's source was changed (`IPS_SRC_NAT`).
    pub has_snat: bool,
    /// Its destination was changed (`IPS_DST_NAT`).
    pub has_dnat: bool,
}

impl Tracked {
    pub fn all() -> impl Iterator<Item = Self> {
        CtState::ALL.into_iter().flat_map(|state| {
            (0..8u8).map(move |bits| Self {
                state,
                is_reply: bits & 1 != 0,
                has_snat: bits & 2 != 0,
                has_dnat: bits & 4 != 0,
            })
        })
    }

    /// Its number in [`Field::State`]: the state's bit, and above its byte a bit for each of the others.
    pub fn number(self) -> u128 {
        let others = [(self.is_reply, 0x100), (self.has_snat, 0x200), (self.has_dnat, 0x400)];
        let bits: u128 = others.into_iter().filter(|(is_so, _)| *is_so).map(|(_, bit)| bit).sum();
        u128::from(self.state.bit()) + bits
    }
}

/// `ct state` with the states for which `holds` is true, as nft writes it.
pub fn ct_state_condition(holds: impl Fn(CtState) -> bool) -> Condition {
    let (held, others): (Vec<CtState>, Vec<CtState>) = CtState::ALL.into_iter().partition(|state| holds(*state));
    let names = |states: &[CtState]| states.iter().map(CtState::to_string).collect::<Vec<_>>().join(",");
    let text = if held.len() <= others.len() {
        format!("ct state {}", names(&held))
    } else {
        format!("ct state != {}", names(&others))
    };
    tracking_condition(text, |tracked| held.contains(&tracked.state))
}

/// The condition that `holds` is true for what connection tracking knows.
pub fn tracking_condition(text: String, holds: impl Fn(Tracked) -> bool) -> Condition {
    Condition::Flags { text, field: Field::State, numbers: numbers(holds) }
}

fn numbers(holds: impl Fn(Tracked) -> bool) -> Intervals {
    Intervals::each(Tracked::all().filter(|tracked| holds(*tracked)).map(Tracked::number))
}

/// The numbers in [`Field::State`] whose states are among these bits, as nf_tables' sets have them.
pub fn of_states(bits: &Intervals) -> Intervals {
    numbers(|tracked| {
        let bit = u128::from(tracked.state.bit());
        bits.meets(&[(bit, bit)])
    })
}

/// A condition that holds for every packet, or for none.
pub fn constant_condition(text: String, holds: bool) -> Condition {
    let field = Field::Protocol;
    let numbers = if holds { field.any() } else { Intervals::default() };
    Condition::Flags { text, field, numbers }
}

/// TCP's flags of a connection's first segment: SYN, and perhaps those of ECN.
pub const SYN: [u8; 4] = [0x02, 0x42, 0x82, 0xc2];

/// TCP's flags of the reply to it: SYN and ACK, and perhaps those of ECN.
pub const SYN_ACK: [u8; 4] = [0x12, 0x52, 0x92, 0xd2];

/// TCP's flags of a later packet: ACK, perhaps with PSH.
pub const ACK: [u8; 2] = [0x10, DATA];

/// TCP's flags of the last packet of a write: ACK and PSH.
pub const DATA: u8 = 0x18;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_written_as_nft_lists_them() {
        let is = |bits: u32| ct_state_condition(|state| state.bit() & bits != 0);
        for (bits, text) in
            [(2 | 4, "ct state established,related"), (8, "ct state new"), (1 | 2 | 4 | 64, "ct state != new")]
        {
            assert!(matches!(is(bits), Condition::Flags { text: said, .. } if said == text));
        }
    }

    #[test]
    fn whatever_else_a_packet_has_its_state_is_known() {
        let new = of_states(&Intervals::one(8));
        assert_eq!(new.as_slice().len(), 8);
        for tracked in Tracked::all() {
            let number = tracked.number();
            assert_eq!(new.meets(&[(number, number)]), tracked.state == CtState::New);
        }
    }

    #[test]
    fn whatever_differs_in_anything_has_another_number() {
        let numbers: std::collections::HashSet<u128> = Tracked::all().map(Tracked::number).collect();
        assert_eq!(numbers.len(), CtState::ALL.len() * 8);
    }
}
