//! Parse, run, exit code.

// Rust's own start-up takes 85 µs, of the 900 µs of a whole run: it reads /proc/self/maps to tell a stack overflow from
// other crashes. Without it, `main` is C's.
#![no_main]
#![allow(unsafe_code)] // for C's main to be found by its name

use std::ffi::{c_char, c_int};
use std::io::Write as _;

use proxy_init::cli::{self, Command};
use proxy_init::log::Level;
use proxy_init::start_up;

/// All is as asked.
const DONE: c_int = 0;
/// The run failed.
const FAILED: c_int = 1;
/// The command line can't be meant.
const BAD_INPUT: c_int = 2;

// SAFETY: no other function of the program has this name.
#[unsafe(no_mangle)]
extern "C" fn main(_: c_int, _: *const *const c_char) -> c_int {
    start_up::prepare();
    let (install, mut log) = match cli::parse(std::env::args_os(), std::env::var_os("IPTABLES_MODE")) {
        Ok(Command::Install(install, log)) => (install, log),
        Ok(Command::Print(text)) => return print(&text),
        Err(error) => {
            // Where nobody can read it, the exit code has to do.
            let _ = writeln!(std::io::stderr(), "error: {error}");
            return BAD_INPUT;
        }
    };
    let result = install.run(&mut log);
    if let Err(error) = &result {
        log.add(Level::Error, error);
    }
    log.flush();
    result.map_or(FAILED, |text| print(&text))
}

fn print(text: &str) -> c_int {
    let mut stdout = std::io::stdout();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        // A reader that has seen enough is no failure.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => FAILED,
        _ => DONE,
    }
}
