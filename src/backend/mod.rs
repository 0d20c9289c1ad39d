//! How rules are installed in the kernel, removed, and read back: one folder per backend.

pub mod all;
mod change;
#[cfg(test)]
mod inverse;
pub mod legacy;
pub mod native;
pub mod nft;

use nix::unistd::{getpid, gettid};

use crate::rules::table::Table;

/// The folder of /proc that is about the calling thread. What is about the process, its first thread, a new process finds
/// sooner than what is about a thread: the kernel makes each folder as it is looked up.
pub(crate) fn proc_of_thread() -> &'static str {
    match gettid() == getpid() {
        true => "/proc/self",
        false => "/proc/thread-self",
    }
}

/// What a backend removed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Removed {
    /// Whether there was anything.
    pub any: bool,
    /// The rules that led to a chain of proxy-init's and were not proxy-init's own, each with its table and chain.
    pub foreign: Vec<String>,
}

impl Removed {
    /// That a backend removed all that it held in these tables, if it held `any`.
    fn from(any: bool, tables: &[Table]) -> Self {
        let foreign = tables.iter().flat_map(Table::foreign_jumps);
        Self {
            any,
            foreign: foreign
                .filter(|_| any)
                .map(|line| format!("{}: {line}", line.table))
                .collect(),
        }
    }
}
