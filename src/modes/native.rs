//! native mode: one inet table with sets and no xtables extensions, for kernels without xtables.
//!
//! It needs nf_tables with NAT for the inet family (`CONFIG_NF_TABLES_INET`, nft_chain_nat, nft_redir; Linux 5.2), but
//! neither nft_compat nor any xt module. If the table is not as it should be, one batch corrects it: a chain whose rules
//! are right keeps them. If sets differ, all sets and rules are made again; if chains do, the table is.

use netfilter::nf_tables::TableId;
use netfilter::nf_tables::edit::Edit;
use netfilter::nf_tables::held::HeldRule;
use netfilter::nf_tables::set::elements;
use ruleset::{Family, Table, TableFamily};

use super::rerun::Wanted;
use crate::config::{Mode, NATIVE};
use crate::error::ModeError;
use crate::modes::refusal::unmapped;
use crate::plan::{ChainName, rules_of};

/// The most elements in one message: their list is one attribute, and an attribute's length has only 16 bits.
const ELEMENTS: usize = 1000;

const TABLE: TableId = TableId { family: TableFamily::Inet, name: NATIVE };

/// The edits that turn the namespace's table into exactly the wanted one, or remove it if none is wanted; none if it is
/// that already.
pub(super) fn install_edits<'a>(tables: &[Table<HeldRule>], wanted: &'a [Table]) -> Result<Vec<Edit<'a>>, ModeError> {
    let mut edits = Vec::with_capacity(32);
    match (Mode::Native.table_among(tables, Family::V4), wanted.first()) {
        (None, None) => {}
        (Some(_), None) => edits.push(Edit::DeleteTable(TABLE)),
        (None, Some(wanted)) => {
            edits.push(Edit::AddTable(TABLE));
            fill_table(wanted, &mut edits);
        }
        (Some(held), Some(_)) if held.dormant && holds_others(held) => {
            return Err(ModeError::Dormant(TABLE.to_string()));
        }
        (Some(held), Some(wanted)) if !has_same_chains(held, wanted) => {
            edits.push(Edit::DeleteTable(TABLE));
            edits.push(Edit::AddTable(TABLE));
            fill_table(wanted, &mut edits);
        }
        (Some(held), Some(wanted)) if !has_same_sets(held, wanted) => {
            edits.extend(ChainName::ALL.map(|chain| Edit::FlushChain(TABLE, chain.into())));
            edits.extend(held.sets.iter().map(|set| Edit::DeleteSet(TABLE, set.name.clone())));
            fill_table(wanted, &mut edits);
        }
        (Some(held), Some(wanted)) => {
            for name in ChainName::IN_ORDER {
                wanted_chain(wanted, name).refill(rules_of(held, name), &mut edits)?;
            }
        }
    }
    refuse_unmapped(&edits)?;
    Ok(edits)
}

/// Returns true if nothing but sets and rules can differ: the chains are right, hooked where they should be, and the table
/// holds nothing else, such as another program's sets, which packets may change.
fn has_same_chains(held: &Table<HeldRule>, wanted: &Table) -> bool {
    for chain in &wanted.chains {
        if held.chain(&chain.name).is_none_or(|held| held.base != chain.base) {
            return false;
        }
    }
    !held.dormant
        && held.chains.len() == wanted.chains.len()
        && held.sets.iter().all(|set| set.elements.is_some() && set.keys.is_none())
        && held.objects as usize == held.chains.len() + held.sets.len()
}

fn has_same_sets(held: &Table<HeldRule>, wanted: &Table) -> bool {
    held.sets.len() == wanted.sets.len() && held.sets.iter().all(|set| wanted.sets.contains(set))
}

fn wanted_chain(table: &Table, chain: ChainName) -> Wanted<'_> {
    Wanted { mode: Mode::Native, table: TABLE, chain, rules: rules_of(table, chain), sets: &table.sets }
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

/// Adds the edits that fill a table without sets and rules; chains that it has already stay.
fn fill_table<'a>(table: &'a Table, edits: &mut Vec<Edit<'a>>) {
    for (set, id) in table.sets.iter().zip(1..) {
        edits.push(Edit::AddSet(TABLE, set, id));
        let elements = elements(set);
        let chunks = elements.chunks(ELEMENTS);
        edits.extend(chunks.map(|chunk| Edit::AddElements(TABLE, set, chunk.to_vec())));
    }
    // Each before those that jump to it: nft 0.9.8 writes a chain's rules into its JSON before it has written the next chain.
    edits.extend(ChainName::IN_ORDER.map(|chain| Edit::AddChain(TABLE, chain.into())));
    for chain in ChainName::IN_ORDER {
        wanted_chain(table, chain).fill(edits);
    }
}
