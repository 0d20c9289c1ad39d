//! The real program on a real kernel, each test in network namespaces of its own. Needs root, and says so.
//!
//! The expectations come from third-party tools: the iptables commands that linkerd-init would have run, the rules that
//! iptables and nft read back, and real connections.

mod check;
mod command_line;
mod deploy;
mod detect;
mod errors;
mod explain;
mod failures_half_way;
mod host_network;
mod install;
mod kubectl;
mod library;
mod modes;
mod pages;
mod privileges;
mod show;
mod support;
mod traffic;
mod uninstall;
mod valgrind;
mod validate;
mod verify;
mod versions;
