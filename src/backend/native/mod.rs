//! native mode: one inet table with sets and no xtables extensions, for kernels without xtables.
//!
//! It needs nf_tables with NAT for the inet family (`CONFIG_NF_TABLES_INET`, nft_chain_nat, nft_redir; Linux 5.2), but
//! neither nft_compat nor any xt module. If the table differs from what it should be, one batch deletes it and makes it
//! again.

mod body;
mod table;

use self::body::NativeRule;
use self::table::{TABLE, kind};
use super::{Backend, Removed};
use crate::error::Error;
use crate::netlink::{FinishedBatch, Generation};
use crate::nf_tables::commit::transact;
use crate::nf_tables::refusal::unmapped;
use crate::nf_tables::set::{NewSet, elements};
use crate::nf_tables::step::{self, Step};
use crate::rules::difference::differences_of;
use crate::rules::expected::{Shape, set_elements};
use crate::rules::found::{Subsystem, Table};
use crate::rules::mode::Mode;
use crate::rules::nftables::{self, datatype};
use crate::rules::ruleset::{ChainName, Ruleset};

/// The most elements in one message: their list is one attribute, and an attribute's length has only 16 bits.
const ELEMENTS: usize = 1000;

/// The backend.
#[derive(Debug, Clone, Copy)]
pub struct Native;

impl Backend for Native {
    fn mode(&self) -> Mode {
        Mode::Native
    }

    fn install(&self, rulesets: &[Ruleset]) -> Result<bool, Error> {
        let wanted = table::table(rulesets);
        transact(Mode::Native, Some(&fresh(&wanted)?), |tables| {
            install_steps(tables, &wanted)
        })
    }

    fn remove(&self) -> Result<Removed, Error> {
        let any = transact(Mode::Native, None, |tables| Ok(remove_steps(tables)))?;
        Ok(Removed::from(any, &[]))
    }
}

/// The table that installing these rulesets makes.
pub(super) fn expected(rulesets: &[Ruleset]) -> Table {
    table::table(rulesets)
}

/// An nft script that makes the same table as installing does.
pub fn script(rulesets: &[Ruleset]) -> String {
    nftables::script(&table::table(rulesets))
}

/// The netlink batch that installs the rulesets in a fresh namespace, ready to send.
pub fn batch(rulesets: &[Ruleset]) -> Vec<u8> {
    let (wanted, mut steps) = (table::table(rulesets), Vec::new());
    add(&wanted, &mut steps);
    let FinishedBatch(bytes) = step::batch(&steps, Generation::FRESH);
    bytes
}

/// The steps that make the table in a namespace that holds nothing.
pub(super) fn fresh(wanted: &Table) -> Result<Vec<Step<'_>>, Error> {
    let mut steps = Vec::with_capacity(32);
    add(wanted, &mut steps);
    refuse_unmapped(&steps)?;
    Ok(steps)
}

/// The steps that turn what the namespace holds into exactly this table; none if it holds it already.
pub(super) fn install_steps<'a>(tables: &[Table], wanted: &'a Table) -> Result<Vec<Step<'a>>, Error> {
    let mut steps = Vec::new();
    if let Some(held) = held(tables) {
        if held.dormant && holds_others(held) {
            return Err(Error::Dormant {
                mode: Mode::Native,
                table: TABLE.to_string(),
            });
        }
        if differences_of(wanted, held).is_empty() {
            return Ok(steps);
        }
        steps.push(Step::DeleteTable(TABLE));
    }
    add(wanted, &mut steps);
    refuse_unmapped(&steps)?;
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

/// Whether the table has chains of another program.
fn holds_others(table: &Table) -> bool {
    table
        .chains
        .iter()
        .any(|chain| ChainName::from_name(chain.name.as_bytes()).is_none())
}

/// Refuses an owner that isn't mapped in the user namespace: nf_tables takes any id unchecked, and an unmapped one
/// would silently mean another user.
fn refuse_unmapped(steps: &[Step<'_>]) -> Result<(), Error> {
    let refused = steps.iter().find_map(|step| match step {
        Step::AddRule(_, _, body, _) => unmapped(Mode::Native, body.owner(), step),
        _ => None,
    });
    refused.map_or(Ok(()), Err)
}

fn add<'a>(table: &'a Table, steps: &mut Vec<Step<'a>>) {
    steps.push(Step::AddTable(TABLE));
    for (set, id) in table.sets.iter().zip(1..) {
        let (field, max) = kind(set);
        let (_, datatype) = datatype(field);
        let shape = Shape::of(set);
        let new = || NewSet {
            table: TABLE,
            name: set.name.to_string(),
            datatype,
            bytes: (set.bits / 8) as usize,
            shape,
        };
        steps.push(Step::AddSet(new(), id));
        let elements = elements(shape, &set_elements(set), max);
        steps.extend(
            elements
                .chunks(ELEMENTS)
                .map(|chunk| Step::AddElements(new(), chunk.to_vec())),
        );
    }
    steps.extend(ChainName::ALL.map(|chain| Step::AddChain(TABLE, chain)));
    for chain in &table.chains {
        if let Some(name) = ChainName::from_name(chain.name.as_bytes()) {
            let append = |rule| Step::AddRule(TABLE, name, Box::new(NativeRule(rule)) as _, None);
            steps.extend(chain.rules.iter().map(append));
        }
    }
}
