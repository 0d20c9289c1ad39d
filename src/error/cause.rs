//! The causes of errors: numbers, privileges, and missing parts of a kernel, each with its cure.

use std::io;

use derive_more::Display;
use nix::errno::Errno;

use crate::config::Mode;

/// An I/O error's number; 0 if the kernel had no part in it.
pub(crate) fn errno_of(error: &io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(0))
}

/// The cure for a system call that failed with this number.
pub(super) fn advice(errno: Errno) -> &'static str {
    match errno {
        Errno::EPERM | Errno::EACCES => PRIVILEGE,
        Errno::ENOMEM | Errno::ENOBUFS => {
            "give the process more memory (in a pod, raise resources.limits.memory), and run proxy-init again"
        }
        Errno::EMFILE | Errno::ENFILE => "raise the limit on open files (ulimit -n), and run proxy-init again",
        _ => "please report this line with the kernel's version (uname -r)",
    }
}

/// The cure for a system call on a netlink socket that failed with this number.
pub(crate) fn netlink_advice(errno: Errno) -> &'static str {
    match errno {
        Errno::ENOMEM | Errno::ENOBUFS | Errno::EMFILE | Errno::ENFILE => advice(errno),
        _ => "if a seccomp profile or sandbox is in force, allow AF_NETLINK sockets",
    }
}

/// The privilege for reading and changing rules.
pub(crate) const PRIVILEGE: &str =
    "run as root or with CAP_NET_ADMIN; in a pod, add NET_ADMIN to securityContext.capabilities";

/// An act that a process has no privilege for.
#[derive(Debug, Clone, PartialEq, Eq, Display)]
#[non_exhaustive]
pub enum Privilege {
    /// Change this network namespace's rules.
    #[display("the kernel refuses changes to this network namespace's rules (EPERM): {PRIVILEGE}")]
    Change,
    /// Read them.
    #[display("cannot read this network namespace's rules (EPERM): {PRIVILEGE}")]
    Read,
    /// Run iptables-legacy, which needs this capability.
    #[display(
        "iptables-legacy needs {_0}, which this process lacks: run as root, or add NET_ADMIN and \
         NET_RAW to securityContext.capabilities; nft mode needs NET_ADMIN alone"
    )]
    Capability(String),
}

/// A part that a kernel may lack. As text, it is the end of a sentence that begins with `this kernel`.
#[derive(Debug, Clone, PartialEq, Eq, Display)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the text says what each field is")]
pub enum Lack {
    #[display(" has no nf_tables")]
    NfTables,
    #[display(" is gVisor's, a sandbox that has no nf_tables")]
    Sandbox,
    /// Tables of this family, or these families, in nf_tables.
    #[display("'s nf_tables has no {_0} tables")]
    Tables(String),
    /// Chains of this family, or these families, that can do NAT, in nf_tables.
    #[display("'s nf_tables has no nat chains for {_0}")]
    NatChains(String),
    #[display(" lacks {name}, which `{rule}` needs")]
    Extension { name: String, rule: String, module: &'static str, option: &'static str, instead: Mode },
}

impl Lack {
    pub(super) fn remedy(&self) -> String {
        const LEGACY: &str = "use legacy mode";
        let (modules, options, instead) = match self {
            Self::NfTables => ("the module nf_tables", "CONFIG_NF_TABLES", LEGACY),
            Self::Sandbox => return format!("run the pod without gVisor (runtimeClassName), or {LEGACY}"),
            Self::Tables(_) => (
                "the family's modules",
                "CONFIG_NF_TABLES_IPV4, CONFIG_NF_TABLES_IPV6, CONFIG_NF_TABLES_INET",
                "without IPv6, install rules for IPv4 alone",
            ),
            Self::NatChains(_) => ("the module nft_chain_nat", "CONFIG_NFT_NAT", LEGACY),
            Self::Extension { module, option, instead, .. } => {
                let instead = match instead {
                    Mode::Native => "use native mode, which needs no xt module",
                    Mode::Nft | Mode::Legacy => LEGACY,
                };
                return format!("load the module {module} on the node ({option}), or {instead}");
            }
        };
        format!("load {modules} on the node ({options}), or {instead}")
    }
}
