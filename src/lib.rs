//! Redirects the TCP of a network namespace, such as a pod's, through its sidecar proxy: what `linkerd-init` does with
//! two dozen iptables processes, in one netlink transaction.
//!
//! A [`Config`] says what is asked for. [`plan`] turns it into a [`Ruleset`] a family, plain data in xtables'
//! vocabulary, and a [`backend`] takes the rulesets to the kernel, all or nothing.
//!
//! ```
//! use proxy_init::{Config, Port, plan};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut config = Config::new("4143".parse::<Port>()?, "4140".parse::<Port>()?);
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
//! Installing needs CAP_NET_ADMIN and changes the network namespace of the calling thread:
//!
//! ```no_run
//! use proxy_init::backend::{Backend as _, nft::Nft};
//! # use proxy_init::{Config, Port, plan};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let config = Config::new("4143".parse::<Port>()?, "4140".parse::<Port>()?);
//! Nft.install(&plan(&config))?;
//! # Ok(())
//! # }
//! ```

// Nothing panics, on any input, kernel answer or environment. Tests may: that is how they fail.
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod backend;
// The program's own, not for others.
#[doc(hidden)]
pub mod cli;
pub mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzzed;
pub mod log;
pub mod namespace;
mod netlink;
pub mod operate;
#[doc(hidden)] // as cli
pub mod report;
pub mod rules;
#[doc(hidden)] // as cli
pub mod start_up;

pub use error::Error;
pub use rules::config::{Config, Family, OwnerId, Port, PortRange, Subnet};
pub use rules::mode::{Choice, Mode};
pub use rules::plan::plan;
pub use rules::ruleset::Ruleset;
