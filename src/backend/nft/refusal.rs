//! Why the kernel refused, as an error that says what is missing and what to do.

use nix::errno::Errno;

use crate::error::{self, Error};
use crate::netlink::{CommitError, Failure, Finished, ReadError, Socket};
use crate::rules::config::{Family, OwnerId};
use crate::rules::mode::Mode;
use crate::rules::ruleset::ChainName;

/// One change of a batch, as far as its refusal is explained by it. Its Display is the command that it stands for.
pub(crate) trait Step: std::fmt::Display {
    /// It makes the table.
    fn is_table(&self) -> bool;
    /// It makes this base chain.
    fn is_base_chain(&self) -> Option<ChainName>;
    /// It is a rule on this owner; ids of the kind are mapped in this file.
    fn owner(&self) -> Option<(OwnerId, &'static str)>;
    /// What the kernel lacks for it, after ENOENT: what, in which module, by which option.
    fn missing(&self, socket: &Socket) -> Option<(String, &'static str, &'static str)>;
    /// The chain that it makes a rule jump to.
    fn jumps_to(&self) -> Option<ChainName>;
    /// It deletes a chain.
    fn deletes_chain(&self) -> bool;
    /// The table that it is about, with its family, as nft writes it.
    fn table(&self) -> String;
    /// The family whose table it is in; none: both, in an inet table.
    fn family(&self) -> Option<Family>;
}

/// The socket could not be opened.
pub(crate) fn no_socket(mode: Mode, errno: Errno) -> Error {
    match errno {
        Errno::EPROTONOSUPPORT | Errno::EAFNOSUPPORT => Error::NoNfTables {
            mode,
            errno: error::Errno::of(errno),
        },
        _ => Error::Netlink {
            mode,
            call: "socket",
            errno: error::Errno::of(errno),
        },
    }
}

/// The namespace's rules could not be read.
pub(crate) fn unreadable(mode: Mode, error: ReadError) -> Error {
    match error {
        ReadError::Socket(Errno::EPERM) => Error::ReadNotPermitted { mode },
        // What nfnetlink says of requests to a subsystem that it doesn't have (nfnetlink_rcv_msg).
        ReadError::Socket(errno @ (Errno::EINVAL | Errno::EOPNOTSUPP)) => Error::NoNfTables {
            mode,
            errno: error::Errno::of(errno),
        },
        ReadError::Socket(errno) => Error::Netlink {
            mode,
            call: "recv",
            errno: error::Errno::of(errno),
        },
        ReadError::Malformed(_) => Error::Garbled { mode },
    }
}

/// The batch was refused. The kernel says of each bad message that it is bad; the first one is the cause, for the
/// later ones may only miss what the first should have made.
pub(crate) fn explain(mode: Mode, socket: &Socket, steps: &[impl Step], batch: &Finished, error: CommitError) -> Error {
    match error {
        CommitError::Socket("send", Errno::EMSGSIZE) => Error::BatchTooLarge {
            mode,
            bytes: batch.0.len(),
        },
        CommitError::Socket(call, errno) => Error::Netlink {
            mode,
            call,
            errno: error::Errno::of(errno),
        },
        CommitError::Malformed(_) => Error::Garbled { mode },
        CommitError::OtherGeneration => Error::Contended { tries: 1 },
        CommitError::Refused(Errno::EPERM, _) => Error::NotPermitted { mode },
        CommitError::Refused(errno @ (Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT), _) => Error::NoNfTables {
            mode,
            errno: error::Errno::of(errno),
        },
        CommitError::Refused(errno, text) => refused(mode, "the batch", errno, &text),
        CommitError::Messages(failures) => match failures.first() {
            Some(failure) => message(mode, socket, steps, failure),
            None => Error::Garbled { mode },
        },
    }
}

fn message(mode: Mode, socket: &Socket, steps: &[impl Step], failure: &Failure) -> Error {
    let step = usize::try_from(failure.sequence)
        .ok()
        .and_then(|sequence| steps.get(sequence.checked_sub(1)?));
    let Some(step) = step else {
        return refused(mode, "the batch", failure.errno, &failure.text);
    };
    let (errno, rule) = (failure.errno, step.to_string());
    let families = || {
        step.family()
            .map_or_else(|| "inet".to_owned(), |family| family.to_string())
    };
    match (step.is_base_chain(), step.family(), errno) {
        (None, _, Errno::EAFNOSUPPORT | Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT) if step.is_table() => {
            return Error::NoFamily {
                mode,
                families: families(),
                errno: error::Errno::of(errno),
            };
        }
        // Newer kernels say that they can't change its type, older ones that it exists.
        (Some(chain), Some(family), Errno::EEXIST | Errno::EOPNOTSUPP) => {
            return Error::OtherBaseChain {
                family,
                chain,
                errno: error::Errno::of(errno),
            };
        }
        (Some(_), _, Errno::ENOENT | Errno::EOPNOTSUPP) => {
            return Error::NoNatChains {
                mode,
                families: families(),
                errno: error::Errno::of(errno),
            };
        }
        _ => {}
    }
    // A process without CAP_NET_ADMIN is refused the whole batch (nfnetlink_rcv), so this is about the table
    // (nft_table_lookup).
    if errno == Errno::EPERM {
        return Error::TableOwned {
            mode,
            what: rule,
            table: step.table(),
        };
    }
    if errno == Errno::EBUSY && step.deletes_chain() {
        return Error::ChainInUse {
            mode,
            what: rule,
            table: step.table(),
        };
    }
    // Nothing can jump to a base chain (nft_verdict_init).
    if let (Some(family), Some(chain), Errno::EOPNOTSUPP) = (step.family(), step.jumps_to(), errno) {
        return Error::ChainNameTaken {
            family,
            chain,
            errno: error::Errno::of(errno),
        };
    }
    match (step.owner(), errno) {
        (Some((id, map)), Errno::EINVAL) if !is_mapped(id.get(), map) => return Error::UnmappedOwner { rule, id },
        (Some(_), Errno::EINVAL) => return Error::ForeignOwner { rule },
        _ => {}
    }
    match step.missing(socket) {
        Some((what, module, option)) if errno == Errno::ENOENT => Error::NoExtension {
            mode,
            rule,
            what,
            module,
            option,
            errno: error::Errno::of(errno),
        },
        _ => refused(mode, &rule, errno, &failure.text),
    }
}

fn refused(mode: Mode, what: &str, errno: Errno, text: &str) -> Error {
    Error::Refused {
        mode,
        what: what.to_owned(),
        errno: error::Errno::of(errno),
        text: if text.is_empty() {
            String::new()
        } else {
            format!(" \"{text}\"")
        },
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::nft::encode::Step as NftStep;
    use crate::netlink::Batch;
    use crate::netlink::message::Malformed;

    fn explained(steps: &[NftStep<'_>], error: CommitError) -> String {
        let socket = Socket::open().unwrap();
        explain(Mode::Nft, &socket, steps, &Batch::begin(None).unfinished(), error).to_string()
    }

    fn failure(sequence: u32, errno: Errno) -> CommitError {
        CommitError::Messages(vec![Failure {
            sequence,
            errno,
            text: "why".to_owned(),
        }])
    }

    /// What kernels say that this machine's doesn't; `cargo xtask kernels` has real ones say it.
    #[test]
    fn an_error_names_what_is_missing() {
        let steps = [
            NftStep::AddTable(Family::V6),
            NftStep::AddChain(Family::V6, ChainName::Output),
            NftStep::AddChain(Family::V6, ChainName::ProxyInitOutput),
        ];
        for (error, words) in [
            (failure(1, Errno::EAFNOSUPPORT), "nf_tables has no IPv6 tables"),
            (failure(2, Errno::ENOENT), "no nat chains for IPv6"),
            (failure(2, Errno::EEXIST), "a chain OUTPUT that is not hooked"),
            (
                failure(3, Errno::ENOMEM),
                "refused `ip6tables-nft -t nat -N PROXY_INIT_OUTPUT`: ENOMEM",
            ),
            (failure(9, Errno::ENOMEM), "refused `the batch`"),
            (failure(0, Errno::ENOMEM), "\"why\""),
            (CommitError::Refused(Errno::EPERM, String::new()), "CAP_NET_ADMIN"),
            (
                CommitError::Refused(Errno::EOPNOTSUPP, String::new()),
                "this kernel has no nf_tables",
            ),
            (CommitError::Malformed(Malformed), "cut off or garbled"),
        ] {
            let text = explained(&steps, error);
            assert!(text.contains(words), "{words}: {text}");
        }
    }

    #[test]
    fn a_users_map_is_read() {
        let map = std::env::temp_dir().join(format!("proxy-init-map-{}", std::process::id()));
        std::fs::write(
            &map,
            "         0       1000          1\n      2000     200000         10\nbroken\n",
        )
        .unwrap();
        let mapped: Vec<u32> = [0, 1, 1999, 2000, 2009, 2010]
            .into_iter()
            .filter(|&id| is_mapped(id, map.to_str().unwrap()))
            .collect();
        std::fs::remove_file(&map).unwrap();
        assert_eq!(mapped, [0, 2000, 2009]);
        assert!(is_mapped(7, "/nonexistent"), "a map that can't be read hides nothing");
    }
}
