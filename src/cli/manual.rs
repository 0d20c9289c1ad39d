//! Help, man pages and completions, which clap makes. Nothing else knows clap: parse.rs reads the arguments.

use std::str::FromStr as _;

use clap::builder::PossibleValue;
use clap::{Arg, ArgAction, Command, ValueHint};
use clap_complete::Shell;
use clap_mangen::Man;

use super::flags::{FLAGS, Flag, Value};
use super::subcommand::{Subcommand, Word};
use crate::BUILD;

/// The whole program: what help, the man page and completions are made from.
fn program() -> Command {
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
        .args(
            FLAGS
                .iter()
                .filter(|flag| flag.is_taken_by(subcommand))
                .map(|flag| argument(flag, subcommand)),
        )
        .args(subcommand.word().map(word));
    match subcommand {
        _ if subcommand.has_version() => command.version(BUILD),
        // Two questions, of which clap would show one.
        Subcommand::Verify => command.override_usage(
            "proxy-init verify [--netns PATH] [--iptables-mode MODE] [--output FORMAT]\n       \
             proxy-init verify -p PORT -o PORT [OPTIONS]",
        ),
        _ => command,
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

fn argument(flag: &'static Flag, subcommand: Subcommand) -> Arg {
    let required = if flag.required_by.contains(&subcommand) {
        " (required)"
    } else {
        ""
    };
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
    let argument = match words.is_empty() {
        true => argument,
        false => argument.value_parser(words),
    };
    match flag.value {
        Value::Word(_) => argument,
        Value::Number(_) => argument.value_hint(ValueHint::Other),
        Value::Path(_) => argument.value_hint(ValueHint::AnyPath),
        Value::Switch(_) => argument.num_args(0..=1).require_equals(true),
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

/// What `--help` prints, or `-h`, which is shorter.
pub(super) fn help(subcommand: Subcommand, is_long: bool) -> String {
    let mut command = find(subcommand);
    let text = match is_long {
        true => command.render_long_help(),
        false => command.render_help(),
    };
    text.to_string()
}

/// What `--version` prints.
pub(super) fn version(subcommand: Subcommand) -> String {
    find(subcommand).render_version()
}

/// The section of the manual that is about programs for system administrators.
const SECTION: &str = "8";

/// The man page, in roff.
pub(super) fn man(subcommand: Subcommand) -> String {
    let man = Man::new(find(subcommand).mut_args(name_aliases))
        .section(SECTION)
        .source(concat!("proxy-init ", env!("CARGO_PKG_VERSION")))
        .manual("proxy-init manual");
    let mut page = Vec::new();
    let sections = [
        Man::render_title,
        Man::render_name_section,
        Man::render_synopsis_section,
        Man::render_description_section,
        Man::render_options_section,
    ];
    for section in sections {
        // Writing to a Vec can't fail.
        let _ = section(&man, &mut page);
    }
    let page = String::from_utf8_lossy(&page);
    // clap_mangen 0.3 leaves out an empty date, whose place the next word then takes.
    let mut page = page.replacen(&format!(" {SECTION}  "), &format!(" {SECTION} \"\" "), 1);
    if subcommand == Subcommand::Install {
        page += ".SH SUBCOMMANDS\n";
        for subcommand in Subcommand::NAMED {
            page += &entry(subcommand.name(), subcommand.about());
        }
        page += ".SH ENVIRONMENT\n";
        page += &entry("IPTABLES_MODE", "The mode, where --iptables-mode does not name one.");
        page += &entry(
            "PROXY_INIT_NO_FALLBACK",
            "Whether to fail where the mode cannot be used, where --no-fallback does not say so.",
        );
        page += &entry(
            "PATH",
            "Where legacy and plain mode look for iptables commands, unless proxy-init has more privileges than the user \
             who started it. They look in /usr/sbin, /usr/bin, /sbin and /bin then.",
        );
    }
    if subcommand == Subcommand::Validate {
        page += ".SH ENVIRONMENT\n";
        page += &entry(
            "LINKERD_VALIDATOR_LOG_FORMAT",
            "The format, where --log-format is not given.",
        );
        page += &entry(
            "LINKERD_VALIDATOR_LOG_LEVEL",
            "The level, where --log-level is not given.",
        );
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
    if subcommand == Subcommand::Install {
        page += ".SH \"SEE ALSO\"\n";
        page += "\\fBproxy\\-init man \\fISUBCOMMAND\\fR prints the page of a subcommand. iptables(8), nft(8)\n";
    } else {
        page += &format!(".SH \"SEE ALSO\"\nproxy\\-init({SECTION})\n");
    }
    page
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

/// A paragraph with its term in front.
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
    let mut script = Vec::new();
    let mut program = program();
    if shell != Shell::Bash {
        clap_complete::generate(shell, &mut program, Subcommand::Install.name(), &mut script);
        let script = String::from_utf8_lossy(&script).into_owned();
        return if shell == Shell::Fish {
            complete_fish(&script, &program)
        } else {
            script
        };
    }
    // A boolean's value comes after "=", where bash has a word of its own and the script would offer it after a blank.
    program = without_values_of_switches(program).mut_subcommands(without_values_of_switches);
    // In clap_complete 4.6 the labels of subcommands don't match where the program's name has a dash.
    clap_complete::generate(shell, &mut program, BASH_NAME, &mut script);
    String::from_utf8_lossy(&script).replace(&format!(" {BASH_NAME}\n"), " proxy-init\n")
}

/// What clap_complete 4.6 leaves out of the script for fish: the words of a flag before any subcommand, where the flag
/// that still lacks its value is an error to argparse, and the words of positional arguments.
fn complete_fish(script: &str, program: &Command) -> String {
    let parse = "    argparse -s (__fish_proxy_init_global_optspecs) -- $cmd 2>/dev/null\n";
    let parse_rest = parse
        .replace("    argparse", "    or argparse")
        .replace("$cmd", "$cmd[1..-2]");
    let mut script = script.replacen(parse, &format!("{parse}{parse_rest}"), 1);
    for subcommand in program.get_subcommands() {
        for argument in subcommand.get_positionals() {
            let words = argument.get_possible_values();
            let words: Vec<&str> = words.iter().map(PossibleValue::get_name).collect();
            if !words.is_empty() {
                script += &format!(
                    "complete -c proxy-init -n \"__fish_proxy_init_using_subcommand {}\" -f -a \"{}\"\n",
                    subcommand.get_name(),
                    words.join(" ")
                );
            }
        }
    }
    script
}

/// The program's name as a bash function may have it.
const BASH_NAME: &str = "proxy_init";

fn without_values_of_switches(command: Command) -> Command {
    command.mut_args(|argument| {
        if argument.is_require_equals_set() {
            argument
                .require_equals(false)
                .num_args(0)
                .hide_possible_values(false)
                .value_parser(clap::value_parser!(bool))
                .action(ArgAction::SetTrue)
        } else {
            argument
        }
    })
}

/// A subcommand in the whole program, so that it knows its full name.
fn find(subcommand: Subcommand) -> Command {
    let mut program = program();
    program.build();
    match program.find_subcommand(subcommand.name()) {
        Some(command) => command.clone(),
        None => program,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_finds_nothing_wrong_with_the_table() {
        program().debug_assert();
    }

    #[test]
    fn every_shell_that_is_offered_has_a_script() {
        let shells = Subcommand::Completions
            .word()
            .map(|word| word.words)
            .unwrap_or_default();
        assert_eq!(shells.len(), <Shell as clap::ValueEnum>::value_variants().len());
        for shell in shells {
            assert!(completions(shell).contains("outbound-subnets-to-ignore"), "{shell}");
        }
    }
}
