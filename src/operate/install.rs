//! Installing the rules, and verifying what was installed.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::backend::Backend as _;
use crate::backend::all::{self, Over};
use crate::backend::legacy::read::Presence;
use crate::backend::legacy::{self, Commands, Legacy};
use crate::backend::native;
use crate::error::Error;
use crate::namespace;
use crate::operate::choose::{Reason, Seen, choose, try_out};
use crate::operate::close_wait::CloseWaitTimeout;
use crate::operate::notice::{Notice, Warning};
use crate::operate::verify::{Verdict, verdict};
use crate::rules::config::{Config, Family};
use crate::rules::found::{NotKnown, Subsystem};
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
    fn install(&self, mut rulesets: Vec<Ruleset>, tell: Tell<'_>) -> Result<Installed, Error> {
        let mut warnings: Vec<Warning> = warnings(&self.config).into_iter().map(Warning::Config).collect();
        if self.config.ipv6 && !legacy::has_ipv6() {
            warnings.push(Warning::NoIpv6);
        }
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
            Ok((mode, reason, commands)) => {
                legacy::leave_out_ipv6(mode, &mut rulesets);
                let (replaced, more) = self.install_in(mode, commands, &rulesets, tell)?;
                warnings.extend(more);
                Ok(done(mode, reason, rulesets, replaced, warnings))
            }
            Err(missing @ Error::NoCommand { .. }) => {
                let warning = Warning::NoIptables(missing);
                tell(Notice::Warning(&warning));
                match (
                    self.install_over_netlink(Mode::Nft, Over::Nft, &rulesets, tell),
                    warning,
                ) {
                    (Err(error), Warning::NoIptables(missing)) => Err(Error::Fallback {
                        missing: Box::new(missing),
                        error: Box::new(error),
                    }),
                    (installed, warning) => {
                        let (replaced, more) = installed?;
                        warnings.extend(more);
                        warnings.push(warning);
                        Ok(done(Mode::Nft, Reason::NoIptables, rulesets, replaced, warnings))
                    }
                }
            }
            Err(error) => Err(error),
        }
    }

    /// The mode to install in, why that one, and the commands that legacy mode uses.
    fn chosen(&self, rulesets: &[Ruleset], tell: Tell<'_>) -> Result<(Mode, Reason, Commands), Error> {
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
                let (mode, reason) = choose(&Seen::of(&all::read()?)?, |mode| try_out(mode, rulesets))?;
                tell(Notice::Chose(mode, &reason));
                (mode, reason)
            }
        };
        if mode == Mode::Legacy {
            let mut rulesets = rulesets.to_vec();
            legacy::leave_out_ipv6(mode, &mut rulesets);
            commands.check(rulesets.iter().map(|ruleset| ruleset.family))?;
        }
        Ok((mode, reason, commands))
    }

    /// Installs in this mode, and removes proxy-init's rules from the others or refuses to install beside them. Returns
    /// the others, and what was not as it should be.
    fn install_in(
        &self,
        mode: Mode,
        commands: Commands,
        rulesets: &[Ruleset],
        tell: Tell<'_>,
    ) -> Result<(Vec<Mode>, Vec<Warning>), Error> {
        match Over::of(mode) {
            Some(over) => self.install_over_netlink(mode, over, rulesets, tell),
            None => Ok((self.install_legacy(commands, rulesets, tell)?, Vec::new())),
        }
    }

    fn install_over_netlink(
        &self,
        mode: Mode,
        over: Over,
        rulesets: &[Ruleset],
        tell: Tell<'_>,
    ) -> Result<(Vec<Mode>, Vec<Warning>), Error> {
        let (mut replaced, mut warnings) = (Vec::new(), Vec::new());
        // In a fresh namespace, this only looks at which legacy tables there are.
        let in_legacy = legacy_rules()?;
        match in_legacy {
            LegacyRules::Some if !self.replace_other_backend => {
                return Err(Error::OtherBackend {
                    mode,
                    other: Mode::Legacy,
                });
            }
            LegacyRules::Unseen(unseen) => {
                warnings.push(Warning::LegacyUnseen(unseen));
                warnings.iter().for_each(|warning| tell(Notice::Warning(warning)));
            }
            _ => {}
        }
        // Auto has tried that already.
        let fresh = self.choice != Choice::Auto && over.install_if_fresh(rulesets)?;
        if !fresh && over.install(rulesets, self.replace_other_backend)? {
            replaced.extend(
                Mode::ALL
                    .into_iter()
                    .filter(|&other| other != mode && Over::of(other).is_some()),
            );
        }
        // Between the first look and the commit, legacy mode may have been at work.
        if legacy_rules()? == LegacyRules::Some {
            let other = Mode::Legacy;
            if !self.replace_other_backend {
                let removed = all::backend(mode, self.folder.clone(), self.wait).remove();
                return Err(Error::InstalledMeanwhile {
                    mode,
                    other,
                    not_removed: removed.err().map(Box::new),
                });
            }
            let legacy = all::backend(other, self.folder.clone(), self.wait);
            legacy.remove().map_err(|error| Error::NotReplaced {
                mode,
                other,
                error: Box::new(error),
            })?;
            replaced.push(other);
        }
        replaced.iter().for_each(|&other| tell(Notice::Removed(other)));
        Ok((replaced, warnings))
    }

    fn install_legacy(&self, commands: Commands, rulesets: &[Ruleset], tell: Tell<'_>) -> Result<Vec<Mode>, Error> {
        let mode = Mode::Legacy;
        let others = all::nf_tables_modes()?;
        if let Some(&other) = others.first().filter(|_| !self.replace_other_backend) {
            return Err(Error::OtherBackend { mode, other });
        }
        let legacy = Legacy::new(commands, self.wait);
        tell(Notice::RunningCommands { waits: self.wait });
        legacy.install(rulesets)?;
        // No generation guards what legacy mode commits, so it looks again, and gives way.
        for other in all::nf_tables_modes()? {
            if !self.replace_other_backend {
                return Err(Error::InstalledMeanwhile {
                    mode,
                    other,
                    not_removed: legacy.remove().err().map(Box::new),
                });
            }
            let backend = all::backend(other, self.folder.clone(), self.wait);
            backend.remove().map_err(|error| Error::NotReplaced {
                mode,
                other,
                error: Box::new(error),
            })?;
            tell(Notice::Removed(other));
        }
        Ok(others)
    }

    fn verify_here(&self) -> Result<Verdict, Error> {
        let mut rulesets = plan(&self.config);
        let mut found = all::read()?;
        let holder = Mode::ALL.into_iter().find(|&mode| found.holds(mode));
        let mode = match (self.choice, holder) {
            (Choice::Mode(mode), _) | (_, Some(mode)) => mode,
            // If choosing fails, installing would go on in nft mode.
            _ => self.chosen(&rulesets, &mut |_| ()).map_or(Mode::Nft, |(mode, ..)| mode),
        };
        if mode == Mode::Legacy
            && found
                .unseen(Subsystem::Legacy)
                .is_some_and(|unseen| unseen.not_permitted)
        {
            // Whoever may not list legacy tables may read those that the flags are about.
            found.not_known.retain(|unseen| unseen.subsystem != Subsystem::Legacy);
            found.tables.extend(legacy::read::read_nat()?.tables);
        }
        legacy::leave_out_ipv6(mode, &mut rulesets);
        verdict(mode, &rulesets, &found)
    }
}

/// What is known of proxy-init's rules in legacy tables.
#[derive(Debug, PartialEq, Eq)]
enum LegacyRules {
    None,
    Some,
    Unseen(NotKnown),
}

fn legacy_rules() -> Result<LegacyRules, Error> {
    Ok(match legacy::read::presence() {
        Presence::Absent => LegacyRules::None,
        Presence::Unseen(unseen) => LegacyRules::Unseen(unseen),
        Presence::Present => match legacy::read::read() {
            Ok(found) if found.holds(Mode::Legacy) => LegacyRules::Some,
            Ok(_) => LegacyRules::None,
            // Without the privilege to read them, there is none to install either, and installing says so.
            Err(Error::LegacyUnreadable { errno, .. }) if errno.raw() == libc::EPERM => LegacyRules::None,
            Err(error) => return Err(error),
        },
    })
}

/// Auto's fast path: in an untouched namespace, where no backend holds a rule, installing is itself the probe. Probing
/// first, in a transaction that is aborted, takes ten times as long, because the kernel waits there. Returns what was
/// chosen; where something is refused, nothing has changed, and [`choose`] looks closely.
fn install_if_untouched(rulesets: &[Ruleset]) -> Option<(Mode, Reason)> {
    let presence = legacy::read::presence();
    if presence == Presence::Present && legacy::read::read().ok()?.nat_rules(Subsystem::Legacy) > 0 {
        return None;
    }
    let lack = match Over::Nft.install_if_fresh(rulesets) {
        Ok(true) => {
            let legacy_hidden = matches!(presence, Presence::Unseen(_));
            return Some((Mode::Nft, Reason::Supported { legacy_hidden }));
        }
        Err(error) if error.is_lack() => error,
        _ => return None,
    };
    match Over::Native.install_if_fresh(rulesets) {
        Ok(true) => Some((Mode::Native, Reason::NftLacks(lack))),
        _ => None,
    }
}
