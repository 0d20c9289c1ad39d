//! Installing the rules, or showing them: what the program does without a subcommand.

use std::path::PathBuf;
use std::time::Instant;

use crate::backend::legacy::{self, Commands, Legacy};
use crate::backend::native::{self, Native};
use crate::backend::nft::Nft;
use crate::backend::{self, Backend, Held, command};
use crate::error::Error;
use crate::log::{Format, Level, Log};
use crate::namespace;
use crate::operate::detect;
use crate::operate::verify::{self, Verdict};
use crate::rules::config::{Config, Family};
use crate::rules::mode::{Choice, Mode};
use crate::rules::plan::plan;
use crate::rules::ruleset::Ruleset;
use crate::rules::warnings::warnings;
use crate::rules::xtables;
use crate::sysctl::CloseWaitTimeout;

/// What to install, and how.
#[derive(Debug, Clone)]
pub struct Install {
    /// Which rules.
    pub config: Config,
    /// Which backend.
    pub choice: Choice,
    /// The folder of `--firewall-bin-path`, where iptables commands are looked for first.
    pub folder: Option<PathBuf>,
    /// Wait for the xtables lock.
    pub wait: bool,
    /// Take out rules of ours in another backend.
    pub replace_other_backend: bool,
    /// Print these rules and change nothing.
    pub simulate: Option<Simulate>,
    /// The network namespace to work in; none: the current one.
    pub netns: Option<PathBuf>,
    /// What to set nf_conntrack_tcp_timeout_close_wait to, in seconds; none: leave it.
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

impl Install {
    /// Does it. Returns what belongs on stdout beside the log: the simulated rules.
    ///
    /// # Errors
    /// See [`Error`]; nothing has changed then.
    pub fn run(&self, log: &mut Log) -> Result<String, Error> {
        let rulesets = plan(&self.config);
        if let Some(simulate) = self.simulate {
            return Ok(match (self.choice, simulate) {
                (Choice::Mode(Mode::Native), _) => native::script(&rulesets),
                (_, Simulate::AllFamilies) => xtables::simulation(&rulesets),
                (_, Simulate::Only(family)) => {
                    let of_family: Vec<_> = rulesets.into_iter().filter(|it| it.family == family).collect();
                    xtables::simulation(&of_family)
                }
            });
        }
        if let Some(path) = &self.netns {
            namespace::enter(path)?;
        }
        let timeout = self.close_wait_timeout.map(CloseWaitTimeout::set).transpose()?;
        let start = Instant::now();
        match self.install(&rulesets, log) {
            Ok(mode) => {
                self.report(mode, &rulesets, start.elapsed().as_micros(), log);
                Ok(String::new())
            }
            Err(error) => {
                if let Some(timeout) = timeout {
                    timeout.undo();
                }
                Err(error)
            }
        }
    }

    /// Compares what is installed with what this would install. Where nobody said which backend, it is the one that
    /// holds rules of ours; where none is seen to, the one that installing would take, for not everybody may see what
    /// legacy tables hold.
    ///
    /// # Errors
    /// The kernel can't be asked.
    pub fn verify(&self) -> Result<Verdict, Error> {
        if let Some(path) = &self.netns {
            namespace::enter(path)?;
        }
        let rulesets = plan(&self.config);
        // What stands in the way of choosing, verifying says too, of nft mode: what installing falls back to.
        let mut unread = Log::new(Format::Plain, Level::Error);
        let chosen = self.backend(&rulesets, &mut unread).unwrap_or_else(|_| Box::new(Nft));
        let named = self.choice == Choice::Mode(chosen.mode());
        // It goes by the commands that were asked for; so it stands for its mode.
        let mut backends = backend::all(self.folder.clone(), self.wait);
        backends.retain(|backend| backend.mode() != chosen.mode());
        backends.insert(0, chosen);
        let holds = |backend: &dyn Backend| matches!(backend.held(), Ok(held) if held.ours);
        let holder = if named {
            None
        } else {
            backends.iter().position(|backend| holds(&**backend))
        };
        let looked_at = backends.remove(holder.unwrap_or_default());
        verify::verify(&*looked_at, &backends, &rulesets)
    }

    /// Installs in the backend of choice. What legacy and plain mode need may not be installed: then nft mode does it,
    /// as linkerd-init goes on with whatever iptables it finds.
    fn install(&self, rulesets: &[Ruleset], log: &mut Log) -> Result<Mode, Error> {
        if self.choice == Choice::Auto
            && let Some((mode, reason)) = install_where_nobody_was(rulesets)
        {
            log.add(Level::Info, auto_chose(mode, &reason));
            return Ok(mode);
        }
        match self.backend(rulesets, log) {
            Ok(backend) => self.install_in(&*backend, rulesets, log),
            Err(missing @ Error::NoCommand { .. }) => {
                log.add(Level::Warning, format_args!("{missing}; going on in nft mode"));
                self.install_in(&Nft, rulesets, log).map_err(|error| Error::Fallback {
                    missing: Box::new(missing),
                    error: Box::new(error),
                })
            }
            Err(error) => Err(error),
        }
    }

    fn backend(&self, rulesets: &[Ruleset], log: &mut Log) -> Result<Box<dyn Backend>, Error> {
        let legacy = |commands: Commands| {
            commands.check(self.config.families())?;
            Ok(Box::new(Legacy::new(commands, self.wait)) as Box<dyn Backend>)
        };
        let mode = match self.choice {
            Choice::Default => Mode::Legacy,
            Choice::Mode(mode) => mode,
            Choice::Plain => {
                let commands = Commands::plain(self.folder.clone());
                if !commands.are_nf_tables()? {
                    return legacy(commands);
                }
                Mode::Nft
            }
            Choice::Auto => {
                let (mode, reason) = detect::choose(rulesets)?;
                log.add(Level::Info, auto_chose(mode, &reason));
                mode
            }
        };
        match mode {
            Mode::Nft => Ok(Box::new(Nft)),
            Mode::Native => Ok(Box::new(Native)),
            Mode::Legacy => legacy(Commands::legacy(self.folder.clone())),
        }
    }

    fn install_in(&self, backend: &dyn Backend, rulesets: &[Ruleset], log: &mut Log) -> Result<Mode, Error> {
        let mode = backend.mode();
        let (legacy, in_nf_tables): (Vec<_>, Vec<_>) = backend::all(self.folder.clone(), self.wait)
            .into_iter()
            .filter(|other| other.mode() != mode)
            .partition(|other| other.mode() == Mode::Legacy);
        // In a fresh namespace, in nft and native mode, this is no more than a look at which legacy tables there are.
        let mut others = self.with_rules(mode, legacy)?;
        if others.is_empty() && backend.install_if_fresh(rulesets)? {
            return Ok(mode);
        }
        others.extend(self.with_rules(mode, in_nf_tables)?);
        if mode == Mode::Legacy {
            // Its commands take milliseconds, and seconds where somebody else holds the lock.
            let wait = if self.wait {
                ", waiting for the xtables lock"
            } else {
                ""
            };
            log.add(
                Level::Info,
                format_args!("running the iptables commands of legacy mode{wait}"),
            );
            log.flush();
        }
        backend.install(rulesets)?;
        for other in others {
            other.remove().map_err(|error| Error::NotReplaced {
                mode,
                other: other.mode(),
                error: Box::new(error),
            })?;
            log.add(Level::Info, format_args!("took the rules of {} mode out", other.mode()));
        }
        Ok(mode)
    }

    /// Those of the backends that hold rules of ours: to be replaced, if that was asked for, and else an error.
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
                // A backend that can't be asked holds nothing, or installing will say the same.
                Err(error) if error.is_lack() || matches!(error, Error::NotPermitted { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(with_rules)
    }

    fn report(&self, mode: Mode, rulesets: &[Ruleset], microseconds: u128, log: &mut Log) {
        for warning in warnings(&self.config) {
            log.add(Level::Warning, warning);
        }
        if let Some(seconds) = self.close_wait_timeout {
            log.add(
                Level::Info,
                format_args!("net.netfilter.nf_conntrack_tcp_timeout_close_wait = {seconds}"),
            );
        }
        for ruleset in rulesets {
            let command = command(mode, ruleset.family);
            for (chain, rule) in ruleset.rules() {
                log.add(Level::Info, format_args!("{command} -t nat -A {chain} {rule:#}"));
            }
        }
        let rules: usize = rulesets.iter().map(|ruleset| ruleset.rules().count()).sum();
        let families = if self.config.ipv6 { "IPv4 and IPv6" } else { "IPv4" };
        log.add(
            Level::Info,
            format_args!("installed {rules} rules in {mode} mode for {families} in {microseconds} microseconds"),
        );
    }
}

/// Auto's short way at most pods' start: where neither backend holds a rule, installing is to try whether a mode can be
/// used. Trying it first, in a transaction that is taken back, takes ten times as long, for the kernel waits there. Tells
/// what was taken, and why; what is refused changes nothing, and [`detect::choose`] looks at it closely.
fn install_where_nobody_was(rulesets: &[Ruleset]) -> Option<(Mode, String)> {
    if legacy::held().ok()? != Held::default() {
        return None;
    }
    let lack = match Nft.install_if_fresh(rulesets) {
        Ok(true) => return Some((Mode::Nft, detect::nft_reason())),
        Err(error) if error.is_lack() => error,
        _ => return None,
    };
    match Native.install_if_fresh(rulesets) {
        Ok(true) => Some((Mode::Native, detect::native_reason(&lack))),
        _ => None,
    }
}

fn auto_chose(mode: Mode, reason: &str) -> String {
    format!("auto: {mode} mode, because {reason}")
}
