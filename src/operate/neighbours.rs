//! Reads what the network namespace, the kernel and the node show of other programs. What can't be read is left out:
//! nothing here fails.

use std::fs;
use std::io::ErrorKind;

use netfilter::netlink::route;
use netfilter::netlink::user_namespace::owns_network;
use packets::found::Device;

use crate::backend::proc_of_thread;
use crate::findings::neighbours::Traces;
use crate::findings::user_namespaces::UserNamespaces;

/// The devices of the thread's network namespace.
pub(super) fn devices() -> Vec<Device> {
    route::devices().unwrap_or_default()
}

/// What the kernel and the node show.
pub(super) fn traces() -> Traces {
    let thread = proc_of_thread();
    let names = fs::read_dir("/etc/cni/net.d").into_iter().flatten().flatten();
    Traces {
        version: text("/proc/version"),
        status: text(&format!("{thread}/status")),
        confinement: text(&format!("{thread}/attr/current")),
        owns_network: owns_network(),
        networks: names
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect(),
    }
}

fn text(path: &str) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// Whether pods with `hostUsers: false` can run here, and how the modes serve them from outside.
pub fn user_namespaces() -> UserNamespaces {
    let thread = proc_of_thread();
    let maximum = fs::read_to_string("/proc/sys/user/max_user_namespaces");
    let is_missing = matches!(&maximum, Err(error) if error.kind() == ErrorKind::NotFound);
    UserNamespaces::of(
        maximum.ok().as_deref(),
        is_missing && fs::exists(format!("{thread}/ns/net")).unwrap_or_default(),
    )
}
