//! Parse, run, exit code.

// Rust's own start-up takes 85 µs, of the 900 µs of a whole run: it reads /proc/self/maps to tell a stack overflow from
// other crashes. Without it, `main` is C's.
#![no_main]
#![allow(unsafe_code)] // for C's main to be found by its name

use std::ffi::{c_char, c_int};
use std::io::Write as _;

use proxy_init::cli::{self, Command, Output};
use proxy_init::error::chain;
use proxy_init::log::{Level, Log};
use proxy_init::operate::detect;
use proxy_init::{Error, report, start_up};

/// All is as asked.
const DONE: c_int = 0;
/// The run failed.
const FAILED: c_int = 1;
/// The command line can't be meant.
const BAD_INPUT: c_int = 2;
/// The rules are not those that the flags ask for.
const NOT_IN_PLACE: c_int = 3;

// SAFETY: no other function of the program has this name.
#[unsafe(no_mangle)]
extern "C" fn main(_: c_int, _: *const *const c_char) -> c_int {
    start_up::prepare();
    match cli::parse(std::env::args_os(), std::env::var_os("IPTABLES_MODE")) {
        Ok(Command::Install(install, mut log)) => {
            let result = report::install(&install, &mut log);
            finish(result, log)
        }
        Ok(Command::Uninstall(uninstall, mut log)) => {
            let result = report::uninstall(&uninstall, &mut log);
            finish(result, log)
        }
        Ok(Command::Simulate(install)) => print(&install.simulate(None)),
        Ok(Command::Verify(install, output)) => match install.verify() {
            Ok(verdict) => {
                let printed = print(&match output {
                    Output::Text => verdict.to_string(),
                    Output::Json => format!("{}\n", verdict.json()),
                });
                if verdict.is_in_place() { printed } else { NOT_IN_PLACE }
            }
            Err(error) => complain(&error, FAILED),
        },
        Ok(Command::Detect(path, output)) => match detect::report(path.as_deref()) {
            Ok(report) => print(&match output {
                Output::Text => report.to_string(),
                Output::Json => format!("{}\n", report.json()),
            }),
            Err(error) => complain(&error, FAILED),
        },
        Ok(Command::Print(text)) => print(&text),
        Err(error) => complain(&error, BAD_INPUT),
    }
}

/// Ends a run that keeps a log: an error is its last line.
fn finish(result: Result<(), Error>, mut log: Log) -> c_int {
    if let Err(error) = &result {
        log.add(Level::Error, chain(error));
    }
    log.flush();
    result.map_or(FAILED, |()| DONE)
}

/// Where nobody can read it, the exit code has to do.
fn complain(error: &dyn std::error::Error, code: c_int) -> c_int {
    let _ = writeln!(std::io::stderr(), "error: {}", chain(error));
    code
}

fn print(text: &str) -> c_int {
    let mut stdout = std::io::stdout();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        // A reader that has seen enough is no failure.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => FAILED,
        _ => DONE,
    }
}
