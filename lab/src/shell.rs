//! Running commands and failing with their names.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::Uid;

/// The result of commands and downloads; an error is for people.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The checkout.
pub fn root() -> &'static Path {
    // lab/ is a folder of it.
    let lab = Path::new(env!("CARGO_MANIFEST_DIR"));
    lab.parent().unwrap_or(lab)
}

/// A path under target/.
pub fn target(path: &str) -> PathBuf {
    root().join("target").join(path)
}

/// The cargo that runs us, in the checkout.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(arguments);
    command
}

/// The folder of the programs to test, where this variable names one; else each test runs the program of its own build.
pub const PROGRAMS_TO_TEST: &str = "PROGRAMS_TO_TEST";

/// The program of this name to test; `of_this_build` is cargo's path of the program of the same build as the test.
pub fn program_to_test(name: &str, of_this_build: &str) -> String {
    match std::env::var(PROGRAMS_TO_TEST) {
        Ok(folder) => format!("{folder}/{name}"),
        Err(_) => of_this_build.to_owned(),
    }
}

/// Commands that must succeed.
pub trait Run {
    /// Runs it, its output going where ours goes.
    fn run(&mut self) -> Result<()>;
    /// Runs it and returns what it prints.
    fn read(&mut self) -> Result<String>;
}

impl Run for Command {
    fn run(&mut self) -> Result<()> {
        let status = self.status().map_err(|error| format!("{self:?}: {error}"))?;
        if status.success() { Ok(()) } else { Err(format!("{self:?}: {status}").into()) }
    }

    fn read(&mut self) -> Result<String> {
        let output = self.output().map_err(|error| format!("{self:?}: {error}"))?;
        if output.status.success() {
            Ok(String::from_utf8(output.stdout)?)
        } else {
            let stderr = String::from_utf8_lossy(&output.stderr);
            Err(format!("{self:?}: {}: {}", output.status, stderr.trim()).into())
        }
    }
}

/// Fails unless we are root.
pub fn need_root(what: &str, purpose: &str) -> Result<()> {
    if Uid::effective().is_root() {
        Ok(())
    } else {
        Err(format!("{what} needs root, {purpose}: run it with sudo -E env PATH=\"$PATH\"").into())
    }
}
