//! How a [`Ruleset`] reaches the kernel and is read back: one folder per backend.

pub mod all;
pub mod legacy;
pub mod native;
pub mod nft;

use crate::error::Error;
use crate::rules::found::Table;
use crate::rules::mode::Mode;
use crate::rules::ruleset::Ruleset;

/// A way to hold rules in the kernel.
pub trait Backend: Send {
    /// Its name.
    fn mode(&self) -> Mode;

    /// Installs the rulesets, all of them or, on an error, nothing. Afterwards the families that are given hold exactly
    /// these rules of proxy-init's, each once, whatever was there before, and the others hold none. Other rules and chains
    /// stay where they are. Rules of proxy-init's in other backends are not looked at.
    ///
    /// # Errors
    /// What is missing or refused, with the rule that it is about.
    fn install(&self, rulesets: &[Ruleset]) -> Result<(), Error>;

    /// Removes proxy-init's chains in both families, and every rule that leads to one of them.
    ///
    /// # Errors
    /// What is missing or refused. Nothing has changed then, unless the error says otherwise.
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
