//! The node's agent on a node of its own, from a node without the plugin to one that has left it: pods that it heals,
//! another program that writes the same file, and the end.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lab::api_double::{ApiServer, Pod as Object};
use lab::linkerd;
use lab::shell::Result;
use lab::wait;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::cni::{connects, has_rules, rules};
use crate::mesh;
use crate::node::{self, Network};
use crate::pod::{Meta, Pod};
use crate::scenario::{Scenario, World};

/// In the folder that `cargo xtask pods` fills.
pub(crate) const AGENT: &str = "cni/usr/lib/linkerd/linkerd-cni-agent";
const PLUGINS: &str = "cni/opt/cni/bin";

/// The number of its node.
const NODE: u8 = 1;

const NAMESPACE: &str = "shop";
const SET: &str = "/apis/apps/v1/namespaces/linkerd-cni/daemonsets/linkerd-cni";

/// The time limit of something that is to happen at once, while other scenarios use the machine.
const SOON: Duration = Duration::from_secs(20);

/// The network validator's exit code where nothing is redirected.
pub(crate) const UNSUCCESSFUL: i64 = 95;

pub(crate) fn scenario(folder: &Path) -> Scenario {
    let folder = folder.to_owned();
    Scenario::new("the node's agent, from its start to its end".to_owned(), move |world| live(world, &folder))
}

/// The node's folders and the API server, as its agents have them.
struct Host<'a> {
    folder: &'a Path,
    server: ApiServer,
}

/// An agent, killed in the end.
pub(crate) struct Agent(pub(crate) Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Agent {
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(i32::try_from(self.0.id())?), signal)?)
    }
}

impl Host<'_> {
    fn networks() -> PathBuf {
        node::folder(NODE).join("networks/agent")
    }

    fn list() -> PathBuf {
        Self::networks().join("10.conflist")
    }

    /// In containers' places, but for the container.
    fn agent(&self) -> Result<Agent> {
        let entry = json!({
            "name": "linkerd-cni", "type": "linkerd-cni", "log_level": "debug",
            "kubernetes": {"kubeconfig": "__KUBECONFIG_FILEPATH__"}, "linkerd": linkerd::cni_section("api"),
        });
        let mut command = Command::new(self.folder.join(AGENT));
        command
            .arg0("/usr/lib/linkerd/linkerd-cni-agent")
            .env_clear()
            .env("CONTAINER_MOUNT_PREFIX", "/")
            .env("CONTAINER_CNI_BIN_DIR", self.folder.join(PLUGINS))
            .env("DEST_CNI_BIN_DIR", node::folder(NODE).join("plugins"))
            .env("DEST_CNI_NET_DIR", Self::networks())
            .env("CNI_NETWORK_CONFIG", entry.to_string())
            .env("LINKERD_CNI_AGENT_SERVICE_ACCOUNT", node::folder(NODE).join("account"))
            .env("KUBERNETES_SERVICE_HOST", "127.0.0.1")
            .env("KUBERNETES_SERVICE_PORT", self.server.address().port().to_string())
            .env("LINKERD_CNI_REPAIR_CONTROLLER_NODE_NAME", "node-1")
            .env("LINKERD_CNI_REPAIR_CONTROLLER_POD_NAME", "linkerd-cni-agent")
            .stdin(Stdio::null())
            .stderr(File::create(node::folder(NODE).join("agent.log"))?);
        Ok(Agent(command.spawn()?))
    }

    /// A meshed pod's sandbox.
    fn pod<'a>(&self, world: &World<'a>) -> Result<Pod<'a>> {
        let meta = Meta { name: "web".to_owned(), namespace: NAMESPACE.to_owned(), ..Meta::default() };
        Pod::start(world.node, "agent", &meta)
    }

    /// Publishes a pod's status, as kubelet does.
    fn tell(&self, pod: &Pod<'_>, mut status: Value) {
        let name = &pod.name;
        status["podIPs"] = pod.addresses.iter().map(|address| json!({"ip": address})).collect();
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": NAMESPACE, "uid": pod.uid, "labels": {"linkerd.io/control-plane-ns": "linkerd"}},
            "spec": {"nodeName": "node-1", "containers": [{"name": "app"}, {"name": "linkerd-proxy"}]},
            "status": status,
        });
        self.server.add(&format!("namespaces/{NAMESPACE}/pods/{name}"), object);
    }

    fn names_plugin() -> bool {
        let list: Value = serde_json::from_slice(&fs::read(Self::list()).unwrap_or_default()).unwrap_or_default();
        let plugins = list.get("plugins").and_then(Value::as_array);
        plugins.is_some_and(|plugins| plugins.last().is_some_and(|last| last["type"] == "linkerd-cni"))
    }
}

/// Waits until something is so.
pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) -> Result<()> {
    let answer = wait::until(SOON, || is_so().then_some(()));
    answer.ok_or_else(|| format!("it never came to pass that {what}").into())
}

/// Every file in the node's folders that isn't a link to a plugin of Debian's, and what it says as JSON: the agent writes a
/// list that it has changed in lines of its own.
fn tree() -> Result<BTreeMap<PathBuf, Value>> {
    let mut tree = BTreeMap::new();
    for folder in [Host::networks(), node::folder(NODE).join("plugins")] {
        for file in folder.read_dir()? {
            let path = file?.path();
            if !path.is_symlink() {
                tree.insert(path.clone(), serde_json::from_slice(&fs::read(path)?).unwrap_or_default());
            }
        }
    }
    Ok(tree)
}

fn failed() -> Value {
    json!({"phase": "Pending", "initContainerStatuses": [{"name": "linkerd-network-validator",
        "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {"exitCode": UNSUCCESSFUL}}}]})
}

fn running() -> Value {
    json!({"phase": "Running", "containerStatuses": [{"name": "app", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]})
}

/// Runs the network validator in a pod; its exit code.
pub(crate) fn validated(world: &World<'_>, pod: &Pod<'_>) -> Result<i64> {
    let args = ["--listen-addr", "0.0.0.0:4140", "--connect-addr", "192.0.2.1:20001", "--timeout", "1s"];
    Ok(pod.run(&mesh::validator(&world.images.scratch, &args))?.code)
}

fn live(outer: &World<'_>, folder: &Path) -> Result<String> {
    let node = outer.node(NODE, &[Network::new("agent")], &[], folder)?;
    let world = &World::new(&node, outer.images, "agent")?;
    let host = Host { folder, server: ApiServer::start(TcpListener::bind("127.0.0.1:0")?) };
    let server = &host.server;
    let account = node::folder(NODE).join("account");
    fs::create_dir_all(&account)?;
    for (name, text) in [("token", "good-token"), ("namespace", "linkerd-cni"), ("ca.crt", server.authority())] {
        fs::write(account.join(name), text)?;
    }
    let meshed = Object { containers: &["app", "linkerd-proxy"], ..Object::default() };
    server.add_pod(NAMESPACE, "web", &meshed);
    server.add("namespaces/linkerd-cni", json!({"metadata": {"name": "linkerd-cni"}}));
    server.add(SET, json!({"metadata": {"name": "linkerd-cni", "uid": "set"}}));
    server.add(
        "namespaces/linkerd-cni/pods/linkerd-cni-agent",
        json!({"metadata": {"name": "linkerd-cni-agent", "namespace": "linkerd-cni", "uid": "agent", "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "linkerd-cni", "uid": "set", "controller": true}]}}),
    );
    let before = tree()?;
    let notes = |reason: &str| server.notes().iter().filter(|note| note["reason"] == reason).count();

    // A pod that starts before the plugin is there.
    let early = host.pod(world)?;
    if validated(world, &early)? != UNSUCCESSFUL {
        return Err("the validator passed in a pod without rules".into());
    }
    host.tell(&early, failed());
    let mut agent = host.agent()?;
    until("the pod is healed", || notes("LinkerdCNIRepaired") == 1)?;
    if validated(world, &early)? != 0 {
        return Err("the validator fails in a pod that was healed".into());
    }
    has_rules(&early, &linkerd::Flags::default())?;
    connects(world, &early, true)?;
    host.tell(&early, running());

    // One that starts with it.
    until("the plugin is in the list", Host::names_plugin)?;
    let late = host.pod(world)?;
    has_rules(&late, &linkerd::Flags::default())?;
    connects(world, &late, true)?;

    // Calico writes the list now and then, without the plugin, and in the same folder: of a file that comes from elsewhere,
    // containerd isn't told.
    let mut list: Value = serde_json::from_slice(&fs::read(Host::list())?)?;
    list["plugins"].as_array_mut().ok_or("no list")?.pop();
    let other = Host::networks().join(".other-programs");
    fs::write(&other, list.to_string())?;
    fs::rename(other, Host::list())?;
    until("the plugin is back in the list", Host::names_plugin)?;
    let third = host.pod(world)?;
    has_rules(&third, &linkerd::Flags::default())?;

    // The DaemonSet is deleted.
    server.remove(SET);
    agent.signal(Signal::SIGTERM)?;
    agent.0.wait()?;
    let after = tree()?;
    if after != before {
        return Err(format!("left behind: {after:?}").into());
    }
    if !server.deletions().is_empty() {
        return Err(format!("deleted: {:?}", server.deletions()).into());
    }
    // The node goes on without it.
    let last = host.pod(world)?;
    if !rules(&last)?.is_empty() {
        return Err("a pod has rules after the plugin has left".into());
    }
    for pod in [early, late, third, last] {
        pod.remove()?;
    }
    Ok("pods are healed where they run, the plugin stays in the list, and the agent takes everything back".to_owned())
}
