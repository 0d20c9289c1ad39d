//! The short way through the command lines that init containers have.
//!
//! clap takes 130 µs to read Linkerd's arguments, of the 900 µs of a whole run (cold, in a process of its own), and
//! this takes 10. So plain `--flag value` and `--flag=value` are read here, and everything else, help and mistakes
//! among it, is left to clap, whose reading this must equal: a test compares them.

use std::ffi::OsString;

use super::flags::{FLAGS, Flag, Given, Value};
use super::subcommand::Subcommand;

/// Reads the flags of a subcommand, unless clap should.
pub(super) fn parse(arguments: &[OsString], subcommand: Subcommand) -> Option<Given> {
    let mut given = Vec::with_capacity(arguments.len());
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let argument = argument.to_str()?.strip_prefix("--")?;
        let (name, joined) = match argument.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (argument, None),
        };
        let is_meant = |flag: &Flag| flag.is_named(name) && flag.is_taken_by(subcommand);
        let index = FLAGS.iter().position(is_meant)?;
        let value = match (joined, &FLAGS.get(index)?.value) {
            (Some(value), _) => value,
            (None, Value::Switch(_)) => "true",
            // Whether something that begins with a dash is a value or a flag depends on the flag before it.
            (None, _) => arguments.next()?.to_str().filter(|value| !value.starts_with('-'))?,
        };
        given.push((index, value.into()));
    }
    Some(Given::new(given))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cli::grammar;

    const FLAG_TAKERS: [Subcommand; 6] = [
        Subcommand::Install,
        Subcommand::Show,
        Subcommand::Verify,
        Subcommand::Uninstall,
        Subcommand::Detect,
        Subcommand::Validate,
    ];

    fn names() -> Vec<&'static str> {
        let names = FLAGS.iter().flat_map(|flag| [Some(flag.name), flag.alias]);
        names.flatten().collect()
    }

    #[test]
    fn every_flag_is_read_where_it_is_taken_and_nowhere_else() {
        for flag in FLAGS {
            for subcommand in FLAG_TAKERS {
                let read = parse(&[format!("--{}=true", flag.name).into()], subcommand);
                assert_eq!(
                    read.is_some(),
                    flag.is_taken_by(subcommand),
                    "{} {subcommand:?}",
                    flag.name
                );
            }
        }
    }

    #[test]
    fn the_chart_goes_this_way() {
        let chart = xtask::linkerd::CHART_ARGUMENTS.map(OsString::from);
        assert!(parse(&chart, Subcommand::Install).is_some());
    }

    proptest! {
        #[test]
        fn what_is_read_here_clap_reads_the_same(
            subcommand in prop::sample::select(&FLAG_TAKERS[..]),
            items in prop::collection::vec(
                (prop::sample::select(names()), prop::option::of("[-=a-z0-9, ]{0,6}"), any::<bool>()),
                0..6,
            )
        ) {
            let mut arguments: Vec<OsString> = Vec::new();
            for (name, value, joined) in items {
                match (value, joined) {
                    (Some(value), true) => arguments.push(format!("--{name}={value}").into()),
                    (Some(value), false) => arguments.extend([format!("--{name}").into(), value.into()]),
                    (None, _) => arguments.push(format!("--{name}").into()),
                }
            }
            if let Some(quick) = parse(&arguments, subcommand) {
                prop_assert_eq!(Ok(quick), grammar::parse(&arguments, subcommand).map_err(|error| error.to_string()));
            }
        }
    }
}
