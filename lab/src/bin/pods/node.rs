//! A node of a cluster, but for kubelet: containerd, with CNI plugins and images.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lab::containerd;
use lab::pods::INTERFACE;
use lab::shell::{Result, Run as _};
use lab::wait;
use serde_json::{Value, json};

use crate::cri::Client;
use crate::scenario::Images;

/// The parts of a node.
#[derive(Debug)]
pub(crate) struct Setup<'a> {
    /// It tells nodes, their folders, their bridges and addresses from each other.
    pub(crate) number: u8,
    /// The cgroup that its containers are in.
    pub(crate) cgroup: &'a str,
    /// Each pod is on one of these networks, of which all reach each other.
    pub(crate) networks: &'a [Network],
    /// Besides those of Debian's that every network uses.
    pub(crate) plugins: &'a [PathBuf],
    pub(crate) images: &'a Images,
    /// Each image's files are in the folder of its name in here.
    pub(crate) image_folder: &'a Path,
}

/// A network configuration: a bridge, and what is chained after it.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) name: &'static str,
    /// As in a list of network configurations (the CNI specification's `plugins`).
    pub(crate) chained: Vec<Value>,
}

/// A running containerd; it ends with the process namespace.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) client: Client,
    pub(crate) cgroup: String,
    /// It vanishes with the mount namespace.
    pub(crate) folder: PathBuf,
    containerd: Mutex<Child>,
}

/// The file in the node's folder that has what containerd says.
pub(crate) const LOG: &str = "containerd.log";

impl Node {
    /// The time limit of containerd's start; it takes a fraction of a second.
    const PATIENCE: Duration = Duration::from_secs(30);

    /// Starts containerd, and waits until it answers.
    pub(crate) fn start(setup: &Setup<'_>) -> Result<Self> {
        let folder = folder(setup.number);
        let plugins = folder.join("plugins");
        fs::create_dir_all(&plugins)?;
        containerd::link_plugins(&plugins)?;
        for plugin in setup.plugins {
            let name = plugin.file_name().ok_or_else(|| format!("no name: {}", plugin.display()))?;
            symlink(plugin, plugins.join(name))?;
        }
        // The plugin takes the bridge that is there. One that looks for multicast routers sends reports of its own,
        // which the pods' rules would count.
        let mut bridge = Command::new("ip");
        bridge.args(["link", "add", &setup.bridge(), "type", "bridge", "mcast_snooping", "0"]);
        bridge.run()?;
        let socket = folder.join("containerd.sock");
        fs::write(folder.join("containerd.toml"), configuration(setup, &socket)?)?;
        let mut containerd = start(&folder)?;
        let interface = setup.image_folder.join(INTERFACE);
        let mut answer = || match Client::connect(&socket, &interface) {
            Err(_) if matches!(containerd.try_wait(), Ok(None)) => None,
            answer => Some(answer),
        };
        let client = wait::until(Self::PATIENCE, &mut answer).unwrap_or_else(|| Client::connect(&socket, &interface));
        let client = client.map_err(|error| format!("containerd does not answer: {error}"))?;
        for image in setup.images.all() {
            image.import(setup.image_folder, &socket, &folder)?;
        }
        Ok(Self { client, cgroup: setup.cgroup.to_owned(), folder, containerd: Mutex::new(containerd) })
    }

    /// Kills containerd, does this, and starts it again. Its pods go on.
    pub(crate) fn restart(&self, meanwhile: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut containerd = self.containerd.lock().unwrap_or_else(PoisonError::into_inner);
        containerd.kill()?;
        containerd.wait()?;
        meanwhile()?;
        *containerd = start(&self.folder)?;
        // Stopping what isn't there does nothing.
        let none = json!({"pod_sandbox_id": "none"});
        let answers = wait::until(Self::PATIENCE, || self.client.call("StopPodSandbox", none.clone()).ok());
        answers.map(drop).ok_or_else(|| "containerd does not answer after its restart".into())
    }

    /// A number that no other pod has, of whichever node.
    pub(crate) fn next(&self) -> u32 {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        NUMBER.fetch_add(1, Ordering::Relaxed)
    }

    /// A folder for a pod's logs and volumes.
    pub(crate) fn pod_folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.folder.join("pods").join(name);
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }
}

/// Where a node's own files are.
pub(crate) fn folder(number: u8) -> PathBuf {
    format!("/run/node-{number}").into()
}

impl Setup<'_> {
    /// The bridge of all networks.
    fn bridge(&self) -> String {
        format!("cni{}", self.number)
    }

    /// The addresses of its pods.
    fn subnets(&self) -> [String; 2] {
        let number = 88 + self.number;
        [format!("10.{number}.0.0/16"), format!("fd{number}::/64")]
    }
}

/// Starts containerd, with its configuration and its log in this folder.
fn start(folder: &Path) -> Result<Child> {
    let log = File::options().create(true).append(true).open(folder.join(LOG))?;
    let mut containerd = Command::new("containerd");
    containerd.arg("--config").arg(folder.join("containerd.toml"));
    Ok(containerd.stdout(log.try_clone()?).stderr(log).spawn()?)
}

/// containerd's configuration: its files below the node's folder, and each network as a runtime of its own, which a
/// sandbox is made with.
fn configuration(setup: &Setup<'_>, socket: &Path) -> Result<String> {
    let default = setup.networks.first().ok_or("a node needs a network")?.name;
    let folder = folder(setup.number);
    let [plugins, networks] = ["plugins", "networks"].map(|name| folder.join(name));
    let mut text = containerd::configuration(&folder, socket, &setup.images.peer, &plugins, &networks);
    // Where containerd has NRI, which is on by default. Each node has a socket of its own.
    text += &format!(
        r#"[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "{default}"
[plugins."io.containerd.nri.v1.nri"]
socket_path = "{}"
"#,
        folder.join("nri.sock").display()
    );
    for network in setup.networks {
        let name = network.name;
        let networks = networks.join(name);
        fs::create_dir_all(&networks)?;
        fs::write(networks.join("10.conflist"), network.list(setup).to_string())?;
        text += &format!(
            r#"[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}]
runtime_type = "io.containerd.runc.v2"
cni_conf_dir = "{}"
"#,
            networks.display()
        );
    }
    Ok(text)
}

impl Network {
    /// The bridge alone.
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, chained: Vec::new() }
    }

    /// All networks share the bridge and its addresses.
    fn list(&self, setup: &Setup<'_>) -> Value {
        let addresses = folder(setup.number).join("addresses");
        containerd::network(&setup.bridge(), &setup.subnets(), &addresses, &self.chained)
    }
}
