//! The backends by name, and how to choose one.

use std::fmt;

/// A backend, as `--iptables-mode` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// xtables-compatible nat chains in nf_tables.
    Nft,
    /// ip_tables, by way of iptables-legacy-restore.
    Legacy,
    /// One inet table with sets in nf_tables.
    Native,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Nft => "nft",
            Mode::Legacy => "legacy",
            Mode::Native => "native",
        })
    }
}

/// What `--iptables-mode` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Nobody said: linkerd-init's default, legacy.
    Default,
    /// This backend.
    Mode(Mode),
    /// What `iptables-restore` on PATH is.
    Plain,
    /// What fits the kernel and the namespace.
    Auto,
}
