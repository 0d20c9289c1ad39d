//! The flags and subcommands as clap knows them, and what clap's errors mean.

use std::ffi::{OsStr, OsString};

use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint};

use super::flags::{FLAGS, Flag, Given, Value};
use super::subcommand::Subcommand;
use crate::BUILD;
use crate::wanted::direction::Direction;

/// The positional argument of `explain`, `help`, `man` and `completions`.
pub(super) const SUBJECT: &str = "subject";

/// The whole program: what help, the man page and completions are made from.
pub(super) fn program() -> Command {
    command(Subcommand::Install)
        .subcommands(Subcommand::NAMED.map(command))
        .disable_help_subcommand(true)
        .args_conflicts_with_subcommands(true)
        .subcommand_value_name("SUBCOMMAND")
        .subcommand_help_heading("Subcommands")
}

/// One subcommand by itself.
fn command(subcommand: Subcommand) -> Command {
    let command = Command::new(subcommand.name())
        .about(subcommand.about())
        .long_about(format!("{}\n\n{}", subcommand.about(), subcommand.details()))
        .after_help(after_help(subcommand))
        .args(FLAGS.iter().filter(|flag| flag.is_taken_by(subcommand)).map(argument));
    match subcommand {
        Subcommand::Install | Subcommand::Validate => command.version(BUILD),
        Subcommand::Show | Subcommand::Verify | Subcommand::Uninstall | Subcommand::Detect => command,
        Subcommand::Explain => command.arg(
            Arg::new(SUBJECT)
                .value_name("DIRECTION")
                .value_parser(Direction::ALL.map(|direction| PossibleValue::new(direction.name())))
                .required(true)
                .help("inbound: a connection to this namespace; outbound: one that a process in it makes"),
        ),
        Subcommand::Help | Subcommand::Man => command.arg(
            Arg::new(SUBJECT)
                .value_name("SUBCOMMAND")
                .value_parser(Subcommand::NAMED.map(Subcommand::name))
                .hide_possible_values(true)
                .help("The subcommand [default: the program itself]"),
        ),
        Subcommand::Completions => command.arg(
            Arg::new(SUBJECT)
                .value_name("SHELL")
                .value_parser(clap::value_parser!(clap_complete::Shell))
                .required(true)
                .help("The shell"),
        ),
    }
}

fn after_help(subcommand: Subcommand) -> String {
    let mut text = String::new();
    for (line, what) in subcommand.examples() {
        text += &format!("Example: {what}\n  {}\n\n", line.replace('\n', "\n  "));
    }
    text += "Exit codes:";
    for (exit, meaning) in subcommand.exits() {
        text += &format!("\n  {}  {meaning}", exit.code());
    }
    text
}

fn argument(flag: &'static Flag) -> Arg {
    let argument = Arg::new(flag.name)
        .long(flag.name)
        .short(flag.short)
        .visible_aliases(flag.alias)
        .value_name(flag.placeholder)
        .help(flag.help)
        .help_heading(flag.heading)
        .value_parser(AnyValue(flag))
        .hide_possible_values(true)
        .action(ArgAction::Append);
    match flag.value {
        Value::Word(_) => argument,
        Value::Number(_) => argument.allow_hyphen_values(true).value_hint(ValueHint::Other),
        Value::Path(_) => argument.value_hint(ValueHint::AnyPath),
        Value::Switch(_) => argument
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true"),
    }
}

/// Lets every value through, for [`Flag`] to read, and knows the words that completions offer.
#[derive(Clone)]
struct AnyValue(&'static Flag);

impl TypedValueParser for AnyValue {
    type Value = OsString;

    fn parse_ref(&self, _: &Command, _: Option<&Arg>, value: &OsStr) -> Result<OsString, clap::Error> {
        Ok(value.to_owned())
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let words = (self.0.words)();
        (!words.is_empty()).then(|| Box::new(words.into_iter().map(PossibleValue::new)) as Box<_>)
    }
}

/// Has clap read the arguments behind a subcommand's name.
pub(super) fn matches(arguments: &[OsString], subcommand: Subcommand) -> Result<ArgMatches, clap::Error> {
    command(subcommand).no_binary_name(true).try_get_matches_from(arguments)
}

/// Has clap read the flags of a subcommand.
pub(super) fn parse(arguments: &[OsString], subcommand: Subcommand) -> Result<Given, clap::Error> {
    matches(arguments, subcommand).map(|matches| given(&matches, subcommand))
}

/// The flags among what clap read.
pub(super) fn given(matches: &ArgMatches, subcommand: Subcommand) -> Given {
    let taken = FLAGS
        .iter()
        .enumerate()
        .filter(|(_, flag)| flag.is_taken_by(subcommand));
    let given = taken.flat_map(|(index, flag)| {
        let values = matches.get_many::<OsString>(flag.name).into_iter().flatten();
        values.map(move |value| (index, value.clone()))
    });
    Given::new(given.collect())
}

/// What help or version text clap was asked for, if that is why it returned an error.
pub(super) fn asked_for(error: &clap::Error, arguments: &[OsString]) -> Option<String> {
    if !matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return None;
    }
    // Asked of the whole program, it knows the program's name and lists the subcommands.
    let name = OsString::from(Subcommand::Install.name());
    let asked = program().try_get_matches_from(std::iter::once(&name).chain(arguments));
    asked.err().map(|text| text.to_string())
}

/// clap's error in one line, which says how to write what was probably meant.
pub(super) fn explain(error: &clap::Error, arguments: &[OsString], subcommand: Subcommand) -> String {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.as_str(),
        _ => "",
    };
    let argument = context(ContextKind::InvalidArg);
    match error.kind() {
        ErrorKind::UnknownArgument if argument.starts_with('-') => {
            let typed = argument.split('=').next().unwrap_or_default();
            let known = FLAGS.iter().find(|flag| flag.spellings().any(|name| name == typed));
            match (known, context(ContextKind::SuggestedArg)) {
                (Some(flag), _) if flag.is_taken_by(subcommand) => explain_stray(argument, arguments, subcommand),
                (Some(_), _) => format!("{} does not take {typed}: leave it out", subcommand.name()),
                (None, "") => format!("unknown flag {typed}"),
                (None, similar) => format!("unknown flag {typed}, did you mean {similar}?"),
            }
        }
        ErrorKind::UnknownArgument => explain_stray(argument, arguments, subcommand),
        ErrorKind::InvalidValue => match (context(ContextKind::InvalidValue), error.get(ContextKind::ValidValue)) {
            ("", _) => format!("{argument}: a value is missing"),
            (value, Some(ContextValue::Strings(valid))) => {
                format!("{argument} \"{value}\" is invalid: use {}", valid.join(", "))
            }
            (value, _) => format!("{argument} \"{value}\" is invalid"),
        },
        ErrorKind::MissingRequiredArgument if subcommand == Subcommand::Explain => {
            "explain needs a direction, inbound or outbound, as in proxy-init explain outbound --to 10.0.0.1:80"
                .to_owned()
        }
        ErrorKind::MissingRequiredArgument if subcommand == Subcommand::Completions => {
            "completions needs the name of a shell, as in proxy-init completions bash".to_owned()
        }
        _ => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            first.strip_prefix("error: ").unwrap_or(first).to_owned()
        }
    }
}

/// What is wrong with an argument that is neither a flag nor a flag's value.
fn explain_stray(stray: &str, arguments: &[OsString], subcommand: Subcommand) -> String {
    let is_stray = |argument: &OsString| argument.to_string_lossy() == stray;
    if subcommand == Subcommand::Install && arguments.first().is_some_and(is_stray) {
        return explain_unknown_subcommand(stray);
    }
    let pairs = arguments.iter().zip(arguments.iter().skip(1));
    let before = pairs.filter(|(_, argument)| is_stray(argument));
    let explained = before.map(|(before, _)| before.to_string_lossy()).find_map(|before| {
        let is_switch = |flag: &Flag| matches!(flag.value, Value::Switch(_)) && flag.spellings().any(|it| it == before);
        if FLAGS.iter().any(is_switch) {
            Some(format!(
                "{before} {stray}: a boolean takes its value behind \"=\": write {before}={stray}"
            ))
        } else if before.ends_with(',') || stray.starts_with(',') {
            Some(format!(
                "{before} {stray}: a list is one argument, without blanks: write {before}{stray}"
            ))
        } else {
            None
        }
    });
    explained.unwrap_or_else(|| {
        if Subcommand::from_name(stray).is_some() {
            format!("{stray}: a subcommand comes first, before all flags: proxy-init {stray} ...")
        } else {
            format!("unexpected argument \"{stray}\": a value follows its flag, as in --proxy-uid 2102")
        }
    })
}

fn explain_unknown_subcommand(word: &str) -> String {
    let similar = program()
        .try_get_matches_from([Subcommand::Install.name(), word])
        .err()
        .and_then(|error| match error.get(ContextKind::SuggestedSubcommand) {
            Some(ContextValue::Strings(similar)) => similar.first().cloned(),
            _ => None,
        });
    match similar {
        Some(similar) => format!("unknown subcommand \"{word}\", did you mean {similar}?"),
        None => format!(
            "unknown subcommand \"{word}\": there are {}",
            Subcommand::NAMED.map(Subcommand::name).join(", ")
        ),
    }
}
