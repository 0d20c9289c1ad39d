//! The C library of programs: one decision, which every command goes by, and which says its choice.
//!
//! musl, because an empty program starts in a third of the time that it takes with glibc. glibc only where musl can't
//! be had.

use std::sync::Mutex;

use lab::shell::Result;

use crate::c_libraries::Libraries;
use crate::rust::Rust;
use lab::architecture::Architecture;

/// The C library and linker of programs for an architecture.
pub(crate) struct Target {
    pub(crate) architecture: Architecture,
    pub(crate) libc: Libc,
    /// Why it isn't musl, with which programs ship.
    pub(crate) no_musl: Option<String>,
}

pub(crate) enum Libc {
    /// Statically with musl, for which the compiler makes Rust's standard library.
    Musl(Rust, Libraries),
    /// Statically with this machine's glibc.
    Glibc(Libraries),
    /// Dynamically with this machine's glibc.
    Dynamic,
}

impl Target {
    /// Rust's name for it.
    pub(crate) fn triple(&self) -> String {
        let libc = match self.libc {
            Libc::Musl(..) => "musl",
            Libc::Glibc(_) | Libc::Dynamic => "gnu",
        };
        format!("{}-unknown-linux-{libc}", self.architecture.machine())
    }
}

/// Decides what programs for an architecture are linked with, after fetching what that takes, and says so. The first
/// decision for an architecture holds for as long as this process runs.
///
/// # Errors
/// musl can't be had for another architecture than this machine's.
pub(crate) fn of(architecture: Architecture) -> Result<&'static Target> {
    static CHOSEN: Mutex<Vec<&Target>> = Mutex::new(Vec::new());
    let mut chosen = CHOSEN.lock().map_err(|error| error.to_string())?;
    if let Some(target) = chosen.iter().find(|target| target.architecture == architecture) {
        return Ok(target);
    }
    let target = Box::leak(Box::new(choose(architecture)?));
    chosen.push(target);
    Ok(target)
}

fn choose(architecture: Architecture) -> Result<Target> {
    let name = architecture.name();
    let reason = match musl(architecture) {
        Ok((rust, libraries)) => {
            eprintln!("xtask: {name}: linking with musl, by {rust}");
            return Ok(Target { architecture, libc: Libc::Musl(rust, libraries), no_musl: None });
        }
        Err(reason) => reason,
    };
    if !architecture.is_here() {
        return Err(format!("no musl for {name}: {reason}").into());
    }
    let libc = match Libraries::with_glibc() {
        Ok(libraries) => {
            eprintln!("xtask: {name}: linking with glibc, which starts more slowly than musl: {reason}");
            Libc::Glibc(libraries)
        }
        Err(missing) => {
            eprintln!("xtask: {name}: linking dynamically, which starts most slowly: {missing}; no musl: {reason}");
            Libc::Dynamic
        }
    };
    Ok(Target { architecture, libc, no_musl: Some(reason.to_string()) })
}

fn musl(architecture: Architecture) -> Result<(Rust, Libraries)> {
    Ok((Rust::get()?, Libraries::with_musl(architecture)?))
}
