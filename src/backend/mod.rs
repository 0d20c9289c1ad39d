//! How a [`Ruleset`] reaches the kernel and is read back: one module a backend.

pub mod legacy;
pub mod native;
pub mod nft;

use std::path::PathBuf;

use crate::backend::legacy::{Commands, Legacy};
use crate::backend::native::Native;
use crate::backend::nft::Nft;
use crate::error::Error;
use crate::operate::verify::Finding;
use crate::rules::config::Family;
use crate::rules::mode::Mode;
use crate::rules::ruleset::{ChainName, Rule, Ruleset, Target};

/// The iptables command that shows a backend's rules.
pub(crate) fn command(mode: Mode, family: Family) -> &'static str {
    match (mode, family) {
        (Mode::Nft, Family::V4) => "iptables-nft",
        (Mode::Nft, Family::V6) => "ip6tables-nft",
        (Mode::Legacy, Family::V4) => "iptables-legacy",
        (Mode::Legacy, Family::V6) => "ip6tables-legacy",
        // What the rule stands for; native mode has it as part of one on a set.
        (Mode::Native, Family::V4) => "iptables",
        (Mode::Native, Family::V6) => "ip6tables",
    }
}

/// A way to hold rules in the kernel.
pub trait Backend: Send {
    /// Its name.
    fn mode(&self) -> Mode;

    /// Installs the rulesets, all of them or, on an error, nothing. Afterwards the families that are given hold
    /// exactly these rules of ours, each once, whatever was there before, and the others hold none. Strangers' rules
    /// and chains stay where they are.
    ///
    /// # Errors
    /// What is missing or refused, with the rule that it is about.
    fn install(&self, rulesets: &[Ruleset]) -> Result<(), Error>;

    /// Installs the rulesets if nobody has programmed this namespace's nf_tables yet, and tells whether it did. There,
    /// no other backend in nf_tables can hold rules of ours.
    ///
    /// # Errors
    /// As [`Backend::install`].
    fn install_if_fresh(&self, _rulesets: &[Ruleset]) -> Result<bool, Error> {
        Ok(false)
    }

    /// Takes our jumps, rules and chains out, in both families, and leaves strangers' alone. Tells whether there was
    /// anything.
    ///
    /// # Errors
    /// What is missing or refused.
    fn remove(&self) -> Result<bool, Error>;

    /// What differs between what is there and what the rulesets ask for.
    ///
    /// # Errors
    /// The kernel can't be asked.
    fn differences(&self, rulesets: &[Ruleset]) -> Result<Vec<Finding>, Error>;

    /// What the backend holds in the nat tables of this network namespace, both families together. Asking changes
    /// nothing and starts no process.
    ///
    /// # Errors
    /// The kernel can't be asked.
    fn held(&self) -> Result<Held, Error>;
}

/// Every backend; legacy by the commands in this folder or on PATH, which wait for the xtables lock or don't.
pub(crate) fn all(folder: Option<PathBuf>, wait: bool) -> Vec<Box<dyn Backend>> {
    vec![
        Box::new(Nft),
        Box::new(Native),
        Box::new(Legacy::new(Commands::legacy(folder), wait)),
    ]
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

/// What a table holds, strangers' rules and chains among it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Contents {
    /// The table's name.
    pub(crate) table: String,
    /// How many rules it has, as iptables-save would print them.
    pub(crate) rules: usize,
    /// Its chains' names.
    pub(crate) chains: Vec<String>,
}

/// A chain of the nat table as it is in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundChain {
    /// Which chain.
    pub(crate) name: ChainName,
    /// Its rules, first to last, ours and strangers'.
    pub(crate) rules: Vec<FoundRule>,
}

/// A rule as it is in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundRule {
    /// In iptables' syntax, as far as it is understood.
    pub(crate) text: String,
    /// The rule, if it is one that we could have made.
    pub(crate) rule: Option<Rule>,
    /// No packet that it matches gets to the chain's next rule.
    pub(crate) ends: bool,
    /// It may match TCP.
    pub(crate) takes_tcp: bool,
}

/// One of ours.
impl From<Rule> for FoundRule {
    fn from(rule: Rule) -> Self {
        Self {
            text: rule.to_string(),
            ends: !matches!(rule.target, Target::Jump(_)),
            takes_tcp: true,
            rule: Some(rule),
        }
    }
}

impl FoundRule {
    /// Whether it sends packets to a chain of ours, whatever it matches.
    pub(crate) fn jumps_to_ours(&self) -> bool {
        match &self.rule {
            Some(rule) => matches!(rule.target, Target::Jump(chain) if chain.is_ours()),
            None => crate::rules::xtables::jumps_to_ours(&self.text),
        }
    }
}
