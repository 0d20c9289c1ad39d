//! The real program on a real kernel, each test in network namespaces of its own. Needs root, and says so.
//!
//! The expectations come from third-party tools: the iptables commands that linkerd-init would have run, the rules that
//! iptables and nft read back, and real connections.

mod any_flags;
mod changed;
mod cli;
mod crafted;
mod deploy;
mod discovery;
mod errors;
mod explain;
mod flags;
mod foreign;
mod host_network;
mod judge;
mod kubectl;
mod legacy;
mod legacy_locks;
mod library;
mod modes;
mod native;
mod nft;
mod operate;
mod packets;
mod pages;
mod privileges;
mod proxy;
mod readme;
mod rollout;
mod show;
mod support;
mod traffic;
mod truth;
mod valgrind;
mod validate;
mod verdict;
mod versions;
mod xtables;
