//! Redirects the TCP of a network namespace, such as a pod's, through its sidecar proxy: what `linkerd-init` does with
//! two dozen iptables processes, in one netlink transaction.
//!
//! A [`Config`] says what is to be redirected. [`Install`] takes it to the kernel, all of it or nothing, and compares
//! what is installed with it; [`Uninstall`] removes it. Each works in the network namespace that it is told, and leaves the
//! calling thread where it is:
//!
//! ```no_run
//! use proxy_init::{Config, Install, Uninstall};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut config = Config::new("4143".parse()?, "4140".parse()?);
//! config.ignored_inbound_ports = vec!["4190".parse()?, "8000-8100".parse()?];
//!
//! let mut install = Install::new(config);
//! install.netns = Some("/var/run/netns/pod".into());
//! let installed = install.run()?;
//! println!("{} rules in {} mode, because {}", installed.rules(), installed.mode, installed.reason);
//! assert!(install.verify()?.is_in_place());
//!
//! let mut uninstall = Uninstall::default();
//! uninstall.netns = install.netns;
//! uninstall.run()?;
//! # Ok(())
//! # }
//! ```
//!
//! That takes CAP_NET_ADMIN, and CAP_SYS_ADMIN for another namespace than the process' own. A mode that would leave
//! connections redirected twice, because another backend holds rules already, is refused. The rules themselves are plain
//! data and take no privilege:
//!
//! ```
//! use proxy_init::{Config, plan};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut config = Config::new("4143".parse()?, "4140".parse()?);
//! config.ignored_inbound_ports = vec!["4190".parse()?, "8000-8100".parse()?];
//!
//! let rulesets = plan(&config);
//! let rules: Vec<String> = rulesets[0]
//!     .rules()
//!     .map(|(chain, rule)| format!("-A {chain} {rule}"))
//!     .collect();
//! assert_eq!(
//!     rules[0],
//!     r#"-A PROXY_INIT_REDIRECT -p tcp -m multiport --dports 4190,8000:8100 -m comment --comment "proxy-init/ignore-port-4190,8000:8100" -j RETURN"#
//! );
//! # Ok(())
//! # }
//! ```
//!
//! # Linking
//!
//! The library links with libmnl and libnftnl, which pkg-config must find: on Debian and Ubuntu, the packages
//! `libmnl-dev`, `libnftnl-dev` and `pkg-config`.
//!
//! # Features
//!
//! - `cli` (default): the program, with its flags. A program that embeds the library has no use for it:
//!   `default-features = false` leaves out clap.
//! - `serde`: a [`Config`] can be read and written with serde, by the names of the flags.

// Nothing panics, on any input, kernel answer or environment. Tests may: that is how they fail.
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod backend;
// What is hidden is the program's own, not for others.
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
pub mod error;
pub mod findings;
pub mod found;
#[cfg(any(test, fuzzing))]
pub mod fuzzed;
#[doc(hidden)]
pub mod log;
pub mod namespace;
mod netlink;
mod nf_tables;
pub mod operate;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod report;
pub mod rules;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod start_up;
pub mod walk;
pub mod wanted;
mod xt;

/// The version, the commit and what it was built with: what `--version` says after a program's name.
#[doc(hidden)]
pub const BUILD: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (commit ",
    env!("PROXY_INIT_COMMIT"),
    ", for ",
    env!("PROXY_INIT_TARGET"),
    ", by ",
    env!("PROXY_INIT_COMPILER"),
    ", libnftnl ",
    env!("PROXY_INIT_LIBNFTNL_VERSION"),
    ", libmnl ",
    env!("PROXY_INIT_LIBMNL_VERSION"),
    ")"
);

pub use error::Error;
pub use namespace::Namespace;
pub use operate::choose::Reason;
pub use operate::install::{Install, Installed};
pub use operate::notice::{Notice, Warning};
pub use operate::uninstall::{Uninstall, Uninstalled};
pub use operate::verify::Verdict;
pub use rules::family::Family;
pub use wanted::config::{Config, OwnerId, Port, PortRange, Subnet};
pub use wanted::mode::{Choice, Mode};
pub use wanted::plan::plan;
pub use wanted::ruleset::Ruleset;
