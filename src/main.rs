//! Parse, run, exit code.

use std::io::Write as _;
use std::process::ExitCode;

use proxy_init::cli::{self, Command};
use proxy_init::log::Level;

/// The run failed.
const FAILED: u8 = 1;
/// The command line can't be meant.
const BAD_INPUT: u8 = 2;

fn main() -> ExitCode {
    let (install, mut log) = match cli::parse(std::env::args_os(), std::env::var_os("IPTABLES_MODE")) {
        Ok(Command::Install(install, log)) => (install, log),
        Ok(Command::Print(text)) => return print(&text),
        Err(error) => {
            // Where nobody can read it, the exit code has to do.
            let _ = writeln!(std::io::stderr(), "error: {error}");
            return ExitCode::from(BAD_INPUT);
        }
    };
    let result = install.run(&mut log);
    if let Err(error) = &result {
        log.add(Level::Error, error);
    }
    log.flush();
    result.map_or(ExitCode::from(FAILED), |text| print(&text))
}

fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        // A reader that has seen enough is no failure.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => ExitCode::from(FAILED),
        _ => ExitCode::SUCCESS,
    }
}
