//! The CNI plugin `linkerd-cni`: it redirects the TCP of Kubernetes' pods through their sidecar proxies, as Linkerd's
//! plugin of that name does, in one netlink transaction for each pod and without iptables on the node. docs/cni.md
//! describes it.
//!
//! The program is [`plugin::run`] with the process' own environment and standard input. What it reads of others is in
//! modules of its own: [`command`] reads the environment, [`kubeconfig`] and [`api`] Kubernetes' answers. The crate
//! `pod` reads standard input and annotations, and decides which rules a pod gets.

// Nothing panics, on any input, answer of the API server or environment. Tests may: that is how they fail.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

pub mod api;
pub mod authority;
pub mod command;
pub mod error;
pub mod file;
#[cfg(any(test, fuzzing))]
pub mod fuzzed;
pub mod kubeconfig;
pub mod log;
mod members;
pub(crate) mod names;
pub mod plugin;
pub mod verb;
pub mod version;
