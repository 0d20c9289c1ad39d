//! `--netns pod:UID` and `--netns address:IP`: a pod's network namespace, as its node sees it.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

use crate::netns::Namespace;
use crate::pod_uid::PodUid;

/// Where container runtimes give network namespaces names (containerd's and CRI-O's default).
const NAMED: &str = "/var/run/netns";

/// The place of the network namespace of the pod with this UID, found by the processes in the pod's cgroup; or the reason
/// why none can be told. A runtime may put a helper of its own into that cgroup, which is in the node's namespace, as is whoever
/// looks from the node. A pod may make namespaces of its own; then none is taken for the pod's.
pub(super) fn path_of_pod(uid: &str) -> Result<PathBuf, String> {
    let uid = PodUid::new(uid).ok_or_else(|| format!("\"{uid}\" is no pod's UID: it is in the pod's metadata.uid"))?;
    let own = fs::read_link("/proc/self/ns/net").map_err(|error| format!("/proc/self/ns/net: {error}"))?;
    let mut found = BTreeMap::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let path = process.path().join("ns/net");
        let Ok(cgroups) = fs::read_to_string(process.path().join("cgroup")) else { continue };
        if PodUid::in_cgroup(&cgroups).as_ref() != Some(&uid) {
            continue;
        }
        match fs::read_link(&path) {
            Ok(namespace) if namespace != own => _ = found.insert(namespace, path),
            _ => {}
        }
    }
    let none = "no process of this pod can be seen: run proxy-init on the pod's node, as root and with its processes";
    only(found.into_values(), none, "processes of this pod are in several network namespaces")
}

/// The place of the one namespace with this address, among those that the runtime has given a name. For who sees no processes of
/// pods, as an agent that needs none. A pod may give itself another pod's address; then none is taken for the pod's.
pub(super) fn path_of_address(address: &str) -> Result<PathBuf, String> {
    let address: IpAddr = address.parse().map_err(|_| format!("\"{address}\" is no IP address"))?;
    let mut having = Vec::new();
    for entry in fs::read_dir(NAMED).map_err(|error| format!("{NAMED}: {error}"))?.flatten() {
        // A name whose namespace is gone is an ordinary file.
        let Ok(namespace) = Namespace::open(entry.path()) else { continue };
        if namespace.has_any(&[address]).map_err(|error| error.to_string())? {
            having.push(entry.path());
        }
    }
    let none = format!("no network namespace in {NAMED} has this address: run proxy-init on the pod's node, as root");
    only(having, &none, "several network namespaces have this address")
}

/// The only path; or the reason why it can't be told, if there is none or several.
fn only(paths: impl IntoIterator<Item = PathBuf>, none: &str, several: &str) -> Result<PathBuf, String> {
    let mut paths = paths.into_iter();
    match (paths.next(), paths.next()) {
        (Some(path), None) => Ok(path),
        (None, _) => Err(none.to_owned()),
        (Some(one), Some(other)) => {
            Err(format!("{several}: name the right one, such as {} or {}", one.display(), other.display()))
        }
    }
}
