//! Reads what the network namespace, the kernel and the node show of other programs. What can't be read is left out: nothing
//! here fails.

use std::fs;

use crate::backend::proc_of_thread;
use crate::findings::neighbours::{Link, Traces};
use crate::netlink::privilege::owns_network;
use crate::netlink::route::links;

/// The devices of the thread's network namespace.
pub(super) fn devices() -> Vec<Link> {
    links().unwrap_or_default()
}

/// What the kernel and the node show.
pub(super) fn traces() -> Traces {
    let read = |path: &str| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
    let thread = proc_of_thread();
    let names = fs::read_dir("/etc/cni/net.d").into_iter().flatten().flatten();
    Traces {
        version: read("/proc/version"),
        status: read(&format!("{thread}/status")),
        confinement: read(&format!("{thread}/attr/current")),
        is_of_others: owns_network() == Some(false),
        networks: names
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect(),
    }
}
