//! Sets of connections.

use std::fmt;
use std::sync::Arc;

use ruleset::flags::SYN;
use ruleset::nftables::{ARP, ETHER_ARP, element, ether_type, nfproto};
use ruleset::{Condition, Direction, Family, Field, ICMPV6, Intervals, LOOPBACK, TCP, Table, Values, interface};

/// The most intervals that are kept of a field; beyond this, results are over-approximated.
const MOST_INTERVALS: usize = 64;

/// A set of TCP connections, described by the packet that is on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connections {
    /// The numbers that each field may have. A field that isn't listed doesn't exist for these packets, and no
    /// condition on it holds: a packet from outside has no owning user, for example. Copies share them.
    fields: Arc<[(Field, Intervals)]>,
}

/// The connections of a set that meet a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meeting {
    None,
    All,
    /// Those whose field has one of these numbers.
    Some(Intervals),
    NotUnderstood,
}

impl Connections {
    /// Every TCP connection of a family in a direction.
    pub fn all(family: Family, direction: Direction) -> Self {
        let any = |field: Field| (field, field.any());
        let none = |field: Field| (field, Intervals::one(0));
        let mut fields = vec![
            (Field::Family, Intervals::one(nfproto(family))),
            (Field::Protocol, Intervals::one(TCP)),
            any(Field::Source(family)),
            any(Field::Destination(family)),
            any(Field::SourcePort),
            any(Field::DestinationPort),
            any(Field::State),
            // Packets from another namespace have no mark (`skb_scrub_packet` in net/core/skbuff.c), nor do those of
            // sockets without SO_MARK.
            none(Field::Mark),
            (Field::TcpFlags, Intervals::each(SYN)),
            any(Field::HopLimit),
            (Field::EtherType, Intervals::one(ether_type(family))),
            // Others are dropped (`ip_rcv_core`, `ip6_rcv_core`).
            none(Field::PacketType),
        ];
        match direction {
            Direction::Inbound => fields.extend([any(Field::InInterface), none(Field::OutInterface)]),
            Direction::Outbound => {
                fields.extend([none(Field::InInterface), any(Field::OutInterface), any(Field::Uid), any(Field::Gid)])
            }
        }
        Self { fields: fields.into() }
    }

    /// Every TCP connection of a family in a direction that could exist: between addresses that hosts have and, inbound,
    /// from another host, on another device than lo.
    pub fn living(family: Family, direction: Direction) -> Self {
        let all = Self::all(family, direction);
        let (all, addresses) = match direction {
            Direction::Inbound => (all.narrowed(Field::InInterface, &names_except_lo()), other_hosts(family)),
            Direction::Outbound => (all, host_addresses(family)),
        };
        all.narrowed(Field::Source(family), &addresses).narrowed(Field::Destination(family), &addresses)
    }

    /// Packets of neighbour discovery that pass these devices, which are in one of the two fields: ICMPv6 messages of this
    /// type, from and to these addresses; or ARP packets, whose contents aren't followed.
    pub(super) fn discovery(message: Option<(u8, Intervals, Intervals)>, device: (Field, Intervals)) -> Self {
        let mut fields = vec![
            (Field::Family, Intervals::one(message.as_ref().map_or(ARP, |_| nfproto(Family::V6)))),
            (Field::State, Field::State.any()),
            (Field::Mark, Intervals::one(0)),
            (Field::EtherType, Intervals::one(message.as_ref().map_or(ETHER_ARP, |_| ether_type(Family::V6)))),
            // To a group, to all, or to the one that has asked.
            (Field::PacketType, Field::PacketType.any()),
        ];
        if let Some((kind, from, to)) = message {
            fields.extend([
                (Field::Protocol, Intervals::one(ICMPV6)),
                (Field::Source(Family::V6), from),
                (Field::Destination(Family::V6), to),
                (Field::IcmpType, Intervals::one(kind.into())),
                // Where TCP has its ports and flags, they have the type with the code 0, the checksum, and a part of the
                // address that is asked for (RFC 4861, section 4.3).
                (Field::SourcePort, Intervals::one(u128::from(kind) << 8)),
                (Field::DestinationPort, Field::DestinationPort.any()),
                (Field::TcpFlags, Field::TcpFlags.any()),
                (Field::HopLimit, Intervals::one(DISCOVERY_HOPS)),
            ]);
        }
        let other = device.0.reversed();
        fields.extend([device, (other, Intervals::one(0))]);
        Self { fields: fields.into() }
    }

    pub fn is_arp(&self) -> bool {
        self.get(Field::Family) == Some(&Intervals::one(ARP))
    }

    /// The numbers that a field may have; none if it doesn't exist.
    pub fn get(&self, field: Field) -> Option<&Intervals> {
        let mut fields = self.fields.iter();
        fields.find(|(known, _)| *known == field).map(|(_, numbers)| numbers)
    }

    /// The connections of this set whose field is one of these numbers.
    #[must_use]
    pub fn narrowed(&self, field: Field, numbers: &Intervals) -> Self {
        match self.get(field).map(|known| known.and(numbers)) {
            Some(numbers) => self.with_numbers(field, numbers),
            None => self.clone(),
        }
    }

    /// The same connections with these numbers in a field. A field that they don't have is left out.
    #[must_use]
    pub fn with_numbers(&self, field: Field, numbers: Intervals) -> Self {
        let mut replaced = self.clone();
        replaced.set(field, numbers);
        replaced
    }

    /// Puts these numbers in a field. A field that they don't have is left out.
    pub(super) fn set(&mut self, field: Field, numbers: Intervals) {
        let mut fields = Arc::make_mut(&mut self.fields).iter_mut();
        if let Some((_, known)) = fields.find(|(known, _)| *known == field) {
            *known = numbers;
        }
    }

    /// Returns true if all connections of another set with the same fields are of this one too.
    pub(super) fn includes(&self, other: &Self) -> bool {
        let mut pairs = self.fields.iter().zip(&*other.fields);
        self.fields.len() == other.fields.len()
            && pairs.all(|((field, ours), (other_field, theirs))| field == other_field && ours.includes(theirs))
    }

    /// This set and another one together, if they differ in one field alone, and have few intervals there.
    pub(super) fn joined(&self, other: &Self) -> Option<Self> {
        let mut differing = None;
        for ((field, ours), (other_field, theirs)) in self.fields.iter().zip(&*other.fields) {
            if field != other_field || (ours != theirs && differing.replace((*field, ours, theirs)).is_some()) {
                return None;
            }
        }
        // Maps have thousands of elements, so sets that would be too many aren't made to see that.
        let are_few =
            |ours: &Intervals, theirs: &Intervals| ours.as_slice().len() + theirs.as_slice().len() <= MOST_INTERVALS;
        let (field, ours, theirs) = differing.filter(|(_, ours, theirs)| are_few(ours, theirs))?;
        (self.fields.len() == other.fields.len()).then(|| self.with_numbers(field, ours.or(theirs)))
    }

    /// The same connections with these numbers in a field, which they need not have had before.
    #[must_use]
    pub fn with_field(&self, field: Field, numbers: Intervals) -> Self {
        let others = self.fields.iter().filter(|(other, _)| *other != field).cloned();
        Self { fields: others.chain([(field, numbers)]).collect() }
    }

    /// The same connections without these fields.
    #[must_use]
    pub fn without_fields(&self, fields: &[Field]) -> Self {
        let others = self.fields.iter().filter(|(field, _)| !fields.contains(field));
        Self { fields: others.cloned().collect() }
    }

    /// Finds the connections that meet a condition of a rule of this table. The packet doesn't tell what it was before its
    /// translation.
    pub fn meeting(&self, table: &Table, condition: &Condition) -> Meeting {
        if condition.field().and_then(Field::of_first_packet).is_some() {
            return Meeting::NotUnderstood;
        }
        meeting(condition.field().and_then(|field| self.get(field)), table, condition)
    }

    /// Returns true if obviously none of the connections meets all of these conditions.
    pub(super) fn all_miss(&self, conditions: &[Condition]) -> bool {
        conditions.iter().any(|condition| match condition.field() {
            Some(field) if field.of_first_packet().is_some() => false,
            field => all_numbers_miss(field.and_then(|field| self.get(field)), condition),
        })
    }

    /// The packets that go the other way.
    #[must_use]
    pub fn reversed(&self) -> Self {
        let fields = self.fields.iter();
        Self { fields: fields.map(|(field, numbers)| (field.reversed(), numbers.clone())).collect() }
    }

    /// Those with one of these numbers in a field, if there are any, and all others, if there are any. If the others would
    /// be too many intervals, they are over-approximated.
    pub fn split(&self, field: Field, numbers: &Intervals) -> (Option<Self>, Option<Self>) {
        match self.get(field).map(|known| split(known, numbers, false)) {
            None | Some(Meeting::None | Meeting::NotUnderstood) => (None, Some(self.clone())),
            Some(Meeting::All) => (Some(self.clone()), None),
            Some(Meeting::Some(held)) => {
                (Some(self.with_numbers(field, held.clone())), Some(self.without_numbers(field, &held)))
            }
        }
    }

    /// Those with none of these numbers in a field; over-approximated if they would be too many intervals.
    #[must_use]
    pub fn without_numbers(&self, field: Field, numbers: &Intervals) -> Self {
        let mut others = self.clone();
        if let Some(left) = self.get(field).map(|known| known.without(numbers)).filter(is_few) {
            others.set(field, left);
        }
        others
    }

    /// Adds other connections with the same fields; over-approximated if they would be too many intervals.
    pub fn extend(&mut self, others: &Self) {
        for (index, (field, numbers)) in Arc::make_mut(&mut self.fields).iter_mut().enumerate() {
            // Nearly always in the same place.
            let there = others.fields.get(index).filter(|(known, _)| known == field);
            if let Some(others) = there.map(|(_, others)| others).or_else(|| others.get(*field))
                && !numbers.includes(others)
            {
                *numbers = numbers.or(others);
                if let ([(first, _), .., (_, last)], false) = (numbers.as_slice(), is_few(numbers)) {
                    *numbers = Intervals::new([(*first, *last)]);
                }
            }
        }
    }
}

/// The hop limit of neighbour discovery. Packets with any other are ignored (RFC 4861, sections 7.1.1 and 7.1.2).
pub(super) const DISCOVERY_HOPS: u128 = 255;

/// The addresses that a host may have: not 0.0.0.0/8, nor those from 224.0.0.0 on, which are groups or reserved (RFC
/// 1112, section 4); not ::, nor ff00::/8.
fn host_addresses(family: Family) -> Intervals {
    match family {
        Family::V4 => Intervals::new([(1 << 24, (224 << 24) - 1)]),
        Family::V6 => Intervals::new([(1, (0xff << 120) - 1)]),
    }
}

/// The addresses of other hosts: the kernel drops packets from or to 127.0.0.0/8 or ::1 that arrive on another device than
/// lo (`ip_route_input_slow` in net/ipv4/route.c, `ip6_rcv_core` in net/ipv6/ip6_input.c).
pub(super) fn other_hosts(family: Family) -> Intervals {
    host_addresses(family).without(&family.loopback())
}

/// The ports of clients that don't ask for one: Linux's (net.ipv4.ip_local_port_range) and those of RFC 6335.
pub fn client_ports() -> Intervals {
    Intervals::new([(32768, 65535)])
}

/// The names of all devices except the loopback device, as numbers.
pub fn names_except_lo() -> Intervals {
    Field::InInterface.any().without(&lo_name())
}

/// The name of the loopback device, as a number.
pub(super) fn lo_name() -> Intervals {
    Intervals::one(interface(LOOPBACK))
}

/// Each of the numbers, if they are few.
pub(super) fn few_numbers(numbers: &Intervals) -> Option<Vec<u128>> {
    /// As many as TCP's flags can be.
    const MOST: u128 = 256;
    (numbers.size() <= MOST).then(|| numbers.numbers().collect())
}

/// Returns true if these are few enough intervals to keep.
pub(super) fn is_few(numbers: &Intervals) -> bool {
    numbers.as_slice().len() <= MOST_INTERVALS
}

/// Returns true if obviously no number which the field may have (none: the field doesn't exist) meets a condition. Most
/// rules are for other connections, so this makes no set.
fn all_numbers_miss(known: Option<&Intervals>, condition: &Condition) -> bool {
    let Condition::In { values, negated: false, .. } = condition else {
        return false;
    };
    known.is_none_or(|known| values.listed().is_some_and(|list| !known.meets(list)))
}

/// The connections that meet a condition of a rule of this table, by the numbers in the field at which it looks; none:
/// the field doesn't exist.
pub(super) fn meeting(known: Option<&Intervals>, table: &Table, condition: &Condition) -> Meeting {
    match (condition, known) {
        (Condition::Constant { holds: true, .. }, _) => Meeting::All,
        (Condition::Constant { holds: false, .. }, _) => Meeting::None,
        (Condition::NotUnderstood(_) | Condition::Context(_), _) => Meeting::NotUnderstood,
        // A packet without a socket has another owner to xt's match (`owner_mt` in net/netfilter/xt_owner.c), and none
        // to nft.
        (Condition::In { field: Field::Uid | Field::Gid, negated: true, .. }, None) if table.is_xtables() => {
            Meeting::All
        }
        (_, None) => Meeting::None,
        _ if all_numbers_miss(known, condition) => Meeting::None,
        (Condition::Masked { mask, number, negated, .. }, Some(known)) => {
            let Some(few) = few_numbers(known) else {
                return Meeting::NotUnderstood;
            };
            let held = few.into_iter().filter(|few| few & mask == *number);
            split(known, &Intervals::each(held), *negated)
        }
        (Condition::In { values: Values::Set(name), negated, .. }, Some(known)) => {
            match table.set(name).and_then(|set| set.elements.as_ref()) {
                Some(elements) => split(known, elements, *negated),
                None => Meeting::NotUnderstood,
            }
        }
        (Condition::In { values, negated, .. }, Some(known)) => {
            let list = values.listed().into_iter().flatten();
            split(known, &Intervals::new(list.copied()), *negated)
        }
    }
}

pub(super) fn split(known: &Intervals, numbers: &Intervals, negated: bool) -> Meeting {
    // The usual case, without making a set.
    if !negated && !known.is_empty() && numbers.includes(known) {
        return Meeting::All;
    }
    let held = if negated { known.without(numbers) } else { known.and(numbers) };
    if held.is_empty() {
        Meeting::None
    } else if held == *known {
        Meeting::All
    } else {
        Meeting::Some(held)
    }
}

/// The distinction of the connections, such as `to port 80`; or `all TCP connections`.
impl fmt::Display for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// At most this many intervals are listed.
        const MOST: usize = 8;
        let mut separator = "";
        for (field, intervals) in &*self.fields {
            let Some(except) = field.facts().except else {
                continue;
            };
            let list = intervals.as_slice();
            let all = match field {
                Field::Source(family) | Field::Destination(family) => [other_hosts(*family), host_addresses(*family)]
                    .into_iter()
                    .find(|addresses| addresses.includes(intervals)),
                _ => None,
            };
            let all = all.unwrap_or_else(|| field.any());
            let is_usual = match field {
                Field::SourcePort => *intervals == client_ports(),
                // Inbound connections arrive on other devices than lo anyway.
                Field::InInterface => *intervals == Intervals::one(0) || *intervals == names_except_lo(),
                Field::OutInterface => *intervals == Intervals::one(0),
                _ => false,
            };
            if is_usual || *intervals == all {
                continue;
            }
            // If these are all but a few, the few are named.
            let others = all.without(intervals);
            let (what, list) = match others.as_slice() {
                few if few.len() < list.len() => (except, few),
                _ => (field.facts().of, list),
            };
            let mut elements: Vec<_> = list.iter().take(MOST).map(|&interval| element(*field, interval)).collect();
            if list.len() > MOST {
                elements.push("...".to_owned());
            }
            write!(f, "{separator}{what}{}", elements.join(","))?;
            separator = " ";
        }
        if separator.is_empty() {
            f.write_str("all TCP connections")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use ruleset::testing::table;
    use ruleset::{Label, Name, address, interface};

    /// A condition on a field that is left out here never holds.
    #[test]
    fn every_field_has_its_numbers() {
        for field in Field::ALL {
            let is_known = |family, direction| Connections::all(family, direction).get(field).is_some();
            let is_of = |family| Direction::ALL.into_iter().any(|direction| is_known(family, direction));
            // A packet of a connection that is tracked gets the connection's mark on its way; TCP's have no type.
            let is_later =
                matches!(field, Field::ConnectionMark | Field::IcmpType) || field.of_first_packet().is_some();
            let is_there = Family::ALL.into_iter().any(is_of) || is_later;
            assert!(is_there, "{field:?}");
        }
    }

    #[test]
    fn hosts_have_no_address_of_a_group() {
        for (last, beyond) in [("223.255.255.255", "224.0.0.0"), ("feff::ffff", "ff00::")] {
            let [last, beyond] = [last, beyond].map(|text| text.parse::<IpAddr>().unwrap());
            let hosts = other_hosts(Family::of(last));
            assert!(hosts.meets(&[(address(last), address(last))]) && !hosts.meets(&[(address(beyond), u128::MAX)]));
        }
    }

    /// It decides nothing in which order their fields came to be known.
    #[test]
    fn connections_are_added_field_by_field() {
        let known = |fields: &[(Field, u128)]| {
            let fields: Vec<_> = fields.iter().map(|&(field, number)| (field, Intervals::one(number))).collect();
            Connections { fields: fields.into() }
        };
        let mut both = known(&[(Field::Uid, 1), (Field::Gid, 2)]);
        both.extend(&known(&[(Field::Gid, 4), (Field::Uid, 3)]));
        assert_eq!(both.get(Field::Uid), Some(&Intervals::each([1u128, 3])));
        assert_eq!(both.get(Field::Gid), Some(&Intervals::each([2u128, 4])));
    }

    #[test]
    fn connections_say_what_sets_them_apart() {
        let all = |direction| Connections::all(Family::V4, direction);
        let set = |list: &[(u128, u128)]| Intervals::new(list.iter().copied());
        let lo = Intervals::one(interface(b"lo"));
        let ten = 0x0a00_0000;
        let every_second: Vec<_> = (1..=9).map(|number| (number * 2, number * 2)).collect();
        for (field, numbers, want) in [
            (Field::DestinationPort, set(&[(80, 80), (8000, 8100)]), "to port 80,8000-8100"),
            (Field::SourcePort, set(&[(1, 2)]), "from port 1-2"),
            (Field::Source(Family::V4), set(&[(ten, ten + 0xff_ffff)]), "from 10.0.0.0/8"),
            (
                Field::Destination(Family::V4),
                set(&[(ten, ten + 1), (ten + 3, ten + 4)]),
                "to 10.0.0.0/31,10.0.0.3-10.0.0.4",
            ),
            (Field::Uid, set(&[(2102, 2102)]), "from user 2102"),
            (Field::Gid, set(&[(0, 7)]), "from group 0-7"),
            (Field::OutInterface, lo.clone(), "leaving by \"lo\""),
            (Field::OutInterface, names_except_lo(), "leaving by any interface except \"lo\""),
            (Field::DestinationPort, set(&[(0, 79), (81, 65535)]), "to any port except 80"),
            (
                Field::Source(Family::V4),
                set(&[(0, ten - 1), (ten + (1 << 24), u32::MAX.into())]),
                "from any address except 10.0.0.0/8",
            ),
            (Field::DestinationPort, set(&every_second[..8]), "to port 2,4,6,8,10,12,14,16"),
            (Field::DestinationPort, set(&every_second), "to port 2,4,6,8,10,12,14,16,..."),
            // These connections don't have the field, or have every number.
            (Field::InInterface, set(&[(0, u128::MAX)]), "all TCP connections"),
            (Field::SourcePort, set(&[(32768, 65535)]), "all TCP connections"),
            (Field::SourcePort, set(&[(32767, 65535)]), "from port 32767-65535"),
            (Field::Destination(Family::V6), set(&[(1, 1)]), "all TCP connections"),
            (Field::Protocol, set(&[(6, 6)]), "all TCP connections"),
        ] {
            assert_eq!(all(Direction::Outbound).narrowed(field, &numbers).to_string(), want);
        }
        let to_80 = all(Direction::Inbound).narrowed(Field::DestinationPort, &Intervals::one(80));
        assert_eq!(to_80.narrowed(Field::InInterface, &lo).to_string(), "to port 80 arriving on \"lo\"");
        let others = names_except_lo().without(&Intervals::one(interface(b"eth0")));
        assert_eq!(
            to_80.narrowed(Field::InInterface, &others).to_string(),
            "to port 80 arriving on any interface except \"eth0\",\"lo\""
        );
        assert_eq!(to_80.narrowed(Field::InInterface, &names_except_lo()).to_string(), "to port 80");
        assert_eq!(to_80.narrowed(Field::DestinationPort, &Intervals::one(80)), to_80);
        let inbound = all(Direction::Inbound);
        assert_eq!(inbound.narrowed(Field::Uid, &Intervals::one(7)), inbound, "no user sends them");
        let v6 = Connections::all(Family::V6, Direction::Inbound);
        let from = v6.narrowed(Field::Source(Family::V6), &Intervals::one(1));
        assert_eq!(from.to_string(), "from ::1");
    }

    #[test]
    fn what_plainly_misses_a_condition_doesnt_meet_it() {
        let table = table("ip nat", vec![]);
        let all = Connections::all(Family::V4, Direction::Inbound);
        let to_80 = all.narrowed(Field::DestinationPort, &Intervals::one(80));
        let port = |values: Values, negated| Condition::In { field: Field::DestinationPort, values, negated };
        for (condition, misses) in [
            (port(80.into(), false), false),
            (port((79, 81).into(), false), false),
            (port(81.into(), false), true),
            (port(Values::Listed(vec![(1, 2), (80, 90)]), false), false),
            (port(Values::Listed(vec![]), false), true),
            // This condition takes a closer look.
            (port(80.into(), true), false),
            (port(Values::Set(Name::from("gone")), false), false),
            (Condition::NotUnderstood(Label::expression("osf")), false),
            // Nobody of this namespace sends them.
            (Condition::is(Field::Uid, 0), true),
        ] {
            assert_eq!(to_80.all_miss(std::slice::from_ref(&condition)), misses, "{condition:?}");
            assert!(!misses || to_80.meeting(&table, &condition) == Meeting::None, "{condition:?}");
        }
    }

    #[test]
    fn a_condition_divides_connections() {
        let table = table("ip nat", vec![]);
        let all = Connections::all(Family::V4, Direction::Inbound);
        let marks = |list: &[(u128, u128)]| Intervals::new(list.iter().copied());
        let marked = all.with_numbers(Field::Mark, marks(&[(0, 3)]));
        let odd = |negated| Condition::Masked { field: Field::Mark, mask: 1, number: 1, negated };
        let (even_ones, odd_ones) = (marks(&[(0, 0), (2, 2)]), marks(&[(1, 1), (3, 3)]));
        let met = |connections: &Connections, condition| connections.meeting(&table, &condition);
        assert_eq!(met(&marked, odd(false)), Meeting::Some(odd_ones));
        assert_eq!(met(&marked, odd(true)), Meeting::Some(even_ones));
        // The mark is 0 from the beginning.
        assert_eq!(met(&all, odd(false)), Meeting::None);
        assert_eq!(met(&all, odd(true)), Meeting::All);
        // So many aren't looked at one by one: 256 are, 257 aren't.
        for (last, is_few) in [(255, true), (256, false)] {
            let many = all.with_numbers(Field::Mark, marks(&[(0, last)]));
            assert_eq!(met(&many, odd(false)) != Meeting::NotUnderstood, is_few, "{last}");
        }
        for (holds, want) in [(true, Meeting::All), (false, Meeting::None)] {
            assert_eq!(met(&all, Condition::Constant { of: Label::Fragment, holds }), want);
        }
        // A field that doesn't exist meets nothing.
        let none = all.without_fields(&[Field::Mark]);
        assert_eq!((met(&none, odd(false)), met(&none, odd(true))), (Meeting::None, Meeting::None));
        let to_80 = |negated| Condition::In { field: Field::DestinationPort, values: 80.into(), negated };
        let (those, others) = (marks(&[(80, 80)]), marks(&[(0, 79), (81, 65535)]));
        assert_eq!(met(&all, to_80(false)), Meeting::Some(those.clone()));
        assert_eq!(met(&all, to_80(true)), Meeting::Some(others.clone()));
        let only = |ports| all.narrowed(Field::DestinationPort, &ports);
        let none = only(Intervals::default());
        assert_eq!((met(&none, to_80(false)), met(&none, to_80(true))), (Meeting::None, Meeting::None));
        assert_eq!(met(&only(those.clone()), to_80(false)), Meeting::All);
        assert_eq!(met(&only(those), to_80(true)), Meeting::None);
        assert_eq!(met(&only(others.clone()), to_80(false)), Meeting::None);
        assert_eq!(met(&only(others), to_80(true)), Meeting::All);
    }
}
