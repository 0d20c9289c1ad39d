//! Help, man pages and completions, which clap makes. Nothing else knows clap: flags/given.rs reads the arguments.

use std::str::FromStr as _;

use clap::{Arg, ArgAction, Command, ValueHint};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::BUILD;
use crate::flags::install::INSTALL;
use crate::flags::{Flag, PROGRAM, Subcommand, ValueForm, Word};

/// The whole program, from which help, the man page and completions are made.
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

/// The section of the manual that is about programs for system administrators.
const SECTION: &str = "8";

pub(super) fn man(all: &[&'static Subcommand], subcommand: &Subcommand) -> String {
    let man = Man::new(find(all, subcommand).mut_args(name_aliases))
        .section(SECTION)
        .source(concat!("proxy-init ", env!("CARGO_PKG_VERSION")))
        .manual("proxy-init manual");
    let mut page = Vec::new();
    // Writing to a Vec can't fail.
    let _ = man.render_title(&mut page);
    let _ = man.render_name_section(&mut page);
    page.extend(synopsis(subcommand).into_bytes());
    let _ = man.render_description_section(&mut page);
    let _ = man.render_options_section(&mut page);
    let page = String::from_utf8_lossy(&page);
    // clap_mangen 0.3 leaves out an empty date, whose place the next word then takes.
    let mut page = page.replacen(&format!(" {SECTION}  "), &format!(" {SECTION} \"\" "), 1);
    if subcommand.is_program() {
        page += ".SH SUBCOMMANDS\n";
        for subcommand in named(all) {
            page += &entry(subcommand.name, subcommand.about);
        }
    }
    let mut variables = (subcommand.flags)();
    variables.retain(|flag| flag.variable.is_some());
    if !variables.is_empty() || !subcommand.environment.is_empty() {
        page += ".SH ENVIRONMENT\n";
    }
    for flag in variables {
        let meaning = format!("The value of --{}, where it is not given.", flag.name);
        page += &entry(flag.variable.unwrap_or_default(), &meaning);
    }
    for (variable, meaning) in subcommand.environment {
        page += &entry(variable, meaning);
    }
    page += ".SH \"EXIT STATUS\"\n";
    for (exit, meaning) in subcommand.exits {
        page += &entry(&exit.code().to_string(), meaning);
    }
    page += ".SH EXAMPLES\n";
    let examples = subcommand.examples.iter();
    let examples =
        examples.map(|(line, what)| format!("To {}:\n.PP\n.nf\n.RS\n{}\n.RE\n.fi\n", roff(what), roff(line)));
    page += &examples.collect::<Vec<_>>().join(".PP\n");
    page += ".SH \"SEE ALSO\"\n";
    page += if subcommand.is_program() {
        "\\fBproxy\\-init man \\fISUBCOMMAND\\fR prints the page of a subcommand. iptables(8), nft(8)\n"
    } else {
        "proxy\\-init(8)\n"
    };
    page
}

/// The command line with each flag's value, which clap_mangen 0.3 leaves out.
fn synopsis(subcommand: &Subcommand) -> String {
    if !subcommand.usages.is_empty() {
        return format!(".SH SYNOPSIS\n{}\n", roff(&subcommand.usages.join("\n.br\n")));
    }
    let mut text = ".SH SYNOPSIS\n\\fBproxy\\-init".to_owned();
    if !subcommand.is_program() {
        text += &format!(" {}", subcommand.name);
    }
    text += "\\fR";
    if let Some(word) = &subcommand.word {
        text += &format!(" {}", roff(&word.in_help()));
    }
    for flag in (subcommand.flags)() {
        let (name, value) = (roff(flag.name), roff(flag.placeholder));
        text += &if flag.is_switch() {
            format!(" [\\fB\\-\\-{name}\\fR[=\\fI{value}\\fR]]")
        } else if flag.is_required {
            format!(" \\fB\\-\\-{name}\\fR\\ \\fI{value}\\fR")
        } else {
            format!(" [\\fB\\-\\-{name}\\fR\\ \\fI{value}\\fR]")
        };
    }
    if subcommand.is_program() {
        text += "\n.br\n\\fBproxy\\-init \\fISUBCOMMAND\\fR ...";
    }
    text + "\n"
}

/// clap_mangen 0.3 leaves aliases out.
fn name_aliases(argument: Arg) -> Arg {
    let aliases = argument.get_visible_aliases().unwrap_or_default();
    match (aliases.first(), argument.get_help()) {
        (Some(alias), Some(help)) => {
            let help = format!("{help} [alias: --{alias}]");
            argument.help(help)
        }
        _ => argument,
    }
}

fn entry(term: &str, text: &str) -> String {
    format!(".TP\n\\fB{}\\fR\n{}\n", roff(term), roff(text))
}

/// Text as roff prints it: a backslash and a dash are commands otherwise.
fn roff(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
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
