//! Runs commands, and puts their outcome into words: on stdout, on stderr, in the log and in the container's termination
//! message.

use std::env;
use std::fmt::Display;
use std::fs::OpenOptions;
#[cfg(feature = "diagnose")]
use std::io::IsTerminal as _;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;

use nix::fcntl::OFlag;
use ruleset::{Family, Table, TableFamily};

use super::{Command, UsageError};
#[cfg(feature = "diagnose")]
use crate::diagnose::{Colour, Conclusion, Output, Page, error_json};
use crate::error::{Error, chain};
use crate::flags::Exit;
use crate::flags::install::IN_A_POD;
use crate::install::{Install, Installed};
use crate::log::{Format, Level, Log, escaped, print as write_out};
use crate::notice::{OperationNotice, Warning};
use crate::uninstall::Uninstall;

/// Runs a command, and tells its user the outcome; an answer for people in lines that fit so many columns of a terminal.
#[cfg_attr(not(feature = "diagnose"), expect(unused_variables, reason = "only the diagnosis prints answers"))]
pub fn run(command: Command, columns: Option<u16>) -> Exit {
    match command {
        Command::Install(asked, mut log) => {
            let installed = asked.run_with(|notice| add(&mut log, &notice));
            finish(installed.map(|installed| log_installed(&mut log, &asked, &installed)), log, Exit::Failed)
        }
        Command::Uninstall(asked, mut log) => finish(uninstall(&asked, &mut log), log, Exit::Failed),
        #[cfg(feature = "diagnose")]
        Command::Validate(validate, mut log) => finish(validate.run(&mut log), log, Exit::NotValidated),
        Command::Simulate(install, simulate) => print(&install.simulate(simulate)),
        #[cfg(feature = "diagnose")]
        Command::Ask(question, output, colour) => {
            match question.answer(output, &Page::new(has_colour(colour), columns)) {
                Ok(answer) => match (print(&answer.text), answer.conclusion) {
                    (printed, Conclusion::AsExpected) => printed,
                    (_, Conclusion::Differs) => Exit::Differs,
                    (_, Conclusion::NotKnown) => Exit::Failed,
                },
                Err(error) => fail(&chain(&error), Exit::Failed, output == Output::Json),
            }
        }
        Command::Print(text) => print(&text),
    }
}

fn log_installed(log: &mut Log, install: &Install, installed: &Installed) {
    if let Some(seconds) = install.close_wait_timeout {
        log.add(Level::Info, format_args!("net.netfilter.nf_conntrack_tcp_timeout_close_wait = {seconds}"));
    }
    for table in &installed.tables {
        for chain in &table.chains {
            log.add(Level::Info, format_args!("{table} {}: {} rules", chain.name, chain.rules.len()));
        }
    }
    // Except in legacy mode, no such command has run.
    installed.commands(|command| log.add(Level::Debug, command));
    let (rules, mode) = (installed.rules(), installed.mode);
    let families = match installed.tables.as_slice() {
        [Table { family: TableFamily::Ip(only), .. }] => only.to_string(),
        _ if install.config.ipv6 => "IPv4 and IPv6".to_owned(),
        _ => Family::V4.to_string(),
    };
    let what = format_args!("{rules} rules in {mode} mode for {families}");
    if installed.changed {
        let took = installed.took.as_micros();
        log.add(Level::Info, format_args!("installed {what} in {took} microseconds"));
    } else {
        // The timeout was set, and may have been another before.
        let unchanged = install.close_wait_timeout.map_or("nothing", |_| "no rule");
        log.add(Level::Info, format_args!("the {what} were installed already; {unchanged} was changed"));
    }
}

/// Removes the rules, and logs the changes.
fn uninstall(uninstall: &Uninstall, log: &mut Log) -> Result<(), Error> {
    let uninstalled = uninstall.run_with(|notice| add(log, &notice))?;
    let hidden = uninstalled.warnings.iter().any(|warning| matches!(warning, Warning::LegacyUnseen(_)));
    let seen = if hidden { " in nf_tables" } else { "" };
    log.add(Level::Info, format_args!("no proxy-init rules are left{seen}"));
    Ok(())
}

fn add(log: &mut Log, notice: &OperationNotice<'_>) {
    match notice {
        OperationNotice::Chose(mode, reason) => {
            log.add(Level::Info, format_args!("auto: {mode} mode, because {reason}"))
        }
        OperationNotice::Warning(warning) => log.add(Level::Warning, warning),
        OperationNotice::LegacyUnseen(unseen) => log.add(Level::Info, Warning::LegacyUnseen((*unseen).clone())),
        OperationNotice::RunningCommands { waits } => {
            let waits = if *waits { ", waiting for the xtables lock" } else { "" };
            log.add(Level::Info, format_args!("running the iptables commands of legacy mode{waits}"));
            // The next step may take long, so the log is shown before.
            let _ = log.flush();
        }
        OperationNotice::Removed(mode) => {
            log.add(Level::Info, format_args!("removed the rules of {mode} mode"));
            // The next backend may wait for the kernel, or for a lock.
            let _ = log.flush();
        }
    }
}

/// Ends a run whose arguments are invalid.
pub fn refuse(error: UsageError) -> Exit {
    match error.log {
        Some(Format::Json) => finish(Err(error), Log::new(Format::Json, Level::Error), Exit::BadInput),
        // Stdout may be another program's input: --simulate is.
        Some(Format::Plain) => {
            leave_message(&error.to_string());
            fail(&error, Exit::BadInput, false)
        }
        None => fail(&error, Exit::BadInput, error.as_json),
    }
}

/// Ends a run that keeps a log on stdout. An error is the log's last line, the container's termination message, and a
/// line on stderr. In a pod, whose log has both, it is only logged, if that is possible; so is a failed validation, as
/// linkerd-network-validator's is.
fn finish(result: Result<(), impl std::error::Error + 'static>, mut log: Log, failed: Exit) -> Exit {
    let Err(error) = result else {
        // If it cannot be written, the exit code remains.
        let _ = log.flush();
        return Exit::Done;
    };
    let error = chain(&error).to_string();
    log.add(Level::Error, &error);
    let logged = log.flush();
    leave_message(&error);
    match logged {
        Ok(()) if failed == Exit::NotValidated || env::var_os(IN_A_POD).is_some() => failed,
        _ => fail(&error, failed, false),
    }
}

/// Writes a line where kubelet looks for a container's termination message, if it has made that file. Otherwise it
/// shows the end of stdout and stderr together, or nothing, as terminationMessagePolicy says.
fn leave_message(text: &str) {
    let mut options = OpenOptions::new();
    // Whatever else may be there: it is not waited for, and no link is followed.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
    options.write(true).truncate(true).custom_flags(flags.bits());
    if let Ok(mut file) = options.open("/dev/termination-log") {
        let _ = writeln!(file, "{}", escaped(text));
    }
}

/// Reports an error as one line on stderr, and on stdout as JSON too where that was asked for. If both are closed, only the
/// exit code remains.
fn fail(error: &impl Display, exit: Exit, as_json: bool) -> Exit {
    let text = error.to_string();
    if as_json {
        #[cfg(feature = "diagnose")]
        print(&error_json(&text, exit.code()));
    }
    let _ = writeln!(std::io::stderr(), "error: {}", escaped(&text));
    exit
}

/// Returns true if colours are wanted: by default, if stdout is a terminal whose user has not refused them (no-color.org). A
/// container's log keeps what its terminal shows, for `kubectl logs`.
#[cfg(feature = "diagnose")]
fn has_colour(colour: Colour) -> bool {
    if colour != Colour::Auto {
        return colour == Colour::Always;
    }
    let is_dumb = env::var_os("TERM").is_none_or(|terminal| terminal == "dumb");
    let is_refused = env::var_os("NO_COLOR").is_some() || env::var_os(IN_A_POD).is_some();
    std::io::stdout().is_terminal() && !is_dumb && !is_refused
}

fn print(text: &str) -> Exit {
    match write_out(text) {
        // A reader that has seen enough is no failure.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            let _ = writeln!(std::io::stderr(), "error: cannot write to stdout: {error}");
            Exit::Failed
        }
        _ => Exit::Done,
    }
}
