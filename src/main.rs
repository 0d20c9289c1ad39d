//! Parse, run, exit code.

#![no_main] // see crates/start-up
#![allow(unsafe_code)] // for C's main to be found by its name

use std::env;
use std::ffi::{c_char, c_int};
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{IsTerminal as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;

use nix::fcntl::OFlag;
use proxy_init::cli::{self, Command, Exit, Output, UsageError};
use proxy_init::error::{Error, chain};
use proxy_init::log::{self, Format, Level, Log};
use proxy_init::{Detected, Explained, Recognized, Shown, Verification, detect, explain, recognize, report, show};
use serde_json::json;

// SAFETY: no other function of the program has this name.
#[unsafe(no_mangle)]
extern "C" fn main(count: c_int, arguments: *const *const c_char) -> c_int {
    // SAFETY: these are what C's start-up passes to main.
    let arguments = unsafe { start_up::start(count, arguments) };
    let exit = match cli::parse(arguments, |name| env::var_os(name)) {
        Ok(command) => run(command),
        Err(error) => refuse(&error),
    };
    exit.code().into()
}

fn run(command: Command) -> Exit {
    match command {
        Command::Install(install, mut log) => finish(report::install(&install, &mut log), log, Exit::Failed),
        Command::Uninstall(uninstall, mut log) => finish(report::uninstall(&uninstall, &mut log), log, Exit::Failed),
        Command::Validate(validate, mut log) => finish(report::validate(&validate, &mut log), log, Exit::NotValidated),
        Command::Simulate(install, simulate) => print(&install.simulate(simulate)),
        Command::Verify(install, output) => {
            let verified = install.verify();
            answer(output, verified.map(|it| (form(output, &it, Verification::json), as_asked(it.is_in_place()))))
        }
        Command::Recognize(path, mode, output) => {
            let recognized = recognize(path.as_deref(), mode);
            answer(output, recognized.map(|it| (form(output, &it, Recognized::json), as_asked(it.is_in_place()))))
        }
        Command::Show(path, output) => {
            answer(output, show(path.as_deref(), |shown| (form(output, shown, Shown::json), Exit::Done)))
        }
        Command::Explain(path, connection, expected, output) => {
            let explained = explain(path.as_deref(), &connection, |explained| {
                let text = match output {
                    Output::Short => format!("{}\n", explained.answer()),
                    _ => form(output, explained, Explained::json),
                };
                (text, as_asked(expected.is_none_or(|expected| expected.is(&explained.verdict))))
            });
            answer(output, explained)
        }
        Command::Detect(path, output) => {
            answer(output, detect(path.as_deref()).map(|it| (form(output, &it, Detected::json), Exit::Done)))
        }
        Command::Print(text) => print(&text),
    }
}

fn as_asked(is_same: bool) -> Exit {
    if is_same { Exit::Done } else { Exit::Differs }
}

/// Prints what a subcommand has found, which is in the form that was asked for, or the error in that form.
fn answer(output: Output, ruleset: Result<(String, Exit), Error>) -> Exit {
    match ruleset {
        Ok((text, exit)) => match print(&text) {
            printed if exit == Exit::Done => printed,
            _ => exit,
        },
        Err(error) => fail(&chain(&error), Exit::Failed, output),
    }
}

/// Ends a run whose arguments are invalid.
fn refuse(error: &UsageError) -> Exit {
    match error.log {
        Some(Format::Json) => finish(Err(error), Log::new(Format::Json, Level::Error), Exit::BadInput),
        // Stdout may be another program's input: --simulate is.
        Some(Format::Plain) => {
            leave_message(&error.to_string());
            fail(error, Exit::BadInput, Output::Text)
        }
        None => fail(error, Exit::BadInput, error.output),
    }
}

/// Ends a run that keeps a log on stdout. An error is the log's last line, the container's termination message, and a
/// line on stderr; but a failed validation is only logged, as linkerd-network-validator's is, if that is possible.
fn finish(result: Result<(), impl std::error::Error>, mut log: Log, failed: Exit) -> Exit {
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
        Ok(()) if failed == Exit::NotValidated => failed,
        _ => fail(&error, failed, Output::Text),
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
        let _ = writeln!(file, "{}", log::escaped(text));
    }
}

/// Reports an error as one line on stderr, and on stdout as JSON too where that was asked for (docs/errors.md has the
/// schema). If both are closed, only the exit code remains.
fn fail(error: &impl Display, exit: Exit, output: Output) -> Exit {
    let text = error.to_string();
    if output == Output::Json {
        let report = json!({"schema": 1, "error": {"message": text, "exit_code": exit.code()}});
        print(&format!("{report}\n"));
    }
    let _ = writeln!(std::io::stderr(), "error: {}", log::escaped(&text));
    exit
}

/// The form that was asked for: text for people, or JSON on a line of its own.
fn form<T: Display>(output: Output, answer: &T, json: impl FnOnce(&T) -> String) -> String {
    match output {
        Output::Text | Output::Short => for_people(answer),
        Output::Json => json(answer) + "\n",
    }
}

/// With colours, if stdout is a terminal and its user has not refused them (no-color.org). A container's log keeps what
/// its terminal shows, for `kubectl logs`.
fn for_people(answer: &impl Display) -> String {
    let is_dumb = env::var_os("TERM").is_none_or(|terminal| terminal == "dumb");
    let is_refused = env::var_os("NO_COLOR").is_some() || env::var_os(cli::IN_A_POD).is_some();
    let has_colour = std::io::stdout().is_terminal() && !is_dumb && !is_refused;
    if has_colour { format!("{answer:#}") } else { answer.to_string() }
}

fn print(text: &str) -> Exit {
    match log::print(text) {
        // A reader that has seen enough is no failure.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            let _ = writeln!(std::io::stderr(), "error: cannot write to stdout: {error}");
            Exit::Failed
        }
        _ => Exit::Done,
    }
}
