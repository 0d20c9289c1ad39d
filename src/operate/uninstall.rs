//! Taking our rules out, wherever they are.

use std::path::PathBuf;

use crate::backend::{self, legacy};
use crate::error::Error;
use crate::log::{Level, Log};
use crate::namespace;

/// Where to look for rules of ours, and how to take them out.
#[derive(Debug, Clone)]
pub struct Uninstall {
    /// The folder of `--firewall-bin-path`.
    pub folder: Option<PathBuf>,
    /// Wait for the xtables lock.
    pub wait: bool,
    /// The network namespace to work in; none: the current one.
    pub netns: Option<PathBuf>,
}

impl Uninstall {
    /// Takes our rules out of every backend that has them.
    ///
    /// # Errors
    /// The first backend's that fails; the others are done all the same.
    pub fn run(&self, log: &mut Log) -> Result<(), Error> {
        if let Some(path) = &self.netns {
            namespace::enter(path)?;
        }
        let hidden = legacy::is_hidden();
        if hidden {
            log.add(
                Level::Warning,
                "whether legacy tables hold rules, only root can see: those are left as they are",
            );
        }
        let mut failed = None;
        for backend in backend::all(self.folder.clone(), self.wait) {
            let mode = backend.mode();
            let result = match backend.held() {
                Ok(held) if held.ours => backend.remove(),
                Ok(_) => Ok(false),
                // What the kernel lacks holds nothing.
                Err(error) if error.is_lack() => Ok(false),
                Err(error) => Err(error),
            };
            match result {
                Ok(true) => {
                    log.add(Level::Info, format_args!("took the rules of {mode} mode out"));
                    // The next backend may wait for the kernel, or for a lock.
                    log.flush();
                }
                Ok(false) => {}
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            None => {
                let seen = if hidden { " in nf_tables" } else { "" };
                log.add(Level::Info, format_args!("no rules of ours are left{seen}"));
                Ok(())
            }
            Some(error) => Err(error),
        }
    }
}
