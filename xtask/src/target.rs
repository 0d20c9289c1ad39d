//! What programs are linked with: one decision, which every command goes by, and which says what it took.
//!
//! musl, because an empty program starts in a third of the time that it takes with glibc. glibc only where musl can't
//! be had.

use std::sync::Mutex;

use lab::shell::Result;

use crate::c_libraries::{self, Libraries};
use crate::rust::Rust;
use lab::architecture::Architecture;

/// What is done to have musl.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effort {
    /// What is here is taken.
    AtHand,
    /// What isn't here is fetched.
    Fetch,
}

/// What programs for an architecture are linked with.
pub(crate) struct Target {
    pub(crate) architecture: Architecture,
    pub(crate) libc: Libc,
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

/// What programs for an architecture are linked with, after fetching what that takes.
pub(crate) fn of(architecture: Architecture) -> Result<&'static Target> {
    choose(architecture, Effort::Fetch)
}

/// Decides, and says how. The first decision for an architecture holds for as long as this process runs.
///
/// # Errors
/// musl can't be had for another architecture than this machine's.
pub(crate) fn choose(architecture: Architecture, effort: Effort) -> Result<&'static Target> {
    static CHOSEN: Mutex<Vec<&Target>> = Mutex::new(Vec::new());
    let mut chosen = CHOSEN.lock().map_err(|error| error.to_string())?;
    if let Some(target) = chosen.iter().find(|target| target.architecture == architecture) {
        return Ok(target);
    }
    let name = architecture.name();
    let libc = match musl(architecture, effort) {
        Ok((rust, libraries)) => {
            eprintln!("xtask: {name}: linking with musl, by {rust}");
            Libc::Musl(rust, libraries)
        }
        Err(reason) if !architecture.is_here() => return Err(format!("no musl for {name}: {reason}").into()),
        Err(reason) => match Libraries::with_glibc() {
            Ok(libraries) => {
                eprintln!("xtask: {name}: linking with glibc, which starts more slowly than musl: {reason}");
                Libc::Glibc(libraries)
            }
            Err(missing) => {
                eprintln!("xtask: {name}: linking dynamically, which starts most slowly: {missing}; no musl: {reason}");
                Libc::Dynamic
            }
        },
    };
    let target = Box::leak(Box::new(Target { architecture, libc }));
    chosen.push(target);
    Ok(target)
}

fn musl(architecture: Architecture, effort: Effort) -> Result<(Rust, Libraries)> {
    let rust = match effort {
        Effort::Fetch => Rust::get()?,
        Effort::AtHand if !c_libraries::has_musl(architecture) => {
            return Err("it is not here: cargo xtask build fetches it".into());
        }
        Effort::AtHand => Rust::at_hand()?,
    };
    Ok((rust, Libraries::with_musl(architecture)?))
}
