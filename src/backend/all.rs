//! All backends together: reading what all of them hold, and installing in one of those over netlink beside the other.

use std::path::PathBuf;

use super::Backend;
use super::legacy::{self, Commands, Legacy};
use super::native::{self, Native};
use super::nft::{self, Nft};
use crate::error::Error;
use crate::netlink::{ReadError, Socket};
use crate::nf_tables::commit::{self, Outcome, commit_fresh, transact};
use crate::nf_tables::read;
use crate::nf_tables::step::Step;
use crate::rules::expected::xtables;
use crate::rules::found::{Found, NotKnown, Subsystem, Table};
use crate::rules::mode::Mode;
use crate::rules::ruleset::Ruleset;

/// The backend of a mode.
pub(crate) fn backend(mode: Mode, folder: Option<PathBuf>, wait: bool) -> Box<dyn Backend> {
    match mode {
        Mode::Nft => Box::new(Nft),
        Mode::Native => Box::new(Native),
        Mode::Legacy => Box::new(Legacy::new(Commands::legacy(folder), wait)),
    }
}

/// The modes that hold rules of proxy-init's in nf_tables.
///
/// # Errors
/// nf_tables could not be seen, for another reason than that this kernel has none.
pub(crate) fn nf_tables_modes() -> Result<Vec<Mode>, Error> {
    let found = nf_tables()?;
    match found.unseen(Subsystem::NfTables) {
        // Without the privilege to read, there is none to change legacy tables either, and changing them says so.
        Some(unseen) if !unseen.not_permitted => Err(Error::Unseen {
            mode: Mode::Legacy,
            reason: format!("nf_tables: {}", unseen.reason),
        }),
        _ => Ok([Mode::Nft, Mode::Native]
            .into_iter()
            .filter(|&mode| found.holds(mode))
            .collect()),
    }
}

/// The tables that hold just these rulesets, once a mode has installed them.
pub(crate) fn expected(mode: Mode, rulesets: &[Ruleset]) -> Vec<Table> {
    match mode {
        Mode::Nft | Mode::Legacy => xtables(mode.subsystem(), rulesets),
        Mode::Native => vec![native::expected(rulesets)],
    }
}

/// Everything in the thread's network namespace that decides where a TCP connection goes. Reading changes nothing and
/// starts no process; what can't be seen is said in [`Found::not_known`].
///
/// # Errors
/// The kernel answers, but something else than the protocol allows, or the rules change faster than they can be read.
pub fn read() -> Result<Found, Error> {
    let mut found = nf_tables()?;
    let legacy = legacy::read::read()?;
    found.tables.extend(legacy.tables);
    found.not_known.extend(legacy.not_known);
    Ok(found)
}

/// What nf_tables holds.
fn nf_tables() -> Result<Found, Error> {
    use nix::errno::Errno;

    let not_known = |errno: Errno| Found {
        tables: Vec::new(),
        not_known: vec![NotKnown {
            subsystem: Subsystem::NfTables,
            not_permitted: errno == Errno::EPERM,
            reason: match errno {
                Errno::EPERM => "EPERM: run as root or with CAP_NET_ADMIN; in a pod, add NET_ADMIN to \
                                 securityContext.capabilities"
                    .to_owned(),
                _ => crate::error::Errno::of(errno).to_string(),
            },
        }],
    };
    let socket = match Socket::open() {
        Ok(socket) => socket,
        // No nfnetlink in this kernel, so no nf_tables (netlink_create in net/netlink/af_netlink.c).
        Err(Errno::EPROTONOSUPPORT) => return Ok(Found::default()),
        Err(errno) => return Ok(not_known(errno)),
    };
    match read::picture(&socket) {
        Ok(picture) => Ok(Found {
            tables: picture.tables,
            not_known: Vec::new(),
        }),
        // nfnetlink has no such subsystem (nfnetlink_rcv_msg).
        Err(ReadError::Socket(Errno::EINVAL | Errno::EOPNOTSUPP)) => Ok(Found::default()),
        Err(ReadError::Socket(errno)) => Ok(not_known(errno)),
        Err(error) => Err(commit::unreadable(Mode::Nft, error)),
    }
}

/// One of the modes over netlink, beside the other one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// nft mode.
    Nft,
    /// native mode.
    Native,
}

impl Over {
    /// The mode that works over netlink, if this one does.
    pub(crate) fn of(mode: Mode) -> Option<Self> {
        match mode {
            Mode::Nft => Some(Self::Nft),
            Mode::Native => Some(Self::Native),
            Mode::Legacy => None,
        }
    }

    fn mode(self) -> Mode {
        match self {
            Self::Nft => Mode::Nft,
            Self::Native => Mode::Native,
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Nft => Self::Native,
            Self::Native => Self::Nft,
        }
    }

    fn fresh(self, rulesets: &[Ruleset]) -> Result<Vec<Step<'_>>, Error> {
        match self {
            Self::Nft => Ok(nft::fresh(rulesets)),
            Self::Native => native::fresh(rulesets),
        }
    }

    fn install_steps<'a>(self, tables: &[Table], rulesets: &'a [Ruleset]) -> Result<Vec<Step<'a>>, Error> {
        match self {
            Self::Nft => nft::install_steps(tables, rulesets),
            Self::Native => native::install_steps(tables, rulesets),
        }
    }

    fn remove_steps(self, tables: &[Table]) -> Vec<Step<'static>> {
        match self {
            Self::Nft => nft::remove_steps(tables),
            Self::Native => native::remove_steps(tables),
        }
    }

    /// Installs the rulesets if nobody has programmed this namespace's nf_tables yet, and tells whether it did. There,
    /// the other mode can't hold rules either.
    pub(crate) fn install_if_fresh(self, rulesets: &[Ruleset]) -> Result<bool, Error> {
        match commit_fresh(self.mode(), &self.fresh(rulesets)?)? {
            Outcome::Committed => Ok(true),
            // What came of it is seen when the namespace is looked at next.
            Outcome::OtherGeneration | Outcome::Unanswered(_) => Ok(false),
        }
    }

    /// Installs the rulesets at just the generation at which the other mode was looked at too. Where that one holds rules
    /// of proxy-init's, they are removed in the same transaction, if `replace` says so, or else it is an error. Tells
    /// whether there were any.
    pub(crate) fn install(self, rulesets: &[Ruleset], replace: bool) -> Result<bool, Error> {
        let mut replaced = false;
        transact(self.mode(), |tables| {
            let mut steps = self.other().remove_steps(tables);
            if !steps.is_empty() && !replace {
                return Err(Error::OtherBackend {
                    mode: self.mode(),
                    other: self.other().mode(),
                });
            }
            replaced |= !steps.is_empty();
            steps.extend(self.install_steps(tables, rulesets)?);
            Ok(steps)
        })?;
        Ok(replaced)
    }

    /// Whether the kernel would take the rulesets: it checks them as if to install, and nothing is committed.
    pub(crate) fn check(self, rulesets: &[Ruleset]) -> Result<(), Error> {
        commit::check(self.mode(), &self.fresh(rulesets)?)
    }
}
