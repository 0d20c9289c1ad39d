//! All backends together: reads the rules of all of them, and installs nft or native mode in place of each other.

use netfilter::netlink::{Generation, ReadError, Socket};
use netfilter::nf_tables::edit::Edit;
use netfilter::nf_tables::held::{self, HeldRule};
use netfilter::nf_tables::read::{self, Snapshot};
use nix::errno::Errno;
use ruleset::{Ruleset, Unseen};
use ruleset::{Subsystem, Table};

use super::Removed;
use super::legacy::{self, Legacy};
use super::native;
use super::nft;
use crate::config::{Config, Mode};
use crate::error::{self, Error, ModeError, PRIVILEGE, netlink_advice};
use crate::modes::commit::{self, may_be_ours, transact};
use crate::modes::refusal;
use crate::ownership::holds_rules;
use crate::plan::tables::expected;

/// Removes our rules and chains in this mode, in both families, and every rule that leads to them. Base chains
/// and tables go only if proxy-init made them and nothing else is in them. Legacy mode's go by the commands of
/// `legacy`.
///
/// # Errors
/// Something is missing or was refused. Nothing has changed then, unless the error says otherwise.
pub(crate) fn remove(mode: Mode, legacy: &Legacy) -> Result<Removed, Error> {
    if mode == Mode::Legacy {
        return legacy.remove();
    }
    let mut foreign = Vec::new();
    let any = transact(None, |tables| {
        if mode == Mode::Nft {
            foreign = nft::foreign_jumps(tables);
        }
        Ok(remove_edits(mode, tables))
    });
    let any = any.map_err(|error| error.in_mode(mode))?;
    Ok(Removed { any, foreign: if any { foreign } else { Vec::new() } })
}

/// The modes in which nf_tables holds our rules.
///
/// # Errors
/// nf_tables could not be read, although the kernel has it.
pub(crate) fn nf_tables_modes() -> Result<Vec<Mode>, Error> {
    let ruleset = held()?.ruleset;
    match ruleset.unseen(Subsystem::NfTables) {
        // A process that may not read nf_tables may not change legacy tables either; that attempt explains it better.
        Some(unseen) if !unseen.not_permitted => {
            let reason = format!("nf_tables: {}", unseen.reason);
            Err(ModeError::Unseen(reason).in_mode(Mode::Legacy))
        }
        _ => Ok([Mode::Nft, Mode::Native].into_iter().filter(|&mode| holds_rules(&ruleset, mode)).collect()),
    }
}

/// Fails unless the subsystem that holds the mode's rules could be seen.
pub(crate) fn must_see<R>(ruleset: &Ruleset<R>, mode: Mode) -> Result<(), Error> {
    match ruleset.unseen(mode.subsystem()) {
        Some(unseen) => Err(ModeError::Unseen(unseen.reason.clone()).in_mode(mode)),
        None => Ok(()),
    }
}

/// The tables of nf_tables, and the generation that they are of; none, if they could not be read.
pub(crate) struct Seen<R> {
    pub(crate) ruleset: Ruleset<R>,
    pub(crate) generation: Option<Generation>,
}

/// Reads those tables of nf_tables that may hold our rules. What could not be read is listed in [`Ruleset::not_known`].
///
/// # Errors
/// The kernel's answer makes no sense, or the rules change faster than they can be read.
pub(crate) fn held() -> Result<Seen<HeldRule>, Error> {
    nf_tables(|socket| held::held(socket, may_be_ours))
}

/// Reads nf_tables by `read`, as [`held`].
pub(crate) fn nf_tables<R>(read: impl FnOnce(&Socket) -> Result<Snapshot<R>, ReadError>) -> Result<Seen<R>, Error> {
    let socket = Socket::open().map_err(ReadError::NotAsked);
    let (not_permitted, reason) = match socket.and_then(|socket| read(&socket)) {
        Ok(Snapshot { generation, tables }) => {
            return Ok(Seen { ruleset: Ruleset { tables, not_known: Vec::new() }, generation: Some(generation) });
        }
        // The kernel has no nfnetlink (netlink_create in net/netlink/af_netlink.c), or that without nf_tables
        // (nfnetlink_rcv_msg in net/netfilter/nfnetlink.c).
        Err(ReadError::NotAsked(Errno::EPROTONOSUPPORT) | ReadError::Socket(Errno::EINVAL | Errno::EOPNOTSUPP)) => {
            return Ok(Seen { ruleset: Ruleset { tables: Vec::new(), not_known: Vec::new() }, generation: None });
        }
        Err(ReadError::Socket(Errno::EPERM)) => (true, format!("EPERM: {PRIVILEGE}")),
        Err(ReadError::Socket(errno)) => (false, error::Errno::of(errno).to_string()),
        // Not the kernel's answer, which alone would tell of a capability.
        Err(ReadError::NotAsked(refused)) => {
            let errno = error::Errno::of(refused);
            (refused == Errno::EPERM, format!("{errno}: {}", netlink_advice(errno)))
        }
        Err(error) => return Err(refusal::unreadable(error).in_mode(Mode::Nft)),
    };
    let unseen = Unseen { subsystem: Subsystem::NfTables, not_permitted, reason };
    Ok(Seen { ruleset: Ruleset { tables: Vec::new(), not_known: vec![unseen] }, generation: None })
}

/// The version of a network namespace's rules. If a later stamp is equal, it is the same namespace, nf_tables has not
/// changed since, and there are no legacy tables, as there were none then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    namespace: u64,
    generation: Generation,
}

impl Stamp {
    /// The stamp of the thread's network namespace now. None if there may be legacy tables, whose changes leave no trace, or
    /// if the kernel can't tell (before 5.14, it has no numbers for namespaces).
    pub fn now() -> Option<Self> {
        let socket = Socket::open().ok()?;
        legacy::read::has_none()
            .then_some(Self { namespace: socket.namespace().ok()?, generation: read::generation(&socket).ok()? })
    }
}

/// The edits that turn nf_tables' tables into exactly the tables that a mode makes; none if it holds them already, or
/// if the mode's rules aren't in nf_tables.
pub(crate) fn install_edits<'a>(
    mode: Mode,
    held: &[Table<HeldRule>],
    wanted: &'a [Table],
) -> Result<Vec<Edit<'a>>, ModeError> {
    match mode {
        Mode::Nft => nft::install_edits(held, wanted),
        Mode::Native => native::install_edits(held, wanted),
        Mode::Legacy => Ok(Vec::new()),
    }
}

/// The edits that remove a mode's rules from nf_tables.
fn remove_edits(mode: Mode, held: &[Table<HeldRule>]) -> Vec<Edit<'static>> {
    match mode {
        Mode::Nft => nft::remove_edits(held),
        Mode::Native => native::remove_edits(held),
        Mode::Legacy => Vec::new(),
    }
}

/// The netlink batch that installs a mode's rules in a namespace in which nothing has been committed, ready to send.
pub fn batch(mode: Mode, config: &Config) -> Result<Vec<u8>, Error> {
    let wanted = expected(mode, config);
    let edits = install_edits(mode, &[], &wanted);
    edits.and_then(|edits| commit::fresh_batch(&edits)).map_err(|error| error.in_mode(mode))
}

/// The outcome of an installation over netlink.
pub(crate) struct Done {
    /// True if anything was changed.
    pub(crate) changed: bool,
    /// The other such mode, if its rules were removed.
    pub(crate) replaced: Option<Mode>,
    /// True if the earlier knowledge still held: in an untouched namespace, nothing was ever committed to nf_tables.
    pub(crate) is_as_known: bool,
}

/// Installs a mode's tables over netlink, in a transaction that is valid only for the generation at which the other such
/// mode was checked. If the other mode holds our rules, `replace` has the same transaction remove them; without it, they are
/// an error. `known` is as in [`transact`].
pub(crate) fn install(
    mode: Mode,
    wanted: &[Table],
    replace: bool,
    known: Option<Snapshot<HeldRule>>,
) -> Result<Done, Error> {
    let other = if mode == Mode::Nft { Mode::Native } else { Mode::Nft };
    let mut replaced = None;
    let is_known = known.is_some();
    let mut tries = 0;
    let changed = transact(known, |held| {
        tries += 1;
        let mut edits = remove_edits(other, held);
        if !edits.is_empty() && !replace {
            return Err(ModeError::OtherBackend(other));
        }
        // Of the last try: another program may have removed the rules since the one before.
        replaced = (!edits.is_empty()).then_some(other);
        edits.extend(install_edits(mode, held, wanted)?);
        Ok(edits)
    });
    let changed = changed.map_err(|error| error.in_mode(mode))?;
    Ok(Done { changed, replaced, is_as_known: is_known && tries == 1 })
}

/// Asks if the kernel would accept a mode's tables. The kernel checks them as it would before a commit, but nothing is
/// committed.
pub(crate) fn check(mode: Mode, wanted: &[Table]) -> Result<(), Error> {
    let edits = install_edits(mode, &[], wanted);
    edits.and_then(|edits| commit::check(&edits)).map_err(|error| error.in_mode(mode))
}
