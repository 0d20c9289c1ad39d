//! Decides about the environment of iptables commands, and finds these commands. A user who starts proxy-init with
//! privileges that are the program's, by its file capabilities, would else get them by a command of their own.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use netfilter::netlink::privilege;
use nix::unistd::{getegid, geteuid, getgid, getuid};

/// Where commands are looked for when the environment has no PATH, or none that is trusted.
const DEFAULT_PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// Where the xtables lock is, unless XTABLES_LOCKFILE says otherwise.
const LOCK_FILE: &str = "/run/xtables.lock";

/// The folders in which commands are looked for, in this order; `first` is the folder that a flag names.
pub(super) fn folders(first: Option<PathBuf>) -> Vec<PathBuf> {
    let mut folders: Vec<_> = env::split_paths(&path()).collect();
    if let Some(first) = first
        && (!privilege::is_borrowed() || folders.contains(&first))
    {
        folders.insert(0, first);
    }
    folders
}

pub(super) fn handed_on() -> impl Iterator<Item = (&'static str, OsString)> {
    let plugins = trusted("XTABLES_LIBDIR").map(|folder| ("XTABLES_LIBDIR", folder));
    [("PATH", path()), ("LC_ALL", "C".into())].into_iter().chain(plugins)
}

/// The file of the xtables lock. It is opened with the user's own rights, unless the program is set-user-ID:
/// capabilities to change tables give none over files.
pub(super) fn lock_file() -> PathBuf {
    let is_own = getuid() == geteuid() && getgid() == getegid();
    let named = env::var_os("XTABLES_LOCKFILE").filter(|_| is_own);
    named.map_or_else(|| LOCK_FILE.into(), PathBuf::from)
}

fn path() -> OsString {
    trusted("PATH").unwrap_or_else(|| DEFAULT_PATH.into())
}

/// The value of a variable, if there is one, and it may decide what is executed.
fn trusted(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|_| !privilege::is_borrowed())
}
