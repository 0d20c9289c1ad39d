//! Installing the rules, or showing them: what the program does without a subcommand.

use std::path::PathBuf;
use std::time::Instant;

use crate::backend::legacy::{self, Commands, Legacy};
use crate::backend::nft::Nft;
use crate::backend::{Backend, command};
use crate::config::Config;
use crate::error::{Error, Mode};
use crate::log::{Level, Log};
use crate::ruleset::{Ruleset, plan};
use crate::sysctl::CloseWaitTimeout;
use crate::{detect, netns, save};

/// What `--iptables-mode` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// This backend.
    Mode(Mode),
    /// What `iptables-restore` on PATH is.
    Plain,
    /// What fits the kernel and the namespace.
    Auto,
}

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
    /// Print the rules and change nothing.
    pub simulate: bool,
    /// The network namespace to work in; none: the current one.
    pub netns: Option<PathBuf>,
    /// What to set nf_conntrack_tcp_timeout_close_wait to, in seconds; none: leave it.
    pub close_wait_timeout: Option<u32>,
}

impl Install {
    /// Does it. Returns what belongs on stdout beside the log: the simulated rules.
    ///
    /// # Errors
    /// See [`Error`]; nothing has changed then.
    pub fn run(&self, log: &mut Log) -> Result<String, Error> {
        let rulesets: Vec<Ruleset> = self
            .config
            .families()
            .iter()
            .map(|&family| plan(&self.config, family))
            .collect();
        if self.simulate {
            return Ok(save::simulation(&rulesets));
        }
        if let Some(path) = &self.netns {
            netns::enter(path)?;
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

    /// Installs in the backend of choice. What legacy and plain mode need may not be installed: then nft mode does it,
    /// as linkerd-init goes on with whatever iptables it finds.
    fn install(&self, rulesets: &[Ruleset], log: &mut Log) -> Result<Mode, Error> {
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
                log.add(Level::Info, format_args!("auto: {mode} mode, because {reason}"));
                mode
            }
        };
        match mode {
            Mode::Nft => Ok(Box::new(Nft)),
            Mode::Legacy => legacy(Commands::legacy(self.folder.clone())),
        }
    }

    fn install_in(&self, backend: &dyn Backend, rulesets: &[Ruleset], log: &mut Log) -> Result<Mode, Error> {
        let mode = backend.mode();
        let other = self.other_backend_with_rules(mode)?;
        match &other {
            Some(other) if !self.replace_other_backend => {
                return Err(Error::OtherBackend {
                    mode,
                    other: other.mode(),
                });
            }
            _ => backend.install(rulesets)?,
        }
        if let Some(other) = other {
            other.remove().map_err(|error| Error::NotReplaced {
                mode,
                other: other.mode(),
                error: Box::new(error),
            })?;
            log.add(Level::Info, format_args!("took the rules of {} mode out", other.mode()));
        }
        Ok(mode)
    }

    /// The backend beside `mode` that holds rules of ours. Asking takes no process, and in a fresh namespace, in nft
    /// mode, no more than a look at which legacy tables there are.
    fn other_backend_with_rules(&self, mode: Mode) -> Result<Option<Box<dyn Backend>>, Error> {
        let (held, other): (_, Box<dyn Backend>) = match mode {
            Mode::Nft => {
                let commands = Commands::legacy(self.folder.clone());
                (legacy::held(), Box::new(Legacy::new(commands, self.wait)))
            }
            Mode::Legacy => (Nft.held(), Box::new(Nft)),
        };
        match held {
            Ok(held) => Ok(Some(other).filter(|_| held.ours)),
            // A backend that can't be asked holds nothing, or installing will say the same.
            Err(error) if error.is_lack() || matches!(error, Error::NotPermitted { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn report(&self, mode: Mode, rulesets: &[Ruleset], microseconds: u128, log: &mut Log) {
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
