//! nft and legacy mode: a nat table for each family, as iptables makes it. In nft mode, one batch changes both; in legacy
//! mode, the edits of each family become a restore command's input.

use netfilter::nf_tables::TableId;
use netfilter::nf_tables::edit::Edit;
use netfilter::nf_tables::held::HeldRule;
use netfilter::nf_tables::table::MARK;
use ruleset::{Base, Chain, Family, NAT, Name, Policy, Table, TableFamily};

use super::rerun::Wanted;
use crate::config::Mode;
use crate::error::ModeError;
use crate::ownership::{is_own_jump, target_of};
use crate::plan::{ChainName, chain_of, rules_of};

fn nat(family: Family) -> TableId {
    TableId { family: TableFamily::Ip(family), name: NAT }
}

/// The edits that turn a mode's nat tables into exactly the wanted ones; none if they are that already.
pub(super) fn install_edits<'a>(
    mode: Mode,
    held: &[Table<HeldRule>],
    wanted: &'a [Table],
) -> Result<Vec<Edit<'a>>, ModeError> {
    let mut edits = Vec::with_capacity(32);
    for family in Family::ALL {
        let held = mode.table_among(held, family);
        match mode.table_among(wanted, family) {
            Some(wanted) => refill(mode, held, family, wanted, &mut edits)?,
            None => remove_family(held, family, &mut edits),
        }
    }
    Ok(edits)
}

/// Adds the edits after which each of our chains holds its rules, and one correct jump leads to each.
fn refill<'a>(
    mode: Mode,
    held: Option<&Table<HeldRule>>,
    family: Family,
    wanted: &'a Table,
    edits: &mut Vec<Edit<'a>>,
) -> Result<(), ModeError> {
    let id = nat(family);
    if held.is_some_and(|table| table.dormant) {
        return Err(ModeError::Dormant(id.to_string()));
    }
    if held.is_none() {
        edits.push(Edit::AddTable(id));
    }
    for name in ChainName::ALL {
        let place = |base: Base| (base.kind, base.hook, base.priority);
        let chain = held.and_then(|table| chain_of(table, name));
        // If a chain of this name is hooked elsewhere, the kernel refuses the edit, and the error names the chain.
        if chain.map(|chain| chain.base.map(place)) != Some(name.base().map(place)) {
            edits.push(Edit::AddChain(id, name.into()));
        }
    }
    for name in ChainName::IN_ORDER {
        let held = held.map(|table| rules_of(table, name)).unwrap_or_default();
        let wanted = Wanted { mode, table: id, chain: name, rules: rules_of(wanted, name), sets: &[] };
        if name.is_ours() {
            wanted.refill(held, edits)?;
        } else {
            wanted.complete(held, edits)?;
        }
    }
    Ok(())
}

/// Adds the edits that remove our chains and every rule that leads to them, and also the base chains and the
/// table if proxy-init made them and they hold nothing else.
fn remove_family(table: Option<&Table<HeldRule>>, family: Family, edits: &mut Vec<Edit<'_>>) {
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
        let (jumps, others): (Vec<_>, Vec<_>) = chain.rules.iter().partition(|rule| target_of(rule).is_some());
        // A verdict map may lead elsewhere too. While its rule is there, the kernel deletes none of the chains.
        for jump in jumps.into_iter().filter(|jump| jump.target.is_some()) {
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

/// The rules in a mode's nat tables that lead to a chain of ours and aren't our own jumps, which go with that chain, each
/// with its table and chain.
pub(super) fn foreign_jumps(mode: Mode, tables: &[Table<HeldRule>]) -> Vec<String> {
    let mut foreign = Vec::new();
    for table in Family::ALL.into_iter().filter_map(|family| mode.table_among(tables, family)) {
        for chain in table.chains.iter().filter(|chain| ChainName::own(&chain.name).is_none()) {
            let Chain { name, rules, .. } = chain;
            let base = ChainName::from_name(name.as_bytes());
            for rule in rules.iter().filter(|rule| !base.is_some_and(|base| is_own_jump(rule, base))) {
                let Some(goal) = target_of(rule) else { continue };
                let words = match mode {
                    Mode::Legacy => String::from_utf8_lossy(&rule.expressions).into_owned(),
                    Mode::Nft | Mode::Native if rule.is_unconditional => format!("-j {goal}"),
                    Mode::Nft | Mode::Native => format!("… -j {goal}"),
                };
                foreign.push(format!("{table}: -A {name} {words}"));
            }
        }
    }
    foreign
}
