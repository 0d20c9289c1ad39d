//! Parse, run, exit code.

#![no_main] // see crates/start-up
#![allow(unsafe_code)] // for C's main to be found by its name

use std::env;
use std::ffi::{c_char, c_int};
use std::fmt::Display;
use std::fs::OpenOptions;
#[cfg(feature = "diagnose")]
use std::io::IsTerminal as _;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;

use nix::fcntl::OFlag;
use proxy_init::cli::{self, Command, Exit, UsageError};
#[cfg(feature = "diagnose")]
use proxy_init::diagnose::{Outcome, Output, error_json};
use proxy_init::error::chain;
use proxy_init::log::{self, Format, Level, Log};
use proxy_init::report;

// SAFETY: no other function of the program has this name.
#[unsafe(no_mangle)]
extern "C" fn main(count: c_int, arguments: *const *const c_char) -> c_int {
    // SAFETY: C's start-up passes these to main.
    let arguments = unsafe { start_up::start(count, arguments) };
    let exit = match cli::parse(arguments, |name| env::var_os(name)) {
        Ok(command) => run(command),
        Err(error) => refuse(error),
    };
    exit.code().into()
}

fn run(command: Command) -> Exit {
    match command {
        Command::Install(install, mut log) => finish(report::install(&install, &mut log), log, Exit::Failed),
        Command::Uninstall(uninstall, mut log) => finish(report::uninstall(&uninstall, &mut log), log, Exit::Failed),
        #[cfg(feature = "diagnose")]
        Command::Validate(validate, mut log) => finish(validate.run_logged(&mut log), log, Exit::NotValidated),
        Command::Simulate(install, simulate) => print(&install.simulate(simulate)),
        #[cfg(feature = "diagnose")]
        Command::Ask(question, output) => match question.answer(output, has_colour()) {
            Ok(answer) => match (print(&answer.text), answer.outcome) {
                (printed, Outcome::AsExpected) => printed,
                (_, Outcome::Differs) => Exit::Differs,
                (_, Outcome::NotKnown) => Exit::Failed,
            },
            Err(error) => fail(&chain(&error), Exit::Failed, output == Output::Json),
        },
        Command::Print(text) => print(&text),
    }
}

/// Ends a run whose arguments are invalid.
fn refuse(error: UsageError) -> Exit {
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
/// line on stderr; but a failed validation is only logged, as linkerd-network-validator's is, if that is possible.
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
        Ok(()) if failed == Exit::NotValidated => failed,
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
        let _ = writeln!(file, "{}", log::escaped(text));
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
    let _ = writeln!(std::io::stderr(), "error: {}", log::escaped(&text));
    exit
}

/// Returns true if stdout is a terminal whose user has not refused colours (no-color.org). A container's log keeps what
/// its terminal shows, for `kubectl logs`.
#[cfg(feature = "diagnose")]
fn has_colour() -> bool {
    let is_dumb = env::var_os("TERM").is_none_or(|terminal| terminal == "dumb");
    let is_refused = env::var_os("NO_COLOR").is_some() || env::var_os(cli::IN_A_POD).is_some();
    std::io::stdout().is_terminal() && !is_dumb && !is_refused
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
