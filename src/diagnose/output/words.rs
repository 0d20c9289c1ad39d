//! Rules, and reasons of a trace, in words.

use ruleset::flags::{SYN, SYN_ACK, Tracked};
use ruleset::nftables::{element, interface_name, is_implied};
use ruleset::{
    Action, Condition, Context, Effect, Field, FieldFacts, Intervals, Lookup, Rule, Subsystem, Table, Unseen, Values,
};
use trace::Reason;

use crate::config::Mode;
use crate::plan::Purpose;

/// The length at which a list is cut off.
const LONGEST: usize = 32;

/// Says that several modes hold our rules, if they do.
pub(in crate::diagnose) fn several_modes(holders: impl Iterator<Item = Mode>) -> Option<String> {
    let modes: Vec<String> = holders.map(|mode| mode.to_string()).collect();
    let words = format!(
        "proxy-init's rules are in several modes at once, {}: connections pass all of them; `proxy-init uninstall` removes \
         them",
        modes.join(" and ")
    );
    (modes.len() > 1).then_some(words)
}

/// The line which says that tables may hold our rules that could not be seen, with the cure.
pub(in crate::diagnose) fn unseen(unseen: &Unseen) -> String {
    let reason = &unseen.reason;
    if unseen.not_permitted && unseen.subsystem == Subsystem::Legacy {
        return format!("not known: {reason} here: run as root (kubectl proxy-init --root)");
    }
    format!("not known: {reason}")
}

/// Describes the connections that a rule matches.
pub(in crate::diagnose) fn conditions_in_words(table: &Table, rule: &Rule) -> String {
    let mut words = Vec::new();
    for (index, condition) in rule.conditions.iter().enumerate() {
        if !is_implied(condition, rule.conditions.get(index + 1)) {
            words.push(condition_in_words(table, condition));
        }
    }
    words.extend(
        rule.lookup
            .as_ref()
            .map(|lookup| format!("{} {}in @{}", lookup.key, if lookup.negated { "not " } else { "" }, lookup.set)),
    );
    if words.is_empty() {
        return "everything".to_owned();
    }
    words.join(", ")
}

fn condition_in_words(table: &Table, condition: &Condition) -> String {
    let Condition::In { field, values, negated } = condition else {
        return table.condition_in_syntax(condition);
    };
    // A state's numbers say nothing to people.
    if *field == Field::State {
        return table.condition_in_syntax(condition);
    }
    let not = if *negated { "not " } else { "" };
    format!("{not}{}{}", field.facts().of, numbers_in_values(table, *field, values))
}

/// The numbers that a condition of a table's compares a field with.
fn numbers_in_values(table: &Table, field: Field, values: &Values) -> String {
    let list = match values {
        Values::Set(name) if table.numbers(values).is_none() => return format!("@{name}"),
        _ => table.numbers(values).unwrap_or_default(),
    };
    let mut text = String::new();
    for (index, &interval) in list.iter().enumerate() {
        let item = interval_in_words(field, interval);
        if index > 0 && text.len() + item.len() >= LONGEST {
            text += &format!(",... {} more", list.len() - index);
            break;
        }
        text += if index > 0 { "," } else { "" };
        text += &item;
    }
    text
}

fn interval_in_words(field: Field, interval: (u128, u128)) -> String {
    match field {
        // Without the quotes that nft puts around it.
        Field::InInterface | Field::OutInterface => interface_name(interval.0, interval.1),
        _ => element(field, interval),
    }
}

/// Connections with one of these numbers in a field: `from user 1000,2000-2999`.
pub(in crate::diagnose) fn numbers(field: Field, numbers: &Intervals) -> String {
    let items: Vec<String> = numbers.as_slice().iter().map(|&interval| interval_in_words(field, interval)).collect();
    format!("{}{}", field.facts().of, items.join(","))
}

pub(in crate::diagnose) fn action(table: &Table, effects: &[Effect], action: &Action) -> String {
    match action {
        Action::Continue if effects.contains(&Effect::Untrack) => "is not tracked".to_owned(),
        Action::Continue if !effects.is_empty() => table.action_in_syntax(effects, action),
        Action::Jump(chain) => format!("to {chain}"),
        Action::Goto(chain) => format!("to {chain}, for good"),
        Action::Continue => "only counts".to_owned(),
        Action::Nat(_) => table.action_in_syntax(&[], action),
        Action::Accept => "passes this chain".to_owned(),
        Action::Return => "skips the rest here".to_owned(),
        Action::Drop => "drops".to_owned(),
        Action::Reject(_) => "rejects".to_owned(),
        Action::Redirect(None) => "to this host".to_owned(),
        Action::Redirect(Some((first, last))) if first == last => format!("to this host, port {first}"),
        Action::Redirect(Some((first, last))) => format!("to this host, ports {first}-{last}"),
        Action::ByCase(map) => format!("as @{map} says"),
        Action::Tproxy { port: Some(port), .. } => format!("to a transparent listener on port {port}"),
        Action::Tproxy { port: None, .. } => "to a transparent listener on the same port".to_owned(),
        Action::NotUnderstood(_) => format!("not understood: {}", table.action_in_syntax(&[], action)),
    }
}

/// The reason why a connection does not match a rule of this table.
pub(in crate::diagnose) fn mismatch_in_words(table: &Table, reason: &Reason<'_>) -> String {
    let had = reason.numbers();
    let (field, values, negated) = match reason {
        Reason::Device(_) => return "for another device".to_owned(),
        Reason::Lookup(lookup, _) => return lookup_in_words(lookup, had),
        Reason::Condition(
            Condition::In { field: field @ (Field::State | Field::TcpFlags), .. } | Condition::Masked { field, .. },
            ..,
        ) => return format!("this packet {}", flags_in_words(*field, had)),
        Reason::Condition(Condition::In { field, values, negated }, ..) => (*field, values, *negated),
        Reason::Condition(Condition::Context(context), ..) => {
            let why = match context {
                Context::Limit { .. } => "as long as the limit is not reached",
                Context::IpSet { .. } => "by what ipset's set has",
                Context::SocketClass { .. } => "by the class of its socket",
                Context::AddressType { .. } => "its address is not of such a type",
                Context::ReversePath { .. } => "by the route back",
            };
            return why.to_owned();
        }
        Reason::Condition(Condition::Constant { .. }, ..) => return "no packet of TCP's is of that kind".to_owned(),
        Reason::Condition(Condition::NotUnderstood(_), ..) => return "not understood".to_owned(),
    };
    if had.is_none() {
        return match field {
            Field::Uid | Field::Gid => "no process of this namespace sends it".to_owned(),
            Field::ConnectionMark => "it is of no connection that is tracked".to_owned(),
            _ => "it is of the other family".to_owned(),
        };
    }
    let is_known = had.is_some_and(|numbers| numbers.size() == 1);
    // Addresses and ports that aren't given may be any; users, groups and devices any but those that rules exempt.
    let is_assumed = matches!(field, Field::Uid | Field::Gid | Field::InInterface | Field::OutInterface);
    let what = field.facts().what;
    if let Some(flag) = flag(field).filter(|_| is_assumed && !is_known) {
        let not = if negated { "" } else { "not " };
        return format!("assumed {not}{what}{} (see {flag})", numbers_in_values(table, field, values));
    }
    let subject = subject(field, had);
    if let Field::Family | Field::Protocol = field {
        return format!("this connection is {subject}");
    }
    let list = numbers_in_values(table, field, values);
    match (negated, values.number()) {
        (false, Some(_)) => format!("{subject} is not {list}"),
        (false, None) => format!("{subject} is not in {list}"),
        (true, Some(_)) => format!("it is {subject}"),
        (true, None) => format!("{subject} is in {list}"),
    }
}

/// The reason why a connection with these numbers in the field that decides is in none of a lookup's cases or, where that is
/// asked, in one of them.
fn lookup_in_words(lookup: &Lookup, had: Option<&Intervals>) -> String {
    let set = &lookup.set;
    match (lookup.field(), lookup.negated) {
        (Some(field), false) if !matches!(field, Field::State | Field::TcpFlags) => {
            format!("{} is not in @{set}", subject(field, had))
        }
        (_, false) => format!("no element of @{set} is for it"),
        (_, true) => format!("an element of @{set} is for it"),
    }
}

/// A packet's numbers in a field of flags, after "it" or "this packet".
fn flags_in_words(field: Field, had: Option<&Intervals>) -> String {
    let Some(had) = had else {
        return "has none".to_owned();
    };
    match field {
        Field::State => {
            let possible = Tracked::all().filter(|tracked| had.meets(&[(tracked.number(), tracked.number())]));
            let mut states: Vec<String> = possible.map(tracked_in_words).collect();
            states.dedup();
            format!("is {}", states.join(" or "))
        }
        Field::TcpFlags => {
            let mut possible = [("syn", &SYN[..]), ("syn,ack", &SYN_ACK[..])].into_iter();
            let packet = possible.find(|(_, flags)| flags.iter().any(|&it| had.meets(&[(it.into(), it.into())])));
            format!("is {}", packet.map_or("ack", |(name, _)| name))
        }
        _ => format!("has {}", subject(field, Some(had))),
    }
}

/// A packet's connection-tracking state, as nft writes it.
fn tracked_in_words(tracked: Tracked) -> String {
    let nat = [(tracked.has_snat, "snat"), (tracked.has_dnat, "dnat")].into_iter();
    let nat = nat.filter(|(is_so, _)| *is_so && tracked.state.has_entry());
    let mut words = vec![tracked.state.to_string()];
    words.extend(nat.map(|(_, name)| name.to_owned()));
    words.join(",")
}

/// A connection's field, which may have these numbers, in words.
fn subject(field: Field, numbers: Option<&Intervals>) -> String {
    let &FieldFacts { what, any, .. } = field.facts();
    match numbers.map(Intervals::as_slice) {
        Some(&[(0, 0)]) if matches!(field, Field::InInterface | Field::OutInterface) => "no device".to_owned(),
        Some(&[(first, last)]) if first == last => format!("{what}{}", interval_in_words(field, (first, last))),
        _ if matches!(field, Field::Uid | Field::Gid) => format!("{any} except the proxy's"),
        _ => any.to_owned(),
    }
}

/// The flag of `explain` that gives a connection's field, with the name of the value, if there is such a flag.
pub(in crate::diagnose) fn flag(field: Field) -> Option<&'static str> {
    match field {
        Field::Source(_) => Some("--from ADDRESS"),
        Field::SourcePort => Some("--from ADDRESS:PORT"),
        Field::Uid => Some("--uid"),
        Field::Gid => Some("--gid"),
        Field::InInterface => Some("--in"),
        Field::OutInterface => Some("--out"),
        _ => None,
    }
}

/// The reason why a rule exists; for another program's rule, its comment.
pub(in crate::diagnose) fn purpose(rule: &Rule) -> String {
    let Some(comment) = rule.comment.as_ref().map(ToString::to_string) else {
        return String::new();
    };
    let only = Purpose::from_comment(&comment);
    let is_one = match &only {
        Some(Purpose::IgnorePorts(ports)) => matches!(ports.ranges(), [range] if range.first() == range.last()),
        Some(Purpose::IgnoreUsers(ids) | Purpose::IgnoreGroups(ids)) => ids.first() == ids.last(),
        only => only.is_some(),
    };
    let Some(purpose) = Purpose::of_first(rule) else {
        return comment;
    };
    let words = match purpose {
        Purpose::IgnorePorts(_) => "ignored port",
        Purpose::IgnoreSubnet(_) => "ignored subnet",
        Purpose::IgnoreUser | Purpose::IgnoreGroup => "the proxy's",
        Purpose::IgnoreUsers(_) => "ignored user",
        Purpose::IgnoreGroups(_) => "ignored group",
        Purpose::IgnoreInterface(_) => "ignored interface",
        Purpose::IgnoreLoopback => "in the pod",
        Purpose::RedirectPort(_) => "chosen port",
        Purpose::RedirectSubnet(_) => "chosen subnet",
        Purpose::IgnoreUnlistedPorts => "no chosen port",
        Purpose::RedirectInbound | Purpose::RedirectOutbound => "all the rest",
        Purpose::LookAtInbound | Purpose::LookAtOutbound => "entry",
    };
    format!("{words}{}", if is_one { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_purpose_is_told_by_what_its_comment_lists() {
        for (comment, want) in [
            ("proxy-init/ignore-port-4190", "ignored port"),
            ("proxy-init/ignore-port-4190,4191", "ignored ports"),
            ("proxy-init/ignore-port-1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,...", "ignored ports"),
            ("proxy-init/ignore-subnet-10.0.0.0/8", "ignored subnet"),
            ("proxy-init/ignore-subnet-10.0.0.0/8,11.0.0.0/8", "ignored subnets"),
            ("proxy-init/redirect-port-80-to-proxy-port", "chosen port"),
            ("proxy-init/redirect-port-80,443-to-proxy-port", "chosen ports"),
            ("proxy-init/redirect-subnet-fd00::/8,fd01::/16-to-proxy-port", "chosen subnets"),
            ("proxy-init/ignore-user-id-7-9", "ignored users"),
            ("proxy-init/ignore-proxy-user-id/1700000000", "the proxy's"),
            ("proxy-init/ignore-weather", "proxy-init/ignore-weather"),
        ] {
            let rule = Rule { comment: Some(comment.into()), ..Rule::new(vec![], Action::Return) };
            assert_eq!(purpose(&rule), want, "{comment}");
        }
    }
}
