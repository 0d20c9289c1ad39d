//! Which mode fits the kernel and the network namespace: what `auto` goes by.

use std::fmt;

use crate::backend::all::Over;
use crate::error::Error;
use crate::rules::found::{Found, Subsystem};
use crate::rules::mode::Mode;
use crate::rules::ruleset::Ruleset;

/// Why a mode was chosen.
#[derive(Debug)]
#[non_exhaustive]
pub enum Reason {
    /// The caller named it.
    Named,
    /// The caller named none, and this is linkerd-init's default.
    Default,
    /// It is what `iptables-restore` on PATH is.
    Plain,
    /// The mode that the caller asked for needs iptables commands, which are not installed.
    NoIptables,
    /// It holds proxy-init's rules already.
    Holds,
    /// nf_tables has this many nat rules, and the legacy tables have none.
    OnlyNfTables(usize),
    /// The legacy tables have this many nat rules, and nf_tables has none.
    OnlyLegacy(usize),
    /// The kernel supports it, and nothing speaks for another mode.
    Supported {
        /// This process may not list legacy tables, so it is not known whether they hold rules.
        legacy_hidden: bool,
    },
    /// The kernel supports it, but not nft mode, for which it lacks this.
    NftLacks(Error),
    /// The kernel supports neither nft nor native mode; for nft mode it lacks this.
    NeitherSupported(Error),
}

/// As the end of a sentence: `nft mode, because …`.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Named => f.write_str("it was asked for"),
            Reason::Default => f.write_str("it is the default"),
            Reason::Plain => f.write_str("it is what iptables-restore on PATH uses"),
            Reason::NoIptables => f.write_str("it needs no iptables"),
            Reason::Holds => f.write_str("it holds proxy-init's rules already"),
            Reason::OnlyNfTables(rules) => write!(f, "nf_tables holds nat rules ({rules}), legacy tables none"),
            Reason::OnlyLegacy(rules) => write!(f, "legacy tables hold nat rules ({rules}), nf_tables none"),
            Reason::Supported { legacy_hidden: false } => f.write_str("the kernel has all that it needs"),
            Reason::Supported { legacy_hidden: true } => f.write_str(
                "the kernel has all that it needs (only root can list legacy tables, so it is not known whether they \
                 hold rules)",
            ),
            Reason::NftLacks(lack) => {
                write!(
                    f,
                    "the kernel has all that it needs, and nft mode cannot be used: {lack}"
                )
            }
            Reason::NeitherSupported(lack) => write!(f, "neither nft nor native mode can be used: {lack}"),
        }
    }
}

/// What a mode holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Held {
    /// Chains of proxy-init's.
    ours: bool,
    /// How many rules there are in the nat tables, whoever's.
    rules: usize,
}

/// What the nat tables of a network namespace hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Seen {
    nft: Held,
    native: Held,
    legacy: Held,
    /// Whether legacy tables hold rules cannot be seen.
    legacy_hidden: bool,
}

impl Seen {
    /// What was found in the nat tables.
    ///
    /// # Errors
    /// nf_tables could not be seen: nothing can be said then.
    pub(super) fn of(found: &Found) -> Result<Self, Error> {
        if let Some(unseen) = found.unseen(Subsystem::NfTables) {
            return Err(Error::Unseen {
                mode: Mode::Nft,
                reason: unseen.reason.clone(),
            });
        }
        let held = |mode: Mode, rules| Held {
            ours: found.holds(mode),
            rules,
        };
        Ok(Self {
            nft: held(Mode::Nft, found.nat_rules(Subsystem::NfTables)),
            native: held(Mode::Native, 0),
            legacy: held(Mode::Legacy, found.nat_rules(Subsystem::Legacy)),
            legacy_hidden: found.unseen(Subsystem::Legacy).is_some(),
        })
    }
}

/// Whether the kernel would take the rulesets in a mode, without installing them. Legacy mode is the last resort, and
/// takes whatever comes.
///
/// # Errors
/// What the kernel lacks or refuses.
pub(super) fn try_out(mode: Mode, rulesets: &[Ruleset]) -> Result<(), Error> {
    Over::of(mode).map_or(Ok(()), |over| over.plan(rulesets).check())
}

/// The mode, and why. `check` tries whether the kernel would take the rules in a mode, and is asked only where what the
/// namespace holds does not decide. Which iptables binaries are installed does not count.
///
/// # Errors
/// `check` fails for a reason that choosing another mode does not mend.
pub(super) fn choose(seen: &Seen, mut check: impl FnMut(Mode) -> Result<(), Error>) -> Result<(Mode, Reason), Error> {
    for (mode, held) in [
        (Mode::Nft, seen.nft),
        (Mode::Native, seen.native),
        (Mode::Legacy, seen.legacy),
    ] {
        if held.ours {
            return Ok((mode, Reason::Holds));
        }
    }
    match (seen.nft.rules, seen.legacy.rules) {
        (rules @ 1.., 0) => return Ok((Mode::Nft, Reason::OnlyNfTables(rules))),
        (0, rules @ 1..) => return Ok((Mode::Legacy, Reason::OnlyLegacy(rules))),
        _ => {}
    }
    let legacy_hidden = seen.legacy_hidden;
    let lack = match check(Mode::Nft) {
        Ok(()) => return Ok((Mode::Nft, Reason::Supported { legacy_hidden })),
        Err(error) if error.is_lack() => error,
        Err(error) => return Err(error),
    };
    match check(Mode::Native) {
        Ok(()) => Ok((Mode::Native, Reason::NftLacks(lack))),
        Err(error) if error.is_lack() => Ok((Mode::Legacy, Reason::NeitherSupported(lack))),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Errno;

    fn holding(ours: bool, rules: usize) -> Held {
        Held { ours, rules }
    }

    fn lack(mode: Mode) -> Error {
        Error::NoNfTables {
            mode,
            errno: Errno::from_raw(libc::EOPNOTSUPP),
        }
    }

    /// What is chosen, as it is logged; the kernel answers for nft and native mode.
    fn chosen(
        seen: Seen,
        nft: fn(Mode) -> Result<(), Error>,
        native: fn(Mode) -> Result<(), Error>,
    ) -> Result<String, Error> {
        choose(&seen, |mode| match mode {
            Mode::Nft => nft(mode),
            Mode::Native => native(mode),
            Mode::Legacy => panic!("nothing to try"),
        })
        .map(|(mode, reason)| format!("{mode}: {reason}"))
    }

    #[test]
    fn rules_that_are_there_decide_without_asking_the_kernel() {
        let (ours, none) = (holding(true, 8), Held::default());
        let seen = |nft, native, legacy| Seen {
            nft,
            native,
            legacy,
            legacy_hidden: false,
        };
        for (seen, want) in [
            (seen(ours, none, none), "nft: it holds proxy-init's rules already"),
            (seen(none, ours, none), "native: it holds proxy-init's rules already"),
            (seen(none, none, ours), "legacy: it holds proxy-init's rules already"),
            // proxy-init's own count for more than those of others.
            (
                seen(none, ours, holding(false, 9)),
                "native: it holds proxy-init's rules already",
            ),
            (
                seen(holding(false, 9), none, ours),
                "legacy: it holds proxy-init's rules already",
            ),
            (
                seen(holding(false, 1), none, none),
                "nft: nf_tables holds nat rules (1), legacy tables none",
            ),
            (
                seen(none, none, holding(false, 2)),
                "legacy: legacy tables hold nat rules (2), nf_tables none",
            ),
        ] {
            let untouched = |_| panic!("the kernel was asked");
            assert_eq!(chosen(seen, untouched, untouched).unwrap(), want, "{seen:?}");
        }
    }

    #[test]
    fn otherwise_the_first_mode_that_the_kernel_supports() {
        let both = Seen {
            nft: holding(false, 3),
            legacy: holding(false, 4),
            ..Seen::default()
        };
        let hidden = Seen {
            legacy_hidden: true,
            ..Seen::default()
        };
        let works: fn(Mode) -> _ = |_| Ok(());
        let lacks: fn(Mode) -> _ = |mode| Err(lack(mode));
        let all = "nft: the kernel has all that it needs";
        for (seen, nft, native, want) in [
            (Seen::default(), works, works, all.to_owned()),
            (both, works, works, all.to_owned()),
            (
                hidden,
                works,
                works,
                format!("{all} (only root can list legacy tables, so it is not known whether they hold rules)"),
            ),
            (
                Seen::default(),
                lacks,
                works,
                format!(
                    "native: the kernel has all that it needs, and nft mode cannot be used: {}",
                    lack(Mode::Nft)
                ),
            ),
            (
                Seen::default(),
                lacks,
                lacks,
                format!("legacy: neither nft nor native mode can be used: {}", lack(Mode::Nft)),
            ),
        ] {
            assert_eq!(chosen(seen, nft, native).unwrap(), want, "{seen:?}");
        }
    }

    #[test]
    fn an_error_that_no_other_mode_mends_is_an_error() {
        let lacks: fn(Mode) -> _ = |mode| Err(lack(mode));
        let works: fn(Mode) -> _ = |_| Ok(());
        let refused: fn(Mode) -> _ = |mode| Err(Error::NotPermitted { mode });
        let failed = |nft, native| chosen(Seen::default(), nft, native).unwrap_err();
        assert!(matches!(
            failed(refused, works),
            Error::NotPermitted { mode: Mode::Nft }
        ));
        assert!(matches!(
            failed(lacks, refused),
            Error::NotPermitted { mode: Mode::Native }
        ));
    }
}
