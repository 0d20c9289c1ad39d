//! How a [`Ruleset`] reaches the kernel and is read back: one folder per backend.

pub mod all;
pub mod legacy;
pub mod native;
pub mod nft;

use crate::error::Error;
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

    /// Removes proxy-init's jumps, rules and chains, in both families, and nothing else. Tells whether there was anything.
    ///
    /// # Errors
    /// What is missing or refused.
    fn remove(&self) -> Result<bool, Error>;
}
