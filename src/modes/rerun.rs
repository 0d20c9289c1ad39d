//! Plans a re-run's changes of a chain in nf_tables. A held rule is the wanted one if its expressions, which aren't
//! decoded, and its comment are: then it stays, with its counters. Others go and come in one batch.

use std::collections::{BTreeMap, VecDeque};

use netfilter::nf_tables::comparable::written;
use netfilter::nf_tables::edit::Edit;
use netfilter::nf_tables::held::HeldRule;
use netfilter::nf_tables::rule::NewRule;
use netfilter::nf_tables::{ChainId, TableId};
use ruleset::{Name, Rule, Set};

use super::refusal::unwritten_error;
use crate::error::ModeError;
use crate::ownership::is_own_jump;
use crate::plan::ChainName;

/// A chain that is to hold these rules, in a table with these sets.
pub(super) struct Wanted<'a> {
    pub(super) table: TableId,
    pub(super) chain: ChainName,
    pub(super) rules: &'a [Rule],
    pub(super) sets: &'a [Set],
}

/// The edits that delete, and those that add.
#[derive(Default)]
pub(super) struct Changes<'a> {
    pub(super) deleted: Vec<Edit<'a>>,
    pub(super) added: Vec<Edit<'a>>,
}

/// The most rules that the kernel may pass in all to find those that edits name: it searches a list (`nft_rule_lookup` in
/// net/netfilter/nf_tables_api.c). So many take it some 10 ms.
const MOST_PASSED: usize = 1_000_000;

impl<'a> Wanted<'a> {
    /// The edit that adds a rule to the chain's end or, with a handle, before the rule that has it.
    pub(super) fn add(&self, rule: &'a Rule, before: Option<u64>) -> Edit<'a> {
        Edit::AddRule(NewRule { table: self.table, chain: self.id(), rule, sets: self.sets, before })
    }

    fn id(&self) -> ChainId {
        self.chain.into()
    }

    fn delete(&self, rule: &HeldRule) -> Edit<'a> {
        Edit::DeleteRule(self.table, Name::from(self.chain.as_str()), rule.handle)
    }

    /// The expressions of each rule, as the kernel would hold them.
    fn expressions(&self) -> Result<Vec<Vec<u8>>, ModeError> {
        let id = self.id();
        let new = |rule| NewRule { table: self.table, chain: id, rule, sets: self.sets, before: None };
        written(self.rules.iter().map(new)).map_err(|error| unwritten_error(&error))
    }

    /// The changes after which our own chain holds exactly the rules. Those that it holds already stay if they may, unless
    /// too many others are deleted and added among them: then all are made again, which takes the kernel less time.
    pub(super) fn refill(&self, held: &[HeldRule], may_stay: impl Fn(&Rule) -> bool) -> Result<Changes<'a>, ModeError> {
        let mut kept = if held.is_empty() { vec![None; self.rules.len()] } else { self.kept_places(held, may_stay)? };
        let mut changes = Changes::default();
        let stay = kept.iter().flatten().count();
        let edits = held.len() + self.rules.len() - 2 * stay;
        if stay == 0 || edits.saturating_mul(held.len()) > MOST_PASSED {
            kept.fill(None);
            if !held.is_empty() {
                changes.deleted.push(Edit::FlushChain(self.table, self.id()));
            }
        } else {
            let mut staying = kept.iter().flatten().copied().peekable();
            for (index, rule) in held.iter().enumerate() {
                if staying.next_if_eq(&index).is_none() {
                    changes.deleted.push(self.delete(rule));
                }
            }
        }
        let mut before = None;
        for (rule, kept) in self.rules.iter().zip(kept).rev() {
            match kept.and_then(|index| held.get(index)) {
                Some(stays) => before = Some(stays.handle),
                None => changes.added.push(self.add(rule, before)),
            }
        }
        changes.added.reverse();
        Ok(changes)
    }

    /// For each rule, the index of the held rule that stays in its place: the first such rule after those that stay for
    /// earlier rules.
    fn kept_places(
        &self,
        held: &[HeldRule],
        may_stay: impl Fn(&Rule) -> bool,
    ) -> Result<Vec<Option<usize>>, ModeError> {
        let mut places: BTreeMap<_, VecDeque<usize>> = BTreeMap::new();
        for (index, rule) in held.iter().enumerate() {
            places.entry((&rule.expressions, &rule.comment)).or_default().push_back(index);
        }
        let mut first = 0;
        let mut kept = Vec::with_capacity(self.rules.len());
        for (rule, expressions) in self.rules.iter().zip(&self.expressions()?) {
            let same = places.get_mut(&(expressions, &rule.comment)).filter(|_| may_stay(rule));
            let place = same.and_then(|same| {
                while same.front().is_some_and(|&index| index < first) {
                    same.pop_front();
                }
                same.pop_front()
            });
            first = place.map_or(first, |place| place + 1);
            kept.push(place);
        }
        Ok(kept)
    }

    /// The changes after which a base chain, which other programs share, holds each of the rules once. Jumps of linkerd-init's,
    /// or of another version of ours, go; other rules stay, as do jumps that another program added.
    pub(super) fn complete(&self, held: &[HeldRule]) -> Result<Changes<'a>, ModeError> {
        let mut changes = Changes::default();
        let mut found = vec![false; self.rules.len()];
        let expressions = if held.is_empty() { Vec::new() } else { self.expressions()? };
        for rule in held {
            let is_wanted = |(wanted, expressions): (&Rule, &Vec<u8>)| {
                *expressions == rule.expressions && wanted.comment == rule.comment
            };
            let place = self.rules.iter().zip(&expressions).position(is_wanted);
            match place.and_then(|place| found.get_mut(place)) {
                Some(found) if !*found => *found = true,
                None if !is_own_jump(rule, self.chain) => {}
                _ => changes.deleted.push(self.delete(rule)),
            }
        }
        let missing = self.rules.iter().zip(found).filter(|(_, found)| !found);
        changes.added.extend(missing.map(|(rule, _)| self.add(rule, None)));
        Ok(changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ruleset::testing::rule;
    use ruleset::{Action, Condition, Field, TableFamily};

    /// Rules on these users, with their ids as handles.
    fn on_users(ids: impl Iterator<Item = u64>) -> Vec<Rule> {
        let on_user =
            |id: u64| Rule { handle: id, ..rule([Condition::is(Field::Uid, u128::from(id))], Action::Return) };
        ids.map(on_user).collect()
    }

    /// How many are deleted, how many added, how many of these before others, and whether the chain is emptied.
    fn edits(held: &[Rule], wanted: &[Rule]) -> (usize, usize, usize, bool) {
        let table = TableId { family: TableFamily::Inet, name: "nat" };
        let of = |rules| Wanted { table, chain: ChainName::ProxyInitOutput, rules, sets: &[] };
        let expressions = of(held).expressions().unwrap();
        let as_held =
            |(rule, expressions): (&Rule, _)| HeldRule { handle: rule.handle, expressions, ..HeldRule::default() };
        let held: Vec<HeldRule> = held.iter().zip(expressions).map(as_held).collect();
        let Changes { deleted, added } = of(wanted).refill(&held, |_| true).unwrap();
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
        // Rules that stay keep their counters where little changes,
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
