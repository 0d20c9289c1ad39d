//! legacy mode: ip_tables, by way of `iptables-legacy-restore`, one process a family.
//!
//! For kernels without nf_tables, and beside software that uses legacy tables. Each family is one transaction; the two
//! are not, so when the second fails, what the first got is taken back.

mod child;
pub(crate) mod read;

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use self::child::{Finished, Unfinished};
use super::Backend;
use crate::error::Error;
use crate::rules::config::Family;
use crate::rules::mode::Mode;
use crate::rules::ruleset::{ChainName, Rule, Ruleset};
use crate::rules::xtables::{Input, Line, Saved};

/// How long a command may take that isn't waiting for the lock; they take milliseconds.
const LIMIT: Duration = Duration::from_secs(10);

/// Where commands are looked for when the environment has no PATH.
const DEFAULT_PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// Which iptables commands do the work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commands {
    /// Between the family's `iptables` or `ip6tables` and `-restore`: `-legacy`, or nothing.
    variant: &'static str,
    /// A folder to look in before PATH.
    folder: Option<PathBuf>,
}

impl Commands {
    /// `iptables-legacy-restore` and so on.
    pub fn legacy(folder: Option<PathBuf>) -> Self {
        Self {
            variant: "-legacy",
            folder,
        }
    }

    /// `iptables-restore` and so on, whatever they are.
    pub fn plain(folder: Option<PathBuf>) -> Self {
        Self { variant: "", folder }
    }

    /// The name of the family's command that a rule stands for.
    fn name(&self, family: Family, suffix: &str) -> String {
        let family = match family {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        };
        format!("{family}{}{suffix}", self.variant)
    }

    /// Where it is.
    fn find(&self, family: Family, suffix: &str) -> Result<PathBuf, Error> {
        let name = self.name(family, suffix);
        let path = env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
        self.folder
            .clone()
            .into_iter()
            .chain(env::split_paths(&path))
            .map(|folder| folder.join(&name))
            .find(|file| is_executable(file))
            .ok_or(Error::NoCommand { command: name })
    }

    /// Whether everything that installing in these families needs is there.
    ///
    /// # Errors
    /// [`Error::NoCommand`] names the first that isn't.
    pub(crate) fn check(&self, families: &[Family]) -> Result<(), Error> {
        families
            .iter()
            .try_for_each(|&family| self.find(family, "-restore").map(drop))
    }

    /// Whether the plain commands are iptables-nft's, as their version line says: `iptables-restore v1.8.9
    /// (nf_tables)`. Older ones without such a word are legacy.
    ///
    /// # Errors
    /// The command isn't there, or can't be asked.
    pub(crate) fn are_nf_tables(&self) -> Result<bool, Error> {
        let program = self.find(Family::V4, "-restore")?;
        let finished = run(&program, &["--version"], "", Some(LIMIT))?;
        Ok(finished.stdout.contains("nf_tables"))
    }
}

fn is_executable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// The backend.
#[derive(Debug, Clone)]
pub struct Legacy {
    commands: Commands,
    wait: bool,
}

impl Legacy {
    /// With these commands. When somebody else holds the xtables lock, they wait for it, or else give up after a
    /// second.
    pub fn new(commands: Commands, wait: bool) -> Self {
        Self { commands, wait }
    }

    /// What the family's nat table holds as iptables-save writes it; nothing, and no process, if there is no table.
    fn saved(&self, family: Family) -> Result<Saved, Error> {
        if read::has_nat_table(family) == Ok(false) {
            return Ok(Saved::default());
        }
        let finished = self.run(family, "-save", &["-t", "nat"], "", Some(LIMIT))?;
        Ok(Saved::parse(&finished.stdout))
    }

    fn restore(&self, family: Family, input: &str) -> Result<(), Error> {
        // Without -w, iptables is meant to give up at once, but some versions (1.8.9) wait for ever.
        let (wait, limit) = if self.wait {
            (&["-w"][..], None)
        } else {
            (&["-w", "1"][..], Some(LIMIT))
        };
        let arguments = [&["--noflush"], wait].concat();
        self.run(family, "-restore", &arguments, input, limit).map(drop)
    }

    /// Runs the family's command, which must succeed.
    fn run(
        &self,
        family: Family,
        suffix: &str,
        arguments: &[&str],
        input: &str,
        limit: Option<Duration>,
    ) -> Result<Finished, Error> {
        if let Some(capability) = child::missing_capability() {
            return Err(Error::NoCapability {
                capability: capability.to_string(),
            });
        }
        let program = self.commands.find(family, suffix)?;
        let finished = run(&program, arguments, input, limit)?;
        check(&program, &finished)?;
        Ok(finished)
    }
}

impl Backend for Legacy {
    fn mode(&self) -> Mode {
        Mode::Legacy
    }

    fn install(&self, rulesets: &[Ruleset]) -> Result<bool, Error> {
        let mut undo = Vec::new();
        for family in [Family::V4, Family::V6] {
            let ruleset = rulesets.iter().find(|ruleset| ruleset.family == family);
            match self.change(family, ruleset) {
                Ok(Some(input)) => undo.push((family, input)),
                Ok(None) => {}
                Err(error) => return Err(self.take_back(undo, family, error)),
            }
        }
        Ok(true)
    }

    fn remove(&self) -> Result<bool, Error> {
        let mut removed = false;
        for family in [Family::V4, Family::V6] {
            removed |= self.change(family, None)?.is_some();
        }
        Ok(removed)
    }
}

impl Legacy {
    /// Takes a family from what it holds to the ruleset, or to no rules of ours. Returns the input that takes it
    /// back, if there was anything to do.
    fn change(&self, family: Family, ruleset: Option<&Ruleset>) -> Result<Option<String>, Error> {
        let saved = self.saved(family)?;
        let input = match ruleset {
            Some(ruleset) => install_input(ruleset, &saved),
            None if saved.is_ours() => remove_input(&saved),
            None => return Ok(None),
        };
        self.restore(family, &input)?;
        Ok(Some(undo_input(ruleset, &saved)))
    }

    /// After `error` in one family, puts back what the others held.
    fn take_back(&self, undo: Vec<(Family, String)>, family: Family, error: Error) -> Error {
        let Some((first, _)) = undo.first() else {
            return error;
        };
        let first = *first;
        let failed = undo
            .into_iter()
            .find_map(|(family, input)| self.restore(family, &input).err());
        Error::TakenBack {
            first,
            second: family,
            error: Box::new(error),
            not_rolled_back: failed.map(Box::new),
        }
    }
}

const OUR_CHAINS: [ChainName; 2] = [ChainName::ProxyInitRedirect, ChainName::ProxyInitOutput];
const BASE_CHAINS: [ChainName; 2] = [ChainName::Prerouting, ChainName::Output];

/// Our chains anew, and one right jump to each.
fn install_input(ruleset: &Ruleset, saved: &Saved) -> String {
    let mut input = Input::new();
    for chain in OUR_CHAINS {
        input.make_or_flush(chain);
    }
    for chain in &ruleset.chains {
        let mut wanted: Vec<&Rule> = chain.rules.iter().collect();
        if !chain.name.is_ours() {
            for line in saved.our_jumps(chain.name) {
                match position(&wanted, line) {
                    Some(kept) => drop(wanted.remove(kept)),
                    None => input.delete(chain.name, line.specification()),
                }
            }
        }
        for rule in wanted {
            input.append(chain.name, rule);
        }
    }
    input.finish()
}

/// No jump to our chains, and no chains of ours.
fn remove_input(saved: &Saved) -> String {
    let mut input = Input::new();
    for base in BASE_CHAINS {
        for line in saved.our_jumps(base) {
            input.delete(base, line.specification());
        }
    }
    for chain in OUR_CHAINS {
        input.make_or_flush(chain);
    }
    for chain in OUR_CHAINS {
        input.delete_chain(chain);
    }
    input.finish()
}

/// From the ruleset, or no rules of ours, back to what was there before.
fn undo_input(ruleset: Option<&Ruleset>, saved: &Saved) -> String {
    let mut input = Input::new();
    for chain in OUR_CHAINS {
        input.make_or_flush(chain);
        for line in saved.lines(chain) {
            input.append_saved(line);
        }
    }
    for base in BASE_CHAINS {
        let rules = ruleset.into_iter().flat_map(Ruleset::rules);
        let mut installed: Vec<&Rule> = rules
            .filter(|(chain, _)| *chain == base)
            .map(|(_, rule)| rule)
            .collect();
        for line in saved.our_jumps(base) {
            match position(&installed, line) {
                Some(kept) => drop(installed.remove(kept)),
                None => input.append_saved(line),
            }
        }
        for rule in installed {
            input.delete(base, rule);
        }
    }
    for chain in OUR_CHAINS.into_iter().filter(|&chain| !saved.has(chain)) {
        input.delete_chain(chain);
    }
    input.finish()
}

/// Which of the rules the line is.
fn position(rules: &[&Rule], line: &Line) -> Option<usize> {
    let found = line.rule()?;
    rules.iter().position(|&rule| *rule == found)
}

/// What a failed command means, by its exit code and its words.
fn check(program: &Path, finished: &Finished) -> Result<(), Error> {
    if finished.status.success() {
        return Ok(());
    }
    let stderr = finished.stderr.replace('\n', "; ");
    let says = |words: &[&str]| words.iter().any(|word| stderr.contains(word));
    Err(if says(&["holding the xtables lock"]) {
        Error::LockHeld { stderr }
    } else if says(&["open lock file"]) {
        Error::LockFile { stderr }
    } else if says(&["you must be root", "Permission denied"]) {
        Error::NotPermitted { mode: Mode::Legacy }
    } else if says(&["unable to initialize table", "can't initialize ip"]) {
        Error::NoLegacyTables { stderr }
    } else {
        Error::CommandRefused {
            command: program.to_owned(),
            status: finished.status.to_string(),
            stderr,
        }
    })
}

fn run(program: &Path, arguments: &[&str], input: &str, limit: Option<Duration>) -> Result<Finished, Error> {
    child::run(program, arguments, input, limit).map_err(|unfinished| match unfinished {
        Unfinished::Failed(error) => Error::CommandFailed {
            command: program.to_owned(),
            error,
        },
        Unfinished::Hung => Error::CommandHung {
            command: program.to_owned(),
            seconds: LIMIT.as_secs(),
        },
    })
}
