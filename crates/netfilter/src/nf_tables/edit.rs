//! A transaction as a list of edits: each is one netlink message, and the kernel applies them in order.

use std::fmt;

use packets::rules::{Family, Name, Set, TableFamily};
#[cfg(any(test, fuzzing, feature = "testing"))]
use packets::rules::{Hook, Rule};

#[cfg(any(test, fuzzing, feature = "testing"))]
use super::meaning;
use super::rule::{self, NewRule};
use super::set::{self, Element};
use super::{ChainId, TableId};
use crate::netlink::message::Unwritable;
use crate::netlink::{Batch, FinishedBatch, Generation};

/// One change.
pub enum Edit<'a> {
    /// Make the table, unless it exists.
    AddTable(TableId),
    /// Delete the table and everything in it.
    DeleteTable(TableId),
    /// Make a chain, unless it exists. An existing base chain keeps its policy.
    AddChain(TableId, ChainId),
    /// Delete all of a chain's rules.
    FlushChain(TableId, ChainId),
    /// Delete an empty chain to which no rule jumps.
    DeleteChain(TableId, ChainId),
    /// Add a rule to a chain.
    AddRule(NewRule<'a>),
    /// Delete the rule that has this handle from a chain, whichever program made it.
    DeleteRule(TableId, Name, u64),
    /// Make a set, which has this number in the batch.
    AddSet(TableId, &'a Set, u32),
    /// Add some elements to a set.
    AddElements(TableId, &'a Set, Vec<Element>),
    /// Delete a set that no rule uses.
    DeleteSet(TableId, Name),
}

impl Edit<'_> {
    /// The table that it is about.
    pub fn table(&self) -> TableId {
        match self {
            Edit::AddTable(table)
            | Edit::DeleteTable(table)
            | Edit::AddChain(table, _)
            | Edit::FlushChain(table, _)
            | Edit::DeleteChain(table, _)
            | Edit::DeleteRule(table, ..)
            | Edit::AddSet(table, ..)
            | Edit::AddElements(table, ..)
            | Edit::DeleteSet(table, _) => *table,
            Edit::AddRule(new) => new.table,
        }
    }

    fn write(&self, batch: &mut Batch) {
        match self {
            Edit::AddTable(table) => table.add(batch),
            Edit::DeleteTable(table) => table.delete(batch),
            Edit::AddChain(table, chain) => table.add_chain(batch, chain.name, chain.hook),
            Edit::FlushChain(table, chain) => rule::delete(batch, *table, chain.name.as_bytes(), None),
            Edit::DeleteChain(table, chain) => table.delete_chain(batch, chain.name),
            Edit::DeleteRule(table, chain, handle) => rule::delete(batch, *table, chain.as_bytes(), Some(*handle)),
            Edit::AddSet(table, set, id) => set::add(batch, *table, set, *id),
            Edit::AddElements(table, set, elements) => set::add_elements(batch, *table, set, elements),
            Edit::DeleteSet(table, set) => set::delete(batch, *table, set),
            Edit::AddRule(new) => new.write(batch),
        }
    }
}

/// An edit that can't be written.
#[derive(Debug)]
pub struct Unwritten {
    /// The edit, as the command that it stands for.
    pub edit: String,
    /// What in it can't be written.
    pub what: Unwritable,
}

/// The edits as a batch: message n is edit n, counted from 1.
fn written(
    edits: &[Edit<'_>],
    generation: Option<Generation>,
    finish: fn(Batch) -> Result<FinishedBatch, Unwritable>,
) -> Result<FinishedBatch, Unwritten> {
    let mut batch = Batch::begin(generation);
    let unwritten = |edit: &dyn fmt::Display, what| Unwritten {
        edit: edit.to_string(),
        what,
    };
    for edit in edits {
        edit.write(&mut batch);
        if let Some(what) = batch.unwritable() {
            return Err(unwritten(edit, what.clone()));
        }
    }
    finish(batch).map_err(|what| unwritten(&"the batch", what))
}

/// The edits as a batch that the kernel commits if the ruleset is at this generation.
///
/// # Errors
/// The first edit that can't be written.
pub fn batch(edits: &[Edit<'_>], generation: Generation) -> Result<FinishedBatch, Unwritten> {
    written(edits, Some(generation), Batch::end)
}

/// The edits as a batch that the kernel checks and then forgets.
///
/// # Errors
/// The first edit that can't be written.
pub fn trial(edits: &[Edit<'_>]) -> Result<FinishedBatch, Unwritten> {
    written(edits, None, Batch::without_end)
}

/// The command that the edit stands for: iptables' in the tables of one family, nft's elsewhere.
impl fmt::Display for Edit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.table();
        match (self, table.family) {
            (Edit::AddTable(_), _) => write!(f, "nft add table {table}"),
            (Edit::DeleteTable(_), _) => write!(f, "nft delete table {table}"),
            (Edit::DeleteRule(_, chain, handle), _) => write!(f, "nft delete rule {table} {chain} handle {handle}"),
            (Edit::AddSet(_, set, _), _) => write!(f, "nft add set {table} {}", set.name),
            (Edit::DeleteSet(_, set), _) => write!(f, "nft delete set {table} {set}"),
            (Edit::AddElements(_, set, _), _) => write!(f, "nft add element {table} {}", set.name),
            (Edit::AddChain(_, chain), TableFamily::Ip(family)) => write!(f, "{} -N {chain}", iptables(family)),
            (Edit::FlushChain(_, chain), TableFamily::Ip(family)) => write!(f, "{} -F {chain}", iptables(family)),
            (Edit::DeleteChain(_, chain), TableFamily::Ip(family)) => write!(f, "{} -X {chain}", iptables(family)),
            (Edit::AddRule(new), TableFamily::Ip(family)) => {
                let option = if new.before.is_some() { "-I" } else { "-A" };
                write!(f, "{} {option} {} {new}", iptables(family), new.chain)
            }
            (Edit::AddChain(_, chain), _) => write!(f, "nft add chain {table} {chain}"),
            (Edit::FlushChain(_, chain), _) => write!(f, "nft flush chain {table} {chain}"),
            (Edit::DeleteChain(_, chain), _) => write!(f, "nft delete chain {table} {chain}"),
            (Edit::AddRule(new), _) => write!(f, "nft add rule {table} {} {new}", new.chain),
        }
    }
}

fn iptables(family: Family) -> String {
    format!("{}-nft -t nat", family.iptables())
}

/// Writes the message that adds a rule to a table of this family with these sets, and reads it as if the kernel had dumped
/// it.
///
/// # Errors
/// What can't be written, or isn't read back.
#[cfg(any(test, fuzzing, feature = "testing"))]
pub fn written_and_read(family: TableFamily, rule: &Rule, sets: &[Set]) -> Result<Rule, String> {
    use crate::netlink::message::Messages;

    let edit = Edit::AddRule(NewRule {
        table: TableId { family, name: "nat" },
        chain: ChainId {
            name: "OUTPUT",
            hook: Some(Hook::Output),
        },
        rule,
        sets,
        before: None,
    });
    let FinishedBatch(bytes) = trial(&[edit]).map_err(|error| error.what.to_string())?;
    let message = Messages(&bytes).flatten().nth(1).ok_or("no message")?;
    let attributes = message.attributes().map_err(|error| error.to_string())?;
    meaning::read(attributes, family, sets, &meaning::only_loopback).map_err(|error| error.to_string())
}
