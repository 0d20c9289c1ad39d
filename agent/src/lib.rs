//! The agent of a node: it installs the CNI plugin linkerd-cni, keeps it there, and watches and heals the pods that the
//! plugin sets up. docs/node.md describes it.
//!
//! Pure functions decide: [`conflist`] and [`plan`] say which content a folder shall have, given the content that it has; [`settings`] reads arguments and environment. [`folder`] reads and writes, [`keeper`] takes one to
//! the other, and [`install`] does that whenever something changes. [`pods`] watches: [`pod`] says what a pod is to the
//! agent, [`netns`] finds its network namespace, [`rules`] asks the plugin's own code what is to be there, and looks,
//! [`drift`] says what a difference means, and [`tracked`] heals. [`plugin_log`] shows what the plugin says. [`fate`] decides whether the plugin
//! goes when the agent does. Both of these [`follow`] objects at the API server.
//!
//! [`nri`] does all of it without a plugin, files or an API server: the runtime itself tells of each pod.

// Nothing panics, on any input, answer of the API server or environment. Tests may: that is how they fail.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

pub mod access;
pub mod admin;
pub mod api;
pub mod conflist;
pub mod drift;
pub mod events;
pub mod fate;
pub mod folder;
pub mod follow;
pub mod install;
pub mod keeper;
pub mod kubeconfig;
pub mod log;
pub mod metrics;
pub mod netns;
pub mod nri;
pub mod owner;
pub mod plan;
pub mod plugin_log;
pub mod pod;
pub mod pods;
pub mod rules;
pub mod schedule;
pub mod settings;
pub mod status;
pub mod taint;
pub mod throttle;
pub mod tracked;
pub mod watch;
