//! Fields whose numbers are flags with names: connection tracking's states, and TCP's flags.

use derive_more::Display;

use crate::field::Field;
use crate::intervals::Intervals;
use crate::rule::{Condition, Values};

/// The connection-tracking state of a packet (`ct state`): `NF_CT_STATE_BIT` and the others in
/// linux/netfilter/nf_conntrack_common.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Display)]
#[display(rename_all = "lowercase")]
pub enum CtState {
    /// The packet belongs to no connection, or connection tracking hasn't seen it yet.
    Invalid = 1,
    /// The packet belongs to a connection that was answered.
    Established = 2,
    /// The packet begins a connection that belongs to another one.
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

    /// Returns true if there is an entry for the packet's connection, and so a direction, a status and a mark
    /// (`nf_ct_get`).
    pub fn has_entry(self) -> bool {
        !matches!(self, Self::Invalid | Self::Untracked)
    }
}

/// Connection tracking's knowledge of a packet's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tracked {
    pub state: CtState,
    pub is_reply: bool,
    /// The connection's source was changed (`IPS_SRC_NAT`).
    pub has_snat: bool,
    /// The connection's destination was changed (`IPS_DST_NAT`).
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

/// The condition that `holds` is true for connection tracking's knowledge.
pub fn tracking_condition(holds: impl Fn(Tracked) -> bool) -> Condition {
    Condition::is(Field::State, Values::Listed(numbers(holds).as_slice().to_vec()))
}

fn numbers(holds: impl Fn(Tracked) -> bool) -> Intervals {
    Intervals::each(Tracked::all().filter(|tracked| holds(*tracked)).map(Tracked::number))
}

/// The condition that a packet's state is one of those for which `holds` is true.
pub fn ct_state_condition(holds: impl Fn(CtState) -> bool) -> Condition {
    tracking_condition(|tracked| holds(tracked.state))
}

/// A question of nft or iptables to connection tracking in one condition on [`Field::State`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TrackingQuestion {
    /// Is the state one of these, or was the source or the destination changed?
    State { states: Vec<CtState>, has_snat: bool, has_dnat: bool, negated: bool },
    /// Has the connection's status, shifted by [`STATUS_SHIFT`], these bits under a mask?
    Status { mask: u8, bits: u8, negated: bool },
    /// Is the packet a reply or, with `others_pass`, of no connection?
    Direction { is_reply: bool, others_pass: bool },
}

/// The place of `IPS_SRC_NAT`, which `IPS_DST_NAT` follows, in `enum ip_conntrack_status`
/// (linux/netfilter/nf_conntrack_common.h).
pub(crate) const STATUS_SHIFT: u8 = 4;

impl TrackingQuestion {
    /// The question that these numbers answer; none if no tool asks that in one condition.
    pub(crate) fn of(list: &[(u128, u128)]) -> Option<Self> {
        let wanted = Intervals::new(list.iter().copied());
        let mut questions = Vec::new();
        for (is_reply, others_pass) in BOTH {
            questions.push(Self::Direction { is_reply, others_pass });
        }
        for negated in [false, true] {
            let is_of = |state: CtState| {
                let mut of_state = Tracked::all().filter(|tracked| tracked.state == state).map(Tracked::number);
                of_state.all(|number| wanted.meets(&[(number, number)]) != negated)
            };
            let states: Vec<CtState> = CtState::ALL.into_iter().filter(|state| is_of(*state)).collect();
            for (has_snat, has_dnat) in BOTH {
                questions.push(Self::State { states: states.clone(), has_snat, has_dnat, negated });
            }
            let pairs = (1..=3).flat_map(|mask| (0..=3).map(move |bits| (mask, bits)));
            questions.extend(pairs.map(|(mask, bits)| Self::Status { mask, bits, negated }));
        }
        questions.retain(|question| numbers(|tracked| question.holds(tracked)) == wanted);
        questions.into_iter().min_by_key(Self::length)
    }

    /// The number of names with which it is written.
    fn length(&self) -> usize {
        match self {
            Self::State { states, .. } => states.len(),
            Self::Direction { .. } => 0,
            Self::Status { .. } => 1,
        }
    }

    fn holds(&self, tracked: Tracked) -> bool {
        let has_entry = tracked.state.has_entry();
        match self {
            Self::State { states, has_snat, has_dnat, negated } => {
                let is_translated = has_entry && (*has_snat && tracked.has_snat || *has_dnat && tracked.has_dnat);
                (states.contains(&tracked.state) || is_translated) != *negated
            }
            Self::Status { mask, bits, negated } => {
                let status = u8::from(tracked.has_snat) + 2 * u8::from(tracked.has_dnat);
                has_entry && (status & mask == *bits) != *negated
            }
            Self::Direction { is_reply, others_pass } => {
                if has_entry {
                    tracked.is_reply == *is_reply
                } else {
                    *others_pass
                }
            }
        }
    }
}

const BOTH: [(bool, bool); 4] = [(false, false), (true, false), (false, true), (true, true)];

/// The names of TCP's flags, from the lowest bit on.
pub(crate) const TCP_FLAGS: [&str; 8] = ["fin", "syn", "rst", "psh", "ack", "urg", "ecn", "cwr"];

/// TCP's flags of a connection's first segment: SYN, and perhaps those of ECN.
pub const SYN: [u8; 4] = [0x02, 0x42, 0x82, 0xc2];

/// TCP's flags of the reply to it: SYN and ACK, and perhaps those of ECN.
pub const SYN_ACK: [u8; 4] = [0x12, 0x52, 0x92, 0xd2];

/// TCP's flags of a later packet: ACK, perhaps with PSH.
pub const ACK: [u8; 2] = [0x10, DATA];

/// TCP's flags of the last packet of a write: ACK and PSH.
pub const DATA: u8 = 0x18;

/// Of a reset that answers a SYN: RST and ACK (`nf_reject_ip_tcphdr_put` in net/ipv4/netfilter/nf_reject_ipv4.c).
pub const RESET: [u8; 1] = [0x14];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_else_a_packet_has_its_state_is_known() {
        let new = numbers(|tracked| tracked.state == CtState::New);
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
