//! Redirects the TCP of a network namespace, such as a pod's, through its sidecar proxy: the work of `linkerd-init`,
//! which runs a dozen iptables processes for each of IPv4 and IPv6, in one netlink transaction.
//!
//! ```toml
//! [dependencies]
//! proxy-init = { git = "https://git.example/proxy-init", default-features = false }
//! ```
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
//! for warning in &installed.warnings {
//!     eprintln!("warning: {warning}");
//! }
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
//! That takes CAP_NET_ADMIN, and CAP_SYS_ADMIN for another namespace than the process' own. A mode that would leave
//! connections redirected twice, because another backend holds rules already, is refused. [`error::chain`] writes an
//! error with its causes. Where one advises a setting, such as replace-other-backend, that is the field of that name
//! here, and a flag of the program.
//!
//! [`explain`] tells the fate of a connection, and the rule that decides; [`show`] lists the rules that redirect
//! connections here, whichever program made them; [`recognize`] compares them with one complete installation;
//! [`detect`] lists this kernel's features. They change nothing:
//!
//! ```no_run
//! use std::path::Path;
//!
//! use proxy_init::{Connection, Direction, Verdict, detect, explain, show};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let pod = Some(Path::new("/var/run/netns/pod"));
//! let connection = Connection::new(Direction::Outbound, "192.0.2.1:80".parse()?);
//! let verdict = explain(pod, &connection, |explained| explained.verdict.clone())?;
//! assert_eq!(verdict, Verdict::Proxy(4140));
//!
//! println!("{}", show(pod, |shown| shown.to_string())?);
//! println!("{}", detect(pod)?);
//! # Ok(())
//! # }
//! ```
//!
//! A simulation takes no privilege:
//!
//! ```
//! use proxy_init::{Config, Install, OwnerId, Simulate};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut config = Config::new("4143".parse()?, "4140".parse()?);
//! config.proxy_uid = OwnerId::new(2102);
//! config.ignored_inbound_ports = vec!["4190".parse()?, "8000-8100".parse()?];
//!
//! let rules = Install::new(config).simulate(Simulate::AllFamilies);
//! assert!(rules.contains(
//!     r#"-A PROXY_INIT_REDIRECT -p tcp -m multiport --dports 4190,8000:8100 -m comment --comment "proxy-init/ignore-port-4190,8000:8100" -j RETURN"#
//! ));
//! # Ok(())
//! # }
//! ```
//!
//! # Linking
//!
//! The library links with libmnl and libnftnl, which pkg-config must find: on Debian and Ubuntu, the packages
//! `libmnl-dev`, `libnftnl-dev` and `pkg-config`. Its own source is under Apache-2.0, but libnftnl is under the GPL: a
//! program that is linked with it may be passed on only under the GPL, version 3 or later (the file NOTICE says more).
//!
//! # Features
//!
//! - `cli` (default): the program, with its flags. A program that embeds the library has no use for it:
//!   `default-features = false` leaves out clap.
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
#[doc(hidden)]
pub mod log;
mod modes;
mod netns;
mod notice;
mod ownership;
mod plan;
mod uninstall;

/// For this project's own benchmarks and fuzzers: not for others.
#[doc(hidden)]
pub mod internal {
    pub use crate::modes::netlink::batch;
    pub use crate::plan::plan;
}

/// The version, the commit and the build: the text of `--version` after a program's name.
#[doc(hidden)]
pub const BUILD: &str = env!("PROXY_INIT_BUILD");

pub use config::settings::{Draft, Form, SETTINGS, Setting, arguments, list_items};
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
    recognize::{Recognized, recognize},
    show::{Shown, show},
    snapshot::user_namespaces,
    verify::finding::{Finding, FindingKind},
    verify::{Verification, verify},
};
pub use error::Error;
pub use install::choose::Reason;
pub use install::host_network::HostNetwork;
pub use install::{Install, Installed, Simulate};
pub use modes::netlink::Stamp;
pub use netns::Namespace;
pub use notice::{OperationNotice, Warning};
pub use ruleset::Unseen;
pub use ruleset::{Direction, Family, Name, Subsystem};
pub use uninstall::{Uninstall, Uninstalled};
