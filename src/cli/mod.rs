//! The command line: arguments become a command.

mod manual;
pub mod report;
#[cfg(all(test, feature = "diagnose"))]
mod tests;

use std::ffi::OsString;
use std::path::Path;

use thiserror::Error;

#[cfg(feature = "diagnose")]
use crate::diagnose::{Colour, Output, Question, questions, validate::Validate};
use crate::flags::Exit;
use crate::flags::install::{self, INSTALL, UNINSTALL};
use crate::flags::{self, Given, SUBCOMMAND, Stop, Subcommand, Word};
use crate::install::{Install, Simulate};
use crate::log::{Format, Log};
use crate::uninstall::Uninstall;

#[derive(Debug)]
pub enum Command {
    Install(Box<Install>, Log),
    Simulate(Box<Install>, Simulate),
    Uninstall(Uninstall, Log),
    #[cfg(feature = "diagnose")]
    Ask(Question, Output, Colour),
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

type Read = fn(&Given<'_>) -> Result<Command, String>;

/// Every subcommand in the order in which help lists them, installing first, and the command that its arguments become.
static SUBCOMMANDS: &[(&Subcommand, Read)] = &[
    (&INSTALL, read_install),
    #[cfg(feature = "diagnose")]
    (&questions::CHECK, |given| ask(given, questions::check)),
    #[cfg(feature = "diagnose")]
    (&questions::SHOW, |given| ask(given, questions::show)),
    #[cfg(feature = "diagnose")]
    (&questions::EXPLAIN, |given| ask(given, questions::explain).map_err(|text| given.subcommand.see_help(&text))),
    #[cfg(feature = "diagnose")]
    (&questions::VERIFY, |given| ask(given, questions::verify)),
    (&UNINSTALL, |given| Ok(Command::Uninstall(install::uninstall(given)?, install::log(given)?))),
    #[cfg(feature = "diagnose")]
    (&questions::DETECT, |given| ask(given, questions::detect)),
    #[cfg(feature = "diagnose")]
    (&questions::VALIDATE, |given| Ok(Command::Validate(questions::validate(given)?, questions::log(given)?))),
    (&HELP, |given| Ok(Command::Print(manual::help(&all(), find(given.word).0, true)))),
    (&COMPLETIONS, |given| Ok(Command::Print(manual::completions(&all(), given.word)))),
];

fn read_install(given: &Given<'_>) -> Result<Command, String> {
    let (log, install) = (install::log(given)?, Box::new(install::install(given)?));
    Ok(match install::simulate(given, &install)? {
        Some(simulate) => Command::Simulate(install, simulate),
        None => Command::Install(install, log),
    })
}

#[cfg(feature = "diagnose")]
fn ask(given: &Given<'_>, question: fn(&Given<'_>) -> Result<Question, String>) -> Result<Command, String> {
    let output = questions::output(given)?;
    let colour = questions::colour(given)?;
    Ok(Command::Ask(question(given)?, output, colour))
}

const PRINTED: &[(Exit, &str)] =
    &[(Exit::Done, "printed"), (Exit::Failed, "cannot write to stdout"), (Exit::BadInput, Exit::BAD_INPUT)];

static HELP: Subcommand = Subcommand {
    name: "help",
    about: "Print help for the program or for a subcommand",
    details: "It is the same text as that of --help after the subcommand.",
    word: Some(ANY_SUBCOMMAND),
    examples: &[("proxy-init help verify", "explain verify")],
    exits: PRINTED,
    ..SUBCOMMAND
};

static COMPLETIONS: Subcommand = Subcommand {
    name: "completions",
    about: "Print a shell's completion script",
    details: "The script completes subcommands, flags, and values that are words.",
    word: Some(Word {
        placeholder: "SHELL",
        words: || vec!["bash", "fish", "zsh"],
        missing: Some("completions needs the name of a shell, as in proxy-init completions bash"),
        help: "The shell",
    }),
    examples: &[("proxy-init completions bash > /etc/bash_completion.d/proxy-init", "complete in every new bash")],
    exits: PRINTED,
    ..SUBCOMMAND
};

const ANY_SUBCOMMAND: Word = Word {
    placeholder: "SUBCOMMAND",
    words: || all().into_iter().skip(1).map(|subcommand| subcommand.name).collect(),
    missing: None,
    help: "The subcommand [default: the program itself]",
};

pub(crate) fn all() -> Vec<&'static Subcommand> {
    SUBCOMMANDS.iter().map(|(subcommand, _)| *subcommand).collect()
}

/// The subcommand of this name; installing, if there is none.
fn find(name: &str) -> (&'static Subcommand, Read) {
    let found = SUBCOMMANDS.iter().find(|(subcommand, _)| subcommand.name == name && !subcommand.is_program());
    found.map_or((&INSTALL, read_install), |&(subcommand, read)| (subcommand, read))
}

/// Reads the command line, the program's name first, and those variables of the environment that stand for flags. It refuses
/// anything that linkerd-init, iptables or the kernel would refuse, or that is probably a mistake.
pub fn parse(
    arguments: impl IntoIterator<Item = OsString>,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<Command, UsageError> {
    let mut arguments = arguments.into_iter();
    let program = arguments.next().unwrap_or_default();
    let is_validator = Path::new(&program).file_name().is_some_and(|name| name == "linkerd2-network-validator");
    let implied = is_validator.then(|| "validate".into());
    let arguments: Vec<OsString> = implied.into_iter().chain(arguments).collect();
    let (subcommand, read) = find(arguments.first().and_then(|first| first.to_str()).unwrap_or_default());
    let rest = arguments.get(usize::from(!subcommand.is_program())..).unwrap_or_default();
    let command = match flags::read(rest, subcommand, all, &environment) {
        Ok(given) => read(&given),
        Err(Stop::Help { is_long }) => Ok(Command::Print(manual::help(&all(), subcommand, is_long))),
        Err(Stop::Version) => Ok(Command::Print(manual::version(&all(), subcommand))),
        Err(Stop::Mistake(text)) => Err(subcommand.see_help(&text)),
    };
    command.map_err(|text| UsageError {
        text,
        as_json: asked("output", true, subcommand, rest).unwrap_or_default(),
        log: asked("log-format", Format::Json, subcommand, rest),
    })
}

/// The form that a flag of this name asks for, where the flags can't be read; none if the subcommand takes no such flag.
fn asked<T: Default>(name: &str, json: T, subcommand: &Subcommand, arguments: &[OsString]) -> Option<T> {
    if !(subcommand.flags)().iter().any(|flag| flag.name == name) {
        return None;
    }
    let (flag, joined) = (format!("--{name}"), format!("--{name}=json"));
    let is_json = arguments.iter().any(|argument| *argument == *joined)
        || arguments.windows(2).any(|pair| matches!(pair, [name, value] if *name == *flag && value == "json"));
    Some(if is_json { json } else { T::default() })
}
