//! What verifying, showing and explaining say about the proxy that the rules are for.

use netfilter::netlink::ReadError;
use netfilter::netlink::listeners::listeners;
use packets::found::{Listener, Network};
use packets::rules::{Family, address};
use packets::walk::any_but_lo;

use crate::error;
use crate::findings::proxy::{ProxyWarning, warnings};
use crate::wanted::Config;

/// What is probably wrong with the proxy of these rules, in the thread's network namespace.
pub(super) fn of(config: &Config, network: &Network) -> Vec<ProxyWarning> {
    // What the kernel didn't tell before, it is asked once more for the reason.
    let listeners = network.listeners.clone().map_or_else(listeners, Ok);
    let listeners = listeners.map_err(|error| match error {
        ReadError::Socket(errno) => format!("sock_diag: {}", error::Errno::of(errno)),
        other => format!("sock_diag: {other}"),
    });
    warnings(config, listeners.map(|listeners| reached(listeners, network)))
}

/// Those that a redirected connection may get to: one that arrives goes to an address of its device.
fn reached(mut listeners: Vec<Listener>, network: &Network) -> Vec<Listener> {
    listeners.retain(|listener| {
        let own = listener.address.to_canonical();
        let is_bound = !own.is_unspecified() && !own.is_loopback();
        let redirected_to = || network.redirected_to(Family::of(own), &any_but_lo());
        !is_bound || redirected_to().is_none_or(|to| to.meets(&[(address(own), address(own))]))
    });
    listeners
}
