//! Finds the mode that fits the kernel and the network namespace, for `auto`.

use derive_more::Display;
use ruleset::{Ruleset, Subsystem};

use crate::config::{Config, Mode};
use crate::error::{Error, ModeError};
use crate::modes::netlink;
use crate::ownership::holders;
use crate::plan::tables::expected;

/// Why a mode was chosen. As text, it is the end of a sentence: `nft mode, because …`.
#[derive(Debug, Display)]
#[non_exhaustive]
pub enum Reason {
    /// The caller named it.
    #[display("it was asked for")]
    Named,
    /// The caller named none, and this is linkerd-init's default.
    #[display("it is the default")]
    Default,
    /// It is what `iptables-restore` on PATH is.
    #[display("it is what iptables-restore on PATH uses")]
    Plain,
    /// It does without what this mode needs and the host lacks.
    #[display("{_0} mode cannot be used here")]
    FellBack(Mode),
    /// It holds proxy-init's rules already.
    #[display("it holds proxy-init's rules already")]
    Holds,
    /// nf_tables has this many nat rules, and the legacy tables have none.
    #[display("nf_tables holds nat rules ({_0}), legacy tables none")]
    OnlyNfTables(usize),
    /// The legacy tables have this many nat rules, and nf_tables has none.
    #[display("legacy tables hold nat rules ({_0}), nf_tables none")]
    OnlyLegacy(usize),
    /// The kernel supports it, and nothing speaks for another mode.
    #[display("the kernel has all that it needs{}", if *legacy_hidden { LEGACY_HIDDEN } else { "" })]
    Supported {
        /// This process may not list legacy tables, so it is not known whether they hold rules.
        legacy_hidden: bool,
    },
    /// The kernel supports it, but not nft mode, for which it lacks this.
    #[display("the kernel has all that it needs, and nft mode cannot be used: {_0}")]
    NftLacks(Error),
    /// The kernel supports neither nft nor native mode; for nft mode it lacks this.
    #[display("neither nft nor native mode can be used: {_0}")]
    NeitherSupported(Error),
}

const LEGACY_HIDDEN: &str =
    " (only root and group 0 can list legacy tables, so it is not known whether they hold rules)";

/// Asks if the kernel would take a config's rules in a mode, without installing them; the error says what it lacks or
/// refuses. Legacy mode is the last resort, and takes whatever comes.
pub(crate) fn try_out(mode: Mode, config: &Config) -> Result<(), Error> {
    netlink::check_each(&[(mode, expected(mode, config))]).into_iter().collect()
}

/// The facts about a network namespace by which `auto` chooses.
#[derive(Debug)]
pub(crate) struct Found {
    /// The first mode that holds our rules.
    pub(crate) holder: Option<Mode>,
    /// How many nat rules each subsystem has.
    pub(crate) in_nf_tables: usize,
    pub(crate) in_legacy: usize,
    /// Legacy tables could not be seen.
    pub(crate) legacy_hidden: bool,
}

impl Found {
    /// Of what nf_tables and the legacy tables hold.
    ///
    /// # Errors
    /// nf_tables could not be seen.
    pub(crate) fn of<R>(nf_tables: &Ruleset<R>, legacy: &Ruleset) -> Result<Self, Error> {
        if let Some(unseen) = nf_tables.unseen(Subsystem::NfTables) {
            return Err(Error::CannotChoose { reason: unseen.reason.clone() });
        }
        Ok(Self {
            holder: holders(nf_tables).chain(holders(legacy)).next(),
            in_nf_tables: nf_tables.nat_rules(Subsystem::NfTables),
            in_legacy: legacy.nat_rules(Subsystem::Legacy),
            legacy_hidden: legacy.unseen(Subsystem::Legacy).is_some(),
        })
    }

    /// The mode that auto tries first, and why. Which iptables binaries are installed does not count.
    pub(crate) fn first(&self) -> (Mode, Reason) {
        match (self.holder, self.in_nf_tables, self.in_legacy) {
            (Some(mode), ..) => (mode, Reason::Holds),
            (None, rules @ 1.., 0) => (Mode::Nft, Reason::OnlyNfTables(rules)),
            (None, 0, rules @ 1..) => (Mode::Legacy, Reason::OnlyLegacy(rules)),
            _ => (Mode::Nft, Reason::Supported { legacy_hidden: self.legacy_hidden }),
        }
    }
}

impl Reason {
    /// Returns true if the mode is still to be tried: the kernel may lack something for it, and auto then tries
    /// another.
    pub(crate) fn is_trial(&self) -> bool {
        matches!(self, Self::Supported { .. } | Self::NftLacks(_))
    }

    /// The mode that auto tries after the one that it tried for this reason, and why.
    ///
    /// # Errors
    /// The mode's error, if choosing another mode does not mend it.
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

/// The mode that would be used, and why, if this one is `first`. `check` tells whether the kernel would take the rules in a
/// mode, and is asked only about modes that are to be tried.
///
/// # Errors
/// As of [`Reason::next`].
#[cfg(any(test, feature = "diagnose"))]
pub(crate) fn choose(
    first: (Mode, Reason),
    mut check: impl FnMut(Mode) -> Result<(), Error>,
) -> Result<(Mode, Reason), Error> {
    let (mut mode, mut reason) = first;
    while reason.is_trial()
        && let Err(error) = check(mode)
    {
        (mode, reason) = reason.next(error)?;
    }
    Ok((mode, reason))
}

#[cfg(test)]
mod tests {
    use ruleset::Unseen;
    use ruleset::{Action, Chain, Family, NAT, Name, Rule, Table, TableFamily};

    use super::*;
    use crate::config::NATIVE;
    use crate::error::{Errno, Lack, Privilege};

    /// A table with one chain of as many rules.
    fn table(subsystem: Subsystem, family: TableFamily, name: &str, chain: &str, rules: usize) -> Table {
        let rule = Rule::new(vec![], Action::Return);
        Table {
            objects: 1,
            chains: vec![Chain::new(Name::from(chain), None, vec![rule; rules])],
            ..Table::new(subsystem, family, Name::from(name))
        }
    }

    fn ruleset(tables: &[Table]) -> Ruleset {
        Ruleset { tables: tables.to_vec(), not_known: vec![] }
    }

    fn nat(subsystem: Subsystem, chain: &str, rules: usize) -> Table {
        table(subsystem, TableFamily::Ip(Family::V4), NAT, chain, rules)
    }

    fn unseen(subsystem: Subsystem) -> Ruleset {
        Ruleset {
            tables: vec![],
            not_known: vec![Unseen { subsystem, not_permitted: true, reason: "for a reason".to_owned() }],
        }
    }

    fn lack(mode: Mode) -> Error {
        let (lack, errno) = (Lack::NfTables, Errno::from_raw(libc::EOPNOTSUPP));
        ModeError::Lacks { lack, errno }.in_mode(mode)
    }

    /// The choice, as it is logged; the kernel answers for nft and native mode.
    fn chosen(
        ruleset: &Ruleset,
        nft: fn(Mode) -> Result<(), Error>,
        native: fn(Mode) -> Result<(), Error>,
    ) -> Result<String, Error> {
        choose(Found::of(ruleset, ruleset)?.first(), |mode| match mode {
            Mode::Nft => nft(mode),
            Mode::Native => native(mode),
            Mode::Legacy => panic!("nothing to try"),
        })
        .map(|(mode, reason)| format!("{mode}: {reason}"))
    }

    #[test]
    fn rules_that_are_there_decide_without_asking_the_kernel() {
        let nft = |rules| nat(Subsystem::NfTables, "PREROUTING", rules);
        let legacy = |rules| nat(Subsystem::Legacy, "PREROUTING", rules);
        let our_nft = nat(Subsystem::NfTables, "PROXY_INIT_OUTPUT", 1);
        let our_native = table(Subsystem::NfTables, TableFamily::Inet, NATIVE, "OUTPUT", 1);
        let our_legacy = nat(Subsystem::Legacy, "PROXY_INIT_REDIRECT", 1);
        for (ruleset, want) in [
            (ruleset(&[our_nft]), "nft: it holds proxy-init's rules already"),
            (ruleset(std::slice::from_ref(&our_native)), "native: it holds proxy-init's rules already"),
            (ruleset(std::slice::from_ref(&our_legacy)), "legacy: it holds proxy-init's rules already"),
            // proxy-init's own count for more than those of others.
            (ruleset(&[legacy(9), our_native]), "native: it holds proxy-init's rules already"),
            (ruleset(&[nft(9), our_legacy]), "legacy: it holds proxy-init's rules already"),
            (ruleset(&[nft(1)]), "nft: nf_tables holds nat rules (1), legacy tables none"),
            (ruleset(&[legacy(2), nft(0)]), "legacy: legacy tables hold nat rules (2), nf_tables none"),
        ] {
            let untouched = |_| panic!("the kernel was asked");
            assert_eq!(chosen(&ruleset, untouched, untouched).unwrap(), want, "{ruleset:?}");
        }
    }

    #[test]
    fn otherwise_the_first_mode_that_the_kernel_supports() {
        let both = ruleset(&[nat(Subsystem::NfTables, "OUTPUT", 3), nat(Subsystem::Legacy, "OUTPUT", 4)]);
        let works: fn(Mode) -> _ = |_| Ok(());
        let lacks: fn(Mode) -> _ = |mode| Err(lack(mode));
        let all = "nft: the kernel has all that it needs";
        for (ruleset, nft, native, want) in [
            (Ruleset::default(), works, works, all.to_owned()),
            (both, works, works, all.to_owned()),
            (
                unseen(Subsystem::Legacy),
                works,
                works,
                format!(
                    "{all} (only root and group 0 can list legacy tables, so it is not known whether they hold rules)"
                ),
            ),
            (
                Ruleset::default(),
                lacks,
                works,
                format!("native: the kernel has all that it needs, and nft mode cannot be used: {}", lack(Mode::Nft)),
            ),
            (
                Ruleset::default(),
                lacks,
                lacks,
                format!("legacy: neither nft nor native mode can be used: {}", lack(Mode::Nft)),
            ),
        ] {
            assert_eq!(chosen(&ruleset, nft, native).unwrap(), want, "{ruleset:?}");
        }
    }

    #[test]
    fn an_error_that_no_other_mode_mends_is_an_error() {
        let lacks: fn(Mode) -> _ = |mode| Err(lack(mode));
        let works: fn(Mode) -> _ = |_| Ok(());
        let refused: fn(Mode) -> _ = |mode| Err(ModeError::NotPermitted(Privilege::Change).in_mode(mode));
        let failed = |nft, native| chosen(&Ruleset::default(), nft, native).unwrap_err();
        let refused_in = |error| match error {
            Error::InMode(mode, ModeError::NotPermitted(_)) => Some(mode),
            _ => None,
        };
        assert_eq!(refused_in(failed(refused, works)), Some(Mode::Nft));
        assert_eq!(refused_in(failed(lacks, refused)), Some(Mode::Native));
        let blind = chosen(&unseen(Subsystem::NfTables), works, works);
        assert!(matches!(blind, Err(Error::CannotChoose { .. })), "{blind:?}");
    }
}
