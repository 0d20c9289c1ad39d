//! How rules are installed in the kernel, removed, and read back: one folder per backend.

pub mod all;
mod change;
#[cfg(test)]
mod inverse;
pub mod legacy;
pub mod native;
pub mod nft;

use crate::error::Error;
use crate::rules::table::Table;
use crate::wanted::mode::Mode;
use crate::wanted::ruleset::Ruleset;

/// A way to hold rules in the kernel.
pub trait Backend: Send {
    /// Its name.
    fn mode(&self) -> Mode;

    /// Installs the rulesets: all of them or, on an error, none. Whatever was found before, afterwards proxy-init has
    /// exactly these rules, each once, in the families that have a ruleset, and none in the others. Rules and chains of
    /// other programs stay as they are. proxy-init's rules in other backends are not considered. Returns whether anything
    /// had to be changed.
    ///
    /// # Errors
    /// What is missing or was refused, and for which rule.
    fn install(&self, rulesets: &[Ruleset]) -> Result<bool, Error>;

    /// Removes proxy-init's rules and chains in both families, and every rule that leads to them. Base chains and
    /// tables go only if proxy-init made them and nothing else is in them.
    ///
    /// # Errors
    /// What is missing or was refused. Nothing has changed then, unless the error says otherwise.
    fn remove(&self) -> Result<Removed, Error>;
}

/// What a backend removed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Removed {
    /// Whether there was anything.
    pub any: bool,
    /// The rules that led to a chain of proxy-init's and were not proxy-init's own, each with its table and chain.
    pub foreign: Vec<String>,
}

impl Removed {
    /// That a backend removed all that it held in these tables, if it held `any`.
    fn from(any: bool, tables: &[Table]) -> Self {
        let foreign = tables.iter().flat_map(Table::foreign_jumps);
        Self {
            any,
            foreign: foreign
                .filter(|_| any)
                .map(|line| format!("{}: {line}", line.table))
                .collect(),
        }
    }
}
