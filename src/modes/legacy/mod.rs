//! legacy mode: ip_tables, by way of `iptables-legacy-restore`, one process per family. Everything happens under the xtables
//! lock: both families are read, their commands run one after the other, and both tables are read again. If anything fails,
//! both tables are put back.

mod child;
mod environment;
mod lock;
pub(crate) mod read;
pub(crate) mod restore;
mod unlisted;

use std::collections::BTreeSet;
use std::fs;
use std::iter;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::slice;

use netfilter::netlink::signals::hold;
use netfilter::netlink::sockopt::load_extension;
use netfilter::netlink::user_namespace::owns_network;
use netfilter::nf_tables::held::HeldRule;
use netfilter::xt::Extension;
use nix::errno::Errno;
use ruleset::xtables::IptablesRule;
use ruleset::{Condition, Family, Label, Name, Rule, Table};

use self::child::{missing_capability, not_permitted};
use self::read::Held;
use super::nat::install_edits;
use super::refusal::unmapped;
use super::rerun::held_in_legacy;
use crate::config::Mode;
use crate::error::{Lack, ModeError, Privilege};
use crate::plan::{ChainName, is_on_owner};
pub(crate) use netfilter::netlink::sockopt::{has_ipv6, has_sockets};

/// The commands, and how to run them.
#[derive(Debug, Clone, Default)]
pub struct Legacy {
    /// True if the commands are `iptables-restore` and so on, whatever these are, instead of `iptables-legacy-restore`.
    pub is_plain: bool,
    /// A folder to look in before PATH.
    pub folder: Option<PathBuf>,
    /// True to wait for the xtables lock as long as another program holds it, instead of giving up after a second.
    pub wait: bool,
}

impl Legacy {
    /// A family's restore command.
    pub(crate) fn restore(&self, family: Family) -> Result<PathBuf, ModeError> {
        let command = format!("{}{}-restore", family.iptables(), if self.is_plain { "" } else { "-legacy" });
        let folders = environment::folders(self.folder.clone()).into_iter();
        let is_program = |file: &PathBuf| {
            fs::metadata(file).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
        };
        folders.map(|folder| folder.join(&command)).find(is_program).ok_or(ModeError::NoCommand { command })
    }

    /// Returns true if the plain commands are iptables-nft's, as their version line says: `iptables-restore v1.8.9
    /// (nf_tables)`. Older ones without such a word are legacy.
    pub(crate) fn are_nf_tables(&self) -> Result<bool, ModeError> {
        let program = self.restore(Family::V4)?;
        Ok(child::version(&program)?.contains("nf_tables"))
    }

    /// Takes each family to its wanted table, or to no rules of ours: both or, on an error, none. Whatever was found before,
    /// afterwards proxy-init has exactly these rules, each once. Rules and chains of other programs stay as they are, except
    /// rules that lead to a chain of ours that goes. Returns the tables that were changed, as they were before.
    pub(crate) fn change(&self, wanted: &[Table]) -> Result<Vec<Table<HeldRule>>, ModeError> {
        let lock = lock::take(self.wait).map_err(with_capability)?;
        let changes = self.changes(wanted)?;
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        check_rules(wanted, changes.iter().flat_map(|change| rules_of_others(&change.before.table)))?;
        // If the process ended between the two commits, or between a failed one and the rollback, one family would be changed
        // and the other not. So signals wait.
        let _held = hold();
        let restored = changes.iter().try_for_each(|change| child::restore(&change.program, &change.input, &lock.0));
        let cause = match restored.and_then(|()| self.changes(wanted)).map(|mut left| left.pop()) {
            // Each family is as it should be.
            Ok(None) => return Ok(changes.iter().map(|change| held_in_legacy(&change.before.table)).collect()),
            Ok(Some(Change { family, program, .. })) => ModeError::NoEffect { command: program, family },
            Err(error) => explain(error, &changes, wanted),
        };
        Err(roll_back(&changes, cause))
    }

    /// The change for each family that isn't as it should be.
    fn changes(&self, wanted: &[Table]) -> Result<Vec<Change>, ModeError> {
        let mut changes = Vec::new();
        for family in Family::ALL {
            let wanted = Mode::Legacy.table_among(wanted, family).map(slice::from_ref).unwrap_or_default();
            let Some(before) = read::read_held(family, !wanted.is_empty()).map_err(with_capability)? else {
                continue;
            };
            let edits = install_edits(Mode::Legacy, &[held_in_legacy(&before.table)], wanted)?;
            if !edits.is_empty() {
                changes.push(Change { family, program: self.restore(family)?, input: restore::input(&edits), before });
            }
        }
        Ok(changes)
    }
}

struct Change {
    family: Family,
    /// The restore command, and its input.
    program: PathBuf,
    input: Vec<u8>,
    before: Held,
}

/// The rules that neither are in our chains nor lead to one.
fn rules_of_others(table: &Table) -> impl Iterator<Item = &Rule> {
    let others = table.chains.iter().filter(|chain| ChainName::own(&chain.name).is_none());
    others.flat_map(|chain| &chain.rules).filter(|rule| rule.action.target().and_then(ChainName::own).is_none())
}

/// After a command has failed, puts all tables back, and says if one can't be.
fn roll_back(changes: &[Change], cause: ModeError) -> ModeError {
    let (mut families, mut first) = (Vec::new(), None);
    for change in changes {
        if let Err(error) = read::put_back(change.family, &change.before) {
            families.push(change.family);
            first.get_or_insert(Box::new(error));
        }
    }
    match first {
        Some(error) => ModeError::NotRolledBack { families, cause: Box::new(cause), error },
        None => cause,
    }
}

/// iptables-restore names only the line of its COMMIT where the kernel refuses a rule. Says which rule that is, if the cause
/// is an owner that isn't mapped or, probably, another program's rule.
fn explain(error: ModeError, changes: &[Change], wanted: &[Table]) -> ModeError {
    let ModeError::CommandRefused { command, status, stderr, .. } = error else {
        return error;
    };
    let mut rules = wanted.iter().flat_map(Table::rules);
    if let Some(unmapped) = rules.find_map(|rule| unmapped(rule, &IptablesRule(rule))) {
        return unmapped;
    }
    let suspect = changes.iter().find_map(|change| find_pinned(&change.before.table));
    ModeError::CommandRefused { command, status, stderr, suspect }
}

/// The first rule of another program in this table that runs a BPF program, which iptables looks up again where it is pinned.
fn find_pinned(table: &Table) -> Option<String> {
    let is_bpf = |condition: &Condition| matches!(condition, Condition::NotUnderstood(Label::Extension(name)) if name.as_bytes() == b"bpf");
    let mut others = rules_of_others(table).filter(|rule| rule.conditions.iter().any(is_bpf));
    others.next().map(|rule| IptablesRule(rule).to_string().trim_end().to_owned())
}

/// The tables that the mode can install: where the kernel has no IPv6 sockets, not that of IPv6. nf_tables takes it all
/// the same.
pub(crate) fn tables_with_sockets(mut wanted: Vec<Table>) -> Vec<Table> {
    wanted.retain(|table| Family::ALL.iter().any(|&family| table.family.sees(family) && has_sockets(family)));
    wanted
}

/// Fails unless the kernel has all that these rules need. Asking makes the nat tables.
pub(crate) fn check(wanted: &[Table]) -> Result<(), ModeError> {
    for family in Family::ALL {
        if Mode::Legacy.table_among(wanted, family).is_some() && has_sockets(family) {
            read::read_held(family, true)?;
        }
    }
    check_rules(wanted, iter::empty())
}

/// Names the first rule for which the kernel would refuse a table with these rules, and those of others: a restore command
/// says no more than the line of its COMMIT. From outside the user namespace to which the network namespace belongs, that is
/// any rule on an owner, whoever made it (`owner_check`, net/netfilter/xt_owner.c), and a table that had one couldn't be put
/// back; everywhere, a rule for which the kernel lacks an extension.
fn check_rules<'a>(wanted: &'a [Table], others: impl Iterator<Item = &'a Rule>) -> Result<(), ModeError> {
    let mut rules = wanted.iter().flat_map(Table::rules).chain(others);
    if owns_network() == Some(false)
        && let Some(rule) = rules.find(|rule| is_on_owner(rule))
    {
        return Err(ModeError::ForeignOwner(IptablesRule(rule).to_string()));
    }
    for family in Family::ALL {
        let mut asked = BTreeSet::new();
        let chains = Mode::Legacy.table_among(wanted, family).map(|table| table.chains.as_slice()).unwrap_or_default();
        for (chain, rule) in chains.iter().flat_map(|chain| chain.rules.iter().map(move |rule| (&chain.name, rule))) {
            for used in Extension::of(rule).chain([Extension::Comment]).filter(|&used| asked.insert(used)) {
                if load_extension(family, used.name(), used.revision(), used.is_target()) == Err(Errno::ENOENT) {
                    return Err(lacks_extension(family, used, chain, rule));
                }
            }
        }
    }
    Ok(())
}

fn lacks_extension(family: Family, extension: Extension, chain: &Name, rule: &Rule) -> ModeError {
    let (name, module, option) = extension.described();
    let rule = format!("{} -t nat -A {chain} {:#}", Mode::Legacy.iptables(family), IptablesRule(rule));
    let lack = Lack::Extension { name, rule, module, option, instead: Mode::Native };
    ModeError::Lacks { lack, errno: Errno::ENOENT }
}

/// The same error; where something was not permitted, with the capability that is missing.
fn with_capability(error: ModeError) -> ModeError {
    match error {
        ModeError::NotPermitted(_) => not_permitted(Privilege::Read),
        // A process without a capability mostly may not open root's file either.
        ModeError::LockFile { .. } if missing_capability().is_some() => not_permitted(Privilege::Change),
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use ruleset::testing::{chain, rule, table};
    use ruleset::{Action, Condition, Label, Name};

    use super::find_pinned;

    /// iptables looks its program up again, and says only that the kernel refuses a line.
    #[test]
    fn another_programs_bpf_rule_is_a_suspect() {
        let of = |name: &str| rule([Condition::NotUnderstood(Label::Extension(Name::from(name)))], Action::Accept);
        let found = |name: &str, chain_name: &str| {
            find_pinned(&table("legacy ip nat", vec![chain(chain_name, vec![of(name)])]))
        };
        assert_eq!(found("bpf", "PREROUTING").as_deref(), Some("-m bpf [...] -j ACCEPT"));
        assert_eq!(found("set", "PREROUTING"), None);
        assert_eq!(found("bpf", "PROXY_INIT_OUTPUT"), None, "ours");
    }
}
