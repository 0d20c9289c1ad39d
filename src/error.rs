//! What can go wrong: each error says what failed, on which rule, why, and what to do about it.

mod cause;
mod mode;

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use ruleset::Family;
use thiserror::Error;

pub use self::cause::{Errno, Lack, Privilege};
pub(crate) use self::cause::{PRIVILEGE, netlink_advice};
use self::cause::{UNCHANGED, advice};
pub use self::mode::ModeError;
use crate::config::Mode;

/// Why installing, verifying or uninstalling failed. Unless its text says otherwise, no rule of proxy-init's has
/// changed.
///
/// An error that another one caused has it as its [`source`](std::error::Error::source), and does not repeat its text;
/// [`chain`] writes all of them on one line.
#[derive(Debug, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the text of an error says what each of its fields is")]
pub enum Error {
    #[error("{0} mode: {1}")]
    InMode(Mode, ModeError),

    #[error(
        "no connection can be made to {to}{}: routing refuses it ({errno}), so no rule is asked: check the \
         addresses, and the routes with `ip route`", from.map(|from| format!(" from {from}")).unwrap_or_default()
    )]
    NoRoute { to: IpAddr, from: Option<IpAddr>, errno: Errno },

    /// No TCP connection goes to the destination of the one that is to be explained.
    #[error("no TCP connection can be made to {to}: {reason}")]
    NoConnection { to: IpAddr, reason: &'static str },

    #[error("this network namespace has no network device {device}: name another one, or none")]
    NoDevice { device: String },

    /// The rules by which `auto` chooses a mode could not be seen.
    #[error("cannot read this network namespace's rules, by which auto chooses a mode: {reason}")]
    CannotChoose { reason: String },

    /// A pod is about to install its rules in the node's own network namespace.
    #[error(
        "nothing was changed: this is the node's own network namespace, not the pod's (hostNetwork: true, or the \
         namespace that was named is the node's): the rules would redirect the node's own connections, and stay when \
         the pod is gone: run the pod without hostNetwork or without this init container; allow-host-network installs \
         the rules all the same"
    )]
    HostNetwork,

    #[error("nothing was changed: cannot enter the network namespace {path}: {errno}: {advice}")]
    Netns { path: PathBuf, errno: Errno, advice: &'static str },

    /// The timeout of connections in CLOSE_WAIT cannot be written.
    #[error(
        "nothing was changed: cannot write the close-wait timeout, {seconds} seconds, to {path}: {errno}: {advice}"
    )]
    Sysctl { seconds: u32, path: &'static str, errno: Errno, advice: &'static str },

    /// Another backend was given rules of proxy-init's while this one installed them.
    #[error(
        "{mode} mode: {other} mode was given proxy-init's rules at the same time, and both together would redirect \
         connections twice, so those of {mode} mode {}: run one proxy-init at a time, or all in one mode",
        match not_removed {
            None => "were removed again".to_owned(),
            Some(error) => format!("should be removed again, but could NOT be ({})", reason(error)),
        }
    )]
    InstalledMeanwhile {
        mode: Mode,
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
        mode: Mode,
        #[source]
        error: Box<Error>,
    },

    /// Some of proxy-init's rules were removed, and then something failed.
    #[error("the rules of {} mode were removed, but others may be left", list(removed))]
    PartlyUninstalled {
        removed: Vec<Mode>,
        #[source]
        error: Box<Error>,
    },

    /// This mode's rules replaced another's, another run's replaced them, and installing them again failed.
    #[error(
        "{mode} mode: the rules of {other} mode were replaced, but another proxy-init may have replaced the new ones at the \
         same time, and installing those again failed, so none may be left: run one proxy-init at a time"
    )]
    ReplacedEachOther {
        mode: Mode,
        other: Mode,
        #[source]
        error: Box<Error>,
    },

    /// The rules are installed, but those that they replace could not be removed.
    #[error(
        "{mode} mode: the rules are installed, but those of {other} mode are still there too, because removing them \
         failed, so connections are redirected twice"
    )]
    NotReplaced {
        mode: Mode,
        other: Mode,
        #[source]
        error: Box<Error>,
    },

    /// What a mode needs is missing here, and another mode, used instead, failed too.
    #[error("{missing}; falling back to {mode} mode also failed")]
    Fallback {
        missing: Box<Error>,
        mode: Mode,
        #[source]
        error: Box<Error>,
    },

    #[error(
        "legacy mode: nothing was changed: {command} is not on PATH: install iptables-legacy (Debian: package \
         iptables), or use nft mode, which needs no iptables"
    )]
    NoCommand { command: String },

    #[error(
        "legacy mode: nothing was changed: cannot run {command} (check that it is executable and was built for this \
         machine)"
    )]
    CommandFailed {
        command: PathBuf,
        #[source]
        error: io::Error,
    },

    #[error(
        "legacy mode: nothing was changed: {command} did not end within {seconds} seconds and was killed: find out \
         what it waits for with strace, or use nft mode"
    )]
    CommandHung { command: PathBuf, seconds: u64 },

    /// An iptables command refused, for a reason that has no error of its own here.
    #[error(
        "legacy mode: nothing was changed: {command} failed ({status}): {stderr}: the kernel may lack an extension \
         that a rule needs (xt_multiport, xt_owner, xt_REDIRECT; dmesg may tell), or use nft mode"
    )]
    CommandRefused { command: PathBuf, status: String, stderr: String },

    /// An iptables command reported success without having done its work.
    #[error(
        "legacy mode: nothing was changed: {command} ended without an error, but afterwards the {family} nat table is not as \
         it should be: check that it is iptables' own, or use nft mode"
    )]
    NoEffect { command: PathBuf, family: Family },

    /// Another program is changing legacy rules.
    #[error(
        "legacy mode: nothing was changed: another program holds the xtables lock: wait for it, as iptables \
         does with -w, or find it with `fuser {file}`"
    )]
    LockHeld { file: PathBuf },

    /// The file of the xtables lock cannot be made, opened or locked.
    #[error(
        "legacy mode: nothing was changed: iptables cannot write its lock file ({file}: {errno}): mount a writable /run (in a \
         pod, an emptyDir), or set XTABLES_LOCKFILE to a writable path"
    )]
    LockFile { file: PathBuf, errno: Errno },

    #[error(
        "legacy mode: nothing was changed: this kernel has no legacy nat table ({stderr}): load iptable_nat and \
         ip6table_nat on the node (CONFIG_IP_NF_NAT, CONFIG_IP6_NF_NAT), or use nft mode"
    )]
    NoLegacyTables { stderr: String },

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
        cause: Box<Error>,
        error: Box<Error>,
    },

    #[error("legacy mode: cannot read the {family} legacy nat table: {errno}: {}", advice(*errno))]
    LegacyUnreadable { family: Family, errno: Errno },

    #[error("legacy mode: cannot write the {family} legacy nat table: {errno}: {}", advice(*errno))]
    LegacyUnwritable { family: Family, errno: Errno },
}

impl Error {
    /// Whether it says that nft mode can't be had here, so that auto looks for another mode. Otherwise something went
    /// wrong.
    pub(crate) fn rules_out_nft_mode(&self) -> bool {
        matches!(self, Error::InMode(_, ModeError::Lacks { .. } | ModeError::ForeignOwner(_)))
    }

    /// The mode that does without what this says that this host lacks, after that mode failed.
    pub(crate) fn mode_instead(&self, failed: Mode) -> Option<Mode> {
        match self {
            Error::NoCommand { .. } | Error::NoLegacyTables { .. } => failed.fallback(),
            Error::InMode(_, ModeError::Lacks { lack: Lack::Extension { .. }, .. }) => failed.fallback(),
            Error::InMode(_, ModeError::ForeignOwner(_)) => Some(Mode::Native),
            _ => None,
        }
    }
}

impl ModeError {
    pub(crate) fn in_mode(self, mode: Mode) -> Error {
        Error::InMode(mode, self)
    }
}

/// Writes an error and everything that caused it on one line, a colon before each cause. Only the error itself says
/// whether anything was changed.
pub fn chain<'a>(error: &'a (dyn std::error::Error + 'a)) -> impl fmt::Display + use<'a> {
    fmt::from_fn(move |f| {
        write!(f, "{error}")?;
        let mut source = error.source();
        while let Some(error) = source {
            write!(f, ": {}", error.to_string().replace(UNCHANGED, ""))?;
            source = error.source();
        }
        Ok(())
    })
}

/// An error as the reason for another one, which says itself what was changed.
pub(crate) fn reason(error: &Error) -> String {
    chain(error).to_string().replace(UNCHANGED, "")
}

fn list(items: &[impl fmt::Display]) -> String {
    let names: Vec<String> = items.iter().map(ToString::to_string).collect();
    names.join(" and ")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::error::Error as _;

    use super::*;

    fn missing() -> Box<Error> {
        Box::new(Error::NoCommand { command: "iptables-legacy-restore".to_owned() })
    }

    fn refused() -> Box<Error> {
        Box::new(ModeError::NotPermitted(Privilege::Change).in_mode(Mode::Nft))
    }

    /// Which errors there are; the compiler says so if one is left out.
    macro_rules! named {
        ($type:ident $name:ident $names:ident: $($variant:ident)*) => {
            const $names: &[&str] = &[$(stringify!($variant)),*];

            fn $name(error: &$type) -> &'static str {
                match error {
                    $($type::$variant { .. } => stringify!($variant),)*
                }
            }
        };
    }

    named! {
        Error name NAMES:
        InMode NoRoute NoConnection NoDevice CannotChoose HostNetwork Netns Sysctl
        InstalledMeanwhile InstalledUnchecked PartlyUninstalled ReplacedEachOther NotReplaced Fallback NoCommand
        CommandFailed CommandHung CommandRefused NoEffect LockHeld LockFile NoLegacyTables
        NotRolledBack LegacyUnreadable LegacyUnwritable
    }

    named! {
        ModeError mode_name MODE_NAMES:
        NotPermitted Lacks OtherBaseChain ChainNameTaken TableOwned ChainInUse UnmappedOwner ForeignOwner
        BatchTooLarge Unwritable Contended Refused Netlink Garbled Unanswered GarbledDump KeepsChanging
        Unseen Dormant OtherBackend
    }

    /// One of each.
    fn all() -> Vec<Error> {
        let (mode, errno) = (Mode::Nft, Errno::from_raw(libc::ENOENT));
        let (rule, what) = ("rule".to_owned(), "rule".to_owned());
        let (family, chain) = (Family::V4, "PROXY_INIT_OUTPUT".to_owned());
        let (table, stderr) = ("ip nat".to_owned(), "words".to_owned());
        let (path, command) = (PathBuf::from("/path"), PathBuf::from("/sbin/iptables-legacy-restore"));
        let permitted = ModeError::NotPermitted;
        let lacks = |lack| ModeError::Lacks { lack, errno };
        let in_mode = [
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
                instead: mode,
            }),
            ModeError::OtherBaseChain { family, chain: chain.clone(), errno },
            ModeError::ChainNameTaken { family, chain, errno },
            ModeError::TableOwned { what: what.clone(), table: table.clone() },
            ModeError::ChainInUse { what: what.clone(), table },
            ModeError::Unanswered(errno),
            ModeError::GarbledDump,
            ModeError::KeepsChanging,
            ModeError::Unseen("reason".to_owned()),
            ModeError::Dormant("ip nat".to_owned()),
            ModeError::UnmappedOwner { rule: rule.clone(), ids: "2102".parse().unwrap() },
            ModeError::Unwritable { rule: rule.clone(), what: what.clone() },
            ModeError::ForeignOwner(rule),
            ModeError::BatchTooLarge(1),
            ModeError::Contended(2),
            ModeError::Refused { what, errno, text: String::new() },
            ModeError::Netlink { call: "socket", errno },
            ModeError::Garbled,
            ModeError::OtherBackend(Mode::Legacy),
        ];
        let mut all = vec![
            Error::NoRoute { to: [192, 0, 2, 1].into(), from: Some([192, 0, 2, 2].into()), errno },
            Error::NoConnection { to: [192, 0, 2, 1].into(), reason: "reason" },
            Error::NoDevice { device: "eth1".to_owned() },
            Error::InstalledMeanwhile { mode, other: Mode::Legacy, not_removed: None },
            Error::InstalledMeanwhile { mode, other: Mode::Legacy, not_removed: Some(refused()) },
            Error::CannotChoose { reason: String::new() },
            Error::HostNetwork,
            Error::Netns { path: path.clone(), errno, advice: "advice" },
            Error::Sysctl { seconds: 3, path: "/proc", errno, advice: "advice" },
            Error::NotReplaced { mode, other: Mode::Legacy, error: missing() },
            Error::Fallback { missing: missing(), mode, error: refused() },
            *missing(),
            Error::CommandFailed { command: command.clone(), error: io::Error::from_raw_os_error(libc::ENOEXEC) },
            Error::CommandHung { command: command.clone(), seconds: 10 },
            Error::CommandRefused { command, status: "exit status: 1".to_owned(), stderr: stderr.clone() },
            Error::LockHeld { file: path.clone() },
            Error::LockFile { file: path.clone(), errno },
            Error::NoLegacyTables { stderr },
            Error::InstalledUnchecked { mode, error: missing() },
            Error::ReplacedEachOther { mode, other: Mode::Legacy, error: missing() },
            Error::PartlyUninstalled { removed: vec![mode], error: missing() },
            Error::NoEffect { command: path.clone(), family },
            Error::NotRolledBack { families: Family::ALL.to_vec(), cause: missing(), error: missing() },
            Error::LegacyUnwritable { family, errno },
            Error::LegacyUnreadable { family, errno },
        ];
        let kinds: HashSet<_> = in_mode.iter().map(mode_name).collect();
        assert_eq!(kinds, MODE_NAMES.iter().copied().collect(), "one of each");
        all.extend(in_mode.map(|error| error.in_mode(mode)));
        all
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
    fn other_programs_have_no_flags() {
        for error in all() {
            assert!(!error.to_string().contains("--"), "{error}");
        }
    }

    #[test]
    fn a_chain_says_each_cause_once() {
        let error = Error::Fallback {
            missing: missing(),
            mode: Mode::Nft,
            error: Box::new(Error::NotReplaced { mode: Mode::Nft, other: Mode::Legacy, error: refused() }),
        };
        let text = chain(&error).to_string();
        for words in ["is not on PATH", "also failed: nft mode", "redirected twice: nft mode", "CAP_NET_ADMIN"] {
            assert_eq!(text.matches(words).count(), 1, "{words}: {text}");
        }
        assert_eq!(text.matches(UNCHANGED).count(), 1, "{text}");
        assert!(error.source().unwrap().source().unwrap().source().is_none());
    }
}
