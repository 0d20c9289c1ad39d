//! What can go wrong: each error says what failed, on which rule, why, and what to do about it.

mod cause;

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use thiserror::Error;

pub(crate) use self::cause::PRIVILEGE;
pub use self::cause::{Errno, Lack, Privilege};
use self::cause::{UNCHANGED, advice, netlink_advice};
use crate::rules::Family;
use crate::wanted::{IdRange, Mode};

/// Why installing, verifying or uninstalling failed. Unless its text says otherwise, no rule of proxy-init's has
/// changed.
///
/// An error that another one caused has it as its [`source`](std::error::Error::source), and does not repeat its text;
/// [`chain`] writes all of them on one line.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The process lacks a privilege.
    #[error("{mode} mode: {lacking}")]
    NotPermitted {
        /// The mode in use.
        mode: Mode,
        /// Which one.
        lacking: Privilege,
    },

    /// The kernel lacks something that the mode needs. Another mode may do without.
    #[error("{mode} mode: nothing was changed: this kernel{lack} ({errno}): {}", lack.remedy(*mode))]
    Lacks {
        /// The mode in use.
        mode: Mode,
        /// What the kernel lacks.
        lack: Lack,
        /// What the kernel said.
        errno: Errno,
    },

    /// Another program made a base chain of this name that is hooked elsewhere.
    #[error(
        "nft mode: nothing was changed: the {family} nat table has a chain {chain} that is not hooked where \
         iptables-nft hooks it ({errno}): look at it with `nft list chain {} nat {chain}`, and remove or rename it",
        family.nft_name()
    )]
    OtherBaseChain {
        /// The family of the table.
        family: Family,
        /// The chain.
        chain: String,
        /// What the kernel said.
        errno: Errno,
    },

    /// Another program made a base chain with the name of one of proxy-init's chains, which rules cannot jump to.
    #[error(
        "nft mode: nothing was changed: the {family} nat table has a base chain {chain}, so no rule can jump to a \
         chain of that name ({errno}): look at it with `nft list chain {} nat {chain}`, and remove or rename it",
        family.nft_name()
    )]
    ChainNameTaken {
        /// The family of the table.
        family: Family,
        /// The chain.
        chain: String,
        /// What the kernel said.
        errno: Errno,
    },

    /// The table belongs to another program, and the kernel lets no one else change it.
    #[error(
        "{mode} mode: nothing was changed: the kernel refused `{what}` (EPERM), because the table {table} belongs to \
         another program (flags owner): find it with `nft list table {table}`, and stop that program or have it use a table \
         of another name"
    )]
    TableOwned {
        /// The mode in use.
        mode: Mode,
        /// The change that was refused.
        what: String,
        /// The table, with its family, as nft writes it.
        table: String,
    },

    /// A chain of proxy-init's cannot be deleted, because something else leads to it.
    #[error(
        "{mode} mode: nothing was changed: the kernel refused `{what}` (EBUSY), because a rule or a verdict map in the \
         table {table} still leads to that chain: find it with `nft list table {table}`, delete it, and run proxy-init again"
    )]
    ChainInUse {
        /// The mode in use.
        mode: Mode,
        /// The change that was refused.
        what: String,
        /// The table, with its family, as nft writes it.
        table: String,
    },

    /// The proxy's user or group does not exist in this user namespace.
    #[error(
        "{mode} mode: nothing was changed: id {ids} is not mapped in this user namespace, so no rule can be about it \
         (`{rule}`): map it (newuidmap, `unshare --map-users`; in a pod, hostUsers and runAsUser), or name a \
         mapped id with --proxy-uid or --proxy-gid (--skip-uid, --skip-gid)"
    )]
    UnmappedOwner {
        /// The mode in use.
        mode: Mode,
        /// The rule, as an iptables command.
        rule: String,
        /// The id, or the range, which one line of the map has to have.
        ids: IdRange,
    },

    /// The network namespace belongs to another user namespace, which can't be entered.
    #[error(
        "{mode} mode: nothing was changed: the kernel refuses `{rule}` (EINVAL): the network namespace belongs to \
         another user namespace, as that of a pod with hostUsers: false, and xtables' rules on owners must come from there, \
         which takes CAP_SYS_ADMIN: use native mode, whose rules compare with the pod's own ids"
    )]
    ForeignOwner {
        /// The mode in use.
        mode: Mode,
        /// The rule, as an iptables command.
        rule: String,
    },

    /// The rules do not fit into the socket's send buffer.
    #[error(
        "{mode} mode: nothing was changed: the rules are {bytes} bytes, more than the socket may send at once \
         (EMSGSIZE): raise the sysctl net.core.wmem_max on the node above half of that, or ignore ranges instead of \
         single ports"
    )]
    BatchTooLarge {
        /// The mode in use.
        mode: Mode,
        /// The size of the batch.
        bytes: usize,
    },

    /// A rule has a part that the mode has no way to write.
    #[error("{mode} mode: nothing was changed: `{rule}` cannot be written: {what}")]
    Unwritable {
        /// The mode in use.
        mode: Mode,
        /// The rule, as the command that would add it.
        rule: String,
        /// The part.
        what: String,
    },

    /// Another program kept changing the rules.
    #[error(
        "{mode} mode: nothing was changed: another program changed this namespace's rules during each of {tries} tries \
         (ERESTART): find it with `nft monitor`, and run proxy-init again"
    )]
    Contended {
        /// The mode in use.
        mode: Mode,
        /// How often it was tried.
        tries: u32,
    },

    /// The kernel refused something for a reason that has no error of its own here.
    #[error(
        "{mode} mode: nothing was changed: the kernel refused `{what}`: {errno}{text}: please report this line with \
         the kernel's version (uname -r)"
    )]
    Refused {
        /// The mode in use.
        mode: Mode,
        /// The rule, as an iptables command, or another change.
        what: String,
        /// What the kernel said.
        errno: Errno,
        /// The kernel's explanation in quotes; often empty.
        text: String,
    },

    /// A system call on the netlink socket failed.
    #[error(
        "{mode} mode: nothing was changed: {call} on the netlink socket to nf_tables failed: {errno}: {}",
        netlink_advice(*errno)
    )]
    Netlink {
        /// The mode in use.
        mode: Mode,
        /// The call.
        call: &'static str,
        /// How it failed.
        errno: Errno,
    },

    /// The kernel's answer makes no sense.
    #[error(
        "{mode} mode: the kernel's answer is cut off or garbled, so it is not known whether the rules are installed: \
         check with `proxy-init verify`, and report this line with the kernel's version (uname -r)"
    )]
    Garbled {
        /// The mode in use.
        mode: Mode,
    },

    /// The kernel took the change, but its answer was lost.
    #[error(
        "{mode} mode: the kernel took the rules, but its answer could not be received ({errno}), so it is not known \
         whether the rules are installed: check with `proxy-init verify`"
    )]
    Unanswered {
        /// The mode in use.
        mode: Mode,
        /// How receiving failed.
        errno: Errno,
    },

    /// The kernel's answer to a question about the rules makes no sense.
    #[error(
        "{mode} mode: cannot read this network namespace's rules: the kernel's answer is cut off or garbled: please \
         report this line with the kernel's version (uname -r)"
    )]
    GarbledDump {
        /// The mode in use.
        mode: Mode,
    },

    /// The rules change faster than they can be read.
    #[error(
        "{mode} mode: cannot read this network namespace's rules: another program changed them during each try, for two \
         seconds: find it with `nft monitor`, and run proxy-init again"
    )]
    KeepsChanging {
        /// The mode in use.
        mode: Mode,
    },

    /// A connection that is to be explained has no route.
    #[error(
        "no connection can be made to {to}{}: this network namespace has no route for it ({errno}), so no rule is asked: \
         check the addresses, or name a device with --out", from.map(|from| format!(" from {from}")).unwrap_or_default()
    )]
    NoRoute {
        /// Where it is to go.
        to: IpAddr,
        /// Where it is to come from, if that was given.
        from: Option<IpAddr>,
        /// What the kernel said.
        errno: Errno,
    },

    /// No TCP connection goes to the destination of the one that is to be explained.
    #[error("no TCP connection can be made to {to}: {reason}")]
    NoConnection {
        /// The destination.
        to: IpAddr,
        /// Why not, and what to do.
        reason: &'static str,
    },

    /// A connection that is to be explained names a device that doesn't exist.
    #[error("this network namespace has no network device {device}: name another one, or leave out {flag}")]
    NoDevice {
        /// The device.
        device: String,
        /// The flag that names it.
        flag: &'static str,
    },

    /// The rules could not be seen.
    #[error("{mode} mode: cannot read this network namespace's rules: {reason}")]
    Unseen {
        /// The mode in use.
        mode: Mode,
        /// Why not.
        reason: String,
    },

    /// The rules by which `auto` chooses a mode could not be seen.
    #[error("cannot read this network namespace's rules, by which auto chooses a mode: {reason}")]
    CannotChoose {
        /// Why not.
        reason: String,
    },

    /// The table is dormant, and rules in it do nothing.
    #[error(
        "{mode} mode: nothing was changed: the table {table} is dormant, so rules in it would do nothing, and waking it up \
         would wake up everything in it: look at it with `nft list table {table}`, and wake it up with `nft add table \
         {table}`, or delete it"
    )]
    Dormant {
        /// The mode in use.
        mode: Mode,
        /// The table, with its family, as nft writes it.
        table: String,
    },

    /// A pod is about to install its rules in the node's own network namespace.
    #[error(
        "nothing was changed: this is the node's own network namespace, not the pod's (hostNetwork: true, or --netns leads \
         there): the rules would redirect the node's own connections, and stay when the pod is gone: run the pod without \
         hostNetwork or without this init container; --allow-host-network installs the rules all the same"
    )]
    HostNetwork,

    /// The network namespace to work in cannot be entered.
    #[error("nothing was changed: cannot enter the network namespace {path}: {errno}: {advice}")]
    Netns {
        /// The path of the namespace.
        path: PathBuf,
        /// How it failed.
        errno: Errno,
        /// What to do about that.
        advice: &'static str,
    },

    /// The timeout of `--timeout-close-wait-secs` cannot be written.
    #[error("nothing was changed: cannot write --timeout-close-wait-secs, {seconds}, to {path}: {errno}: {advice}")]
    Sysctl {
        /// The value that was asked for.
        seconds: u32,
        /// The file that holds it.
        path: &'static str,
        /// How it failed.
        errno: Errno,
        /// What to do about that.
        advice: &'static str,
    },

    /// Another backend holds proxy-init's rules already, and connections would be redirected twice.
    #[error(
        "{mode} mode: nothing was changed: {other} mode holds proxy-init's rules already, and both together would \
         redirect connections twice: remove those with `proxy-init uninstall`, or in the same run with \
         --replace-other-backend"
    )]
    OtherBackend {
        /// The mode that was asked for.
        mode: Mode,
        /// The one that holds the rules.
        other: Mode,
    },

    /// Another backend was given rules of proxy-init's while this one installed them.
    #[error(
        "{mode} mode: {other} mode was given proxy-init's rules at the same time, and both together would redirect \
         connections twice, so those of {mode} mode {}: run one proxy-init at a time, or with one --iptables-mode",
        match not_removed {
            None => "were removed again".to_owned(),
            Some(error) => format!("should be removed again, but could NOT be ({})", reason(error)),
        }
    )]
    InstalledMeanwhile {
        /// The mode that was asked for.
        mode: Mode,
        /// The other one.
        other: Mode,
        /// Why the rules of the mode that was asked for are still there; none if they are not.
        not_removed: Option<Box<Error>>,
    },

    /// The rules are installed, but whether they are alone could not be seen.
    #[error(
        "{mode} mode: the rules are installed, but it is not known whether another mode holds proxy-init's rules too, so \
         that connections are redirected twice: check with `proxy-init verify`"
    )]
    InstalledUnchecked {
        /// The mode in use.
        mode: Mode,
        /// Why.
        #[source]
        error: Box<Error>,
    },

    /// Some of proxy-init's rules were removed, and then something failed.
    #[error("the rules of {} mode were removed, but others may be left", list(removed))]
    PartlyUninstalled {
        /// The modes whose rules were removed.
        removed: Vec<Mode>,
        /// Why not everything was.
        #[source]
        error: Box<Error>,
    },

    /// This mode's rules replaced another's, another run's replaced them, and installing them again failed.
    #[error(
        "{mode} mode: the rules of {other} mode were replaced, but another proxy-init may have replaced the new ones at the \
         same time, and installing those again failed, so none may be left: run one proxy-init at a time"
    )]
    ReplacedEachOther {
        /// The mode that was asked for.
        mode: Mode,
        /// The other one.
        other: Mode,
        /// How it failed.
        #[source]
        error: Box<Error>,
    },

    /// The rules are installed, but those that they replace could not be removed.
    #[error(
        "{mode} mode: the rules are installed, but those of {other} mode are still there too, because removing them \
         failed, so connections are redirected twice"
    )]
    NotReplaced {
        /// The mode that was asked for.
        mode: Mode,
        /// The one that still holds rules.
        other: Mode,
        /// Why.
        #[source]
        error: Box<Error>,
    },

    /// What a mode needs is missing here, and another mode, used instead, failed too.
    #[error("{missing}; falling back to {mode} mode also failed")]
    Fallback {
        /// What is missing.
        missing: Box<Error>,
        /// The mode that was used instead.
        mode: Mode,
        /// How that failed.
        #[source]
        error: Box<Error>,
    },

    /// An iptables command is not installed.
    #[error(
        "legacy mode: nothing was changed: {command} is not on PATH: install iptables-legacy (Debian: package \
         iptables), or use --iptables-mode nft, which needs no iptables"
    )]
    NoCommand {
        /// The name of the command.
        command: String,
    },

    /// An iptables command could not be started or watched.
    #[error(
        "legacy mode: nothing was changed: cannot run {command} (check that it is executable and was built for this \
         machine)"
    )]
    CommandFailed {
        /// The command.
        command: PathBuf,
        /// Why.
        #[source]
        error: io::Error,
    },

    /// An iptables command did not end, and was killed.
    #[error(
        "legacy mode: nothing was changed: {command} did not end within {seconds} seconds and was killed: find out \
         what it waits for with strace, or use --iptables-mode nft"
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
         that a rule needs (xt_multiport, xt_owner, xt_REDIRECT; dmesg may tell), or use --iptables-mode nft"
    )]
    CommandRefused {
        /// The command.
        command: PathBuf,
        /// Its exit status.
        status: String,
        /// What it wrote to stderr.
        stderr: String,
    },

    /// An iptables command reported success without having done its work.
    #[error(
        "legacy mode: nothing was changed: {command} ended without an error, but afterwards the {family} nat table is not as \
         it should be: check that it is iptables' own, or use --iptables-mode nft"
    )]
    NoEffect {
        /// The command.
        command: PathBuf,
        /// The family of the table.
        family: Family,
    },

    /// Another program is changing legacy rules.
    #[error(
        "legacy mode: nothing was changed: another program holds the xtables lock: add -w to wait for it, or find it \
         with `fuser {file}`"
    )]
    LockHeld {
        /// The file of the lock.
        file: PathBuf,
    },

    /// The file of the xtables lock cannot be made, opened or locked.
    #[error(
        "legacy mode: nothing was changed: iptables cannot write its lock file ({file}: {errno}): mount a writable /run (in a \
         pod, an emptyDir), or set XTABLES_LOCKFILE to a writable path"
    )]
    LockFile {
        /// The file of the lock.
        file: PathBuf,
        /// How it failed.
        errno: Errno,
    },

    /// The kernel has no legacy tables.
    #[error(
        "legacy mode: nothing was changed: this kernel has no legacy nat table ({stderr}): load iptable_nat and \
         ip6table_nat on the node (CONFIG_IP_NF_NAT, CONFIG_IP6_NF_NAT), or use --iptables-mode nft"
    )]
    NoLegacyTables {
        /// What the command wrote to stderr.
        stderr: String,
    },

    /// One family's change failed after the other's had been made.
    #[error("legacy mode: the {second} rules failed after the {first} ones were changed, and those were rolled back")]
    RolledBack {
        /// The family that was changed.
        first: Family,
        /// The one that failed.
        second: Family,
        /// How it failed.
        #[source]
        error: Box<Error>,
    },

    /// Something failed, and what had been changed until then could not be rolled back.
    #[error(
        "legacy mode: the {families} rules may be left changed: {}; afterwards they could NOT be rolled back ({}): check \
         with `proxy-init verify`, and run proxy-init again",
        reason(cause).trim_start_matches("legacy mode: "),
        reason(error).trim_start_matches("legacy mode: "),
        families = list(families)
    )]
    NotRolledBack {
        /// The families whose tables are not known to be as they were.
        families: Vec<Family>,
        /// What failed first.
        cause: Box<Error>,
        /// Why the first of them could not be rolled back.
        error: Box<Error>,
    },

    /// The rules were changed back, but not what the kernel counts of each rule.
    #[error(
        "legacy mode: all rules were rolled back, but the counters of the {family} rules start again at 0 ({errno})"
    )]
    CountersLost {
        /// The family of the rules.
        family: Family,
        /// Why the counters could not be set.
        errno: Errno,
        /// What failed first.
        #[source]
        error: Box<Error>,
    },

    /// A legacy table cannot be read.
    #[error("legacy mode: cannot read the {family} legacy nat table: {errno}: {}", advice(*errno))]
    LegacyUnreadable {
        /// The family of the table.
        family: Family,
        /// How it failed.
        errno: Errno,
    },

    /// A legacy table cannot be written back as it was.
    #[error("legacy mode: cannot write the {family} legacy nat table: {errno}: {}", advice(*errno))]
    LegacyUnwritable {
        /// The family of the table.
        family: Family,
        /// How it failed.
        errno: Errno,
    },
}

impl Error {
    /// Whether it says that nft mode can't be had here, so that auto looks for another mode. Otherwise something went
    /// wrong.
    pub(crate) fn rules_out_nft_mode(&self) -> bool {
        matches!(self, Error::Lacks { .. } | Error::ForeignOwner { .. })
    }

    /// Whether it says that this host lacks something which another mode does without.
    pub(crate) fn is_mended_by_another_mode(&self) -> bool {
        matches!(
            self,
            Error::NoCommand { .. }
                | Error::NoLegacyTables { .. }
                | Error::ForeignOwner { .. }
                | Error::Lacks {
                    lack: Lack::Extension { .. },
                    ..
                }
        )
    }
}

/// Writes an error and everything that caused it on one line, a colon before each cause. Only the error itself says
/// whether anything was changed.
pub fn chain<'a>(error: &'a (dyn std::error::Error + 'a)) -> impl fmt::Display + use<'a> {
    Causes(error)
}

/// An error as the reason for another one, which says itself what was changed.
pub(crate) fn reason(error: &Error) -> String {
    chain(error).to_string().replace(UNCHANGED, "")
}

fn list(items: &[impl fmt::Display]) -> String {
    let names: Vec<String> = items.iter().map(ToString::to_string).collect();
    names.join(" and ")
}

struct Causes<'a>(&'a (dyn std::error::Error + 'a));

impl fmt::Display for Causes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            write!(f, ": {}", error.to_string().replace(UNCHANGED, ""))?;
            source = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::error::Error as _;

    use super::*;

    fn missing() -> Box<Error> {
        Box::new(Error::NoCommand {
            command: "iptables-legacy-restore".to_owned(),
        })
    }

    fn refused() -> Box<Error> {
        Box::new(Error::NotPermitted {
            mode: Mode::Nft,
            lacking: Privilege::Change,
        })
    }

    /// Which errors there are; the compiler says so if one is left out.
    macro_rules! named {
        ($($name:ident)*) => {
            const NAMES: &[&str] = &[$(stringify!($name)),*];

            fn name(error: &Error) -> &'static str {
                match error {
                    $(Error::$name { .. } => stringify!($name),)*
                }
            }
        };
    }

    named! {
        NotPermitted Lacks OtherBaseChain ChainNameTaken TableOwned ChainInUse UnmappedOwner ForeignOwner
        BatchTooLarge Unwritable Contended Refused Netlink Garbled Unanswered GarbledDump KeepsChanging NoRoute
        NoConnection NoDevice Unseen CannotChoose Dormant HostNetwork Netns Sysctl OtherBackend
        InstalledMeanwhile InstalledUnchecked PartlyUninstalled ReplacedEachOther NotReplaced Fallback NoCommand
        CommandFailed CommandHung CommandRefused NoEffect LockHeld LockFile NoLegacyTables RolledBack
        NotRolledBack CountersLost LegacyUnreadable LegacyUnwritable
    }

    /// One of each.
    fn all() -> Vec<Error> {
        let (mode, errno) = (Mode::Nft, Errno::from_raw(libc::ENOENT));
        let (rule, what) = ("rule".to_owned(), "rule".to_owned());
        let (family, chain) = (Family::V4, "PROXY_INIT_OUTPUT".to_owned());
        let (table, stderr) = ("ip nat".to_owned(), "words".to_owned());
        let (path, command) = (PathBuf::from("/path"), PathBuf::from("/sbin/iptables-legacy-restore"));
        let permitted = |lacking| Error::NotPermitted { mode, lacking };
        let lacks = |lack| Error::Lacks { mode, lack, errno };
        vec![
            permitted(Privilege::Change),
            permitted(Privilege::Read),
            permitted(Privilege::Capability("CAP_NET_RAW".to_owned())),
            lacks(Lack::NfTables),
            lacks(Lack::Tables("IPv6".to_owned())),
            lacks(Lack::NatChains("IPv6".to_owned())),
            lacks(Lack::Extension {
                name: what.clone(),
                rule: rule.clone(),
                module: "xt_owner",
                option: "CONFIG",
            }),
            Error::OtherBaseChain {
                family,
                chain: chain.clone(),
                errno,
            },
            Error::ChainNameTaken { family, chain, errno },
            Error::TableOwned {
                mode,
                what: what.clone(),
                table: table.clone(),
            },
            Error::ChainInUse {
                mode,
                what: what.clone(),
                table,
            },
            Error::Unanswered { mode, errno },
            Error::GarbledDump { mode },
            Error::KeepsChanging { mode },
            Error::Unseen {
                mode,
                reason: "reason".to_owned(),
            },
            Error::NoRoute {
                to: [192, 0, 2, 1].into(),
                from: Some([192, 0, 2, 2].into()),
                errno,
            },
            Error::NoConnection {
                to: [192, 0, 2, 1].into(),
                reason: "reason",
            },
            Error::NoDevice {
                device: "eth1".to_owned(),
                flag: "--in",
            },
            Error::Dormant {
                mode,
                table: "ip nat".to_owned(),
            },
            Error::InstalledMeanwhile {
                mode,
                other: Mode::Legacy,
                not_removed: None,
            },
            Error::InstalledMeanwhile {
                mode,
                other: Mode::Legacy,
                not_removed: Some(refused()),
            },
            Error::UnmappedOwner {
                mode,
                rule: rule.clone(),
                ids: "2102".parse().unwrap(),
            },
            Error::Unwritable {
                mode,
                rule: rule.clone(),
                what: what.clone(),
            },
            Error::ForeignOwner { mode, rule },
            Error::BatchTooLarge { mode, bytes: 1 },
            Error::Contended { mode, tries: 2 },
            Error::Refused {
                mode,
                what,
                errno,
                text: String::new(),
            },
            Error::Netlink {
                mode,
                call: "socket",
                errno,
            },
            Error::Garbled { mode },
            Error::CannotChoose { reason: String::new() },
            Error::HostNetwork,
            Error::Netns {
                path: path.clone(),
                errno,
                advice: "advice",
            },
            Error::Sysctl {
                seconds: 3,
                path: "/proc",
                errno,
                advice: "advice",
            },
            Error::OtherBackend {
                mode,
                other: Mode::Legacy,
            },
            Error::NotReplaced {
                mode,
                other: Mode::Legacy,
                error: missing(),
            },
            Error::Fallback {
                missing: missing(),
                mode,
                error: refused(),
            },
            *missing(),
            Error::CommandFailed {
                command: command.clone(),
                error: io::Error::from_raw_os_error(libc::ENOEXEC),
            },
            Error::CommandHung {
                command: command.clone(),
                seconds: 10,
            },
            Error::CommandRefused {
                command,
                status: "exit status: 1".to_owned(),
                stderr: stderr.clone(),
            },
            Error::LockHeld { file: path.clone() },
            Error::LockFile {
                file: path.clone(),
                errno,
            },
            Error::NoLegacyTables { stderr },
            Error::InstalledUnchecked { mode, error: missing() },
            Error::ReplacedEachOther {
                mode,
                other: Mode::Legacy,
                error: missing(),
            },
            Error::PartlyUninstalled {
                removed: vec![mode],
                error: missing(),
            },
            Error::NoEffect {
                command: path.clone(),
                family,
            },
            Error::RolledBack {
                first: Family::V4,
                second: Family::V6,
                error: refused(),
            },
            Error::NotRolledBack {
                families: Family::ALL.to_vec(),
                cause: missing(),
                error: missing(),
            },
            Error::CountersLost {
                family,
                errno,
                error: missing(),
            },
            Error::LegacyUnwritable { family, errno },
            Error::LegacyUnreadable { family, errno },
        ]
    }

    /// Whether the text has these words, each `…` between them standing for anything.
    fn says(text: &str, words: &str) -> bool {
        let mut rest = Some(text);
        for piece in words.split('…') {
            rest = rest.and_then(|rest| Some(rest.split_once(piece.trim())?.1));
        }
        rest.is_some()
    }

    #[test]
    fn docs_errors_md_has_every_error_and_no_other() {
        let kinds: HashSet<_> = all().iter().map(name).collect();
        assert_eq!(kinds, NAMES.iter().copied().collect(), "one of each");

        let (_, documentation) = include_str!("../docs/errors.md").split_once("## Failed runs").unwrap();
        let rows: Vec<&str> = documentation
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once("` |").map(|(words, _)| words))
            .collect();
        let texts: Vec<String> = all().iter().map(ToString::to_string).collect();
        for text in &texts {
            assert!(rows.iter().any(|row| says(text, row)), "not in docs/errors.md: {text}");
        }
        for row in &rows {
            assert!(texts.iter().any(|text| says(text, row)), "said by no error: {row}");
        }
    }

    #[test]
    fn a_chain_says_each_cause_once() {
        let error = Error::Fallback {
            missing: missing(),
            mode: Mode::Nft,
            error: Box::new(Error::NotReplaced {
                mode: Mode::Nft,
                other: Mode::Legacy,
                error: refused(),
            }),
        };
        let text = chain(&error).to_string();
        for words in [
            "is not on PATH",
            "also failed: nft mode",
            "redirected twice: nft mode",
            "CAP_NET_ADMIN",
        ] {
            assert_eq!(text.matches(words).count(), 1, "{words}: {text}");
        }
        assert_eq!(text.matches(UNCHANGED).count(), 1, "{text}");
        assert!(error.source().unwrap().source().unwrap().source().is_none());
    }
}
