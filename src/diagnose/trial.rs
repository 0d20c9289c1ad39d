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
    use crate::error::{Errno, Lack, ModeError};
    use crate::install::choose::first;

    /// The nat table for IPv4 with as many rules.
    fn nat(subsystem: Subsystem, rules: usize) -> Table {
        Table {
            objects: 1,
            chains: vec![Chain::new(Name::from("OUTPUT"), None, vec![Rule::new(vec![], Action::Return); rules])],
            ..Table::new(subsystem, TableFamily::Ip(Family::V4), Name::from(NAT))
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
    fn otherwise_the_first_mode_that_the_kernel_supports() {
        let tables = vec![nat(Subsystem::NfTables, 3), nat(Subsystem::Legacy, 4)];
        let both = Ruleset { tables, not_known: vec![] };
        let unseen = Unseen { subsystem: Subsystem::Legacy, not_permitted: true, reason: "for a reason".to_owned() };
        let unseen = Ruleset { tables: vec![], not_known: vec![unseen] };
        let works: fn(Mode) -> _ = |_| Ok(());
        let lacks: fn(Mode) -> _ = |mode| Err(lack(mode));
        let all = "nft: the kernel has all that it needs";
        for (ruleset, nft, native, want) in [
            (Ruleset::default(), works, works, all.to_owned()),
            (both, works, works, all.to_owned()),
            (
                unseen,
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
}
