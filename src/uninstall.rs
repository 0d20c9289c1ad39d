//! Taking our rules out, wherever they are.

use std::path::PathBuf;

use crate::backend::Backend;
use crate::backend::legacy::{self, Commands, Legacy};
use crate::backend::native::Native;
use crate::backend::nft::Nft;
use crate::error::Error;
use crate::log::{Level, Log};
use crate::netns;

/// What is done in all backends that hold rules of ours, whichever they are.
#[derive(Debug, Clone)]
pub struct Everywhere {
    /// The folder of `--firewall-bin-path`.
    pub folder: Option<PathBuf>,
    /// Wait for the xtables lock.
    pub wait: bool,
    /// The network namespace to work in; none: the current one.
    pub netns: Option<PathBuf>,
}

impl Everywhere {
    /// Every backend.
    pub(crate) fn backends(&self) -> Vec<Box<dyn Backend>> {
        let commands = Commands::legacy(self.folder.clone());
        vec![
            Box::new(Nft),
            Box::new(Native),
            Box::new(Legacy::new(commands, self.wait)),
        ]
    }

    /// Takes our rules out of every backend that has them.
    ///
    /// # Errors
    /// The first backend's that fails; the others are done all the same.
    pub fn uninstall(&self, log: &mut Log) -> Result<(), Error> {
        if let Some(path) = &self.netns {
            netns::enter(path)?;
        }
        let hidden = legacy::is_hidden();
        if hidden {
            log.add(
                Level::Warning,
                "whether legacy tables hold rules, only root can see: those are left as they are",
            );
        }
        let mut failed = None;
        for backend in self.backends() {
            let mode = backend.mode();
            let result = match backend.held() {
                Ok(held) if held.ours => backend.remove(),
                Ok(_) => Ok(false),
                // What the kernel lacks holds nothing.
                Err(error) if error.is_lack() => Ok(false),
                Err(error) => Err(error),
            };
            match result {
                Ok(true) => log.add(Level::Info, format_args!("took the rules of {mode} mode out")),
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
