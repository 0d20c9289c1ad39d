//! Help, man pages and completions, which clap makes. Nothing else knows clap: parse.rs reads the arguments.

use std::str::FromStr as _;

use clap::{Arg, ArgAction, Command, ValueHint};
use clap_complete::Shell;
use clap_mangen::Man;

use super::flags::{Flag, Value, taken_by};
use super::subcommand::{Subcommand, Word};
use crate::BUILD;

/// The whole program: what help, the man page and completions are made from.
fn program() -> Command {
    command(Subcommand::Install)
        .subcommands(Subcommand::NAMED.iter().map(|named| command(named.1)))
        .disable_help_subcommand(true)
        .args_conflicts_with_subcommands(true)
        .subcommand_value_name("SUBCOMMAND")
        .subcommand_help_heading("Subcommands")
}

fn command(subcommand: Subcommand) -> Command {
    let command = Command::new(subcommand.name())
        .about(subcommand.about())
        .long_about(format!("{}\n\n{}", subcommand.about(), subcommand.details()))
        .after_help(after_help(subcommand))
        .args(taken_by(subcommand).map(|flag| argument(flag, subcommand)))
        .args(subcommand.word().map(word));
    match subcommand.usages() {
        _ if subcommand.has_version() => command.version(BUILD),
        Some(usages) => command.override_usage(usages.join("\n       ")),
        None => command,
    }
}

fn after_help(subcommand: Subcommand) -> String {
    let mut text = String::new();
    for (line, what) in subcommand.examples() {
        text += &format!("Example: {what}\n  {}\n\n", line.replace('\n', "\n  "));
    }
    text += "Exit codes:";
    let exits = subcommand.exits();
    let width = exits.iter().map(|(exit, _)| exit.code().to_string().len()).max();
    for (exit, meaning) in exits {
        let (code, width) = (exit.code(), width.unwrap_or_default());
        text += &format!("\n  {code:<width$}  {meaning}");
    }
    text
}

fn argument(flag: Flag, subcommand: Subcommand) -> Arg {
    let is_required = flag.required_by.contains(&subcommand);
    let required = if is_required { " (required)" } else { "" };
    let argument = Arg::new(flag.name)
        .long(flag.name)
        .short(flag.short)
        .visible_aliases(flag.alias)
        .value_name(flag.placeholder())
        .help(format!("{}{required}", flag.help))
        .help_heading(flag.heading)
        .hide_possible_values(true)
        // Beside the longest flag, 80 columns leave no room.
        .next_line_help(true)
        .action(ArgAction::Append);
    let words = (flag.words)(subcommand);
    match flag.value {
        _ if flag.is_switch() => {
            let words = if words.is_empty() { vec!["true", "false"] } else { words };
            argument.num_args(0..=1).require_equals(true).value_parser(words)
        }
        _ if !words.is_empty() => argument.value_parser(words),
        Value::Path(..) => argument.value_hint(ValueHint::AnyPath),
        Value::Word(..) => argument,
        _ => argument.value_hint(ValueHint::Other),
    }
}

fn word(word: Word) -> Arg {
    // Help has a list of all subcommands anyway.
    let is_said = word.missing.is_none() || word.words.iter().all(|each| word.help.contains(each));
    Arg::new("word")
        .value_name(word.placeholder)
        .hide_possible_values(is_said)
        .value_parser(word.words)
        .required(word.missing.is_some())
        .help(word.help)
}

/// The text of `--help`, or of `-h`, which is shorter.
pub(super) fn help(subcommand: Subcommand, is_long: bool) -> String {
    let mut command = find(subcommand);
    if is_long { command.render_long_help().to_string() } else { command.render_help().to_string() }
}

pub(super) fn version(subcommand: Subcommand) -> String {
    find(subcommand).render_version()
}

/// The section of the manual that is about programs for system administrators.
const SECTION: &str = "8";

pub(super) fn man(subcommand: Subcommand) -> String {
    let man = Man::new(find(subcommand).mut_args(name_aliases))
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
    if subcommand == Subcommand::Install {
        page += ".SH SUBCOMMANDS\n";
        for &(name, subcommand) in Subcommand::NAMED {
            page += &entry(name, subcommand.about());
        }
    }
    let variables: Vec<Flag> = taken_by(subcommand).filter(|flag| flag.variable.is_some()).collect();
    if !variables.is_empty() || !subcommand.environment().is_empty() {
        page += ".SH ENVIRONMENT\n";
    }
    for flag in variables {
        let meaning = format!("The value of --{}, where it is not given.", flag.name);
        page += &entry(flag.variable.unwrap_or_default(), &meaning);
    }
    for (variable, meaning) in subcommand.environment() {
        page += &entry(variable, meaning);
    }
    page += ".SH \"EXIT STATUS\"\n";
    for (exit, meaning) in subcommand.exits() {
        page += &entry(&exit.code().to_string(), meaning);
    }
    page += ".SH EXAMPLES\n";
    let examples = subcommand.examples().iter();
    let examples =
        examples.map(|(line, what)| format!("To {}:\n.PP\n.nf\n.RS\n{}\n.RE\n.fi\n", roff(what), roff(line)));
    page += &examples.collect::<Vec<_>>().join(".PP\n");
    page += ".SH \"SEE ALSO\"\n";
    page += match subcommand {
        Subcommand::Install => {
            "\\fBproxy\\-init man \\fISUBCOMMAND\\fR prints the page of a subcommand. iptables(8), nft(8)\n"
        }
        _ => "proxy\\-init(8)\n",
    };
    page
}

/// The command line with each flag's value, which clap_mangen 0.3 leaves out.
fn synopsis(subcommand: Subcommand) -> String {
    if let Some(usages) = subcommand.usages() {
        return format!(".SH SYNOPSIS\n{}\n", roff(&usages.join("\n.br\n")));
    }
    let mut text = ".SH SYNOPSIS\n\\fBproxy\\-init".to_owned();
    if subcommand != Subcommand::Install {
        text += &format!(" {}", subcommand.name());
    }
    text += "\\fR";
    if let Some(word) = subcommand.word() {
        text += &format!(" {}", roff(&word.what()));
    }
    for flag in taken_by(subcommand) {
        let (name, value) = (roff(flag.name), roff(flag.placeholder()));
        text += &if flag.is_switch() {
            format!(" [\\fB\\-\\-{name}\\fR[=\\fI{value}\\fR]]")
        } else if flag.required_by.contains(&subcommand) {
            format!(" \\fB\\-\\-{name}\\fR\\ \\fI{value}\\fR")
        } else {
            format!(" [\\fB\\-\\-{name}\\fR\\ \\fI{value}\\fR]")
        };
    }
    if subcommand == Subcommand::Install {
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
pub(super) fn completions(shell: &str) -> String {
    let Ok(shell) = Shell::from_str(shell) else {
        return String::new();
    };
    // In clap_complete 4.6, bash's labels of subcommands don't match where the program's name has a dash.
    let name = if shell == Shell::Bash { "proxy_init" } else { Subcommand::Install.name() };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut program(), name, &mut script);
    let script = String::from_utf8_lossy(&script).replace(" proxy_init\n", " proxy-init\n");
    // For zsh, it doesn't escape the colon in a placeholder, which ends it there.
    script.replace(":ADDRESS:PORT:", ":ADDRESS\\:PORT:").replace(":ADDRESS[:PORT]:", ":ADDRESS[\\:PORT]:")
}

/// A subcommand in the whole program, so that it knows its full name.
fn find(subcommand: Subcommand) -> Command {
    let mut program = program();
    program.build();
    program.find_subcommand(subcommand.name()).cloned().unwrap_or(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_finds_nothing_wrong_with_the_table() {
        program().debug_assert();
    }

    #[test]
    fn zsh_reads_placeholders_whole() {
        let script = completions("zsh");
        for placeholder in [r":ADDRESS\:PORT:_default'", r":ADDRESS[\:PORT]:_default'"] {
            assert!(script.contains(placeholder), "{script}");
        }
    }

    #[test]
    fn every_shell_that_is_offered_has_a_script() {
        let shells = Subcommand::Completions.word().map(|word| word.words).unwrap_or_default();
        assert!(!shells.is_empty());
        for shell in shells {
            assert!(completions(shell).contains("outbound-subnets-to-ignore"), "{shell}");
        }
    }
}
