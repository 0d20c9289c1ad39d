//! Compares expected with found rules: a pure function, the same for every mode.
//!
//! It compares our chains rule by rule, and then asks the [walk](trace) whether anything that runs
//! before them, or instead of them, takes connections away.

use std::borrow::Cow;
use std::collections::HashMap;

use ruleset::nftables::{family_condition, set_element};
use ruleset::{
    Action, Chain, Condition, Context, Direction, Effect, Family, Field, Intervals, LOOPBACK, Rule, Set, Subsystem,
    Table, TableFamily, interface, set_field,
};
use ruleset::{Device, Line, Network, Ruleset};
use trace::{
    Connections, Environment, Leg, Meeting, Neighbours, Outcome, Place, Treatment, Watched, discovery, names_except_lo,
    there_and_back,
};

use crate::config::Mode;
use crate::diagnose::explain::answer::proxy;
use crate::diagnose::ownership::{leads_to, own_lines, without_time};
use crate::diagnose::verify::finding::{Finding, FindingKind, Interference, Subject, deed};
use crate::plan::{ChainName, chain_of};

/// The rules that keep neighbours on these devices from finding each other.
pub fn discovery_findings(ruleset: &Ruleset, network: &Network, family: Family, devices: &[&Device]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (direction, &device) in
        Direction::ALL.into_iter().flat_map(|direction| devices.iter().map(move |device| (direction, device)))
    {
        let neighbours = Neighbours {
            family,
            direction,
            devices: Device::names([device]),
            asking: Neighbours::unicast(),
            asked: Neighbours::unicast(),
        };
        let walk = discovery(ruleset, network, &neighbours);
        if !walk.arrived.is_empty() {
            continue;
        }
        for outcome in walk.decisions.iter().filter(|outcome| outcome.treatment == Treatment::Dropped) {
            let Some(at) = outcome.at.filter(|_| outcome.is_certain()) else {
                continue;
            };
            let what = match (family, outcome.packet) {
                (Family::V4, Leg::Advertisement) => "ARP's replies",
                (Family::V4, _) => "ARP's requests",
                (Family::V6, Leg::Advertisement) => "neighbour advertisements (ICMPv6 136)",
                (Family::V6, _) => "neighbour solicitations (ICMPv6 135)",
            };
            let so = match direction {
                Direction::Inbound => format!("no neighbour finds an {family} address of this network namespace"),
                Direction::Outbound => format!("this network namespace finds no neighbour over {family}"),
            };
            let admitting = admitting_command(at, family, outcome.packet);
            let interference = Interference { is_certain: true, ..Interference::default() };
            let finding = Finding {
                remedy: match admitting {
                    Some(_) => "; the command marked - lets them through",
                    None => "; they need a hop limit of 255",
                },
                wanted: admitting.into_iter().collect(),
                ..dropped(at, family, format!("drops {what}, so {so}"), interference)
            };
            if !findings.contains(&finding) {
                findings.push(finding);
            }
        }
    }
    findings
}

/// A rule that names other hosts, in words after it.
const BARS: &str = "keeps out hosts that it names";

/// The finding that a place of another program drops connections, or packets before them.
fn dropped(at: Place<'_>, family: Family, words: String, interference: Interference) -> Finding {
    let subject = Subject::Other(at.table().to_string(), at.chain().name.clone());
    Finding {
        family: TableFamily::Ip(family),
        words,
        found: vec![name_of_place(at)],
        interference: Some(interference),
        ..Finding::new(at.table(), subject, FindingKind::Dropped)
    }
}

/// A rule, or the policy of a chain.
fn name_of_place(at: Place<'_>) -> String {
    match at {
        Place::Rule(line) => line.to_string(),
        Place::Policy(_) => format!("policy drop of {} {}", at.table(), at.chain().name),
    }
}

/// The command that lets packets of neighbour discovery past a place that drops them; none if it loses them by changing
/// their hop limit.
fn admitting_command(at: Place<'_>, family: Family, packet: Leg) -> Option<String> {
    let mut effects = at.rule().into_iter().flat_map(|rule| &rule.effects);
    if effects.any(|effect| matches!(effect, Effect::Mark { field: Field::HopLimit, .. })) {
        return None;
    }
    let (table, chain) = (at.table(), &at.chain().name);
    if family == Family::V4 {
        let arp = match (table.family, packet) {
            (TableFamily::Netdev, _) => "meta protocol arp",
            (_, Leg::Advertisement) => "arp operation reply",
            _ => "arp operation request",
        };
        return Some(format!("nft insert rule {table} {chain} {arp} accept"));
    }
    let (nft, iptables) = match packet {
        Leg::Advertisement => ("nd-neighbor-advert", "neighbour-advertisement"),
        _ => ("nd-neighbor-solicit", "neighbour-solicitation"),
    };
    if !table.is_xtables() {
        return Some(format!("nft insert rule {table} {chain} icmpv6 type {nft} accept"));
    }
    let command = match table.subsystem {
        Subsystem::Legacy => "ip6tables-legacy",
        Subsystem::NfTables => "ip6tables",
    };
    let name = &table.name;
    Some(format!("{command} -t {name} -I {chain} -p ipv6-icmp --icmpv6-type {iptables} -j ACCEPT"))
}

/// The differences, in a mode's tables, between the rules that it would install and those found in this network.
pub fn differences(mode: Mode, expected: &[Table], ruleset: &Ruleset, network: &Network) -> Vec<Finding> {
    let mut findings = Vec::new();
    for table in expected {
        let held = ruleset.table(table.subsystem, table.family, &table.name.to_string());
        findings.extend(match mode {
            Mode::Native => compare_native(table, held),
            Mode::Nft | Mode::Legacy => compare_xtables(table, held),
        });
    }
    if mode != Mode::Native {
        let unwanted = ruleset.nat_tables(mode.subsystem()).filter(|held| !expected.iter().any(|table| table.is(held)));
        findings.extend(unwanted.flat_map(own_lines).map(unexpected));
    }
    let mut others: Vec<Finding> = Vec::new();
    for table in expected {
        for family in Family::ALL.into_iter().filter(|&family| is_for_family(table, family)) {
            let around = Environment { network, ..proxy(std::slice::from_ref(table)) };
            for direction in Direction::ALL {
                others.extend(shadows(table, family, direction, ruleset, &around, &findings));
            }
            // Where rules are missing, connections don't get to the proxy.
            if findings.is_empty() {
                let mut onward = onward_losses(table, family, ruleset, &around);
                // Once is enough for a rule that drops connections to the proxy too.
                onward
                    .retain(|one| !others.iter().any(|known| (known.family, &known.found) == (one.family, &one.found)));
                others.extend(onward);
            }
        }
    }
    findings.extend(one_for_each_rule(others));
    findings
}

/// The rules that lose connections which the proxy makes: by lo to the ports on which the pod's programs listen, and to
/// other hosts.
fn onward_losses(expected: &Table, family: Family, ruleset: &Ruleset, around: &Environment<'_>) -> Vec<Finding> {
    let network = around.network;
    if around.uids.is_empty() {
        return Vec::new();
    }
    let own = network.own_addresses(family).without(&network.broadcasts(family));
    let lo = Intervals::one(interface(LOOPBACK));
    let there = network.device_names().without(&lo).without(&network.port_names());
    let to = Field::Destination(family);
    let mut proxys = Connections::living(family, Direction::Outbound).narrowed(Field::Uid, &around.uids);
    if !around.gids.is_empty() {
        proxys = proxys.narrowed(Field::Gid, &around.gids);
    }
    let listening = network.listeners.iter().filter(|listener| listener.accepts(Direction::Inbound, family));
    let ports = Intervals::each(listening.map(|listener| listener.port)).without(&around.ports);
    let to_apps = proxys
        .narrowed(Field::OutInterface, &lo)
        .narrowed(Field::Source(family), &own)
        .narrowed(to, &own)
        .narrowed(Field::DestinationPort, &ports);
    let loopback = match family {
        Family::V4 => Intervals::new([(0x7f00_0000, 0x7fff_ffff)]),
        Family::V6 => Intervals::one(1),
    };
    let others = to.any().without(&own).without(&network.broadcasts(family)).without(&loopback);
    let mut to_others = proxys.narrowed(Field::OutInterface, &there).narrowed(to, &others);
    let from = if own.is_empty() { Field::Source(family).any() } else { own.clone() };
    to_others = to_others.narrowed(Field::Source(family), &from.without(&loopback));
    let mut findings = Vec::new();
    for connections in [to_apps, to_others] {
        if [to, Field::DestinationPort, Field::OutInterface]
            .iter()
            .any(|&field| connections.get(field).is_none_or(Intervals::is_empty))
        {
            continue;
        }
        let given = connections.get(to).cloned();
        let walk = there_and_back(ruleset, family, Direction::Outbound, connections, around, None);
        for outcome in walk.decisions.iter().filter(|outcome| outcome.treatment == Treatment::Dropped) {
            let Some(at) = outcome.at.filter(|_| around.could_live(&outcome.connections, family, Direction::Outbound))
            else {
                continue;
            };
            // A finding of its own is about these policies.
            if matches!(at, Place::Policy(_)) && at.table().is(expected) {
                continue;
            }
            // The proxy's connections have these anyway.
            let mut unsaid = vec![Field::Uid, Field::Gid, Field::OutInterface, Field::Source(family)];
            unsaid.extend((outcome.connections.get(to) == given.as_ref()).then_some(to));
            let connections = outcome.connections.without_fields(&unsaid).to_string();
            let is_certain = outcome.is_certain();
            let is_barring = is_certain && bars_others(at, family, network);
            let what = if outcome.packet == Leg::Reply { "the replies to connections" } else { "connections" };
            let words = if is_barring {
                BARS.to_owned()
            } else {
                deed(Treatment::Dropped, is_certain, &format!("{what} from the proxy"))
            };
            let interference = Interference {
                connections: Some(connections),
                is_certain,
                is_barring,
                is_from_proxy: true,
                ..Interference::default()
            };
            findings.push(dropped(at, family, words, interference));
        }
    }
    findings
}

/// Merges the findings about a rule to which several ways lead, which differ in their connections.
fn one_for_each_rule(findings: Vec<Finding>) -> Vec<Finding> {
    /// The most sets of connections that are named for a rule.
    const MOST: usize = 4;
    let mut sets: HashMap<Finding, Vec<String>> = HashMap::new();
    let mut kept = Vec::new();
    for mut finding in findings {
        let connections = finding.interference.as_mut().and_then(|known| known.connections.take());
        let said = sets.entry(finding.clone()).or_insert_with(|| {
            kept.push(finding);
            Vec::new()
        });
        said.extend(connections.filter(|connections| said.len() <= MOST && !said.contains(connections)));
    }
    for finding in &mut kept {
        let mut said = sets.remove(finding).unwrap_or_default();
        if let Some(Interference { connections, .. }) = &mut finding.interference {
            if said.len() > MOST {
                said.splice(MOST.., ["...".to_owned()]);
            }
            *connections = Some(said.join("; "));
        }
    }
    kept
}

/// Returns true if a place drops packets because its rule names addresses of other hosts, whatever device they pass:
/// then it keeps out these hosts. A rule that also covers this namespace's own addresses would drop everybody's
/// packets.
fn bars_others(at: Place<'_>, family: Family, network: &Network) -> bool {
    let Some(rule) = at.rule() else {
        return false;
    };
    let all = Connections::all(family, Direction::Inbound);
    let own = network.own_addresses(family);
    let mut names_others = false;
    for condition in &rule.conditions {
        if let Condition::Context(set @ Context::IpSet { .. }) = condition {
            let mut held = network.facts.holding(set, None).into_iter().flatten();
            names_others |= held.any(|(field, numbers)| {
                [Field::Source(family), Field::Destination(family)].contains(&field) && !numbers.meets(own.as_slice())
            });
        }
        match condition.field() {
            Some(Field::InInterface | Field::OutInterface) => return false,
            Some(field) if [Field::Source(family), Field::Destination(family)].contains(&field) => {
                if let Meeting::Some(addresses) = all.meeting(at.table(), condition) {
                    names_others |= !addresses.meets(own.as_slice());
                }
            }
            _ => {}
        }
    }
    names_others && !own.is_empty()
}

/// Returns true if a table has rules for a family. Native mode's table sees both families, but its jumps may be for
/// only one.
fn is_for_family(table: &Table, family: Family) -> bool {
    let base = table.chains.iter().find(|chain| chain.base.is_some());
    let conditions = base.and_then(|chain| chain.rules.first()).map(|jump| &jump.conditions);
    let mut others = Family::ALL.into_iter().filter(|&other| other != family);
    table.family.sees(family)
        && !others.any(|other| conditions.is_some_and(|conditions| conditions.contains(&family_condition(other))))
}

/// Compares a family's nat table, which other programs use too.
fn compare_xtables(expected: &Table, held: Option<&Table>) -> Vec<Finding> {
    let Some(held) = held.filter(|table| own_lines(table).next().is_some()) else {
        let words = format!("all {} rules are missing", expected.rules().count());
        return vec![Finding { words, ..of_table(expected, FindingKind::NoRules) }];
    };
    let mut findings = compare_chains(expected, held, true);
    findings.extend(own_lines(held).filter(|line| expected.chain(&line.chain.name).is_none()).map(unexpected));
    findings.extend(held.dormant.then(|| of_table(expected, FindingKind::Dormant)));
    findings
}

/// Compares native mode's table, which is ours alone.
fn compare_native(expected: &Table, held: Option<&Table>) -> Vec<Finding> {
    let Some(held) = held else {
        return vec![of_table(expected, FindingKind::NoChain)];
    };
    let mut findings = Vec::from_iter(held.dormant.then(|| of_table(expected, FindingKind::Dormant)));
    findings.extend(compare_chains(expected, held, false));
    findings.extend(compare_sets(expected, held));
    findings
}

fn compare_chains(expected: &Table, held: &Table, is_shared: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for chain in &expected.chains {
        let of = |kind| Finding::new(expected, Subject::Chain(chain.name.clone()), kind);
        let held_chain = held.chain(&chain.name);
        let found = held_chain.map(|chain| lines(held, chain)).unwrap_or_default();
        findings.extend(match held_chain {
            None if is_shared && chain.base.is_none() => vec![of(FindingKind::NoChain)],
            Some(_) if is_shared && chain.base.is_some() => compare_jumps(&lines(expected, chain), &found, of),
            _ => compare_lists(&lines(expected, chain), &found, of),
        });
        let hook = |chain: &Chain| chain.base.map(|base| (base.kind, base.hook));
        // Our own chain sees connections nevertheless if it is hooked; no jump can lead to it.
        if chain.base.is_some() && held_chain.is_some_and(|held| hook(held) != hook(chain)) {
            findings.push(of(FindingKind::NotHooked));
        }
    }
    findings
}

fn compare_sets(expected: &Table, held: &Table) -> Vec<Finding> {
    let mut findings = Vec::new();
    let of = |set: &Set, kind| Finding::new(expected, Subject::Set(set.name.clone()), kind);
    for set in &held.sets {
        let what = match expected.set(&set.name) {
            None => "the set",
            Some(_) if set.expires => "elements that expire",
            Some(_) => continue,
        };
        findings.push(Finding { found: vec![what.to_owned()], ..of(set, FindingKind::Unexpected) });
    }
    for set in &expected.sets {
        let found = held.set(&set.name).map(elements).unwrap_or_default();
        findings.extend(compare_lists(&elements(set), &found, |kind| of(set, kind)));
    }
    findings
}

fn of_table(table: &Table, kind: FindingKind) -> Finding {
    Finding::new(table, Subject::Table(table.to_string()), kind)
}

fn unexpected(line: Line<'_>) -> Finding {
    let of_chain = Finding::new(line.table, Subject::Chain(line.chain.name.clone()), FindingKind::Unexpected);
    Finding { found: vec![line.to_string()], ..of_chain }
}

/// Something that is compared: a rule, or a set's element.
struct Comparable<'a> {
    /// Without the time of linkerd-init before 2.4.0, which says nothing about the rule.
    rule: Option<Cow<'a, Rule>>,
    text: String,
}

impl Comparable<'_> {
    /// Returns true if both are the same. Rules are compared by their effect, because their text may leave out what
    /// isn't understood.
    fn is(&self, other: &Self) -> bool {
        match (&self.rule, &other.rule) {
            (Some(rule), Some(other)) => rule.same_rule(other),
            _ => self.text == other.text,
        }
    }

    /// Returns true if both are rules with the same comment, and so with the same purpose.
    fn is_named_like(&self, other: &Self) -> bool {
        let own = self.rule.as_ref().and_then(|rule| rule.comment.as_ref());
        own.is_some() && own == other.rule.as_ref().and_then(|rule| rule.comment.as_ref())
    }
}

fn lines<'a>(table: &'a Table, chain: &'a Chain) -> Vec<Comparable<'a>> {
    let lines = Line::all(table, chain).map(|line| Comparable {
        rule: Some(without_time(line.rule).map_or(Cow::Borrowed(line.rule), Cow::Owned)),
        text: line.to_string(),
    });
    lines.collect()
}

fn elements(set: &Set) -> Vec<Comparable<'_>> {
    let texts = set.intervals().iter().map(|&interval| set_element(set_field(set), interval));
    texts.map(|text| Comparable { rule: None, text }).collect()
}

/// Compares two lists; `of` makes a finding about them.
fn compare_lists(
    expected: &[Comparable<'_>],
    found: &[Comparable<'_>],
    of: impl Fn(FindingKind) -> Finding,
) -> Vec<Finding> {
    if expected.len() == found.len() && expected.iter().zip(found).all(|(expected, found)| expected.is(found)) {
        return Vec::new();
    }
    let mut extra: Vec<&Comparable<'_>> = found.iter().collect();
    let mut missing: Vec<&Comparable<'_>> = Vec::new();
    for rule in expected {
        match extra.iter().position(|found| found.is(rule)) {
            Some(index) => drop(extra.remove(index)),
            None => missing.push(rule),
        }
    }
    if missing.is_empty() && extra.is_empty() {
        let texts = |list: &[Comparable<'_>]| list.iter().map(|line| line.text.clone()).collect();
        return vec![Finding { wanted: texts(expected), found: texts(found), ..of(FindingKind::OutOfOrder) }];
    }
    let mut findings = Vec::new();
    for rule in missing {
        let like = extra.iter().position(|found| found.is_named_like(rule)).map(|index| extra.remove(index));
        let kind = if like.is_some() { FindingKind::Different } else { FindingKind::Missing };
        let found = like.into_iter().map(|like| like.text.clone()).collect();
        findings.push(Finding { wanted: vec![rule.text.clone()], found, ..of(kind) });
    }
    let extra = extra.into_iter().map(|line| line.text.clone());
    findings.extend(extra.map(|text| Finding { found: vec![text], ..of(FindingKind::Unexpected) }));
    findings
}

/// Compares the jumps to our chain among the rules of a base chain.
fn compare_jumps(
    expected: &[Comparable<'_>],
    found: &[Comparable<'_>],
    of: impl Fn(FindingKind) -> Finding,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for jump in expected {
        match found.iter().filter(|line| line.is(jump)).count() {
            0 => findings.push(Finding { wanted: vec![jump.text.clone()], ..of(FindingKind::Missing) }),
            1 => {}
            _ => findings.push(Finding { found: vec![jump.text.clone()], ..of(FindingKind::Doubled) }),
        }
        for line in found.iter().filter(|line| !line.is(jump)) {
            if line.rule.as_ref().is_some_and(|rule| leads_to(rule).is_some()) {
                findings.push(Finding { found: vec![line.text.clone()], ..of(FindingKind::Unexpected) });
            }
        }
    }
    findings
}

/// Finds everything that keeps one direction's connections from our chain, apart from earlier findings.
fn shadows(
    expected: &Table,
    family: Family,
    direction: Direction,
    ruleset: &Ruleset,
    around: &Environment<'_>,
    known: &[Finding],
) -> Vec<Finding> {
    let watched = Watched { table: expected, chain: ChainName::of(direction).as_str() };
    let end = match direction {
        Direction::Inbound => Field::Destination(family),
        Direction::Outbound => Field::Source(family),
    };
    let mut connections = Connections::living(family, direction);
    if around.network.redirect_addresses(family, &names_except_lo()).is_some() {
        let own = around.network.own_addresses(family).without(&around.network.broadcasts(family));
        connections = connections.narrowed(end, &own);
    }
    let here = connections.get(end).cloned();
    let walk = there_and_back(ruleset, family, direction, connections, around, Some(watched));
    let base = chain_of(expected, ChainName::of(direction).counterpart());
    let jump = base.and_then(|chain| Line::all(expected, chain).next()).map(|line| line.to_string());
    let base = base.map(|base| Subject::Chain(base.name.clone()));
    // If the way to the chain is broken, every connection bypasses it, and no other rule is to blame for that.
    let mut known = known.iter().filter(|finding| finding.family == expected.family);
    let is_broken = known.any(|finding| match finding.kind {
        FindingKind::NoRules | FindingKind::Dormant => true,
        FindingKind::NoChain => matches!(finding.subject, Subject::Table(_)),
        FindingKind::NotHooked | FindingKind::Missing => base.as_ref() == Some(&finding.subject),
        _ => false,
    });
    let is_unfollowed = |outcome: &Outcome<'_>| outcome.treatment == Treatment::Unfollowed;
    let are_too_many = walk.decisions.iter().any(is_unfollowed);
    let mut findings = Vec::new();
    for outcome in walk.decisions.iter().chain(&walk.arrived) {
        // That the undecided rules are too many says so of each of them, which may be thousands.
        if are_too_many && !is_unfollowed(outcome) && !outcome.is_certain() {
            continue;
        }
        let Some(at) = outcome.at.filter(|_| around.could_live(&outcome.connections, family, direction)) else {
            continue;
        };
        let (table, name) = (at.table(), &at.chain().name);
        let is_ours = table.is(expected);
        // Our rules in another mode are reported separately.
        if !is_ours && ChainName::own(name).is_some() {
            continue;
        }
        let subject =
            if is_ours { Subject::Chain(name.clone()) } else { Subject::Other(table.to_string(), name.clone()) };
        let is_lost = outcome.after_watched
            && matches!(outcome.action, Some(Action::Redirect(_)))
            && matches!(outcome.treatment, Treatment::Dropped | Treatment::NotUnderstood | Treatment::Unfollowed);
        if outcome.after_watched && !is_lost {
            // Chains after ours see the connections that bypass the proxy, and may decide about them. The policy
            // of the base chain with our jump is the exception: it counts as part of the rules.
            if base.as_ref() == Some(&subject) && matches!(at, Place::Policy(_)) {
                let policy = Finding::new(table, subject, FindingKind::Policy);
                findings.push(Finding { family: TableFamily::Ip(family), ..policy });
            }
            continue;
        }
        let mut unsaid = Vec::new();
        if is_lost {
            // A reply's device says nothing about the connection, nor does the socket that an arriving packet meets.
            if outcome.packet == Leg::Reply {
                unsaid.extend([Field::InInterface, Field::OutInterface]);
            }
            if outcome.packet == Leg::Reply || direction == Direction::Inbound {
                unsaid.extend([Field::Uid, Field::Gid]);
            }
            // Redirected inbound connections get one of these anyway.
            let to = Field::Destination(family);
            if outcome.connections.get(to) == around.network.redirect_addresses(family, &names_except_lo()).as_ref() {
                unsaid.push(to);
            }
        }
        // One end is always here, which needs no words.
        let ends = [end, end.reversed()].into_iter();
        unsaid.extend(ends.filter(|field| outcome.connections.get(*field) == here.as_ref()));
        let connections = outcome.connections.without_fields(&unsaid).to_string();
        let is_certain = outcome.is_certain();
        let is_barring =
            outcome.treatment == Treatment::Dropped && is_certain && bars_others(at, family, around.network);
        if !is_barring && !is_lost && is_broken && outcome.treatment == Treatment::Accepted {
            continue;
        }
        let (kind, words) = if is_barring {
            (FindingKind::Dropped, BARS.to_owned())
        } else if is_lost && !is_unfollowed(outcome) {
            let of_reply = if outcome.packet == Leg::Reply { "the replies to " } else { "" };
            let what = format!("{of_reply}connections that were redirected");
            (FindingKind::Dropped, deed(Treatment::Dropped, is_certain, &what))
        } else {
            (FindingKind::Shadowed, deed(outcome.treatment, is_certain, "connections"))
        };
        let is_before = kind == FindingKind::Shadowed && !is_lost;
        let interference = Interference {
            connections: Some(connections),
            is_certain,
            is_unfollowed: is_unfollowed(outcome),
            is_barring,
            is_from_proxy: false,
        };
        let wanted = jump.clone().filter(|_| is_before).into_iter().collect();
        findings.push(Finding { subject, kind, wanted, ..dropped(at, family, words, interference) });
    }
    findings
}

#[cfg(test)]
mod tests;
