//! A pod's network namespace, found by the processes of its cgroup.
//!
//! What a pod's processes are called and which namespaces they made is the pod's own choice. Its cgroup isn't: kubelet
//! and the runtime put each process there. And the first process of a pod is the runtime's (the pause container), or at
//! least one that the runtime started in the sandbox' network namespace; whoever unshares another one is younger.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use proxy_init::Namespace;

use crate::pod::Uid;

/// The first process of each pod of the node.
#[derive(Debug, Default)]
pub struct Processes(BTreeMap<Uid, Process>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Process {
    /// When it started, in ticks since the node did (proc_pid_stat(5)).
    start: u64,
    pid: u32,
}

impl Processes {
    /// Looks at every process that this one can see: all of the node's in a pod with hostPID.
    ///
    /// # Errors
    /// As of readdir(3).
    pub fn read(proc: &Path) -> io::Result<Self> {
        let mut found = Self::default();
        for entry in proc.read_dir()? {
            let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            // Those that end meanwhile are nobody's.
            let Some((uid, start)) = identity(proc, pid) else {
                continue;
            };
            let process = Process { start, pid };
            let first = found.0.entry(uid).or_insert(process);
            *first = process.min(*first);
        }
        Ok(found)
    }

    /// Whether there is a process of any pod.
    pub fn are_none(&self) -> bool {
        self.0.is_empty()
    }

    /// Opens a pod's network namespace.
    ///
    /// # Errors
    /// Why it can't be told which it is.
    pub fn namespace(&self, proc: &Path, uid: &Uid) -> Result<Namespace, String> {
        let process = self.0.get(uid).ok_or("no process of the pod can be seen")?;
        let path = proc.join(process.pid.to_string()).join("ns/net");
        let namespace = Namespace::open(&path).map_err(|error| error.to_string())?;
        // The number may be another process' by now, of another pod. What was opened stays what it is.
        if identity(proc, process.pid) != Some((uid.clone(), process.start)) {
            return Err("its process ended meanwhile".to_owned());
        }
        let opened = inode(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let own = inode(Path::new("/proc/self/ns/net"));
        let own = own.map_err(|error| format!("the agent's own network namespace isn't known: {error}"))?;
        if own == opened {
            return Err("its network namespace is the agent's own".to_owned());
        }
        Ok(namespace)
    }
}

/// A namespace is a file, known by its device and inode (namespaces(7)).
fn inode(path: &Path) -> io::Result<(u64, u64)> {
    let file = fs::metadata(path)?;
    Ok((file.dev(), file.ino()))
}

/// A process' pod, and when it started.
fn identity(proc: &Path, pid: u32) -> Option<(Uid, u64)> {
    let folder = proc.join(pid.to_string());
    let uid = Uid::in_cgroup(&fs::read_to_string(folder.join("cgroup")).ok()?)?;
    // A process' name may have parentheses and any bytes in it; the last one ends it.
    let stat = fs::read(folder.join("stat")).ok()?;
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    // The 22nd field, where the first of the rest is the third.
    let start = rest.split_ascii_whitespace().nth(19)?.parse().ok()?;
    Some((uid, start))
}
