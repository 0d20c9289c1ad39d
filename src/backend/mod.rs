//! How a [`Ruleset`] reaches the kernel and is read back: one module a backend.

pub mod legacy;
pub mod nft;

use crate::config::Family;
use crate::error::{Error, Mode};
use crate::ruleset::Ruleset;

/// The iptables command that shows a backend's rules.
pub(crate) fn command(mode: Mode, family: Family) -> &'static str {
    match (mode, family) {
        (Mode::Nft, Family::V4) => "iptables-nft",
        (Mode::Nft, Family::V6) => "ip6tables-nft",
        (Mode::Legacy, Family::V4) => "iptables-legacy",
        (Mode::Legacy, Family::V6) => "ip6tables-legacy",
    }
}

/// A way to hold rules in the kernel.
pub trait Backend {
    /// Its name.
    fn mode(&self) -> Mode;

    /// Installs the rulesets, all of them or, on an error, nothing. Afterwards the families that are given hold
    /// exactly these rules of ours, each once, whatever was there before, and the others hold none. Strangers' rules
    /// and chains stay where they are.
    ///
    /// # Errors
    /// What is missing or refused, with the rule that it is about.
    fn install(&self, rulesets: &[Ruleset]) -> Result<(), Error>;

    /// Takes our jumps, rules and chains out, in both families, and leaves strangers' alone. Nothing there is success.
    ///
    /// # Errors
    /// What is missing or refused.
    fn remove(&self) -> Result<(), Error>;

    /// What the backend holds in the nat tables of this network namespace, both families together. Asking changes
    /// nothing and starts no process.
    ///
    /// # Errors
    /// The kernel can't be asked.
    fn held(&self) -> Result<Held, Error>;
}

/// What a backend holds in a namespace's nat tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    /// Chains of ours are there.
    pub ours: bool,
    /// How many rules there are, ours and strangers', as iptables-save would print them.
    pub rules: usize,
}

impl std::ops::Add for Held {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            ours: self.ours || other.ours,
            rules: self.rules + other.rules,
        }
    }
}
