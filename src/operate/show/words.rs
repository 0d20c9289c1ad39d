//! A rule in words.

use crate::operate::show::Effect;
use crate::rules::found::{Action, Condition, Field, Rule, TCP, Table, Values};
use crate::rules::nftables::{element, interface_name};
use crate::rules::ruleset::{Multiport, Purpose};

/// A list is cut off where it would be longer than this.
const LONGEST: usize = 32;

/// Which connections a rule matches.
pub(super) fn matches(table: &Table, rule: &Rule) -> String {
    let mut words = Vec::new();
    for (index, condition) in rule.conditions.iter().enumerate() {
        let is_implied = match rule.conditions.get(index + 1) {
            Some(Condition::In { field: next, .. }) => match next {
                Field::SourcePort | Field::DestinationPort => *condition == Condition::is(Field::Protocol, TCP),
                Field::Source(_) | Field::Destination(_) => {
                    matches!(
                        condition,
                        Condition::In {
                            field: Field::Family,
                            negated: false,
                            ..
                        }
                    )
                }
                _ => false,
            },
            _ => false,
        };
        if !is_implied {
            words.push(condition_in_words(table, condition));
        }
    }
    match words.is_empty() {
        true => "everything".to_owned(),
        false => words.join(", "),
    }
}

fn condition_in_words(table: &Table, condition: &Condition) -> String {
    let (field, values, negated) = match condition {
        Condition::In { field, values, negated } => (*field, values, *negated),
        Condition::Fixed { text, .. } | Condition::Unknown(text) => return text.clone(),
    };
    let what = match field {
        Field::Family | Field::Protocol => "",
        Field::Source(_) => "from ",
        Field::Destination(_) => "to ",
        Field::SourcePort => "from port ",
        Field::DestinationPort => "to port ",
        Field::Uid => "of user ",
        Field::Gid => "of group ",
        Field::InInterface => "in by ",
        Field::OutInterface => "out by ",
    };
    let not = if negated { "not " } else { "" };
    let list = match values {
        Values::Listed(list) => list.as_slice(),
        Values::Set(name) => match table.set(name).and_then(|set| set.elements.as_ref()) {
            Some(elements) => elements.as_slice(),
            None => return format!("{not}{what}@{name}"),
        },
    };
    let mut text = String::new();
    for (index, &interval) in list.iter().enumerate() {
        let item = match field {
            // Without the quotes that nft puts around it.
            Field::InInterface | Field::OutInterface => interface_name(interval.0, interval.1),
            _ => element(field, interval),
        };
        if index > 0 && text.len() + item.len() >= LONGEST {
            text += &format!(",... ({} in all)", list.len());
            break;
        }
        text += if index > 0 { "," } else { "" };
        text += &item;
    }
    format!("{not}{what}{text}")
}

/// What a rule does.
pub(super) fn does(rule: &Rule, effect: Effect) -> String {
    match (effect, &rule.action) {
        (Effect::Bypass, _) => "bypasses the proxy".to_owned(),
        (Effect::Proxy(port), _) => format!("to the proxy, port {port}"),
        (_, Action::Jump(chain)) => format!("to {chain}"),
        (_, Action::Goto(chain)) => format!("to {chain}, for good"),
        (_, Action::Continue(None)) => "only counts".to_owned(),
        (_, Action::Continue(Some(text)) | Action::Nat(text)) => text.clone(),
        (_, Action::Accept) => "ends this chain".to_owned(),
        (_, Action::Return) => "returns".to_owned(),
        (_, Action::Drop) => "drops".to_owned(),
        (_, Action::Untrack) => "is not tracked".to_owned(),
        (_, Action::Redirect(None)) => "to this host".to_owned(),
        (_, Action::Redirect(Some((first, last)))) if first == last => format!("to this host, port {first}"),
        (_, Action::Redirect(Some((first, last)))) => format!("to this host, ports {first}-{last}"),
        (_, Action::Map(_, map)) => format!("as @{map} says"),
        (_, Action::Unknown(text)) => format!("not understood: {text}"),
    }
}

/// Why a rule exists; for one of another program, its comment.
pub(super) fn why(rule: &Rule) -> String {
    let Some(comment) = rule.comment.as_ref().map(ToString::to_string) else {
        return String::new();
    };
    let words = match Purpose::from_comment(&comment) {
        Some(Purpose::IgnorePorts(ports)) if is_one(&ports) => "ignored port",
        Some(Purpose::IgnorePorts(_)) => "ignored ports",
        Some(Purpose::IgnoreSubnet(_)) => "ignored subnet",
        Some(Purpose::IgnoreUser | Purpose::IgnoreGroup) => "the proxy itself",
        Some(Purpose::IgnoreLoopback) => "within the pod",
        Some(Purpose::RedirectPort(_)) => "chosen port",
        Some(Purpose::RedirectInbound | Purpose::RedirectOutbound) => "all the rest",
        Some(Purpose::LookAtInbound | Purpose::LookAtOutbound) => "entry",
        // Native mode's comments list more than one item.
        None => match comment.strip_prefix(Purpose::PREFIX) {
            Some(text) if text.starts_with("ignore-port-") => "ignored ports",
            Some(text) if text.starts_with("ignore-subnet-") => "ignored subnets",
            Some(text) if text.starts_with("redirect-port-") => "chosen ports",
            _ => return comment,
        },
    };
    words.to_owned()
}

fn is_one(ports: &Multiport) -> bool {
    matches!(ports.ranges(), [range] if range.first() == range.last())
}
