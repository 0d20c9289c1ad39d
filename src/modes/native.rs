//! native mode: one inet table with sets and no xtables extensions, for kernels without xtables.
//!
//! It needs nf_tables with NAT for the inet family (`CONFIG_NF_TABLES_INET`, nft_chain_nat, nft_redir; Linux 5.2), but
//! neither nft_compat nor any xt module. If the table is not as it should be, one batch corrects it: rules and sets
//! that are right stay. If its chains differ too, it is deleted and made again.

use netfilter::nf_tables::TableId;
use netfilter::nf_tables::edit::Edit;
use netfilter::nf_tables::held::HeldRule;
use netfilter::nf_tables::set::elements;
use ruleset::{Condition, Family, Rule, Set, Table, TableFamily, Values};

use super::rerun::{Changes, Wanted};
use crate::config::{Mode, NATIVE};
use crate::error::ModeError;
use crate::modes::refusal::unmapped;
use crate::plan::{ChainName, rules_of};

/// The most elements in one message: their list is one attribute, and an attribute's length has only 16 bits.
const ELEMENTS: usize = 1000;

const TABLE: TableId = TableId { family: TableFamily::Inet, name: NATIVE };

/// The edits that turn the namespace's table into exactly the wanted one; none if it is that already.
pub(crate) fn install_edits<'a>(tables: &[Table<HeldRule>], wanted: &'a [Table]) -> Result<Vec<Edit<'a>>, ModeError> {
    let mut edits = Vec::with_capacity(32);
    for wanted in wanted {
        match held_table(tables) {
            Some(held) if held.dormant && holds_others(held) => {
                return Err(ModeError::Dormant(TABLE.to_string()));
            }
            Some(held) if can_change(held, wanted) => change_table(held, wanted, &mut edits)?,
            held => {
                edits.extend(held.map(|_| Edit::DeleteTable(TABLE)));
                add_table(wanted, &mut edits);
            }
        }
    }
    refuse_unmapped(&edits)?;
    Ok(edits)
}

/// Returns true if changing rules and sets is enough: the chains are right, hooked where they should be, and the table
/// holds nothing else, such as another program's sets.
fn can_change(held: &Table<HeldRule>, wanted: &Table) -> bool {
    for chain in &wanted.chains {
        if held.chain(&chain.name).is_none_or(|held| held.base != chain.base) {
            return false;
        }
    }
    !held.dormant
        && held.chains.len() == wanted.chains.len()
        && held.sets.iter().all(|set| set.elements.is_some() && set.verdicts.is_empty())
        && held.objects as usize == held.chains.len() + held.sets.len()
}

/// Adds the edits that leave the table with exactly the wanted rules and sets. A set whose elements differ is made
/// again, with the rules that use it.
fn change_table<'a>(held: &Table<HeldRule>, wanted: &'a Table, edits: &mut Vec<Edit<'a>>) -> Result<(), ModeError> {
    let stays = |set: &Set| wanted.sets.contains(set) && held.sets.contains(set);
    let uses_kept_sets = |rule: &Rule| {
        rule.conditions.iter().all(|condition| match condition {
            Condition::In { values: Values::Set(name), .. } => wanted.set(name).is_some_and(stays),
            _ => true,
        })
    };
    let mut added = Vec::new();
    for name in ChainName::IN_ORDER {
        let Changes { deleted, added: rules } =
            wanted_chain(wanted, name).refill(rules_of(held, name), uses_kept_sets)?;
        edits.extend(deleted);
        added.extend(rules);
    }
    let gone = held.sets.iter().filter(|&set| !stays(set));
    edits.extend(gone.map(|set| Edit::DeleteSet(TABLE, set.name.clone())));
    for (set, id) in wanted.sets.iter().filter(|&set| !stays(set)).zip(1..) {
        add_set(set, id, edits);
    }
    edits.extend(added);
    Ok(())
}

fn wanted_chain(table: &Table, chain: ChainName) -> Wanted<'_> {
    Wanted { table: TABLE, chain, rules: rules_of(table, chain), sets: &table.sets }
}

pub(super) fn remove_edits(tables: &[Table<HeldRule>]) -> Vec<Edit<'static>> {
    held_table(tables).map(|_| Edit::DeleteTable(TABLE)).into_iter().collect()
}

fn held_table(tables: &[Table<HeldRule>]) -> Option<&Table<HeldRule>> {
    Mode::Native.table_among(tables, Family::V4)
}

fn holds_others(table: &Table<HeldRule>) -> bool {
    table.chains.iter().any(|chain| ChainName::from_name(chain.name.as_bytes()).is_none())
}

/// Refuses an owner that isn't mapped in the user namespace: nf_tables takes any id unchecked, and an unmapped one
/// would silently mean another user.
fn refuse_unmapped(edits: &[Edit<'_>]) -> Result<(), ModeError> {
    let unmapped = edits.iter().find_map(|edit| match edit {
        Edit::AddRule(new) => unmapped(new.rule, edit),
        _ => None,
    });
    unmapped.map_or(Ok(()), Err)
}

fn add_table<'a>(table: &'a Table, edits: &mut Vec<Edit<'a>>) {
    edits.push(Edit::AddTable(TABLE));
    for (set, id) in table.sets.iter().zip(1..) {
        add_set(set, id, edits);
    }
    // Each before those that jump to it: nft 0.9.8 writes a chain's rules into its JSON before it has written the next chain.
    edits.extend(ChainName::IN_ORDER.map(|chain| Edit::AddChain(TABLE, chain.into())));
    for chain in ChainName::IN_ORDER {
        let wanted = wanted_chain(table, chain);
        edits.extend(wanted.rules.iter().map(|rule| wanted.add(rule, None)));
    }
}

/// Adds the edits that make a set, which has this number in the batch.
fn add_set<'a>(set: &'a Set, id: u32, edits: &mut Vec<Edit<'a>>) {
    edits.push(Edit::AddSet(TABLE, set, id));
    let elements = elements(set);
    let chunks = elements.chunks(ELEMENTS);
    edits.extend(chunks.map(|chunk| Edit::AddElements(TABLE, set, chunk.to_vec())));
}
