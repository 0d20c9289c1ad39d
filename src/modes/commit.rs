//! Committing changes: each applies to exactly the ruleset that was read or not at all, whatever other programs do.

use netfilter::netlink::{CommitError, Generation, Socket};
use netfilter::nf_tables::edit::{self, Edit};
use netfilter::nf_tables::held::{self, HeldRule};
use netfilter::nf_tables::read::{Snapshot, back_off};
use ruleset::Table;

use super::nf_tables::may_be_ours;
use super::refusal;
use crate::error::ModeError;

/// The most times that a batch is rebuilt because another program's commit came in between. Each try takes about a
/// millisecond; a program that commits so often for so long locks out all others too.
const TRIES: u32 = 1000;

/// Changes the ruleset into the wanted one. `plan` is given the tables that may hold our rules, and returns the edits,
/// or none if nothing needs to change. It is given first what is `known`, if anything is, and commits the edits if that
/// is still so. Returns the generation at which they were committed; none, if nothing was changed.
pub(crate) fn transact<'a>(
    mut known: Option<Snapshot<HeldRule>>,
    mut plan: impl FnMut(&[Table<HeldRule>]) -> Result<Vec<Edit<'a>>, ModeError>,
) -> Result<Option<Generation>, ModeError> {
    // The generation of a batch that may have been committed or not, and why that isn't known.
    let mut unanswered = None;
    for attempt in 0..TRIES {
        // Each attempt has a new socket: unread answers are gone with the old one.
        let read = || {
            back_off(attempt.saturating_sub(1));
            let socket = Socket::open().map_err(refusal::no_socket)?;
            let snapshot = held::held(&socket, may_be_ours).map_err(refusal::unreadable)?;
            Ok((snapshot, socket))
        };
        let (Snapshot { generation, tables }, socket) = match known.take() {
            Some(known) => (known, Socket::open().map_err(refusal::no_socket)?),
            None => read().map_err(|error| unanswered.map_or(error, |(_, errno)| ModeError::Unanswered(errno)))?,
        };
        let edits = plan(&tables)?;
        match unanswered {
            // Whatever became of the earlier batch, the ruleset is now as it should be.
            _ if edits.is_empty() => return Ok(unanswered.map(|(earlier, _)| earlier)),
            Some((earlier, errno)) if earlier == generation => {
                return Err(ModeError::Netlink { call: "recv", errno });
            }
            Some((_, errno)) => return Err(ModeError::Unanswered(errno)),
            None => {}
        }
        refusal::refuse_outside(&edits)?;
        let batch = edit::batch(&edits, Some(generation)).map_err(|error| refusal::unwritten_error(&error))?;
        match socket.send_batch(&batch) {
            Ok(()) => return Ok(Some(generation)),
            Err(CommitError::OtherGeneration) => {}
            Err(error) => match refusal::explain(&socket, &edits, &batch, error) {
                ModeError::Unanswered(errno) => unanswered = Some((generation, errno)),
                refused => return Err(refused),
            },
        }
    }
    Err(ModeError::Contended(TRIES))
}

/// Asks if the kernel would accept the edits. The kernel checks them as it would before a commit, but commits nothing.
pub(super) fn check(edits: &[Edit<'_>]) -> Result<(), ModeError> {
    refusal::refuse_outside(edits)?;
    let batch = edit::batch(edits, None).map_err(|error| refusal::unwritten_error(&error))?;
    let socket = Socket::open().map_err(refusal::no_socket)?;
    socket.send_batch(&batch).map_err(|error| refusal::explain(&socket, edits, &batch, error))
}
