//! What can go wrong, each with what failed, why, and what to do.

use std::path::PathBuf;

use nix::errno::Errno;
use thiserror::Error;

use crate::rules::config::{Family, OwnerId};
use crate::rules::mode::Mode;
use crate::rules::ruleset::ChainName;

/// An error after which nothing of ours has changed, unless its text says otherwise.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The process may not change this namespace's rules.
    #[error(
        "{mode} mode: nothing was changed: the kernel refuses changes to this network namespace's rules (EPERM): \
         run as root or with CAP_NET_ADMIN; in a pod, add NET_ADMIN to securityContext.capabilities"
    )]
    NotPermitted {
        /// The backend that tried.
        mode: Mode,
    },

    /// The kernel was built or started without nf_tables.
    #[error(
        "{mode} mode: nothing was changed: this kernel has no nf_tables ({errno}): load the module nf_tables on the \
         node (CONFIG_NF_TABLES), or use --iptables-mode legacy"
    )]
    NoNfTables {
        /// The backend that tried.
        mode: Mode,
        /// What the kernel said.
        errno: Errno,
    },

    /// nf_tables has no tables of this family.
    #[error(
        "{mode} mode: nothing was changed: this kernel's nf_tables has no {families} tables ({errno}): load the \
         family's modules on the node (CONFIG_NF_TABLES_IPV4, CONFIG_NF_TABLES_IPV6, CONFIG_NF_TABLES_INET), or, without \
         IPv6, pass --ipv6=false"
    )]
    NoFamily {
        /// The backend that tried.
        mode: Mode,
        /// The family that is missing.
        families: String,
        /// What the kernel said.
        errno: Errno,
    },

    /// nf_tables can't do NAT.
    #[error(
        "{mode} mode: nothing was changed: this kernel's nf_tables has no nat chains for {families} ({errno}): load the \
         module nft_chain_nat on the node (CONFIG_NFT_NAT), or use --iptables-mode legacy"
    )]
    NoNatChains {
        /// The backend that tried.
        mode: Mode,
        /// Whose chains.
        families: String,
        /// What the kernel said.
        errno: Errno,
    },

    /// A match or target of the rule is not in this kernel.
    #[error(
        "{mode} mode: nothing was changed: this kernel lacks {what}, which `{rule}` needs ({errno}): load the module \
         {module} on the node ({option}), or use {instead}",
        instead = match mode { Mode::Native => "--iptables-mode legacy", _ => "--iptables-mode native, which needs no xt module" }
    )]
    NoExtension {
        /// The backend that tried.
        mode: Mode,
        /// The rule, as an iptables command.
        rule: String,
        /// What is missing.
        what: String,
        /// The module it is in.
        module: &'static str,
        /// The kernel option that builds it.
        option: &'static str,
        /// What the kernel said.
        errno: Errno,
    },

    /// Somebody made a chain of this name for something else.
    #[error(
        "nft mode: nothing was changed: the {family} nat table has a chain {chain} that is not hooked where \
         iptables-nft hooks it ({errno}): look at it with `nft list chain {} nat {chain}`, and remove or rename it",
        match family { Family::V4 => "ip", Family::V6 => "ip6" }
    )]
    OtherBaseChain {
        /// Whose table.
        family: Family,
        /// The chain.
        chain: ChainName,
        /// What the kernel said.
        errno: Errno,
    },

    /// The proxy's user or group doesn't exist in this user namespace.
    #[error(
        "nft mode: nothing was changed: id {id} is not mapped in this user namespace, so the kernel refuses \
         `{rule}` (EINVAL): map it (newuidmap, `unshare --map-users`; in a pod, hostUsers and runAsUser), or name a \
         mapped id with --proxy-uid or --proxy-gid"
    )]
    UnmappedOwner {
        /// The rule, as an iptables command.
        rule: String,
        /// The id.
        id: OwnerId,
    },

    /// The network namespace belongs to another user namespace.
    #[error(
        "nft mode: nothing was changed: the kernel refuses `{rule}` (EINVAL): a rule on an owner must come from \
         the user namespace that the network namespace belongs to: run proxy-init in there, or without --proxy-uid \
         and --proxy-gid"
    )]
    ForeignOwner {
        /// The rule, as an iptables command.
        rule: String,
    },

    /// The rules don't fit into the socket's send buffer.
    #[error(
        "{mode} mode: nothing was changed: the rules are {bytes} bytes, more than the socket may send at once \
         (EMSGSIZE): raise the sysctl net.core.wmem_max on the node above half of that, or ignore ranges instead of \
         single ports"
    )]
    BatchTooLarge {
        /// The backend that tried.
        mode: Mode,
        /// The batch's size.
        bytes: usize,
    },

    /// Somebody else kept changing the rules.
    #[error(
        "nft mode: nothing was changed: somebody else changed this namespace's rules during each of {tries} tries \
         (ERESTART): find out who with `nft monitor`, and run proxy-init again"
    )]
    Contended {
        /// How often it was tried.
        tries: u32,
    },

    /// The kernel refused something for a reason that has no error of its own here.
    #[error(
        "{mode} mode: nothing was changed: the kernel refused `{what}`: {errno}{text}: please report this line with \
         the kernel's version (uname -r)"
    )]
    Refused {
        /// The backend that tried.
        mode: Mode,
        /// The rule, as an iptables command, or another change.
        what: String,
        /// What the kernel said.
        errno: Errno,
        /// Its words, quoted; often empty.
        text: String,
    },

    /// A system call on the netlink socket failed.
    #[error(
        "{mode} mode: nothing was changed: {call} on the netlink socket to nf_tables failed: {errno}: if a seccomp \
         profile or sandbox is in force, allow AF_NETLINK sockets"
    )]
    Netlink {
        /// The backend that tried.
        mode: Mode,
        /// The call.
        call: &'static str,
        /// How it failed.
        errno: Errno,
    },

    /// The kernel's answer makes no sense.
    #[error(
        "{mode} mode: the kernel's answer is cut off or garbled, so it is not known whether the rules are installed: \
         look with iptables-nft-save, and report this line with the kernel's version (uname -r)"
    )]
    Garbled {
        /// The backend that tried.
        mode: Mode,
    },

    /// `--netns` can't be entered.
    #[error("--netns {path}: cannot enter that network namespace: {errno}: {advice}", path = path.display())]
    Netns {
        /// The flag's value.
        path: PathBuf,
        /// How it failed.
        errno: Errno,
        /// What to do about that.
        advice: &'static str,
    },

    /// `--timeout-close-wait-secs` can't be written.
    #[error("--timeout-close-wait-secs: nothing was changed: cannot write {seconds} to {path}: {errno}: {advice}")]
    Sysctl {
        /// The flag's value.
        seconds: u32,
        /// The file that it goes to.
        path: &'static str,
        /// How it failed.
        errno: Errno,
        /// What to do about that.
        advice: &'static str,
    },

    /// Our rules stand in another backend, and connections would be redirected twice.
    #[error(
        "{mode} mode: nothing was changed: rules of ours stand in {other} mode already, and together they would \
         redirect twice: take those out with `proxy-init uninstall`, or in the same run with --replace-other-backend"
    )]
    OtherBackend {
        /// The backend that was asked for.
        mode: Mode,
        /// The one that holds rules of ours.
        other: Mode,
    },

    /// The rules are in, but those that they replace could not be taken out.
    #[error(
        "{mode} mode: the rules are installed, but those of {other} mode are there too, because they could not be \
         taken out, so connections are redirected twice: {error}"
    )]
    NotReplaced {
        /// The backend that was asked for.
        mode: Mode,
        /// The one that still holds rules of ours.
        other: Mode,
        /// Why.
        error: Box<Error>,
    },

    /// What a mode needs isn't installed, and nft mode, used instead, failed too.
    #[error("{missing}; and, tried instead, {error}")]
    Fallback {
        /// What isn't installed.
        missing: Box<Error>,
        /// How nft mode failed.
        error: Box<Error>,
    },

    /// An iptables command isn't installed.
    #[error(
        "legacy mode: nothing was changed: {command} is not on PATH: install iptables-legacy (Debian: package \
         iptables), or use --iptables-mode nft, which needs no iptables"
    )]
    NoCommand {
        /// The command's name.
        command: String,
    },

    /// An iptables command could not be started or watched.
    #[error("legacy mode: nothing was changed: cannot run {command}: {reason}: see that it can be executed", command = command.display())]
    CommandFailed {
        /// The command.
        command: PathBuf,
        /// Why.
        reason: String,
    },

    /// An iptables command took for ever, and was killed.
    #[error(
        "legacy mode: nothing was changed: {command} did not end within {seconds} seconds and was killed: find out \
         what it waits for with strace, or use --iptables-mode nft",
        command = command.display()
    )]
    CommandHung {
        /// The command.
        command: PathBuf,
        /// How long it had.
        seconds: u64,
    },

    /// An iptables command refused, for a reason that has no error of its own here.
    #[error(
        "legacy mode: nothing was changed: {command} failed ({status}): {stderr}: the kernel may lack an extension \
         that a rule needs (xt_multiport, xt_owner, xt_REDIRECT; dmesg may tell), or use --iptables-mode nft",
        command = command.display()
    )]
    CommandRefused {
        /// The command.
        command: PathBuf,
        /// Its exit code.
        status: String,
        /// What it said.
        stderr: String,
    },

    /// Somebody else is changing legacy rules.
    #[error(
        "legacy mode: nothing was changed: another program holds the xtables lock ({stderr}): add -w to wait for \
         it, or find it with `fuser /run/xtables.lock`"
    )]
    LockHeld {
        /// What it said.
        stderr: String,
    },

    /// The xtables lock's file can't be made or opened.
    #[error(
        "legacy mode: nothing was changed: iptables cannot write its lock file ({stderr}): mount a writable /run \
         (in a pod, an emptyDir), or set XTABLES_LOCKFILE to a writable path"
    )]
    LockFile {
        /// What it said.
        stderr: String,
    },

    /// The kernel has no legacy tables.
    #[error(
        "legacy mode: nothing was changed: this kernel has no legacy nat table ({stderr}): load iptable_nat and \
         ip6table_nat on the node (CONFIG_IP_NF_NAT, CONFIG_IP6_NF_NAT), or use --iptables-mode nft"
    )]
    NoLegacyTables {
        /// What it said.
        stderr: String,
    },

    /// iptables-legacy can't work without this capability.
    #[error(
        "legacy mode: nothing was changed: iptables-legacy needs {capability}, which this process lacks: run as \
         root, or add NET_ADMIN and NET_RAW to securityContext.capabilities; nft mode needs NET_ADMIN alone"
    )]
    NoCapability {
        /// The capability.
        capability: String,
    },

    /// The second family failed after the first was in.
    #[error("{error} (the {second} rules failed after the {first} ones were in, {left})")]
    TakenBack {
        /// The family that was in.
        first: Family,
        /// The one that failed.
        second: Family,
        /// How it failed.
        error: Box<Error>,
        /// What became of the first.
        left: String,
    },

    /// The kernel's legacy tables can't be read.
    #[error(
        "legacy mode: nothing was changed: cannot read the {family} legacy nat table: {errno}: run as root or with \
         CAP_NET_ADMIN"
    )]
    LegacyUnreadable {
        /// Whose table.
        family: Family,
        /// How it failed.
        errno: Errno,
    },
}

impl Error {
    /// Whether the kernel lacks something that the backend needs, so that another backend may do.
    pub fn is_lack(&self) -> bool {
        matches!(
            self,
            Error::NoNfTables { .. } | Error::NoFamily { .. } | Error::NoNatChains { .. } | Error::NoExtension { .. }
        )
    }
}
