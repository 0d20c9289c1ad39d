//! native mode: nftables' own way, one inet table with sets, for kernels without xtables.
//!
//! It needs nf_tables with NAT for the inet family (`CONFIG_NF_TABLES_INET`, nft_chain_nat, nft_redir; Linux 5.2), and no
//! xt module and no nft_compat. Where the table isn't as it should be, one batch deletes it and adds it anew.

mod body;
mod table;

use self::body::NativeRule;
use self::table::{TABLE, kind};
use super::{Backend, Removed};
use crate::error::Error;
use crate::netlink::{FinishedBatch, Generation};
use crate::nf_tables::commit::{Outcome, commit_fresh, transact};
use crate::nf_tables::refusal::is_mapped;
use crate::nf_tables::set::{NewSet, elements};
use crate::nf_tables::step::{self, Body as _, Step};
use crate::rules::config::OwnerId;
use crate::rules::difference::differences_of;
use crate::rules::found::{Subsystem, Table};
use crate::rules::mode::Mode;
use crate::rules::nftables::{self, datatype};
use crate::rules::ruleset::{ChainName, Ruleset};

/// The most elements in one message: their list is one attribute, whose length is 16 bits.
const ELEMENTS: usize = 1000;

/// The backend.
#[derive(Debug, Clone, Copy)]
pub struct Native;

impl Backend for Native {
    fn mode(&self) -> Mode {
        Mode::Native
    }

    fn install(&self, rulesets: &[Ruleset]) -> Result<(), Error> {
        refuse_unmapped(&table::table(rulesets))?;
        match commit_fresh(Mode::Native, &fresh(rulesets))? {
            Outcome::Committed => Ok(()),
            Outcome::OtherGeneration | Outcome::Unanswered(_) => {
                transact(Mode::Native, |tables| install_steps(tables, rulesets)).map(drop)
            }
        }
    }

    fn remove(&self) -> Result<Removed, Error> {
        let any = transact(Mode::Native, |tables| Ok(remove_steps(tables)))?;
        Ok(Removed::from(any, &[]))
    }
}

/// The table that holds just these rulesets, once they are installed.
pub(super) fn expected(rulesets: &[Ruleset]) -> Table {
    table::table(rulesets)
}

/// An nft script that makes the table that installing makes.
pub fn script(rulesets: &[Ruleset]) -> String {
    nftables::script(&table::table(rulesets))
}

/// The netlink batch that installs the rulesets in a fresh namespace, ready to send.
pub fn batch(rulesets: &[Ruleset]) -> Vec<u8> {
    let FinishedBatch(bytes) = step::batch(&fresh(rulesets), Generation::FRESH);
    bytes
}

/// The steps in a namespace that holds nothing.
pub(super) fn fresh(rulesets: &[Ruleset]) -> Vec<Step<'static>> {
    let mut steps = Vec::with_capacity(32);
    add(table::table(rulesets), &mut steps);
    steps
}

/// The steps from what the namespace holds to exactly the rulesets; none if that is what it holds.
pub(super) fn install_steps(tables: &[Table], rulesets: &[Ruleset]) -> Result<Vec<Step<'static>>, Error> {
    let wanted = table::table(rulesets);
    refuse_unmapped(&wanted)?;
    let mut steps = Vec::new();
    if let Some(held) = held(tables) {
        if held.dormant && holds_others(held) {
            return Err(Error::Dormant {
                mode: Mode::Native,
                table: TABLE.to_string(),
            });
        }
        if differences_of(&wanted, held).is_empty() {
            return Ok(steps);
        }
        steps.push(Step::DeleteTable(TABLE));
    }
    add(wanted, &mut steps);
    Ok(steps)
}

/// The steps that remove the table.
pub(super) fn remove_steps(tables: &[Table]) -> Vec<Step<'static>> {
    held(tables).map(|_| Step::DeleteTable(TABLE)).into_iter().collect()
}

fn held(tables: &[Table]) -> Option<&Table> {
    tables.iter().find(|table| {
        table.subsystem == Subsystem::NfTables && table.family == TABLE.family && table.name == *TABLE.name
    })
}

/// Whether somebody else has chains in the table.
fn holds_others(table: &Table) -> bool {
    table
        .chains
        .iter()
        .any(|chain| ChainName::from_name(chain.name.as_bytes()).is_none())
}

/// nf_tables takes an id as it is, so that in a user namespace one that isn't mapped would silently mean another user.
fn refuse_unmapped(table: &Table) -> Result<(), Error> {
    for chain in &table.chains {
        for rule in &chain.rules {
            let rule = NativeRule(rule.clone());
            if let Some((id, map)) = rule.owner()
                && !is_mapped(OwnerId::get(id), map)
            {
                return Err(Error::UnmappedOwner {
                    mode: Mode::Native,
                    rule: rule.to_string(),
                    id,
                });
            }
        }
    }
    Ok(())
}

fn add(table: Table, steps: &mut Vec<Step<'static>>) {
    steps.push(Step::AddTable(TABLE));
    for (set, id) in table.sets.iter().zip(1..) {
        let (field, max) = kind(set);
        let (_, datatype) = datatype(field);
        let new = || NewSet {
            table: TABLE,
            name: set.name.to_string(),
            datatype,
            bytes: (set.bits / 8) as usize,
        };
        steps.push(Step::AddSet(new(), id));
        let elements = elements(&set.elements.clone().unwrap_or_default(), max);
        steps.extend(
            elements
                .chunks(ELEMENTS)
                .map(|chunk| Step::AddElements(new(), chunk.to_vec())),
        );
    }
    steps.extend(ChainName::ALL.map(|chain| Step::AddChain(TABLE, chain)));
    for chain in table.chains {
        if let Some(name) = ChainName::from_name(chain.name.as_bytes()) {
            let append = |rule| Step::Append(TABLE, name, Box::new(NativeRule(rule)) as _);
            steps.extend(chain.rules.into_iter().map(append));
        }
    }
}
