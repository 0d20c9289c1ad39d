//! The short way through the command lines that init containers have.
//!
//! clap takes 130 µs to read Linkerd's arguments, of the 900 µs of a whole run (cold, in a process of its own), and
//! this takes 10. So plain `--flag value` and `--flag=value` are read here, and everything else, help and mistakes
//! among it, is left to clap, whose reading this must equal: a test compares them.

use std::ffi::OsString;

use super::Cli;

/// Where a flag's value goes.
enum Slot<'a> {
    /// The last one counts.
    Scalar(&'a mut Option<String>),
    /// The last one counts; only `=` gives a value, and without one it is true.
    Boolean(&'a mut Option<String>),
    /// All count.
    List(&'a mut Vec<String>),
    /// As [`Slot::Scalar`], not text.
    Path(&'a mut Option<OsString>),
}

/// Reads the arguments behind the program's name, unless clap should.
pub(super) fn parse(arguments: &[OsString]) -> Option<Cli> {
    let mut cli = Cli::default();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let argument = argument.to_str()?.strip_prefix("--")?;
        let (name, given) = match argument.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (argument, None),
        };
        let mut value = || match given {
            Some(value) => Some(value),
            // Whether one that begins with a dash is a value or a flag depends on the flag before.
            None => arguments.next()?.to_str().filter(|value| !value.starts_with('-')),
        };
        match slot(&mut cli, name)? {
            Slot::Scalar(slot) => *slot = Some(value()?.to_owned()),
            Slot::Boolean(slot) => *slot = Some(given.unwrap_or("true").to_owned()),
            Slot::List(slot) => slot.push(value()?.to_owned()),
            Slot::Path(slot) => *slot = Some(value()?.into()),
        }
    }
    Some(cli)
}

fn slot<'a>(cli: &'a mut Cli, name: &str) -> Option<Slot<'a>> {
    let (rules, run) = (&mut cli.rules, &mut cli.run);
    Some(match name {
        "incoming-proxy-port" => Slot::Scalar(&mut rules.incoming_proxy_port),
        "outgoing-proxy-port" => Slot::Scalar(&mut rules.outgoing_proxy_port),
        "proxy-uid" => Slot::Scalar(&mut rules.proxy_uid),
        "proxy-gid" => Slot::Scalar(&mut rules.proxy_gid),
        "ports-to-redirect" => Slot::List(&mut rules.ports_to_redirect),
        "inbound-ports-to-ignore" => Slot::List(&mut rules.inbound_ports_to_ignore),
        "outbound-ports-to-ignore" => Slot::List(&mut rules.outbound_ports_to_ignore),
        "inbound-subnets-to-ignore" | "subnets-to-ignore" => Slot::List(&mut rules.inbound_subnets_to_ignore),
        "outbound-subnets-to-ignore" => Slot::List(&mut rules.outbound_subnets_to_ignore),
        "ipv6" => Slot::Boolean(&mut rules.ipv6),
        "iptables-mode" => Slot::Scalar(&mut run.iptables_mode),
        "replace-other-backend" => Slot::Boolean(&mut run.replace_other_backend),
        "simulate" => Slot::Boolean(&mut run.simulate),
        "netns" => Slot::Path(&mut run.netns),
        "use-wait-flag" => Slot::Boolean(&mut run.use_wait_flag),
        "timeout-close-wait-secs" => Slot::Scalar(&mut run.timeout_close_wait_secs),
        "log-format" => Slot::Scalar(&mut run.log_format),
        "log-level" => Slot::Scalar(&mut run.log_level),
        "firewall-bin-path" => Slot::Scalar(&mut run.firewall_bin_path),
        "firewall-save-bin-path" => Slot::Scalar(&mut run.firewall_save_bin_path),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};
    use proptest::prelude::*;

    use super::*;

    fn flags() -> Vec<String> {
        let command = Cli::command();
        fn long(argument: &clap::Arg) -> Vec<&str> {
            argument.get_long_and_visible_aliases().unwrap_or_default()
        }
        let all: Vec<String> = command.get_arguments().flat_map(long).map(ToOwned::to_owned).collect();
        all.into_iter()
            .filter(|flag| !["help", "version"].contains(&flag.as_str()))
            .collect()
    }

    #[test]
    fn every_flag_of_claps_is_known() {
        for flag in flags() {
            assert!(parse(&[format!("--{flag}=true").into()]).is_some(), "{flag}");
        }
    }

    #[test]
    fn the_chart_goes_this_way() {
        assert!(parse(&xtask::linkerd::CHART_ARGUMENTS.map(OsString::from)).is_some());
    }

    proptest! {
        #[test]
        fn what_is_read_here_clap_reads_the_same(
            items in prop::collection::vec((0..flags().len(), prop::option::of("[-=a-z0-9, ]{0,6}"), any::<bool>()), 0..6)
        ) {
            let flags = flags();
            let mut arguments: Vec<OsString> = Vec::new();
            for (flag, value, joined) in items {
                let flag = format!("--{}", flags[flag]);
                match (value, joined) {
                    (Some(value), true) => arguments.push(format!("{flag}={value}").into()),
                    (Some(value), false) => arguments.extend([flag.into(), value.into()]),
                    (None, _) => arguments.push(flag.into()),
                }
            }
            if let Some(quick) = parse(&arguments) {
                let clap = Cli::try_parse_from(std::iter::once("proxy-init".into()).chain(arguments));
                prop_assert_eq!(Ok(quick), clap.map_err(|error| error.to_string()));
            }
        }
    }
}
