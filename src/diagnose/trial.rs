//! Asks the kernel which modes' rules it would take.

use crate::config::Mode;
use crate::error::Error;
use crate::install::choose::Reason;

/// The mode that would be used, and why, if this one is `first`. `check` says if the kernel would take the rules in a mode,
/// and is asked only about modes that are to be tried.
///
/// # Errors
/// As of [`Reason::next`].
pub fn choose(
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
    use ruleset::{Action, Chain, Family, NAT, Name, Rule, Ruleset, Subsystem, Table, TableFamily};

    use super::*;
    use crate::config::NATIVE;
    use crate::error::{Errno, Lack, ModeError, Privilege};
    use crate::install::choose::first;

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
        choose(first(ruleset, ruleset)?, |mode| match mode {
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
