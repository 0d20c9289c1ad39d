//! From a pod to its rules: a pod's annotations and labels, and the configuration of the CNI plugin, become the
//! [`Config`](proxy_init::Config) of the pod's rules, or the reason why the pod has none, or a refusal. The plugin and
//! the node's agent, with and without NRI, go this one way.
//!
//! A pod's creator chooses its annotations, and a list of objects is as long as an API server makes it: each value is
//! checked, and nothing is kept that doesn't decide.

// Nothing panics, on any configuration, object or annotation. Tests may: that is how they fail.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod annotations;
mod configuration;
mod decision;
mod error;
mod name;
mod object;

pub use annotations::{Given, keys};
pub use configuration::{Configuration, PodInfo};
pub use decision::{Decision, by_annotations, by_pod};
pub use error::{Error, bounded, one_line, shortened, wrong_in_json};
pub use name::PodName;
pub use object::{Containers, Labels, Metadata, Object, Pod, PodSpec, Proxy, ServiceSpec, gather};
