//! Fields whose numbers are flags that have names: connection tracking's states, and TCP's flags.

use crate::rules::rule::{Condition, Field};

/// What connection tracking says of a packet (`ct state`): `NF_CT_STATE_BIT` and the others in
/// linux/netfilter/nf_conntrack_common.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// It is of no connection; or connection tracking hasn't seen it yet.
    Invalid = 1,
    /// It is of a connection that was answered.
    Established = 2,
    /// It begins a connection that belongs to another one.
    Related = 4,
    /// It begins a connection.
    New = 8,
    /// Connection tracking was told to leave it alone.
    Untracked = 64,
}

impl State {
    /// Every state, in the order in which nft lists them.
    pub const ALL: [Self; 5] = [
        Self::Invalid,
        Self::Established,
        Self::Related,
        Self::New,
        Self::Untracked,
    ];

    /// Its bit.
    pub fn bit(self) -> u32 {
        self as u32
    }

    /// Its number in [`Field::State`]: the bytes of its bit in the machine's order, as sets of nf_tables have them.
    pub fn number(self) -> u128 {
        u32::from_be_bytes(self.bit().to_ne_bytes()).into()
    }

    /// Its name, as nft writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Established => "established",
            Self::Related => "related",
            Self::New => "new",
            Self::Untracked => "untracked",
        }
    }
}

/// `ct state` with the states for which this holds, as nft writes it.
pub fn ct_state(holds: impl Fn(State) -> bool) -> Condition {
    let (held, others): (Vec<State>, Vec<State>) = State::ALL.into_iter().partition(|state| holds(*state));
    let names = |states: &[State]| states.iter().map(|state| state.name()).collect::<Vec<_>>().join(",");
    let text = match held.len() <= others.len() {
        true => format!("ct state {}", names(&held)),
        false => format!("ct state != {}", names(&others)),
    };
    states(text, &held)
}

/// The condition that connection tracking says one of these of a packet.
pub fn states(text: String, states: &[State]) -> Condition {
    Condition::Flags {
        text,
        field: Field::State,
        numbers: states.iter().map(|state| (state.number(), state.number())).collect(),
    }
}

/// The condition that, of TCP's flags under this mask, exactly these are set; or, if negated, not exactly these.
pub fn tcp_flags(text: String, mask: u8, set: u8, negated: bool) -> Condition {
    let holds = |flags: &u8| (flags & mask == set) != negated;
    let numbers = (0..=u8::MAX).filter(holds);
    Condition::Flags {
        text,
        field: Field::TcpFlags,
        numbers: numbers.map(|flags| (flags.into(), flags.into())).collect(),
    }
}

/// A condition that holds for every packet, or for none.
pub fn constant(text: String, holds: bool) -> Condition {
    let all = (0, Field::Protocol.largest());
    Condition::Flags {
        text,
        field: Field::Protocol,
        numbers: holds.then_some(all).into_iter().collect(),
    }
}

/// TCP's flags of a connection's first segment: SYN, and perhaps those of ECN.
pub const SYN: [u8; 4] = [0x02, 0x42, 0x82, 0xc2];

/// Those of the answer to it: SYN and ACK, and perhaps those of ECN.
pub const SYN_ACK: [u8; 4] = [0x12, 0x52, 0x92, 0xd2];

/// Those of a later packet: ACK, perhaps with PSH.
pub const ACK: [u8; 2] = [0x10, 0x18];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_written_as_nft_lists_them() {
        let is = |bits: u32| ct_state(|state| state.bit() & bits != 0);
        for (bits, text) in [
            (2 | 4, "ct state established,related"),
            (8, "ct state new"),
            (1 | 2 | 4 | 64, "ct state != new"),
        ] {
            assert!(matches!(is(bits), Condition::Flags { text: said, .. } if said == text));
        }
        assert_eq!(State::New.number(), u128::from(8u32.swap_bytes()), "on this machine");
    }
}
