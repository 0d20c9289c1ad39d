//! What verifying, showing and explaining say about the proxy that the rules are for.

use netfilter::netlink::ReadError;
use netfilter::netlink::listeners::listeners;
use packets::found::Found;

use crate::error;
use crate::findings::proxy::{ProxyWarning, warnings};
use crate::findings::recognize::config;
use crate::ours::holders;
use crate::wanted::Config;

/// What is probably wrong with the proxy of these rules, in the thread's network namespace.
pub(super) fn of(config: &Config) -> Vec<ProxyWarning> {
    let listeners = listeners().map_err(|error| match error {
        ReadError::Socket(errno) => format!("sock_diag: {}", error::Errno::of(errno)),
        other => format!("sock_diag: {other}"),
    });
    warnings(config, listeners)
}

/// The same for the rules that were found; none where there are no rules, or too few to tell their flags.
pub(super) fn of_found(found: &Found) -> Vec<ProxyWarning> {
    let config = holders(found).next().and_then(|mode| config(mode, found).ok());
    config.as_ref().map(of).unwrap_or_default()
}
