//! The errors of a mode.

use std::io;
use std::path::PathBuf;

use nix::errno::Errno;
use ruleset::Family;
use thiserror::Error;

use super::cause::{Lack, Privilege, advice, netlink_advice};
use super::list;
use crate::config::{IdRange, Mode};

const LACKS_EXTENSION: &str = "the kernel may lack an extension that a rule needs (xt_multiport, xt_owner, xt_REDIRECT; dmesg \
                               may tell)";

const CANNOT_PUT_BACK: &str = "iptables puts back the whole table, and perhaps can't read the pinned program of another \
                               program's rule from here: mount /sys/fs/bpf, or take out";

/// The reason why a mode could not do its work.
#[derive(Debug, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the text of an error says what each of its fields is")]
pub enum ModeError {
    #[error("{0}")]
    NotPermitted(Privilege),

    #[error("this kernel{lack} ({errno}): {}", lack.remedy())]
    Lacks { lack: Lack, errno: Errno },

    #[error(
        "the {family} nat table has a chain {chain} that is not hooked where iptables-nft hooks it ({errno}): look \
         at it with `nft list chain {} nat {chain}`, and remove or rename it",
        family.nft_name()
    )]
    OtherBaseChain { family: Family, chain: String, errno: Errno },

    #[error(
        "the {family} nat table has a base chain {chain}, so no rule can jump to a chain of that name ({errno}): \
         look at it with `nft list chain {} nat {chain}`, and remove or rename it",
        family.nft_name()
    )]
    ChainNameTaken { family: Family, chain: String, errno: Errno },

    #[error(
        "the kernel refused `{what}` (EPERM), because the table {table} belongs to another program (flags owner): \
         find it with `nft list table {table}`, and stop that program or have it use a table of another name"
    )]
    TableOwned { what: String, table: String },

    #[error(
        "the kernel refused `{what}` (EBUSY), because a rule or a verdict map in the table {table} still leads to \
         that chain: find it with `nft list table {table}`, delete it, and run proxy-init again"
    )]
    ChainInUse { what: String, table: String },

    #[error(
        "id {ids} is not mapped in this user namespace, so no rule can be about it (`{rule}`): map it (newuidmap; in \
         a pod, hostUsers and runAsUser), or name a mapped user or group"
    )]
    UnmappedOwner {
        rule: String,
        /// The id, or the range, which one line of the map has to have.
        ids: IdRange,
    },

    /// The network namespace belongs to another user namespace, and the process is outside of that. The rule is shown as
    /// an iptables command.
    #[error(
        "the kernel refuses `{0}` (EINVAL): the network namespace belongs to another user namespace, as that of a \
         pod with hostUsers: false, and xtables' rules on owners must come from inside of that: use native mode, \
         whose rules compare with the pod's own ids, or run proxy-init in the pod"
    )]
    ForeignOwner(String),

    #[error(
        "the rules are {0} bytes, more than the socket may send at once (EMSGSIZE): raise the sysctl \
         net.core.wmem_max on the node above half of that, or ignore ranges instead of single ports"
    )]
    BatchTooLarge(usize),

    #[error("`{rule}` cannot be written: {what}")]
    Unwritable { rule: String, what: String },

    #[error(
        "another program changed this namespace's rules during each of {0} tries (ERESTART): find it with `nft \
         monitor`, and run proxy-init again"
    )]
    Contended(u32),

    #[error("the kernel refused `{what}`: {errno}{text}: please report this line with the kernel's version (uname -r)")]
    Refused {
        what: String,
        errno: Errno,
        /// The kernel's explanation in quotes; often empty.
        text: String,
    },

    #[error(
        "{call} on the netlink socket to nf_tables failed: {errno}: {}",
        netlink_advice(*errno)
    )]
    Netlink { call: &'static str, errno: Errno },

    #[error(
        "the kernel's answer is cut off or garbled, so it is not known whether the rules are installed: check with \
         `proxy-init verify`, and report this line with the kernel's version (uname -r)"
    )]
    Garbled,

    #[error(
        "the kernel took the rules, but its answer could not be received ({0}), so it is not known whether the rules \
         are installed: check with `proxy-init verify`"
    )]
    Unanswered(Errno),

    #[error(
        "cannot read this network namespace's rules: the kernel's answer is cut off or garbled: please report this \
         line with the kernel's version (uname -r)"
    )]
    GarbledDump,

    #[error(
        "cannot read this network namespace's rules: another program changed them during each try, for two seconds: \
         find it with `nft monitor`, and run proxy-init again"
    )]
    KeepsChanging,

    #[error("cannot read this network namespace's rules: {0}")]
    Unseen(String),

    /// The table is dormant, and rules in it do nothing. It has this name, with its family, as nft writes it.
    #[error(
        "the table {0} is dormant, so rules in it would do nothing, and waking it up would wake up everything in it: \
         look at it with `nft list table {0}`, and wake it up with `nft add table {0}`, or delete it"
    )]
    Dormant(String),

    #[error(
        "{0} mode holds proxy-init's rules already, and both together would redirect connections twice: remove those \
         with `proxy-init uninstall`, or in the same run with replace-other-backend"
    )]
    OtherBackend(Mode),

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

    #[error(
        "{command} failed ({status}){}: {}, or use nft mode",
        if stderr.is_empty() { " without a word".to_owned() } else { format!(": {stderr}") },
        suspect.as_ref().map_or_else(|| LACKS_EXTENSION.to_owned(), |rule| format!("{CANNOT_PUT_BACK} `{rule}`"))
    )]
    CommandRefused {
        command: PathBuf,
        status: String,
        stderr: String,
        /// Another program's rule that may be the cause.
        suspect: Option<String>,
    },

    #[error(
        "{command} ended without an error, but afterwards the {family} nat table is not as it should be: check that \
         it is iptables' own, or use nft mode"
    )]
    NoEffect { command: PathBuf, family: Family },

    #[error(
        "another program holds the xtables lock: wait for it, as iptables does with -w, or find it with `fuser \
         {file}`"
    )]
    LockHeld { file: PathBuf },

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

    #[error(
        "the {families} rules may be left changed: {}; afterwards they could NOT be rolled back ({}): check with \
         `proxy-init verify`, and run proxy-init again",
        cause,
        error,
        families = list(families)
    )]
    NotRolledBack { families: Vec<Family>, cause: Box<ModeError>, error: Box<ModeError> },

    #[error("cannot read the {family} legacy nat table: {errno}: {}", advice(*errno))]
    NotRead { family: Family, errno: Errno },

    #[error("cannot write the {family} legacy nat table: {errno}: {}", advice(*errno))]
    NotWritten { family: Family, errno: Errno },
}

impl ModeError {
    /// As of [`Error::is_unchanged`](super::Error::is_unchanged). Reading changes nothing, and says nothing of that.
    pub fn is_unchanged(&self) -> bool {
        !matches!(
            self,
            Self::NotPermitted(Privilege::Read)
                | Self::Garbled
                | Self::Unanswered(_)
                | Self::GarbledDump
                | Self::KeepsChanging
                | Self::Unseen(_)
                | Self::NotRolledBack { .. }
                | Self::NotRead { .. }
                | Self::NotWritten { .. }
        )
    }
}
