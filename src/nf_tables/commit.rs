//! Committing: a change to just the ruleset that was looked at, whoever else is at work.

use nix::errno::Errno;

use super::read::{self, Picture, back_off};
use super::refusal;
use super::step::{self, Step};
use crate::error::{self, Error};
use crate::netlink::{CommitError, Generation, ReadError, Socket};
use crate::rules::found::Table;
use crate::rules::mode::Mode;

/// How often a batch is built anew because somebody else's commit came in between. Each try takes about a
/// millisecond; a writer that keeps this up for so long doesn't let anybody else in either.
const TRIES: u32 = 1000;

/// What became of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All of it is in.
    Committed,
    /// Nothing of it is in: the ruleset is at another generation.
    OtherGeneration,
    /// The kernel took the batch, but its answer could not be received.
    Unanswered(Errno),
}

/// Opens a socket to nf_tables in the thread's network namespace.
pub(crate) fn open(mode: Mode) -> Result<Socket, Error> {
    Socket::open().map_err(|errno| refusal::no_socket(mode, errno))
}

/// Reads what nf_tables holds.
pub(crate) fn picture(mode: Mode, socket: &Socket) -> Result<Picture, Error> {
    read::picture(socket).map_err(|error| refusal::unreadable(mode, error))
}

/// Makes the steps if the ruleset is at this generation.
pub(crate) fn commit(
    mode: Mode,
    socket: &Socket,
    steps: &[Step<'_>],
    generation: Generation,
) -> Result<Outcome, Error> {
    let batch = step::batch(steps, generation);
    match socket.send_batch(&batch) {
        Ok(()) => Ok(Outcome::Committed),
        Err(CommitError::OtherGeneration) => Ok(Outcome::OtherGeneration),
        Err(CommitError::Unanswered(errno)) => Ok(Outcome::Unanswered(errno)),
        Err(error) => Err(refusal::explain(mode, socket, steps, &batch, error)),
    }
}

/// Makes the steps in a namespace that nobody has programmed yet, and tells whether it was one.
pub(crate) fn commit_fresh(mode: Mode, steps: &[Step<'_>]) -> Result<Outcome, Error> {
    commit(mode, &open(mode)?, steps, Generation::FRESH)
}

/// Whether the kernel would take the steps: it checks them as if to make them, and nothing is committed.
pub(crate) fn check(mode: Mode, steps: &[Step<'_>]) -> Result<(), Error> {
    let socket = open(mode)?;
    let batch = step::trial(steps);
    match socket.send_batch(&batch) {
        Ok(()) => Ok(()),
        Err(error) => Err(refusal::explain(mode, &socket, steps, &batch, error)),
    }
}

/// Takes the ruleset from what it is to what it should be: `plan` says by which steps, none if it is right. Tells whether
/// there were any.
pub(crate) fn transact<'a>(
    mode: Mode,
    mut plan: impl FnMut(&[Table]) -> Result<Vec<Step<'a>>, Error>,
) -> Result<bool, Error> {
    let mut unanswered: Option<(Generation, Errno)> = None;
    for attempt in 0..TRIES {
        back_off(attempt);
        // A socket of its own: what an earlier one has not received is gone with it.
        let socket = open(mode)?;
        let picture = picture(mode, &socket)?;
        let steps = plan(&picture.tables)?;
        match unanswered {
            // Whatever became of the batch, this is how things should be.
            _ if steps.is_empty() => return Ok(attempt > 0),
            Some((generation, errno)) if generation == picture.generation => {
                return Err(Error::Netlink {
                    mode,
                    call: "recv",
                    errno: error::Errno::of(errno),
                });
            }
            Some((_, errno)) => {
                return Err(Error::Unanswered {
                    mode,
                    errno: error::Errno::of(errno),
                });
            }
            None => {}
        }
        match commit(mode, &socket, &steps, picture.generation)? {
            Outcome::Committed => return Ok(true),
            Outcome::OtherGeneration => {}
            Outcome::Unanswered(errno) => unanswered = Some((picture.generation, errno)),
        }
    }
    Err(Error::Contended { tries: TRIES })
}

/// The error for a picture that can't be had, where nothing was to be changed.
pub(crate) fn unreadable(mode: Mode, error: ReadError) -> Error {
    refusal::unreadable(mode, error)
}
