//! Removing our rules from every backend.

use std::path::PathBuf;

use ruleset::{Numbered, Subsystem};

use crate::config::Mode;
use crate::error::Error;
use crate::modes::legacy::{self, Legacy};
use crate::modes::{self, must_see, nf_tables};
use crate::netns;
use crate::notice::{OperationNotice, Warning};
use crate::ownership::holders;

/// Where to remove our rules, and how. Every field has a default, and can be set.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Uninstall {
    /// A directory in which iptables commands are looked for before PATH.
    pub iptables_dir: Option<PathBuf>,
    /// Wait for the xtables lock, however long another program holds it. Only legacy mode needs the lock.
    pub wait_for_lock: bool,
    /// The network namespace to work in, such as `/var/run/netns/NAME`; none for that of the calling thread. The
    /// calling thread stays where it is.
    pub netns: Option<PathBuf>,
}

/// The removed rules.
#[derive(Debug)]
#[non_exhaustive]
pub struct Uninstalled {
    /// The modes whose rules were removed; none, if there were no rules.
    pub removed: Vec<Mode>,
    /// Defects that stopped nothing.
    pub warnings: Vec<Warning>,
}

impl Uninstall {
    /// Removes our rules from every backend that has them. Those of other programs stay.
    ///
    /// # Errors
    /// The error of the first backend that fails; the rules of the others are removed all the same.
    pub fn run(&self) -> Result<Uninstalled, Error> {
        self.run_with(|_| ())
    }

    /// As [`Uninstall::run`], and reports each event to `tell`, also if the run then fails.
    pub fn run_with(&self, mut tell: impl FnMut(OperationNotice<'_>) + Send) -> Result<Uninstalled, Error> {
        netns::run_in(self.netns.as_deref(), || self.run_here(&mut tell))
    }

    fn run_here(&self, tell: &mut dyn FnMut(OperationNotice<'_>)) -> Result<Uninstalled, Error> {
        let (mut removed, mut warnings, mut failed) = (Vec::new(), Vec::new(), None);
        let legacy = Legacy { is_plain: false, folder: self.iptables_dir.clone(), wait: self.wait_for_lock };
        let (in_nf_tables, in_legacy) = (nf_tables::read()?.ruleset, legacy::read::read(&Numbered::default())?);
        failed = failed.or(must_see(&in_nf_tables, Mode::Nft).err());
        match in_legacy.unseen(Subsystem::Legacy) {
            Some(unseen) if unseen.not_permitted && holders(&in_nf_tables).next().is_none() => {
                failed = failed.or(Some(Error::LegacyUnseen { reason: unseen.reason.clone() }));
            }
            // As in most pods: nothing that was installed from there is in legacy tables.
            Some(unseen) if unseen.not_permitted => {
                let warning = Warning::LegacyUnseen(unseen.clone());
                tell(OperationNotice::Warning(&warning));
                warnings.push(warning);
            }
            _ => failed = failed.or(must_see(&in_legacy, Mode::Legacy).err()),
        }
        for mode in holders(&in_nf_tables).chain(holders(&in_legacy)) {
            match modes::remove(mode, &legacy) {
                Ok(None) => {}
                Ok(Some(foreign)) => {
                    tell(OperationNotice::Removed(mode));
                    removed.push(mode);
                    for rule in foreign {
                        let warning = Warning::RemovedForeign { mode, rule };
                        tell(OperationNotice::Warning(&warning));
                        warnings.push(warning);
                    }
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            None => Ok(Uninstalled { removed, warnings }),
            Some(error) if removed.is_empty() => Err(error),
            Some(error) => Err(Error::PartlyUninstalled { removed, error: Box::new(error) }),
        }
    }
}
