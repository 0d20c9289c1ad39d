//! What verifying, showing and explaining say about the proxy that the rules are for.

use netfilter::netlink::ReadError;
use netfilter::netlink::listeners::listeners;
use packets::found::{Found, Listener};
use packets::rules::{Family, address};
use packets::walk::any_but_lo;

use crate::error;
use crate::findings::proxy::{ProxyWarning, warnings};
use crate::findings::recognize::config;
use crate::operate::neighbours::network;
use crate::ours::holders;
use crate::wanted::Config;

/// What is probably wrong with the proxy of these rules, in the thread's network namespace.
pub(super) fn of(config: &Config) -> Vec<ProxyWarning> {
    let listeners = listeners().map_err(|error| match error {
        ReadError::Socket(errno) => format!("sock_diag: {}", error::Errno::of(errno)),
        other => format!("sock_diag: {other}"),
    });
    warnings(config, listeners.map(reached))
}

/// Those that a redirected connection may get to. One that arrives goes to an address of its device that not every
/// listener of the pod's has.
fn reached(mut listeners: Vec<Listener>) -> Vec<Listener> {
    let is_bound = |listener: &Listener| {
        let address = listener.address.to_canonical();
        !address.is_unspecified() && !address.is_loopback()
    };
    if listeners.iter().any(is_bound) {
        let network = network(&|_| ());
        listeners.retain(|listener| {
            let own = listener.address.to_canonical();
            let redirected_to = network.redirected_to(Family::of(own), &any_but_lo());
            !is_bound(listener) || redirected_to.is_none_or(|to| to.meets(&[(address(own), address(own))]))
        });
    }
    listeners
}

/// The same for the rules that were found; none where there are no rules, or too few to tell their flags.
pub(super) fn of_found(found: &Found) -> Vec<ProxyWarning> {
    let config = holders(found).next().and_then(|mode| config(mode, found).ok());
    config.as_ref().map(of).unwrap_or_default()
}
