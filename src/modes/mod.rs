//! Installs rules in the kernel, removes them, and reads them back: a file or a folder for each mode.

pub(crate) mod commit;
pub mod legacy;
mod nat;
mod native;
pub mod nf_tables;
pub(crate) mod refusal;
mod rerun;

use netfilter::netlink::Generation;
use netfilter::nf_tables::ChainId;
use netfilter::nf_tables::edit::{self, Edit};
use netfilter::nf_tables::held::HeldRule;
use ruleset::{Ruleset, Table};

use self::commit::transact;
use self::legacy::Legacy;
use crate::config::{Config, Mode};
use crate::error::{Error, ModeError};
use crate::plan::ChainName;
use crate::plan::tables::expected;

/// The edits that turn the tables in which a mode holds its rules into exactly these, or remove its rules if there are none;
/// none if nothing differs.
pub(crate) fn install_edits<'a>(
    mode: Mode,
    held: &[Table<HeldRule>],
    wanted: &'a [Table],
) -> Result<Vec<Edit<'a>>, ModeError> {
    match mode {
        Mode::Nft | Mode::Legacy => nat::install_edits(mode, held, wanted),
        Mode::Native => native::install_edits(held, wanted),
    }
}

/// The netlink batch that installs a mode's rules in a namespace in which nothing has been committed, ready to send.
pub fn batch(mode: Mode, config: &Config) -> Result<Vec<u8>, Error> {
    let wanted = expected(mode, config);
    let batch = install_edits(mode, &[], &wanted).and_then(|edits| {
        edit::batch(&edits, Some(Generation::FRESH)).map_err(|error| refusal::unwritten_error(&error))
    });
    batch.map(|batch| batch.bytes().to_vec()).map_err(|error| error.in_mode(mode))
}

/// Asks if the kernel would take a config's rules in nft or native mode, without installing them; the error says what it
/// lacks or refuses.
pub(crate) fn try_out(mode: Mode, config: &Config) -> Result<(), Error> {
    try_tables(mode, &expected(mode, config))
}

/// The same of a mode's tables.
pub(crate) fn try_tables(mode: Mode, wanted: &[Table]) -> Result<(), Error> {
    let edits = install_edits(mode, &[], wanted);
    edits.and_then(|edits| commit::check(&edits)).map_err(|error| error.in_mode(mode))
}

/// Removes our rules and chains in this mode, in both families, and every rule that leads to them. Base chains
/// and tables go only if proxy-init made them and nothing else is in them. Legacy mode's go by the commands of
/// `legacy`. Returns the rules that led to our chain and were not our own, each with its table and chain; none, if there was
/// nothing to remove.
pub(crate) fn remove(mode: Mode, legacy: &Legacy) -> Result<Option<Vec<String>>, Error> {
    let mut foreign = Vec::new();
    let any = match mode {
        Mode::Legacy => legacy.change(&[]).map(|before| {
            foreign = nat::foreign_jumps(mode, &before);
            !before.is_empty()
        }),
        Mode::Nft | Mode::Native => {
            let removed = transact(None, |tables| {
                if mode == Mode::Nft {
                    foreign = nat::foreign_jumps(mode, tables);
                }
                install_edits(mode, tables, &[])
            });
            removed.map(|generation| generation.is_some())
        }
    };
    any.map(|any| any.then_some(foreign)).map_err(|error| error.in_mode(mode))
}

/// Fails unless the subsystem that holds the mode's rules could be seen.
pub(crate) fn must_see<R>(ruleset: &Ruleset<R>, mode: Mode) -> Result<(), Error> {
    match ruleset.unseen(mode.subsystem()) {
        Some(unseen) => Err(ModeError::Unseen(unseen.reason.clone()).in_mode(mode)),
        None => Ok(()),
    }
}

impl From<ChainName> for ChainId {
    fn from(chain: ChainName) -> Self {
        Self { name: chain.as_str(), hook: chain.hook() }
    }
}
