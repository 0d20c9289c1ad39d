//! All backends together: reads what all of them hold, and installs in nft or native mode with regard to the other one.

use std::path::PathBuf;

use netfilter::netlink::{Generation, ReadError, Socket};
use netfilter::nf_tables::edit::Edit;
use netfilter::nf_tables::read;
use nix::errno::Errno;
use packets::found::{Found, Unseen};
use packets::rules::{Subsystem, Table};

use super::Removed;
use super::legacy::{self, Commands, Legacy};
use super::native;
use super::nft;
use crate::backend::commit::{self, CommitOutcome, can_be_read, commit_fresh, not_known, transact};
use crate::backend::refusal;
use crate::error::{self, Error, ModeError, PRIVILEGE};
use crate::ours::holds;
use crate::wanted::{Mode, Ruleset, tables};

/// Removes proxy-init's rules and chains in this mode, in both families, and every rule that leads to them. Base chains and
/// tables go only if proxy-init made them and nothing else is in them. In legacy mode, commands are looked for in
/// `iptables_dir` first, and the xtables lock is waited for if `wait` is set.
///
/// # Errors
/// What is missing or was refused. Nothing has changed then, unless the error says otherwise.
pub(crate) fn remove(mode: Mode, iptables_dir: Option<PathBuf>, wait: bool) -> Result<Removed, Error> {
    let remove_edits = match mode {
        Mode::Nft => nft::remove_edits,
        Mode::Native => native::remove_edits,
        Mode::Legacy => return Legacy::new(Commands::new(false, iptables_dir), wait).remove(),
    };
    let mut held = Vec::new();
    let any = transact(None, |tables| {
        if mode == Mode::Nft {
            held = tables.to_vec();
        }
        Ok(remove_edits(tables))
    });
    Ok(Removed::from(any.map_err(|error| error.in_mode(mode))?, &held))
}

/// The modes in which nf_tables holds proxy-init's rules.
///
/// # Errors
/// nf_tables could not be read, although the kernel has it.
pub(crate) fn nf_tables_modes() -> Result<Vec<Mode>, Error> {
    let found = nf_tables()?;
    match found.unseen(Subsystem::NfTables) {
        // A process that may not read nf_tables may not change legacy tables either; that attempt explains it better.
        Some(unseen) if !unseen.not_permitted => {
            let reason = format!("nf_tables: {}", unseen.reason);
            Err(ModeError::Unseen(reason).in_mode(Mode::Legacy))
        }
        _ => Ok([Mode::Nft, Mode::Native].into_iter().filter(|&mode| holds(&found, mode)).collect()),
    }
}

/// Fails unless what the mode's rules are kept in could be seen.
pub(crate) fn must_see(found: &Found, mode: Mode) -> Result<(), Error> {
    match found.unseen(mode.subsystem()) {
        Some(unseen) => Err(ModeError::Unseen(unseen.reason.clone()).in_mode(mode)),
        None => Ok(()),
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

fn nf_tables() -> Result<Found, Error> {
    let socket = Socket::open().map_err(ReadError::NotAsked);
    let reason = match socket.and_then(|socket| read::snapshot(&socket)) {
        Ok(snapshot) => {
            return Ok(Found { tables: snapshot.tables, not_known: Vec::new() });
        }
        // The kernel has no nfnetlink (netlink_create in net/netlink/af_netlink.c), or that without nf_tables
        // (nfnetlink_rcv_msg in net/netfilter/nfnetlink.c).
        Err(ReadError::NotAsked(Errno::EPROTONOSUPPORT) | ReadError::Socket(Errno::EINVAL | Errno::EOPNOTSUPP)) => {
            return Ok(Found::default());
        }
        Err(ReadError::Socket(Errno::EPERM) | ReadError::NotAsked(Errno::EPERM)) => None,
        Err(ReadError::Socket(errno) | ReadError::NotAsked(errno)) => Some(error::Errno::of(errno).to_string()),
        Err(error) => return Err(refusal::unreadable(error).in_mode(Mode::Nft)),
    };
    Ok(Found {
        tables: Vec::new(),
        not_known: vec![Unseen {
            subsystem: Subsystem::NfTables,
            not_permitted: reason.is_none(),
            reason: reason.unwrap_or_else(|| format!("EPERM: {PRIVILEGE}")),
        }],
    })
}

/// When the rules of a network namespace were looked at. While another stamp is the same as this one, it is the same namespace,
/// nf_tables has not been changed since, and there are no legacy tables, as there were none then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    namespace: u64,
    generation: Generation,
}

impl Stamp {
    /// Of the thread's network namespace, now. None where that tells nothing: legacy tables are there, or may be, of which
    /// changes leave no trace; or the kernel doesn't tell (before 5.14, it has no numbers for namespaces).
    pub fn now() -> Option<Self> {
        let socket = Socket::open().ok()?;
        legacy::read::has_none()
            .then_some(Self { namespace: socket.namespace().ok()?, generation: read::generation(&socket).ok()? })
    }
}

/// What a mode over netlink installs. There are two such modes, and each has to consider the other.
pub(crate) enum Plan<'a> {
    Nft(&'a [Ruleset]),
    /// native mode: a table that does what the rules do.
    Native(Table),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) changed: bool,
    /// The other mode, if proxy-init had rules in it, which were removed.
    pub(crate) replaced: Option<Mode>,
}

impl<'a> Plan<'a> {
    /// What a mode installs for these rulesets; none in legacy mode, which doesn't work over netlink.
    pub(crate) fn of(mode: Mode, rulesets: &'a [Ruleset]) -> Option<Self> {
        match mode {
            Mode::Nft => Some(Self::Nft(rulesets)),
            Mode::Native => Some(Self::Native(tables::native(rulesets))),
            Mode::Legacy => None,
        }
    }

    fn mode(&self) -> Mode {
        match self {
            Self::Nft(_) => Mode::Nft,
            Self::Native(_) => Mode::Native,
        }
    }

    /// The other mode, and the edits that remove its rules.
    fn remove_other(&self, tables: &[Table]) -> (Mode, Vec<Edit<'static>>) {
        match self {
            Self::Nft(_) => (Mode::Native, native::remove_edits(tables)),
            Self::Native(_) => (Mode::Nft, nft::remove_edits(tables)),
        }
    }

    pub(crate) fn into_table(self) -> Option<Table> {
        match self {
            Self::Nft(_) => None,
            Self::Native(table) => Some(table),
        }
    }

    fn fresh(&self) -> Result<Vec<Edit<'_>>, ModeError> {
        match self {
            Self::Nft(rulesets) => Ok(nft::fresh(rulesets)),
            Self::Native(table) => native::fresh(table),
        }
    }

    fn install_edits(&self, tables: &[Table]) -> Result<Vec<Edit<'_>>, ModeError> {
        match self {
            Self::Nft(rulesets) => nft::install_edits(tables, rulesets),
            Self::Native(table) => native::install_edits(tables, table),
        }
    }

    /// Installs the rules if nothing has been committed to this namespace's nf_tables yet, so that the other mode can't
    /// have rules there either. Returns whether it did.
    pub(crate) fn install_if_fresh(&self) -> Result<bool, Error> {
        let in_mode = |error: ModeError| error.in_mode(self.mode());
        let outcome = self.fresh().and_then(|edits| commit_fresh(&edits));
        match outcome.map_err(in_mode)? {
            CommitOutcome::Committed => Ok(true),
            CommitOutcome::OtherGeneration => Ok(false),
            // The caller then reads what the namespace holds, which shows what became of the batch.
            CommitOutcome::Unanswered(_) if can_be_read() => Ok(false),
            CommitOutcome::Unanswered(errno) => Err(in_mode(not_known(errno))),
        }
    }

    /// Installs the rules in a transaction that is valid only for the generation at which the other mode was checked. If
    /// proxy-init has rules in the other mode, the same transaction removes them if `replace` is set; otherwise that is an
    /// error. Unless `try_fresh` is set, the namespace is known not to be fresh.
    pub(crate) fn install(&self, replace: bool, try_fresh: bool) -> Result<Done, Error> {
        let in_mode = |error: ModeError| error.in_mode(self.mode());
        let mut replaced = None;
        let fresh = try_fresh.then(|| self.fresh()).transpose().map_err(in_mode)?;
        let changed = transact(fresh.as_deref(), |tables| {
            let (other, mut edits) = self.remove_other(tables);
            if !edits.is_empty() && !replace {
                return Err(ModeError::OtherBackend(other));
            }
            replaced = replaced.or((!edits.is_empty()).then_some(other));
            edits.extend(self.install_edits(tables)?);
            Ok(edits)
        });
        let changed = changed.map_err(in_mode)?;
        Ok(Done { changed, replaced })
    }
}

/// Whether the kernel commits all of these together, in a namespace in which nothing has ever been committed. Only an
/// answer that it did is one: which of them it refuses, [`check_each`] tells.
pub(crate) fn commits(plans: &[Plan<'_>]) -> bool {
    let edits: Result<Vec<_>, ModeError> = plans.iter().map(Plan::fresh).collect();
    edits.is_ok_and(|edits| {
        let edits: Vec<Edit<'_>> = edits.into_iter().flatten().collect();
        matches!(commit_fresh(&edits), Ok(CommitOutcome::Committed))
    })
}

/// Whether the kernel would accept each of these. It checks all of them in one batch as it would before a commit, but
/// nothing is committed.
pub(crate) fn check_each(plans: &[Plan<'_>]) -> Vec<Result<(), Error>> {
    let results = commit::check_each(plans.iter().map(Plan::fresh)).into_iter().zip(plans);
    results.map(|(result, plan)| result.map_err(|error| error.in_mode(plan.mode()))).collect()
}
