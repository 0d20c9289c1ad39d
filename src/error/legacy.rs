//! The errors of legacy mode alone.

use std::io;
use std::path::PathBuf;

use super::cause::{Errno, advice};
use super::{Error, list};
use ruleset::Family;

/// Why legacy mode could not do its work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the text of an error says what each of its fields is")]
pub enum LegacyError {
    #[error(
        "{command} is not on PATH: install iptables-legacy (Debian: package iptables), or use nft mode, which needs \
         no iptables"
    )]
    NoCommand { command: String },

    #[error("cannot run {command} (check that it is executable and was built for this machine): {error}")]
    CommandFailed { command: PathBuf, error: io::Error },

    #[error(
        "{command} did not end within {seconds} seconds and was killed: find out what it waits for with strace, or \
         use nft mode"
    )]
    CommandHung { command: PathBuf, seconds: u64 },

    /// An iptables command refused, for a reason that has no error of its own here.
    #[error(
        "{command} failed ({status}){}: the kernel may lack an extension that a rule needs (xt_multiport, \
         xt_owner, xt_REDIRECT; dmesg may tell), or use nft mode",
        if stderr.is_empty() { " without a word".to_owned() } else { format!(": {stderr}") }
    )]
    CommandRefused { command: PathBuf, status: String, stderr: String },

    /// An iptables command reported success without having done its work.
    #[error(
        "{command} ended without an error, but afterwards the {family} nat table is not as it should be: check that \
         it is iptables' own, or use nft mode"
    )]
    NoEffect { command: PathBuf, family: Family },

    /// Another program is changing legacy rules.
    #[error(
        "another program holds the xtables lock: wait for it, as iptables does with -w, or find it with `fuser \
         {file}`"
    )]
    LockHeld { file: PathBuf },

    /// The file of the xtables lock cannot be made, opened or locked.
    #[error(
        "iptables cannot write its lock file ({file}: {errno}): mount a writable /run (in a pod, an emptyDir), or \
         set XTABLES_LOCKFILE to a writable path"
    )]
    LockFile { file: PathBuf, errno: Errno },

    #[error(
        "this kernel has no legacy nat table ({stderr}): load iptable_nat and ip6table_nat on the node \
         (CONFIG_IP_NF_NAT, CONFIG_IP6_NF_NAT), or use nft mode"
    )]
    NoTables { stderr: String },

    /// Something failed, and the earlier changes could not be rolled back.
    #[error(
        "the {families} rules may be left changed: {}; afterwards they could NOT be rolled back ({}): check with \
         `proxy-init verify`, and run proxy-init again",
        in_legacy_mode(cause),
        in_legacy_mode(error),
        families = list(families)
    )]
    NotRolledBack {
        /// The families whose tables are not known to be as they were.
        families: Vec<Family>,
        cause: Box<Error>,
        error: Box<Error>,
    },

    #[error("cannot read the {family} legacy nat table: {errno}: {}", advice(*errno))]
    Unreadable { family: Family, errno: Errno },

    #[error("cannot write the {family} legacy nat table: {errno}: {}", advice(*errno))]
    Unwritable { family: Family, errno: Errno },
}

impl LegacyError {
    /// As of [`Error::is_unchanged`]. Reading has changed nothing, but was perhaps to check a change.
    pub fn is_unchanged(&self) -> bool {
        !matches!(self, Self::NotRolledBack { .. } | Self::Unreadable { .. } | Self::Unwritable { .. })
    }
}

/// An error that was in legacy mode, without saying so.
fn in_legacy_mode(error: &Error) -> String {
    match error {
        Error::InMode(_, error) => error.to_string(),
        Error::Legacy(error) => error.to_string(),
        other => other.to_string(),
    }
}
