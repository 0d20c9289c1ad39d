//! Where control groups are, and what they say of a container.

use std::fs;
use std::path::PathBuf;

use crate::apt::find;
use crate::shell::Result;

/// The hierarchies of version 1's cgroups, or version 2's one.
pub fn hierarchies() -> Vec<PathBuf> {
    let root = PathBuf::from("/sys/fs/cgroup");
    if root.join("cgroup.controllers").exists() {
        return vec![root];
    }
    let folders = fs::read_dir(root).into_iter().flatten().flatten();
    let folders = folders.map(|entry| entry.path()).filter(|folder| !folder.is_symlink());
    folders.filter(|folder| folder.join("cgroup.procs").exists()).collect()
}

/// The limits of a container that was given those of Linkerd's chart, 20 MiB and a tenth of a processor: of memory, and of
/// processor time in a period. It is somewhere below this cgroup.
pub fn limits_of_chart(cgroup: &str, container: &str) -> Result<String> {
    let hierarchies = hierarchies();
    let cgroups = hierarchies.iter().map(|hierarchy| find(&hierarchy.join(cgroup), container));
    let cgroups: Vec<_> = cgroups.flatten().collect();
    let mut limits = Vec::new();
    for file in ["memory.limit_in_bytes", "cpu.cfs_quota_us", "memory.max", "cpu.max"] {
        let found = cgroups.iter().find_map(|cgroup| fs::read_to_string(cgroup.join(file)).ok());
        limits.extend(found.map(|text| text.trim().to_owned()));
    }
    // In version 1 of cgroups, and in version 2.
    if limits != ["20971520", "10000"] && limits != ["20971520", "10000 100000"] {
        return Err(format!("the container's cgroups have {limits:?}").into());
    }
    Ok(format!("memory and processor time of a period: {}", limits.join(", ")))
}
