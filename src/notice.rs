//! Notices from an operation to its caller while it runs.

use derive_more::Display;
use ruleset::Unseen;

use crate::config::{Mode, warnings};
use crate::error::{Error, reason};
use crate::install::choose::Reason;

/// Something that happened and that the caller may want to log.
#[derive(Debug)]
#[non_exhaustive]
pub enum OperationNotice<'a> {
    /// `auto` chose this mode.
    Chose(Mode, &'a Reason),
    /// Something is not as it should be; the operation goes on.
    Warning(&'a Warning),
    /// Legacy tables could not be seen, in a namespace where nothing was ever committed to nf_tables: a new pod's.
    LegacyUnseen(&'a Unseen),
    /// The iptables commands of legacy mode are about to run. They take milliseconds, or seconds while another program
    /// holds the xtables lock; with `waits`, they wait for the lock however long that takes.
    RunningCommands {
        /// True if the commands wait for the lock.
        waits: bool,
    },
    /// Our rules were removed from this backend.
    Removed(Mode),
}

/// A defect that stops nothing.
#[derive(Debug, Display)]
#[non_exhaustive]
pub enum Warning {
    /// The config is probably a mistake.
    #[display("{_0}")]
    Config(warnings::Warning),
    /// A mode can't be used.
    #[display("{}; falling back to {mode} mode", reason(missing))]
    FellBack {
        /// The part that it lacks.
        missing: Error,
        /// The mode that is tried next.
        mode: Mode,
    },
    /// Legacy tables could not be seen.
    #[display("not known: whether legacy tables hold proxy-init's rules too ({}); they are left unchanged",
        _0.reason)]
    LegacyUnseen(Unseen),
    /// Another program's rule was removed, because it led to a chain of ours.
    #[display("{mode} mode: removed a rule that another program added, because it led to a proxy-init chain: {rule}")]
    RemovedForeign {
        /// The mode whose rules were removed.
        mode: Mode,
        /// The rule, with its table and chain.
        rule: String,
    },
    /// The kernel has no IPv6. In legacy mode, only the IPv4 rules are installed.
    #[display("this kernel has no IPv6 (socket: EAFNOSUPPORT), so there is no IPv6 traffic to redirect")]
    NoIpv6,
    /// The rules are in the machine's own network namespace.
    #[display(
        "this is the machine's own network namespace, not one of a pod or container: its own connections are \
         redirected now, until `proxy-init uninstall` (--allow-host-network, if that is what you want)"
    )]
    HostNetwork,
}
