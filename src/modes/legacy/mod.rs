//! legacy mode: ip_tables, by way of `iptables-legacy-restore`, one process per family.
//!
//! For kernels without nf_tables, and beside software that uses legacy tables. Everything happens under the xtables
//! lock: both families are read, both commands get their input, and when both have read all but their last line, both get
//! that and commit. Then both tables are checked. If anything fails, all changes are rolled back.

mod child;
mod environment;
mod lock;
pub(crate) mod read;
pub(crate) mod restore;
mod unlisted;

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use netfilter::netlink::signals::hold;
use netfilter::netlink::sockopt;
use netfilter::netlink::user_namespace::owns_network;
use netfilter::xt::Extension;
use nix::errno::Errno;
use ruleset::xtables::IptablesRule;
use ruleset::{Family, Name, Rule, Table};

use self::child::{Ended, Failure, Prepared, Restore};
use self::read::{Held, Rollback};
use super::Removed;
use super::change::missing_and_surplus;
use crate::config::Mode;
use crate::error::{self, Error, Lack, ModeError, Privilege};
use crate::modes::legacy::restore::Input;
use crate::modes::refusal::unmapped;
use crate::ownership::leads_to;
use crate::plan::{ChainName, chain_of, is_on_owner, rules_of};
pub(crate) use netfilter::netlink::sockopt::{has_ipv6, has_sockets};

/// How long the commands may take; they take milliseconds.
const LIMIT: Duration = Duration::from_secs(10);

/// The commands, and how to run them.
#[derive(Debug, Clone, Default)]
pub struct Legacy {
    /// Whether they are `iptables-restore` and so on, whatever these are, instead of `iptables-legacy-restore`.
    pub is_plain: bool,
    /// A folder to look in before PATH.
    pub folder: Option<PathBuf>,
    /// Whether to wait for the xtables lock as long as another program holds it, instead of giving up after a second.
    pub wait: bool,
    /// The restore commands of IPv4 and IPv6, once they are found: PATH may have many folders.
    pub(crate) programs: [OnceCell<PathBuf>; 2],
}

impl Legacy {
    /// A family's restore command.
    ///
    /// # Errors
    /// [`Error::NoCommand`]
    pub(crate) fn restore(&self, family: Family) -> Result<PathBuf, Error> {
        let [v4, v6] = &self.programs;
        let known = if family == Family::V4 { v4 } else { v6 };
        if let Some(program) = known.get() {
            return Ok(program.clone());
        }
        let command = format!("{}{}-restore", family.iptables(), if self.is_plain { "" } else { "-legacy" });
        for folder in environment::folders(self.folder.clone()) {
            let program = folder.join(&command);
            let ruleset = fs::metadata(&program);
            if ruleset.is_ok_and(|ruleset| ruleset.is_file() && ruleset.permissions().mode() & 0o111 != 0) {
                return Ok(known.get_or_init(|| program).clone());
            }
        }
        Err(Error::NoCommand { command })
    }

    /// Whether the plain commands are iptables-nft's, as their version line says: `iptables-restore v1.8.9
    /// (nf_tables)`. Older ones without such a word are legacy.
    ///
    /// # Errors
    /// The command isn't there, or can't be asked.
    pub(crate) fn are_nf_tables(&self) -> Result<bool, Error> {
        let program = self.restore(Family::V4)?;
        let version = child::command_output(&program, &["--version"], LIMIT)
            .map_err(|failure| command_failure(&program, failure))?;
        Ok(version.contains("nf_tables"))
    }

    /// Installs the wanted tables: all of them or, on an error, none. Whatever was found before, afterwards proxy-init
    /// has exactly these rules, each once, in the families that have a table, and none in the others. Rules and chains of
    /// other programs stay as they are. Returns whether anything had to be changed.
    pub(crate) fn install(&self, wanted: &[Table]) -> Result<bool, Error> {
        Ok(!self.change(wanted)?.is_empty())
    }

    /// Removes the mode's rules, as [`all::remove`](super::all::remove).
    pub(crate) fn remove(&self) -> Result<Removed, Error> {
        let changed = self.change(&[])?;
        let before: Vec<Table> = changed.into_iter().flatten().collect();
        Ok(Removed::from(!before.is_empty(), &before))
    }

    /// Takes each family from what it holds to its wanted table, or to no rules of proxy-init's. Returns, for each family
    /// that was changed, its table as it was before; none: there was no table.
    fn change(&self, wanted: &[Table]) -> Result<Vec<Option<Table>>, Error> {
        if owns_network() == Some(false) {
            // Before the lock is waited for, which nothing needs then.
            for change in self.changes(wanted)? {
                refuse_on_owner(change.rules_afterwards(wanted))?;
            }
        }
        let lock = lock::take(self.wait).map_err(|error| match error {
            // Whoever lacks a capability mostly may not open root's file either.
            Error::LockFile { .. } if child::missing_capability().is_some() => not_permitted(Privilege::Change),
            error => error,
        })?;
        let changes = self.changes(wanted)?;
        let prepared = prepare(&changes, &lock.0, wanted);
        // If the process ended between the two commits, or between a failed one and the rollback, one family would be changed
        // and the other not. So signals wait.
        let _held = hold();
        match prepared.and_then(|prepared| commit(prepared, &changes, wanted)) {
            Ok(()) => Ok(changes.into_iter().map(|change| change.before.map(|held| held.table)).collect()),
            Err((at_fault, error)) => {
                let error = roll_back(&changes, at_fault, error);
                let Error::CommandRefused { .. } = error else {
                    return Err(error);
                };
                // iptables-restore names only the line of its COMMIT. xt_owner refuses an unmapped owner.
                let mut rules = wanted.iter().flat_map(Table::rules);
                let unmapped = rules.find_map(|rule| unmapped(rule, &IptablesRule(rule)));
                Err(unmapped
                    .map(|error| error.in_mode(Mode::Legacy))
                    .or_else(|| missing_extension(wanted))
                    .unwrap_or(error))
            }
        }
    }

    /// The change for each family that isn't as it should be.
    fn changes(&self, wanted: &[Table]) -> Result<Vec<Change>, Error> {
        let mut changes = Vec::new();
        for family in Family::ALL {
            let before = read::read_held(family).map_err(with_advice)?;
            let input = family_input(wanted, family, before.as_ref());
            if !input.is_empty() {
                let restore = Restore { family, program: self.restore(family)?, input: input.uncommitted() };
                changes.push(Change { restore, before });
            }
        }
        Ok(changes)
    }
}

/// Starts the commands. An error has the family whose change failed.
fn prepare<'a>(changes: &'a [Change], lock: &File, wanted: &[Table]) -> Result<Prepared<'a>, (Family, Error)> {
    let restores: Vec<_> = changes.iter().map(|change| &change.restore).collect();
    let load = || {
        if changes.len() > 1 {
            load_extensions(wanted);
        }
    };
    child::prepare(&restores, lock, load, LIMIT).map_err(failure_in_family)
}

/// Has the commands commit, and checks what they did. An error has the family whose change failed.
fn commit(prepared: Prepared<'_>, changes: &[Change], wanted: &[Table]) -> Result<(), (Family, Error)> {
    prepared.commit().map_err(failure_in_family)?;
    for Change { restore, .. } in changes {
        let family = restore.family;
        let now = read::read_held(family).map_err(|error| (family, with_advice(error)))?;
        if !family_input(wanted, family, now.as_ref()).is_empty() {
            let command = restore.program.clone();
            return Err((family, Error::NoEffect { command, family }));
        }
    }
    Ok(())
}

/// The tables that the mode can install: where the kernel has no IPv6 sockets, not that of IPv6. nf_tables takes it all
/// the same.
pub(crate) fn tables_with_sockets(mut wanted: Vec<Table>) -> Vec<Table> {
    wanted.retain(|table| Family::ALL.iter().any(|&family| table.family.sees(family) && has_sockets(family)));
    wanted
}

/// Has the kernel load the modules of the rules' extensions, which serve both families. If both commands needed a module
/// first, at the same moment, one would find it half loaded: busybox's modprobe takes that for loaded, and the command then
/// lacks the extension.
fn load_extensions(wanted: &[Table]) {
    let Some(table) = Mode::Legacy.table_among(wanted, Family::V4) else {
        return;
    };
    let used: BTreeSet<Extension> = table.rules().flat_map(Extension::of).collect();
    for extension in used.into_iter().chain([Extension::Comment]) {
        // Where the kernel has no such extension, the command says so.
        let _ = ask_for_extension(Family::V4, extension);
    }
}

fn ask_for_extension(family: Family, extension: Extension) -> Result<(), Errno> {
    sockopt::load_extension(family, extension.name(), extension.revision(), extension.is_target())
}

/// Fails unless the kernel has all that these rules need. Asking makes the nat tables.
///
/// # Errors
/// What it lacks, or why it can't be asked.
pub(crate) fn check(wanted: &[Table]) -> Result<(), Error> {
    if owns_network() == Some(false) {
        refuse_on_owner(wanted.iter().flat_map(Table::rules))?;
    }
    for family in Family::ALL {
        if Mode::Legacy.table_among(wanted, family).is_some() && has_sockets(family) {
            read::check_nat(family)?;
        }
    }
    missing_extension(wanted).map_or(Ok(()), Err)
}

/// Refuses a table with these rules if the kernel would, which might refuse it for one family alone: from outside the user
/// namespace to which the network namespace belongs, the kernel takes no table with a rule on an owner, whoever made it
/// (`owner_check`, net/netfilter/xt_owner.c).
fn refuse_on_owner<'a>(mut rules: impl Iterator<Item = &'a Rule>) -> Result<(), Error> {
    match rules.find(|rule| is_on_owner(rule)) {
        Some(rule) => Err(ModeError::ForeignOwner(IptablesRule(rule).to_string()).in_mode(Mode::Legacy)),
        None => Ok(()),
    }
}

/// The error about the first rule for which the kernel lacks an extension.
fn missing_extension(wanted: &[Table]) -> Option<Error> {
    for family in Family::ALL {
        let chains = Mode::Legacy.table_among(wanted, family).map(|table| table.chains.as_slice()).unwrap_or_default();
        for (chain, rule) in chains.iter().flat_map(|chain| chain.rules.iter().map(move |rule| (&chain.name, rule))) {
            let mut used = Extension::of(rule).chain([Extension::Comment]);
            let Some(extension) = used.find(|&used| ask_for_extension(family, used) == Err(Errno::ENOENT)) else {
                continue;
            };
            let (name, module, option) = extension.described();
            let command = Mode::Legacy.iptables(family);
            let rule = format!("{command} -t nat -A {chain} {:#}", IptablesRule(rule));
            let lack = Lack::Extension { name, rule, module, option, instead: Mode::Native };
            let errno = error::Errno::of(Errno::ENOENT);
            return Some(ModeError::Lacks { lack, errno }.in_mode(Mode::Legacy));
        }
    }
    None
}

struct Change {
    restore: Restore,
    /// What its table held; none: it was not there.
    before: Option<Held>,
}

impl Change {
    fn rules_afterwards<'a>(&'a self, wanted: &'a [Table]) -> impl Iterator<Item = &'a Rule> {
        let wanted = Mode::Legacy.table_among(wanted, self.restore.family).into_iter().flat_map(Table::rules);
        let table = self.before.as_ref().map(|held| &held.table);
        wanted.chain(table.into_iter().flat_map(rules_of_others))
    }
}

/// The rules that neither are in a chain of proxy-init's nor lead to one.
fn rules_of_others(table: &Table) -> impl Iterator<Item = &Rule> {
    let others = table.chains.iter().filter(|chain| ChainName::own(&chain.name).is_none());
    others.flat_map(|chain| &chain.rules).filter(|rule| leads_to(rule, table).is_none())
}

/// After one family's change failed, rolls both back, and says what came of it.
fn roll_back(changes: &[Change], at_fault: Family, error: Error) -> Error {
    let (mut rolled_back, mut uncounted, mut left) = (None, None, None);
    let mut families = Vec::new();
    for Change { restore, before } in changes {
        let family = restore.family;
        match read::roll_back(family, before.as_ref()) {
            Ok(Rollback::Unneeded) => {}
            Ok(done) => {
                if family != at_fault {
                    rolled_back = Some(family);
                }
                if let Rollback::WithoutCounters(errno) = done {
                    uncounted = Some((family, errno));
                }
            }
            Err(error) => {
                families.push(family);
                left = left.or(Some(error));
            }
        }
    }
    let error = match (left, rolled_back) {
        // A failure that is the same for reading as for changing has changed nothing.
        (Some(_), None) if is_not_permitted(&error) => error,
        (Some(left), _) => {
            return Error::NotRolledBack { families, cause: Box::new(error), error: Box::new(left) };
        }
        (None, Some(first)) => Error::RolledBack { first, second: at_fault, error: Box::new(error) },
        (None, None) => error,
    };
    match uncounted {
        Some((family, errno)) => Error::CountersLost { family, errno, error: Box::new(error) },
        None => error,
    }
}

/// The input that takes a family from what its table holds to its wanted table, or to no rules of proxy-init's; empty if
/// nothing has to be done.
fn family_input(wanted: &[Table], family: Family, held: Option<&Held>) -> Input {
    let table = held.map(|held| &held.table);
    match Mode::Legacy.table_among(wanted, family) {
        Some(wanted) => install_input(wanted, table),
        None => remove_input(table),
    }
}

/// The input after which proxy-init's chains hold exactly these rules, and one jump leads to each. What is right already is
/// left alone, with its counters.
fn install_input(wanted: &Table, table: Option<&Table>) -> Input {
    let mut input = Input::new();
    let mut refilled = ChainName::IN_ORDER.to_vec();
    refilled.retain(|&name| {
        let held = table.and_then(|table| chain_of(table, name));
        name.is_ours() && !held.is_some_and(|held| same_rules(&held.rules, rules_of(wanted, name)))
    });
    for &name in &refilled {
        input.make_or_flush(name);
    }
    for name in ChainName::IN_ORDER {
        let wanted = rules_of(wanted, name);
        if refilled.contains(&name) {
            wanted.iter().for_each(|rule| input.append(name, rule));
        }
        if !name.is_ours() {
            let held = table.map(|table| rules_of(table, name)).unwrap_or_default();
            let (missing, surplus) = missing_and_surplus(held, wanted);
            for (place, _) in surplus.into_iter().rev() {
                input.delete(&Name::from(name.as_str()), place);
            }
            missing.iter().for_each(|rule| input.append(name, rule));
        }
    }
    input
}

fn same_rules(held: &[Rule], wanted: &[Rule]) -> bool {
    held.len() == wanted.len() && wanted.iter().zip(held).all(|(rule, held)| rule.same_rule(held))
}

/// The input after which proxy-init has no chains, and nothing leads to them.
fn remove_input(table: Option<&Table>) -> Input {
    let mut input = Input::new();
    let Some(table) = table else {
        return input;
    };
    let held: Vec<ChainName> = table.chains.iter().filter_map(|chain| ChainName::own(&chain.name)).collect();
    // Without their rules first: they may jump to one another.
    for &chain in &held {
        input.make_or_flush(chain);
    }
    for chain in &table.chains {
        let rules = chain.rules.iter().enumerate().rev();
        for (index, _) in rules.filter(|(_, rule)| leads_to(rule, table).is_some()) {
            if ChainName::own(&chain.name).is_none() {
                input.delete(&chain.name, index);
            }
        }
    }
    for &chain in &held {
        input.delete_chain(chain);
    }
    input
}

fn failure_in_family((restore, failure): (&Restore, Failure)) -> (Family, Error) {
    let family = restore.family;
    let error = match failure {
        Failure::Ended(ended) if ended.status.success() => Error::NoEffect { command: restore.program.clone(), family },
        failure => command_failure(&restore.program, failure),
    };
    (family, error)
}

fn command_failure(program: &Path, failure: Failure) -> Error {
    let command = program.to_owned();
    match failure {
        Failure::Failed(error) => Error::CommandFailed { command, error },
        Failure::Hung => Error::CommandHung { command, seconds: LIMIT.as_secs() },
        Failure::Ended(ended) => command_refusal(command, &ended),
    }
}

/// The error that a command's exit code and its message mean.
fn command_refusal(command: PathBuf, ended: &Ended) -> Error {
    let stderr = ended.stderr.replace('\n', "; ");
    let says = |words: &[&str]| words.iter().any(|word| stderr.contains(word));
    let no_table = says(&["unable to initialize table", "can't initialize ip"]);
    // If iptables-restore finds no table because a capability is missing, it doesn't say so.
    if says(&["you must be root", "Permission denied"]) || no_table && child::missing_capability().is_some() {
        not_permitted(Privilege::Change)
    } else if no_table {
        Error::NoLegacyTables { stderr }
    } else {
        Error::CommandRefused { command, status: ended.status.to_string(), stderr }
    }
}

fn with_advice(error: Error) -> Error {
    if is_not_permitted(&error) { not_permitted(Privilege::Read) } else { error }
}

/// The error about something that was not permitted, which names the capability that is missing, if one is.
fn not_permitted(lacking: Privilege) -> Error {
    let capability = child::missing_capability().map(|capability| Privilege::Capability(capability.to_string()));
    ModeError::NotPermitted(capability.unwrap_or(lacking)).in_mode(Mode::Legacy)
}

fn is_not_permitted(error: &Error) -> bool {
    matches!(error, Error::InMode(_, ModeError::NotPermitted(_)))
}
