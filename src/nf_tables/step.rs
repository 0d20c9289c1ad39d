//! A transaction as a list of steps: each is one netlink message, and the kernel applies them in order.

use std::borrow::Cow;
use std::fmt;

use super::TableId;
use super::rule::{self, AddRule};
use super::set::{self, Element, NewSet};
use crate::netlink::message::Writer;
use crate::netlink::{Batch, FinishedBatch, Generation, Socket};
use crate::rules::family::Family;
use crate::rules::name::Name;
use crate::rules::table::TableFamily;
use crate::wanted::config::OwnerId;
use crate::wanted::mode::Mode;
use crate::wanted::ruleset::ChainName;

/// One change.
pub(crate) enum Step<'a> {
    /// Make the table, unless it exists.
    AddTable(TableId),
    /// Delete the table and everything in it.
    DeleteTable(TableId),
    /// Make a chain, unless it exists. An existing base chain keeps its policy.
    AddChain(TableId, ChainName),
    /// Delete all of a chain's rules.
    FlushChain(TableId, ChainName),
    /// Delete an empty chain to which no rule jumps.
    DeleteChain(TableId, ChainName),
    /// Add a rule to a chain: before the rule that has this handle, or at the end.
    AddRule(TableId, ChainName, Box<dyn Body + 'a>, Option<u64>),
    /// Delete the rule that has this handle from a chain, whichever program made it.
    DeleteRule(TableId, Name, u64),
    /// Make a set, which has this number in the batch.
    AddSet(NewSet, u32),
    /// Add some elements to a set.
    AddElements(NewSet, Vec<Element>),
    /// Delete a set that no rule uses.
    DeleteSet(TableId, Name),
}

/// A rule's content. Its Display is the rule in the syntax of the tool that shows it.
pub(crate) trait Body: fmt::Display {
    /// Adds its expressions.
    fn write(&self, expressions: &mut Writer);
    /// The rule's comment.
    fn comment(&self) -> Cow<'_, [u8]>;
    /// Whether the rule's protocol is declared as TCP to the xt extensions in it.
    fn for_tcp(&self) -> bool {
        false
    }
    /// The user or group that the rule matches, if it does, and the file with the user namespace's map of such ids.
    fn owner(&self) -> Option<(OwnerId, &'static str)>;
    /// What the kernel lacks for the rule, once it has answered ENOENT: the thing, its module, and the kernel option.
    fn missing(&self, socket: &Socket) -> Option<(String, &'static str, &'static str)>;
}

impl Step<'_> {
    /// The table that it is about.
    pub(crate) fn table(&self) -> TableId {
        match self {
            Step::AddTable(table)
            | Step::DeleteTable(table)
            | Step::AddChain(table, _)
            | Step::FlushChain(table, _)
            | Step::DeleteChain(table, _)
            | Step::AddRule(table, ..)
            | Step::DeleteRule(table, ..)
            | Step::DeleteSet(table, _) => *table,
            Step::AddSet(set, _) | Step::AddElements(set, _) => set.table,
        }
    }

    fn write(&self, batch: &mut Batch, last: bool) {
        match self {
            Step::AddTable(table) => table.add(batch, last),
            Step::DeleteTable(table) => table.delete(batch, last),
            Step::AddChain(table, chain) => table.add_chain(batch, last, chain.as_str(), chain.hook()),
            Step::FlushChain(table, chain) => rule::delete(batch, last, *table, chain.as_str().as_bytes(), None),
            Step::DeleteChain(table, chain) => table.delete_chain(batch, last, chain.as_str()),
            Step::DeleteRule(table, chain, handle) => {
                rule::delete(batch, last, *table, chain.as_bytes(), Some(*handle))
            }
            Step::AddSet(set, id) => set.add(batch, last, *id),
            Step::AddElements(set, elements) => set.add_elements(batch, last, elements),
            Step::DeleteSet(table, set) => set::delete(batch, last, *table, set),
            Step::AddRule(table, chain, body, before) => AddRule {
                table: *table,
                chain: chain.as_str(),
                before: *before,
                for_tcp: body.for_tcp(),
                comment: &body.comment(),
            }
            .write(batch, last, |expressions| body.write(expressions)),
        }
    }
}

/// The steps as a batch: message n is step n, counted from 1. Only the last one asks for an acknowledgement.
fn written(steps: &[Step<'_>], generation: Option<Generation>) -> Batch {
    let mut batch = Batch::begin(generation);
    for (index, step) in steps.iter().enumerate() {
        step.write(&mut batch, index + 1 == steps.len());
    }
    batch
}

/// The steps as a batch that the kernel commits if the ruleset is at this generation.
pub(crate) fn batch(steps: &[Step<'_>], generation: Generation) -> FinishedBatch {
    written(steps, Some(generation)).end()
}

/// The steps as a batch that the kernel checks and then forgets.
pub(crate) fn trial(steps: &[Step<'_>]) -> FinishedBatch {
    written(steps, None).without_end()
}

/// The command that the step stands for: iptables' in the tables of one family, nft's elsewhere.
impl fmt::Display for Step<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.table();
        match (self, table.family) {
            (Step::AddTable(_), _) => write!(f, "nft add table {table}"),
            (Step::DeleteTable(_), _) => write!(f, "nft delete table {table}"),
            (Step::DeleteRule(_, chain, handle), _) => write!(f, "nft delete rule {table} {chain} handle {handle}"),
            (Step::AddSet(set, _), _) => write!(f, "nft add set {table} {}", set.name),
            (Step::DeleteSet(_, set), _) => write!(f, "nft delete set {table} {set}"),
            (Step::AddElements(set, _), _) => write!(f, "nft add element {table} {}", set.name),
            (Step::AddChain(_, chain), TableFamily::Ip(family)) => write!(f, "{} -N {chain}", iptables(family)),
            (Step::FlushChain(_, chain), TableFamily::Ip(family)) => write!(f, "{} -F {chain}", iptables(family)),
            (Step::DeleteChain(_, chain), TableFamily::Ip(family)) => write!(f, "{} -X {chain}", iptables(family)),
            (Step::AddRule(_, chain, body, None), TableFamily::Ip(family)) => {
                write!(f, "{} -A {chain} {body}", iptables(family))
            }
            (Step::AddRule(_, chain, body, Some(_)), TableFamily::Ip(family)) => {
                write!(f, "{} -I {chain} {body}", iptables(family))
            }
            (Step::AddChain(_, chain), _) => write!(f, "nft add chain {table} {chain}"),
            (Step::FlushChain(_, chain), _) => write!(f, "nft flush chain {table} {chain}"),
            (Step::DeleteChain(_, chain), _) => write!(f, "nft delete chain {table} {chain}"),
            (Step::AddRule(_, chain, body, _), _) => write!(f, "nft add rule {table} {chain} {body}"),
        }
    }
}

fn iptables(family: Family) -> String {
    format!("{} -t nat", Mode::Nft.iptables(family))
}
