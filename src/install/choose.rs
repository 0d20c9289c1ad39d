//! Finds the mode that fits the kernel and the network namespace, for `auto`.

use derive_more::Display;
use ruleset::{Ruleset, Subsystem};

use crate::config::Mode;
use crate::error::{Error, ModeError};
use crate::ownership::holders;

/// The reason why a mode was chosen. As text, it is the end of a sentence: `nft mode, because …`.
#[derive(Debug, Display)]
#[non_exhaustive]
pub enum Reason {
    /// [`ModeChoice::Mode`](crate::ModeChoice::Mode)
    #[display("it was asked for")]
    Named,
    /// [`ModeChoice::Default`](crate::ModeChoice::Default)
    #[display("it is the default")]
    Default,
    /// [`ModeChoice::Plain`](crate::ModeChoice::Plain)
    #[display("it is what iptables-restore on PATH uses")]
    Plain,
    /// This mode was to be used, and can't be.
    #[display("{_0} mode cannot be used here")]
    FellBack(Mode),
    /// An earlier run has used it.
    #[display("it holds proxy-init's rules already")]
    Holds,
    /// Other programs use nf_tables, with so many nat rules.
    #[display("nf_tables holds nat rules ({_0}), legacy tables none")]
    OnlyNfTables(usize),
    /// Other programs use legacy tables, with so many nat rules.
    #[display("legacy tables hold nat rules ({_0}), nf_tables none")]
    OnlyLegacy(usize),
    /// Nothing speaks for another mode than nft mode, which works.
    #[display("the kernel has all that it needs{}", if *legacy_hidden { LEGACY_HIDDEN } else { "" })]
    Supported {
        /// This process may not list legacy tables, which may hold rules.
        legacy_hidden: bool,
    },
    /// Native mode works, and nft mode fails by this error.
    #[display("the kernel has all that it needs, and nft mode cannot be used: {_0}")]
    NftLacks(Error),
    /// Legacy mode is left. Nft mode fails by this error.
    #[display("neither nft nor native mode can be used: {_0}")]
    NeitherSupported(Error),
}

const LEGACY_HIDDEN: &str =
    " (only root and group 0 can list legacy tables, so it is not known whether they hold rules)";

/// The mode that auto tries first, by the rules of nf_tables and the legacy tables, and why. Which iptables binaries are
/// installed does not count.
pub(crate) fn first<R>(nf_tables: &Ruleset<R>, legacy: &Ruleset) -> Result<(Mode, Reason), Error> {
    if let Some(unseen) = nf_tables.unseen(Subsystem::NfTables) {
        return Err(Error::CannotChoose { reason: unseen.reason.clone() });
    }
    if let Some(mode) = holders(nf_tables).chain(holders(legacy)).next() {
        return Ok((mode, Reason::Holds));
    }
    Ok(match (nf_tables.nat_rules(Subsystem::NfTables), legacy.nat_rules(Subsystem::Legacy)) {
        (rules @ 1.., 0) => (Mode::Nft, Reason::OnlyNfTables(rules)),
        (0, rules @ 1..) => (Mode::Legacy, Reason::OnlyLegacy(rules)),
        _ => (Mode::Nft, Reason::Supported { legacy_hidden: legacy.unseen(Subsystem::Legacy).is_some() }),
    })
}

impl Reason {
    /// Returns true if the mode is still to be tried: the kernel may lack something for it, and auto then tries
    /// another.
    pub(crate) fn is_trial(&self) -> bool {
        matches!(self, Self::Supported { .. } | Self::NftLacks(_))
    }

    /// The mode that auto tries after the one that it tried for this reason, and why.
    pub(crate) fn next(self, error: Error) -> Result<(Mode, Self), Error> {
        match self {
            Self::Supported { .. } if error.rules_out_nft_mode() => Ok((Mode::Native, Self::NftLacks(error))),
            Self::NftLacks(lack) if matches!(error, Error::InMode(_, ModeError::Lacks { .. })) => {
                Ok((Mode::Legacy, Self::NeitherSupported(lack)))
            }
            _ => Err(error),
        }
    }
}
