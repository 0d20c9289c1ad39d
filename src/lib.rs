//! Redirects the TCP of a network namespace, such as a pod's, through its sidecar proxy: the work of `linkerd-init`,
//! which runs a dozen iptables processes for each of IPv4 and IPv6, in one netlink transaction.
//!
//! A [`Config`] says what is to be redirected. [`Install`] takes it to the kernel, all of it or nothing, [`verify`]
//! compares the installed rules with it, and [`Uninstall`] removes it. Each works in the network namespace that it is
//! told, and leaves the calling thread where it is:
//!
//! ```no_run
//! use proxy_init::{Config, Install, OwnerId, Uninstall, verify};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut config = Config::new("4143".parse()?, "4140".parse()?);
//! // Without it, what the proxy itself sends would be redirected to the proxy.
//! config.proxy_uid = OwnerId::new(2102);
//! config.ignored_inbound_ports = vec!["4190".parse()?, "8000-8100".parse()?];
//!
//! let mut install = Install::new(config);
//! install.netns = Some("/var/run/netns/pod".into());
//! let installed = install.run()?;
//! println!("{} rules in {} mode, because {}", installed.rules(), installed.mode, installed.reason);
//! assert!(verify(&install)?.is_in_place());
//!
//! let mut uninstall = Uninstall::default();
//! uninstall.netns = install.netns;
//! uninstall.run()?;
//! # Ok(())
//! # }
//! ```
//!
//! That takes CAP_NET_ADMIN, and CAP_SYS_ADMIN for another namespace than the process' own; [`Install::simulate`] takes
//! nothing. [`error::chain`] writes an error with its causes. Where one advises a setting, such as
//! replace-other-backend, that is the field of that name here, and a flag of the program.
//!
//! [`explain`], [`show`], [`recognize`] and [`detect`] answer questions about a namespace, and change nothing.
//!
//! The library links with libmnl and libnftnl, which pkg-config must find (`libmnl-dev`, `libnftnl-dev`). Its own source
//! is under Apache-2.0, but a program that is linked with libnftnl may be passed on only under the GPL, version 3 or
//! later (the file NOTICE says more).
//!
//! # Features
//!
//! - `cli` (default): the program, with its flags. A program that embeds the library has no use for it.
//! - `diagnose` (default): questions about a namespace that change nothing, such as [`verify`] and [`explain`].

// Nothing panics, on any input, kernel answer or environment. Tests may: that is how they fail.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]
// In a module, `pub` items are for other modules. Other programs use only the items that this file names.
#![warn(missing_docs)]
#![allow(unreachable_pub)]

#[cfg(all(test, feature = "diagnose"))]
mod specification;

mod config;
#[cfg(feature = "diagnose")]
#[doc(hidden)]
pub mod diagnose;
// Hidden items are the program's own, not for others.
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
pub mod error;
#[cfg(feature = "cli")]
mod flags;
#[cfg(all(feature = "diagnose", any(test, fuzzing)))]
pub mod fuzzed;
mod install;
mod kernel;
#[doc(hidden)]
pub mod log;
mod modes;
mod netns;
mod notice;
mod ownership;
mod plan;
mod pod_uid;
mod uninstall;

/// For this project's own benchmarks and fuzzers: not for others.
#[doc(hidden)]
pub mod internal {
    pub use crate::modes::batch;
    pub use crate::plan::plan;
}

/// The version, the commit and the build: the text of `--version` after a program's name.
#[doc(hidden)]
pub const BUILD: &str = env!("PROXY_INIT_BUILD");

pub use config::settings::{Form, PartialConfig, SETTINGS, Setting, arguments, list_items};
pub use config::warnings::Warning as ConfigWarning;
pub use config::{
    Config, IdRange, Interface, InvalidValue, Mode, ModeChoice, NumberRange, OwnerId, Port, PortRange, Subnet,
};
#[cfg(feature = "diagnose")]
pub use diagnose::{
    detect::user_namespaces::UserNamespaces,
    detect::{Detected, Feature, detect},
    explain::answer::{Connection, Verdict},
    explain::{Decider, Explained, explain},
    proxy::PodWarning,
    show::{Shown, show},
    snapshot::user_namespaces,
    verify::finding::{Finding, FindingKind},
    verify::{Verification, recognize, verify},
};
pub use error::Error;
pub use install::choose::Reason;
pub use install::host_network::HostNetwork;
pub use install::{Install, Installed, Simulate};
pub use modes::nf_tables::Stamp;
pub use netns::Namespace;
pub use notice::{OperationNotice, Warning};
pub use pod_uid::PodUid;
pub use ruleset::Unseen;
pub use ruleset::{Direction, Family, Name, Subsystem};
pub use uninstall::{Uninstall, Uninstalled};
