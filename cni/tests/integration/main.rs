//! The plugin driven as a runtime drives it, by environment and standard input, in network namespaces of the tests'
//! own: against iptables, and against a double of Kubernetes' API server.

mod api;
mod by_hand;
mod errors;
mod names;
mod rules;
mod support;
