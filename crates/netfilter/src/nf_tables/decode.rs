//! Decodes a rule's expressions as conditions and an action.
//!
//! This reads what the kernel will do with a packet, whichever program wrote the rule: iptables-nft alone writes the
//! same condition in several ways, depending on its version. What isn't understood is recorded as such, with the names
//! of its expressions.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

use ruleset::flags::{ct_state_condition, tracking_condition};
use ruleset::nftables::{ether_type, family_condition, nfproto};
use ruleset::{
    Action, Bits, Bound, Case, Condition, Context, Counters, DeviceKey, Effect, Family, Field, ICMPV6, Intervals, Key,
    Label, Mapped, Name, Nat, NatKind, Numbered, Rejection, Rule, Set, TableFamily, Value, Values, interface,
};

use super::expression::{self, Compare, Dynset, Expression, Lookup, Mask, Payload, Range, Redirect};
use super::header::last_bytes;
use super::register::{Loaded, Part, Place, Registers, bits_of, network, slot};
use super::set::{self, action};
use super::uapi::*;
use super::user_data;
use crate::netlink::message::{self, Attributes, Malformed, be64, u32_at};
use crate::xt::{self, NF_NAT_RANGE_PROTO_SPECIFIED, XtEntry};

/// A number as the machine has it; of fewer bytes, as a type of a device has.
fn host_number(bytes: &[u8]) -> Option<u32> {
    match bytes.len() {
        2 => bytes.try_into().map(u16::from_ne_bytes).map(u32::from).ok(),
        _ => bytes.try_into().map(u32::from_ne_bytes).ok(),
    }
}

/// The fields that are loaded from a packet's headers: `struct iphdr` and `struct ipv6hdr` in linux/ip.h and linux/ipv6.h,
/// `struct tcphdr` in linux/tcp.h.
const PAYLOAD_FIELDS: [(Field, Place); 6] = [
    (Field::Source(Family::V4), (libc::NFT_PAYLOAD_NETWORK_HEADER, 12, 4)),
    (Field::Destination(Family::V4), (libc::NFT_PAYLOAD_NETWORK_HEADER, 16, 4)),
    (Field::Source(Family::V6), (libc::NFT_PAYLOAD_NETWORK_HEADER, 8, 16)),
    (Field::Destination(Family::V6), (libc::NFT_PAYLOAD_NETWORK_HEADER, 24, 16)),
    (Field::SourcePort, (libc::NFT_PAYLOAD_TRANSPORT_HEADER, 0, 2)),
    (Field::DestinationPort, (libc::NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2)),
];

/// The `NFT_META_*` of a field.
const META_FIELDS: [(Field, i32); 9] = [
    (Field::Family, libc::NFT_META_NFPROTO),
    (Field::Protocol, libc::NFT_META_L4PROTO),
    (Field::InInterface, libc::NFT_META_IIFNAME),
    (Field::OutInterface, libc::NFT_META_OIFNAME),
    (Field::Uid, libc::NFT_META_SKUID),
    (Field::Gid, libc::NFT_META_SKGID),
    (Field::Mark, libc::NFT_META_MARK),
    (Field::EtherType, libc::NFT_META_PROTOCOL),
    (Field::PacketType, libc::NFT_META_PKTTYPE),
];

/// Some versions of iptables-nft write `-p tcp` for IPv4 with it.
const IPV4_PROTOCOL: Place = (libc::NFT_PAYLOAD_NETWORK_HEADER, 9, 1);
/// Where there are no extension headers.
const IPV6_PROTOCOL: Place = (libc::NFT_PAYLOAD_NETWORK_HEADER, 6, 1);
const IPV6_HOPS: Place = (libc::NFT_PAYLOAD_NETWORK_HEADER, 7, 1);
/// The first byte of `struct icmp6hdr`.
const ICMPV6_TYPE: Place = (libc::NFT_PAYLOAD_TRANSPORT_HEADER, 0, 1);
/// `h_proto` of `struct ethhdr` in linux/if_ether.h.
const ETHER_TYPE: Place = (libc::NFT_PAYLOAD_LL_HEADER, 12, 2);
const TCP_FLAGS: Place = (libc::NFT_PAYLOAD_TRANSPORT_HEADER, 13, 1);

/// The fragment's offset (`IP_OFFSET` in net/ip.h), and its place.
const IPV4_FRAGMENT: (Place, [u8; 2]) = ((libc::NFT_PAYLOAD_NETWORK_HEADER, 6, 2), [0x1f, 0xff]);

/// `enum ip_conntrack_status`, linux/netfilter/nf_conntrack_common.h: the connection's source or destination was
/// changed.
const IPS_SRC_NAT: u32 = 1 << 4;
const IPS_DST_NAT: u32 = 1 << 5;

const NFT_EXTHDR_OP_TCPOPT: u32 = 1;
const TCPOPT_MAXSEG: u8 = 2;
const NFT_OBJECT_COUNTER: u32 = 1;
const NFT_OBJECT_QUOTA: u32 = 2;
const NFT_OBJECT_CT_HELPER: u32 = 3;
const NFT_OBJECT_LIMIT: u32 = 4;
const NFT_OBJECT_CONNLIMIT: u32 = 5;
const NFT_OBJECT_CT_TIMEOUT: u32 = 7;
const NFT_OBJECT_SECMARK: u32 = 8;
const NFT_OBJECT_CT_EXPECT: u32 = 9;
const NFT_OBJECT_SYNPROXY: u32 = 10;

/// Reads the rules of a dump.
pub(crate) struct Decoder<'n> {
    numbered: &'n Numbered,
    /// The cases that rules share, by their elements and the words for which these are asked.
    shared: RefCell<HashMap<(usize, String), Shared>>,
    /// The number of cases for which there is still room.
    room: Cell<usize>,
}

/// Elements, and the cases that were made of them.
type Shared = (Arc<[Key]>, Arc<[Case]>);

/// The most cases of all rules together: sets may have as many elements as they like, and each case takes some 200 bytes.
const MOST_CASES: usize = 1 << 17;

impl<'n> Decoder<'n> {
    pub(crate) fn new(numbered: &'n Numbered) -> Self {
        Self { numbered, shared: RefCell::default(), room: Cell::new(MOST_CASES) }
    }

    /// Reads one rule, from a table of this family with these sets.
    pub(crate) fn read(
        &self,
        attributes: Attributes<'_>,
        family: TableFamily,
        sets: &[Set],
    ) -> Result<Rule, Malformed> {
        let mut reader = Reader::new(family, sets, self);
        for expression in Expression::each(None, attributes.find(NFTA_RULE_EXPRESSIONS)?) {
            reader.read_expression(expression?)?;
        }
        let comment = attributes.find(NFTA_RULE_USERDATA)?.and_then(user_data::read_comment);
        reader.rule.comment = comment.or(reader.rule.comment);
        reader.rule.handle = attributes.find(NFTA_RULE_HANDLE)?.map_or(Ok(0), be64)?;
        Ok(reader.finish())
    }

    /// The cases of these elements, which another rule may have made; none if there is no room for them, or if they aren't
    /// understood.
    fn cases(&self, words: &str, keys: &Arc<[Key]>, case: impl Fn(&Key) -> Option<Case>) -> Option<Arc<[Case]>> {
        // The elements are kept with the cases, so that others don't get their address.
        let key = (keys.as_ptr().addr(), words.to_owned());
        if let Some((_, cases)) = self.shared.borrow().get(&key) {
            return Some(cases.clone());
        }
        self.room.set(self.room.get().checked_sub(keys.len())?);
        let cases: Arc<[Case]> = keys.iter().map(case).collect::<Option<_>>()?;
        self.shared.borrow_mut().insert(key, (keys.clone(), cases.clone()));
        Some(cases)
    }
}

/// A lookup that the rule has made, as far as the use of its value needs it.
struct Asked<'a> {
    set: &'a Set,
    parts: Vec<(Loaded, usize)>,
}

struct Reader<'a> {
    sets: &'a [Set],
    decoder: &'a Decoder<'a>,
    /// The family of all packets that reach the current expression, if it is known.
    family: Option<Family>,
    table: TableFamily,
    registers: Registers,
    rule: Rule,
    /// The map that the rule has asked, if its value isn't a verdict.
    asked: Option<Asked<'a>>,
    /// The expression that changes the packet, and so perhaps where it goes, if there is one.
    changes: Option<Label>,
}

impl<'a> Reader<'a> {
    fn new(family: TableFamily, sets: &'a [Set], decoder: &'a Decoder<'a>) -> Self {
        Self {
            sets,
            decoder,
            family: if let TableFamily::Ip(family) = family { Some(family) } else { None },
            table: family,
            registers: Registers::default(),
            rule: Rule::new(Vec::new(), Action::Continue),
            asked: None,
            changes: None,
        }
    }

    fn finish(mut self) -> Rule {
        match (&self.rule.action, self.changes.take()) {
            (Action::Continue, Some(change)) => self.rule.action = Action::NotUnderstood(change),
            // It decides about a packet that it has changed in a way that isn't understood, so it isn't known whether the
            // packet gets here.
            (_, Some(change)) => self.rule.conditions.push(Condition::NotUnderstood(change)),
            _ => {}
        }
        // There may be tens of thousands of rules.
        self.rule.conditions.shrink_to_fit();
        self.rule
    }

    fn load(&mut self, register: u32, loaded: Loaded) {
        let loaded = match &self.changes {
            // The packet's content after the change isn't followed.
            Some(_) if !matches!(loaded, Loaded::Value(_)) => loaded_by("payload"),
            _ => loaded,
        };
        self.registers.load(register, loaded);
    }

    fn add_unknown(&mut self, expression: &str) {
        self.rule.conditions.push(Condition::NotUnderstood(Label::expression(expression)));
    }

    /// Adds an expression's condition on the content of a register; none: the condition isn't understood.
    fn add_condition_on(&mut self, register: u32, expression: &str, condition: Option<Condition>) {
        match condition {
            Some(condition) => self.add_condition(condition),
            None => {
                let names = self.registers.names(register, expression);
                self.rule.conditions.push(Condition::NotUnderstood(Label::Expressions(names)));
            }
        }
    }

    fn add_effect(&mut self, expression: &str) {
        self.rule.effects.push(Effect::Other(Label::expression(expression)));
    }

    fn read_expression(&mut self, expression: Expression<'a>) -> Result<(), Malformed> {
        // A verdict ends the rule: no later expression runs.
        if self.rule.action != Action::Continue {
            return Ok(());
        }
        let before = self.rule.conditions.len();
        self.apply(expression)?;
        let done = self.rule.effects.iter().find(|effect| !matches!(effect, Effect::Other(_)));
        if let Some(done) = done
            && self.rule.conditions.len() > before
        {
            // It was done whether the condition holds or not.
            self.rule.action = Action::NotUnderstood(Label::expression(match done {
                Effect::Mark { field: Field::HopLimit, .. } => "payload",
                Effect::Mark { field: Field::ConnectionMark, .. } => "ct mark",
                Effect::Mark { .. } => "meta mark",
                Effect::Untrack | Effect::Other(_) => "notrack",
            }));
            self.rule.conditions.truncate(before);
        }
        Ok(())
    }

    fn apply(&mut self, expression: Expression<'a>) -> Result<(), Malformed> {
        match expression {
            Expression::Counter(expression::Counter { packets, bytes }) => {
                self.rule.counters = self.rule.counters.or(Some(Counters { packets, bytes }));
            }
            Expression::Meta(meta) => self.load(meta.register, self.loaded_meta(meta.key)),
            Expression::Conntrack(conntrack) => {
                self.rule.needs_tracking = true;
                self.load(conntrack.register, self.loaded_conntrack(conntrack));
            }
            Expression::Payload(payload) => self.load(payload.register, self.loaded_payload(payload)),
            Expression::Value(constant) => self.load(constant.register, Loaded::Value(constant.value.0.to_vec())),
            Expression::Mask(mask) => {
                let loaded = self.loaded_under_mask(mask);
                let loaded = loaded.unwrap_or_else(|| Loaded::Other(self.registers.names(mask.from, "bitwise")));
                self.load(mask.to, loaded);
            }
            Expression::ByteOrder(order) if order.operation == libc::NFT_BYTEORDER_HTON => {
                let loaded = match self.registers.get(order.from) {
                    Some(&Loaded::Field(part)) => Loaded::Field(Part { host_order: false, ..part }),
                    // Their numbers are compared as the machine has them, which a set of ranges hasn't.
                    Some(
                        Loaded::OfDevice(..) | Loaded::SocketClass | Loaded::State(_) | Loaded::AddressType { .. },
                    ) => Loaded::Other(self.registers.names(order.from, "byteorder")),
                    Some(other) => other.clone(),
                    None => loaded_by("byteorder"),
                };
                self.load(order.to, loaded);
            }
            Expression::ByteOrder(_) => self.apply_other(b"byteorder"),
            Expression::Compare(compare) => {
                self.add_condition_on(compare.register, "cmp", self.comparison_condition(compare))
            }
            Expression::Range(range) => self.add_condition_on(range.register, "range", self.range_condition(range)),
            Expression::Lookup(lookup) => self.add_lookup(lookup),
            Expression::Match(expression::Match { name, revision, info }) => {
                self.add_xt_match(XtEntry { family: self.family.unwrap_or(Family::V4), name: name.0, revision, info })?;
            }
            Expression::Target(expression::Target { name, revision, info }) => {
                let family = self.family.unwrap_or(Family::V4);
                let target = XtEntry { family, name: name.0, revision, info };
                xt::read_target(&mut self.rule, target)?;
            }
            Expression::SetMeta(meta) => match meta.key {
                // It decides for which host the packet is.
                libc::NFT_META_PKTTYPE => self.changes = Some(Label::expression("meta pkttype")),
                libc::NFT_META_MARK => self.add_mark(Field::Mark, meta.register),
                _ => self.add_effect("meta"),
            },
            Expression::SetConntrack(conntrack) => {
                self.rule.needs_tracking = true;
                match conntrack.key {
                    libc::NFT_CT_MARK => self.add_mark(Field::ConnectionMark, conntrack.register),
                    // A connection's tracked addresses are looked up by zone, and its other packets' zone is not set here:
                    // they may not be translated.
                    libc::NFT_CT_ZONE => self.rule.action = Action::NotUnderstood(Label::expression("ct zone")),
                    _ => self.apply_other(b"ct"),
                }
            }
            Expression::SetPayload(change) => self.apply_set_payload(change),
            Expression::LoadOption(option) => self.load(option.register, loaded_by("exthdr")),
            // It may only become smaller (`nft_exthdr_tcp_set_eval` in net/netfilter/nft_exthdr.c).
            Expression::SetOption(option)
                if (option.operation, option.kind) == (NFT_EXTHDR_OP_TCPOPT, TCPOPT_MAXSEG) =>
            {
                self.add_effect("exthdr");
            }
            Expression::SetOption(_) => self.apply_other(b"exthdr"),
            Expression::SetObject(expression::SetObject { kind }) => {
                let is_of_packets =
                    matches!(kind, NFT_OBJECT_QUOTA | NFT_OBJECT_LIMIT | NFT_OBJECT_COUNTER | NFT_OBJECT_SECMARK);
                self.rule.needs_tracking |= !is_of_packets;
                match kind {
                    NFT_OBJECT_QUOTA | NFT_OBJECT_LIMIT | NFT_OBJECT_CONNLIMIT => self.add_unknown("objref"),
                    NFT_OBJECT_SYNPROXY => self.apply_other(b"synproxy"),
                    NFT_OBJECT_COUNTER | NFT_OBJECT_SECMARK => self.add_effect("objref"),
                    NFT_OBJECT_CT_HELPER | NFT_OBJECT_CT_TIMEOUT | NFT_OBJECT_CT_EXPECT => self.add_effect("objref"),
                    _ => self.apply_other(b"objref"),
                }
            }
            Expression::Decide(decide) => self.rule.action = action(decide.verdict),
            Expression::Redirect(redirect) => self.set_redirect(redirect),
            Expression::Nat(nat) => self.set_nat(nat),
            Expression::Reject(reject) => {
                self.rule.action = Action::Reject(match (reject.kind, reject.code.unwrap_or_default()) {
                    (libc::NFT_REJECT_TCP_RST, _) => Rejection::Reset,
                    (libc::NFT_REJECT_ICMPX_UNREACH, code) => Rejection::Icmpx(code),
                    (_, code) => Rejection::Icmp(self.family.unwrap_or(Family::V4), code),
                });
            }
            Expression::Tproxy(tproxy) => {
                self.rule.action = match self.constant_ports(tproxy.port, None) {
                    // A port of a map isn't followed.
                    None if tproxy.port.is_some() => Action::NotUnderstood(Label::expression("tproxy")),
                    ports => Action::Tproxy { port: ports.map(|(port, _)| port), is_xt: false },
                };
            }
            Expression::Numgen(expression::Numgen { register, modulus, offset }) => {
                let first = offset.unwrap_or_default();
                self.load(register, Loaded::Chosen { expression: "numgen", count: modulus, first });
            }
            Expression::Hash(expression::Hash { register, modulus, offset }) => {
                let first = offset.unwrap_or_default();
                self.load(register, Loaded::Chosen { expression: "hash", count: modulus, first });
            }
            Expression::Fib(fib) => self.load(fib.register, loaded_by_routing(fib)),
            Expression::Limit(limit) => {
                // `NFT_LIMIT_PKT_BYTES`
                let is_of_bytes = limit.kind == 1;
                self.add_limit(limit.flags, Bound::Rate { most: limit.rate, seconds: limit.seconds, is_of_bytes });
            }
            Expression::Quota(quota) => self.add_limit(quota.flags, Bound::Bytes(quota.bytes)),
            Expression::Connlimit(connlimit) => {
                self.add_limit(connlimit.flags, Bound::Connections(connlimit.count));
            }
            Expression::Dynset(dynset) => self.add_meter(dynset)?,
            Expression::Other(name) => self.apply_other(name),
        }
        Ok(())
    }

    fn loaded_meta(&self, key: i32) -> Loaded {
        let known = META_FIELDS.into_iter().find(|(_, known)| *known == key);
        // A bridge's frames may be for others than its own address.
        if let Some((field, _)) =
            known.filter(|(field, _)| *field != Field::PacketType || self.table != TableFamily::Bridge)
        {
            return self.loaded_field(field);
        }
        match key {
            libc::NFT_META_IIF => Loaded::OfDevice(Field::InInterface, DeviceKey::Index),
            libc::NFT_META_OIF => Loaded::OfDevice(Field::OutInterface, DeviceKey::Index),
            libc::NFT_META_IIFGROUP => Loaded::OfDevice(Field::InInterface, DeviceKey::Group),
            libc::NFT_META_OIFGROUP => Loaded::OfDevice(Field::OutInterface, DeviceKey::Group),
            libc::NFT_META_IIFTYPE => Loaded::OfDevice(Field::InInterface, DeviceKey::Hardware),
            libc::NFT_META_OIFTYPE => Loaded::OfDevice(Field::OutInterface, DeviceKey::Hardware),
            libc::NFT_META_CGROUP => Loaded::SocketClass,
            _ => loaded_by("meta"),
        }
    }

    fn loaded_conntrack(&self, expression::Conntrack { key, way, .. }: expression::Conntrack) -> Loaded {
        /// `IP_CT_DIR_ORIGINAL`
        const ORIGINAL: u8 = 0;
        let field = match (key, way) {
            (libc::NFT_CT_STATE, _) => return Loaded::State(u32::MAX),
            (libc::NFT_CT_STATUS, _) => return Loaded::Status(u32::MAX),
            (libc::NFT_CT_DIRECTION, _) => return Loaded::Direction,
            (libc::NFT_CT_MARK, _) => Some(Field::ConnectionMark),
            (libc::NFT_CT_SRC, Some(ORIGINAL)) => self.family.map(Field::OriginalSource),
            (libc::NFT_CT_DST, Some(ORIGINAL)) => self.family.map(Field::OriginalDestination),
            (libc::NFT_CT_SRC_IP, Some(ORIGINAL)) => Some(Field::OriginalSource(Family::V4)),
            (libc::NFT_CT_DST_IP, Some(ORIGINAL)) => Some(Field::OriginalDestination(Family::V4)),
            (libc::NFT_CT_SRC_IP6, Some(ORIGINAL)) => Some(Field::OriginalSource(Family::V6)),
            (libc::NFT_CT_DST_IP6, Some(ORIGINAL)) => Some(Field::OriginalDestination(Family::V6)),
            (libc::NFT_CT_PROTO_SRC, Some(ORIGINAL)) => Some(Field::OriginalSourcePort),
            (libc::NFT_CT_PROTO_DST, Some(ORIGINAL)) => Some(Field::OriginalDestinationPort),
            _ => None,
        };
        field.map_or_else(|| loaded_by("ct"), |field| self.loaded_field(field))
    }

    /// A whole field, as `meta` and `ct` load it.
    fn loaded_field(&self, field: Field) -> Loaded {
        let is_set = |effect: &Effect| matches!(effect, Effect::Mark { field: set, .. } if *set == field);
        if self.rule.effects.iter().any(is_set) {
            // Conditions are on the packet before that.
            return loaded_by("meta");
        }
        Loaded::Field(Part::whole(field))
    }

    fn loaded_payload(&self, Payload { base, offset, length, .. }: Payload) -> Loaded {
        let place = (base, offset, length);
        // ARP's packets have other things where IP has its addresses.
        if self.table == TableFamily::Arp {
            return loaded_by("payload");
        }
        match (self.family, place) {
            (Some(Family::V4), IPV4_PROTOCOL) | (Some(Family::V6), IPV6_PROTOCOL) => {
                return self.loaded_field(Field::Protocol);
            }
            (Some(Family::V6), IPV6_HOPS) => return self.loaded_field(Field::HopLimit),
            // In another protocol's packet, it is something else.
            (_, ICMPV6_TYPE) if self.rule.conditions.contains(&Condition::is(Field::Protocol, ICMPV6)) => {
                return self.loaded_field(Field::IcmpType);
            }
            // In a frame: nft's `ether type`.
            (_, ETHER_TYPE) => return self.loaded_field(Field::EtherType),
            (_, TCP_FLAGS) => return Loaded::Bits(Bits::all(Field::TcpFlags)),
            _ => {}
        }
        for (field, (known_base, known_offset, known_length)) in PAYLOAD_FIELDS {
            // iptables-nft loads only the bytes that a prefix covers, if it ends on a whole byte. Such a load is
            // unambiguous only if the packet's family is known.
            let is_length = match (field, self.family) {
                (Field::Source(family) | Field::Destination(family), Some(known)) => {
                    known == family && (1..=known_length).contains(&length)
                }
                _ => length == known_length,
            };
            if (base, offset) == (known_base, known_offset) && is_length {
                return Loaded::Field(Part { field, bytes: length as usize, host_order: false });
            }
        }
        Loaded::Bytes(place, None)
    }

    /// The content of a register under a mask and with bits flipped; none if it isn't understood.
    fn loaded_under_mask(&self, Mask { from, mask, xor, .. }: Mask<'_>) -> Option<Loaded> {
        let (mask, xor) = (mask.0, xor.0);
        let is_plain = xor.iter().all(|&byte| byte == 0);
        let field = match self.registers.get(from)? {
            Loaded::State(_) if is_plain => return Some(Loaded::State(u32_at(mask, 0).ok()?)),
            Loaded::Status(_) if is_plain => return Some(Loaded::Status(u32_at(mask, 0).ok()?)),
            &Loaded::Bytes(place, None) => return Some(Loaded::Bytes(place, Some(mask.to_vec()))),
            &Loaded::Bits(Bits { field, xor: 0, .. }) => field,
            &Loaded::Field(Part { field, bytes, host_order }) => match field {
                _ if field.address_family().is_some() && is_plain && mask.len() == bytes => {
                    return Some(Loaded::Masked(field, mask.to_vec()));
                }
                Field::SourcePort | Field::DestinationPort => field,
                _ if host_order && is_mark(field) => field,
                _ => return None,
            },
            _ => return None,
        };
        let (mask, xor) = (bits_of(field, mask)?, bits_of(field, xor)?);
        Some(Loaded::Bits(Bits { field, mask, xor }))
    }

    /// Adds a condition. nft writes `80-90` as two conditions, at least 80 and at most 90; these are joined into one.
    fn add_condition(&mut self, condition: Condition) {
        let Condition::In { field, values: Values::Interval((first, last)), negated: false } = condition else {
            return self.rule.conditions.push(condition);
        };
        if let Some(Condition::In { field: before, values: Values::Interval((least, most)), negated: false }) =
            self.rule.conditions.last_mut()
            && (*before, *most) == (field, field.largest())
            && first == 0
            && *least <= last
        {
            *most = last;
            return;
        }
        let named = Family::ALL.into_iter().find(|&family| match field {
            Field::Family => (first, last) == (nfproto(family), nfproto(family)),
            Field::EtherType => (first, last) == (ether_type(family), ether_type(family)),
            _ => false,
        });
        self.family = self.family.or(named);
        self.rule.conditions.push(condition);
    }

    /// A comparison as a condition; none if it isn't understood.
    fn comparison_condition(&self, compare: Compare<'_>) -> Option<Condition> {
        let loaded = self.registers.get(compare.register)?;
        if let &Loaded::Field(part) = loaded {
            let values = compared_values(part, compare)?;
            let negated = compare.operation == libc::NFT_CMP_NEQ;
            return Some(Condition::compare(part.field, values, negated));
        }
        let negated = match compare.operation {
            libc::NFT_CMP_EQ => false,
            libc::NFT_CMP_NEQ => true,
            _ => return None,
        };
        let value = compare.value.0;
        let number = host_number(value);
        Some(match *loaded {
            Loaded::Masked(field, ref mask) => Condition::compare(field, network(field, value, mask)?, negated),
            Loaded::AddressType { .. } | Loaded::OfDevice(..) | Loaded::State(_) | Loaded::SocketClass => {
                self.membership_condition(loaded, &[number?], negated)?
            }
            Loaded::ReversePath { is_loose } => {
                // 0 is no device: there is no route back.
                let is_missing = value.iter().all(|&byte| byte == 0);
                if !is_missing && value.first() != Some(&1) {
                    return None;
                }
                Condition::Context(Context::ReversePath { is_loose, negated: negated != is_missing, xt_flags: None })
            }
            Loaded::Bits(Bits { field, mask, xor }) => {
                Condition::Masked { field, mask, number: bits_of(field, value)? ^ xor, negated }
            }
            Loaded::Bytes(place, Some(ref mask))
                if self.family == Some(Family::V4)
                    && (place, mask.as_slice()) == (IPV4_FRAGMENT.0, &IPV4_FRAGMENT.1) =>
            {
                // Connection tracking puts fragments together before, and those of a handshake are none.
                let is_first = value.iter().all(|&byte| byte == 0);
                Condition::Constant { of: Label::Fragment, holds: is_first != negated }
            }
            Loaded::Status(mask) if mask & !IPS_SRC_NAT & !IPS_DST_NAT == 0 => {
                let number = number?;
                tracking_condition(|tracked| {
                    let source = if tracked.has_snat { IPS_SRC_NAT } else { 0 };
                    let destination = if tracked.has_dnat { IPS_DST_NAT } else { 0 };
                    tracked.state.has_entry() && ((source + destination) & mask == number) != negated
                })
            }
            Loaded::Direction => {
                let &[way] = value else { return None };
                tracking_condition(|tracked| {
                    tracked.state.has_entry() && (u8::from(tracked.is_reply) == way) != negated
                })
            }
            _ => return None,
        })
    }

    /// The condition that a state, an address type, a device or a class is one of these or, if negated, none of them.
    fn membership_condition(&self, loaded: &Loaded, numbers: &[u32], negated: bool) -> Option<Condition> {
        match *loaded {
            Loaded::State(mask) => Some(ct_state_condition(|state| numbers.contains(&(state.bit() & mask)) != negated)),
            Loaded::SocketClass => {
                Some(Condition::Context(Context::SocketClass { classes: numbers.to_vec(), negated }))
            }
            Loaded::AddressType { is_source, of_device } => {
                let mut types = 0;
                for &number in numbers {
                    types |= 1u16.checked_shl(number)?;
                }
                let is_xt = false;
                Some(Condition::Context(Context::AddressType { is_source, types, negated, is_xt, of_device }))
            }
            Loaded::OfDevice(field, key) => {
                let mut names = Vec::new();
                for &number in numbers {
                    let having = self.decoder.numbered.devices(key, number)?;
                    names.extend(having.iter().map(|name| interface(name.as_bytes())).map(|name| (name, name)));
                }
                // Without a device, only its number can be compared (`nft_meta_store_ifgroup` in nft_meta.c).
                if negated && key != DeviceKey::Index {
                    let others = Intervals::new([(1, field.largest())]).without(&Intervals::new(names));
                    return Some(Condition::is(field, Values::Listed(others.as_slice().to_vec())));
                }
                let values = if let [only] = *names { only.into() } else { Values::Listed(names) };
                Some(Condition::compare(field, values, negated))
            }
            _ => None,
        }
    }

    /// A comparison with an interval as a condition; none if it isn't understood.
    fn range_condition(&self, range: Range<'_>) -> Option<Condition> {
        let &Loaded::Field(part) = self.registers.get(range.register)? else {
            return None;
        };
        // The kernel compares the bytes in network order.
        if part.host_order {
            return None;
        }
        let (first, _) = part.interval(range.first.0)?;
        let (_, last) = part.interval(range.last.0)?;
        let negated = range.operation == libc::NFT_RANGE_NEQ;
        Some(Condition::compare(part.field, (first, last), negated))
    }

    fn add_lookup(&mut self, lookup: Lookup<'_>) {
        let negated = lookup.flags.unwrap_or_default() as i32 & libc::NFT_LOOKUP_F_INV != 0;
        let is_verdict_map = lookup.to == Some(libc::NFT_REG_VERDICT as u32);
        let set = self.sets.iter().find(|set| set.name.as_bytes() == lookup.set.0);
        let condition = set.and_then(|set| self.set_condition(lookup.register, set, negated));
        let asked = set.filter(|_| lookup.to.is_some() || condition.is_none()).and_then(|set| {
            let parts = self.parts(lookup.register, set, lookup.to.is_some())?;
            let asked = Asked { set, parts };
            let used = self.cases(&asked, "", |value| match value {
                Mapped::Verdict(action) => Some(Some(Value::Action(action.clone()))),
                Mapped::Bytes(_) => Some(None),
            });
            Some((asked, used?))
        });
        if let Some((asked, cases)) = asked {
            self.rule.lookup = Some(ruleset::Lookup { negated, ..cases });
            if is_verdict_map {
                self.rule.action = Action::ByCase(asked.set.name.clone());
            } else if let Some(to) = lookup.to {
                self.load(to, Loaded::Mapped);
                self.asked = Some(asked);
            }
            return;
        }
        if is_verdict_map {
            self.rule.action = Action::NotUnderstood(Label::expression("vmap"));
            return;
        }
        self.add_condition_on(lookup.register, "lookup", condition);
        if let Some(to) = lookup.to {
            self.load(to, loaded_by("map"));
        }
    }

    /// The parts of the key by which a rule asks a set; none if they can't be cases of the rule.
    fn parts(&self, register: u32, set: &Set, is_map: bool) -> Option<Vec<(Loaded, usize)>> {
        // What was done before was done for all packets, and two lookups are more than cases.
        if self.rule.lookup.is_some() || self.rule.has_lasting_effect() {
            return None;
        }
        let parts = self.registers.parts(register, set.bits / 8);
        // One of a map's values counts, or none.
        let unknown = || vec![(Loaded::Other(vec![Name::from("vmap")]), set.bits as usize / 8)];
        parts.or_else(|| is_map.then(unknown))
    }

    /// The lookup with what `value` makes of a map's values, for this use; none if that, or a key, isn't understood.
    fn cases(
        &self,
        asked: &Asked<'_>,
        used_for: &str,
        value: impl Fn(&Mapped) -> Option<Option<Value>>,
    ) -> Option<ruleset::Lookup> {
        let Asked { set, parts, .. } = asked;
        let key: Vec<&str> = parts.iter().map(|(part, _)| part.words()).collect();
        let key = key.join(" . ");
        let numbers = || {
            let numbers = set.elements.as_ref()?.numbers().take(MOST_CASES + 1);
            Some(numbers.map(|number| set::key((number, number), set.bits, None)).collect())
        };
        let keys = set.keys.clone().or_else(numbers)?;
        let case = |key: &Key| {
            let (mut conditions, mut at) = (Vec::with_capacity(parts.len()), 0);
            for (part, length) in parts.iter().filter(|_| !key.first.is_empty()) {
                let ends = (key.first.get(at..at + length)?, key.last.get(at..at + length)?);
                conditions.push(self.part_condition(part, ends)?);
                at += length.next_multiple_of(4);
            }
            Some(Case { conditions, value: key.value.as_ref().map_or(Some(None), &value)? })
        };
        let mut cases = self.decoder.cases(&format!("{key} {used_for}"), &keys, case)?;
        if let &[(Loaded::Chosen { count, first, .. }, _)] = parts.as_slice()
            && has_all(&keys, first, count)
        {
            // If it is none of the others, it is the last one.
            let mut all = cases.to_vec();
            all.last_mut().into_iter().for_each(|last| last.conditions.clear());
            cases = all.into();
        }
        Some(ruleset::Lookup { set: set.name.clone(), key, negated: false, cases })
    }

    /// Has the rule use the value of the map that it has asked; returns false if that isn't understood. `value` gets what the
    /// map has put into the registers from this one on.
    fn use_mapped(&mut self, register: u32, used_for: &str, value: impl Fn(&[u8]) -> Option<Value>) -> bool {
        let Some(asked) = self.asked.as_ref().filter(|_| self.registers.get(register) == Some(&Loaded::Mapped)) else {
            return false;
        };
        let used = self.cases(asked, used_for, |mapped| match mapped {
            Mapped::Bytes(bytes) => value(bytes).map(Some),
            Mapped::Verdict(_) => None,
        });
        let is_used = used.is_some();
        self.rule.lookup = used.or(self.rule.lookup.take());
        is_used
    }

    /// The condition that a part of a key has one of the numbers between these two; none if it isn't understood.
    fn part_condition(&self, part: &Loaded, (first, last): (&[u8], &[u8])) -> Option<Condition> {
        match part {
            Loaded::Field(part) => {
                let ((least, _), (_, most)) = (part.interval(first)?, part.interval(last)?);
                let is_range = !part.host_order || first == last;
                is_range.then(|| Condition::is(part.field, (least, most)))
            }
            Loaded::Other(names) => Some(Condition::NotUnderstood(Label::Expressions(names.clone()))),
            Loaded::Chosen { expression, .. } => Some(Condition::NotUnderstood(Label::expression(expression))),
            part if first == last => self.membership_condition(part, &[host_number(first)?], false),
            _ => None,
        }
    }

    /// The condition that the content of a register is in a set or, if negated, isn't; none if it isn't understood.
    fn set_condition(&self, register: u32, set: &Set, negated: bool) -> Option<Condition> {
        let parts = self.registers.parts(register, set.bits / 8)?;
        // A set whose elements have several fields is looked up by several registers.
        let [(loaded, _)] = parts.as_slice() else { return None };
        match *loaded {
            Loaded::Field(Part { field, host_order, .. }) if set.bits == field.bits() => {
                set.elements.as_ref()?;
                let values = if host_order {
                    // The set's elements are in the machine's byte order.
                    Values::Listed(set.numbers_of(field)?.as_slice().to_vec())
                } else {
                    Values::Set(set.name.clone())
                };
                Some(Condition::compare(field, values, negated))
            }
            ref loaded => {
                // Numbers of states, types, devices and classes are in the machine's order, of two bytes or of four.
                let number = |&(first, last): &(u128, u128)| {
                    let bytes = first.to_be_bytes();
                    host_number(last_bytes(&bytes, set.bits as usize / 8)?).filter(|_| first == last)
                };
                let numbers = set.elements.as_ref()?.as_slice().iter().map(number).collect::<Option<Vec<_>>>()?;
                self.membership_condition(loaded, &numbers, negated)
            }
        }
    }

    fn add_xt_match(&mut self, entry: XtEntry<'_>) -> Result<(), Malformed> {
        let before = self.rule.conditions.len();
        xt::read_match(&mut self.rule, entry, self.decoder.numbered)?;
        if let Some(change) = self.changes.clone().filter(|_| self.rule.conditions.len() > before) {
            self.rule.conditions.truncate(before);
            self.rule.conditions.push(Condition::NotUnderstood(change));
        }
        Ok(())
    }

    fn apply_set_payload(&mut self, change: expression::SetPayload) {
        let place = (change.base, change.offset, change.length);
        let kept = match self.registers.get(change.register) {
            Some(Loaded::Bytes(from, Some(mask))) if *from == place => mask.as_slice(),
            _ => &[],
        };
        match rewritten(self.family, place, kept) {
            Some(effect) => self.rule.effects.push(effect),
            None => self.changes = Some(Label::expression("payload")),
        }
    }

    fn add_mark(&mut self, field: Field, register: u32) {
        let marks = |value: &[u8]| Some(Value::Mark(field, u32_at(value, 0).ok()?));
        if !self.rule.has_lasting_effect() && self.use_mapped(register, field.facts().nft, marks) {
            return;
        }
        let to = match self.registers.get(register) {
            Some(Loaded::Value(value)) => u32_at(value, 0).ok().map(|mark| Bits::constant(field, mark.into())),
            Some(&Loaded::Field(part)) if part.host_order && is_mark(part.field) => Some(Bits::all(part.field)),
            Some(&Loaded::Bits(bits)) if is_mark(bits.field) => Some(bits),
            _ => None,
        };
        self.rule.effects.push(Effect::Mark { field, to });
    }

    /// A limit, which holds as long as it isn't reached or, with its first flag (`NFT_LIMIT_F_INV` and the others), once it is.
    fn add_limit(&mut self, flags: u32, of: Bound) {
        let holds_below = flags & 1 == 0;
        self.rule.conditions.push(Condition::Context(Context::Limit { holds_below, of }));
    }

    /// Limits of each element of a set: each holds as a limit without a set does, and all of them as long as the set has room
    /// (`nft_dynset_eval` in net/netfilter/nft_dynset.c).
    fn add_meter(&mut self, dynset: Dynset<'a>) -> Result<(), Malformed> {
        /// `NFT_DYNSET_OP_DELETE`
        const DELETE: u32 = 2;
        let limits = Expression::each(dynset.expression, dynset.expressions).collect::<Result<Vec<_>, _>>()?;
        let is_understood = |limit: &Expression<'_>| {
            use Expression::{Connlimit, Counter, Limit, Quota};
            matches!(limit, Limit(_) | Quota(_) | Connlimit(_) | Counter(_))
        };
        let flags = dynset.flags.unwrap_or_default();
        // The set may have limits of its own, where none are here.
        if dynset.operation == DELETE || flags != 0 || limits.is_empty() || !limits.iter().all(is_understood) {
            self.apply_other(b"dynset");
            return Ok(());
        }
        self.add_limit(0, Bound::Meter(Name::from(dynset.set.0)));
        for limit in limits {
            if !matches!(limit, Expression::Counter(_)) {
                self.apply(limit)?;
            }
        }
        Ok(())
    }

    fn set_redirect(&mut self, Redirect { first, last, flags }: Redirect) {
        // Flags beside that of the ports (random, persistent) don't change which port it may be.
        if first.is_some() && flags.unwrap_or_default() & NF_NAT_RANGE_PROTO_SPECIFIED == 0 {
            return self.apply_other(b"redir");
        }
        let is_single = last.is_none_or(|last| Some(last) == first);
        let redirects = |value: &[u8]| {
            let port = value.first_chunk().copied().map(u16::from_be_bytes)?;
            Some(Value::Action(Action::Redirect(Some((port, port)))))
        };
        self.rule.action = match first {
            None => Action::Redirect(None),
            Some(first) if is_single && self.use_mapped(first, "redirect", redirects) => self.action_by_case(),
            // A changing map isn't followed.
            Some(_) => Action::Redirect(self.constant_ports(first, last).or(Some((0, u16::MAX)))),
        };
    }

    fn set_nat(&mut self, nat: expression::Nat) {
        // Packets of the other family go on to the next rule (`nft_nat_inet_eval` in net/netfilter/nft_nat.c).
        let family = Family::ALL.into_iter().find(|&of| nfproto(of) == nat.family as u128);
        if let (None, Some(family)) = (self.family, family) {
            self.add_condition(family_condition(family));
        }
        let kind = if nat.kind == libc::NFT_NAT_DNAT { NatKind::Destination } else { NatKind::Source };
        if self.nat_by_map(nat, kind, family.or(self.family)) {
            return;
        }
        let held = |register| message::address(self.registers.constant(register)?).ok();
        let first = nat.first_address.and_then(held);
        let addresses = first.zip(nat.last_address.map_or(first, held));
        let ports = self.constant_ports(nat.first_port, nat.last_port);
        // An address or a port may come from a map.
        let is_mapped =
            (addresses.is_none() && nat.first_address.is_some()) || (ports.is_none() && nat.first_port.is_some());
        self.rule.action =
            Action::Nat(if is_mapped { Nat::of(kind) } else { Nat { addresses, ports, ..Nat::of(kind) } });
    }

    /// The same with an address, a port or both of a map; false if it isn't that, or isn't understood.
    fn nat_by_map(&mut self, nat: expression::Nat, kind: NatKind, family: Option<Family>) -> bool {
        let is_mapped = |register: &u32| self.registers.get(*register) == Some(&Loaded::Mapped);
        let is_single = |first: Option<u32>, last: Option<u32>| last.is_none() || last == first;
        let mapped = [nat.first_address, nat.first_port].into_iter().flatten().find(is_mapped);
        let (Some(mapped), Some(family)) = (mapped, family) else {
            return false;
        };
        if !is_single(nat.first_address, nat.last_address) || !is_single(nat.first_port, nat.last_port) {
            return false;
        }
        let constant = |register: Option<u32>| self.registers.constant(register?).map(<[u8]>::to_vec);
        let (address, port) = (constant(nat.first_address), constant(nat.first_port));
        // The map's value lies from its register on.
        let held = |constant: &Option<Vec<u8>>, register: Option<u32>, size: usize, value: &[u8]| {
            let at = 4 * slot(register?).saturating_sub(slot(mapped)) as usize;
            constant.clone().or_else(|| Some(value.get(at..at + size)?.to_vec()))
        };
        let translates = |value: &[u8]| {
            let address = held(&address, nat.first_address, Field::Destination(family).bytes(), value);
            let port = held(&port, nat.first_port, 2, value);
            if (address.is_none() && nat.first_address.is_some()) || (port.is_none() && nat.first_port.is_some()) {
                return None;
            }
            let address = address.map(|bytes| message::address(&bytes)).transpose().ok()?;
            let port = port.and_then(|bytes| bytes.first_chunk().copied()).map(u16::from_be_bytes);
            let (addresses, ports) = (address.map(|one| (one, one)), port.map(|one| (one, one)));
            Some(Value::Action(Action::Nat(Nat { addresses, ports, ..Nat::of(kind) })))
        };
        let is_used = self.use_mapped(mapped, "nat", translates);
        if is_used {
            self.rule.action = self.action_by_case();
        }
        is_used
    }

    /// The action of the map that the rule asks.
    fn action_by_case(&self) -> Action {
        Action::ByCase(self.rule.lookup.as_ref().map(|lookup| lookup.set.clone()).unwrap_or_default())
    }

    /// The ports in these registers, if they are constants of the rule; without a last one, that is the first.
    fn constant_ports(&self, first: Option<u32>, last: Option<u32>) -> Option<(u16, u16)> {
        let port = |register| {
            let bytes = self.registers.constant(register)?;
            bytes.first_chunk().copied().map(u16::from_be_bytes)
        };
        port(first?).zip(port(last.or(first)?))
    }

    fn apply_other(&mut self, name: &[u8]) {
        // It may load something, into any register.
        self.registers.clear();
        self.rule.needs_tracking |= matches!(name, b"ct" | b"connlimit" | b"synproxy" | b"flow_offload");
        let label = Label::Expressions(vec![Name::from(name)]);
        match name {
            b"masq" => self.rule.action = Action::Nat(Nat::of(NatKind::Masquerade)),
            b"notrack" => self.rule.effects.push(Effect::Untrack),
            b"log" | b"last" | b"dup" | b"meta" | b"ct" | b"flow_offload" => {
                self.rule.effects.push(Effect::Other(label));
            }
            // It writes into the packet, perhaps into the destination.
            b"payload" | b"exthdr" => self.changes = Some(label),
            // These only look at the packet, or load something.
            b"bitwise" | b"byteorder" | b"cmp" | b"connlimit" | b"dynset" | b"fib" | b"hash" | b"immediate"
            | b"inner" | b"limit" | b"lookup" | b"match" | b"numgen" | b"osf" | b"quota" | b"range" | b"rt"
            | b"socket" | b"tunnel" | b"xfrm" => self.rule.conditions.push(Condition::NotUnderstood(label)),
            // queue, synproxy and fwd take the packet.
            _ => self.rule.action = Action::NotUnderstood(label),
        }
    }
}

/// Returns true if so many numbers from the first one on are among these elements.
fn has_all(keys: &[Key], first: u32, count: u32) -> bool {
    let number = |bytes: &[u8]| host_number(bytes).map(u128::from);
    let all = keys.iter().map(|key| Some((number(&key.first)?, number(&key.last)?)));
    let all: Vec<_> = all.flatten().collect();
    let wanted = (first.into(), u128::from(first) + u128::from(count).saturating_sub(1));
    Intervals::new(all).includes(&Intervals::new([wanted]))
}

fn loaded_by(expression: &str) -> Loaded {
    Loaded::Other(vec![Name::from(expression)])
}

/// The part of routing that `fib` loads: `fib daddr type`, `fib daddr . iif type`, or `fib saddr . iif oif`.
fn loaded_by_routing(fib: expression::Fib) -> Loaded {
    // `NFTA_FIB_F_*`: by the source or the destination, the mark, the device of either way; and whether there is one.
    const SOURCE: u32 = 1;
    const DESTINATION: u32 = 2;
    const MARK: u32 = 4;
    const ARRIVING: u32 = 8;
    const LEAVING: u32 = 16;
    const SOURCE_BY_DEVICE: u32 = SOURCE | ARRIVING;
    const PRESENT: u32 = 32;
    // Marks are 0 until a rule sets them, and then routing is not followed.
    match (fib.result, fib.flags & !MARK & !PRESENT) {
        // `NFT_FIB_RESULT_OIF` and `NFT_FIB_RESULT_ADDRTYPE`
        (1, SOURCE) => Loaded::ReversePath { is_loose: true },
        (1, SOURCE_BY_DEVICE) => Loaded::ReversePath { is_loose: false },
        (3, flags) => {
            let is_source = match flags & !ARRIVING & !LEAVING {
                SOURCE => true,
                DESTINATION => false,
                _ => return loaded_by("fib"),
            };
            let of_device = match flags & (ARRIVING | LEAVING) {
                0 => None,
                ARRIVING => Some(Field::InInterface),
                LEAVING => Some(Field::OutInterface),
                _ => return loaded_by("fib"),
            };
            Loaded::AddressType { is_source, of_device }
        }
        _ => loaded_by("fib"),
    }
}

fn is_mark(field: Field) -> bool {
    matches!(field, Field::Mark | Field::ConnectionMark)
}

/// The numbers for which a comparison holds, apart from negation; none if it isn't understood.
fn compared_values(part: Part, compare: Compare<'_>) -> Option<Values> {
    let (field, (first, last)) = (part.field, part.interval(compare.value.0)?);
    let numbers = match compare.operation {
        libc::NFT_CMP_EQ | libc::NFT_CMP_NEQ => Some((first, last)),
        // The kernel compares the bytes in network order.
        _ if part.host_order => return None,
        libc::NFT_CMP_LT => first.checked_sub(1).map(|last| (0, last)),
        libc::NFT_CMP_LTE => Some((0, last)),
        libc::NFT_CMP_GT => last.checked_add(1).map(|first| (first, field.largest())),
        libc::NFT_CMP_GTE => Some((first, field.largest())),
        _ => return None,
    };
    let numbers = numbers.filter(|(first, _)| *first <= field.largest());
    Some(numbers.map_or(Values::Listed(Vec::new()), Values::Interval))
}

/// The effect of writing these bytes of a packet, of which the bits under the mask stay: nothing to its way where that
/// is IP's class of traffic or IPv4's time to live. None: it may go elsewhere. nft writes two bytes, also where one
/// field is smaller.
fn rewritten(family: Option<Family>, (base, offset, length): Place, kept: &[u8]) -> Option<Effect> {
    if base != libc::NFT_PAYLOAD_NETWORK_HEADER {
        return None;
    }
    // The bits that may change of each of the first bytes of `struct iphdr` and `struct ipv6hdr`.
    let free: &[u8] = match family {
        Some(Family::V4) => &[0, 0xff, 0, 0, 0, 0, 0, 0, 0xff],
        Some(Family::V6) => &[0x0f, 0xf0, 0, 0, 0, 0, 0, 0xff],
        // The bits that both families share.
        None => &[0, 0xf0],
    };
    let mut changes_hops = false;
    for index in 0..length {
        let place = offset.saturating_add(index);
        let changed = !kept.get(index as usize).copied().unwrap_or(0);
        if changed & !free.get(place as usize).copied().unwrap_or(0) != 0 {
            return None;
        }
        changes_hops |= family == Some(Family::V6) && place == IPV6_HOPS.1 && changed != 0;
    }
    Some(if changes_hops {
        Effect::Mark { field: Field::HopLimit, to: None }
    } else {
        Effect::Other(Label::expression("payload"))
    })
}

#[cfg(test)]
mod tests {
    use ruleset::LOOPBACK_INDEX;
    use ruleset::flags::CtState;
    use ruleset::nftables::NftRule;
    use ruleset::testing;
    use ruleset::xtables::IptablesRule;

    use super::*;
    use crate::nf_tables::expression::Data;
    use crate::tests::recorded;

    /// The sets of the tables that the recorded rules are from.
    fn sets() -> Vec<Set> {
        let [a, b] = [0xc000_0201u128, 0xc000_0202];
        // A map of these numbers of so many bits.
        let map = |name: &str, bits: u32, values: &[(u128, Mapped)]| {
            let bytes = |number: u128| number.to_be_bytes()[16 - bits as usize / 8..].to_vec();
            let key = |(number, value): &(u128, Mapped)| Key {
                first: bytes(*number),
                last: bytes(*number),
                value: Some(value.clone()),
            };
            Set { bits, elements: None, keys: Some(values.iter().map(key).collect()), ..testing::ports(name, &[]) }
        };
        let other = || Name::from("other");
        let (accept, goto) = (Mapped::Verdict(Action::Accept), Mapped::Verdict(Action::Goto(other())));
        let of_fields = |name: &str, bits, keys: &[u128]| Set {
            bits,
            ..testing::ports(name, &keys.iter().map(|&key| (key, key)).collect::<Vec<_>>())
        };
        let in_host_order = |name: &str, numbers: &[u32]| {
            of_fields(name, 32, &numbers.iter().map(|number| number.to_le().swap_bytes().into()).collect::<Vec<_>>())
        };
        let square = [a << 32 | 80 << 16, a << 32 | 443 << 16];
        let of_square = |name: &str, second: Action| {
            map(name, 64, &[(square[0], accept.clone()), (square[1], Mapped::Verdict(second))])
        };
        vec![
            testing::ports("ports", &[(80, 80), (8000, 8100)]),
            map("m", 16, &[(80, accept.clone()), (443, Mapped::Verdict(Action::Jump(other())))]),
            map("services", 96, &[(a << 64 | 6 << 56 | 80 << 16, goto)]),
            map("none", 96, &[]),
            of_fields("pairs", 64, &[a << 32 | 80 << 16, b << 32 | 443 << 16]),
            of_square("same", Action::Accept),
            of_square("differ", Action::Drop),
            of_fields("square", 64, &square),
            map("to", 16, &[(80, Mapped::Bytes(8080u16.to_be_bytes().to_vec()))]),
            in_host_order("types", &[2, 3]),
            in_host_order("states", &[CtState::New.bit(), CtState::Established.bit()]),
            in_host_order("links", &[LOOPBACK_INDEX]),
            in_host_order("users", &[7, 9]),
        ]
    }

    /// A rule with an effect that doesn't matter is written as an unknown one.
    fn unless_known(rule: &Rule) -> &'static str {
        let is_unknown = |condition: &Condition| matches!(condition, Condition::NotUnderstood(_));
        let is_open = matches!(rule.action, Action::NotUnderstood(_)) || rule.conditions.iter().any(is_unknown);
        if is_open { " (not known)" } else { "" }
    }

    #[test]
    fn rules_are_read_as_the_kernel_dumps_them() {
        let mut wrong = Vec::new();
        let numbered = Numbered::default();
        let decoder = Decoder::new(&numbered);
        let recorded_rules = include_str!("../recorded/rules.txt").lines().filter(|line| !line.starts_with('#'));
        for line in recorded_rules {
            let [family, written, wanted, hex] = line.split(" ; ").collect::<Vec<_>>().try_into().unwrap();
            let family = match family {
                "ip" => TableFamily::Ip(Family::V4),
                "ip6" => TableFamily::Ip(Family::V6),
                "arp" => TableFamily::Arp,
                _ => TableFamily::Inet,
            };
            let message = recorded(hex);
            // The header of nfnetlink comes before the attributes.
            let rule = decoder.read(Attributes(&message[4..]), family, &sets()).unwrap();
            assert!(rule.handle > 0, "{written}");
            let shown = match written.strip_prefix("-A ") {
                Some(_) => format!("-A OUTPUT {}", IptablesRule(&rule)),
                None => NftRule(&rule).to_string(),
            };
            let tracking = if rule.needs_tracking { " (tracking)" } else { "" };
            let shown = shown + tracking + unless_known(&rule);
            if shown != wanted {
                wrong.push(format!("{written}\n    wanted {wanted}\n    read   {shown}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// A message may name any register, also one that the kernel doesn't have.
    #[test]
    fn no_register_overflows() {
        let numbered = Numbered::default();
        let decoder = Decoder::new(&numbered);
        let mut reader = Reader::new(TableFamily::Inet, &[], &decoder);
        for register in [u32::MAX, u32::MAX - 1, 0, 1, 8] {
            let (value, key) = (Data(&[1; 64]), libc::NFT_META_IIFNAME);
            let operation = libc::NFT_CMP_EQ;
            for expression in [
                Expression::Value(expression::Value { register, value }),
                Expression::Meta(expression::Meta { key, register }),
                Expression::Compare(Compare { operation, register, value }),
            ] {
                reader.read_expression(expression).unwrap();
            }
        }
        assert_eq!(reader.finish().conditions.len(), 5);
    }

    /// Writers of rules may hand the kernel other expressions than nft and iptables do.
    #[test]
    fn what_nft_does_not_write_is_read_too() {
        let numbered = Numbered::default();
        let decoder = Decoder::new(&numbered);
        let [mask, xor, five] = [0xff, 3, 5].map(u32::to_ne_bytes);
        let mark = || Expression::Meta(expression::Meta { key: libc::NFT_META_MARK, register: 1 });
        let is_five = || Expression::Compare(Compare { operation: libc::NFT_CMP_EQ, register: 1, value: Data(&five) });
        let turned =
            |operation| Expression::ByteOrder(expression::ByteOrder { from: 1, to: 1, operation, length: 4, size: 4 });
        let port = || Expression::Value(expression::Value { register: 1, value: Data(&[0, 80]) });
        let redirected = |flags| Expression::Redirect(Redirect { first: Some(1), last: None, flags });
        let masked = Expression::Mask(Mask { from: 1, to: 1, length: 4, mask: Data(&mask), xor: Data(&xor) });
        let base = libc::NFT_PAYLOAD_NETWORK_HEADER;
        let bytes_at = |offset| Expression::Payload(Payload { register: 1, base, offset, length: 2 });
        let kept =
            || Expression::Mask(Mask { from: 1, to: 1, length: 2, mask: Data(&[0xff, 0x0f]), xor: Data(&[0, 0]) });
        let written = || Expression::SetPayload(expression::SetPayload { register: 1, base, offset: 0, length: 2 });
        for (expressions, words) in [
            // nft writes the number that this comes to.
            (vec![mark(), masked, is_five()], "meta mark & 0x000000ff == 0x00000006"),
            (vec![mark(), turned(libc::NFT_BYTEORDER_NTOH), is_five()], "[byteorder] [cmp] (not known)"),
            (vec![port(), redirected(Some(NF_NAT_RANGE_PROTO_SPECIFIED))], "redirect to :80"),
            // As kernels take it that look at the flag alone.
            (vec![port(), redirected(None)], "[redir] (not known)"),
            // Bits are as they were only where they are written to where they come from.
            (vec![bytes_at(0), kept(), written()], "[payload]"),
            (vec![bytes_at(4), kept(), written()], "[payload] (not known)"),
        ] {
            let mut reader = Reader::new(TableFamily::Inet, &[], &decoder);
            for expression in expressions {
                reader.read_expression(expression).unwrap();
            }
            let rule = reader.finish();
            assert_eq!(NftRule(&rule).to_string().trim_end().to_owned() + unless_known(&rule), words);
        }
    }

    /// The kernel compares all 16 bytes, and no device's name has more after its NUL.
    #[test]
    fn a_name_ends_at_its_nul() {
        let whole = |name: &[u8; 16]| Part::whole(Field::InInterface).interval(name);
        assert_eq!(whole(b"lo\0\0\0\0\0\0\0\0\0\0\0\0\0\0"), Some((interface(b"lo"), interface(b"lo"))));
        assert_eq!(whole(b"lo\0\0\0\0\0\0\0\0\0\0\0\0\0x"), None);
    }
}
