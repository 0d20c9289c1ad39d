//! Kubernetes for one node: a double of its API server, and what stands for pods' sandboxes.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;

use lab::api_double::{ApiServer, Plan};
use lab::network::Namespace;
use serde_json::{Value, json};

use crate::node::Node;

/// Where the DaemonSet of the agents is.
pub(crate) const SET: &str = "/apis/apps/v1/namespaces/linkerd-cni/daemonsets/linkerd-cni";

/// The API server; it ends with the process.
#[derive(Clone)]
pub(crate) struct Cluster {
    server: Arc<ApiServer>,
    pub(crate) port: u16,
}

impl Deref for Cluster {
    type Target = ApiServer;

    fn deref(&self) -> &ApiServer {
        &self.server
    }
}

impl Cluster {
    /// In the network of a node, whose agents trust it from here on.
    pub(crate) fn start(node: &Node) -> Self {
        let server = ApiServer::start(node.network.run_here(|| TcpListener::bind("127.0.0.1:0")).unwrap());
        fs::write(node.path().join("account/..1/ca.crt"), server.authority()).unwrap();
        fs::write(node.path().join("account/namespace"), "linkerd-cni").unwrap();
        server.expect_token("token-1");
        for namespace in ["linkerd-cni", "shop"] {
            server.add(&format!("namespaces/{namespace}"), json!({"metadata": {"name": namespace}}));
        }
        let pods = json!({"nodeSelector": {"kubernetes.io/os": "linux"}, "containers": [{"name": "agent"}]});
        server.add(
            SET,
            json!({"metadata": {"name": "linkerd-cni", "uid": "set"}, "spec": {
                "selector": {"matchLabels": {"k8s-app": "linkerd-cni"}}, "template": {"spec": pods}}}),
        );
        server.add(
            "namespaces/linkerd-cni/pods/agent",
            json!({"metadata": {"name": "agent", "namespace": "linkerd-cni", "uid": "agent-0", "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "linkerd-cni", "uid": "set", "controller": true}]},
                "spec": {"nodeName": "node-1", "containers": [{"name": "agent"}]}}),
        );
        let cluster = Self { port: server.address().port(), server: Arc::new(server) };
        cluster.taint(&json!([]));
        cluster
    }

    /// The agents' DaemonSet is gone.
    pub(crate) fn remove_daemon_set(&self) {
        self.server.remove(SET);
    }

    /// The agents' DaemonSet changes.
    pub(crate) fn daemon_set(&self, change: impl FnOnce(&mut Value)) {
        let mut set = self.server.object(SET).unwrap();
        change(&mut set);
        self.server.add(SET, set);
    }

    /// So does what it makes its pods of.
    pub(crate) fn pods_of_daemon_set(&self, change: impl FnOnce(&mut Value)) {
        self.daemon_set(|set| change(&mut set["spec"]["template"]["spec"]));
    }

    /// The agents' namespace is being deleted, and whoever watches it has been told.
    pub(crate) fn end_namespace(&self) {
        let metadata = json!({"name": "linkerd-cni", "deletionTimestamp": "2026-01-01T00:00:00Z"});
        self.server.add("namespaces/linkerd-cni", json!({"metadata": metadata}));
        std::thread::sleep(std::time::Duration::from_secs(2));
    }

    /// Everything is answered so from here on, but for watches that there are.
    pub(crate) fn answer_all(&self, plan: Plan) {
        self.server.plan_for_ever(Some(plan));
    }

    /// So is one about the agents' DaemonSet.
    pub(crate) fn answer_for_daemon_set(&self, plan: Plan) {
        self.plan_for(SET, plan);
    }

    /// The number of times that the agent has asked what the plugin would.
    pub(crate) fn questions_about_access(&self) -> usize {
        let requests = self.server.requests().into_iter();
        requests.filter(|path| path == "/api/v1/namespaces/default/pods/agent").count()
    }

    /// Nothing is answered any more.
    pub(crate) fn go_silent(&self) {
        self.answer_all(Plan::Hang);
    }

    /// A meshed pod of the namespace shop on the node: new, or changed.
    pub(crate) fn pod(&self, name: &str, uid: &str, status: Value) {
        self.pod_with(name, uid, status, |_| ());
    }

    pub(crate) fn pod_with(&self, name: &str, uid: &str, status: Value, change: impl FnOnce(&mut Value)) {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "shop", "uid": uid, "labels": {"linkerd.io/control-plane-ns": "linkerd"}},
            "spec": {"nodeName": "node-1", "containers": [{"name": "app", "image": "x"}, {"name": "linkerd-proxy", "image": "x"}]},
            "status": status,
        });
        pod["status"]["podIPs"] = json!([{"ip": address(uid)}]);
        change(&mut pod);
        let namespace = pod["metadata"]["namespace"].as_str().unwrap().to_owned();
        self.server.add(&format!("namespaces/{namespace}/pods/{name}"), pod);
    }

    /// The reason and the note of each event that was published.
    pub(crate) fn notes(&self) -> Vec<(String, String)> {
        let notes = self.server.notes();
        let text = |note: &Value, key: &str| note[key].as_str().unwrap_or_default().to_owned();
        notes.iter().map(|note| (text(note, "reason"), text(note, "note"))).collect()
    }

    /// The whole events that are about the node.
    pub(crate) fn notes_of_node(&self) -> Vec<Value> {
        let mut notes = self.server.notes();
        notes.retain(|note| note["regarding"]["kind"] == "Node");
        notes
    }

    /// The node, with these taints.
    pub(crate) fn taint(&self, taints: &Value) {
        let labels = json!({"kubernetes.io/os": "linux", "kubernetes.io/hostname": "node-1"});
        let metadata = json!({"name": "node-1", "resourceVersion": "7", "labels": labels});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"podCIDR": "10.0.0.0/24", "taints": taints},
            "status": {"conditions": []}});
        self.server.add("nodes/node-1", node);
    }

    /// Its specification by now.
    pub(crate) fn node(&self) -> Value {
        self.server.object("nodes/node-1").unwrap()["spec"].clone()
    }
}

/// A pod's processes: in a network of their own and a cgroup of kubelet's form, until the end of the test.
pub(crate) struct Sandbox {
    cgroup: PathBuf,
    address: Ipv4Addr,
    processes: Vec<Child>,
}

/// The address of the pod with this UID, which begins with a number.
fn address(uid: &str) -> Ipv4Addr {
    let number = uid.get(..8).and_then(|number| u32::from_str_radix(number, 16).ok());
    Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(10, 0, 0, 1)) + number.unwrap_or_default())
}

impl Sandbox {
    pub(crate) fn new(uid: &str) -> Self {
        // Any hierarchy will do: kubelet uses all of them.
        let root = ["/sys/fs/cgroup/freezer", "/sys/fs/cgroup/pids", "/sys/fs/cgroup"].into_iter().map(Path::new);
        let root = root.into_iter().find(|root| root.join("cgroup.procs").exists()).unwrap();
        let cgroup = root.join(format!("linkerd-cni-agent-{}", std::process::id())).join(format!("pod{uid}"));
        fs::create_dir_all(&cgroup).unwrap();
        Self { cgroup, address: address(uid), processes: Vec::new() }
    }

    /// One with a process in this network, which the runtime made.
    pub(crate) fn of(uid: &str, network: &Namespace) -> Self {
        let mut sandbox = Self::new(uid);
        sandbox.add(network);
        sandbox
    }

    /// Adds a process, which runs in this network: the one that the runtime made, with the pod's address.
    pub(crate) fn add(&mut self, network: &Namespace) {
        network.sh(&format!("ip address replace {} dev lo", self.address));
        self.add_elsewhere(network);
    }

    /// Adds a process that runs in this network, which the runtime knows nothing of.
    pub(crate) fn add_elsewhere(&mut self, network: &Namespace) {
        let mut command = Command::new("sleep");
        command.arg("600");
        self.start(network, &mut command);
    }

    /// Starts a command as a process of the pod, in this network.
    pub(crate) fn start(&mut self, network: &Namespace, command: &mut Command) {
        let child = network.run_here(|| command.spawn()).unwrap();
        fs::write(self.cgroup.join("cgroup.procs"), child.id().to_string()).unwrap();
        self.processes.push(child);
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        for child in &mut self.processes {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir(&self.cgroup);
        let _ = fs::remove_dir(self.cgroup.parent().unwrap());
    }
}

/// As the API server says that it has no such object.
pub(crate) fn not_found(kind: &str, name: &str) -> Plan {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "NotFound", "code": 404,
        "message": format!("{kind} {name:?} not found"), "details": {"name": name, "kind": kind, "group": "apps"},
    });
    Plan::Body(404, status.to_string())
}
