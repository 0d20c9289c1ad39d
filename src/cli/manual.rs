//! Help and completions, which clap makes. Nothing else knows clap: flags/given.rs reads the arguments.

use std::str::FromStr as _;

use clap::{Arg, ArgAction, Command, ValueHint};
use clap_complete::Shell;

use crate::BUILD;
use crate::flags::install::INSTALL;
use crate::flags::{Flag, PROGRAM, Subcommand, ValueForm, Word};

/// The whole program, from which help and completions are made.
fn program(all: &[&'static Subcommand]) -> Command {
    command(&INSTALL)
        .subcommands(named(all).map(command))
        .disable_help_subcommand(true)
        .args_conflicts_with_subcommands(true)
        .subcommand_value_name("SUBCOMMAND")
        .subcommand_help_heading("Subcommands")
}

fn named(all: &[&'static Subcommand]) -> impl Iterator<Item = &'static Subcommand> {
    all.iter().copied().filter(|subcommand| !subcommand.is_program())
}

fn command(subcommand: &'static Subcommand) -> Command {
    let command = Command::new(subcommand.name)
        .about(subcommand.about)
        .long_about(format!("{}\n\n{}", subcommand.about, subcommand.details))
        .after_help(after_help(subcommand))
        .args((subcommand.flags)().into_iter().map(argument))
        .args(subcommand.word.as_ref().map(word));
    match subcommand.usages {
        _ if subcommand.has_version => command.version(BUILD),
        [] => command,
        usages => command.override_usage(usages.join("\n       ")),
    }
}

fn after_help(subcommand: &Subcommand) -> String {
    let mut text = String::new();
    for (line, what) in subcommand.examples {
        text += &format!("Example: {what}\n  {}\n\n", line.replace('\n', "\n  "));
    }
    text += "Exit codes:";
    let exits = subcommand.exits;
    let width = exits.iter().map(|(exit, _)| exit.code().to_string().len()).max();
    for (exit, meaning) in exits {
        let (code, width) = (exit.code(), width.unwrap_or_default());
        text += &format!("\n  {code:<width$}  {meaning}");
    }
    text
}

fn argument(flag: Flag) -> Arg {
    let required = if flag.is_required { " (required)" } else { "" };
    let argument = Arg::new(flag.name)
        .long(flag.name)
        .short(flag.short)
        .visible_aliases(flag.alias)
        .value_name(flag.placeholder)
        .help(format!("{}{required}", flag.help))
        .help_heading(flag.heading)
        .hide_possible_values(true)
        // Beside the longest flag, 80 columns leave no room.
        .next_line_help(true)
        .action(ArgAction::Append);
    let words = (flag.words)();
    match flag.form {
        ValueForm::Switch => {
            let words = if words.is_empty() { vec!["true", "false"] } else { words };
            argument.num_args(0..=1).require_equals(true).value_parser(words)
        }
        _ if !words.is_empty() => argument.value_parser(words),
        ValueForm::Path => argument.value_hint(ValueHint::AnyPath),
        ValueForm::Word => argument,
        ValueForm::Number => argument.value_hint(ValueHint::Other),
    }
}

fn word(word: &Word) -> Arg {
    let words = (word.words)();
    // Help has a list of all subcommands anyway.
    let is_said = word.missing.is_none() || words.iter().all(|each| word.help.contains(each));
    Arg::new("word")
        .value_name(word.placeholder)
        .hide_possible_values(is_said)
        .value_parser(words)
        .required(word.missing.is_some())
        .help(word.help)
}

/// The text of `--help`, or of `-h`, which is shorter.
pub(super) fn help(all: &[&'static Subcommand], subcommand: &Subcommand, is_long: bool) -> String {
    let mut command = find(all, subcommand);
    if is_long { command.render_long_help().to_string() } else { command.render_help().to_string() }
}

pub(super) fn version(all: &[&'static Subcommand], subcommand: &Subcommand) -> String {
    find(all, subcommand).render_version()
}

/// A shell's completion script; nothing for a shell that is not known.
pub(super) fn completions(all: &[&'static Subcommand], shell: &str) -> String {
    let Ok(shell) = Shell::from_str(shell) else {
        return String::new();
    };
    // In clap_complete 4.6, bash's labels of subcommands don't match where the program's name has a dash.
    let name = if shell == Shell::Bash { "proxy_init" } else { PROGRAM };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut program(all), name, &mut script);
    let script = String::from_utf8_lossy(&script).replace(" proxy_init\n", " proxy-init\n");
    // For zsh, it doesn't escape the colon in a placeholder, which ends it there.
    script.replace(":ADDRESS:PORT:", ":ADDRESS\\:PORT:").replace(":ADDRESS[:PORT]:", ":ADDRESS[\\:PORT]:")
}

/// A subcommand in the whole program, so that it knows its full name.
fn find(all: &[&'static Subcommand], subcommand: &Subcommand) -> Command {
    let mut program = program(all);
    program.build();
    program.find_subcommand(subcommand.name).cloned().unwrap_or(program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{COMPLETIONS, all};

    #[test]
    fn clap_finds_nothing_wrong_with_the_table() {
        program(&all()).debug_assert();
    }

    #[test]
    fn zsh_reads_placeholders_whole() {
        let script = completions(&all(), "zsh");
        for placeholder in [r":ADDRESS\:PORT:_default'", r":ADDRESS[\:PORT]:_default'"] {
            assert!(script.contains(placeholder), "{script}");
        }
    }

    #[test]
    fn every_shell_that_is_offered_has_a_script() {
        let completions_takes = COMPLETIONS.word.as_ref().unwrap().words;
        for shell in completions_takes() {
            assert!(completions(&all(), shell).contains("outbound-subnets-to-ignore"), "{shell}");
        }
    }
}
