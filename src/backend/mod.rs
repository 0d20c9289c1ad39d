//! How rules are installed in the kernel, removed, and read back: one folder per backend.

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

    /// Installs the rulesets: all of them or, on an error, none. Whatever was found before, afterwards proxy-init has
    /// exactly these rules, each once, in the families that have a ruleset, and none in the others. Rules and chains of
    /// other programs stay as they are. proxy-init's rules in other backends are not considered. Returns whether anything
    /// had to be changed.
    ///
    /// # Errors
    /// What is missing or was refused, and for which rule.
    fn install(&self, rulesets: &[Ruleset]) -> Result<bool, Error>;

    /// Removes proxy-init's rules and chains in both families, and every rule that leads to them. Base chains and
    /// tables go only if proxy-init made them and nothing else is in them. Returns whether anything was removed.
    ///
    /// # Errors
    /// What is missing or was refused.
    fn remove(&self) -> Result<bool, Error>;
}
