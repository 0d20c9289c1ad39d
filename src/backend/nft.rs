//! nft mode: nat chains in nf_tables, written as iptables-nft would write them.
//!
//! One netlink batch holds the rules of both families, and the kernel commits it as a whole or not at all. Nothing is
//! read at first: the batch is valid only for the first generation, so the kernel refuses it unless the namespace is
//! untouched. Only if it is refused is everything read, and a batch that is valid only for that generation makes the
//! changes.

use netfilter::netlink::{FinishedBatch, Generation};
use netfilter::nf_tables::TableId;
use netfilter::nf_tables::edit::{self, Edit};
use netfilter::nf_tables::rule::NewRule;
use netfilter::nf_tables::table::MARK;
use packets::rules::{Base, Chain, Family, NAT, Name, Policy, Rule, Table, TableFamily};

use super::Removed;
use super::change::{Wanted, amiss, change};
use crate::backend::commit::transact;
use crate::backend::refusal::unwritten;
use crate::error::{Error, ModeError};
use crate::ours::leads_to;
use crate::wanted::{ChainName, Mode, Ruleset};

/// Removes the mode's rules, as [`all::remove`](super::all::remove).
pub(super) fn remove() -> Result<Removed, Error> {
    let mut held = Vec::new();
    let any = transact(None, |tables| {
        held = tables.to_vec();
        Ok(remove_edits(tables))
    });
    let any = any.map_err(|error| error.in_mode(Mode::Nft))?;
    Ok(Removed::from(any, &held))
}

/// The batch that installs the rulesets in a fresh namespace, ready to send.
///
/// # Errors
/// A rule that can't be written.
pub fn batch(rulesets: &[Ruleset]) -> Result<Vec<u8>, Error> {
    let batch = edit::batch(&fresh(rulesets), Generation::FRESH);
    let FinishedBatch(bytes) = batch.map_err(|error| unwritten(&error).in_mode(Mode::Nft))?;
    Ok(bytes)
}

/// A family's nat table.
fn nat(family: Family) -> TableId {
    TableId {
        family: TableFamily::Ip(family),
        name: NAT,
    }
}

fn append(family: Family, chain: ChainName, rule: &Rule) -> Edit<'_> {
    Edit::AddRule(NewRule {
        table: nat(family),
        chain: chain.into(),
        rule,
        sets: &[],
        before: None,
    })
}

/// The edits that install the rulesets in a namespace that holds nothing.
pub(crate) fn fresh(rulesets: &[Ruleset]) -> Vec<Edit<'_>> {
    let mut edits = Vec::with_capacity(32);
    for ruleset in rulesets {
        let family = ruleset.family;
        edits.push(Edit::AddTable(nat(family)));
        edits.extend(ChainName::ALL.map(|chain| Edit::AddChain(nat(family), chain.into())));
        let rules = ruleset.rules.iter();
        edits.extend(rules.map(|(chain, rule)| append(family, *chain, rule)));
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

/// The edits that remove proxy-init's rules and chains.
pub(super) fn remove_edits(tables: &[Table]) -> Vec<Edit<'static>> {
    let mut edits = Vec::new();
    for family in Family::ALL {
        remove_family(nat_table(tables, family), family, &mut edits);
    }
    edits
}

fn nat_table(tables: &[Table], family: Family) -> Option<&Table> {
    let is_it = |table: &&Table| Mode::of(table) == Some(Mode::Nft) && table.family == TableFamily::Ip(family);
    tables.iter().find(is_it)
}

/// Adds the edits after which each of proxy-init's chains holds its rules, and one correct jump leads to each.
fn refill<'a>(table: Option<&Table>, ruleset: &'a Ruleset, edits: &mut Vec<Edit<'a>>) -> Result<(), ModeError> {
    let (family, id) = (ruleset.family, nat(ruleset.family));
    if table.is_some_and(|table| table.dormant) {
        return Err(ModeError::Dormant(id.to_string()));
    }
    if table.is_none() {
        edits.push(Edit::AddTable(id));
    }
    let chain_of = |name: ChainName| {
        let is_it = |chain: &&Chain| chain.name == *name.as_str();
        table.and_then(|table| table.chains.iter().find(is_it))
    };
    for name in ChainName::ALL {
        let place = |base: Base| (base.kind, base.hook, base.priority);
        let held = chain_of(name).map(|chain| chain.base.map(place));
        // If a chain of this name is hooked elsewhere, the kernel refuses the edit, and the error names the chain.
        if held != Some(name.base().map(place)) {
            edits.push(Edit::AddChain(id, name.into()));
        }
    }
    for name in Ruleset::CHAINS {
        let held = chain_of(name).map(|chain| chain.rules.as_slice()).unwrap_or_default();
        if name.is_ours() {
            let wanted = ruleset.rules_of(name).map(|rule| Wanted { rule, may_stay: true });
            let (deleted, added) = change(id, name.into(), &[], held, wanted.collect());
            edits.extend(deleted.into_iter().chain(added));
        } else {
            let (missing, copies) = amiss(held, &ruleset.rules_of(name).collect::<Vec<_>>());
            let delete = |(_, copy): (_, &Rule)| Edit::DeleteRule(id, Name::from(name.as_str()), copy.handle);
            edits.extend(copies.into_iter().map(delete));
            edits.extend(missing.into_iter().map(|rule| append(family, name, rule)));
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
    let is_there = |name: &ChainName| name.is_ours() && table.chains.iter().any(|chain| chain.name == *name.as_str());
    let ours: Vec<ChainName> = ChainName::ALL.into_iter().filter(is_there).collect();
    if ours.is_empty() {
        return;
    }
    let is_marked = |comment: &Option<Name>| comment.as_ref().is_some_and(|comment| *comment == *MARK);
    let mut emptied = Vec::new();
    let others = table
        .chains
        .iter()
        .filter(|chain| ChainName::own(&chain.name).is_none());
    for chain in others {
        let (jumps, others): (Vec<_>, Vec<_>) = chain.rules.iter().partition(|rule| leads_to(rule, table).is_some());
        let delete = |rule: &Rule| Edit::DeleteRule(id, chain.name.clone(), rule.handle);
        edits.extend(jumps.into_iter().map(delete));
        let accepts = chain.base.is_some_and(|base| base.policy == Policy::Accept);
        if let Some(name) = ChainName::from_name(chain.name.as_bytes())
            && others.is_empty()
            && is_marked(&chain.comment)
            && accepts
        {
            emptied.push(name);
        }
    }
    edits.extend(ours.iter().map(|&chain| Edit::FlushChain(id, chain.into())));
    edits.extend(
        ours.iter()
            .chain(&emptied)
            .map(|&chain| Edit::DeleteChain(id, chain.into())),
    );
    if is_marked(&table.comment) && table.objects as usize == ours.len() + emptied.len() {
        edits.push(Edit::DeleteTable(id));
    }
}
