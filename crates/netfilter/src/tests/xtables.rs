//! Compares our reading of matches and targets with that of iptables and the kernel.

use std::net::IpAddr;

use ruleset::flags::{CtState, Tracked};
use ruleset::xtables::IptablesRule;
use ruleset::{Action, Bits, Condition, Context, Effect, Family, Field, Intervals, Numbered, Rule, address};

use super::recorded;
use crate::xt::{XtEntry, read_match, read_target, redirect};

/// A rule that was recorded, and read for a family.
struct Row {
    family: Family,
    /// As iptables-legacy-save writes it.
    saved: &'static str,
    /// As it is said here.
    said: &'static str,
    rule: Rule,
}

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for line in include_str!("../recorded/xtables.txt").lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<&str> = line.split(" | ").collect();
        let (families, saved, extensions) = (columns[0], columns[1], columns[2]);
        for family in families.split(',').map(|name| if name == "v4" { Family::V4 } else { Family::V6 }) {
            let mut rule = Rule::new(vec![], Action::Continue);
            for extension in extensions.split(' ') {
                let parts: Vec<&str> = extension.split([':', '/']).collect();
                let (name, revision) = (parts[1].as_bytes(), parts[2].parse().unwrap());
                let mut info = recorded(parts[3]);
                info.resize(parts[4].parse().unwrap(), 0);
                let entry = XtEntry { family, name, revision, info: &info };
                match parts[0] {
                    "m" => read_match(&mut rule, entry, &Numbered::default()).unwrap(),
                    _ => read_target(&mut rule, entry).unwrap(),
                }
            }
            rows.push(Row { family, saved, said: columns.get(3).unwrap_or(&saved), rule });
        }
    }
    rows
}

impl Row {
    /// The value of one of its options, and whether that is negated.
    fn option(&self, name: &str) -> Option<(&'static str, bool)> {
        let (before, after) = self.saved.split_once(&format!("{name} "))?;
        Some((after.split(' ').next().unwrap(), before.trim_end().ends_with('!')))
    }

    /// The numbers of one of its conditions on a field, and whether that is negated.
    fn numbers(&self, wanted: Field) -> Option<(&[(u128, u128)], bool)> {
        self.rule.conditions.iter().find_map(|condition| match condition {
            Condition::In { field, values, negated } if *field == wanted => Some((values.listed()?, *negated)),
            _ => None,
        })
    }

    fn contexts(&self) -> Vec<Context> {
        let contexts = self.rule.conditions.iter().filter_map(|condition| match condition {
            Condition::Context(context) => Some(context.clone()),
            _ => None,
        });
        contexts.collect()
    }
}

fn number(hex: &str) -> u128 {
    u128::from_str_radix(hex.trim_start_matches("0x"), 16).unwrap()
}

/// The part before the slash, and after it.
fn masked(value: &str) -> (u128, u128) {
    let (mark, mask) = value.split_once('/').unwrap_or((value, "0xffffffff"));
    (number(mark), number(mask))
}

/// The kernel takes this in no other form (`redirect_tg4_check` in net/netfilter/xt_REDIRECT.c).
#[test]
fn redirections_are_written_as_iptables_writes_them() {
    let mut compared = 0;
    for line in include_str!("../recorded/xtables.txt").lines() {
        let Some((saved, info)) = line.split_once(" | t:REDIRECT:0:") else {
            continue;
        };
        let family = if saved.starts_with("v4") { Family::V4 } else { Family::V6 };
        let ports = match saved.rsplit_once("--to-ports ") {
            Some((_, ports)) if !ports.contains(' ') => {
                let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
                Some((first.parse().unwrap(), last.parse().unwrap()))
            }
            None if saved.ends_with("-j REDIRECT") => None,
            _ => continue,
        };
        let (hex, length) = info.split_once('/').unwrap();
        let mut info = recorded(hex);
        info.resize(length.parse().unwrap(), 0);
        assert_eq!(redirect(family, ports), info, "{saved}");
        compared += 1;
    }
    assert_eq!(compared, 6);
}

/// In iptables' own words, unless the row says otherwise.
#[test]
fn matches_and_targets_are_said_as_iptables_saves_them() {
    let mut wrong = Vec::new();
    for Row { saved, said, rule, .. } in rows() {
        let written = IptablesRule(&rule).to_string();
        if written.trim_end() != said {
            wrong.push(format!("{saved}\n    wanted {said}\n    read   {written}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// TCP's packets have none of them, and a negated match needs the header too.
#[test]
fn matches_on_headers_of_ipv6_that_tcp_lacks_never_hold() {
    let rows: Vec<Row> = rows().into_iter().filter(|row| row.said.ends_with(" [...]")).collect();
    for name in ["rt", "frag", "hbh", "dst", "mh", "srh"] {
        let row = rows.iter().find(|row| row.said == format!("-m {name} [...]")).unwrap();
        let conditions = row.rule.conditions.as_slice();
        assert!(matches!(conditions, [Condition::Constant { holds: false, .. }]), "{}", row.saved);
    }
}

#[test]
fn ranges_of_addresses_are_those_that_are_named() {
    let mut compared = 0;
    for row in rows() {
        for (option, field) in
            [("--src-range", Field::Source(row.family)), ("--dst-range", Field::Destination(row.family))]
        {
            let Some((value, negated)) = row.option(option) else {
                continue;
            };
            let (first, last) = value.split_once('-').unwrap();
            let [first, last] = [first, last].map(|text| address(text.parse::<IpAddr>().unwrap()));
            assert_eq!(row.numbers(field), Some((&[(first, last)][..], negated)), "{}", row.saved);
            compared += 1;
        }
    }
    assert_eq!(compared, 9);
}

#[test]
fn states_are_those_that_are_named() {
    let mut compared = 0;
    for row in rows() {
        let states = row.option("--ctstate").or_else(|| row.option("--state"));
        let direction = row.option("--ctdir");
        let conditions = row.rule.conditions.iter().filter_map(|condition| match condition {
            Condition::In { field: Field::State, values, .. } => values.listed(),
            _ => None,
        });
        let conditions: Vec<Intervals> = conditions.map(|list| Intervals::new(list.iter().copied())).collect();
        assert_eq!(conditions.len(), usize::from(states.is_some()) + usize::from(direction.is_some()), "{}", row.saved);
        for tracked in Tracked::all().filter(|_| !conditions.is_empty()) {
            let name = match tracked.state {
                CtState::Invalid => "INVALID",
                CtState::Established => "ESTABLISHED",
                CtState::Related => "RELATED",
                CtState::New => "NEW",
                CtState::Untracked => "UNTRACKED",
            };
            let has_entry = !["INVALID", "UNTRACKED"].contains(&name);
            let is_among = states.is_none_or(|(names, negated)| {
                let mut names = names.split(',');
                negated
                    != names.any(|named| {
                        named == name
                            || has_entry && (named == "SNAT" && tracked.has_snat || named == "DNAT" && tracked.has_dnat)
                    })
            });
            // conntrack_mt in net/netfilter/xt_conntrack.c compares what has no entry by its state alone.
            let is_that_way = direction
                .is_none_or(|(way, _)| if has_entry { tracked.is_reply == (way == "REPLY") } else { states.is_some() });
            let at = tracked.number();
            let holds = conditions.iter().all(|numbers| numbers.meets(&[(at, at)]));
            assert_eq!(holds, is_among && is_that_way, "{}: {tracked:?}", row.saved);
            compared += 1;
        }
    }
    assert_eq!(compared, 2 * 11 * 40);
}

#[test]
fn what_routing_and_counters_decide_is_what_is_named() {
    let names = ["UNSPEC", "UNICAST", "LOCAL", "BROADCAST", "ANYCAST", "MULTICAST"];
    let (mut types, mut paths, mut limits) = (0, 0, 0);
    for row in rows() {
        let mut want = Vec::new();
        for (option, is_source) in [("--src-type", true), ("--dst-type", false)] {
            if let Some((listed, negated)) = row.option(option) {
                let places = listed.split(',').map(|kind| names.iter().position(|name| *name == kind).unwrap());
                let types = places.map(|place| 1 << place).sum();
                let of_device = row.saved.contains("--limit-iface-in").then_some(Field::InInterface);
                want.push(Context::AddressType { is_source, types, negated, is_xt: true, of_device });
            }
        }
        types += want.len();
        if row.saved.starts_with("-m rpfilter") {
            let has = |option| row.saved.contains(option);
            let named = ["--loose", "--validmark", "--accept-local", "--invert"].into_iter().zip(0..);
            let flags = named.map(|(name, bit)| u8::from(has(name)) << bit).sum();
            want.push(Context::ReversePath {
                is_loose: has("--loose"),
                negated: has("--invert"),
                xt_flags: Some(flags),
            });
            paths += 1;
        }
        let named = |words: &[&str]| words.iter().any(|word| row.saved.contains(word));
        if named(&["-m limit", "-m hashlimit", "-m quota", "-m connlimit", "-m recent"]) {
            // Of what `recent` sets, everybody is new; what it looks for, nobody has done before.
            let holds_below = match row.saved {
                words if words.contains("-m recent --set") => true,
                words if words.contains("-m recent ! --set") => false,
                words if words.contains("-m recent ! --rcheck") => true,
                words if words.contains("-m recent") => false,
                words => !words.contains("-above") && !words.contains("! --quota"),
            };
            limits += 1;
            let held: Vec<bool> = row
                .rule
                .conditions
                .iter()
                .filter_map(|condition| match condition {
                    Condition::Context(Context::Limit { holds_below, .. }) => Some(*holds_below),
                    // Of what `recent` sets, everybody is new.
                    Condition::Constant { holds, .. } => Some(*holds),
                    _ => None,
                })
                .collect();
            assert_eq!(held, [holds_below], "{}", row.saved);
        }
        let mut contexts = row.contexts();
        contexts.retain(|context| !matches!(context, Context::Limit { .. }));
        assert_eq!(contexts, want, "{}", row.saved);
    }
    assert_eq!((types, paths, limits), (17, 12, 35));
}

#[test]
fn marks_are_compared_and_set_bit_by_bit() {
    let (mut compared, mut set) = (0, 0);
    for row in rows() {
        let saved = row.saved;
        if let Some((value, _)) = row.option("--mark") {
            let (want, mask) = masked(value);
            let of = if saved.contains("connmark") { Field::ConnectionMark } else { Field::Mark };
            let [Condition::Masked { field, mask: read, number, negated, .. }] = row.rule.conditions.as_slice() else {
                panic!("{saved}: {:?}", row.rule.conditions);
            };
            assert_eq!((*field, *number, *read, *negated), (of, want, mask, saved.contains('!')), "{saved}");
            compared += 1;
        }
        let [Effect::Mark { field, to, .. }] = row.rule.effects.as_slice() else {
            continue;
        };
        if *field == Field::HopLimit {
            continue;
        }
        let bits = |field, mask, xor| Some(Bits { field, mask, xor });
        let whole = u128::from(u32::MAX);
        let want = if let Some((value, _)) = row.option("--set-xmark") {
            let (mark, cleared) = masked(value);
            let of = if saved.contains("CONNMARK") { Field::ConnectionMark } else { Field::Mark };
            (of, bits(of, whole & !cleared, mark))
        } else {
            let [packets, connections] = ["--nfmask", "--ctmask"].map(|option| number(row.option(option).unwrap().0));
            if saved.contains("--save-mark") {
                (Field::ConnectionMark, bits(Field::Mark, packets, 0).filter(|_| connections == whole))
            } else {
                (Field::Mark, bits(Field::ConnectionMark, connections, 0).filter(|_| packets == whole))
            }
        };
        assert_eq!((*field, *to), want, "{saved}");
        set += 1;
    }
    assert_eq!((compared, set), (8, 26));
}

/// Those that register connection tracking where they are checked (`nf_ct_netns_get` in net/netfilter/xt_*.c).
#[test]
fn what_needs_connection_tracking_is_known_by_its_name() {
    let names = ["conntrack", "state", "connmark", "connlimit", "helper", "CONNMARK", "CONNSECMARK", "CT", "NOTRACK"];
    for row in rows() {
        let needs = names.iter().any(|name| row.saved.split(' ').any(|word| word == *name));
        assert_eq!(row.rule.needs_tracking, needs, "{}", row.saved);
    }
}
