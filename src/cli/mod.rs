//! The command line: arguments become what a subcommand needs.

#[cfg(feature = "diagnose")]
mod diagnosis;
mod exit;
mod flags;
mod manual;
mod parse;
mod subcommand;
#[cfg(all(test, feature = "diagnose"))]
mod tests;
mod values;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use ruleset::Family;
use thiserror::Error;

pub use self::exit::Exit;
use self::flags::{Options, taken_by};
use self::parse::Stop;
use self::subcommand::Subcommand;
use crate::config::settings::OUTBOUND_SUBNETS_TO_REDIRECT;
use crate::config::{Mode, ModeChoice};
#[cfg(feature = "diagnose")]
use crate::diagnose::{Output, Question, validate::Validate};
use crate::install::host_network::HostNetwork;
use crate::install::{Install, Simulate};
use crate::log::{Format, Level, Log};
use crate::uninstall::Uninstall;

#[derive(Debug)]
pub enum Command {
    Install(Box<Install>, Log),
    Simulate(Box<Install>, Simulate),
    Uninstall(Uninstall, Log),
    #[cfg(feature = "diagnose")]
    Ask(Question, Output),
    #[cfg(feature = "diagnose")]
    Validate(Validate, Log),
    Print(String),
}

/// The command line is invalid: one line that names the flag and the value.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text}")]
pub struct UsageError {
    text: String,
    /// True if the error is to be printed as JSON too.
    pub as_json: bool,
    /// The format of the log, if the run would have kept one.
    pub log: Option<Format>,
}

/// kubelet sets this variable in every container of a pod.
pub const IN_A_POD: &str = "KUBERNETES_SERVICE_HOST";

type Variables<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Reads the command line, the program's name first, and those variables of the environment that stand for flags.
///
/// # Errors
/// Anything that linkerd-init, iptables or the kernel would refuse, or that is probably a mistake.
pub fn parse(
    arguments: impl IntoIterator<Item = OsString>,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<Command, UsageError> {
    let mut arguments = arguments.into_iter();
    let program = arguments.next().unwrap_or_default();
    let implied = Subcommand::of_program(Path::new(&program)).map(|subcommand| subcommand.name().into());
    let arguments: Vec<OsString> = implied.into_iter().chain(arguments).collect();
    let named = arguments.first().and_then(|first| Subcommand::from_name(first.to_str()?));
    let rest = arguments.get(usize::from(named.is_some())..).unwrap_or_default();
    let subcommand = named.unwrap_or_default();
    read(subcommand, rest, &environment).map_err(|text| UsageError {
        text,
        as_json: asked("output", true, subcommand, rest).unwrap_or_default(),
        log: asked("log-format", Format::Json, subcommand, rest),
    })
}

fn read(subcommand: Subcommand, rest: &[OsString], environment: Variables<'_>) -> Result<Command, String> {
    let given = match parse::parse(rest, subcommand) {
        Ok(given) => given,
        Err(Stop::Help { is_long }) => return Ok(Command::Print(manual::help(subcommand, is_long))),
        Err(Stop::Version) => return Ok(Command::Print(manual::version(subcommand))),
        Err(Stop::Mistake(text)) => return Err(see_help(&text, subcommand)),
    };
    let word = given.word.unwrap_or_default();
    Ok(match subcommand {
        #[cfg(feature = "diagnose")]
        Subcommand::Diagnose(diagnosis) => diagnosis::read(diagnosis, &given, environment)?,
        Subcommand::Install => {
            let options = given.read(environment)?;
            let log = log(&options);
            match options.simulate {
                Some(simulate) => Command::Simulate(Box::new(install(subcommand, options, environment)?), simulate),
                None => Command::Install(Box::new(install(subcommand, options, environment)?), log),
            }
        }
        Subcommand::Uninstall => {
            let options = given.read(environment)?;
            let log = log(&options);
            let uninstall = Uninstall {
                iptables_dir: iptables_dir(&options.firewall_bin_path),
                wait_for_lock: options.use_wait_flag,
                netns: options.netns,
            };
            Command::Uninstall(uninstall, log)
        }
        // Without a word, of the program itself.
        Subcommand::Help => Command::Print(manual::help(Subcommand::from_name(word).unwrap_or_default(), true)),
        Subcommand::Man => Command::Print(manual::man(Subcommand::from_name(word).unwrap_or_default())),
        Subcommand::Completions => Command::Print(manual::completions(word)),
    })
}

fn see_help(text: &str, subcommand: Subcommand) -> String {
    match subcommand {
        Subcommand::Install => format!("{text} (see proxy-init --help)"),
        other => format!("{text} (see proxy-init {} --help)", other.name()),
    }
}

/// The value of a flag of this name, where the flags can't be read; none if the subcommand takes no such flag.
fn asked<T: Default>(name: &str, json: T, subcommand: Subcommand, arguments: &[OsString]) -> Option<T> {
    if !taken_by(subcommand).any(|flag| flag.name == name) {
        return None;
    }
    let (flag, joined) = (format!("--{name}"), format!("--{name}=json"));
    let is_json = arguments.iter().any(|argument| *argument == *joined)
        || arguments.windows(2).any(|pair| matches!(pair, [name, value] if *name == *flag && value == "json"));
    Some(if is_json { json } else { T::default() })
}

fn log(options: &Options) -> Log {
    let mut log = Log::new(options.log_format, options.log_level);
    if let Some(text) = &options.unknown_log_format {
        log.add(Level::Warning, format_args!("log format \"{text}\" is neither plain nor json: this log is plain"));
    }
    log
}

fn install(subcommand: Subcommand, options: Options, environment: Variables<'_>) -> Result<Install, String> {
    let choice = choice(&options)?;
    let config = options.rules.finish();
    let config = config.map_err(|flag| see_help(&format!("--{flag} is required: a port of the proxy"), subcommand))?;
    let chosen = &config.redirected_outbound_subnets;
    if !chosen.is_empty() && !chosen.iter().any(|subnet| config.families().contains(&subnet.family())) {
        return Err(format!(
            "--{OUTBOUND_SUBNETS_TO_REDIRECT} names IPv6 subnets only: with --ipv6=false there are no rules for IPv6, so no \
             outbound connection would be redirected"
        ));
    }
    match options.simulate {
        Some(Simulate::Only(_)) if choice == ModeChoice::Mode(Mode::Native) => {
            return Err("--simulate: native mode has one table for both families: write --simulate alone".to_owned());
        }
        Some(Simulate::Only(Family::V6)) if !config.ipv6 => {
            return Err("--simulate=ipv6: with --ipv6=false there are no rules for IPv6".to_owned());
        }
        _ => {}
    }
    Ok(Install {
        config,
        mode: choice,
        iptables_dir: iptables_dir(&options.firewall_bin_path),
        wait_for_lock: options.use_wait_flag,
        replace_other_backend: options.replace_other_backend,
        no_fallback: options.no_fallback,
        netns: options.netns,
        close_wait_timeout: options.timeout_close_wait_secs,
        host_network: match (options.allow_host_network, environment(IN_A_POD)) {
            (true, _) => HostNetwork::Allow,
            (false, Some(_)) => HostNetwork::Refuse,
            (false, None) => HostNetwork::Warn,
        },
    })
}

fn iptables_dir(path: &str) -> Option<PathBuf> {
    Path::new(path).parent().filter(|folder| !folder.as_os_str().is_empty()).map(Path::to_owned)
}

/// The mode of the flag or of the environment, or else of the iptables binary's name, or else linkerd-init's.
fn choice(options: &Options) -> Result<ModeChoice, String> {
    if let Some(choice) = options.iptables_mode {
        return Ok(choice);
    }
    // Wherever the binary is, its name stands for a mode.
    let path = &options.firewall_bin_path;
    match path.rsplit('/').next().unwrap_or_default() {
        "iptables-nft" => Ok(ModeChoice::Mode(Mode::Nft)),
        "" => Ok(ModeChoice::Default),
        "iptables-legacy" => Ok(ModeChoice::Mode(Mode::Legacy)),
        "iptables" => Ok(ModeChoice::Plain),
        _ => Err(format!(
            "--firewall-bin-path \"{path}\" stands for no mode: name iptables-nft, iptables-legacy or iptables, or \
             use --iptables-mode"
        )),
    }
}
