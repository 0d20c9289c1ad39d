//! Committing changes: each applies to exactly the ruleset that was read or not at all, whatever other programs do.

use netfilter::netlink::{CommitError, Generation, Socket};
use netfilter::nf_tables::edit::{self, Edit};
use netfilter::nf_tables::held::{self, HeldRule};
use netfilter::nf_tables::read::{Snapshot, back_off};
use ruleset::{Family, Table, TableFamily};

use super::refusal;
use crate::config::Mode;
use crate::error::ModeError;

/// How often a batch is rebuilt because another program's commit came in between. Each try takes about a millisecond; a
/// program that commits so often for so long locks out all others too.
const TRIES: u32 = 1000;

/// Opens a socket to nf_tables in the thread's network namespace.
pub(crate) fn open() -> Result<Socket, ModeError> {
    Socket::open().map_err(refusal::no_socket)
}

fn snapshot(socket: &Socket) -> Result<Snapshot<HeldRule>, ModeError> {
    held::held(socket, may_be_ours).map_err(refusal::unreadable)
}

/// Returns true if nft or native mode has rules in such a table.
pub(crate) fn may_be_ours(family: TableFamily, name: &[u8]) -> bool {
    let is = |(own, own_name): (TableFamily, &str)| own == family && own_name.as_bytes() == name;
    Family::ALL.iter().any(|&of| is(Mode::Nft.table(of)) || is(Mode::Native.table(of)))
}

/// The netlink batch of edits in a namespace in which nothing has been committed, ready to send.
pub(crate) fn fresh_batch(edits: &[Edit<'_>]) -> Result<Vec<u8>, ModeError> {
    let batch = edit::batch(edits, Some(Generation::FRESH));
    Ok(batch.map_err(|error| refusal::unwritten_error(&error))?.bytes().to_vec())
}

/// Commits the edits if the ruleset is at this generation, and returns true if it was; otherwise no edit has taken
/// effect.
pub(crate) fn commit(socket: &Socket, edits: &[Edit<'_>], generation: Generation) -> Result<bool, ModeError> {
    refusal::refuse_outside(edits)?;
    let batch = edit::batch(edits, Some(generation)).map_err(|error| refusal::unwritten_error(&error))?;
    match socket.send_batch(&batch) {
        Ok(()) => Ok(true),
        Err(CommitError::OtherGeneration) => Ok(false),
        Err(error) => Err(refusal::explain(socket, edits, &batch, error)),
    }
}

/// Asks if the kernel would accept the edits. The kernel checks them as it would before a commit, but commits nothing.
pub(crate) fn check(edits: &[Edit<'_>]) -> Result<(), ModeError> {
    refusal::refuse_outside(edits)?;
    let batch = edit::batch(edits, None).map_err(|error| refusal::unwritten_error(&error))?;
    let socket = open()?;
    socket.send_batch(&batch).map_err(|error| refusal::explain(&socket, edits, &batch, error))
}

/// Changes the ruleset into the wanted one. `plan` is given the tables that may hold our rules, and returns the edits,
/// or none if nothing needs to change. It is given first what is `known`, if anything is, and commits the edits if that
/// is still so. Returns true if anything was changed.
pub(crate) fn transact<'a>(
    mut known: Option<Snapshot<HeldRule>>,
    mut plan: impl FnMut(&[Table<HeldRule>]) -> Result<Vec<Edit<'a>>, ModeError>,
) -> Result<bool, ModeError> {
    // The generation of a batch that may have been committed or not, and why that isn't known.
    let mut unanswered = None;
    for attempt in 0..TRIES {
        // Each attempt has a new socket: unread answers are gone with the old one.
        let read = || {
            back_off(attempt.saturating_sub(1));
            open().and_then(|socket| Ok((snapshot(&socket)?, socket)))
        };
        let (snapshot, socket) = match known.take() {
            Some(known) => (known, open()?),
            None => read().map_err(|error| unanswered.map_or(error, |(_, errno)| ModeError::Unanswered(errno)))?,
        };
        let edits = plan(&snapshot.tables)?;
        match unanswered {
            // Whatever became of the earlier batch, the ruleset is now as it should be.
            _ if edits.is_empty() => return Ok(unanswered.is_some()),
            Some((generation, errno)) if generation == snapshot.generation => {
                return Err(ModeError::Netlink { call: "recv", errno });
            }
            Some((_, errno)) => return Err(ModeError::Unanswered(errno)),
            None => {}
        }
        match commit(&socket, &edits, snapshot.generation) {
            Ok(false) => {}
            Err(ModeError::Unanswered(errno)) => unanswered = Some((snapshot.generation, errno)),
            done => return done,
        }
    }
    Err(ModeError::Contended(TRIES))
}
