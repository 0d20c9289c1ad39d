//! Turns the kernel's refusal into an error that names the missing part and the cure.

use std::fmt;
use std::fs::File;
use std::io::Read as _;

use netfilter::netlink::user_namespace::{is_known_to_be_outside, owns_network};
use netfilter::netlink::{CommitError, Failure, FinishedBatch, ReadError, Socket};
use netfilter::nf_tables::edit::{Edit, Unwritten};
use netfilter::nf_tables::rule::NewRule;
use nix::errno::Errno;
use ruleset::{Name, Rule, TableFamily};

use crate::config::{IdRange, Mode};
use crate::error::{Lack, ModeError, Privilege};
use crate::plan::{is_on_owner, owner};

pub(crate) fn no_socket(errno: Errno) -> ModeError {
    match errno {
        Errno::EPROTONOSUPPORT | Errno::EAFNOSUPPORT => no_nf_tables(errno),
        _ => ModeError::Netlink { call: "socket", errno },
    }
}

pub(crate) fn unreadable(error: ReadError) -> ModeError {
    match error {
        ReadError::Socket(Errno::EPERM) => ModeError::NotPermitted(Privilege::Read),
        // This is nfnetlink's answer to requests to a subsystem that it doesn't have (nfnetlink_rcv_msg).
        ReadError::Socket(errno @ (Errno::EINVAL | Errno::EOPNOTSUPP)) => no_nf_tables(errno),
        ReadError::Socket(errno) | ReadError::NotAsked(errno) => ModeError::Unseen(errno.to_string()),
        ReadError::Malformed(_) => ModeError::GarbledDump,
        ReadError::Interrupted => ModeError::KeepsChanging,
    }
}

/// The batch was refused. The kernel reports every bad message. The first one is the cause: later ones may fail only
/// because the first did not make the object to which they refer.
pub(crate) fn explain(socket: &Socket, edits: &[Edit<'_>], batch: &FinishedBatch, error: CommitError) -> ModeError {
    match error {
        CommitError::NotSent(Errno::EMSGSIZE) => ModeError::BatchTooLarge(batch.bytes().len()),
        CommitError::NotSent(errno) => ModeError::Netlink { call: "send", errno },
        CommitError::Unanswered(errno) => ModeError::Unanswered(errno),
        CommitError::Malformed(_) => ModeError::Garbled,
        CommitError::OtherGeneration => ModeError::Contended(1),
        CommitError::Refused(Errno::EPERM, _) => ModeError::NotPermitted(Privilege::Change),
        CommitError::Refused(errno @ (Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT), _) => no_nf_tables(errno),
        CommitError::Refused(errno, text) => refusal_error("the batch", errno, &text),
        CommitError::Messages(failures) => match failures.first() {
            Some(failure) => message(socket, edits, failure),
            None => ModeError::Garbled,
        },
    }
}

fn message(socket: &Socket, edits: &[Edit<'_>], failure: &Failure) -> ModeError {
    let edit = usize::try_from(failure.sequence).ok().and_then(|sequence| edits.get(sequence.checked_sub(1)?));
    let Some(edit) = edit else {
        return refusal_error("the batch", failure.errno, &failure.text);
    };
    let (errno, what) = (failure.errno, edit.to_string());
    let refused = || refusal_error(&what, errno, &failure.text);
    let table = edit.table();
    match (edit, table.family, errno) {
        // Without CAP_NET_ADMIN the whole batch would have been refused (nfnetlink_rcv), so EPERM for a single message
        // means that another program owns the table (nft_table_lookup).
        (_, _, Errno::EPERM) => ModeError::TableOwned { what, table: table.to_string() },
        (Edit::AddTable(_), family, Errno::EAFNOSUPPORT | Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT) => {
            ModeError::Lacks { lack: Lack::Tables(family.title()), errno }
        }
        // A base chain of another type or hook has this name: newer kernels answer EOPNOTSUPP, older ones EEXIST.
        (Edit::AddChain(_, chain), TableFamily::Ip(family), Errno::EEXIST | Errno::EOPNOTSUPP)
            if chain.hook.is_some() =>
        {
            ModeError::OtherBaseChain { family, chain: chain.to_string(), errno }
        }
        (Edit::AddChain(_, chain), family, Errno::ENOENT | Errno::EOPNOTSUPP) if chain.hook.is_some() => {
            ModeError::Lacks { lack: Lack::NatChains(family.title()), errno }
        }
        (Edit::DeleteChain(..), _, Errno::EBUSY) => ModeError::ChainInUse { what, table: table.to_string() },
        // A base chain's rules are the jumps, and no rule can jump to a base chain (nft_verdict_init): so a base chain
        // has the name of ours.
        (Edit::AddRule(NewRule { chain, rule, .. }), TableFamily::Ip(family), Errno::EOPNOTSUPP)
            if chain.hook.is_some() =>
        {
            let chain = rule.action.target().map_or_else(String::new, Name::to_string);
            ModeError::ChainNameTaken { family, chain, errno }
        }
        (Edit::AddRule(new), _, Errno::EINVAL) => match unmapped(new.rule, edit) {
            Some(error) => error,
            // The network namespace belongs to another user namespace.
            None if is_on_owner(new.rule) && owns_network() == Some(false) => ModeError::ForeignOwner(what),
            None => refused(),
        },
        (Edit::AddRule(new), family, Errno::ENOENT) => match new.missing(socket) {
            Some((name, module, option)) => {
                // nft mode's rules need xt modules, native mode's don't.
                let instead = if family == TableFamily::Inet { Mode::Legacy } else { Mode::Native };
                ModeError::Lacks { lack: Lack::Extension { name, rule: what, module, option, instead }, errno }
            }
            None => refused(),
        },
        _ => refused(),
    }
}

fn no_nf_tables(errno: Errno) -> ModeError {
    let version = std::fs::read_to_string("/proc/version").unwrap_or_default();
    ModeError::Lacks { lack: if is_gvisor(&version) { Lack::Sandbox } else { Lack::NfTables }, errno }
}

/// Returns true if this is the content of /proc/version in gVisor, whose releases are 4.4.0 and 4.19.0-gvisor, of the same
/// date (pkg/sentry/syscalls/linux).
pub(crate) fn is_gvisor(version: &str) -> bool {
    version.contains("-gvisor") || version.contains("Sun Jan 10 15:06:54 PST 2016")
}

fn refusal_error(what: &str, errno: Errno, text: &str) -> ModeError {
    ModeError::Refused {
        what: what.to_owned(),
        errno,
        text: if text.is_empty() { String::new() } else { format!(" \"{text}\"") },
    }
}

/// The error about a rule that matches an owner, if the owner isn't mapped in the process's user namespace. `shown` is
/// the rule for people.
pub(crate) fn unmapped(rule: &Rule, shown: &impl fmt::Display) -> Option<ModeError> {
    let (ids, map) = owner(rule)?;
    (!is_mapped(ids, map)).then(|| ModeError::UnmappedOwner { rule: shown.to_string(), ids })
}

/// Refuses rules that the kernel would refuse, in milliseconds: xtables' rules on owners from outside of the user
/// namespace that the network namespace belongs to (`owner_check`, net/netfilter/xt_owner.c).
pub(crate) fn refuse_outside(edits: &[Edit<'_>]) -> Result<(), ModeError> {
    if !is_known_to_be_outside() {
        return Ok(());
    }
    let refused =
        edits.iter().find(|edit| matches!(edit, Edit::AddRule(new) if new.is_of_xtables() && is_on_owner(new.rule)));
    refused.map_or(Ok(()), |edit| Err(ModeError::ForeignOwner(edit.to_string())))
}

/// The error about an edit that can't be written. Nothing has been sent.
pub(crate) fn unwritten_error(unwritten: &Unwritten) -> ModeError {
    ModeError::Unwritable { rule: unwritten.edit.clone(), what: unwritten.what.to_string() }
}

/// Returns true if the ids are in one line of a user namespace's map: the kernel compares with the ids outside, where
/// those of several lines are no range. Each line has the first id inside, the first id outside, and their count
/// (user_namespaces(7)). If the map can't be read, the ids count as mapped.
fn is_mapped(ids: IdRange, map: &str) -> bool {
    // Most maps have a line of 34 bytes. Without the limit, the file would be asked for its size first, which it
    // doesn't have.
    let mut text = String::with_capacity(64);
    let read = File::open(map).and_then(|map| map.take(u64::MAX).read_to_string(&mut text));
    if read.is_err() {
        return true;
    }
    text.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        match (numbers.next(), numbers.next(), numbers.next()) {
            (Some(Ok(first)), _, Some(Ok(count))) => {
                first <= ids.first() && ids.last().checked_sub(first).is_some_and(|offset| offset < count)
            }
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use netfilter::netlink::message::Malformed;
    use netfilter::nf_tables::TableId;
    use netfilter::nf_tables::edit::batch;
    use ruleset::Family;

    use super::*;
    use crate::plan::ChainName;

    fn explained(edits: &[Edit<'_>], error: CommitError) -> String {
        let socket = Socket::open().unwrap();
        explain(&socket, edits, &batch(edits, None).unwrap(), error).in_mode(Mode::Nft).to_string()
    }

    fn failure(sequence: u32, errno: Errno) -> CommitError {
        CommitError::Messages(vec![Failure { sequence, errno, text: "why".to_owned() }])
    }

    /// Answers that other kernels give and a developer's may not; `cargo xtask kernels` has real kernels give them.
    #[test]
    fn an_error_names_what_is_missing() {
        let nat = TableId { family: TableFamily::Ip(Family::V6), name: "nat" };
        let edits = [
            Edit::AddTable(nat),
            Edit::AddChain(nat, ChainName::Output.into()),
            Edit::AddChain(nat, ChainName::ProxyInitOutput.into()),
        ];
        for (error, words) in [
            (failure(1, Errno::EAFNOSUPPORT), "nf_tables has no IPv6 tables"),
            (failure(2, Errno::ENOENT), "no nat chains for IPv6"),
            (failure(2, Errno::EEXIST), "a chain OUTPUT that is not hooked"),
            (failure(3, Errno::ENOMEM), "refused `ip6tables-nft -t nat -N PROXY_INIT_OUTPUT`: ENOMEM"),
            (failure(9, Errno::ENOMEM), "refused `the batch`"),
            (failure(0, Errno::ENOMEM), "\"why\""),
            (CommitError::Refused(Errno::EPERM, String::new()), "CAP_NET_ADMIN"),
            (CommitError::Refused(Errno::EOPNOTSUPP, String::new()), "this kernel has no nf_tables"),
            (CommitError::Malformed(Malformed), "cut off or garbled"),
        ] {
            let text = explained(&edits, error);
            assert!(text.contains(words), "{words}: {text}");
        }
    }

    #[test]
    fn a_users_map_is_read() {
        let map = std::env::temp_dir().join(format!("proxy-init-map-{}", std::process::id()));
        std::fs::write(&map, "         0       1000          1\n      2000     200000         10\nbroken\n").unwrap();
        let mapped: Vec<&str> = ["0", "1", "0-1", "1999", "1999-2000", "2000", "2000-2009", "2009", "2009-2010"]
            .into_iter()
            .filter(|ids| is_mapped(ids.parse().unwrap(), map.to_str().unwrap()))
            .collect();
        std::fs::remove_file(&map).unwrap();
        assert_eq!(mapped, ["0", "2000", "2000-2009", "2009"]);
        let any = "7".parse().unwrap();
        assert!(is_mapped(any, "/nonexistent"), "a map that can't be read hides nothing");
    }
}
