//! Compares our reading of rules with that of nft and the kernel.

use ruleset::flags::{CtState, Tracked};
use ruleset::nftables::NftRule;
use ruleset::{Condition, Context, Field, Intervals, Rule};

use super::recording::Recording;
use crate::nf_tables::read::snapshot;
use ruleset::Numbered;

const RECORDED: &str = include_str!("../recorded/nftables.txt");

/// The rules, each as nft lists it, as it is said here, and as it is read.
fn rules() -> Vec<(&'static str, &'static str, Rule)> {
    let mut rules = Vec::new();
    let lines: Vec<&str> = RECORDED.lines().filter_map(|line| line.strip_prefix("RULE ")).collect();
    for table in snapshot(&Recording::of(RECORDED), &Numbered::default()).unwrap().tables {
        for chain in &table.chains {
            let place = format!("{} {} ; ", table.family, chain.name);
            let listed: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix(&place)).collect();
            assert_eq!(chain.rules.len(), listed.len(), "{place}");
            for (rule, line) in chain.rules.iter().zip(listed) {
                let (nft, said) = line.split_once(" ; ").unwrap_or((line, line));
                rules.push((nft, said, rule.clone()));
            }
        }
    }
    assert_eq!(rules.len(), lines.len());
    rules
}

/// In nft's own words, unless the line says otherwise.
#[test]
fn rules_are_said_as_nft_lists_them() {
    let mut wrong = Vec::new();
    for (nft, said, rule) in rules() {
        let written = NftRule(&rule).to_string();
        if written != said {
            wrong.push(format!("{nft}\n    wanted {said}\n    read   {written}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The words after a name, up to the next one's or the verdict.
fn after<'a>(rule: &'a str, name: &str) -> Option<&'a str> {
    let (_, words) = rule.split_once(name)?;
    let end = [" ct ", " accept", " drop"].iter().filter_map(|word| words.find(word)).min();
    Some(words[..end.unwrap_or(words.len())].trim())
}

/// Returns true if a state of connection tracking is among the named ones: `a,b`, `{ a, b }`, or neither after `!=`.
fn is_named(words: &str, has: impl Fn(&str) -> bool) -> bool {
    let (words, negated) = words.strip_prefix("!= ").map_or((words, false), |words| (words, true));
    words.split([',', ' ', '{', '}']).any(|name| !name.is_empty() && has(name)) != negated
}

#[test]
fn what_connection_tracking_has_is_what_is_named() {
    let mut compared = 0;
    for (nft, said, rule) in rules() {
        let [states, status, direction] = ["ct state ", "ct status ", "ct direction "].map(|name| after(nft, name));
        if [states, status, direction].iter().all(Option::is_none) || nft.contains("vmap") || said.contains("[ct]") {
            continue;
        }
        for tracked in Tracked::all() {
            let has_entry = tracked.state.has_entry();
            assert_eq!(has_entry, ![CtState::Invalid, CtState::Untracked].contains(&tracked.state));
            let nat = |name: &str| match name {
                "snat" => tracked.has_snat,
                _ => tracked.has_dnat,
            };
            let is_so = states.is_none_or(|words| is_named(words, |name| name == tracked.state.to_string()))
                // Without an entry, there is no status and no direction: the rule doesn't match (nft_ct_get_eval).
                && status.is_none_or(|words| {
                    has_entry
                        && match words.split_once(" / ") {
                            // The first of them, of these.
                            Some((set, of)) => of.split(',').all(|name| nat(name) == set.split(',').any(|set| set == name)),
                            None => is_named(words, nat),
                        }
                })
                && direction.is_none_or(|words| {
                    has_entry && is_named(words, |name| (name == "reply") == tracked.is_reply)
                });
            let at = tracked.number();
            let mut conditions = rule.conditions.iter().filter_map(|condition| match condition {
                Condition::In { field: Field::State, values, .. } => values.listed(),
                _ => None,
            });
            assert_eq!(conditions.all(|list| Intervals::one(at).meets(list)), is_so, "{nft}: {tracked:?}");
            compared += 1;
        }
    }
    assert_eq!(compared, 11 * 40);
}

#[test]
fn what_routing_and_counters_decide_is_what_is_named() {
    let (mut compared, local, broadcast) = (0, 1 << 2, 1 << 3);
    for (nft, said, rule) in rules() {
        let contexts = rule.conditions.iter().filter_map(|condition| match condition {
            Condition::Context(context) => Some(context.clone()),
            _ => None,
        });
        let back = |is_loose, negated| Context::ReversePath { is_loose, negated, xt_flags: None };
        let types = |is_source, types, negated| Context::AddressType {
            is_source,
            types,
            negated,
            is_xt: false,
            of_device: None,
        };
        let want = match nft {
            "fib daddr type local accept" => vec![types(false, local, false)],
            "fib saddr type != local drop" => vec![types(true, local, true)],
            "fib daddr type { local, broadcast } accept" => vec![types(false, local | broadcast, false)],
            "fib daddr . iif type local drop" => vec![Context::AddressType {
                is_source: false,
                types: local,
                negated: false,
                is_xt: false,
                of_device: Some(Field::InInterface),
            }],
            "meta cgroup 5 drop" => vec![Context::SocketClass { classes: vec![5], negated: false }],
            "fib saddr . iif oif missing drop" => vec![back(false, true)],
            "fib saddr . iif oif exists accept" => vec![back(false, false)],
            "fib saddr oif != 0 accept" => vec![back(true, false)],
            _ if said.contains("[connlimit]") || said.contains("[dynset]") => vec![],
            _ => vec![],
        };
        let (limits, contexts): (Vec<_>, Vec<_>) =
            contexts.partition(|context| matches!(context, Context::Limit { .. }));
        assert_eq!(contexts, want, "{nft}");
        // Of limits, the words say what counts. An element is added while the set has room, and then its own limit counts.
        let is_over = |context: &Context| matches!(context, Context::Limit { holds_below: false, .. });
        assert_eq!(limits.iter().any(is_over), said.contains(" over "), "{nft}");
        assert_eq!(limits.first().is_some_and(is_over), said.contains(" over ") && !nft.contains(" @dyn "), "{nft}");
        compared += want.len() + limits.len();
    }
    assert_eq!(compared, 20);
}
