//! Plans a re-run's changes of a chain. A held rule is the wanted one if its comment is, and its expressions, which aren't
//! decoded, or in legacy mode its text.

use netfilter::nf_tables::comparable::written;
use netfilter::nf_tables::edit::Edit;
use netfilter::nf_tables::held::HeldRule;
use netfilter::nf_tables::rule::NewRule;
use netfilter::nf_tables::{ChainId, TableId};
use ruleset::xtables::IptablesRule;
use ruleset::{Chain, Name, Rule, Set, Table};

use super::refusal::unwritten_error;
use crate::config::Mode;
use crate::error::ModeError;
use crate::ownership::is_own_jump;
use crate::plan::ChainName;

/// A chain that is to hold these rules, in a table with these sets.
pub(super) struct Wanted<'a> {
    pub(super) mode: Mode,
    pub(super) table: TableId,
    pub(super) chain: ChainName,
    pub(super) rules: &'a [Rule],
    pub(super) sets: &'a [Set],
}

impl<'a> Wanted<'a> {
    /// Adds the edits after which our own chain holds exactly the rules. If it holds them already, they stay, with their
    /// counters; otherwise all are made again.
    pub(super) fn refill(&self, held: &[HeldRule], edits: &mut Vec<Edit<'a>>) -> Result<(), ModeError> {
        if !held.is_empty() {
            let written = self.expressions()?;
            let mut pairs = held.iter().zip(written.iter().zip(self.rules));
            if held.len() == self.rules.len() && pairs.all(|(held, (written, rule))| is_same(held, written, rule)) {
                return Ok(());
            }
            edits.push(Edit::FlushChain(self.table, self.chain.into()));
        }
        self.fill(edits);
        Ok(())
    }

    /// Adds the edits after which a base chain, which other programs share, holds each of the rules once. Jumps of
    /// linkerd-init's, or of another version of ours, go; other rules stay, as do jumps that another program added.
    pub(super) fn complete(&self, held: &[HeldRule], edits: &mut Vec<Edit<'a>>) -> Result<(), ModeError> {
        if held.is_empty() {
            self.fill(edits);
            return Ok(());
        }
        let written = self.expressions()?;
        let mut missing: Vec<_> = written.iter().zip(self.rules).collect();
        for held in held {
            match missing.iter().position(|(written, rule)| is_same(held, written, rule)) {
                Some(place) => drop(missing.remove(place)),
                None if !is_own_jump(held, self.chain) => {}
                None => edits.push(Edit::DeleteRule(self.table, Name::from(self.chain.as_str()), held.handle)),
            }
        }
        edits.extend(missing.into_iter().map(|(_, rule)| Edit::AddRule(self.new_rule(rule))));
        Ok(())
    }

    /// Adds the edits that add the rules to the chain's end.
    pub(super) fn fill(&self, edits: &mut Vec<Edit<'a>>) {
        edits.extend(self.rules.iter().map(|rule| Edit::AddRule(self.new_rule(rule))));
    }

    fn new_rule(&self, rule: &'a Rule) -> NewRule<'a> {
        NewRule { table: self.table, chain: ChainId::from(self.chain), rule, sets: self.sets }
    }

    /// The expressions of each rule, as the kernel would hold them.
    fn expressions(&self) -> Result<Vec<Vec<u8>>, ModeError> {
        match self.mode {
            Mode::Legacy => Ok(self.rules.iter().map(text).collect()),
            Mode::Nft | Mode::Native => {
                written(self.rules.iter().map(|rule| self.new_rule(rule))).map_err(|error| unwritten_error(&error))
            }
        }
    }
}

fn text(rule: &Rule) -> Vec<u8> {
    IptablesRule(rule).to_string().into_bytes()
}

/// A legacy table as it is compared: each rule by its text, with its number in its chain as its handle.
pub(super) fn held_in_legacy(table: &Table) -> Table<HeldRule> {
    let held = |(handle, rule): (u64, &Rule)| HeldRule {
        handle,
        expressions: text(rule),
        comment: rule.comment.clone(),
        is_unconditional: rule.conditions.is_empty(),
        target: rule.action.target().cloned(),
        mapped: Vec::new(),
    };
    let mut compared = Table::new(table.subsystem, table.family, table.name.clone());
    for chain in &table.chains {
        compared.chains.push(Chain::new(chain.name.clone(), chain.base, (1..).zip(&chain.rules).map(held).collect()));
    }
    compared
}

/// Returns true if a held rule is this one, which would be written with these expressions.
fn is_same(held: &HeldRule, written: &[u8], rule: &Rule) -> bool {
    held.expressions == written && held.comment == rule.comment
}
