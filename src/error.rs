//! The errors: each says what failed, on which rule, why, and what to do about it.

mod cause;
mod mode;

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use thiserror::Error;

pub use self::cause::{Lack, Privilege};
pub(crate) use self::cause::{PRIVILEGE, errno_of, netlink_advice};
pub use self::mode::ModeError;
use crate::config::Mode;
pub use nix::errno::Errno;

/// The reason why installing, verifying or uninstalling failed.
///
/// An error that another one caused has it as its [`source`](std::error::Error::source), and does not repeat its text;
/// [`chain`] writes all of them on one line, and says whether anything was changed.
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

    #[error("no TCP connection can be made to {to}: {reason}")]
    NoConnection { to: IpAddr, reason: &'static str },

    #[error("this network namespace has no network device {device}: name another one, or none")]
    NoDevice { device: String },

    /// No rules were found to remove, and legacy tables, which may hold some, could not be seen.
    #[error("not known: {reason} here: run as root")]
    LegacyUnseen { reason: String },

    #[error("cannot read this network namespace's rules, by which auto chooses a mode: {reason}")]
    CannotChoose { reason: String },

    #[error(
        "this is the node's own network namespace, not the pod's (hostNetwork: true, or the namespace that was named \
         is the node's): the rules would redirect the node's own connections, and stay when the pod is gone: run the \
         pod without hostNetwork or without this init container; allow-host-network installs the rules all the same"
    )]
    HostNetwork,

    #[error("cannot enter the network namespace {path}: {errno}: {advice}")]
    Netns { path: PathBuf, errno: Errno, advice: &'static str },

    #[error("cannot write the close-wait timeout, {seconds} seconds, to {path}: {errno}: {advice}")]
    Sysctl { seconds: u32, path: &'static str, errno: Errno, advice: &'static str },

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
        /// The reason why the rules of the mode that was asked for are still there; none if they are not.
        not_removed: Option<Box<Error>>,
    },

    #[error(
        "{mode} mode: the rules are installed, but it is not known whether another mode holds proxy-init's rules \
         too, so that connections are redirected twice: check with `proxy-init verify`"
    )]
    InstalledUnchecked {
        mode: Mode,
        #[source]
        error: Box<Error>,
    },

    #[error("the rules of {} mode were removed, but others may be left", list(removed))]
    PartlyUninstalled {
        removed: Vec<Mode>,
        #[source]
        error: Box<Error>,
    },

    #[error(
        "{mode} mode: the rules of {other} mode were replaced, but another proxy-init may have replaced the new ones \
         at the same time, and installing those again failed, so none may be left: run one proxy-init at a time"
    )]
    ReplacedEachOther {
        mode: Mode,
        other: Mode,
        #[source]
        error: Box<Error>,
    },

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

    #[error("{missing}; falling back to {mode} mode also failed")]
    Fallback {
        missing: Box<Error>,
        mode: Mode,
        #[source]
        error: Box<Error>,
    },
}

impl Error {
    /// Returns true if certainly nothing was changed, by an error that could have changed something.
    pub fn is_unchanged(&self) -> bool {
        match self {
            Error::InMode(_, error) => error.is_unchanged(),
            Error::Fallback { missing, error, .. } => missing.is_unchanged() && error.is_unchanged(),
            Error::HostNetwork | Error::Netns { .. } | Error::Sysctl { .. } => true,
            _ => false,
        }
    }

    /// Returns true if nft mode can't be had here, so that auto looks for another mode. Otherwise something went
    /// wrong.
    pub(crate) fn rules_out_nft_mode(&self) -> bool {
        matches!(self, Error::InMode(_, ModeError::Lacks { .. } | ModeError::ForeignOwner(_)))
    }

    /// The mode that does without the part that the host lacks by this error, after that mode failed.
    pub(crate) fn mode_instead(&self, failed: Mode) -> Option<Mode> {
        match self {
            Error::InMode(
                _,
                ModeError::NoCommand { .. }
                | ModeError::NoTables { .. }
                | ModeError::Lacks { lack: Lack::Extension { .. }, .. },
            ) => failed.fallback(),
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

/// Writes an error and everything that caused it on one line, a colon before each cause. If it is certain that nothing was
/// changed, the line begins with that.
pub fn chain<'a>(error: &'a (dyn std::error::Error + 'static)) -> impl fmt::Display + use<'a> {
    let unchanged = error.downcast_ref::<Error>().is_some_and(Error::is_unchanged);
    fmt::from_fn(move |f| {
        if unchanged {
            f.write_str("nothing was changed: ")?;
        }
        f.write_str(&reason(error))
    })
}

/// An error, with its causes, as the reason for something else.
pub(crate) fn reason(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(": {error}");
        source = error.source();
    }
    text
}

fn list(items: &[impl fmt::Display]) -> String {
    let names: Vec<String> = items.iter().map(ToString::to_string).collect();
    names.join(" and ")
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use ruleset::Family;

    use super::*;

    fn missing() -> Box<Error> {
        Box::new(ModeError::NoCommand { command: "iptables-legacy-restore".to_owned() }.in_mode(Mode::Legacy))
    }

    fn refused() -> Box<Error> {
        Box::new(ModeError::NotPermitted(Privilege::Change).in_mode(Mode::Nft))
    }

    /// Each that a user meets who has to act on rules that may be there.
    fn after_which_rules_may_have_changed() -> Vec<Error> {
        let (mode, other, errno) = (Mode::Nft, Mode::Legacy, Errno::from_raw(libc::ENOENT));
        let cause = || Box::new(ModeError::Contended(2));
        let families = Family::ALL.to_vec();
        vec![
            Error::InstalledMeanwhile { mode, other, not_removed: None },
            Error::InstalledMeanwhile { mode, other, not_removed: Some(refused()) },
            Error::InstalledUnchecked { mode, error: missing() },
            Error::PartlyUninstalled { removed: vec![mode], error: missing() },
            Error::ReplacedEachOther { mode, other, error: missing() },
            Error::NotReplaced { mode, other, error: missing() },
            ModeError::Unanswered(errno).in_mode(mode),
            ModeError::Garbled.in_mode(mode),
            ModeError::NotRolledBack { families, cause: cause(), error: cause() }.in_mode(other),
        ]
    }

    /// Returns true if the text has these words, each `…` between them standing for anything.
    fn says(text: &str, words: &str) -> bool {
        let mut rest = Some(text);
        for piece in words.split('…') {
            rest = rest.and_then(|rest| Some(rest.split_once(piece.trim())?.1));
        }
        rest.is_some()
    }

    #[test]
    fn docs_errors_md_has_every_error_that_may_have_changed_rules_and_no_other() {
        let heading = "## Errors after which rules may have changed";
        let (_, section) = include_str!("../docs/errors.md").split_once(heading).unwrap();
        let rows: Vec<&str> = section
            .lines()
            .take_while(|line| !line.starts_with("## "))
            .filter_map(|line| line.strip_prefix("| `")?.split_once("` |").map(|(words, _)| words))
            .collect();
        let texts: Vec<String> =
            after_which_rules_may_have_changed().iter().map(|error| chain(error).to_string()).collect();
        for text in &texts {
            assert!(rows.iter().any(|row| says(text, row)), "not in docs/errors.md: {text}");
        }
        for row in &rows {
            assert!(texts.iter().any(|text| says(text, row)), "said by no error: {row}");
        }
    }

    #[test]
    fn other_programs_have_no_flags() {
        for file in [include_str!("error.rs"), include_str!("error/cause.rs"), include_str!("error/mode.rs")] {
            let (words, _) = file.split_once("#[cfg(test)]").unwrap_or((file, ""));
            let flag = words.lines().find(|line| !line.trim_start().starts_with("//") && line.contains("--"));
            assert_eq!(flag, None);
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
        assert_eq!(text.matches("nothing was changed").count(), 0, "{text}");
        assert!(error.source().unwrap().source().unwrap().source().is_none());
    }
}
