//! The command line: arguments become what a subcommand needs.

mod draft;
mod exit;
mod flags;
mod manual;
mod parse;
mod subcommand;
#[cfg(test)]
mod tests;
mod values;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use ruleset::{Direction, Family};
use thiserror::Error;

pub use self::exit::Exit;
use self::flags::{Settings, taken_by};
use self::parse::Stop;
use self::subcommand::{IPTABLES_MODE, LOG_FORMAT, LOG_LEVEL, NO_FALLBACK, Subcommand};
pub use self::values::{Expected, Output};
use self::values::{LOG_FORMATS, named};
use crate::config::flags::{INCOMING_PROXY_PORT, OUTBOUND_SUBNETS_TO_REDIRECT, OUTGOING_PROXY_PORT};
use crate::config::{Mode, ModeChoice};
use crate::diagnose::explain::answer::Connection;
use crate::diagnose::validate::Validate;
use crate::install::host_network::HostNetwork;
use crate::install::{Install, Simulate};
use crate::log::{Format, Level, Log};
use crate::uninstall::Uninstall;

#[derive(Debug)]
pub enum Command {
    Install(Box<Install>, Log),
    Simulate(Box<Install>, Simulate),
    Verify(Box<Install>, Output),
    /// Check whether what is installed, in this mode if one is named, is one complete installation.
    Recognize(Option<PathBuf>, Option<Mode>, Output),
    Show(Option<PathBuf>, Output),
    /// Explain what becomes of a connection, and perhaps see whether that is as expected.
    Explain(Option<PathBuf>, Box<Connection>, Option<Expected>, Output),
    Uninstall(Uninstall, Log),
    Detect(Option<PathBuf>, Output),
    Validate(Validate, Log),
    Print(String),
}

/// The command line is invalid: one line that names the flag and the value.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text}")]
pub struct UsageError {
    text: String,
    /// For whom the error is to be printed.
    pub output: Output,
    /// The format of the log, if the run would have kept one.
    pub log: Option<Format>,
}

/// A program of this name takes the flags of `validate`.
const VALIDATOR: &str = "linkerd2-network-validator";

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
    let is_validator = Path::new(&program).file_name().is_some_and(|name| name == VALIDATOR);
    let implied = is_validator.then(|| Subcommand::Validate.name().into());
    let arguments: Vec<OsString> = implied.into_iter().chain(arguments).collect();
    let named = arguments.first().and_then(|first| Subcommand::from_name(first.to_str()?));
    let rest = arguments.get(usize::from(named.is_some())..).unwrap_or_default();
    let subcommand = named.unwrap_or_default();
    read(subcommand, rest, &environment).map_err(|text| UsageError {
        text,
        output: asked("output", Output::Json, subcommand, rest).unwrap_or_default(),
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
    let with_help = |text: String| match subcommand {
        Subcommand::Explain => see_help(&text, subcommand),
        _ => text,
    };
    let settings = given.read().map_err(with_help)?;
    let output = settings.output;
    Ok(match subcommand {
        // --iptables-mode is heeded if it names a mode; the environment, which says how to install, is not.
        Subcommand::Verify if given.is_about_no_rules() => match settings.iptables_mode {
            Some(ModeChoice::Mode(mode)) => Command::Recognize(settings.netns, Some(mode), output),
            _ => Command::Recognize(settings.netns, None, output),
        },
        Subcommand::Verify => Command::Verify(Box::new(install(subcommand, settings, environment)?), output),
        Subcommand::Install => match settings.simulate {
            Some(simulate) => Command::Simulate(Box::new(install(subcommand, settings, environment)?), simulate),
            None => {
                let log = log(&settings)?;
                Command::Install(Box::new(install(subcommand, settings, environment)?), log)
            }
        },
        Subcommand::Show => Command::Show(settings.netns, output),
        Subcommand::Explain => explain(word, settings).map_err(with_help)?,
        Subcommand::Uninstall => {
            let log = log(&settings)?;
            let uninstall = Uninstall {
                iptables_dir: iptables_dir(&settings.firewall_bin_path),
                wait_for_lock: settings.use_wait_flag,
                netns: settings.netns,
            };
            Command::Uninstall(uninstall, log)
        }
        Subcommand::Detect => Command::Detect(settings.netns, output),
        Subcommand::Validate => validate(settings, environment)?,
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

/// What a flag of this name asks for, where the flags can't be read; none if the subcommand takes no such flag.
fn asked<T: Default>(name: &str, json: T, subcommand: Subcommand, arguments: &[OsString]) -> Option<T> {
    if !taken_by(subcommand).any(|flag| flag.name == name) {
        return None;
    }
    let (flag, joined) = (format!("--{name}"), format!("--{name}=json"));
    let is_json = arguments.iter().any(|argument| *argument == *joined)
        || arguments.windows(2).any(|pair| matches!(pair, [name, value] if *name == *flag && value == "json"));
    Some(if is_json { json } else { T::default() })
}

/// What a variable of the environment says, read as the flag for which it stands; none where it is not set, or empty.
fn from_environment<T>(
    name: &str,
    environment: Variables<'_>,
    read: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Option<T>, String> {
    let value = environment(name).filter(|value| !value.is_empty());
    let value = value.map(|value| read(&value.to_string_lossy())).transpose();
    value.map_err(|reason| format!("{name} in the environment {reason}"))
}

/// linkerd-network-validator has two variables in the environment, for where the flags are not given. It refuses a format
/// that it doesn't know, and takes any word for a level.
fn validate(settings: Settings, environment: Variables<'_>) -> Result<Command, String> {
    let format = match &settings.log_format {
        Some(text) => named(text, &LOG_FORMATS).map_err(|reason| format!("--log-format {reason}"))?,
        None => from_environment(LOG_FORMAT, environment, |text| named(text, &LOG_FORMATS))?.unwrap_or_default(),
    };
    let level = match &settings.log_level {
        Some(text) => values::log_filter(text),
        None => from_environment(LOG_LEVEL, environment, |text| Ok(values::log_filter(text)))?.unwrap_or_default(),
    };
    Ok(Command::Validate(settings.validate, Log::new(format, level)))
}

/// The log of a run. An unknown format is plain, as linkerd-init has it: a log is no reason to stop a pod.
fn log(settings: &Settings) -> Result<Log, String> {
    let level = match &settings.log_level {
        Some(text) => values::log_level(text).map_err(|reason| format!("--log-level {reason}"))?,
        None => Level::default(),
    };
    let text = settings.log_format.as_deref().unwrap_or("plain");
    let format = named(text, &LOG_FORMATS);
    let mut log = Log::new(format.clone().unwrap_or_default(), level);
    if format.is_err() {
        log.add(Level::Warning, format_args!("log format \"{text}\" is neither plain nor json: this log is plain"));
    }
    Ok(log)
}

fn explain(direction: &str, settings: Settings) -> Result<Command, String> {
    let direction = if direction == Direction::Inbound.name() { Direction::Inbound } else { Direction::Outbound };
    let to = settings.to.ok_or("--to is required: where the connection goes, as in --to 10.0.0.1:80")?;
    let (from, from_port) = settings.from.unzip();
    if from.is_some_and(|from| from.is_ipv4() != to.is_ipv4()) {
        return Err("--from and --to must be both IPv4 or both IPv6".to_owned());
    }
    let device = match (direction, settings.in_device, settings.out_device) {
        (Direction::Inbound, device, None) => device,
        (Direction::Outbound, None, device) => device,
        (Direction::Inbound, _, Some(_)) => return Err("--out is for outbound connections: use --in".to_owned()),
        (Direction::Outbound, Some(_), _) => return Err("--in is for inbound connections: use --out".to_owned()),
    };
    if direction == Direction::Inbound {
        if settings.uid.or(settings.gid).is_some() {
            return Err("--uid and --gid are for outbound connections: leave them out".to_owned());
        }
        if device.as_ref().is_some_and(|device| *device == *"lo") {
            return Err(
                "--in lo: what comes in by lo was made in this namespace, and is redirected as it leaves: use \
                 proxy-init explain outbound"
                    .to_owned(),
            );
        }
    }
    let connection = Connection {
        from,
        from_port: from_port.flatten(),
        uid: settings.uid,
        gid: settings.gid,
        device,
        ..Connection::new(direction, to)
    };
    Ok(Command::Explain(settings.netns, Box::new(connection), settings.expect, settings.output))
}

fn install(subcommand: Subcommand, settings: Settings, environment: Variables<'_>) -> Result<Install, String> {
    let choice = choice(&settings, environment)?;
    let config = settings.rules.finish().map_err(|direction| {
        let missing = match direction {
            Direction::Inbound => required(INCOMING_PROXY_PORT, 4143),
            Direction::Outbound => required(OUTGOING_PROXY_PORT, 4140),
        };
        see_help(&missing, subcommand)
    })?;
    let chosen = &config.redirected_outbound_subnets;
    if !chosen.is_empty() && !chosen.iter().any(|subnet| config.families().contains(&subnet.family())) {
        return Err(format!(
            "--{OUTBOUND_SUBNETS_TO_REDIRECT} names IPv6 subnets only: with --ipv6=false there are no rules for IPv6, so no \
             outbound connection would be redirected"
        ));
    }
    match settings.simulate {
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
        iptables_dir: iptables_dir(&settings.firewall_bin_path),
        wait_for_lock: settings.use_wait_flag,
        replace_other_backend: settings.replace_other_backend,
        no_fallback: match settings.no_fallback {
            Some(no_fallback) => no_fallback,
            None => from_environment(NO_FALLBACK, environment, values::boolean)?.unwrap_or_default(),
        },
        netns: settings.netns,
        close_wait_timeout: settings.timeout_close_wait_secs,
        host_network: match (settings.allow_host_network, environment(IN_A_POD)) {
            (true, _) => HostNetwork::Allow,
            (false, Some(_)) => HostNetwork::Refuse,
            (false, None) => HostNetwork::Warn,
        },
    })
}

fn required(flag: &str, example: u16) -> String {
    format!("--{flag} must be a valid TCP port number: it is required, e.g. --{flag} {example}")
}

fn iptables_dir(path: &str) -> Option<PathBuf> {
    Path::new(path).parent().filter(|folder| !folder.as_os_str().is_empty()).map(Path::to_owned)
}

/// The mode of the flag, or else of the environment, or else of the iptables binary's name, or else linkerd-init's.
fn choice(settings: &Settings, environment: Variables<'_>) -> Result<ModeChoice, String> {
    if let Some(choice) = settings.iptables_mode {
        return Ok(choice);
    }
    if let Some(choice) = from_environment(IPTABLES_MODE, environment, values::mode)?.flatten() {
        return Ok(choice);
    }
    // Wherever the binary is, its name stands for a mode.
    let path = &settings.firewall_bin_path;
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
