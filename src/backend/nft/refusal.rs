//! Why the kernel refused, as an error that says what is missing and what to do.

use nix::errno::Errno;

use super::encode::Step;
use super::xt::Extension;
use crate::config::Family;
use crate::error::{Error, Mode};
use crate::netlink::message::Request;
use crate::netlink::uapi::*;
use crate::netlink::{CommitError, Failure, Finished, ReadError, Socket};
use crate::ruleset::Match;

/// The socket could not be opened.
pub(super) fn no_socket(errno: Errno) -> Error {
    match errno {
        Errno::EPROTONOSUPPORT | Errno::EAFNOSUPPORT => Error::NoNfTables { mode: Mode::Nft, errno },
        _ => Error::Netlink {
            mode: Mode::Nft,
            call: "socket",
            errno,
        },
    }
}

/// The namespace's rules could not be read.
pub(super) fn unreadable(error: ReadError) -> Error {
    match error {
        ReadError::Socket(Errno::EPERM) => Error::NotPermitted { mode: Mode::Nft },
        ReadError::Socket(errno) => Error::Netlink {
            mode: Mode::Nft,
            call: "recv",
            errno,
        },
        ReadError::Malformed(_) => Error::Garbled { mode: Mode::Nft },
    }
}

/// The batch was refused. The kernel says of each bad message that it is bad; the first one is the cause, for the
/// later ones may only miss what the first should have made.
pub(super) fn explain(socket: &Socket, steps: &[Step<'_>], batch: &Finished, error: CommitError) -> Error {
    let mode = Mode::Nft;
    match error {
        CommitError::Socket("send", Errno::EMSGSIZE) => Error::BatchTooLarge {
            mode,
            bytes: batch.0.len(),
        },
        CommitError::Socket(call, errno) => Error::Netlink { mode, call, errno },
        CommitError::Malformed(_) => Error::Garbled { mode },
        CommitError::OtherGeneration => Error::Contended { tries: 1 },
        CommitError::Refused(Errno::EPERM, _) => Error::NotPermitted { mode },
        CommitError::Refused(errno @ (Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT), _) => {
            Error::NoNfTables { mode, errno }
        }
        CommitError::Refused(errno, text) => refused("the batch", errno, text),
        CommitError::Messages(failures) => match failures.first() {
            Some(failure) => message(socket, steps, failure),
            None => Error::Garbled { mode },
        },
    }
}

fn message(socket: &Socket, steps: &[Step<'_>], failure: &Failure) -> Error {
    let step = usize::try_from(failure.sequence)
        .ok()
        .and_then(|sequence| steps.get(sequence.checked_sub(1)?));
    let Some(step) = step else {
        return refused("the batch", failure.errno, failure.text.clone());
    };
    let errno = failure.errno;
    match (step, errno) {
        (Step::AddTable(family), Errno::EAFNOSUPPORT | Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT) => Error::NoFamily {
            mode: Mode::Nft,
            family: *family,
            errno,
        },
        (Step::AddChain(family, chain), Errno::ENOENT) if !chain.is_ours() => {
            Error::NoNatChains { family: *family, errno }
        }
        // Newer kernels say that they can't change its type, older ones that it exists.
        (Step::AddChain(family, chain), Errno::EEXIST | Errno::EOPNOTSUPP) if !chain.is_ours() => {
            Error::OtherBaseChain {
                family: *family,
                chain: *chain,
                errno,
            }
        }
        (Step::AddRule(_, _, rule), Errno::EINVAL) if step.extensions().contains(&Extension::Owner) => {
            let (id, map) = rule
                .matches
                .iter()
                .find_map(|condition| match condition {
                    Match::UidOwner(id) => Some((*id, "/proc/self/uid_map")),
                    Match::GidOwner(id) => Some((*id, "/proc/self/gid_map")),
                    _ => None,
                })
                .unzip();
            match (id, map) {
                (Some(id), Some(map)) if !is_mapped(id.get(), map) => Error::UnmappedOwner {
                    rule: step.to_string(),
                    id,
                },
                _ => Error::ForeignOwner { rule: step.to_string() },
            }
        }
        (Step::AddRule(family, _, _), Errno::ENOENT) => step
            .extensions()
            .into_iter()
            .find_map(|extension| missing(socket, *family, extension))
            .map_or_else(
                || refused(step, errno, failure.text.clone()),
                |(what, module, option)| Error::NoExtension {
                    rule: step.to_string(),
                    what,
                    module,
                    option,
                    errno,
                },
            ),
        _ => refused(step, errno, failure.text.clone()),
    }
}

fn refused(what: impl ToString, errno: Errno, text: String) -> Error {
    Error::Refused {
        mode: Mode::Nft,
        what: what.to_string(),
        errno,
        text: if text.is_empty() { text } else { format!(" \"{text}\"") },
    }
}

/// What the kernel lacks for this extension, if it does: asks nft_compat, as iptables-nft does for each revision.
/// (nfnl_compat_get_rcu in net/netfilter/nft_compat.c; without nft_compat, nfnetlink itself says EINVAL.)
fn missing(socket: &Socket, family: Family, extension: Extension) -> Option<(String, &'static str, &'static str)> {
    let request = Request::new(
        NFNL_SUBSYS_NFT_COMPAT,
        NFNL_MSG_COMPAT_GET,
        libc::NLM_F_ACK,
        family.protocol(),
    )
    .string(NFTA_COMPAT_NAME, extension.name())
    .be32(NFTA_COMPAT_REV, extension.revision())
    .be32(NFTA_COMPAT_TYPE, u32::from(extension.is_target()));
    match socket.ask(request, |_| Ok(())) {
        Err(ReadError::Socket(Errno::EINVAL)) => Some((
            "xt extensions in nf_tables".to_owned(),
            "nft_compat",
            "CONFIG_NFT_COMPAT",
        )),
        Err(ReadError::Socket(_)) => {
            let (module, option) = extension.module();
            let kind = if extension.is_target() { "target" } else { "match" };
            Some((format!("the xt {} {kind}", extension.name()), module, option))
        }
        _ => None,
    }
}

/// Whether the process' user namespace knows the id: a line of the map is first id inside, first id outside, count
/// (user_namespaces(7)). A map that can't be read hides nothing.
fn is_mapped(id: u32, map: &str) -> bool {
    let Ok(map) = std::fs::read_to_string(map) else {
        return true;
    };
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        match (numbers.next(), numbers.next(), numbers.next()) {
            (Some(Ok(first)), _, Some(Ok(count))) => id.checked_sub(first).is_some_and(|offset| offset < count),
            _ => false,
        }
    })
}
