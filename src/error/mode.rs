//! The errors of a mode.

use ruleset::Family;
use thiserror::Error;

use super::cause::{Errno, Lack, Privilege, netlink_advice};
use crate::config::{IdRange, Mode};

/// Why a mode could not do its work.
#[derive(Debug, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the text of an error says what each of its fields is")]
pub enum ModeError {
    #[error("{0}")]
    NotPermitted(Privilege),

    #[error("this kernel{lack} ({errno}): {}", lack.remedy())]
    Lacks { lack: Lack, errno: Errno },

    /// Another program made a base chain of this name that is hooked elsewhere.
    #[error(
        "the {family} nat table has a chain {chain} that is not hooked where iptables-nft hooks it ({errno}): look \
         at it with `nft list chain {} nat {chain}`, and remove or rename it",
        family.nft_name()
    )]
    OtherBaseChain { family: Family, chain: String, errno: Errno },

    /// Another program made a base chain with the name of one of our chains, which rules cannot jump to.
    #[error(
        "the {family} nat table has a base chain {chain}, so no rule can jump to a chain of that name ({errno}): \
         look at it with `nft list chain {} nat {chain}`, and remove or rename it",
        family.nft_name()
    )]
    ChainNameTaken { family: Family, chain: String, errno: Errno },

    /// The table belongs to another program, and the kernel lets no one else change it.
    #[error(
        "the kernel refused `{what}` (EPERM), because the table {table} belongs to another program (flags owner): \
         find it with `nft list table {table}`, and stop that program or have it use a table of another name"
    )]
    TableOwned {
        what: String,
        /// The table, with its family, as nft writes it.
        table: String,
    },

    /// Our chain cannot be deleted, because something else leads to it.
    #[error(
        "the kernel refused `{what}` (EBUSY), because a rule or a verdict map in the table {table} still leads to \
         that chain: find it with `nft list table {table}`, delete it, and run proxy-init again"
    )]
    ChainInUse {
        what: String,
        /// The table, with its family, as nft writes it.
        table: String,
    },

    /// The proxy's user or group does not exist in this user namespace.
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

    /// The rules do not fit into the socket's send buffer. They have so many bytes.
    #[error(
        "the rules are {0} bytes, more than the socket may send at once (EMSGSIZE): raise the sysctl \
         net.core.wmem_max on the node above half of that, or ignore ranges instead of single ports"
    )]
    BatchTooLarge(usize),

    #[error("`{rule}` cannot be written: {what}")]
    Unwritable { rule: String, what: String },

    /// Another program kept changing the rules. It was tried so often.
    #[error(
        "another program changed this namespace's rules during each of {0} tries (ERESTART): find it with `nft \
         monitor`, and run proxy-init again"
    )]
    Contended(u32),

    /// The kernel refused something for a reason that has no error of its own here.
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

    /// The kernel's answer makes no sense.
    #[error(
        "the kernel's answer is cut off or garbled, so it is not known whether the rules are installed: check with \
         `proxy-init verify`, and report this line with the kernel's version (uname -r)"
    )]
    Garbled,

    /// The kernel took the change, but its answer was lost. Receiving failed with this number.
    #[error(
        "the kernel took the rules, but its answer could not be received ({0}), so it is not known whether the rules \
         are installed: check with `proxy-init verify`"
    )]
    Unanswered(Errno),

    /// The kernel's answer to a question about the rules makes no sense.
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

    /// The rules could not be seen. The text says why.
    #[error("cannot read this network namespace's rules: {0}")]
    Unseen(String),

    /// The table is dormant, and rules in it do nothing. It has this name, with its family, as nft writes it.
    #[error(
        "the table {0} is dormant, so rules in it would do nothing, and waking it up would wake up everything in it: \
         look at it with `nft list table {0}`, and wake it up with `nft add table {0}`, or delete it"
    )]
    Dormant(String),

    /// Another backend holds our rules already, and connections would be redirected twice. This mode has them.
    #[error(
        "{0} mode holds proxy-init's rules already, and both together would redirect connections twice: remove those \
         with `proxy-init uninstall`, or in the same run with replace-other-backend"
    )]
    OtherBackend(Mode),
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
        )
    }
}
