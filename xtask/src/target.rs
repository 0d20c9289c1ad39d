//! The compiler and the libraries of the programs that ship. They are linked with musl: an empty program starts in a third of
//! the time that it takes with glibc, and a static glibc loads the node's own modules to look a name up.

use std::sync::Mutex;

use lab::architecture::Architecture;
use lab::shell::Result;

use crate::c_libraries::Libraries;
use crate::rust::Rust;

/// The parts of programs for an architecture.
pub(crate) struct Target {
    pub(crate) architecture: Architecture,
    pub(crate) rust: Rust,
    pub(crate) libraries: Libraries,
}

impl Target {
    /// Rust's name for it.
    pub(crate) fn triple(&self) -> String {
        format!("{}-unknown-linux-musl", self.architecture.machine())
    }
}

/// Fetches the parts for an architecture, once in each process.
pub(crate) fn of(architecture: Architecture) -> Result<&'static Target> {
    static FETCHED: Mutex<Vec<&Target>> = Mutex::new(Vec::new());
    let mut fetched = FETCHED.lock().map_err(|error| error.to_string())?;
    if let Some(target) = fetched.iter().find(|target| target.architecture == architecture) {
        return Ok(target);
    }
    let (rust, libraries) = (Rust::get()?, Libraries::for_musl(architecture)?);
    eprintln!("xtask: {}: linking with musl, by {rust}", architecture.name());
    let target = Box::leak(Box::new(Target { architecture, rust, libraries }));
    fetched.push(target);
    Ok(target)
}
