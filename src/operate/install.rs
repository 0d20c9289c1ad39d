//! Installing the rules, and verifying what was installed.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::backend::legacy::{self, Commands, Legacy};
use crate::backend::native::{self, Native};
use crate::backend::nft::Nft;
use crate::backend::{self, Backend, Held};
use crate::error::Error;
use crate::namespace;
use crate::operate::choose::{Reason, Seen, choose, try_out};
use crate::operate::close_wait::CloseWaitTimeout;
use crate::operate::notice::{Notice, Warning};
use crate::operate::verify::{self, Verdict};
use crate::rules::config::{Config, Family};
use crate::rules::mode::{Choice, Mode};
use crate::rules::plan::plan;
use crate::rules::ruleset::Ruleset;
use crate::rules::warnings::warnings;
use crate::rules::xtables;

/// What to install, and how. [`Install::new`] has the defaults, and every field can be set.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Install {
    /// Which rules.
    pub config: Config,
    /// In which mode; by default whatever fits, [`Choice::Auto`].
    pub choice: Choice,
    /// A folder in which iptables commands are looked for before PATH.
    pub folder: Option<PathBuf>,
    /// Wait for the xtables lock, however long another program holds it. Only legacy mode needs the lock.
    pub wait: bool,
    /// Remove proxy-init's rules from other backends. Otherwise, finding any is an error.
    pub replace_other_backend: bool,
    /// The network namespace to work in, such as `/var/run/netns/NAME`; none for that of the calling thread. The calling
    /// thread stays where it is.
    pub netns: Option<PathBuf>,
    /// What to set the namespace's nf_conntrack_tcp_timeout_close_wait to, in seconds; none leaves it as it is.
    pub close_wait_timeout: Option<u32>,
}

/// Which rules to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Simulate {
    /// Those of all families, to be read; `iptables-restore` refuses that text.
    AllFamilies,
    /// Those of this family, as input for its restore command.
    Only(Family),
}

/// What was installed.
#[derive(Debug)]
#[non_exhaustive]
pub struct Installed {
    /// The mode that was used.
    pub mode: Mode,
    /// Why that one.
    pub reason: Reason,
    /// The rules, for each family.
    pub rulesets: Vec<Ruleset>,
    /// The other modes whose rules were removed.
    pub replaced: Vec<Mode>,
    /// What was not as it should be.
    pub warnings: Vec<Warning>,
    /// How long it took.
    pub took: Duration,
}

impl Installed {
    /// How many rules were installed, in both families together.
    pub fn rules(&self) -> usize {
        self.rulesets.iter().map(|ruleset| ruleset.rules().count()).sum()
    }
}

/// Takes each [`Notice`] of a run.
type Tell<'a> = &'a mut (dyn FnMut(Notice<'_>) + Send);

impl Install {
    /// Installs these rules in whichever mode fits.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            choice: Choice::Auto,
            folder: None,
            wait: false,
            replace_other_backend: false,
            netns: None,
            close_wait_timeout: None,
        }
    }

    /// Installs the rules, all of them or none. Rules of an earlier run are replaced; those of other programs stay.
    ///
    /// # Errors
    /// See [`Error`]; unless the error says otherwise, nothing has changed then.
    pub fn run(&self) -> Result<Installed, Error> {
        self.run_telling(|_| ())
    }

    /// As [`Install::run`], and tells `tell` what happens while it does, also if the run then fails.
    ///
    /// # Errors
    /// As [`Install::run`].
    pub fn run_telling(&self, mut tell: impl FnMut(Notice<'_>) + Send) -> Result<Installed, Error> {
        namespace::run_in(self.netns.as_deref(), || self.run_here(&mut tell))
    }

    /// The rules as text, for `iptables-restore` or, in native mode, which has one table for both families, for `nft -f`.
    /// Changes nothing and needs no privilege.
    pub fn simulate(&self, simulate: Simulate) -> String {
        let mut rulesets = plan(&self.config);
        match self.choice {
            Choice::Mode(Mode::Native) => native::script(&rulesets),
            _ => {
                if let Simulate::Only(family) = simulate {
                    rulesets.retain(|ruleset| ruleset.family == family);
                }
                xtables::simulation(&rulesets)
            }
        }
    }

    /// Compares what is installed with what this would install. If no mode is named, checks the one that holds
    /// proxy-init's rules, or else the one that installing would choose.
    ///
    /// # Errors
    /// The kernel cannot be asked.
    pub fn verify(&self) -> Result<Verdict, Error> {
        namespace::run_in(self.netns.as_deref(), || self.verify_here())
    }

    fn run_here(&self, tell: Tell<'_>) -> Result<Installed, Error> {
        let timeout = self.close_wait_timeout.map(CloseWaitTimeout::set).transpose()?;
        let installed = self.install(plan(&self.config), tell);
        if let (Err(_), Some(timeout)) = (&installed, timeout) {
            timeout.undo();
        }
        installed
    }

    /// Installs in the mode of choice. If that needs iptables commands that are not installed, nft mode does it, as
    /// linkerd-init goes on with whatever iptables it finds.
    fn install(&self, rulesets: Vec<Ruleset>, tell: Tell<'_>) -> Result<Installed, Error> {
        let mut warnings: Vec<Warning> = warnings(&self.config).into_iter().map(Warning::Config).collect();
        warnings.iter().for_each(|warning| tell(Notice::Warning(warning)));
        let start = Instant::now();
        let done = |mode, reason, rulesets, replaced, warnings| Installed {
            mode,
            reason,
            rulesets,
            replaced,
            warnings,
            took: start.elapsed(),
        };
        if self.choice == Choice::Auto
            && let Some((mode, reason)) = install_if_untouched(&rulesets)
        {
            tell(Notice::Chose(mode, &reason));
            return Ok(done(mode, reason, rulesets, Vec::new(), warnings));
        }
        match self.chosen(&rulesets, tell) {
            Ok((backend, reason)) => {
                let replaced = self.install_in(&*backend, &rulesets, tell)?;
                Ok(done(backend.mode(), reason, rulesets, replaced, warnings))
            }
            Err(missing @ Error::NoCommand { .. }) => {
                let warning = Warning::NoIptables(missing);
                tell(Notice::Warning(&warning));
                match (self.install_in(&Nft, &rulesets, tell), warning) {
                    (Err(error), Warning::NoIptables(missing)) => Err(Error::Fallback {
                        missing: Box::new(missing),
                        error: Box::new(error),
                    }),
                    (replaced, warning) => {
                        let replaced = replaced?;
                        warnings.push(warning);
                        Ok(done(Mode::Nft, Reason::NoIptables, rulesets, replaced, warnings))
                    }
                }
            }
            Err(error) => Err(error),
        }
    }

    /// The backend to install in, and why.
    fn chosen(&self, rulesets: &[Ruleset], tell: Tell<'_>) -> Result<(Box<dyn Backend>, Reason), Error> {
        let commands = match self.choice {
            Choice::Plain => Commands::plain(self.folder.clone()),
            _ => Commands::legacy(self.folder.clone()),
        };
        let (mode, reason) = match self.choice {
            Choice::Default => (Mode::Legacy, Reason::Default),
            Choice::Mode(mode) => (mode, Reason::Named),
            Choice::Plain if commands.are_nf_tables()? => (Mode::Nft, Reason::Plain),
            Choice::Plain => (Mode::Legacy, Reason::Plain),
            Choice::Auto => {
                let (mode, reason) = choose(&Seen::look()?, |mode| try_out(mode, rulesets))?;
                tell(Notice::Chose(mode, &reason));
                (mode, reason)
            }
        };
        let backend: Box<dyn Backend> = match mode {
            Mode::Nft => Box::new(Nft),
            Mode::Native => Box::new(Native),
            Mode::Legacy => {
                commands.check(self.config.families())?;
                Box::new(Legacy::new(commands, self.wait))
            }
        };
        Ok((backend, reason))
    }

    /// Installs in this backend, and removes proxy-init's rules from the others or refuses to install beside them.
    /// Returns the others' modes.
    fn install_in(&self, backend: &dyn Backend, rulesets: &[Ruleset], tell: Tell<'_>) -> Result<Vec<Mode>, Error> {
        let mode = backend.mode();
        let (legacy, in_nf_tables): (Vec<_>, Vec<_>) = backend::all(self.folder.clone(), self.wait)
            .into_iter()
            .filter(|other| other.mode() != mode)
            .partition(|other| other.mode() == Mode::Legacy);
        // In a fresh namespace, in nft and native mode, this only looks at which legacy tables there are.
        let mut others = self.with_rules(mode, legacy)?;
        // Auto has tried that already.
        if self.choice != Choice::Auto && others.is_empty() && backend.install_if_fresh(rulesets)? {
            return Ok(Vec::new());
        }
        others.extend(self.with_rules(mode, in_nf_tables)?);
        if mode == Mode::Legacy {
            tell(Notice::RunningCommands { waits: self.wait });
        }
        backend.install(rulesets)?;
        let mut replaced = Vec::new();
        for other in others {
            other.remove().map_err(|error| Error::NotReplaced {
                mode,
                other: other.mode(),
                error: Box::new(error),
            })?;
            tell(Notice::Removed(other.mode()));
            replaced.push(other.mode());
        }
        Ok(replaced)
    }

    /// Those of the backends that hold proxy-init's rules: to be replaced, if that was asked for, and otherwise an
    /// error.
    fn with_rules(&self, mode: Mode, backends: Vec<Box<dyn Backend>>) -> Result<Vec<Box<dyn Backend>>, Error> {
        let mut with_rules = Vec::new();
        for other in backends {
            match other.held() {
                Ok(held) if !held.ours => {}
                Ok(_) if self.replace_other_backend => with_rules.push(other),
                Ok(_) => {
                    return Err(Error::OtherBackend {
                        mode,
                        other: other.mode(),
                    });
                }
                // A backend that the kernel lacks holds nothing, and a lack of privilege will stop the installation.
                Err(error) if error.is_lack() || error.is_not_permitted() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(with_rules)
    }

    fn verify_here(&self) -> Result<Verdict, Error> {
        let rulesets = plan(&self.config);
        // If choosing fails, verifying in nft mode, to which installing falls back, fails for the same reason.
        let chosen = self
            .chosen(&rulesets, &mut |_| ())
            .map_or_else(|_| Box::new(Nft) as Box<dyn Backend>, |(backend, _)| backend);
        let named = self.choice == Choice::Mode(chosen.mode());
        // The chosen one stands for its mode, because it uses the commands that were asked for.
        let mut backends = backend::all(self.folder.clone(), self.wait);
        backends.retain(|backend| backend.mode() != chosen.mode());
        backends.insert(0, chosen);
        let holds = |backend: &dyn Backend| matches!(backend.held(), Ok(held) if held.ours);
        let holder = if named {
            None
        } else {
            backends.iter().position(|backend| holds(&**backend))
        };
        let checked = backends.remove(holder.unwrap_or_default());
        verify::verify(&*checked, &backends, &rulesets)
    }
}

/// Auto's fast path: in an untouched namespace, where no backend holds a rule, installing is itself the probe. Probing
/// first, in a transaction that is aborted, takes ten times as long, because the kernel waits there. Returns what was
/// chosen; where something is refused, nothing has changed, and [`choose`] looks closely.
fn install_if_untouched(rulesets: &[Ruleset]) -> Option<(Mode, Reason)> {
    if legacy::held().ok()? != Held::default() {
        return None;
    }
    let lack = match Nft.install_if_fresh(rulesets) {
        Ok(true) => {
            let legacy_hidden = legacy::is_hidden();
            return Some((Mode::Nft, Reason::Supported { legacy_hidden }));
        }
        Err(error) if error.is_lack() => error,
        _ => return None,
    };
    match Native.install_if_fresh(rulesets) {
        Ok(true) => Some((Mode::Native, Reason::NftLacks(lack))),
        _ => None,
    }
}
