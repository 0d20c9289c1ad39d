//! All backends together: reads what all of them hold, and installs in nft or native mode with regard to the other one.

use std::path::PathBuf;

use super::Backend;
use super::legacy::{self, Commands, Legacy};
use super::native::{self, Native};
use super::nft::{self, Nft};
use crate::error::{Error, PRIVILEGE};
use crate::found::{Found, Unseen};
use crate::netlink::{ReadError, Socket};
use crate::nf_tables::commit::{self, Outcome, commit_fresh, transact};
use crate::nf_tables::read;
use crate::nf_tables::step::Step;
use crate::rules::table::{Subsystem, Table};
use crate::wanted::mode::Mode;
use crate::wanted::ruleset::{Ruleset, nat_tables};

/// The backend of a mode.
pub(crate) fn backend(mode: Mode, folder: Option<PathBuf>, wait: bool) -> Box<dyn Backend> {
    match mode {
        Mode::Nft => Box::new(Nft),
        Mode::Native => Box::new(Native),
        Mode::Legacy => Box::new(Legacy::new(Commands::legacy(folder), wait)),
    }
}

/// The modes in which nf_tables holds proxy-init's rules.
///
/// # Errors
/// nf_tables could not be read, although the kernel has it.
pub(crate) fn nf_tables_modes() -> Result<Vec<Mode>, Error> {
    let found = nf_tables()?;
    match found.unseen(Subsystem::NfTables) {
        // A process that may not read nf_tables may not change legacy tables either; that attempt explains it better.
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

/// Fails unless what the mode's rules are kept in could be seen.
///
/// # Errors
/// Why it couldn't.
pub(crate) fn must_see(found: &Found, mode: Mode) -> Result<(), Error> {
    match found.unseen(mode.subsystem()) {
        Some(unseen) => Err(Error::Unseen {
            mode,
            reason: unseen.reason.clone(),
        }),
        None => Ok(()),
    }
}

/// The tables that a mode makes to hold exactly these rulesets.
pub(crate) fn expected(mode: Mode, rulesets: &[Ruleset]) -> Vec<Table> {
    match mode {
        Mode::Nft | Mode::Legacy => nat_tables(mode.subsystem(), rulesets),
        Mode::Native => vec![native::expected(rulesets)],
    }
}

/// Reads everything in the thread's network namespace that decides where a TCP connection goes. Reading changes nothing
/// and starts no process; what could not be read is listed in [`Found::not_known`].
///
/// # Errors
/// The kernel's answer makes no sense, or the rules change faster than they can be read.
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
        not_known: vec![Unseen {
            subsystem: Subsystem::NfTables,
            not_permitted: errno == Errno::EPERM,
            reason: match errno {
                Errno::EPERM => format!("EPERM: {PRIVILEGE}"),
                _ => crate::error::Errno::of(errno).to_string(),
            },
        }],
    };
    let socket = match Socket::open() {
        Ok(socket) => socket,
        // The kernel has no nfnetlink, and so no nf_tables (netlink_create in net/netlink/af_netlink.c).
        Err(Errno::EPROTONOSUPPORT) => return Ok(Found::default()),
        Err(errno) => return Ok(not_known(errno)),
    };
    match read::snapshot(&socket) {
        Ok(snapshot) => Ok(Found {
            tables: snapshot.tables,
            not_known: Vec::new(),
        }),
        // The kernel has nfnetlink, but no nf_tables (nfnetlink_rcv_msg in net/netfilter/nfnetlink.c).
        Err(ReadError::Socket(Errno::EINVAL | Errno::EOPNOTSUPP)) => Ok(Found::default()),
        Err(ReadError::Socket(errno)) => Ok(not_known(errno)),
        Err(error) => Err(commit::unreadable(Mode::Nft, error)),
    }
}

/// A mode that works over netlink. There are two, and each has to consider the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// nft mode.
    Nft,
    /// native mode.
    Native,
}

impl Over {
    /// The same mode, if it works over netlink.
    pub(crate) fn of(mode: Mode) -> Option<Self> {
        match mode {
            Mode::Nft => Some(Self::Nft),
            Mode::Native => Some(Self::Native),
            Mode::Legacy => None,
        }
    }

    /// Its mode.
    pub(crate) fn mode(self) -> Mode {
        match self {
            Self::Nft => Mode::Nft,
            Self::Native => Mode::Native,
        }
    }

    /// The other one.
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Nft => Self::Native,
            Self::Native => Self::Nft,
        }
    }

    /// What the mode makes of rulesets.
    pub(crate) fn plan(self, rulesets: &[Ruleset]) -> Plan<'_> {
        match self {
            Self::Nft => Plan::Nft(rulesets),
            Self::Native => Plan::Native(native::expected(rulesets)),
        }
    }

    fn remove_steps(self, tables: &[Table]) -> Vec<Step<'static>> {
        match self {
            Self::Nft => nft::remove_steps(tables),
            Self::Native => native::remove_steps(tables),
        }
    }
}

/// What a mode over netlink installs.
pub(crate) enum Plan<'a> {
    /// nft mode: the rules as they are.
    Nft(&'a [Ruleset]),
    /// native mode: a table that does what the rules do.
    Native(Table),
}

/// What installing did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Done {
    /// Something had to be changed.
    pub(crate) changed: bool,
    /// Rules of proxy-init's in the other mode were removed.
    pub(crate) replaced: bool,
}

impl Plan<'_> {
    fn over(&self) -> Over {
        match self {
            Self::Nft(_) => Over::Nft,
            Self::Native(_) => Over::Native,
        }
    }

    /// native mode's table.
    pub(crate) fn into_table(self) -> Option<Table> {
        match self {
            Self::Nft(_) => None,
            Self::Native(table) => Some(table),
        }
    }

    fn fresh(&self) -> Result<Vec<Step<'_>>, Error> {
        match self {
            Self::Nft(rulesets) => Ok(nft::fresh(rulesets)),
            Self::Native(table) => native::fresh(table),
        }
    }

    fn install_steps(&self, tables: &[Table]) -> Result<Vec<Step<'_>>, Error> {
        match self {
            Self::Nft(rulesets) => nft::install_steps(tables, rulesets),
            Self::Native(table) => native::install_steps(tables, table),
        }
    }

    /// Installs the rules if nothing has been committed to this namespace's nf_tables yet, so that the other mode can't
    /// have rules there either. Returns whether it did.
    pub(crate) fn install_if_fresh(&self) -> Result<bool, Error> {
        match commit_fresh(self.over().mode(), &self.fresh()?)? {
            Outcome::Committed => Ok(true),
            // The caller then reads what the namespace holds, which shows what became of the batch.
            Outcome::OtherGeneration | Outcome::Unanswered(_) => Ok(false),
        }
    }

    /// Installs the rules in a transaction that is valid only for the generation at which the other mode was checked. If
    /// proxy-init has rules in the other mode, the same transaction removes them if `replace` is set; otherwise that is an
    /// error. Unless `try_fresh` is set, the namespace is known not to be fresh.
    pub(crate) fn install(&self, replace: bool, try_fresh: bool) -> Result<Done, Error> {
        let (own, other) = (self.over(), self.over().other());
        let mut replaced = false;
        let fresh = try_fresh.then(|| self.fresh()).transpose()?;
        let changed = transact(own.mode(), fresh.as_deref(), |tables| {
            let mut steps = other.remove_steps(tables);
            if !steps.is_empty() && !replace {
                return Err(Error::OtherBackend {
                    mode: own.mode(),
                    other: other.mode(),
                });
            }
            replaced |= !steps.is_empty();
            steps.extend(self.install_steps(tables)?);
            Ok(steps)
        })?;
        Ok(Done { changed, replaced })
    }
}

/// Whether the kernel would accept each of these. It checks all of them in one batch as it would before a commit, but
/// nothing is committed.
pub(crate) fn check_each(plans: &[Plan<'_>]) -> Vec<Result<(), Error>> {
    commit::check_each(plans.iter().map(|plan| (plan.over().mode(), plan.fresh())))
}
