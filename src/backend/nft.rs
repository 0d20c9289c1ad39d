//! nft mode: nat chains in nf_tables, written as iptables-nft would write them.
//!
//! One netlink batch holds the rules of both families, and the kernel commits it as a whole or not at all. Nothing is
//! read at first: the batch is valid only for the first generation, so the kernel refuses it unless the namespace is
//! untouched. Only if it is refused is everything read, and a batch that is valid only for that generation makes the
//! changes.

use netfilter::nf_tables::TableId;
use netfilter::nf_tables::edit::Edit;
use netfilter::nf_tables::table::MARK;
use packets::rules::{Base, Family, NAT, Name, Policy, Table, TableFamily};

use super::change::{Wanted, append_rule, change_chain, missing_and_surplus};
use crate::backend::commit::fresh_batch;
use crate::error::{Error, ModeError};
use crate::ours::{chain_of, leads_to};
use crate::wanted::{ChainName, Mode, Ruleset};

/// The batch that installs the rulesets in a fresh namespace, ready to send.
pub fn batch(rulesets: &[Ruleset]) -> Result<Vec<u8>, Error> {
    fresh_batch(&fresh(rulesets), Mode::Nft)
}

fn nat(family: Family) -> TableId {
    TableId { family: TableFamily::Ip(family), name: NAT }
}

/// The edits that install the rulesets in a namespace that holds nothing.
pub(crate) fn fresh(rulesets: &[Ruleset]) -> Vec<Edit<'_>> {
    let mut edits = Vec::with_capacity(32);
    for ruleset in rulesets {
        let table = nat(ruleset.family);
        edits.push(Edit::AddTable(table));
        edits.extend(ChainName::ALL.map(|chain| Edit::AddChain(table, chain.into())));
        for (chain, rule) in &ruleset.rules {
            edits.push(append_rule(table, *chain, rule, &[]));
        }
    }
    edits
}

/// The edits that turn what the namespace holds into exactly the rulesets; none if it holds them already.
pub(super) fn install_edits<'a>(tables: &[Table], rulesets: &'a [Ruleset]) -> Result<Vec<Edit<'a>>, ModeError> {
    let mut edits = Vec::new();
    for family in Family::ALL {
        let table = nat_table(tables, family);
        match rulesets.iter().find(|ruleset| ruleset.family == family) {
            Some(ruleset) => refill(table, ruleset, &mut edits)?,
            None => remove_family(table, family, &mut edits),
        }
    }
    Ok(edits)
}

pub(super) fn remove_edits(tables: &[Table]) -> Vec<Edit<'static>> {
    let mut edits = Vec::new();
    for family in Family::ALL {
        remove_family(nat_table(tables, family), family, &mut edits);
    }
    edits
}

fn nat_table(tables: &[Table], family: Family) -> Option<&Table> {
    let mut tables = tables.iter().filter(|table| Mode::of(table) == Some(Mode::Nft));
    tables.find(|table| table.family == TableFamily::Ip(family))
}

/// Adds the edits after which each of proxy-init's chains holds its rules, and one correct jump leads to each.
fn refill<'a>(table: Option<&Table>, ruleset: &'a Ruleset, edits: &mut Vec<Edit<'a>>) -> Result<(), ModeError> {
    let id = nat(ruleset.family);
    if table.is_some_and(|table| table.dormant) {
        return Err(ModeError::Dormant(id.to_string()));
    }
    if table.is_none() {
        edits.push(Edit::AddTable(id));
    }
    let chains = table.map(|table| table.chains.as_slice()).unwrap_or_default();
    let held = |name: ChainName| chains.iter().find(|chain| chain.name == *name.as_str());
    for name in ChainName::ALL {
        let place = |base: Base| (base.kind, base.hook, base.priority);
        // If a chain of this name is hooked elsewhere, the kernel refuses the edit, and the error names the chain.
        if held(name).map(|chain| chain.base.map(place)) != Some(name.base().map(place)) {
            edits.push(Edit::AddChain(id, name.into()));
        }
    }
    for name in Ruleset::CHAINS {
        let held = held(name).map(|chain| chain.rules.as_slice()).unwrap_or_default();
        if name.is_ours() {
            let wanted = ruleset.rules_of(name).map(|rule| Wanted { rule, may_stay: true });
            let (deleted, added) = change_chain(id, name.into(), &[], held, wanted.collect());
            edits.extend(deleted);
            edits.extend(added);
            continue;
        }
        let (missing, surplus) = missing_and_surplus(held, &ruleset.rules_of(name).collect::<Vec<_>>());
        for (_, rule) in surplus {
            edits.push(Edit::DeleteRule(id, Name::from(name.as_str()), rule.handle));
        }
        for rule in missing {
            edits.push(append_rule(id, name, rule, &[]));
        }
    }
    Ok(())
}

/// Adds the edits that remove proxy-init's chains and every rule that leads to them, and also the base chains and the
/// table if proxy-init made them and they hold nothing else.
fn remove_family(table: Option<&Table>, family: Family, edits: &mut Vec<Edit<'_>>) {
    let Some(table) = table else {
        return;
    };
    let id = nat(family);
    let mut ours = ChainName::ALL.to_vec();
    ours.retain(|&name| name.is_ours() && chain_of(table, name).is_some());
    if ours.is_empty() {
        return;
    }
    let is_marked = |comment: &Option<Name>| comment.as_ref().is_some_and(|comment| *comment == *MARK);
    let mut deleted = ours.clone();
    for chain in &table.chains {
        if ChainName::own(&chain.name).is_some() {
            continue;
        }
        let (jumps, others): (Vec<_>, Vec<_>) = chain.rules.iter().partition(|rule| leads_to(rule, table).is_some());
        for jump in jumps {
            edits.push(Edit::DeleteRule(id, chain.name.clone(), jump.handle));
        }
        if let Some(name) = ChainName::from_name(chain.name.as_bytes())
            && others.is_empty()
            && is_marked(&chain.comment)
            && chain.base.is_some_and(|base| base.policy == Policy::Accept)
        {
            deleted.push(name);
        }
    }
    edits.extend(ours.iter().map(|&chain| Edit::FlushChain(id, chain.into())));
    edits.extend(deleted.iter().map(|&chain| Edit::DeleteChain(id, chain.into())));
    if is_marked(&table.comment) && table.objects as usize == deleted.len() {
        edits.push(Edit::DeleteTable(id));
    }
}
