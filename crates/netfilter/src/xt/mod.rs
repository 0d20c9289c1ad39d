//! The structures of xt extensions as bytes, both ways: in rules that pass nft_compat, and in legacy tables.
//!
//! Each layout is that of the kernel's header, padded to 8 bytes (`XT_ALIGN`), for nft_compat refuses any other size.
//! Numbers are in the machine's byte order, except where a comment says otherwise.

#[cfg(any(test, feature = "decode"))]
mod foreign;

use std::ffi::CStr;

use ruleset::xtables::MULTIPORT_REFERENCES;
use ruleset::{Action, Condition, Family, Field, Label, Name, Numbered, Rule, Values};

use crate::netlink::message::{Malformed, put, string, u8_at, u16_at, u32_at};

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
    pub(crate) family: Family,
    pub(crate) name: &'a [u8],
    pub(crate) revision: u32,
    pub(crate) info: &'a [u8],
}

/// Adds a match's conditions to its rule. A match that isn't understood becomes such a condition, with its name.
#[cfg_attr(not(any(test, feature = "decode")), allow(unused_variables))] // others' matches alone have numbers
pub(crate) fn read_match(rule: &mut Rule, entry: XtEntry<'_>, numbered: &Numbered) -> Result<(), Malformed> {
    let XtEntry { name, revision, info, .. } = entry;
    let conditions = match (name, revision) {
        (b"comment", 0) => {
            rule.comment = Some(Name::from(string(info)?));
            return Ok(());
        }
        (b"multiport", 1) => read_multiport(info)?,
        (b"owner", 1) => read_owner(info)?,
        (b"tcp", 0) => read_tcp(info)?,
        #[cfg(any(test, feature = "decode"))]
        _ => foreign::read_match(rule, entry, numbered)?,
        #[cfg(not(any(test, feature = "decode")))]
        _ => None,
    };
    let unknown = || vec![Condition::NotUnderstood(extension(name))];
    rule.conditions.extend(conditions.unwrap_or_else(unknown));
    Ok(())
}

/// Reads a rule's target, except for the standard one, whose verdicts each kind of table keeps in its own way. A target's
/// effect is added to the rule; evaluation then goes on with the next rule.
pub(crate) fn read_target(rule: &mut Rule, entry: XtEntry<'_>) -> Result<(), Malformed> {
    let read = match (entry.name, entry.revision) {
        (b"REDIRECT", 0) => Some(Action::Redirect(nat_ports(entry)?)),
        #[cfg(any(test, feature = "decode"))]
        _ => foreign::read_target(rule, entry)?,
        #[cfg(not(any(test, feature = "decode")))]
        _ => None,
    };
    rule.action = read.unwrap_or_else(|| Action::NotUnderstood(extension(entry.name)));
    Ok(())
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
    // multiport has no match without any port.
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

/// A field that a match compares with an interval: its bit in the structure's flags, the field, and the offset of its
/// lowest number in the structure, which its highest follows.
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
    // `XT_OWNER_SOCKET`: any user of a socket will do.
    if kinds & 4 != 0 {
        conditions.push(Condition::compare(Field::Uid, (0, Field::Uid.largest()), inverted & 4 != 0));
        kinds &= !4;
    }
    // The other one asks for supplementary groups.
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

/// Ports are given (linux/netfilter/nf_nat.h).
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

/// The ports to which a NAT target translates, as far as it says.
fn nat_ports(entry: XtEntry<'_>) -> Result<Option<(u16, u16)>, Malformed> {
    let (start, room) = nat_range(entry.family, entry.revision);
    let range = entry.info.get(start..).ok_or(Malformed)?;
    let port = |at| u16_at(range, at).map(u16::from_be);
    let ports = (port(4 + 2 * room)?, port(6 + 2 * room)?);
    Ok((u32_at(range, 0)? & NF_NAT_RANGE_PROTO_SPECIFIED != 0).then_some(ports))
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_redirection_is_read_as_it_is_written() {
        for family in Family::ALL {
            for ports in [None, Some((4143, 4143)), Some((80, 90))] {
                let mut rule = Rule::new(vec![], Action::Continue);
                let info = redirect(family, ports);
                let written = XtEntry { family, name: b"REDIRECT", revision: 0, info: &info };
                read_target(&mut rule, written).unwrap();
                assert_eq!(rule.action, Action::Redirect(ports));
            }
        }
    }
}
