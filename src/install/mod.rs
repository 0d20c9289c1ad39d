//! Installing the rules.

pub mod choose;
mod close_wait;
pub mod host_network;

use std::cell::OnceCell;
use std::fmt;
use std::mem;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use netfilter::netlink::Generation;
use netfilter::nf_tables::held::HeldRule;
use netfilter::nf_tables::read::{Snapshot, back_off};
use ruleset::xtables::IptablesRule;
use ruleset::{Family, NAT, Numbered, Ruleset, Table, TableFamily, Unseen, nftables};

use crate::config::warnings::warnings;
use crate::config::{Config, Mode, ModeChoice};
use crate::error::{Error, ModeError};
use crate::install::choose::Reason;
use crate::install::close_wait::CloseWaitTimeout;
use crate::install::host_network::HostNetwork;
use crate::modes::commit::transact;
use crate::modes::legacy::read::Lists;
use crate::modes::legacy::restore;
use crate::modes::legacy::{self, Legacy, has_sockets};
use crate::modes::{self, install_edits, nf_tables, try_out};
use crate::netns::Namespace;
use crate::notice::{OperationNotice, Warning};
use crate::ownership::holders;
use crate::plan::tables::expected;

/// An installation to run. [`Install::new`] has the defaults, and every field can be set.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Install {
    /// The rules.
    pub config: Config,
    /// The mode; by default whatever fits, [`ModeChoice::Auto`].
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
    /// The reason why that mode was used.
    pub reason: Reason,
    /// The tables that the mode made: one for each family or, in native mode, one for both.
    pub(crate) tables: Vec<Table>,
    /// True if anything had to be changed: the same rules may have been there before.
    pub changed: bool,
    /// The other modes whose rules were removed.
    pub replaced: Vec<Mode>,
    /// Everything that was not as it should be.
    pub warnings: Vec<Warning>,
    /// The time that it took.
    pub took: Duration,
}

impl Installed {
    /// The number of rules, in both families together.
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

/// The time that nft and native mode wait for legacy mode, which looks at nf_tables after its commands, to give way.
const PATIENCE: Duration = Duration::from_secs(2);

/// The sleep between two checks for that.
const PAUSE: Duration = Duration::from_millis(10);

/// The most times that rules are installed again that another run has replaced.
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
    pub fn run_with(&self, mut tell: impl FnMut(OperationNotice<'_>) + Send) -> Result<Installed, Error> {
        match &self.netns {
            Some(path) => Namespace::open(path)?.run(|| self.run_here(&mut tell))?,
            None => self.run_here(&mut tell),
        }
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

    /// Tries the modes that may do, one after the other, each by installing: a batch that is only checked is discarded,
    /// which takes the kernel milliseconds.
    fn run_here(&self, tell: Tell<'_>) -> Result<Installed, Error> {
        let mut installation = Installation::begin(self, tell)?;
        let (mut mode, mut reason) = match self.named_mode()? {
            Some(named) => named,
            None => installation.first_choice()?,
        };
        loop {
            let is_choice = self.mode == ModeChoice::Auto && !matches!(reason, Reason::FellBack(_));
            if is_choice && !reason.is_trial() {
                (installation.tell)(OperationNotice::Chose(mode, &reason));
            }
            let Err(error) = installation.install_in(mode) else {
                if is_choice && reason.is_trial() {
                    (installation.tell)(OperationNotice::Chose(mode, &reason));
                }
                return Ok(installation.finish(mode, reason));
            };
            let next = if reason.is_trial() { reason.next(error) } else { installation.fall_back(mode, error) };
            (mode, reason) = next.map_err(|error| installation.with_fallbacks(error))?;
        }
    }

    /// The mode that is tried first, and the reason; none: auto goes by the rules that are there.
    pub(crate) fn named_mode(&self) -> Result<Option<(Mode, Reason)>, Error> {
        Ok(Some(match self.mode {
            ModeChoice::Default => (Mode::Legacy, Reason::Default),
            ModeChoice::Mode(mode) => (mode, Reason::Named),
            ModeChoice::Plain => match self.legacy().are_nf_tables() {
                Ok(true) => (Mode::Nft, Reason::Plain),
                Ok(false) | Err(ModeError::NoCommand { .. }) => (Mode::Legacy, Reason::Plain),
                Err(error) => return Err(error.in_mode(Mode::Legacy)),
            },
            ModeChoice::Auto => return Ok(None),
        }))
    }

    fn legacy(&self) -> Legacy {
        let is_plain = self.mode == ModeChoice::Plain;
        Legacy { is_plain, folder: self.iptables_dir.clone(), wait: self.wait_for_lock }
    }

    /// Finds all the commands that legacy mode needs.
    pub(crate) fn find_commands(&self) -> Result<(), Error> {
        let legacy = self.legacy();
        let mut families = self.config.families().iter().filter(|&&family| has_sockets(family));
        let found = families.try_for_each(|&family| legacy.restore(family).map(drop));
        found.map_err(|error| error.in_mode(Mode::Legacy))
    }

    /// The error about what this host lacks for a mode, if another mode does without it. Nothing is installed.
    fn missing_requirement(&self, mode: Mode) -> Option<Error> {
        let tried = match mode {
            Mode::Legacy => {
                let check = || legacy::check(&expected(mode, &self.config)).map_err(|error| error.in_mode(mode));
                self.find_commands().and_then(|()| check())
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
    start: Instant,
    /// Put back, unless the installation is finished.
    timeout: Option<CloseWaitTimeout>,
    /// The kernel's lists of legacy tables, opened once, as soon as they are needed.
    lists: OnceCell<Lists>,
    /// The tables of nf_tables that were read before the first try, and aren't read again for it.
    known: Option<Snapshot<HeldRule>>,
    /// The tables of the mode that was tried last.
    tables: Vec<Table>,
    warnings: Vec<Warning>,
    replaced: Vec<Mode>,
    changed: bool,
}

impl<'a, 't> Installation<'a, 't> {
    /// Sets the timeout, and warns of everything that is known before any mode is tried.
    fn begin(install: &'a Install, tell: Tell<'t>) -> Result<Self, Error> {
        let is_host_network = install.host_network != HostNetwork::Allow && host_network::is_here();
        if is_host_network && install.host_network == HostNetwork::Refuse {
            return Err(Error::HostNetwork);
        }
        let timeout = install.close_wait_timeout.map(CloseWaitTimeout::set).transpose()?;
        let mut warnings: Vec<Warning> = warnings(&install.config).into_iter().map(Warning::Config).collect();
        if install.config.ipv6 && !legacy::has_ipv6() {
            warnings.push(Warning::NoIpv6);
        }
        if is_host_network {
            warnings.push(Warning::HostNetwork);
        }
        warnings.iter().for_each(|warning| tell(OperationNotice::Warning(warning)));
        Ok(Self {
            install,
            tell,
            start: Instant::now(),
            timeout,
            lists: OnceCell::new(),
            known: None,
            tables: Vec::new(),
            warnings,
            replaced: Vec::new(),
            changed: false,
        })
    }

    fn finish(self, mode: Mode, reason: Reason) -> Installed {
        if let Some(timeout) = self.timeout {
            timeout.keep();
        }
        Installed {
            mode,
            reason,
            tables: self.tables,
            changed: self.changed,
            replaced: self.replaced,
            warnings: self.warnings,
            took: self.start.elapsed(),
        }
    }

    /// The mode that auto tries first, and why.
    fn first_choice(&mut self) -> Result<(Mode, Reason), Error> {
        let nf_tables::Seen { ruleset, generation } = nf_tables::read()?;
        let first = choose::first(&ruleset, &self.legacy_tables()?)?;
        self.known = generation.map(|generation| Snapshot { generation, tables: ruleset.tables });
        Ok(first)
    }

    /// Installs in a mode. Over netlink, the same transaction replaces the rules of the other such mode, and is valid only
    /// for the generation at which that was looked for.
    fn install_in(&mut self, mode: Mode) -> Result<(), Error> {
        let is_replacing = self.install.replace_other_backend;
        self.tables = expected(mode, &self.install.config);

        // Look for rules of the modes that the commit can't exclude.
        let (others, mut unseen) = match mode {
            Mode::Legacy => {
                self.install.find_commands()?;
                (nf_tables::holders()?, None)
            }
            Mode::Nft | Mode::Native => match self.legacy_tables() {
                // Without the privilege to read them, there is none to install either, and installing says so.
                Err(Error::InMode(_, ModeError::NotPermitted(_))) => (Vec::new(), None),
                held => {
                    let mut held = held?;
                    (holders(&held).collect(), held.not_known.pop())
                }
            },
        };
        if let Some(&other) = others.first().filter(|_| !is_replacing) {
            return Err(ModeError::OtherBackend(other).in_mode(mode));
        }
        if mode == Mode::Legacy {
            (self.tell)(OperationNotice::RunningCommands { waits: self.install.wait_for_lock });
            self.tables = legacy::tables_with_sockets(mem::take(&mut self.tables));
        }

        // Commit. Nothing else has committed to most namespaces, and the kernel says so if it has.
        let mut known = Some(self.known.take().unwrap_or_else(Snapshot::fresh));
        for attempt in 0.. {
            let mut replaced = None;
            let committed = match mode {
                Mode::Legacy => self.install.legacy().change(&self.tables).map(|changed| {
                    self.changed |= !changed.is_empty();
                    None
                }),
                Mode::Nft | Mode::Native => transact(known.take(), |held| {
                    let other = if mode == Mode::Nft { Mode::Native } else { Mode::Nft };
                    let mut edits = install_edits(other, held, &[])?;
                    if !edits.is_empty() && !is_replacing {
                        return Err(ModeError::OtherBackend(other));
                    }
                    // Of the last try: another program may have removed the rules since the one before.
                    replaced = (!edits.is_empty()).then_some(other);
                    edits.extend(install_edits(mode, held, &self.tables)?);
                    Ok(edits)
                }),
            };
            let is_untouched = matches!(committed, Ok(Some(Generation::FRESH)));
            if let Some(unseen) = unseen.take() {
                self.tell_unseen(unseen, is_untouched);
            }
            match (committed.map_err(|error| error.in_mode(mode)), self.replaced.last()) {
                (Ok(generation), _) => self.changed |= generation.is_some(),
                (Err(error), Some(&other)) if attempt > 0 => {
                    return Err(Error::ReplacedEachOther { mode, other, error: Box::new(error) });
                }
                (Err(error), _) => return Err(error),
            }
            if let Some(other) = replaced {
                self.report_replaced(other);
            }
            // Two that remove each other's rules in step would go on for ever.
            back_off(attempt);
            if self.is_alone(mode, attempt)? {
                break;
            }
        }
        Ok(())
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

    /// Looks, after this mode's rules were committed, whether another mode was given rules at the same time: no generation
    /// guards both nf_tables and legacy tables. In the end one mode is left, and whoever reports success has rules.
    ///
    /// Rules to be replaced are removed; as their run may have replaced this one's, these are to be committed again, and
    /// false is returned. Otherwise legacy mode gives way, and the others wait for that. If the other run was done before
    /// this one committed, it has nothing to give way to, so then this one does.
    fn is_alone(&mut self, mode: Mode, attempt: u32) -> Result<bool, Error> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let others = match mode {
                Mode::Legacy => nf_tables::holders(),
                Mode::Nft | Mode::Native => self.legacy_tables().map(|legacy| holders(&legacy).collect()),
            };
            let others = others.map_err(|error| Error::InstalledUnchecked { mode, error: Box::new(error) })?;
            let Some(&first) = others.first() else {
                return Ok(true);
            };
            if self.install.replace_other_backend && attempt < TRIES {
                for other in others {
                    let removed = self.remove(other);
                    if removed.map_err(|error| Error::NotReplaced { mode, other, error: Box::new(error) })?.is_some() {
                        self.report_replaced(other);
                    }
                }
                return Ok(false);
            }
            if self.install.replace_other_backend || mode == Mode::Legacy || Instant::now() >= deadline {
                return Err(self.give_way(mode, first));
            }
            sleep(PAUSE);
        }
    }

    /// Removes this mode's rules again, as another mode has some. Those that were there before stay: the run that
    /// installed them may have succeeded, and whoever brought the other mode's finds them as it looks again.
    fn give_way(&mut self, mode: Mode, other: Mode) -> Error {
        if !self.changed {
            return ModeError::OtherBackend(other).in_mode(mode);
        }
        Error::InstalledMeanwhile { mode, other, not_removed: self.remove(mode).err().map(Box::new) }
    }

    fn remove(&self, mode: Mode) -> Result<Option<Vec<String>>, Error> {
        modes::remove(mode, &Legacy { is_plain: false, ..self.install.legacy() })
    }

    fn report_replaced(&mut self, other: Mode) {
        (self.tell)(OperationNotice::Removed(other));
        if !self.replaced.contains(&other) {
            self.replaced.push(other);
        }
    }

    /// The mode that does without what this host lacks for one that failed, as linkerd-init uses whatever iptables it
    /// finds; or the error, if none does.
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

    /// The nat tables in which legacy mode may have rules. In a fresh namespace, this only looks at which there are.
    fn legacy_tables(&self) -> Result<Ruleset, Error> {
        let lists = self.lists.get_or_init(|| Lists::open(&[NAT]));
        lists.read(|family, name| name == NAT && has_sockets(family), &Numbered::default())
    }
}
