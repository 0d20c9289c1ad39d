//! The matches and targets of other programs' rules, which installing doesn't read.

use ruleset::flags::{CtState, Tracked, tracking_condition};
use ruleset::{
    Action, Bits, Bound, Condition, Context, Effect, Family, Field, Name, Nat, NatKind, Numbered, Rejection, Rule,
    Values,
};

use super::{XtEntry, extension, nat_ports, nat_range};
use crate::netlink::message::{Malformed, address, number, u8_at, u16_at, u32_at, under_mask};

/// The conditions of a match of others; none if it isn't understood.
pub(super) fn read_match(
    rule: &mut Rule,
    entry: XtEntry<'_>,
    numbered: &Numbered,
) -> Result<Option<Vec<Condition>>, Malformed> {
    let XtEntry { family, name, revision, info } = entry;
    rule.needs_tracking |= needs_tracking(name);
    let only = match (name, revision) {
        (b"conntrack", 3) => return read_conntrack(family, info),
        (b"addrtype", 0 | 1) => return read_address_type(revision, info),
        (b"iprange", 1) => return read_ranges(info, family).map(Some),
        (b"icmp6", 0) => Some(read_icmpv6(info)?),
        (b"hl", 0) => read_hop_limit(info)?,
        (b"rpfilter", 0) => Some(read_reverse_path(info)?),
        (b"limit" | b"hashlimit" | b"quota" | b"connlimit" | b"recent", _) => Some(read_limit(name, revision, info)?),
        // struct xt_pkttype_info: the type, and whether it is inverted.
        (b"pkttype", 0) => {
            let (kind, negated) = (u128::from(u32_at(info, 0)?), u32_at(info, 4)? != 0);
            Some(Condition::compare(Field::PacketType, kind, negated))
        }
        (b"set", 1..=4) => read_set(entry, numbered)?,
        (b"cgroup", 0..=2) => read_class(revision, info)?,
        (b"statistic", 0) => read_statistic(info)?,
        (b"mark", 1) => Some(read_mark(Field::Mark, info)?),
        (b"connmark", 1) => Some(read_mark(Field::ConnectionMark, info)?),
        // Each is about one of IPv6's extension headers, and doesn't match a packet without it, negated or not
        // (`rt_mt6` in net/ipv6/netfilter/ip6t_rt.c, `frag_mt6`, `hbh_mt6`, `mh_mt6`). TCP's have none.
        (b"rt" | b"frag" | b"hbh" | b"dst" | b"mh" | b"srh", _) => Some(constant(name, false)),
        _ => None,
    };
    Ok(only.map(|condition| vec![condition]))
}

/// The condition of a match of this name that holds for all packets that are followed, or for none.
fn constant(name: &[u8], holds: bool) -> Condition {
    Condition::Constant { of: extension(name), holds }
}

/// `struct xt_cgroup_info_v0` and the two after it (linux/netfilter/xt_cgroup.h): the class, and whether it is inverted. The
/// later ones may ask for a path, which isn't understood; the second has room for both, the third for either.
fn read_class(revision: u32, info: &[u8]) -> Result<Option<Condition>, Malformed> {
    let (class, negated) = match revision {
        0 => (u32_at(info, 0)?, u32_at(info, 4)? != 0),
        _ => {
            let (has_path, has_class) = (u8_at(info, 0)? != 0, u8_at(info, 1)? != 0);
            if has_path || !has_class {
                return Ok(None);
            }
            let place = if revision == 1 { 4 + 4096 } else { 4 };
            (u32_at(info, place)?, u8_at(info, 3)? != 0)
        }
    };
    Ok(Some(Condition::Context(Context::SocketClass { classes: vec![class], negated })))
}

/// `struct xt_statistic_info`: the mode, a flag that inverts it, and the probability, of which 2^31 is certainty. Only a
/// match that always holds, or never, is understood.
fn read_statistic(info: &[u8]) -> Result<Option<Condition>, Malformed> {
    const RANDOM: u16 = 0;
    let (mode, inverted, probability) = (u16_at(info, 0)?, u16_at(info, 2)? & 1 != 0, u32_at(info, 4)?);
    Ok(match (mode, probability) {
        (RANDOM, 0) => Some(constant(b"statistic", inverted)),
        (RANDOM, 0x8000_0000) => Some(constant(b"statistic", !inverted)),
        _ => None,
    })
}

/// `struct xt_set_info_match_v1` and those after it (linux/netfilter/xt_set.h) begin with the set's index, the number of
/// its dimensions and flags: whether it is inverted and, for each dimension, whether that is the source's. From the third
/// on, comparisons of counters (`op` is at another place in the third) and more flags follow.
fn read_set(
    XtEntry { family, revision, info, .. }: XtEntry<'_>,
    numbered: &Numbered,
) -> Result<Option<Condition>, Malformed> {
    const INVERTED: u8 = 1;
    /// `IPSET_FLAG_MATCH_COUNTERS` and `IPSET_FLAG_RETURN_NOMATCH`
    const OTHER_QUESTION: u32 = 1 << 5 | 1 << 7;
    let (index, dimensions, flags) = (u16_at(info, 0)?, u8_at(info, 2)?, u8_at(info, 3)?);
    if revision > 2 {
        let counters = if revision == 3 { [8, 24] } else { [16, 32] };
        let compares = counters.into_iter().map(|place| u8_at(info, place)).collect::<Result<Vec<_>, _>>()?;
        if compares != [0, 0] || u32_at(info, 40)? & OTHER_QUESTION != 0 {
            return Ok(None);
        }
    }
    let are_sources = (1..=dimensions.min(7)).map(|dimension| flags >> dimension & 1 != 0).collect();
    let set = numbered.ip_set(index).cloned();
    Ok(set.map(|set| Condition::Context(Context::IpSet { set, are_sources, family, negated: flags & INVERTED != 0 })))
}

/// Returns true if a match or a target of this name has connections tracked: those that call `nf_ct_netns_get` where
/// they are checked (net/netfilter/xt_*.c), but for translations.
fn needs_tracking(name: &[u8]) -> bool {
    let names =
        "cluster connbytes connlabel connlimit connmark conntrack helper state CONNMARK CONNSECMARK CT SYNPROXY";
    names.split(' ').any(|known| known.as_bytes() == name)
}

/// The action of a target of others; none if it isn't understood. An effect is added to the rule.
pub(super) fn read_target(rule: &mut Rule, entry: XtEntry<'_>) -> Result<Option<Action>, Malformed> {
    let XtEntry { family, name, revision, info } = entry;
    rule.needs_tracking |= needs_tracking(name);
    let effect = match (name, revision) {
        (b"NOTRACK", _) => Effect::Untrack,
        // struct xt_ct_target_info begins with its flags; XT_CT_NOTRACK is the first.
        (b"CT", _) if u16_at(info, 0)? & 1 != 0 => Effect::Untrack,
        // XT_CT_ZONE_MARK takes the zone from the mark. A connection's other packets may be in another one, where nothing is
        // known of the translation.
        (b"CT", _) if u16_at(info, 0)? & 16 != 0 || u16_at(info, 2)? != 0 => return Ok(None),
        (b"MARK", 2) => mark(info)?,
        (b"CONNMARK", 1 | 2) => connection_mark(revision, info)?,
        (b"HL", 0) => hop_limit(info)?,
        // After these, evaluation goes on, and they don't change where a connection goes.
        (
            b"CT" | b"LOG" | b"NFLOG" | b"ULOG" | b"TRACE" | b"CHECKSUM" | b"TCPMSS" | b"TOS" | b"DSCP" | b"CLASSIFY"
            | b"AUDIT" | b"SECMARK" | b"CONNSECMARK" | b"TTL" | b"TEE",
            _,
        ) => Effect::Other(extension(name)),
        (b"DNAT", _) => return translation(entry, NatKind::Destination, 2),
        (b"SNAT", _) => return translation(entry, NatKind::Source, 1),
        (b"MASQUERADE", _) => return translation(entry, NatKind::Masquerade, 0),
        (b"NETMAP", _) => return Ok(Some(Action::Nat(Nat::of(NatKind::Netmap)))),
        // struct xt_tproxy_target_info and the one after it: two words of the mark, the address, and the port in network
        // byte order; 0 is the packet's own.
        (b"TPROXY", 0 | 1) => {
            let port = u16::from_be(u16_at(info, if revision == 0 { 12 } else { 24 })?);
            return Ok(Some(Action::Tproxy { port: (port != 0).then_some(port), is_xt: true }));
        }
        (b"REJECT", _) => return Ok(rejection(info, family)?.map(Action::Reject)),
        _ => return Ok(None),
    };
    rule.effects.push(effect);
    Ok(Some(Action::Continue))
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

/// `struct ip6t_icmp`: the type, the first and the last code, and whether it is inverted. Type 255 is any.
fn read_icmpv6(info: &[u8]) -> Result<Condition, Malformed> {
    const ANY: u8 = 255;
    let (kind, first_code, negated) = (u8_at(info, 0)?, u8_at(info, 1)?, u8_at(info, 3)? & 1 != 0);
    Ok(match kind {
        ANY => constant(b"icmp6", !negated),
        // Neighbour discovery, of which alone this is asked, has the code 0.
        _ if first_code > 0 => constant(b"icmp6", negated),
        _ => Condition::compare(Field::IcmpType, u128::from(kind), negated),
    })
}

/// `struct ip6t_hl_info`: how the hop limit is compared (`IP6T_HL_EQ` and the others), and with what.
fn read_hop_limit(info: &[u8]) -> Result<Option<Condition>, Malformed> {
    let (mode, hops) = (u8_at(info, 0)?, u128::from(u8_at(info, 1)?));
    let values = match (mode, hops) {
        (0 | 1, _) => Values::from(hops),
        (2, 1..) => Values::from((0, hops - 1)),
        (3, 0..255) => Values::from((hops + 1, Field::HopLimit.largest())),
        _ => return Ok(None),
    };
    Ok(Some(Condition::compare(Field::HopLimit, values, mode == 1)))
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
    // `XT_ADDRTYPE_LIMIT_IFACE_IN` and `XT_ADDRTYPE_LIMIT_IFACE_OUT`
    let of_device = match flags & !3 {
        0 => None,
        4 => Some(Field::InInterface),
        8 => Some(Field::OutInterface),
        _ => return Ok(None),
    };
    let is_xt = true;
    let mut conditions = Vec::new();
    for (is_source, types, bit) in [(true, u16_at(info, 0)?, 1), (false, u16_at(info, 2)?, 2)] {
        if types != 0 {
            let negated = flags & bit != 0;
            conditions.push(Condition::Context(Context::AddressType { is_source, types, negated, is_xt, of_device }));
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
                return Ok(constant(name, !inverted));
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
/// those that it inverts or not. Only `--ctstate`, `--ctdir` and the addresses and ports of the first packet
/// (`--ctorigsrc` and the three others) are understood.
fn read_conntrack(family: Family, info: &[u8]) -> Result<Option<Vec<Condition>>, Malformed> {
    let (kinds, inverted, states) = (u16_at(info, 146)?, u16_at(info, 148)?, u16_at(info, 150)?);
    // `XT_CONNTRACK_STATE` and the others
    const STATE: u16 = 1;
    const ADDRESSES: [u16; 2] = [1 << 2, 1 << 3];
    const PORTS: [u16; 2] = [1 << 8, 1 << 9];
    const DIRECTION: u16 = 1 << 12;
    // The same by another name: `-m state --state`.
    const STATE_ALIAS: u16 = 1 << 13;
    const ORIGINAL: u16 = ADDRESSES[0] | ADDRESSES[1] | PORTS[0] | PORTS[1];
    let kinds = kinds & !STATE_ALIAS;
    if kinds == 0 || kinds & !STATE & !DIRECTION & !ORIGINAL != 0 {
        return Ok(None);
    }
    // `XT_CONNTRACK_STATE_SNAT` and the next two; the others' bits are those of [`State`].
    const SNAT: u16 = 1 << 6;
    const DNAT: u16 = 1 << 7;
    const UNTRACKED: u16 = 1 << 8;
    // A packet without an entry is compared by its state alone (`conntrack_mt` in net/netfilter/xt_conntrack.c): it has to
    // fail there, for the other conditions never hold for it.
    let without_entry = CtState::Invalid.bit() as u16 | UNTRACKED;
    let failing = if inverted & STATE != 0 { without_entry } else { 0 };
    if kinds & STATE != 0 && kinds & ORIGINAL != 0 && states & without_entry != failing {
        return Ok(None);
    }
    let mut conditions = Vec::new();
    for (index, bit) in ADDRESSES.into_iter().enumerate().filter(|(_, bit)| kinds & bit != 0) {
        let field = if index == 0 { Field::OriginalSource(family) } else { Field::OriginalDestination(family) };
        let held = |at: usize| info.get(at..at + field.bytes()).map(number).ok_or(Malformed);
        let (number, mask) = (held(32 * index)?, held(32 * index + 16)?);
        let negated = inverted & bit != 0;
        conditions.push(match under_mask(field, number, mask) {
            Some(numbers) => Condition::compare(field, numbers, negated),
            None => Condition::Masked { field, mask, number, negated },
        });
    }
    for (index, bit) in PORTS.into_iter().enumerate().filter(|(_, bit)| kinds & bit != 0) {
        let field = if index == 0 { Field::OriginalSourcePort } else { Field::OriginalDestinationPort };
        let ports = (u16_at(info, 138 + 2 * index)?.into(), u16_at(info, 154 + 2 * index)?.into());
        conditions.push(Condition::compare(field, ports, inverted & bit != 0));
    }
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
        let passes = kinds & STATE != 0;
        let holds = |of: Tracked| if of.state.has_entry() { of.is_reply == is_reply } else { passes };
        conditions.push(tracking_condition(holds));
    }
    Ok(Some(conditions))
}

/// Addresses are given (linux/netfilter/nf_nat.h).
const NF_NAT_RANGE_MAP_IPS: u32 = 1;

/// The addresses and ports to which a NAT target translates, as far as it says; after the last known revision, none.
fn translation(entry: XtEntry<'_>, kind: NatKind, last_revision: u32) -> Result<Option<Action>, Malformed> {
    if entry.revision > last_revision {
        return Ok(Some(Action::Nat(Nat::of(kind))));
    }
    let (start, room) = nat_range(entry.family, entry.revision);
    let range = entry.info.get(start..).ok_or(Malformed)?;
    let flags = u32_at(range, 0)?;
    let length = Field::Destination(entry.family).bytes();
    let held = |at: usize| address(range.get(at..at + length).ok_or(Malformed)?);
    let addresses = (held(4)?, held(4 + room)?);
    let has_addresses = flags & NF_NAT_RANGE_MAP_IPS != 0 && kind != NatKind::Masquerade;
    let addresses = has_addresses.then_some(addresses);
    Ok(Some(Action::Nat(Nat { kind, addresses, ports: nat_ports(entry)?, flags })))
}

#[cfg(test)]
mod tests {
    use super::{Bits, Bound, Condition, Context, Effect, Family, Field, Name, Rule, Values, XtEntry, extension};
    use crate::netlink::message::put;
    use crate::xt::{read_match, read_target};
    use ruleset::{Action, Numbered};

    /// The one condition of a match's first revision.
    fn condition(name: &[u8], info: &[u8]) -> Condition {
        let mut rule = Rule::new(vec![], Action::Continue);
        read_match(&mut rule, XtEntry { family: Family::V6, name, revision: 0, info }, &Numbered::default()).unwrap();
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

    /// In the first revision, the flags come before the rest; what else they say doesn't matter.
    #[test]
    fn hashlimit_holds_above_a_limit_or_below() {
        for (flags, holds_below) in [(0b01111u32, true), (0b10000, false), (0b11111, false)] {
            for (revision, place) in [(1, 16), (2, 272), (3, 272)] {
                let mut info = vec![0; 320];
                put(&mut info, place, &flags.to_ne_bytes());
                let mut rule = Rule::new(vec![], Action::Continue);
                let entry = XtEntry { family: Family::V4, name: b"hashlimit", revision, info: &info };
                read_match(&mut rule, entry, &Numbered::default()).unwrap();
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
            let entry = XtEntry { family: Family::V4, name: b"recent", revision: 0, info: &info };
            read_match(&mut rule, entry, &Numbered::default()).unwrap();
            let limit = Context::Limit { holds_below, of: Bound::Extension(Name::from("recent")) };
            let want = if is_always {
                Condition::Constant { of: extension(b"recent"), holds: holds_below }
            } else {
                Condition::Context(limit)
            };
            assert_eq!(rule.conditions, [want]);
        }
    }

    /// iptables-legacy 1.8.9 writes later revisions, or, for `NOTRACK`, an option of `CT`.
    #[test]
    fn other_revisions_are_read_than_those_that_were_recorded() {
        let target = |name: &[u8], revision, info: &[u8]| {
            let mut rule = Rule::new(vec![], Action::Continue);
            read_target(&mut rule, XtEntry { family: Family::V4, name, revision, info }).unwrap();
            (rule.effects, rule.action)
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
            read_match(
                &mut rule,
                XtEntry { family: Family::V4, name: b"addrtype", revision: 0, info },
                &Numbered::default(),
            )
            .unwrap();
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
            let target = XtEntry { family: Family::V6, name: b"HL", revision: 0, info: &info };
            read_target(&mut rule, target).unwrap();
            assert_eq!(rule.action, Action::Continue);
            assert_eq!(rule.effects, [effect]);
        }
    }
}
