//! Installing the rules.

pub mod choose;
mod close_wait;
pub mod host_network;

use std::cell::OnceCell;
use std::fmt;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use netfilter::nf_tables::read::back_off;
use ruleset::Ruleset;
use ruleset::xtables::IptablesRule;
use ruleset::{Family, NAT, Subsystem, Table, TableFamily, nftables};

use crate::config::warnings::warnings;
use crate::config::{Config, Mode, ModeChoice};
use crate::error::{Error, ModeError};
use crate::install::choose::{Found, Reason, choose, try_out};
use crate::install::close_wait::CloseWaitTimeout;
use crate::install::host_network::HostNetwork;
use crate::modes::Removed;
use crate::modes::legacy::read::Lists;
use crate::modes::legacy::restore;
use crate::modes::legacy::{self, Legacy, has_sockets};
use crate::modes::netlink;
use crate::netns;
use crate::notice::{OperationNotice, Warning};
use crate::ownership::{holders, holds_rules};
use crate::plan::tables::expected;

/// What to install, and how. [`Install::new`] has the defaults, and every field can be set.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Install {
    /// Which rules.
    pub config: Config,
    /// In which mode; by default whatever fits, [`ModeChoice::Auto`].
    pub mode: ModeChoice,
    /// A directory in which iptables commands are looked for before PATH.
    pub iptables_dir: Option<PathBuf>,
    /// Wait for the xtables lock, however long another program holds it. Only legacy mode needs the lock.
    pub wait_for_lock: bool,
    /// Remove proxy-init's rules from other backends. Otherwise, finding any is an error.
    pub replace_other_backend: bool,
    /// The network namespace to work in, such as `/var/run/netns/NAME`; none for that of the calling thread. The
    /// calling thread stays where it is.
    pub netns: Option<PathBuf>,
    /// What to set the namespace's nf_conntrack_tcp_timeout_close_wait to, in seconds; none leaves it as it is.
    pub close_wait_timeout: Option<u32>,
    /// What to do if the namespace is the machine's own.
    pub host_network: HostNetwork,
    /// Fail where a mode can't be used here, instead of falling back to the next that may: nft mode needs no iptables,
    /// native mode no xtables.
    pub no_fallback: bool,
}

/// Which rules to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
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
    /// Why that mode was used.
    pub reason: Reason,
    /// The tables that the mode made: one for each family or, in native mode, one for both.
    pub(crate) tables: Vec<Table>,
    /// Whether anything had to be changed: the same rules may have been there before.
    pub changed: bool,
    /// The other modes whose rules were removed.
    pub replaced: Vec<Mode>,
    /// Everything that was not as it should be.
    pub warnings: Vec<Warning>,
    /// How long it took.
    pub took: Duration,
}

impl Installed {
    /// How many rules there are, in both families together.
    pub fn rules(&self) -> usize {
        self.tables.iter().flat_map(Table::rules).count()
    }

    /// Hands each rule to `tell`, as the command that would add it: iptables' or, in native mode, nft's.
    pub fn commands(&self, mut tell: impl FnMut(fmt::Arguments<'_>)) {
        for table in &self.tables {
            let TableFamily::Ip(family) = table.family else {
                nftables::commands(table, &mut tell);
                continue;
            };
            let command = self.mode.iptables(family);
            for chain in &table.chains {
                for rule in &chain.rules {
                    tell(format_args!("{command} -t nat -A {} {:#}", chain.name, IptablesRule(rule)));
                }
            }
        }
    }
}

/// How long nft and native mode wait for legacy mode, which looks at nf_tables after its commands, to give way.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long to sleep between two checks whether it has.
const PAUSE: Duration = Duration::from_millis(10);

/// How often rules are installed again that another run has replaced.
const TRIES: u32 = 20;

type Tell<'a> = &'a mut (dyn FnMut(OperationNotice<'_>) + Send);

impl Install {
    /// Installs these rules in whichever mode fits.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            mode: ModeChoice::Auto,
            iptables_dir: None,
            wait_for_lock: false,
            replace_other_backend: false,
            netns: None,
            close_wait_timeout: None,
            host_network: HostNetwork::Warn,
            no_fallback: false,
        }
    }

    /// Installs the rules, all of them or none. Rules of an earlier run are replaced; those of other programs stay.
    ///
    /// # Errors
    /// See [`Error`]; unless the error says otherwise, nothing has changed then.
    pub fn run(&self) -> Result<Installed, Error> {
        self.run_with(|_| ())
    }

    /// As [`Install::run`], and tells `tell` what happens while it does, also if the run then fails.
    ///
    /// # Errors
    /// As [`Install::run`].
    pub fn run_with(&self, mut tell: impl FnMut(OperationNotice<'_>) + Send) -> Result<Installed, Error> {
        netns::run_in(self.netns.as_deref(), || self.run_here(&mut tell))
    }

    /// The rules as text, for `iptables-restore` or, in native mode, which has one table for both families, for
    /// `nft -f`. Changes nothing and needs no privilege.
    pub fn simulate(&self, simulate: Simulate) -> String {
        if self.mode == ModeChoice::Mode(Mode::Native) {
            return expected(Mode::Native, &self.config).iter().map(nftables::script).collect();
        }
        let mut planned = expected(Mode::Nft, &self.config);
        if let Simulate::Only(family) = simulate {
            planned.retain(|table| table.family == TableFamily::Ip(family));
        }
        restore::simulation(&planned)
    }

    fn run_here(&self, tell: Tell<'_>) -> Result<Installed, Error> {
        let is_host_network = self.host_network != HostNetwork::Allow && host_network::is_here();
        if is_host_network && self.host_network == HostNetwork::Refuse {
            return Err(Error::HostNetwork);
        }
        let timeout = self.close_wait_timeout.map(CloseWaitTimeout::set).transpose()?;
        let mut warnings: Vec<Warning> = warnings(&self.config).into_iter().map(Warning::Config).collect();
        if self.config.ipv6 && !legacy::has_ipv6() {
            warnings.push(Warning::NoIpv6);
        }
        if is_host_network {
            warnings.push(Warning::HostNetwork);
        }
        warnings.iter().for_each(|warning| tell(OperationNotice::Warning(warning)));
        let mut work = Work {
            install: self,
            tables: Vec::new(),
            tell,
            lists: OnceCell::new(),
            warnings,
            replaced: Vec::new(),
            changed: false,
        };
        let start = Instant::now();
        let used = work.run();
        if let (Err(_), Some(timeout)) = (&used, timeout) {
            timeout.undo();
        }
        let (mode, reason) = used?;
        Ok(Installed {
            mode,
            reason,
            tables: work.tables,
            changed: work.changed,
            replaced: work.replaced,
            warnings: work.warnings,
            took: start.elapsed(),
        })
    }

    /// The mode to begin with, and the reason for it. `check` is as in [`choose`].
    pub(super) fn choose_mode(&self, check: impl FnMut(Mode) -> Result<(), Error>) -> Result<(Mode, Reason), Error> {
        Ok(match self.mode {
            ModeChoice::Default => (Mode::Legacy, Reason::Default),
            ModeChoice::Mode(mode) => (mode, Reason::Named),
            ModeChoice::Plain => match self.legacy().are_nf_tables() {
                Ok(true) => (Mode::Nft, Reason::Plain),
                Ok(false) | Err(Error::NoCommand { .. }) => (Mode::Legacy, Reason::Plain),
                Err(error) => return Err(error),
            },
            ModeChoice::Auto => choose(&Found::of(&netlink::held()?, &legacy::read::read()?)?, check)?,
        })
    }

    fn legacy(&self) -> Legacy {
        let is_plain = self.mode == ModeChoice::Plain;
        Legacy { is_plain, folder: self.iptables_dir.clone(), wait: self.wait_for_lock, ..Legacy::default() }
    }

    /// Legacy mode with all the commands that it needs.
    ///
    /// # Errors
    /// [`Error::NoCommand`]
    pub(super) fn installed_legacy(&self) -> Result<Legacy, Error> {
        let legacy = self.legacy();
        for &family in self.config.families().iter().filter(|&&family| has_sockets(family)) {
            legacy.restore(family)?;
        }
        Ok(legacy)
    }

    /// The error about what this host lacks for a mode, if another mode does without it. Nothing is installed.
    fn missing_requirement(&self, mode: Mode) -> Option<Error> {
        let tried = match mode {
            Mode::Legacy => self.installed_legacy().and_then(|_| legacy::check(&expected(mode, &self.config))),
            Mode::Nft | Mode::Native => try_out(mode, &self.config),
        };
        tried.err().filter(|error| error.mode_instead(mode).is_some())
    }

    /// Whether an installation that begins in one mode falls back to another, because neither the first mode can be used here
    /// nor any between the two.
    pub(super) fn falls_back(&self, from: Mode, to: Mode) -> bool {
        let mut mode = from;
        while mode != to && !self.no_fallback && self.missing_requirement(mode).is_some() {
            match mode.fallback() {
                Some(next) if next == to => return true,
                Some(next) => mode = next,
                None => return false,
            }
        }
        false
    }
}

struct Work<'a, 't> {
    install: &'a Install,
    /// The tables of the mode that was tried last.
    tables: Vec<Table>,
    tell: Tell<'t>,
    /// Opened once, as soon as they are needed.
    lists: OnceCell<Lists>,
    warnings: Vec<Warning>,
    replaced: Vec<Mode>,
    changed: bool,
}

impl Work<'_, '_> {
    /// Returns the mode that was used, and the reason for it.
    fn run(&mut self) -> Result<(Mode, Reason), Error> {
        if self.install.mode == ModeChoice::Auto
            && let Some((mode, reason)) = self.install_if_untouched()?
        {
            (self.tell)(OperationNotice::Chose(mode, &reason));
            self.settle_over_netlink(mode)?;
            return Ok((mode, reason));
        }
        let mut is_installed = false;
        // Installing is itself the check: a batch that is only checked is discarded, which takes milliseconds.
        let (mode, reason) = self.install.choose_mode(|mode| {
            if mode != Mode::Legacy {
                self.install_over_netlink(mode)?;
                is_installed = true;
            }
            Ok(())
        })?;
        if self.install.mode == ModeChoice::Auto {
            (self.tell)(OperationNotice::Chose(mode, &reason));
        }
        if is_installed {
            return Ok((mode, reason));
        }
        self.install_or_fall_back(mode, reason)
    }

    /// Installs in a mode or, if this host lacks what it needs, in the one that does without, as linkerd-init uses whatever
    /// iptables it finds.
    fn install_or_fall_back(&mut self, mode: Mode, reason: Reason) -> Result<(Mode, Reason), Error> {
        let installed = match mode {
            Mode::Legacy => self.install_legacy(),
            Mode::Nft | Mode::Native => self.install_over_netlink(mode),
        };
        let Err(error) = installed else {
            return Ok((mode, reason));
        };
        let (missing, next) = self.find_fallback(mode, error)?;
        let warning = Warning::FellBack { missing, mode: next };
        (self.tell)(OperationNotice::Warning(&warning));
        match (self.install_or_fall_back(next, Reason::FellBack(mode)), warning) {
            (Err(error), Warning::FellBack { missing, mode }) => {
                Err(Error::Fallback { missing: Box::new(missing), mode, error: Box::new(error) })
            }
            (result, warning) => {
                self.warnings.push(warning);
                result
            }
        }
    }

    /// After a mode failed: the error about what is missing, and the mode that does without it.
    ///
    /// # Errors
    /// No other mode helps.
    fn find_fallback(&self, mode: Mode, error: Error) -> Result<(Error, Mode), Error> {
        if self.install.no_fallback {
            return Err(error);
        }
        let missing = match error {
            // An earlier run has fallen back to where the rules are now.
            Error::InMode(_, ModeError::OtherBackend(other)) if self.install.falls_back(mode, other) => {
                self.install.missing_requirement(mode).unwrap_or(error)
            }
            error => error,
        };
        match missing.mode_instead(mode) {
            Some(next) => Ok((missing, next)),
            None => Err(missing),
        }
    }

    /// Auto's fast path: in an untouched namespace, where no backend holds a rule, installing is itself the probe.
    /// Probing first, in a transaction that is aborted, takes ten times as long, because the kernel waits there.
    /// Returns what was chosen; where something is refused, nothing has changed, and [`choose`] looks closely.
    fn install_if_untouched(&mut self) -> Result<Option<(Mode, Reason)>, Error> {
        let legacy = match self.legacy_tables() {
            Ok(legacy) if legacy.nat_rules(Subsystem::Legacy) == 0 => legacy,
            _ => return Ok(None),
        };
        let lack = match self.install_if_fresh(Mode::Nft) {
            Ok(true) => {
                let legacy_hidden = !legacy.not_known.is_empty();
                return Ok(Some((Mode::Nft, Reason::Supported { legacy_hidden })));
            }
            Err(error) if error.rules_out_nft_mode() => error,
            Err(error @ Error::InMode(_, ModeError::Unanswered(_))) => return Err(error),
            _ => return Ok(None),
        };
        match self.install_if_fresh(Mode::Native) {
            Ok(true) => Ok(Some((Mode::Native, Reason::NftLacks(lack)))),
            Err(error @ Error::InMode(_, ModeError::Unanswered(_))) => Err(error),
            _ => Ok(None),
        }
    }

    fn install_if_fresh(&mut self, mode: Mode) -> Result<bool, Error> {
        self.tables = expected(mode, &self.install.config);
        self.changed = netlink::install_if_fresh(mode, &self.tables)?;
        Ok(self.changed)
    }

    fn install_over_netlink(&mut self, mode: Mode) -> Result<(), Error> {
        self.tables = expected(mode, &self.install.config);
        // In a fresh namespace, this only looks at which legacy tables there are.
        let mut legacy = match self.legacy_tables() {
            // Without the privilege to read them, there is none to install either, and installing says so.
            Err(Error::InMode(_, ModeError::NotPermitted(_))) => Ruleset::default(),
            legacy => legacy?,
        };
        let in_legacy = holds_rules(&legacy, Mode::Legacy);
        if in_legacy && !self.install.replace_other_backend {
            return Err(ModeError::OtherBackend(Mode::Legacy).in_mode(mode));
        }
        // Auto may have tried another mode before, which warned.
        let has_warned = self.warnings.iter().any(|it| matches!(it, Warning::LegacyUnseen(_)));
        if let Some(unseen) = legacy.not_known.pop().filter(|_| !in_legacy && !has_warned) {
            let warning = Warning::LegacyUnseen(unseen);
            (self.tell)(OperationNotice::Warning(&warning));
            self.warnings.push(warning);
        }
        // Auto has tried that already.
        let try_fresh = self.install.mode != ModeChoice::Auto && !in_legacy;
        self.commit(mode, try_fresh)?;
        self.settle_over_netlink(mode)
    }

    fn commit(&mut self, mode: Mode, try_fresh: bool) -> Result<(), Error> {
        let (changed, replaced) = netlink::install(mode, &self.tables, self.install.replace_other_backend, try_fresh)?;
        self.changed |= changed;
        if let Some(other) = replaced {
            self.report_replaced(other);
        }
        Ok(())
    }

    fn settle_over_netlink(&mut self, mode: Mode) -> Result<(), Error> {
        self.settle_with_others(mode, |work| work.commit(mode, false))
    }

    /// The other modes that hold proxy-init's rules, among those that a commit in this mode doesn't exclude.
    fn other_modes(&self, mode: Mode) -> Result<Vec<Mode>, Error> {
        let others = match mode {
            Mode::Legacy => netlink::nf_tables_modes(),
            Mode::Nft | Mode::Native => self.legacy_tables().map(|legacy| holders(&legacy).collect()),
        };
        others.map_err(|error| Error::InstalledUnchecked { mode, error: Box::new(error) })
    }

    fn install_legacy(&mut self) -> Result<(), Error> {
        let mode = Mode::Legacy;
        let legacy = self.install.installed_legacy()?;
        if let Some(&other) = netlink::nf_tables_modes()?.first()
            && !self.install.replace_other_backend
        {
            return Err(ModeError::OtherBackend(other).in_mode(mode));
        }
        (self.tell)(OperationNotice::RunningCommands { waits: self.install.wait_for_lock });
        self.tables = legacy::tables_with_sockets(expected(mode, &self.install.config));
        self.changed |= legacy.install(&self.tables)?;
        self.settle_with_others(mode, |work| {
            work.changed |= legacy.install(&work.tables)?;
            Ok(())
        })
    }

    /// Looks, after this mode's rules were committed, whether another mode was given rules at the same time: no
    /// generation guards both nf_tables and legacy tables. In the end one of the two is left, and whoever reports
    /// success has rules.
    ///
    /// Those of the others are replaced, if that was asked for. As the other run may have replaced this one's
    /// meanwhile, they are installed again, and it looks again. Otherwise legacy mode gives way, and this mode waits
    /// for that. If the other run was done before this one committed, it has nothing to give way to, so then this one
    /// does.
    fn settle_with_others(
        &mut self,
        mode: Mode,
        install: impl Fn(&mut Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if !self.install.replace_other_backend {
            let deadline = Instant::now() + PATIENCE;
            loop {
                match self.other_modes(mode)?.first() {
                    None => return Ok(()),
                    Some(_) if mode != Mode::Legacy && Instant::now() < deadline => sleep(PAUSE),
                    Some(&other) => return Err(self.give_way(mode, other)),
                }
            }
        }
        for attempt in 1.. {
            let others = self.other_modes(mode)?;
            let Some(&first) = others.first() else {
                break;
            };
            if attempt > TRIES {
                return Err(self.give_way(mode, first));
            }
            for other in others {
                let removed =
                    self.remove(other).map_err(|error| Error::NotReplaced { mode, other, error: Box::new(error) })?;
                if removed.any {
                    self.report_replaced(other);
                }
            }
            install(self).map_err(|error| Error::ReplacedEachOther { mode, other: first, error: Box::new(error) })?;
            // Two that remove each other's rules in step would go on for ever.
            back_off(attempt);
        }
        Ok(())
    }

    /// Removes this mode's rules again, as another mode has some. Those that were there before stay: the run that
    /// installed them may have succeeded, and whoever brought the other mode's finds them as it looks again.
    fn give_way(&mut self, mode: Mode, other: Mode) -> Error {
        if !self.changed {
            return ModeError::OtherBackend(other).in_mode(mode);
        }
        Error::InstalledMeanwhile { mode, other, not_removed: self.remove(mode).err().map(Box::new) }
    }

    fn remove(&self, mode: Mode) -> Result<Removed, Error> {
        netlink::remove(mode, &Legacy { is_plain: false, ..self.install.legacy() })
    }

    fn report_replaced(&mut self, other: Mode) {
        (self.tell)(OperationNotice::Removed(other));
        if !self.replaced.contains(&other) {
            self.replaced.push(other);
        }
    }

    /// The nat tables in which legacy mode may have rules.
    fn legacy_tables(&self) -> Result<Ruleset, Error> {
        let lists = self.lists.get_or_init(|| Lists::open(&[NAT]));
        lists.read(|family, name| name == NAT && has_sockets(family))
    }
}
