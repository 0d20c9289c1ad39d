//! A pod's network namespace, found by the processes in the pod's cgroup.
//!
//! A pod's processes choose what they are called and which namespaces they make. So a network namespace is taken for the
//! pod's only if all of this is so of what was opened:
//!
//! 1. A process in the pod's cgroup is in it: kubelet and the runtime put each process there.
//! 2. It is neither the agent's own nor the node's, which process 1 is in. A runtime may put a helper of its own into a
//!    pod's cgroup, such as CRI-O's conmon.
//! 3. It belongs to the user namespace in which the runtime makes the pod's network: the agent's own or, for a pod with
//!    `hostUsers: false`, one right below it. What a process made without CAP_SYS_ADMIN belongs to a user namespace that
//!    the process made as well, further below.
//! 4. It has one of the addresses that kubelet tells of the pod.
//! 5. No other namespace of the pod's processes has all of this.
//!
//! Otherwise it isn't known. Which process came first says nothing: without a pause container, each is the pod's own.
//!
//! A pod with CAP_SYS_ADMIN and CAP_NET_ADMIN in the runtime's user namespace can make a namespace that has all of this,
//! and be seen in no other. It deceives the agent about itself alone, as any pod can that runs as the proxy's user.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, fstat};
use proxy_init::{Namespace, PodUid};
use thiserror::Error;

use crate::pod::Meshed;

/// A namespace is a file, known by its device and inode (namespaces(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity(u64, u64);

impl Identity {
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        let file = fs::metadata(path)?;
        Ok(Self(file.dev(), file.ino()))
    }

    pub(crate) fn of(namespace: &Namespace) -> Result<Self, Errno> {
        let file = fstat(namespace)?;
        Ok(Self(file.st_dev, file.st_ino))
    }
}

/// The reason why a process's network namespace isn't the pod's; the later one says more.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Error)]
enum Otherwise {
    #[error("no process of the pod can be seen")]
    Unseen,
    #[error("its network namespace is the agent's own")]
    Own,
    #[error("its network namespace is the node's")]
    Node,
    #[error("{NOT_MADE}: it belongs to another user namespace than the pod's network")]
    Users,
    #[error("{NOT_MADE}: it has none of the pod's addresses")]
    NoAddress,
    #[error("{0}")]
    Failed(String),
}

const NOT_MADE: &str = "its processes are in a network namespace that the runtime didn't make";

/// The processes of each pod of the node.
#[derive(Debug)]
pub(crate) struct Processes {
    proc: PathBuf,
    /// Their numbers, in their order.
    pods: BTreeMap<PodUid, BTreeSet<u32>>,
    own: Identity,
    /// None where a security module hides process 1. No pod's address is the node's either.
    node: Option<Identity>,
}

impl Processes {
    /// Looks at every process that this one can see: all of the node's in a pod with hostPID.
    pub(crate) fn read(proc: &Path) -> Result<Self, String> {
        let words = |error: io::Error| format!("{}: {error}", proc.display());
        let mut found = Self {
            proc: proc.to_owned(),
            pods: BTreeMap::new(),
            own: Identity::at(&proc.join("self/ns/net")).map_err(words)?,
            node: Identity::at(&proc.join("1/ns/net")).ok(),
        };
        for entry in proc.read_dir().map_err(words)? {
            let name = entry.map_err(words)?.file_name();
            let Some(number) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            // A process that ends meanwhile is in no pod.
            let cgroup = fs::read_to_string(proc.join(name).join("cgroup")).unwrap_or_default();
            if let Some(uid) = PodUid::in_cgroup(&cgroup) {
                found.pods.entry(uid).or_default().insert(number);
            }
        }
        if found.pods.is_empty() {
            return Err("no pod's processes can be seen: the agent needs hostPID".to_owned());
        }
        Ok(found)
    }

    /// Opens a pod's network namespace.
    pub(crate) fn network(&self, uid: &PodUid, pod: &Meshed) -> Result<Namespace, String> {
        if pod.addresses().is_empty() {
            return Err("the API server doesn't say which addresses the pod has".to_owned());
        }
        let mut networks = Vec::new();
        let mut seen = BTreeSet::new();
        let mut otherwise = Otherwise::Unseen;
        for &number in self.pods.get(uid).into_iter().flatten() {
            match self.look(number, uid, pod, &mut seen) {
                Ok(found) => networks.extend(found),
                Err(reason) => otherwise = otherwise.max(reason),
            }
        }
        let number = networks.len();
        match (networks.pop(), number) {
            (Some(network), 1) => Ok(network),
            (None, _) => Err(otherwise.to_string()),
            (Some(_), _) => Err(format!(
                "its processes are in {number} network namespaces that have its address, and which of them the runtime made \
                 can't be told"
            )),
        }
    }

    /// No pod's network is the agent's own or the node's.
    fn check(&self, network: Identity) -> Result<(), Otherwise> {
        if network == self.own {
            return Err(Otherwise::Own);
        }
        if Some(network) == self.node { Err(Otherwise::Node) } else { Ok(()) }
    }

    /// Opens the network namespace of a process if it is the pod's; none if it was seen before.
    fn look(
        &self,
        number: u32,
        its: &PodUid,
        pod: &Meshed,
        seen: &mut BTreeSet<Identity>,
    ) -> Result<Option<Namespace>, Otherwise> {
        let folder = self.proc.join(number.to_string());
        // As long as this file is open, what it has is about this process, whoever gets its number.
        let Ok(process) = File::open(&folder) else {
            return Err(Otherwise::Unseen);
        };
        let path = folder.join("ns/net");
        let failed = |error: &dyn Display| Otherwise::Failed(format!("{}: {error}", path.display()));
        // Most processes of a pod share one: only the first of them is opened.
        match Identity::at(&path) {
            Ok(identity) if seen.contains(&identity) => return Ok(None),
            Ok(identity) => self.check(identity)?,
            Err(error) if has_ended(&error) => return Err(Otherwise::Unseen),
            Err(error) => return Err(failed(&error)),
        }
        let network = Namespace::open(&path).map_err(|error| Otherwise::Failed(error.to_string()))?;
        // It is still there, so its number hasn't become another's before the namespace was opened.
        if uid(&process).as_ref() != Some(its) {
            return Err(Otherwise::Unseen);
        }
        // From here on, only what was opened counts: the process may be elsewhere by now.
        let identity = Identity::of(&network).map_err(|error| failed(&error))?;
        self.check(identity)?;
        if !seen.insert(identity) {
            return Ok(None);
        }
        let depth = network.user_namespace_depth().map_err(|error| failed(&error))?;
        if depth != usize::from(pod.has_own_users()) {
            return Err(Otherwise::Users);
        }
        let has_address = network.has_any(pod.addresses()).map_err(|error| Otherwise::Failed(error.to_string()))?;
        if has_address { Ok(Some(network)) } else { Err(Otherwise::NoAddress) }
    }
}

/// Returns true if reading a process' files failed because the process has ended, or is about to.
fn has_ended(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(Errno::ESRCH as i32)
}

/// The pod of a process whose folder is open; none, too, if it has ended.
fn uid(process: &File) -> Option<PodUid> {
    let cgroup = openat(process, "cgroup", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()).ok()?;
    let mut text = String::new();
    File::from(cgroup).read_to_string(&mut text).ok()?;
    PodUid::in_cgroup(&text)
}
