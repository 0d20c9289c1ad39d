//! Installing the rules, or showing them: what the program does without a subcommand.

use std::path::PathBuf;
use std::time::Instant;

use crate::backend::nft;
use crate::config::Config;
use crate::error::{Error, Mode};
use crate::log::{Format, Level, Log};
use crate::ruleset::{Ruleset, plan};
use crate::sysctl::CloseWaitTimeout;
use crate::{netns, save};

/// What to install, and how.
#[derive(Debug, Clone)]
pub struct Install {
    /// Which rules.
    pub config: Config,
    /// Which backend.
    pub mode: Mode,
    /// Print the rules and change nothing.
    pub simulate: bool,
    /// The network namespace to work in; none: the current one.
    pub netns: Option<PathBuf>,
    /// What to set nf_conntrack_tcp_timeout_close_wait to, in seconds; none: leave it.
    pub close_wait_timeout: Option<u32>,
    /// How log lines look.
    pub log_format: Format,
    /// Which log lines there are.
    pub log_level: Level,
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
        if let Err(error) = nft::install(&rulesets) {
            if let Some(timeout) = timeout {
                timeout.undo();
            }
            return Err(error);
        }
        self.report(&rulesets, start.elapsed().as_micros(), log);
        Ok(String::new())
    }

    fn report(&self, rulesets: &[Ruleset], microseconds: u128, log: &mut Log) {
        if let Some(seconds) = self.close_wait_timeout {
            log.add(
                Level::Info,
                format_args!("net.netfilter.nf_conntrack_tcp_timeout_close_wait = {seconds}"),
            );
        }
        for ruleset in rulesets {
            for (chain, rule) in ruleset.rules() {
                let command = nft::command(ruleset.family);
                log.add(Level::Info, format_args!("{command} -t nat -A {chain} {rule:#}"));
            }
        }
        let rules: usize = rulesets.iter().map(|ruleset| ruleset.rules().count()).sum();
        let families = if self.config.ipv6 { "IPv4 and IPv6" } else { "IPv4" };
        log.add(
            Level::Info,
            format_args!(
                "installed {rules} rules in {} mode for {families} in {microseconds} microseconds",
                self.mode
            ),
        );
    }
}
