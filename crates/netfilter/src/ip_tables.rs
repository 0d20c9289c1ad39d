//! Decodes the bytes of a legacy table.

use ruleset::{
    Action, Base, Chain, Condition, Counters, Family, Field, Hook, Kind, Label, NAT, Name, Numbered, Policy, Rule,
    Subsystem, Table, TableFamily, XTABLES, nat_priority,
};

use crate::netlink::message::{Malformed, devices, number, string, u8_at, u16_at, u32_at, u64_at, under_mask};
use crate::netlink::sockopt::Entries;
use crate::xt::{self, XtEntry};

/// Offsets in `struct ipt_entry` and `struct ip6t_entry` (linux/netfilter_ipv4/ip_tables.h,
/// linux/netfilter_ipv6/ip6_tables.h), which begin with two addresses and their masks, then two names and their masks.
struct Layout {
    family: Family,
    /// The length of an address.
    address: usize,
    /// The flags; the byte after them has the inverted ones.
    flags: usize,
    /// The bit among the flags that makes a jump a goto.
    goto: u8,
    /// The offset of the target; the offset of the entry's end follows.
    target: usize,
    /// The counters; the matches follow.
    counters: usize,
}

impl Layout {
    fn of(family: Family) -> Self {
        match family {
            Family::V4 => Self { family, address: 4, flags: 82, goto: 2, target: 88, counters: 96 },
            Family::V6 => Self { family, address: 16, flags: 131, goto: 4, target: 140, counters: 152 },
        }
    }
}

/// The length of the header of a match or a target, before its own structure.
const XT_ENTRY: usize = 32;

/// One `struct ipt_entry` or `struct ip6t_entry`.
struct Entry<'a> {
    offset: usize,
    bytes: &'a [u8],
    target: XtEntry<'a>,
}

impl Entry<'_> {
    /// Returns true if a user's chain begins after the entry, or the table ends with it.
    fn is_head(&self) -> bool {
        self.target.name == b"ERROR"
    }
}

/// Reads a table, whose rules have some things by their numbers.
///
/// Beside rules, the entries are: a head (an ERROR target with the chain's name) and a tail (its final RETURN) for each
/// user's chain, a policy for each base chain, and one ERROR at the end.
pub fn table(family: Family, name: &str, entries: &Entries, numbered: &Numbered) -> Result<Table, Malformed> {
    let layout = Layout::of(family);
    let all = split_entries(&layout, &entries.bytes)?;
    // The offset of the first rule of each user's chain, which jumps have.
    let mut heads: Vec<(usize, &[u8])> = Vec::new();
    for [head, first] in all.array_windows().filter(|[entry, _]| entry.is_head()) {
        heads.push((first.offset, string(head.target.info)?));
    }
    let rule = |entry: &Entry<'_>| read_rule(&layout, entry, &heads, numbered);
    let place = |offset| all.partition_point(|entry| entry.offset < offset);
    let between = |first, end| all.get(place(first)..place(end)).unwrap_or_default();
    let mut chains = Vec::new();
    for &(hook, first, policy) in &entries.base_chains {
        let hook = *Hook::INET.get(hook).ok_or(Malformed)?;
        let end = all.get(place(policy)).ok_or(Malformed)?;
        let base = Base {
            kind: if name == NAT { Kind::Nat } else { Kind::Filter },
            hook,
            priority: priority(name, hook),
            policy: match rule(end)?.action {
                Action::Drop => Policy::Drop,
                _ => Policy::Accept,
            },
        };
        let rules = between(first, policy).iter().map(rule).collect::<Result<_, _>>()?;
        // Base chains are named after their hooks.
        let name = hook.to_string().to_uppercase();
        chains.push(Chain::new(Name::from(&name), Some(base), rules));
    }
    for (index, &(first, chain)) in heads.iter().enumerate() {
        // Up to the next chain's head, without it and the tail before it; the last head is the end of the table.
        let end = heads.get(index + 1).map_or(usize::MAX, |&(next, _)| next);
        let entries: Vec<_> = between(first, end).iter().filter(|entry| !entry.is_head()).collect();
        let (_, entries) = entries.split_last().ok_or(Malformed)?;
        let rules = entries.iter().copied().map(rule).collect::<Result<_, _>>()?;
        chains.push(Chain::new(Name::from(chain), None, rules));
    }
    Ok(Table { chains, ..Table::new(Subsystem::Legacy, TableFamily::Ip(family), Name::from(name)) })
}

/// The counters of a table's entries, as bytes.
pub fn counters(family: Family, entries: &Entries) -> Result<Vec<[u8; 16]>, Malformed> {
    let layout = Layout::of(family);
    let counters = |entry: Entry<'_>| {
        let rest = entry.bytes.get(layout.counters..)?;
        rest.first_chunk().copied()
    };
    split_entries(&layout, &entries.bytes)?.into_iter().map(|entry| counters(entry).ok_or(Malformed)).collect()
}

fn split_entries<'a>(layout: &Layout, bytes: &'a [u8]) -> Result<Vec<Entry<'a>>, Malformed> {
    let mut entries = Vec::new();
    let mut offset = 0;
    while offset < bytes.len() {
        let rest = bytes.get(offset..).ok_or(Malformed)?;
        let target = usize::from(u16_at(rest, layout.target)?);
        let next = usize::from(u16_at(rest, layout.target + 2)?);
        let entry = rest.get(..next).ok_or(Malformed)?;
        let target = read_extension(layout.family, entry.get(target..).ok_or(Malformed)?)?;
        entries.push(Entry { offset, bytes: entry, target });
        offset += next;
    }
    Ok(entries)
}

/// A `struct xt_entry_match` or `struct xt_entry_target`: its size (2 bytes), name (29), revision (1), and its own structure.
fn read_extension(family: Family, bytes: &[u8]) -> Result<XtEntry<'_>, Malformed> {
    let size = usize::from(u16_at(bytes, 0)?);
    Ok(XtEntry {
        family,
        name: string(bytes.get(2..31).ok_or(Malformed)?)?,
        revision: u8_at(bytes, 31)?.into(),
        info: bytes.get(XT_ENTRY..size).ok_or(Malformed)?,
    })
}

fn read_rule(
    layout: &Layout,
    entry: &Entry<'_>,
    heads: &[(usize, &[u8])],
    numbered: &Numbered,
) -> Result<Rule, Malformed> {
    let mut rule = Rule::new(read_header(layout, entry.bytes)?, Action::Continue);
    let (packets, bytes) = (u64_at(entry.bytes, layout.counters)?, u64_at(entry.bytes, layout.counters + 8)?);
    rule.counters = Some(Counters { packets, bytes });
    let end = usize::from(u16_at(entry.bytes, layout.target)?);
    let mut place = layout.counters + 16;
    while place < end {
        let extension = read_extension(layout.family, entry.bytes.get(place..end).ok_or(Malformed)?)?;
        xt::read_match(&mut rule, extension, numbered)?;
        place += XT_ENTRY + extension.info.len();
    }
    match entry.target {
        // The standard target, whose verdict is a place in the table, or below 0.
        XtEntry { name: b"", info, .. } => {
            let goto = u8_at(entry.bytes, layout.flags)? & layout.goto != 0;
            rule.action = verdict(u32_at(info, 0)? as i32, goto, entry, heads);
        }
        target => xt::read_target(&mut rule, target)?,
    }
    Ok(rule)
}

/// The action of a standard target: minus a verdict minus one, `XT_RETURN`, or the offset of the next rule.
fn verdict(code: i32, goto: bool, entry: &Entry<'_>, heads: &[(usize, &[u8])]) -> Action {
    /// `XT_RETURN`, `-NF_REPEAT - 1` (linux/netfilter/x_tables.h).
    const RETURN: i32 = -5;
    match code {
        RETURN => Action::Return,
        _ if code == -libc::NF_ACCEPT - 1 => Action::Accept,
        _ if code == -libc::NF_DROP - 1 => Action::Drop,
        0.. => {
            let to = code as usize;
            let chain = heads.binary_search_by_key(&to, |&(first, _)| first);
            match chain.ok().and_then(|index| heads.get(index)) {
                // A rule without a target goes on with the next one.
                _ if to == entry.offset + entry.bytes.len() => Action::Continue,
                Some((_, name)) if goto => Action::Goto(Name::from(*name)),
                Some((_, name)) => Action::Jump(Name::from(*name)),
                None => Action::NotUnderstood(Label::Verdict(code)),
            }
        }
        _ => Action::NotUnderstood(Label::Verdict(code)),
    }
}

/// The conditions on a packet's header: `struct ipt_ip` and `struct ip6t_ip6`.
fn read_header(layout: &Layout, entry: &[u8]) -> Result<Vec<Condition>, Malformed> {
    const IN: u8 = 1;
    const OUT: u8 = 2;
    const SOURCE: u8 = 8;
    const DESTINATION: u8 = 0x10;
    const FRAGMENT: u8 = 0x20;
    const PROTOCOL: u8 = 0x40;
    let (family, size) = (layout.family, layout.address);
    let flags = u8_at(entry, layout.flags)?;
    let inverted = u8_at(entry, layout.flags + 1)?;
    let names = 4 * size;
    let mut conditions = Vec::new();
    for (field, place, mask, bit) in [
        (Field::Source(family), 0, 2 * size, SOURCE),
        (Field::Destination(family), size, 3 * size, DESTINATION),
        (Field::InInterface, names, names + 32, IN),
        (Field::OutInterface, names + 16, names + 48, OUT),
    ] {
        let held = |place: usize| entry.get(place..place + field.bytes()).ok_or(Malformed);
        let (value, mask) = (held(place)?, held(mask)?);
        let negated = inverted & bit != 0;
        if number(mask) == 0 && !negated {
            continue;
        }
        let numbers = match field {
            // The mask covers the name with its NUL, or the part before a `+`, which the kernel is given too.
            Field::InInterface | Field::OutInterface => {
                let covered = mask.iter().take_while(|byte| **byte == u8::MAX).count();
                let is_rest_free = mask.iter().skip(covered).all(|byte| *byte == 0);
                value.get(..covered).filter(|_| is_rest_free).and_then(devices)
            }
            _ => under_mask(field, number(value), number(mask)),
        };
        conditions.push(match numbers {
            Some(numbers) => Condition::compare(field, numbers, negated),
            None => Condition::Masked { field, mask: number(mask), number: number(value), negated },
        });
    }
    let protocol = u16_at(entry, 4 * size + 64)?;
    // IPv6 has a flag beside the number (`IP6T_F_PROTO`).
    if protocol != 0 && (family == Family::V4 || flags & 1 != 0) {
        conditions.push(Condition::compare(Field::Protocol, u128::from(protocol), inverted & PROTOCOL != 0));
    }
    // `IPT_F_FRAG`
    if family == Family::V4 && flags & 1 != 0 {
        // Connection tracking puts fragments together before any table sees them (nf_defrag_ipv4).
        conditions.push(Condition::Constant { of: Label::Fragment, holds: inverted & FRAGMENT != 0 });
    }
    // iptables-save writes the protocol after addresses and interfaces, as does this.
    Ok(conditions)
}

/// The priority of a table's chains at a hook.
fn priority(table: &str, hook: Hook) -> i32 {
    match table {
        NAT => nat_priority(hook),
        _ => XTABLES.into_iter().find(|(name, _)| *name == table).map_or(0, |(_, priority)| priority),
    }
}

#[cfg(test)]
mod tests {
    use ruleset::xtables::IptablesRule;

    use super::*;
    use crate::netlink::message::put;
    use crate::tests::recorded;

    fn read(family: Family, name: &str, entries: &Entries) -> Result<Table, Malformed> {
        table(family, name, entries, &Numbered::default())
    }

    /// The recorded nat table of a family.
    fn entries_of(family: Family) -> Entries {
        recorded_as(match family {
            Family::V4 => "v4",
            Family::V6 => "v6",
        })
    }

    fn recorded_as(name: &str) -> Entries {
        let mut lines = include_str!("recorded/tables.txt").lines();
        let line = lines.find_map(|line| line.strip_prefix(name)).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let (bytes, words) = words.split_last().unwrap();
        let (count, base_chains) = words.split_last().unwrap();
        let base_chain = |word: &&str| {
            let numbers: Vec<usize> = word.split(',').map(|number| number.parse().unwrap()).collect();
            (numbers[0], numbers[1], numbers[2])
        };
        Entries {
            base_chains: base_chains.iter().map(base_chain).collect(),
            count: count.parse().unwrap(),
            bytes: recorded(bytes),
        }
    }

    /// Its chains and its rules, a line each.
    fn saved(table: &Table) -> Vec<String> {
        let mut lines = Vec::new();
        for chain in &table.chains {
            let base = chain.base.map(|base| (base.kind, base.hook, base.priority, base.policy));
            lines.push(format!(":{} {base:?}", chain.name));
            let rules = chain.rules.iter();
            lines.extend(rules.map(|rule| format!("-A {} {}", chain.name, IptablesRule(rule)).trim_end().to_owned()));
        }
        lines
    }

    /// As iptables-legacy-save saved it but for `-m recent`, of which only the name is kept.
    #[test]
    fn a_table_is_read_as_the_kernel_holds_it() {
        let saved = |family| saved(&read(family, NAT, &entries_of(family)).unwrap());
        let output = [
            ":OUTPUT Some((Nat, Output, -100, Accept))",
            "-A OUTPUT -m owner --uid-owner 2102 -j RETURN",
            "-A OUTPUT -o lo -j RETURN",
            "-A OUTPUT -o eth+ -p udp -j ACCEPT",
            "-A OUTPUT -p tcp -m tcp ! --sport 1:1023 -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -g SUB",
            "-A OUTPUT -m conntrack --ctstate NEW,ESTABLISHED -j SUB",
            "-A OUTPUT -p tcp",
            ":POSTROUTING Some((Nat, Postrouting, 100, Accept))",
            ":SUB None",
            "-A SUB -p tcp -m tcp --dport 80 -m comment --comment \"why not\" -j REDIRECT --to-ports 4143",
            "-A SUB -p tcp -m multiport --dports 80,8000:8100 -j RETURN",
        ];
        let v4 = [
            ":PREROUTING Some((Nat, Prerouting, -100, Accept))",
            "-A PREROUTING ! -s 10.0.0.0/8 -d 192.0.2.1/32 -i eth0 -p tcp -j DNAT --to-destination 10.0.0.1:8080",
            "-A PREROUTING -m recent [...] -j LOG",
            "-A PREROUTING -f -j ACCEPT",
            ":INPUT Some((Nat, Input, 100, Accept))",
        ];
        let v6 = [
            ":PREROUTING Some((Nat, Prerouting, -100, Accept))",
            "-A PREROUTING -s fd00::/8 ! -d 2001:db8::1/128 -p tcp -j DNAT --to-destination [fd00::1]:8080",
            ":INPUT Some((Nat, Input, 100, Accept))",
        ];
        let only_v4 = ["-A SUB ! -s 10.0.0.0/8 -d 192.0.2.1/32 -i eth0 -j RETURN"];
        assert_eq!(saved(Family::V4), [&v4[..], &output, &only_v4].concat());
        assert_eq!(saved(Family::V6), [&v6[..], &output].concat());
    }

    /// nat tables have no such rules: packets are dropped, by a rule or by a policy; and few people write the others.
    #[test]
    fn a_filter_table_is_read_as_the_kernel_holds_it() {
        let table = read(Family::V4, "filter", &recorded_as("filter")).unwrap();
        assert_eq!(
            saved(&table),
            [
                ":INPUT Some((Filter, Input, 0, Accept))",
                "-A INPUT -m conntrack --ctstate INVALID -j DROP",
                "-A INPUT ! -i eth0 -j DROP",
                "-A INPUT ! -p tcp -j RETURN",
                "-A INPUT ! -f -j ACCEPT",
                "-A INPUT -s 10.0.0.1/255.0.0.255 -j DROP",
                "-A INPUT ! -d 0.0.0.0/0 -j DROP",
                ":FORWARD Some((Filter, Forward, 0, Drop))",
                "-A FORWARD ! -o eth+ -p tcp -j LIMITED",
                "-A FORWARD -j NFQUEUE",
                ":OUTPUT Some((Filter, Output, 0, Accept))",
                ":LIMITED None",
                "-A LIMITED -m limit --limit 3/min --limit-burst 5 -j ACCEPT",
                "-A LIMITED -p tcp -j REJECT --reject-with tcp-reset",
            ]
        );
    }

    #[test]
    fn a_rule_has_its_counters() {
        for family in Family::ALL {
            let mut entries = entries_of(family);
            let layout = Layout::of(family);
            assert_eq!(counters(family, &entries).unwrap().len() as u32, entries.count);
            let (_, first, _) = entries.base_chains[0];
            for (place, number) in [(0, 7u64), (8, 420)] {
                put(&mut entries.bytes, first + layout.counters + place, &number.to_ne_bytes());
            }
            let rule = &read(family, NAT, &entries).unwrap().chains[0].rules[0];
            assert_eq!(rule.counters, Some(Counters { packets: 7, bytes: 420 }));
            let counted = [7u64.to_ne_bytes(), 420u64.to_ne_bytes()].concat();
            assert!(counters(family, &entries).unwrap().iter().any(|counters| counters[..] == counted));
        }
    }

    /// Of IPv6, a number without its flag is compared with nothing.
    #[test]
    fn a_protocol_has_a_flag_beside_it() {
        let mut entries = entries_of(Family::V6);
        let (_, first, _) = entries.base_chains[0];
        let rule = |entries: &Entries| saved(&read(Family::V6, NAT, entries).unwrap())[1].clone();
        assert!(rule(&entries).contains(" -p tcp "));
        put(&mut entries.bytes, first + Layout::of(Family::V6).flags, &[0]);
        assert!(!rule(&entries).contains(" -p "));
    }

    /// Wherever it is cut off, it neither panics nor passes for whole. The last entry only ends the table.
    #[test]
    fn a_table_that_is_cut_off_is_another_one_or_none() {
        for family in Family::ALL {
            let whole = entries_of(family);
            let end = split_entries(&Layout::of(family), &whole.bytes).unwrap().last().unwrap().offset;
            for length in 0..end {
                let mut cut = whole.clone();
                cut.bytes.truncate(length);
                assert!(read(family, NAT, &cut) != read(family, NAT, &whole), "{length}");
            }
        }
    }
}
