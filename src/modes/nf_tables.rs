//! Reads from nf_tables what decides about an installation: which of our rules it holds already, and in which mode.

use netfilter::netlink::{Generation, ReadError, Socket};
use netfilter::nf_tables::held::{self, HeldRule};
use netfilter::nf_tables::read::{self, Snapshot};
use nix::errno::Errno;
use ruleset::{Family, Ruleset, Subsystem, TableFamily, Unseen};

use super::legacy;
use crate::config::Mode;
use crate::error::{Error, ModeError, PRIVILEGE, netlink_advice};
use crate::modes::refusal;
use crate::ownership::holds_rules;

/// The tables of nf_tables, and the generation that they are of; none, if they could not be read.
pub(crate) struct Seen<R> {
    pub(crate) ruleset: Ruleset<R>,
    pub(crate) generation: Option<Generation>,
}

/// Reads those tables of nf_tables that may hold our rules. What could not be read is listed in [`Ruleset::not_known`].
pub(crate) fn read() -> Result<Seen<HeldRule>, Error> {
    read_by(|socket| held::held(socket, may_be_ours))
}

/// Reads nf_tables by a function, as [`read`].
pub(crate) fn read_by<R>(read: impl FnOnce(&Socket) -> Result<Snapshot<R>, ReadError>) -> Result<Seen<R>, Error> {
    let nothing = |unseen: Option<Unseen>| {
        Ok(Seen { ruleset: Ruleset { tables: Vec::new(), not_known: unseen.into_iter().collect() }, generation: None })
    };
    let socket = Socket::open().map_err(ReadError::NotAsked);
    let (not_permitted, reason) = match socket.and_then(|socket| read(&socket)) {
        Ok(Snapshot { generation, tables }) => {
            return Ok(Seen { ruleset: Ruleset { tables, not_known: Vec::new() }, generation: Some(generation) });
        }
        // The kernel has no nfnetlink (netlink_create in net/netlink/af_netlink.c), or that without nf_tables
        // (nfnetlink_rcv_msg in net/netfilter/nfnetlink.c).
        Err(ReadError::NotAsked(Errno::EPROTONOSUPPORT) | ReadError::Socket(Errno::EINVAL | Errno::EOPNOTSUPP)) => {
            return nothing(None);
        }
        Err(ReadError::Socket(Errno::EPERM)) => (true, format!("EPERM: {PRIVILEGE}")),
        Err(ReadError::Socket(errno)) => (false, errno.to_string()),
        // Not the kernel's answer, which alone would tell of a capability.
        Err(ReadError::NotAsked(errno)) => (errno == Errno::EPERM, format!("{errno}: {}", netlink_advice(errno))),
        Err(error) => return Err(refusal::unreadable(error).in_mode(Mode::Nft)),
    };
    nothing(Some(Unseen { subsystem: Subsystem::NfTables, not_permitted, reason }))
}

/// Returns true if nft or native mode has rules in such a table.
pub(super) fn may_be_ours(family: TableFamily, name: &[u8]) -> bool {
    let is = |(own, own_name): (TableFamily, &str)| own == family && own_name.as_bytes() == name;
    Family::ALL.iter().any(|&of| is(Mode::Nft.table(of)) || is(Mode::Native.table(of)))
}

/// The modes in which nf_tables holds our rules, for legacy mode.
pub(crate) fn holders() -> Result<Vec<Mode>, Error> {
    let ruleset = read()?.ruleset;
    match ruleset.unseen(Subsystem::NfTables) {
        // A process that may not read nf_tables may not change legacy tables either; that attempt explains it better.
        Some(unseen) if !unseen.not_permitted => {
            let reason = format!("nf_tables: {}", unseen.reason);
            Err(ModeError::Unseen(reason).in_mode(Mode::Legacy))
        }
        _ => Ok([Mode::Nft, Mode::Native].into_iter().filter(|&mode| holds_rules(&ruleset, mode)).collect()),
    }
}

/// The version of a network namespace's rules. If a later stamp is equal, it is the same namespace, nf_tables has not
/// changed since, and there are no legacy tables, as there were none then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    namespace: u64,
    generation: Generation,
}

impl Stamp {
    /// The stamp of the thread's network namespace now. None if there may be legacy tables, whose changes leave no trace, or
    /// if the kernel can't tell (before 5.14, it has no numbers for namespaces).
    pub fn now() -> Option<Self> {
        let socket = Socket::open().ok()?;
        legacy::read::has_none()
            .then_some(Self { namespace: socket.namespace().ok()?, generation: read::generation(&socket).ok()? })
    }
}
