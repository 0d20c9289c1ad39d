//! How a chain in nf_tables gets from the rules that it holds to others, without touching those that stay.

use netfilter::nf_tables::edit::Edit;
use netfilter::nf_tables::rule::NewRule;
use netfilter::nf_tables::{ChainId, TableId};
use packets::rules::{Name, Rule, Set};

/// A rule that a chain is to hold.
pub(super) struct Wanted<'a> {
    /// The rule.
    pub(super) rule: &'a Rule,
    /// Whether one that is held already may stay.
    pub(super) may_stay: bool,
}

/// What is amiss in a base chain that holds these rules and should hold each of the wanted ones once: those that are
/// missing, and further copies, each with its place. Other rules stay, as do jumps that another program added.
pub(super) fn amiss<'h, 'w>(held: &'h [Rule], wanted: &[&'w Rule]) -> (Vec<&'w Rule>, Vec<(usize, &'h Rule)>) {
    let mut missing = wanted.to_vec();
    let mut copies = Vec::new();
    for (place, held) in held.iter().enumerate() {
        let is_it = |rule: &&Rule| rule.same_rule(held);
        match missing.iter().position(is_it) {
            Some(kept) => drop(missing.remove(kept)),
            // A second jump would have every connection looked at twice.
            None if wanted.iter().any(is_it) => copies.push((place, held)),
            None => {}
        }
    }
    (missing, copies)
}

/// The edits after which a chain that held these rules holds exactly the wanted ones: those that delete, and those that
/// add. Rules that are wanted stay as they are, with their counters.
pub(super) fn change<'a>(
    table: TableId,
    chain: ChainId,
    sets: &'a [Set],
    held: &[Rule],
    wanted: Vec<Wanted<'a>>,
) -> (Vec<Edit<'a>>, Vec<Edit<'a>>) {
    let mut rest = held;
    let kept: Vec<Option<u64>> = wanted
        .iter()
        .map(|wanted| {
            let index = rest
                .iter()
                .position(|held| wanted.may_stay && wanted.rule.same_rule(held))?;
            let (stays, after) = rest.get(index..)?.split_first()?;
            rest = after;
            Some(stays.handle)
        })
        .collect();
    let stays = |rule: &Rule| kept.contains(&Some(rule.handle));
    let mut deleted = Vec::new();
    if !held.is_empty() && !held.iter().any(stays) {
        deleted.push(Edit::FlushChain(table, chain));
    } else {
        let gone = held.iter().filter(|&rule| !stays(rule));
        deleted.extend(gone.map(|rule| Edit::DeleteRule(table, Name::from(chain.name), rule.handle)));
    }
    let mut added = Vec::new();
    for (index, wanted) in wanted.into_iter().enumerate() {
        if kept.get(index).is_some_and(Option::is_none) {
            let before = kept.get(index..).and_then(|after| after.iter().flatten().next());
            added.push(Edit::AddRule(NewRule {
                table,
                chain,
                rule: wanted.rule,
                sets,
                before: before.copied(),
            }));
        }
    }
    (deleted, added)
}
