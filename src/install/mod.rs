//! Installing the rules.

pub mod choose;
mod close_wait;
pub mod host_network;

use std::cell::OnceCell;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{fmt, mem};

use netfilter::netlink::Generation;
use netfilter::nf_tables::held::HeldRule;
use netfilter::nf_tables::read::{Snapshot, back_off};
use ruleset::xtables::IptablesRule;
use ruleset::{Family, NAT, Ruleset, Table, TableFamily, Unseen, nftables};

use crate::config::warnings::warnings;
use crate::config::{Config, Mode, ModeChoice};
use crate::error::{Error, ModeError};
use crate::install::choose::{Facts, Reason, try_out};
use crate::install::close_wait::CloseWaitTimeout;
use crate::install::host_network::HostNetwork;
use crate::modes::Removed;
use crate::modes::legacy::read::Lists;
use crate::modes::legacy::restore;
use crate::modes::legacy::{self, Legacy, has_sockets};
use crate::modes::netlink::{self, Seen};
use crate::netns;
use crate::notice::{OperationNotice, Warning};
use crate::ownership::holders;
use crate::plan::tables::expected;

/// An installation to run. [`Install::new`] has the defaults, and every field can be set.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Install {
    /// The rules.
    pub config: Config,
    /// In which mode; by default whatever fits, [`ModeChoice::Auto`].
    pub mode: ModeChoice,
    /// A directory in which iptables commands are looked for before PATH.
    pub iptables_dir: Option<PathBuf>,
    /// Wait for the xtables lock, however long another program holds it. Only legacy mode needs the lock.
    pub wait_for_lock: bool,
    /// Remove our rules from other backends. Otherwise, finding any is an error.
    pub replace_other_backend: bool,
    /// The network namespace to work in, such as `/var/run/netns/NAME`; none for that of the calling thread. The
    /// calling thread stays where it is.
    pub netns: Option<PathBuf>,
    /// The namespace's nf_conntrack_tcp_timeout_close_wait, in seconds; none leaves the setting as it is.
    pub close_wait_timeout: Option<u32>,
    /// The treatment of the machine's own namespace.
    pub host_network: HostNetwork,
    /// Fail where a mode can't be used here, instead of falling back to the next that may: nft mode needs no iptables,
    /// native mode no xtables.
    pub no_fallback: bool,
}

/// The rules to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Simulate {
    /// Those of all families, to be read; `iptables-restore` refuses that text.
    AllFamilies,
    /// Those of this family, as input for its restore command.
    Only(Family),
}

/// A finished installation.
#[derive(Debug)]
#[non_exhaustive]
pub struct Installed {
    /// The mode that was used.
    pub mode: Mode,
    /// Why that mode was used.
    pub reason: Reason,
    /// The tables that the mode made: one for each family or, in native mode, one for both.
    pub(crate) tables: Vec<Table>,
    /// True if anything had to be changed: the same rules may have been there before.
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

/// The sleep between two checks for that.
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

    /// As [`Install::run`], and reports each event to `tell`, also if the run then fails.
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
        let mut installation = Installation {
            install: self,
            tell,
            legacy: self.legacy(),
            lists: OnceCell::new(),
            tables: Vec::new(),
            warnings,
            replaced: Vec::new(),
            changed: false,
        };
        let start = Instant::now();
        let used = installation.install();
        if let (Err(_), Some(timeout)) = (&used, timeout) {
            timeout.undo();
        }
        let (mode, reason) = used?;
        Ok(Installed {
            mode,
            reason,
            tables: installation.tables,
            changed: installation.changed,
            replaced: installation.replaced,
            warnings: installation.warnings,
            took: start.elapsed(),
        })
    }

    /// The mode that is tried first, and the reason. Auto goes by the `facts`.
    pub(super) fn first_mode(&self, facts: impl FnOnce() -> Result<Facts, Error>) -> Result<(Mode, Reason), Error> {
        Ok(match self.mode {
            ModeChoice::Default => (Mode::Legacy, Reason::Default),
            ModeChoice::Mode(mode) => (mode, Reason::Named),
            ModeChoice::Plain => match self.legacy().are_nf_tables() {
                Ok(true) => (Mode::Nft, Reason::Plain),
                Ok(false) | Err(ModeError::NoCommand { .. }) => (Mode::Legacy, Reason::Plain),
                Err(error) => return Err(error.in_mode(Mode::Legacy)),
            },
            ModeChoice::Auto => facts()?.first(),
        })
    }

    pub(super) fn legacy(&self) -> Legacy {
        let is_plain = self.mode == ModeChoice::Plain;
        Legacy { is_plain, folder: self.iptables_dir.clone(), wait: self.wait_for_lock, ..Legacy::default() }
    }

    /// Finds all the commands that legacy mode needs.
    ///
    /// # Errors
    /// [`ModeError::NoCommand`]
    pub(super) fn find_commands(&self, legacy: &Legacy) -> Result<(), Error> {
        let mut families = self.config.families().iter().filter(|&&family| has_sockets(family));
        let found = families.try_for_each(|&family| legacy.restore(family).map(drop));
        found.map_err(|error| error.in_mode(Mode::Legacy))
    }

    /// The error about what this host lacks for a mode, if another mode does without it. Nothing is installed.
    fn missing_requirement(&self, mode: Mode) -> Option<Error> {
        let tried = match mode {
            Mode::Legacy => {
                let check = || legacy::check(&expected(mode, &self.config)).map_err(|error| error.in_mode(mode));
                self.find_commands(&self.legacy()).and_then(|()| check())
            }
            Mode::Nft | Mode::Native => try_out(mode, &self.config),
        };
        tried.err().filter(|error| error.mode_instead(mode).is_some())
    }

    /// Returns true if an installation that begins in one mode falls back to another, because neither the first mode
    /// can be used here nor any between the two.
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

/// An installation that is under way.
struct Installation<'a, 't> {
    install: &'a Install,
    tell: Tell<'t>,
    legacy: Legacy,
    /// The kernel's lists of legacy tables, opened once, as soon as they are needed.
    lists: OnceCell<Lists>,
    /// The tables of the mode that was tried last.
    tables: Vec<Table>,
    warnings: Vec<Warning>,
    replaced: Vec<Mode>,
    changed: bool,
}

impl Installation<'_, '_> {
    /// Tries the modes that may do, one after the other, each by installing: a batch that is only checked is discarded, which
    /// takes the kernel milliseconds. Returns the mode that was used, and why.
    fn install(&mut self) -> Result<(Mode, Reason), Error> {
        let is_auto = self.install.mode == ModeChoice::Auto;
        let mut known = None;
        let first = self.install.first_mode(|| {
            let Seen { ruleset, generation } = netlink::held()?;
            let facts = Facts::of(&ruleset, &self.legacy_tables()?)?;
            known = generation.map(|generation| Snapshot { generation, tables: ruleset.tables });
            Ok(facts)
        });
        let (mut mode, mut reason) = first?;
        loop {
            let is_choice = is_auto && !matches!(reason, Reason::FellBack(_));
            if is_choice && !reason.is_trial() {
                (self.tell)(OperationNotice::Chose(mode, &reason));
            }
            let Err(error) = self.install_in(mode, known.take()) else {
                if is_choice && reason.is_trial() {
                    (self.tell)(OperationNotice::Chose(mode, &reason));
                }
                return Ok((mode, reason));
            };
            let next = if reason.is_trial() { reason.next(error) } else { self.fall_back(mode, error) };
            (mode, reason) = next.map_err(|error| self.with_fallbacks(error))?;
        }
    }

    /// Installs in a mode. The tables of nf_tables that are `known` aren't read again.
    ///
    /// # Errors
    /// Another mode holds our rules, which are not to be replaced; or something is missing or was refused.
    fn install_in(&mut self, mode: Mode, known: Option<Snapshot<HeldRule>>) -> Result<(), Error> {
        self.tables = expected(mode, &self.install.config);
        let mut unseen = None;
        // Nothing else has committed to most namespaces, and the kernel says so if it has.
        let known = known.unwrap_or_else(Snapshot::fresh);
        let is_fresh = known.generation == Generation::FRESH;
        let mut known = Some(known);
        if mode == Mode::Legacy {
            self.install.find_commands(&self.legacy)?;
            self.refuse_others(mode, &netlink::nf_tables_modes()?)?;
            (self.tell)(OperationNotice::RunningCommands { waits: self.install.wait_for_lock });
            self.tables = legacy::tables_with_sockets(mem::take(&mut self.tables));
        } else {
            let mut held = match self.legacy_tables() {
                // Without the privilege to read them, there is none to install either, and installing says so.
                Err(Error::InMode(_, ModeError::NotPermitted(_))) => Ruleset::default(),
                held => held?,
            };
            let holders: Vec<Mode> = holders(&held).collect();
            self.refuse_others(mode, &holders)?;
            if !holders.is_empty() {
                known = None;
            } else {
                unseen = held.not_known.pop();
            }
        }
        let is_as_known = self.commit(mode, known);
        if let Some(unseen) = unseen {
            self.tell_unseen(unseen, is_fresh && matches!(is_as_known, Ok(true)));
        }
        is_as_known?;
        self.settle_with_others(mode)
    }

    /// Refuses to install beside other modes that hold our rules, unless those are to be replaced.
    fn refuse_others(&self, mode: Mode, others: &[Mode]) -> Result<(), Error> {
        match others.first() {
            Some(&other) if !self.install.replace_other_backend => Err(ModeError::OtherBackend(other).in_mode(mode)),
            _ => Ok(()),
        }
    }

    /// Warns of legacy tables that can't be seen. In a new pod, where nothing was ever committed to nf_tables, they are
    /// hardly worth a warning. Auto may have tried another mode before, and warned.
    fn tell_unseen(&mut self, unseen: Unseen, is_untouched: bool) {
        if is_untouched && unseen.not_permitted {
            (self.tell)(OperationNotice::LegacyUnseen(&unseen));
        } else if !self.warnings.iter().any(|warning| matches!(warning, Warning::LegacyUnseen(_))) {
            self.warn(Warning::LegacyUnseen(unseen));
        }
    }

    fn warn(&mut self, warning: Warning) {
        (self.tell)(OperationNotice::Warning(&warning));
        self.warnings.push(warning);
    }

    /// Commits the mode's tables. Over netlink, the same transaction replaces the rules of the other such mode. Returns true
    /// if what was `known` of nf_tables was still so.
    fn commit(&mut self, mode: Mode, known: Option<Snapshot<HeldRule>>) -> Result<bool, Error> {
        if mode == Mode::Legacy {
            self.changed |= self.legacy.install(&self.tables)?;
            return Ok(false);
        }
        let done = netlink::install(mode, &self.tables, self.install.replace_other_backend, known)?;
        self.changed |= done.changed;
        if let Some(other) = done.replaced {
            self.report_replaced(other);
        }
        Ok(done.is_as_known)
    }

    /// The mode that does without what this host lacks for one that failed, as linkerd-init uses whatever iptables it finds.
    ///
    /// # Errors
    /// No other mode helps.
    fn fall_back(&mut self, mode: Mode, error: Error) -> Result<(Mode, Reason), Error> {
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
        let Some(next) = missing.mode_instead(mode) else {
            return Err(missing);
        };
        self.warn(Warning::FellBack { missing, mode: next });
        Ok((next, Reason::FellBack(mode)))
    }

    /// The error of the mode that was tried last, with those of the modes before it.
    fn with_fallbacks(&mut self, last: Error) -> Error {
        let mut error = last;
        for warning in self.warnings.drain(..).rev() {
            if let Warning::FellBack { missing, mode } = warning {
                error = Error::Fallback { missing: Box::new(missing), mode, error: Box::new(error) };
            }
        }
        error
    }

    /// The other modes that hold our rules, among those that a commit in this mode doesn't exclude.
    fn other_modes(&self, mode: Mode) -> Result<Vec<Mode>, Error> {
        let others = match mode {
            Mode::Legacy => netlink::nf_tables_modes(),
            Mode::Nft | Mode::Native => self.legacy_tables().map(|legacy| holders(&legacy).collect()),
        };
        others.map_err(|error| Error::InstalledUnchecked { mode, error: Box::new(error) })
    }

    /// Looks, after this mode's rules were committed, whether another mode was given rules at the same time: no
    /// generation guards both nf_tables and legacy tables. In the end one of the two is left, and whoever reports
    /// success has rules.
    ///
    /// Those of the others are replaced, if that was asked for. As the other run may have replaced this one's
    /// meanwhile, they are installed again, and it looks again. Otherwise legacy mode gives way, and this mode waits
    /// for that. If the other run was done before this one committed, it has nothing to give way to, so then this one
    /// does.
    fn settle_with_others(&mut self, mode: Mode) -> Result<(), Error> {
        let is_replacing = self.install.replace_other_backend;
        let deadline = Instant::now() + PATIENCE;
        for attempt in 1.. {
            let others = self.other_modes(mode)?;
            let Some(&first) = others.first() else {
                break;
            };
            let may_wait = mode != Mode::Legacy && Instant::now() < deadline;
            let is_over = if is_replacing { attempt > TRIES } else { !may_wait };
            if is_over {
                return Err(self.give_way(mode, first));
            }
            if !is_replacing {
                sleep(PAUSE);
                continue;
            }
            for other in others {
                let removed =
                    self.remove(other).map_err(|error| Error::NotReplaced { mode, other, error: Box::new(error) })?;
                if removed.any {
                    self.report_replaced(other);
                }
            }
            self.commit(mode, None).map_err(|error| Error::ReplacedEachOther {
                mode,
                other: first,
                error: Box::new(error),
            })?;
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

    /// The nat tables in which legacy mode may have rules. In a fresh namespace, this only looks at which there are.
    fn legacy_tables(&self) -> Result<Ruleset, Error> {
        let lists = self.lists.get_or_init(|| Lists::open(&[NAT]));
        lists.read(|family, name| name == NAT && has_sockets(family))
    }
}
