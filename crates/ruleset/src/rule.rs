//! Rules: conditions on the fields of a packet, and an action.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::family::Family;
use crate::field::Field;
use crate::intervals::Intervals;
use crate::name::Name;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rule {
    /// The conditions that a packet must meet; without conditions, every packet matches.
    pub conditions: Vec<Condition>,
    /// The map that the rule asks, or the set for more than the numbers of one field.
    pub lookup: Option<Lookup>,
    /// The rule's effects before its action, beside counting.
    pub effects: Vec<Effect>,
    pub action: Action,
    pub comment: Option<Name>,
    /// The rule reads or changes connection tracking's knowledge of a connection. A family with such a rule, or with
    /// one that translates, has its connections tracked.
    pub needs_tracking: bool,
    /// None if it has no counter.
    pub counters: Option<Counters>,
    /// The rule's number in its table (`NFTA_RULE_HANDLE`); 0 in legacy tables, which have none.
    pub handle: u64,
}

impl Rule {
    pub fn new(conditions: Vec<Condition>, action: Action) -> Self {
        Self { conditions, action, ..Self::default() }
    }

    /// Its conditions, and those of its cases.
    pub fn all_conditions(&self) -> impl Iterator<Item = &Condition> {
        let cases = self.lookup.iter().flat_map(|lookup| lookup.cases.iter());
        self.conditions.iter().chain(cases.flat_map(|case| &case.conditions))
    }

    /// The port of this host to which it redirects, if it is a single one.
    pub fn redirects_to(&self) -> Option<u16> {
        match self.action {
            Action::Redirect(Some((first, last))) if first == last => Some(first),
            _ => None,
        }
    }

    /// The possible actions: its own, or those of its map.
    pub fn possible_actions(&self) -> impl Iterator<Item = &Action> {
        let own = Some(&self.action).filter(|action| !matches!(action, Action::ByCase(_)));
        let cases = self.lookup.iter().flat_map(|lookup| lookup.cases.iter());
        own.into_iter().chain(cases.filter_map(Case::action))
    }

    /// Returns true if the rule decides, or may do something that later rules see.
    pub fn does_something(&self) -> bool {
        self.action != Action::Continue || self.has_lasting_effect()
    }

    /// Returns true if the rule may do something that later rules see, apart from its decision.
    pub fn has_lasting_effect(&self) -> bool {
        let sets_marks = self.lookup.as_ref().is_some_and(|lookup| lookup.marked().is_some());
        sets_marks || self.effects.iter().any(|effect| !matches!(effect, Effect::Other(_)))
    }

    /// Returns true if both are the same rule; the order of conditions, counters and handles don't matter.
    pub fn same_rule(&self, other: &Self) -> bool {
        fn sorted(rule: &Rule) -> Vec<&Condition> {
            let mut conditions: Vec<&Condition> = rule.conditions.iter().collect();
            conditions.sort();
            conditions
        }
        (self.conditions == other.conditions || sorted(self) == sorted(other))
            && self.lookup == other.lookup
            && self.effects == other.effects
            && self.action == other.action
            && self.comment == other.comment
    }
}

/// A map that a rule asks, or a set that it asks by several fields together or by something beside a packet's numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lookup {
    pub set: Name,
    /// The words for which it is asked, as nft writes them: `ip daddr . tcp dport`.
    pub key: String,
    /// The rule matches where none of the cases holds; a map's doesn't.
    pub negated: bool,
    /// The elements, in the order in which they are tried: a packet gets the first one that holds. Rules that ask for the
    /// same share them.
    pub cases: Arc<[Case]>,
}

impl Lookup {
    /// The mark that gets the map's values, if one does.
    pub fn marked(&self) -> Option<Field> {
        self.cases.iter().find_map(|case| match case.value {
            Some(Value::Mark(field, _)) => Some(field),
            _ => None,
        })
    }

    /// The field at which all of its cases look, if it is a single one.
    pub fn field(&self) -> Option<Field> {
        let mut fields = self.cases.iter().flat_map(|case| &case.conditions).map(Condition::field);
        let first = fields.next()?;
        fields.all(|field| field == first).then_some(first)?
    }
}

/// An element of a set or of a map, in a [`Lookup`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// None for an element that stands for all others.
    pub conditions: Vec<Condition>,
    /// None in a set.
    pub value: Option<Value>,
}

impl Case {
    pub fn action(&self) -> Option<&Action> {
        match &self.value {
            Some(Value::Action(action)) => Some(action),
            _ => None,
        }
    }
}

/// The value that a map has for an element, as the rule uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Instead of the rule's action, which is [`Action::ByCase`].
    Action(Action),
    /// The number that one of the marks gets.
    Mark(Field, u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    pub packets: u64,
    pub bytes: u64,
}

/// An interface's name as a number; see [`Field::InInterface`]. Bytes after the 16th are ignored: the kernel has no
/// longer names (`IFNAMSIZ`).
pub fn interface(name: &[u8]) -> u128 {
    padded(name, 0)
}

/// The names of interfaces that begin with this, as an interval of numbers.
pub fn names_beginning_with(name: &[u8]) -> (u128, u128) {
    (padded(name, 0), padded(name, u8::MAX))
}

fn padded(name: &[u8], padding: u8) -> u128 {
    let mut padded = [padding; 16];
    for (slot, byte) in padded.iter_mut().zip(name) {
        *slot = *byte;
    }
    u128::from_be_bytes(padded)
}

/// The name with this number, without its padding; none if no device can have it.
pub fn device(number: u128) -> Option<Vec<u8>> {
    let bytes = number.to_be_bytes();
    let (name, padding) = bytes.split_at(bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len()));
    padding.iter().all(|&byte| byte == 0).then(|| name.to_vec())
}

pub fn address(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

/// Protocols' numbers in IP's header: `IPPROTO_*`.
pub const ICMP: u128 = 1;
pub const TCP: u128 = 6;
pub const ICMPV6: u128 = 58;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    /// The field is one of these numbers or, if negated, none of them.
    In { field: Field, values: Values, negated: bool },
    /// Under a mask, the field is this number or, if negated, it isn't: `--syn`, `meta mark & 1 == 1`.
    Masked { field: Field, mask: u128, number: u128, negated: bool },
    /// The condition depends on more than the packet.
    Context(Context),
    /// The condition holds for every TCP packet or for none, whatever else it says.
    Constant { of: Label, holds: bool },
    /// A condition that isn't understood: it may hold or not.
    NotUnderstood(Label),
}

/// The name in a listing of something that isn't modelled.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Label {
    /// The names of nf_tables' expressions, in the order in which they run.
    Expressions(Vec<Name>),
    /// The name of an xt match or target.
    Extension(Name),
    /// A verdict that isn't known, or a jump to no chain.
    Verdict(i32),
    /// A comparison of the fragment's offset in IPv4's header.
    Fragment,
}

impl Label {
    pub fn expression(name: &str) -> Self {
        Self::Expressions(vec![Name::from(name)])
    }
}

/// The facts beside the packet on which a condition depends: routing, or the number of earlier packets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Context {
    /// Routing gives an address one of these types.
    AddressType {
        is_source: bool,
        /// A bit for each type, by the number of `RTN_*` in linux/rtnetlink.h.
        types: u16,
        negated: bool,
        /// True for xt's match, which finds the types of IPv6 addresses in another way than nft's.
        is_xt: bool,
        /// The field with the device whose addresses alone count as the namespace's own; none: those of all devices.
        of_device: Option<Field>,
    },
    /// The route back to the source leaves by the device on which the packet arrived or, if loose, by any.
    ReversePath {
        is_loose: bool,
        negated: bool,
        /// The flags of xt's match (`XT_RPFILTER_*` in linux/netfilter/xt_rpfilter.h), if it is that.
        xt_flags: Option<u8>,
    },
    /// A set of ipset's has the packet's addresses and ports, each of the source or of the destination.
    IpSet { set: Name, are_sources: Vec<bool>, family: Family, negated: bool },
    /// The class of the socket's cgroup (`net_cls.classid`) is one of these or, if negated, none of them.
    SocketClass { classes: Vec<u32>, negated: bool },
    /// A limit isn't reached yet or, unless it `holds_below`, is reached.
    Limit { holds_below: bool, of: Bound },
}

impl Context {
    /// The set of ipset's on which it depends, if it has a single field.
    pub fn ip_set(&self) -> Option<&Name> {
        match self {
            Self::IpSet { set, are_sources, .. } if are_sources.len() == 1 => Some(set),
            _ => None,
        }
    }
}

/// The most of something that a limit counts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bound {
    /// So many packets or bytes in so many seconds.
    Rate { most: u64, seconds: u64, is_of_bytes: bool },
    /// xt's rate: a packet costs `period` of 10,000 credits a second.
    XtRate { period: u32, burst: u32 },
    /// So many bytes in all.
    Bytes(u64),
    /// So many connections at once.
    Connections(u32),
    /// As much as this set has room for.
    Meter(Name),
    /// By this xt match.
    Extension(Name),
}

/// The packets for which a condition holds: those with one of these numbers in the field that they have. For a packet with
/// none of the fields, that isn't known.
pub type Holding = Vec<(Field, Intervals)>;

impl Condition {
    /// The field at which it looks, if it is understood and looks at the packet alone.
    pub fn field(&self) -> Option<Field> {
        match self {
            Self::In { field, .. } | Self::Masked { field, .. } => Some(*field),
            Self::Context(_) | Self::Constant { .. } | Self::NotUnderstood(_) => None,
        }
    }

    pub fn is(field: Field, values: impl Into<Values>) -> Self {
        Self::compare(field, values, false)
    }

    pub fn compare(field: Field, values: impl Into<Values>, negated: bool) -> Self {
        Self::In { field, values: values.into(), negated }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Values {
    Interval((u128, u128)),
    /// These intervals, in the order in which they were written. A list of one isn't the same as the interval: iptables
    /// writes `-m multiport --dports 80` for the list and `-m tcp --dport 80` for the interval.
    Listed(Vec<(u128, u128)>),
    Set(Name),
}

impl Values {
    pub fn listed(&self) -> Option<&[(u128, u128)]> {
        match self {
            Self::Interval(interval) => Some(std::slice::from_ref(interval)),
            Self::Listed(list) => Some(list),
            Self::Set(_) => None,
        }
    }

    pub fn number(&self) -> Option<u128> {
        match self.listed()? {
            &[(first, last)] if first == last => Some(first),
            _ => None,
        }
    }
}

impl From<u128> for Values {
    fn from(number: u128) -> Self {
        Self::Interval((number, number))
    }
}

impl From<(u128, u128)> for Values {
    fn from(interval: (u128, u128)) -> Self {
        Self::Interval(interval)
    }
}

/// An effect of a rule on a packet, apart from the rule's action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Connection tracking ignores the packet, if it hasn't seen it yet: then it passes no nat chain.
    Untrack,
    Mark {
        /// The number: [`Field::Mark`], [`Field::ConnectionMark`] or, as if it were one, [`Field::HopLimit`].
        field: Field,
        /// The number; none: not known.
        to: Option<Bits>,
    },
    /// Something that doesn't affect where the packet goes.
    Other(Label),
}

/// A number that is computed from a field: the field under a mask, with the bits of `xor` flipped. A constant has no mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bits {
    pub field: Field,
    pub mask: u128,
    pub xor: u128,
}

impl Bits {
    pub fn all(field: Field) -> Self {
        Self { field, mask: field.largest(), xor: 0 }
    }

    /// This number, whatever the field is.
    pub fn constant(field: Field, number: u128) -> Self {
        Self { field, mask: 0, xor: number }
    }

    /// The result if the field is this number.
    pub fn of(self, number: u128) -> u128 {
        (number & self.mask) ^ self.xor
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Action {
    /// The next rule is asked.
    #[default]
    Continue,
    /// The base chain ends for the packet; the hook's next base chain is asked.
    Accept,
    Drop,
    /// The packet is dropped, and its sender gets an error.
    Reject(Rejection),
    /// The packet returns to the chain that jumped here.
    Return,
    /// The packet goes through another chain and, at its end, comes back.
    Jump(Name),
    /// The packet goes on to another chain and doesn't come back.
    Goto(Name),
    /// The connection goes to one of these ports of this host; none: to the port that it has anyway.
    Redirect(Option<(u16, u16)>),
    /// The connection goes elsewhere, or comes from elsewhere.
    Nat(Nat),
    /// The action that this map has in the case of the rule's [`Lookup`] that holds. Without one, the next rule is asked.
    ByCase(Name),
    /// The packet goes to the transparent socket of its connection, or to a transparent listener on this port; none: on its
    /// own. Without one, xt's target drops it, and nft's expression ends the rule.
    Tproxy {
        port: Option<u16>,
        is_xt: bool,
    },
    /// Something that isn't understood: it may do anything.
    NotUnderstood(Label),
}

impl Action {
    /// The chain to which it leads, for good or not.
    pub fn target(&self) -> Option<&Name> {
        match self {
            Action::Jump(chain) | Action::Goto(chain) => Some(chain),
            _ => None,
        }
    }
}

/// The packet by which a sender is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rejection {
    Reset,
    /// ICMP's "destination unreachable" with this code, or ICMPv6's.
    Icmp(Family, u8),
    /// nf_tables' number for a code of both (`NFT_REJECT_ICMPX_*` in linux/netfilter/nf_tables.h).
    Icmpx(u8),
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nat {
    pub kind: NatKind,
    /// The first and the last address, if they are known.
    pub addresses: Option<(IpAddr, IpAddr)>,
    /// The first and the last port, if they are known; otherwise a free one, or the one that it has.
    pub ports: Option<(u16, u16)>,
    /// Options that don't change which of them it may be (`NF_NAT_RANGE_*` in linux/netfilter/nf_nat.h).
    pub flags: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NatKind {
    Destination,
    Source,
    /// The source becomes an address of the device by which the packet leaves.
    Masquerade,
    /// An address becomes the one in the same place of another network.
    Netmap,
}

impl Nat {
    /// To a place that isn't known.
    pub fn of(kind: NatKind) -> Self {
        Self { kind, addresses: None, ports: None, flags: 0 }
    }

    /// The address, if it is a single one.
    pub fn address(&self) -> Option<IpAddr> {
        self.addresses.filter(|(first, last)| first == last).map(|(first, _)| first)
    }

    /// The new destination or source, as nft and iptables write it: `10.0.0.1:80`.
    pub(crate) fn place(&self) -> String {
        let addresses = self.addresses.map(span).unwrap_or_default();
        match self.ports {
            None if addresses.is_empty() => "[...]".to_owned(),
            None => addresses,
            // Only a port makes it unclear where an IPv6 address ends.
            Some(ports) if addresses.contains(':') => format!("[{addresses}]:{}", span(ports)),
            Some(ports) => format!("{addresses}:{}", span(ports)),
        }
    }
}

/// One thing, or both ends of an interval.
pub fn span<T: fmt::Display + PartialEq>((first, last): (T, T)) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

pub const LOOPBACK: &[u8] = b"lo";

/// The loopback device's number in every namespace (`LOOPBACK_IFINDEX` in net/flow.h).
pub const LOOPBACK_INDEX: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{commented, rule, to_port};

    #[test]
    fn rules_do_the_same_whatever_they_have_counted() {
        let one = commented("mine", rule([to_port(80)], Action::Accept));
        let counted = Rule { counters: Some(Counters { packets: 1, bytes: 60 }), handle: 7, ..one.clone() };
        assert!(one.same_rule(&counted));
        let tcp = || Condition::is(Field::Protocol, TCP);
        let both = |conditions| rule(conditions, Action::Accept);
        assert!(both([tcp(), to_port(80)]).same_rule(&both([to_port(80), tcp()])));
        assert!(!both([tcp(), tcp()]).same_rule(&both([to_port(80), tcp()])));
        for other in [
            commented("mine", rule([to_port(81)], Action::Accept)),
            commented("mine", rule([to_port(80)], Action::Drop)),
            commented("yours", rule([to_port(80)], Action::Accept)),
            rule([to_port(80)], Action::Accept),
        ] {
            assert!(!one.same_rule(&other), "{other:?}");
        }
    }

    #[test]
    fn a_rule_that_only_counts_does_nothing() {
        let with = |effects: &[Effect], action| Rule { effects: effects.to_vec(), ..rule([to_port(80)], action) };
        let mark = Effect::Mark { field: Field::Mark, to: None };
        let log = Effect::Other(Label::expression("log"));
        let goes_on = || Action::Continue;
        for (rule, does) in [
            (with(&[], goes_on()), false),
            (with(std::slice::from_ref(&log), goes_on()), false),
            (with(&[log, mark], goes_on()), true),
            (with(&[], Action::Accept), true),
        ] {
            assert_eq!(rule.does_something(), does, "{rule:?}");
        }
    }

    #[test]
    fn bits_are_those_under_the_mask_turned_round() {
        let bits = |mask, xor| Bits { field: Field::Mark, mask, xor };
        assert_eq!(bits(6, 0).of(5), 4);
        assert_eq!(bits(6, 5).of(4), 1);
        assert_eq!(Bits::all(Field::Mark).of(5), 5);
        assert_eq!(Bits::constant(Field::Mark, 9).of(5), 9);
    }

    #[test]
    fn a_translation_is_written_with_its_ports() {
        let one = |text: &str| Some((text.parse().unwrap(), text.parse().unwrap()));
        let two = |first: &str, last: &str| Some((first.parse().unwrap(), last.parse().unwrap()));
        for (addresses, ports, text) in [
            (one("192.0.2.1"), Some((80, 80)), "192.0.2.1:80"),
            (one("2001:db8::1"), Some((80, 90)), "[2001:db8::1]:80-90"),
            (one("192.0.2.1"), None, "192.0.2.1"),
            (one("2001:db8::1"), None, "2001:db8::1"),
            (two("192.0.2.1", "192.0.2.9"), None, "192.0.2.1-192.0.2.9"),
            (None, Some((80, 80)), ":80"),
            (None, None, "[...]"),
        ] {
            let nat = Nat { addresses, ports, ..Nat::of(NatKind::Destination) };
            assert_eq!(nat.place(), text);
            assert_eq!(nat.address(), addresses.filter(|(first, last)| first == last).map(|(first, _)| first));
        }
    }

    #[test]
    fn an_interfaces_name_is_its_bytes_and_zeros() {
        assert_eq!(interface(b""), 0);
        assert_eq!(interface(b"lo"), 0x6c6f_0000_0000_0000_0000_0000_0000_0000);
        assert_eq!(interface(b"0123456789abcdef"), interface(b"0123456789abcdefgh"));
        for name in [&b""[..], b"lo", b"0123456789abcdef"] {
            assert_eq!(device(interface(name)).as_deref(), Some(name));
        }
        assert_eq!(device(interface(b"lo\0p")), None);
    }

    #[test]
    fn interfaces_that_begin_alike_are_an_interval() {
        let is_among = |prefix: &[u8], name: &[u8]| {
            let (first, last) = names_beginning_with(prefix);
            (first..=last).contains(&interface(name))
        };
        for (prefix, name, begins_so) in [
            (&b"eth"[..], &b"eth"[..], true),
            (b"eth", b"eth0", true),
            (b"eth", b"eth\xff\xff", true),
            (b"eth", b"et", false),
            (b"eth", b"eti", false),
            (b"", b"eth0", true),
            (b"", b"", true),
            (b"0123456789abcdef", b"0123456789abcdef", true),
            (b"0123456789abcdef", b"0123456789abcdeg", false),
        ] {
            assert_eq!(is_among(prefix, name), begins_so, "{}", name.escape_ascii());
        }
    }

    #[test]
    fn only_a_redirection_to_one_port_has_a_port() {
        for (action, port) in [
            (Action::Redirect(Some((4143, 4143))), Some(4143)),
            (Action::Redirect(Some((4143, 4150))), None),
            (Action::Redirect(None), None),
            (Action::Accept, None),
        ] {
            assert_eq!(rule([], action).redirects_to(), port);
        }
    }

    #[test]
    fn a_single_number_is_one_however_it_is_written() {
        for (values, number) in [
            (Values::from(7), Some(7)),
            (Values::Listed(vec![(7, 7)]), Some(7)),
            (Values::from((7, 8)), None),
            (Values::Listed(vec![(7, 7), (9, 9)]), None),
            (Values::Listed(vec![]), None),
            (Values::Set(Name::from("ids")), None),
        ] {
            assert_eq!(values.number(), number, "{values:?}");
        }
    }
}
