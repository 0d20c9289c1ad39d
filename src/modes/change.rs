//! How a chain gets from the rules that it holds to others, without touching those that stay: proxy-init's chains in
//! nf_tables, and base chains in legacy tables too.

use std::collections::BTreeMap;

use netfilter::nf_tables::edit::Edit;
use netfilter::nf_tables::rule::NewRule;
use netfilter::nf_tables::{ChainId, TableId};
use ruleset::{Condition, Name, Rule, Set};

use crate::ownership::without_time;
use crate::plan::ChainName;

pub(super) struct Wanted<'a> {
    pub(super) rule: &'a Rule,
    /// Whether the same rule may stay if the chain holds it already.
    pub(super) may_stay: bool,
}

/// The changes after which a base chain holds each of the wanted rules once: the rules that it lacks, and those that it
/// holds a second time or with a time in their comments, each with its place. Other rules stay, as do jumps that another
/// program added.
pub(super) fn missing_and_surplus<'h, 'w>(
    held: &'h [Rule],
    wanted: &'w [Rule],
) -> (Vec<&'w Rule>, Vec<(usize, &'h Rule)>) {
    let mut missing: Vec<&Rule> = wanted.iter().collect();
    let mut surplus = Vec::new();
    for (place, held) in held.iter().enumerate() {
        if let Some(kept) = missing.iter().position(|rule| rule.same_rule(held)) {
            missing.remove(kept);
        } else if wanted.iter().any(|rule| rule.same_rule(held))
            || without_time(held).is_some_and(|held| wanted.iter().any(|rule| rule.same_rule(&held)))
        {
            // A second jump would have every connection looked at twice.
            surplus.push((place, held));
        }
    }
    (missing, surplus)
}

/// The edit that adds a rule to the end of a chain of a table with these sets.
pub(super) fn append_rule<'a>(table: TableId, chain: ChainName, rule: &'a Rule, sets: &'a [Set]) -> Edit<'a> {
    Edit::AddRule(NewRule { table, chain: chain.into(), rule, sets, before: None })
}

/// The most rules that the kernel may pass in all to find those that edits name: it searches a list (`nft_rule_lookup` in
/// net/netfilter/nf_tables_api.c). So many take it some 10 ms.
const MOST_PASSED: usize = 1_000_000;

/// The edits after which a chain holds exactly the wanted rules: those that delete, and those that add. Wanted rules that it
/// holds already stay, with their counters, unless too many others are deleted and added among them: then all are made
/// again, which takes the kernel less time.
pub(super) fn change_chain<'a>(
    table: TableId,
    chain: ChainId,
    sets: &'a [Set],
    held: &[Rule],
    wanted: Vec<Wanted<'a>>,
) -> (Vec<Edit<'a>>, Vec<Edit<'a>>) {
    let mut kept = kept_places(held, &wanted);
    let stay = kept.iter().flatten().count();
    let edits = held.len() + wanted.len() - 2 * stay;
    let mut deleted = Vec::new();
    if stay == 0 || edits.saturating_mul(held.len()) > MOST_PASSED {
        kept.fill(None);
        if !held.is_empty() {
            deleted.push(Edit::FlushChain(table, chain));
        }
    } else {
        let mut staying = kept.iter().flatten().copied().peekable();
        for (index, rule) in held.iter().enumerate() {
            if staying.next_if_eq(&index).is_none() {
                deleted.push(Edit::DeleteRule(table, Name::from(chain.name), rule.handle));
            }
        }
    }
    let mut added = Vec::new();
    let mut before = None;
    for (wanted, kept) in wanted.into_iter().zip(kept).rev() {
        match kept.and_then(|index| held.get(index)) {
            Some(stays) => before = Some(stays.handle),
            None => added.push(Edit::AddRule(NewRule { table, chain, rule: wanted.rule, sets, before })),
        }
    }
    added.reverse();
    (deleted, added)
}

/// For each wanted rule, the index of the held rule that stays in its place: the first one that says the same after those
/// that stay for earlier rules.
fn kept_places(held: &[Rule], wanted: &[Wanted<'_>]) -> Vec<Option<usize>> {
    let mut places: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (index, rule) in held.iter().enumerate() {
        places.entry(likeness(rule)).or_default().push(index);
    }
    let mut first = 0;
    let mut kept = Vec::with_capacity(wanted.len());
    for wanted in wanted {
        let alike = places.get(&likeness(wanted.rule)).filter(|_| wanted.may_stay);
        let alike = alike.map(Vec::as_slice).unwrap_or_default();
        let after = alike.get(alike.partition_point(|&index| index < first)..);
        let mut same = after.unwrap_or_default().iter().copied();
        let index = same.find(|&index| held.get(index).is_some_and(|held| wanted.rule.same_rule(held)));
        first = index.map_or(first, |index| index + 1);
        kept.push(index);
    }
    kept
}

/// What equal rules have in common, and others seldom do.
fn likeness(rule: &Rule) -> (&[Condition], Option<&Name>) {
    (&rule.conditions, rule.comment.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ruleset::testing::rule;
    use ruleset::{Action, Family, Field, TableFamily};

    /// Rules on these users, with their ids as handles.
    fn on_users(ids: impl Iterator<Item = u64>) -> Vec<Rule> {
        let on_user =
            |id: u64| Rule { handle: id, ..rule([Condition::is(Field::Uid, u128::from(id))], Action::Return) };
        ids.map(on_user).collect()
    }

    /// How many are deleted, how many added, how many of these before others, and whether the chain is emptied.
    fn edits(held: &[Rule], wanted: &[Rule]) -> (usize, usize, usize, bool) {
        let table = TableId { family: TableFamily::Ip(Family::V4), name: "nat" };
        let wanted = wanted.iter().map(|rule| Wanted { rule, may_stay: true });
        let (deleted, added) = change_chain(table, ChainName::ProxyInitOutput.into(), &[], held, wanted.collect());
        let is_placed = |edit: &&Edit<'_>| matches!(edit, Edit::AddRule(new) if new.before.is_some());
        let is_flush = |edit: &Edit<'_>| matches!(edit, Edit::FlushChain(..));
        let placed = added.iter().filter(is_placed).count();
        (deleted.len(), added.len(), placed, deleted.iter().any(is_flush))
    }

    /// The kernel looks for each rule that an edit names in a list of all: 20,000 of them in 20,000 took it 7 s.
    #[test]
    fn the_kernel_passes_few_rules_on_its_way_to_those_that_edits_name() {
        let many = on_users(1..20_001);
        assert_eq!(edits(&many, &many), (0, 0, 0, false));
        // What stays keeps its counters where little changes,
        let without_one = on_users((1..20_001).filter(|id| *id != 777));
        assert_eq!(edits(&many, &without_one), (1, 0, 0, false));
        assert_eq!(edits(&without_one, &many), (0, 1, 1, false));
        // and where there are few rules.
        let few = on_users(1..101);
        assert_eq!(edits(&few, &on_users((1..101).rev())), (99, 99, 0, false));
        // Otherwise all are made again.
        assert_eq!(edits(&many, &on_users((1..20_001).rev())), (1, 20_000, 0, true));
        let odd = on_users((1..20_001).filter(|id| id % 2 == 1));
        assert_eq!(edits(&many, &odd), (1, 10_000, 0, true));
        assert_eq!(edits(&[], &few), (0, 100, 0, false));
    }
}
