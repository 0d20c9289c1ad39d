//! Reads legacy tables from the kernel itself, without a process, and without making a table.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt as _;

use netfilter::ip_tables;
use netfilter::netlink::message::Malformed;
use netfilter::netlink::sockopt::{Entries, read_entries, replace_entries};
use ruleset::{Family, NAT, Numbered, Subsystem, Table, XTABLES};
use ruleset::{Ruleset, Unseen};

use super::unlisted;
use crate::config::Mode;
use crate::error::{Error, ModeError, Privilege, errno_of};
use crate::kernel::proc_of_thread;

/// Reads every legacy table, whose rules have some things by their numbers. What can't be seen is in
/// [`Ruleset::not_known`].
pub(crate) fn read(numbered: &Numbered) -> Result<Ruleset, Error> {
    Lists::open(&XTABLES.map(|(name, _)| name)).read(|_, _| true, numbered)
}

/// The kernel's lists of legacy tables, held open: looking again costs a fraction of opening them.
#[derive(Debug)]
pub(crate) struct Lists([List; 2]);

#[derive(Debug)]
enum List {
    Open(File),
    /// There was none: a list comes with its family's module.
    Missing,
    /// It may not be read, so the tables were inferred from something else, once: that takes longer, and says nothing new
    /// after nf_tables has nat chains.
    Inferred(Vec<&'static str>),
    /// It can't be read, and nothing can be inferred.
    Unseen(Unseen),
}

impl Lists {
    /// Opens them, in the thread's network namespace. Where only root may read them, infers which of these tables exist.
    pub(crate) fn open(tables: &[&'static str]) -> Self {
        let lists = Family::ALL.map(open_list);
        let is_refused =
            lists.iter().any(|list| matches!(list, Err(error) if error.kind() == ErrorKind::PermissionDenied));
        let inferred = if is_refused { unlisted::tables(tables) } else { [None, None] };
        let mut inferred = inferred.into_iter();
        Self(lists.map(|list| match (list, inferred.next().flatten()) {
            (Ok(Some(file)), _) => List::Open(file),
            (Ok(None), _) => List::Missing,
            (Err(_), Some(names)) => List::Inferred(names),
            (Err(error), None) => List::Unseen(unseen_lists(&error)),
        }))
    }

    /// The tables of each family.
    fn table_names(&self) -> impl Iterator<Item = (Family, Result<Vec<String>, Unseen>)> {
        Family::ALL.into_iter().zip(&self.0).map(|(family, list)| match list {
            List::Open(file) => (family, read_list(file).map_err(|error| unseen_lists(&error))),
            List::Missing => (family, table_names(family).map_err(|error| unseen_lists(&error))),
            List::Inferred(names) => (family, Ok(names.iter().map(ToString::to_string).collect())),
            List::Unseen(unseen) => (family, Err(unseen.clone())),
        })
    }

    /// Reads those of the tables that are asked for.
    pub(crate) fn read(&self, is_asked: impl Fn(Family, &str) -> bool, numbered: &Numbered) -> Result<Ruleset, Error> {
        let mut ruleset = Ruleset::default();
        for (family, names) in self.table_names() {
            match names {
                Ok(names) => {
                    for name in names.iter().filter(|name| is_asked(family, name)) {
                        ruleset.tables.push(read_table(family, name, numbered)?);
                    }
                }
                Err(unseen) if ruleset.not_known.is_empty() => ruleset.not_known.push(unseen),
                Err(_) => {}
            }
        }
        Ok(ruleset)
    }
}

/// Returns true if certainly no family has a legacy table.
pub(crate) fn has_none() -> bool {
    let lists = Lists::open(&XTABLES.map(|(name, _)| name));
    lists.table_names().all(|(_, names)| names.is_ok_and(|names| names.is_empty()))
}

/// Reads a table. Asking about one that isn't there makes it.
pub(crate) fn read_table(family: Family, name: &str, numbered: &Numbered) -> Result<Table, Error> {
    let entries = read_entries(family, name).map_err(|errno| read_error(family, errno));
    let table = entries.and_then(|entries| ip_tables::table(family, name, &entries, numbered).map_err(garbled_table));
    table.map_err(|error| error.in_mode(Mode::Legacy))
}

fn read_error(family: Family, errno: nix::errno::Errno) -> ModeError {
    match errno {
        nix::errno::Errno::EPERM => ModeError::NotPermitted(Privilege::Read),
        _ => ModeError::NotRead { family, errno },
    }
}

fn garbled_table(Malformed: Malformed) -> ModeError {
    ModeError::GarbledDump
}

/// A family's nat table as it was at some time: its rules, and its bytes, which can be put back.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) table: Table,
    entries: Entries,
}

/// The content of a family's nat table; none: there is no such table, or this kernel has none of that family. A table
/// that is wanted is made by this, as is one where tables cannot be listed.
///
/// # Errors
/// [`ModeError::NoTables`]: the kernel has no such table, though it is wanted; or why the kernel can't be asked.
pub(super) fn read_held(family: Family, is_wanted: bool) -> Result<Option<Held>, ModeError> {
    use nix::errno::Errno::{EAFNOSUPPORT, ENOENT, ENOPROTOOPT};

    if !is_wanted && table_names(family).is_ok_and(|names| names.iter().all(|name| name != NAT)) {
        return Ok(None);
    }
    match read_entries(family, NAT) {
        Ok(entries) => {
            let table = ip_tables::table(family, NAT, &entries, &Numbered::default()).map_err(garbled_table)?;
            Ok(Some(Held { table, entries }))
        }
        // No sockets of the family, no ip_tables, no nat table.
        Err(EAFNOSUPPORT | ENOPROTOOPT | ENOENT) if !is_wanted => Ok(None),
        Err(errno @ (ENOPROTOOPT | ENOENT)) => Err(ModeError::NoTables { stderr: format!("{family}: {}", errno) }),
        Err(errno) => Err(read_error(family, errno)),
    }
}

/// Puts a family's nat table back, counters included.
pub(super) fn put_back(family: Family, before: &Held) -> Result<(), ModeError> {
    if read_entries(family, NAT).as_ref() == Ok(&before.entries) {
        return Ok(());
    }
    let counters = ip_tables::counters(family, &before.entries).map_err(garbled_table)?;
    replace_entries(family, NAT, &before.entries, &counters).map_err(|errno| ModeError::NotWritten { family, errno })
}

fn unseen_lists(error: &io::Error) -> Unseen {
    let not_permitted = error.kind() == ErrorKind::PermissionDenied;
    Unseen {
        subsystem: Subsystem::Legacy,
        not_permitted,
        reason: if not_permitted {
            "only root and group 0 can list legacy tables".to_owned()
        } else {
            format!("cannot list legacy tables in {}/net: {}", proc_of_thread(), errno_of(error))
        },
    }
}

/// The family's tables. A kernel without legacy tables has no list.
fn table_names(family: Family) -> io::Result<Vec<String>> {
    open_list(family)?.map_or(Ok(Vec::new()), |list| read_list(&list))
}

/// The kernel's list of a family's tables (root's alone, 0440), which makes none by being read; none where the kernel
/// has no such tables.
fn open_list(family: Family) -> io::Result<Option<File>> {
    let folder = format!("{}/net", proc_of_thread());
    let list = match family {
        Family::V4 => "ip_tables_names",
        Family::V6 => "ip6_tables_names",
    };
    match File::open(format!("{folder}/{list}")) {
        Ok(file) => Ok(Some(file)),
        // A missing file means missing tables only where /proc is complete.
        Err(error) if error.kind() == ErrorKind::NotFound => std::fs::metadata(folder).map(|_| None),
        Err(error) => Err(error),
    }
}

fn read_list(list: &File) -> io::Result<Vec<String>> {
    // Names of tables are short, and there are five.
    let mut names = [0; 256];
    let length = list.read_at(&mut names, 0)?;
    let text = String::from_utf8_lossy(names.get(..length).unwrap_or_default());
    Ok(text.lines().map(ToOwned::to_owned).collect())
}
