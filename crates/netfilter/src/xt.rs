//! The structures of xt extensions as bytes, both ways: in rules that pass nft_compat, and in legacy tables.
//!
//! Each layout is that of the kernel's header, padded to 8 bytes (`XT_ALIGN`), for nft_compat refuses any other size.
//! Numbers are in the machine's byte order, except where a comment says otherwise.

use std::ffi::CStr;
use std::net::IpAddr;

use ruleset::flags::{CtState, Tracked, tracking_condition};
use ruleset::xtables::MULTIPORT_REFERENCES;
use ruleset::{
    Action, Bits, Bound, Condition, Context, Effect, Family, Field, Label, Name, Nat, NatKind, Rejection, Rule, Values,
};

use crate::netlink::message::{Malformed, address, put, string, u8_at, u16_at, u32_at};

/// An xt match or target that our rules use, as the kernel finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extension {
    /// `struct xt_multiport_v1`, linux/netfilter/xt_multiport.h
    Multiport,
    /// `struct xt_owner_match_info`, linux/netfilter/xt_owner.h
    Owner,
    /// `struct xt_tcp`, linux/netfilter/xt_tcpudp.h
    Tcp,
    /// `struct nf_nat_ipv4_multi_range_compat` (IPv4) and `struct nf_nat_range` (IPv6), linux/netfilter/nf_nat.h
    Redirect,
    /// `struct xt_comment_info`, linux/netfilter/xt_comment.h. nft mode keeps comments with the rule, without it.
    Comment,
}

impl Extension {
    /// The extensions that a rule uses, without that of its comment, which legacy mode uses too.
    pub fn of(rule: &Rule) -> impl Iterator<Item = Self> {
        let target = matches!(rule.action, Action::Redirect(_)).then_some(Self::Redirect);
        rule.conditions.iter().filter_map(Self::of_match).chain(target)
    }

    /// The one that a condition is written with, if it takes one.
    pub(crate) fn of_match(condition: &Condition) -> Option<Self> {
        match condition {
            Condition::In { field: Field::SourcePort | Field::DestinationPort, values, .. } => Some(match values {
                Values::Listed(_) => Self::Multiport,
                _ => Self::Tcp,
            }),
            Condition::In { field: Field::Uid | Field::Gid, .. } => Some(Self::Owner),
            _ => None,
        }
    }

    /// Its name, its revision, the module it is in, and the option that builds that.
    fn facts(self) -> (&'static CStr, u8, &'static str, &'static str) {
        match self {
            Self::Multiport => (c"multiport", 1, "xt_multiport", "CONFIG_NETFILTER_XT_MATCH_MULTIPORT"),
            Self::Owner => (c"owner", 1, "xt_owner", "CONFIG_NETFILTER_XT_MATCH_OWNER"),
            Self::Tcp => (c"tcp", 0, "xt_tcpudp", "CONFIG_NETFILTER_XTABLES"),
            Self::Redirect => (c"REDIRECT", 0, "xt_REDIRECT", "CONFIG_NETFILTER_XT_TARGET_REDIRECT"),
            Self::Comment => (c"comment", 0, "xt_comment", "CONFIG_NETFILTER_XT_MATCH_COMMENT"),
        }
    }

    pub fn name(self) -> &'static CStr {
        self.facts().0
    }

    /// The revision whose structure this writes.
    pub fn revision(self) -> u8 {
        self.facts().1
    }

    pub fn is_target(self) -> bool {
        self == Self::Redirect
    }

    /// Words for it, the module it is in, and the option that builds that.
    pub fn described(self) -> (String, &'static str, &'static str) {
        let (name, _, module, option) = self.facts();
        let name = name.to_string_lossy();
        let kind = if self.is_target() { "target" } else { "match" };
        (format!("the xt {name} {kind}"), module, option)
    }
}

/// A match or a target of a rule, with its own structure.
#[derive(Clone, Copy)]
pub(crate) struct XtEntry<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) revision: u32,
    pub(crate) info: &'a [u8],
}

/// Adds a match's conditions to its rule. A match that isn't understood becomes such a condition, with its name.
pub(crate) fn read_match(rule: &mut Rule, entry: XtEntry<'_>, family: Family) -> Result<(), Malformed> {
    let XtEntry { name, revision, info } = entry;
    rule.needs_tracking |= needs_tracking(name);
    let conditions = match (name, revision) {
        (b"comment", 0) => {
            rule.comment = Some(Name::from(string(info)?));
            return Ok(());
        }
        (b"multiport", 1) => read_multiport(info)?,
        (b"owner", 1) => read_owner(info)?,
        (b"tcp", 0) => read_tcp(info)?,
        (b"conntrack", 3) => read_conntrack(info)?,
        (b"icmp6", 0) => Some(vec![read_icmpv6(info)?]),
        (b"hl", 0) => read_hop_limit(info)?,
        (b"addrtype", 0 | 1) => read_address_type(revision, info)?,
        (b"rpfilter", 0) => Some(vec![read_reverse_path(info)?]),
        (b"iprange", 1) => Some(read_ranges(info, family)?),
        (b"limit" | b"hashlimit" | b"quota" | b"connlimit" | b"recent", _) => {
            Some(vec![read_limit(name, revision, info)?])
        }
        // struct xt_pkttype_info: the type, and whether it is inverted.
        (b"pkttype", 0) => {
            let (kind, negated) = (u128::from(u32_at(info, 0)?), u32_at(info, 4)? != 0);
            Some(vec![Condition::compare(Field::PacketType, kind, negated)])
        }
        (b"statistic", 0) => read_statistic(info)?,
        (b"mark", 1) => Some(vec![read_mark(Field::Mark, info)?]),
        (b"connmark", 1) => Some(vec![read_mark(Field::ConnectionMark, info)?]),
        // Each is about one of IPv6's extension headers, and doesn't match a packet without it, negated or not
        // (`rt_mt6` in net/ipv6/netfilter/ip6t_rt.c, `frag_mt6`, `hbh_mt6`, `mh_mt6`). TCP's have none.
        (b"rt" | b"frag" | b"hbh" | b"dst" | b"mh" | b"srh", _) => {
            Some(vec![Condition::Constant { of: extension(name), holds: false }])
        }
        _ => None,
    };
    let unknown = || vec![Condition::NotUnderstood(extension(name))];
    rule.conditions.extend(conditions.unwrap_or_else(unknown));
    Ok(())
}

/// `struct xt_statistic_info`: the mode, a flag that inverts it, and the probability, of which 2^31 is certainty. Only a
/// match that always holds, or never, is understood.
fn read_statistic(info: &[u8]) -> Result<Option<Vec<Condition>>, Malformed> {
    const RANDOM: u16 = 0;
    let (mode, inverted, probability) = (u16_at(info, 0)?, u16_at(info, 2)? & 1 != 0, u32_at(info, 4)?);
    let holds = match (mode, probability) {
        (RANDOM, 0) => inverted,
        (RANDOM, 0x8000_0000) => !inverted,
        _ => return Ok(None),
    };
    Ok(Some(vec![Condition::Constant { of: extension(b"statistic"), holds }]))
}

/// Returns true if a match or a target of this name has connections tracked: those that call `nf_ct_netns_get` where
/// they are checked (net/netfilter/xt_*.c), but for translations.
fn needs_tracking(name: &[u8]) -> bool {
    let names =
        "cluster connbytes connlabel connlimit connmark conntrack helper state CONNMARK CONNSECMARK CT SYNPROXY";
    names.split(' ').any(|known| known.as_bytes() == name)
}

/// Reads a target of a rule, except for the standard one, whose verdicts each kind of table keeps in its own way. A target's
/// effect is added to the rule; evaluation then goes on with the next rule.
pub(crate) fn read_target(rule: &mut Rule, entry: XtEntry<'_>, family: Family) -> Result<Action, Malformed> {
    let XtEntry { name, revision, info } = entry;
    rule.needs_tracking |= needs_tracking(name);
    let unknown = || Action::NotUnderstood(extension(name));
    let effect = match (name, revision) {
        (b"NOTRACK", _) => Effect::Untrack,
        // struct xt_ct_target_info begins with its flags; XT_CT_NOTRACK is the first.
        (b"CT", _) if u16_at(info, 0)? & 1 != 0 => Effect::Untrack,
        // XT_CT_ZONE_MARK takes the zone from the mark. A connection's other packets may be in another one, where nothing is
        // known of the translation.
        (b"CT", _) if u16_at(info, 0)? & 16 != 0 || u16_at(info, 2)? != 0 => {
            return Ok(Action::NotUnderstood(extension(name)));
        }
        (b"MARK", 2) => mark(info)?,
        (b"CONNMARK", 1 | 2) => connection_mark(revision, info)?,
        (b"HL", 0) => hop_limit(info)?,
        // After these, evaluation goes on, and they don't change where a connection goes.
        (
            b"CT" | b"LOG" | b"NFLOG" | b"ULOG" | b"TRACE" | b"CHECKSUM" | b"TCPMSS" | b"TOS" | b"DSCP" | b"CLASSIFY"
            | b"AUDIT" | b"SECMARK" | b"CONNSECMARK" | b"TTL" | b"TEE",
            _,
        ) => Effect::Other(extension(name)),
        (b"REDIRECT", 0) => return Ok(Action::Redirect(NatRange::read(entry, family)?.ports)),
        (b"DNAT", 0..=2) => return Ok(Action::Nat(NatRange::read(entry, family)?.translation(NatKind::Destination))),
        (b"SNAT", 0 | 1) => return Ok(Action::Nat(NatRange::read(entry, family)?.translation(NatKind::Source))),
        (b"MASQUERADE", 0) => {
            let range = NatRange::read(entry, family)?;
            return Ok(Action::Nat(Nat { addresses: None, ..range.translation(NatKind::Masquerade) }));
        }
        (b"DNAT", _) => return Ok(Action::Nat(Nat::of(NatKind::Destination))),
        (b"SNAT", _) => return Ok(Action::Nat(Nat::of(NatKind::Source))),
        (b"NETMAP", _) => return Ok(Action::Nat(Nat::of(NatKind::Netmap))),
        (b"MASQUERADE", _) => return Ok(Action::Nat(Nat::of(NatKind::Masquerade))),
        (b"REJECT", _) => return Ok(rejection(info, family)?.map_or_else(unknown, Action::Reject)),
        _ => return Ok(unknown()),
    };
    rule.effects.push(effect);
    Ok(Action::Continue)
}

/// `struct ipt_reject_info` and `struct ip6t_reject_info`: with what (`enum ipt_reject_with`, `enum ip6t_reject_with`).
fn rejection(info: &[u8], family: Family) -> Result<Option<Rejection>, Malformed> {
    let code = match (family, u32_at(info, 0)?) {
        (Family::V4, 7) | (Family::V6, 6) => return Ok(Some(Rejection::Reset)),
        (Family::V4, with @ 0..=3) => with as u8,
        (Family::V4, 5) => 9,
        (Family::V4, 6) => 10,
        (Family::V4, 8) => 13,
        (Family::V6, with @ 0..=4) => with as u8,
        (Family::V6, 7) => 5,
        (Family::V6, 8) => 6,
        _ => return Ok(None),
    };
    Ok(Some(Rejection::Icmp(family, code)))
}

fn bits(field: Field, mask: u32, xor: u32) -> Bits {
    let (mask, xor) = (mask.into(), xor.into());
    Bits { field, mask, xor }
}

/// `struct xt_mark_tginfo2`: the mark, which is XORed after these bits are cleared, and the bits.
fn mark(info: &[u8]) -> Result<Effect, Malformed> {
    let (mark, cleared) = (u32_at(info, 0)?, u32_at(info, 4)?);
    Ok(Effect::Mark { field: Field::Mark, to: Some(bits(Field::Mark, !cleared, mark)) })
}

/// `struct xt_connmark_tginfo1`, and the one after it, which may also shift: the connection's mark, its mask, the
/// packet's mask, and what is done.
fn connection_mark(revision: u32, info: &[u8]) -> Result<Effect, Malformed> {
    let (mark, mask, packets) = (u32_at(info, 0)?, u32_at(info, 4)?, u32_at(info, 8)?);
    let (shift, mode) = match revision {
        1 => (0, u8_at(info, 12)?),
        _ => (u8_at(info, 13)?, u8_at(info, 14)?),
    };
    // `XT_CONNMARK_SET`, `XT_CONNMARK_SAVE` and `XT_CONNMARK_RESTORE`, by `connmark_tg_shift` in
    // net/netfilter/xt_connmark.c.
    let (own, packet) = (Field::ConnectionMark, Field::Mark);
    let (field, to) = match mode {
        0 => (own, Some(bits(own, !mask, mark))),
        1 => (own, (mask == u32::MAX).then(|| bits(packet, packets, 0))),
        _ => (packet, (packets == u32::MAX).then(|| bits(own, mask, 0))),
    };
    Ok(Effect::Mark { field, to: to.filter(|_| shift == 0) })
}

fn extension(name: &[u8]) -> Label {
    Label::Extension(Name::from(name))
}

/// By `XT_MULTIPORT_SOURCE` and `XT_MULTIPORT_DESTINATION`; the next is either of them.
const MULTIPORT_SIDES: [Field; 2] = [Field::SourcePort, Field::DestinationPort];
/// Offsets in `struct xt_multiport_v1`: flags, count, 15 ports, for each whether a range starts there, invert.
const MULTIPORT_PORTS: usize = 2;
const MULTIPORT_RANGE_FLAGS: usize = 32;
const MULTIPORT_INVERT: usize = 47;

/// The structure of a match on a field by this extension; none if it can't say that.
pub(crate) fn write_match(extension: Extension, field: Field, values: &Values, negated: bool) -> Option<Vec<u8>> {
    match (extension, values) {
        (Extension::Multiport, Values::Listed(list)) => multiport(field, list, negated),
        (Extension::Tcp, &Values::Interval(ports)) => tcp(field, ports, negated),
        (Extension::Owner, &Values::Interval(ids)) => owner(field, ids, negated),
        _ => None,
    }
}

fn multiport(field: Field, list: &[(u128, u128)], negated: bool) -> Option<Vec<u8>> {
    let side = MULTIPORT_SIDES.iter().position(|side| *side == field)? as u8;
    let mut references = Vec::with_capacity(MULTIPORT_REFERENCES);
    for &(first, last) in list {
        references.push((first, first != last));
        if first != last {
            references.push((last, false));
        }
    }
    // No port at all is no match of multiport's.
    if !(1..=MULTIPORT_REFERENCES).contains(&references.len()) {
        return None;
    }
    let mut info = vec![0; 48];
    put(&mut info, 0, &[side, references.len() as u8]);
    put(&mut info, MULTIPORT_INVERT, &[negated.into()]);
    for (slot, (port, begins_range)) in references.into_iter().enumerate() {
        let port = u16::try_from(port).ok()?;
        put(&mut info, MULTIPORT_PORTS + 2 * slot, &port.to_ne_bytes());
        put(&mut info, MULTIPORT_RANGE_FLAGS + slot, &[begins_range.into()]);
    }
    Some(info)
}

fn read_multiport(info: &[u8]) -> Result<Option<Vec<Condition>>, Malformed> {
    let Some(&field) = MULTIPORT_SIDES.get(usize::from(u8_at(info, 0)?)) else {
        return Ok(None);
    };
    let count = usize::from(u8_at(info, 1)?).min(MULTIPORT_REFERENCES);
    let port = |slot| u16_at(info, MULTIPORT_PORTS + 2 * slot).map(u128::from);
    let mut ranges = Vec::new();
    let mut slot = 0;
    while slot < count {
        let last = slot + usize::from(u8_at(info, MULTIPORT_RANGE_FLAGS + slot)? != 0);
        if last >= count {
            return Err(Malformed);
        }
        ranges.push((port(slot)?, port(last)?));
        slot = last + 1;
    }
    let negated = u8_at(info, MULTIPORT_INVERT)? != 0;
    Ok(Some(vec![Condition::compare(field, Values::Listed(ranges), negated)]))
}

/// A field that a match compares with an interval: its bit in the structure's flags, the field, and the offset of its lowest
/// number in the structure, which its highest follows.
type Compared = (u8, Field, usize);

/// In `struct xt_owner_match_info`, by `XT_OWNER_UID` and `XT_OWNER_GID`. After them: which of them count, which are
/// inverted.
const OWNERS: [Compared; 2] = [(1, Field::Uid, 0), (2, Field::Gid, 8)];
const OWNER_MATCH: usize = 16;

fn owner(field: Field, (first, last): (u128, u128), negated: bool) -> Option<Vec<u8>> {
    let (bit, _, offset) = OWNERS.into_iter().find(|(_, compared, _)| *compared == field)?;
    let mut info = vec![0; 24];
    put(&mut info, offset, &u32::try_from(first).ok()?.to_ne_bytes());
    put(&mut info, offset + 4, &u32::try_from(last).ok()?.to_ne_bytes());
    put(&mut info, OWNER_MATCH, &[bit, if negated { bit } else { 0 }]);
    Some(info)
}

fn read_owner(info: &[u8]) -> Result<Option<Vec<Condition>>, Malformed> {
    let (mut kinds, inverted) = (u8_at(info, OWNER_MATCH)?, u8_at(info, OWNER_MATCH + 1)?);
    let mut conditions = Vec::new();
    for (bit, field, offset) in OWNERS {
        let ids = (u32_at(info, offset)?.into(), u32_at(info, offset + 4)?.into());
        if kinds & bit != 0 {
            conditions.push(Condition::compare(field, ids, inverted & bit != 0));
            kinds &= !bit;
        }
    }
    // Others ask whether there is a socket, or for supplementary groups.
    Ok((kinds == 0).then_some(conditions))
}

/// In `struct xt_tcp`. After them: option, flags' mask, flags, what is inverted.
const TCP_PORTS: [Compared; 2] = [(1, Field::SourcePort, 0), (2, Field::DestinationPort, 4)];
const TCP_OPTION: usize = 8;
const TCP_INVERT: usize = 11;
/// The ports of a match without a condition on them.
const ANY_PORT: (u16, u16) = (0, u16::MAX);

fn tcp(field: Field, (first, last): (u128, u128), negated: bool) -> Option<Vec<u8>> {
    let (bit, ..) = TCP_PORTS.into_iter().find(|(_, compared, _)| *compared == field)?;
    let ports = (u16::try_from(first).ok()?, u16::try_from(last).ok()?);
    if ports == ANY_PORT && !negated {
        return None;
    }
    let mut info = vec![0; 16];
    for (_, compared, offset) in TCP_PORTS {
        let (first, last) = if compared == field { ports } else { ANY_PORT };
        put(&mut info, offset, &first.to_ne_bytes());
        put(&mut info, offset + 2, &last.to_ne_bytes());
    }
    put(&mut info, TCP_INVERT, &[if negated { bit } else { 0 }]);
    Some(info)
}

fn read_tcp(info: &[u8]) -> Result<Option<Vec<Condition>>, Malformed> {
    let inverted = u8_at(info, TCP_INVERT)?;
    if u8_at(info, TCP_OPTION)? != 0 {
        return Ok(None);
    }
    let mut conditions = Vec::new();
    for (bit, field, offset) in TCP_PORTS {
        let ports = (u16_at(info, offset)?, u16_at(info, offset + 2)?);
        let negated = inverted & bit != 0;
        if ports != ANY_PORT || negated {
            conditions.push(Condition::compare(field, (ports.0.into(), ports.1.into()), negated));
        }
    }
    let (mask, flags) = (u8_at(info, TCP_OPTION + 1)?, u8_at(info, TCP_OPTION + 2)?);
    if mask != 0 {
        let (field, mask, number) = (Field::TcpFlags, mask.into(), flags.into());
        conditions.push(Condition::Masked { field, mask, number, negated: inverted & 4 != 0 });
    }
    Ok(Some(conditions))
}

/// `struct ip6t_icmp`: the type, the first and the last code, and whether it is inverted. Type 255 is any.
fn read_icmpv6(info: &[u8]) -> Result<Condition, Malformed> {
    const ANY: u8 = 255;
    let (kind, first_code, negated) = (u8_at(info, 0)?, u8_at(info, 1)?, u8_at(info, 3)? & 1 != 0);
    Ok(match kind {
        ANY => Condition::Constant { of: extension(b"icmp6"), holds: !negated },
        // Neighbour discovery, of which alone this is asked, has the code 0.
        _ if first_code > 0 => Condition::Constant { of: extension(b"icmp6"), holds: negated },
        _ => Condition::compare(Field::IcmpType, u128::from(kind), negated),
    })
}

/// `struct ip6t_hl_info`: how the hop limit is compared (`IP6T_HL_EQ` and the others), and with what.
fn read_hop_limit(info: &[u8]) -> Result<Option<Vec<Condition>>, Malformed> {
    let (mode, hops) = (u8_at(info, 0)?, u128::from(u8_at(info, 1)?));
    let values = match (mode, hops) {
        (0 | 1, _) => Values::from(hops),
        (2, 1..) => Values::from((0, hops - 1)),
        (3, 0..255) => Values::from((hops + 1, Field::HopLimit.largest())),
        _ => return Ok(None),
    };
    Ok(Some(vec![Condition::compare(Field::HopLimit, values, mode == 1)]))
}

/// `struct ip6t_HL_info`: what is done to the hop limit (`IP6T_HL_SET` and the others), and by how much.
fn hop_limit(info: &[u8]) -> Result<Effect, Malformed> {
    let (mode, hops) = (u8_at(info, 0)?, u8_at(info, 1)?);
    let field = Field::HopLimit;
    Ok(Effect::Mark { field, to: (mode == 0).then(|| Bits::constant(field, hops.into())) })
}

/// `struct xt_addrtype_info` and the one after it: the types of the source, those of the destination, and what of that is
/// inverted: in the first, each by a number of its own.
fn read_address_type(revision: u32, info: &[u8]) -> Result<Option<Vec<Condition>>, Malformed> {
    let flags = match revision {
        0 => u32::from(u32_at(info, 4)? != 0) + 2 * u32::from(u32_at(info, 8)? != 0),
        _ => u32_at(info, 4)?,
    };
    // Some are limited to a device.
    if flags & !3 != 0 {
        return Ok(None);
    }
    let mut conditions = Vec::new();
    for (is_source, types, bit) in [(true, u16_at(info, 0)?, 1), (false, u16_at(info, 2)?, 2)] {
        if types != 0 {
            let negated = flags & bit != 0;
            conditions.push(Condition::Context(Context::AddressType { is_source, types, negated, is_xt: true }));
        }
    }
    Ok(Some(conditions))
}

/// `struct xt_rpfilter_info`
fn read_reverse_path(info: &[u8]) -> Result<Condition, Malformed> {
    const LOOSE: u8 = 1;
    const INVERTED: u8 = 8;
    let flags = u8_at(info, 0)?;
    Ok(Condition::Context(Context::ReversePath {
        is_loose: flags & LOOSE != 0,
        negated: flags & INVERTED != 0,
        xt_flags: Some(flags),
    }))
}

/// `struct xt_iprange_mtinfo`: the first and the last source, the same of the destination, each as long as IPv6's, and flags
/// (`IPRANGE_SRC` and the others).
fn read_ranges(info: &[u8], family: Family) -> Result<Vec<Condition>, Malformed> {
    let options = u8_at(info, 64)?;
    let mut conditions = Vec::new();
    for (field, first, bit) in [(Field::Source(family), 0, 1), (Field::Destination(family), 32, 2)] {
        if options & bit == 0 {
            continue;
        }
        let held = |place: usize| address(info.get(place..place + field.bytes()).ok_or(Malformed)?);
        let range = (ruleset::address(held(first)?), ruleset::address(held(first + 16)?));
        conditions.push(Condition::compare(field, Values::Listed(vec![range]), options & bit << 4 != 0));
    }
    Ok(conditions)
}

/// A match that counts packets or connections; true if it holds as long as there are few.
fn read_limit(name: &[u8], revision: u32, info: &[u8]) -> Result<Condition, Malformed> {
    // `XT_HASHLIMIT_INVERT`, in `mode` of `struct hashlimit_cfg1` and those after it.
    const ABOVE: u32 = 1 << 4;
    // `XT_RECENT_SET`, which holds for new senders too.
    const SET: u8 = 2;
    let named = Bound::Extension(Name::from(name));
    let (holds_below, of) = match (name, revision) {
        (b"hashlimit", 1) => (u32_at(info, 16)? & ABOVE == 0, named),
        (b"hashlimit", _) => (u32_at(info, 272)? & ABOVE == 0, named),
        (b"quota", _) => (u32_at(info, 0)? & 1 == 0, named),
        (b"connlimit", _) => (u32_at(info, 20)? != 0, Bound::Connections(u32_at(info, 16)?)),
        (b"recent", _) => {
            let (sets, inverted) = (u8_at(info, 8)? & SET != 0, u8_at(info, 9)? != 0);
            if sets {
                return Ok(Condition::Constant { of: extension(name), holds: !inverted });
            }
            (inverted, named)
        }
        _ => (true, Bound::XtRate { period: u32_at(info, 0)?, burst: u32_at(info, 4)? }),
    };
    Ok(Condition::Context(Context::Limit { holds_below, of }))
}

/// `struct xt_mark_mtinfo1`, and `struct xt_connmark_mtinfo1`: the mark, its bits that count, and whether it is
/// inverted.
fn read_mark(field: Field, info: &[u8]) -> Result<Condition, Malformed> {
    let (mark, mask, negated) = (u32_at(info, 0)?, u32_at(info, 4)?, u8_at(info, 8)? != 0);
    Ok(Condition::Masked { field, mask: mask.into(), number: mark.into(), negated })
}

/// `struct xt_conntrack_mtinfo3`: what it compares, what of that is inverted, and the states; the direction is one of
/// those that it inverts or not. Only `--ctstate` and `--ctdir` are understood.
fn read_conntrack(info: &[u8]) -> Result<Option<Vec<Condition>>, Malformed> {
    let (kinds, inverted, states) = (u16_at(info, 146)?, u16_at(info, 148)?, u16_at(info, 150)?);
    // `XT_CONNTRACK_STATE` and `XT_CONNTRACK_DIRECTION`
    const STATE: u16 = 1;
    const DIRECTION: u16 = 1 << 12;
    // The same by another name: `-m state --state`.
    const STATE_ALIAS: u16 = 1 << 13;
    let kinds = kinds & !STATE_ALIAS;
    if kinds == 0 || kinds & !STATE & !DIRECTION != 0 {
        return Ok(None);
    }
    // `XT_CONNTRACK_STATE_SNAT` and the next two; the others' bits are those of [`State`].
    const SNAT: u16 = 1 << 6;
    const DNAT: u16 = 1 << 7;
    const UNTRACKED: u16 = 1 << 8;
    let mut conditions = Vec::new();
    if kinds & STATE != 0 {
        let negated = inverted & STATE != 0;
        conditions.push(tracking_condition(|tracked| {
            let mut bits = match tracked.state {
                CtState::Untracked => UNTRACKED,
                state => state.bit() as u16,
            };
            if tracked.state.has_entry() {
                bits |= if tracked.has_snat { SNAT } else { 0 };
                bits |= if tracked.has_dnat { DNAT } else { 0 };
            }
            (states & bits != 0) != negated
        }));
    }
    if kinds & DIRECTION != 0 {
        // Inverted, it is about the reply.
        let is_reply = inverted & DIRECTION != 0;
        // A packet without an entry is compared by its state alone (`conntrack_mt` in net/netfilter/xt_conntrack.c).
        let passes = kinds & STATE != 0;
        let holds = |of: Tracked| if of.state.has_entry() { of.is_reply == is_reply } else { passes };
        conditions.push(tracking_condition(holds));
    }
    Ok(Some(conditions))
}

/// Addresses are given, or ports (linux/netfilter/nf_nat.h).
const NF_NAT_RANGE_MAP_IPS: u32 = 1;
pub(crate) const NF_NAT_RANGE_PROTO_SPECIFIED: u32 = 2;

/// Where `struct nf_nat_range` is in the structure of a NAT target, and the room for an address in it: its flags (4 bytes),
/// the first and the last address, the first and the last port in network byte order. IPv4's targets of revision 0 have
/// shorter addresses, after the number of ranges (`struct nf_nat_ipv4_multi_range_compat`).
fn nat_range(family: Family, revision: u32) -> (usize, usize) {
    if (family, revision) == (Family::V4, 0) { (4, 4) } else { (0, 16) }
}

pub(crate) fn redirect(family: Family, ports: Option<(u16, u16)>) -> Vec<u8> {
    let (start, address) = nat_range(family, 0);
    let place = start + 4 + 2 * address;
    let mut info = vec![0; (place + 4).next_multiple_of(8)];
    if start > 0 {
        put(&mut info, 0, &1u32.to_ne_bytes());
    }
    if let Some((first, last)) = ports {
        put(&mut info, start, &NF_NAT_RANGE_PROTO_SPECIFIED.to_ne_bytes());
        put(&mut info, place, &first.to_be_bytes());
        put(&mut info, place + 2, &last.to_be_bytes());
    }
    info
}

/// The addresses and ports to which a NAT target translates, as far as it says.
struct NatRange {
    addresses: Option<(IpAddr, IpAddr)>,
    ports: Option<(u16, u16)>,
    flags: u32,
}

impl NatRange {
    fn read(entry: XtEntry<'_>, family: Family) -> Result<Self, Malformed> {
        let (start, room) = nat_range(family, entry.revision);
        let range = entry.info.get(start..).ok_or(Malformed)?;
        let flags = u32_at(range, 0)?;
        let held = |at: usize| address(range.get(at..at + Field::Destination(family).bytes()).ok_or(Malformed)?);
        let addresses = (held(4)?, held(4 + room)?);
        let port = |at| u16_at(range, at).map(u16::from_be);
        let ports = (port(4 + 2 * room)?, port(6 + 2 * room)?);
        Ok(Self {
            addresses: (flags & NF_NAT_RANGE_MAP_IPS != 0).then_some(addresses),
            ports: (flags & NF_NAT_RANGE_PROTO_SPECIFIED != 0).then_some(ports),
            flags,
        })
    }

    fn translation(self, kind: NatKind) -> Nat {
        let Self { addresses, ports, flags } = self;
        Nat { kind, addresses, ports, flags }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The one condition of a match's first revision.
    fn condition(name: &[u8], info: &[u8]) -> Condition {
        let mut rule = Rule::new(vec![], Action::Continue);
        read_match(&mut rule, XtEntry { name, revision: 0, info }, Family::V6).unwrap();
        let [condition] = rule.conditions.as_slice() else { panic!("{:?}", rule.conditions) };
        condition.clone()
    }

    #[test]
    fn types_of_icmpv6_are_those_of_packets_with_code_0() {
        let of = |kind: u128, negated| Condition::compare(Field::IcmpType, kind, negated);
        let constant = |holds| Condition::Constant { of: extension(b"icmp6"), holds };
        for (info, want) in [
            ([135, 0, 255, 0], of(135, false)),
            ([135, 0, 255, 1], of(135, true)),
            ([136, 0, 0, 0], of(136, false)),
            ([1, 4, 4, 0], constant(false)),
            ([1, 3, 4, 1], constant(true)),
            ([255, 0, 255, 0], constant(true)),
            ([255, 0, 255, 1], constant(false)),
        ] {
            assert_eq!(condition(b"icmp6", &info), want);
        }
    }

    #[test]
    fn hop_limits_are_compared_in_four_ways() {
        let is = |values: Values, negated| Condition::compare(Field::HopLimit, values, negated);
        for (info, want) in [
            ([0, 255], is(255.into(), false)),
            ([1, 255], is(255.into(), true)),
            ([2, 64], is((0, 63).into(), false)),
            ([3, 64], is((65, 255).into(), false)),
        ] {
            assert_eq!(condition(b"hl", &info), want);
        }
        // Another way, and what no packet can have.
        for info in [[4, 64], [2, 0], [3, 255]] {
            assert_eq!(condition(b"hl", &info), Condition::NotUnderstood(extension(b"hl")));
        }
    }

    #[test]
    fn a_rule_uses_the_extensions_that_its_parts_are_written_with() {
        let listed = Condition::is(Field::DestinationPort, Values::Listed(vec![(80, 80)]));
        let conditions = vec![
            listed,
            Condition::is(Field::SourcePort, 80),
            Condition::is(Field::Gid, 7),
            Condition::is(Field::Protocol, 6),
        ];
        let redirected = Rule::new(conditions, Action::Redirect(None));
        let used = [Extension::Multiport, Extension::Tcp, Extension::Owner, Extension::Redirect];
        assert_eq!(Extension::of(&redirected).collect::<Vec<_>>(), used);
        assert_eq!(Extension::of(&Rule { action: Action::Return, ..redirected }).count(), 3);
        let words = [Extension::Owner, Extension::Redirect].map(|extension| extension.described().0);
        assert_eq!(words, ["the xt owner match", "the xt REDIRECT target"]);
    }

    #[test]
    fn only_what_is_certain_or_impossible_is_understood_of_chance() {
        let constant = |holds| Condition::Constant { of: extension(b"statistic"), holds };
        for (mode, inverted, probability, want) in [
            (0u16, 0u16, 0u32, Some(false)),
            (0, 1, 0, Some(true)),
            (0, 0, 1 << 31, Some(true)),
            (0, 1, 1 << 31, Some(false)),
            (0, 0, 1 << 30, None),
            (1, 0, 0, None),
        ] {
            let head = [mode, inverted].map(u16::to_ne_bytes).concat();
            let info = [head, probability.to_ne_bytes().to_vec()].concat();
            let want = want.map_or(Condition::NotUnderstood(extension(b"statistic")), constant);
            assert_eq!(condition(b"statistic", &info), want);
        }
    }

    #[test]
    fn a_redirection_is_read_as_it_is_written() {
        for family in Family::ALL {
            for ports in [None, Some((4143, 4143)), Some((80, 90))] {
                let mut rule = Rule::new(vec![], Action::Continue);
                let written = XtEntry { name: b"REDIRECT", revision: 0, info: &redirect(family, ports) };
                assert_eq!(read_target(&mut rule, written, family), Ok(Action::Redirect(ports)));
            }
        }
    }

    /// In the first revision, the flags come before the rest; what else they say doesn't matter.
    #[test]
    fn hashlimit_holds_above_a_limit_or_below() {
        for (flags, holds_below) in [(0b01111u32, true), (0b10000, false), (0b11111, false)] {
            for (revision, place) in [(1, 16), (2, 272), (3, 272)] {
                let mut info = vec![0; 320];
                put(&mut info, place, &flags.to_ne_bytes());
                let mut rule = Rule::new(vec![], Action::Continue);
                read_match(&mut rule, XtEntry { name: b"hashlimit", revision, info: &info }, Family::V4).unwrap();
                let limit = Context::Limit { holds_below, of: Bound::Extension(Name::from("hashlimit")) };
                assert_eq!(rule.conditions, [Condition::Context(limit)]);
            }
        }
    }

    /// `--set` holds for everybody; `--rcheck` and others for earlier senders.
    #[test]
    fn recent_holds_for_everybody_where_it_only_writes_down() {
        for (flags, inverted, holds_below, is_always) in
            [(2, 0, true, true), (2, 1, false, true), (1, 0, false, false), (1, 1, true, false), (6, 0, true, true)]
        {
            let mut info = vec![0; 232];
            put(&mut info, 8, &[flags, inverted]);
            let mut rule = Rule::new(vec![], Action::Continue);
            read_match(&mut rule, XtEntry { name: b"recent", revision: 0, info: &info }, Family::V4).unwrap();
            let limit = Context::Limit { holds_below, of: Bound::Extension(Name::from("recent")) };
            let want = match is_always {
                true => Condition::Constant { of: extension(b"recent"), holds: holds_below },
                false => Condition::Context(limit),
            };
            assert_eq!(rule.conditions, [want]);
        }
    }

    /// iptables-legacy 1.8.9 writes later revisions, or, for `NOTRACK`, an option of `CT`.
    #[test]
    fn other_revisions_are_read_than_those_that_were_recorded() {
        let target = |name: &[u8], revision, info: &[u8]| {
            let mut rule = Rule::new(vec![], Action::Continue);
            let action = read_target(&mut rule, XtEntry { name, revision, info }, Family::V4).unwrap();
            (rule.effects, action)
        };
        assert_eq!(target(b"NOTRACK", 0, &[]), (vec![Effect::Untrack], Action::Continue));
        // The mark, its mask, the packet's mask, what is done; later, also by how much it is shifted.
        for (mode, shift) in [(0, 0), (1, 0), (2, 0), (2, 1)] {
            let masks = [5u32, u32::MAX, u32::MAX].map(u32::to_ne_bytes).concat();
            let (first, next) = ([&masks[..], &[mode]].concat(), [&masks[..], &[0, shift, mode]].concat());
            let known = target(b"CONNMARK", 1, &first);
            assert_eq!(target(b"CONNMARK", 2, &next) == known, shift == 0, "{known:?}");
        }
        // Inverted conditions have numbers of their own in the first revision.
        for (is_source, is_destination) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
            let types = [4u16, 2].map(u16::to_ne_bytes).concat();
            let inverted = [is_source, is_destination].map(u32::to_ne_bytes).concat();
            let mut rule = Rule::new(vec![], Action::Continue);
            let info = &[types, inverted].concat();
            read_match(&mut rule, XtEntry { name: b"addrtype", revision: 0, info }, Family::V4).unwrap();
            let negated = rule.conditions.iter().map(|condition| match condition {
                Condition::Context(Context::AddressType { is_source, types, negated, .. }) => {
                    (*is_source, *types, u32::from(*negated))
                }
                other => panic!("{other:?}"),
            });
            assert_eq!(negated.collect::<Vec<_>>(), [(true, 4, is_source), (false, 2, is_destination)]);
        }
    }

    #[test]
    fn only_a_hop_limit_that_is_set_is_known() {
        for (info, to) in [([0, 64], Some(Bits::constant(Field::HopLimit, 64))), ([1, 2], None), ([2, 1], None)] {
            let effect = Effect::Mark { field: Field::HopLimit, to };
            let mut rule = Rule::new(vec![], Action::Continue);
            let target = XtEntry { name: b"HL", revision: 0, info: &info };
            assert_eq!(read_target(&mut rule, target, Family::V6), Ok(Action::Continue));
            assert_eq!(rule.effects, [effect]);
        }
    }
}
