//! `--netns pod:UID`: a pod's network namespace, as its node sees it.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use crate::pod_uid::PodUid;

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
    let mut paths = found.into_values();
    match (paths.next(), paths.next()) {
        (Some(path), None) => Ok(path),
        (None, _) => Err("no process of this pod can be seen: run proxy-init on the pod's node, as root and with its \
                          processes"
            .to_owned()),
        (Some(one), Some(other)) => Err(format!(
            "processes of this pod are in several network namespaces: name the right one, such as {} or {}",
            one.display(),
            other.display()
        )),
    }
}
