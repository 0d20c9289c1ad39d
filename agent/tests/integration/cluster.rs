//! A double of Kubernetes' API server for one node: pods that can be watched and deleted, and what else the agent asks for. It
//! answers nothing but what the agent is to ask.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use crate::node::Node;

#[derive(Default)]
struct State {
    /// By their paths.
    objects: BTreeMap<String, Value>,
    /// Of pods, in their order.
    events: Vec<(&'static str, Value)>,
    version: u64,
    /// What was published.
    notes: Vec<Value>,
    /// The bodies of deletions.
    deletions: Vec<(String, Value)>,
    refuses: bool,
    is_silent: bool,
}

/// The API server; it ends with the process.
#[derive(Clone)]
pub(crate) struct Cluster {
    state: Arc<(Mutex<State>, Condvar)>,
    pub(crate) port: u16,
}

impl Cluster {
    /// In the network of a node, whose agents trust it from here on.
    pub(crate) fn start(node: &Node) -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new(["127.0.0.1".to_owned()])
            .unwrap()
            .signed_by(&key, &authority)
            .unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        let tls = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone()], key)
            .unwrap();
        let listener = node.network.run_here(|| TcpListener::bind("127.0.0.1:0")).unwrap();
        let cluster = Self {
            state: Arc::default(),
            port: listener.local_addr().unwrap().port(),
        };
        fs::write(node.path().join("account/..1/ca.crt"), authority.pem()).unwrap();
        fs::write(node.path().join("account/namespace"), "linkerd-cni").unwrap();
        let (tls, served) = (Arc::new(tls), cluster.clone());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (tls, served) = (Arc::clone(&tls), served.clone());
                thread::spawn(move || served.serve(stream, tls));
            }
        });
        cluster.add("namespaces/linkerd-cni", json!({"metadata": {"name": "linkerd-cni"}}));
        cluster.add("namespaces/shop", json!({"metadata": {"name": "shop"}}));
        cluster.set_daemon_set(Some(json!({"metadata": {"name": "linkerd-cni", "uid": "set"}})));
        cluster.add(
            "namespaces/linkerd-cni/pods/agent",
            json!({"metadata": {"name": "agent", "namespace": "linkerd-cni", "uid": "agent-0", "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "linkerd-cni", "uid": "set"}]}}),
        );
        cluster
    }

    pub(crate) fn add(&self, path: &str, object: Value) {
        self.state
            .0
            .lock()
            .unwrap()
            .objects
            .insert(format!("/api/v1/{path}"), object);
    }

    pub(crate) fn set_daemon_set(&self, set: Option<Value>) {
        let path = "/apis/apps/v1/namespaces/linkerd-cni/daemonsets/linkerd-cni".to_owned();
        let objects = &mut self.state.0.lock().unwrap().objects;
        match set {
            Some(set) => objects.insert(path, set),
            None => objects.remove(&path),
        };
    }

    /// Whether everything is answered with 403.
    pub(crate) fn refuse(&self) {
        self.state.0.lock().unwrap().refuses = true;
    }

    /// Nothing is answered any more.
    pub(crate) fn go_silent(&self) {
        self.state.0.lock().unwrap().is_silent = true;
    }

    /// A meshed pod of the namespace shop on the node: new, or changed.
    pub(crate) fn pod(&self, name: &str, uid: &str, status: Value) {
        self.pod_with(name, uid, status, |_| ());
    }

    pub(crate) fn pod_with(&self, name: &str, uid: &str, status: Value, change: impl FnOnce(&mut Value)) {
        let mut state = self.state.0.lock().unwrap();
        state.version += 1;
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "shop", "uid": uid, "resourceVersion": state.version.to_string(),
                "labels": {"linkerd.io/control-plane-ns": "linkerd"}},
            "spec": {"nodeName": "node-1", "containers": [{"name": "app", "image": "x"}, {"name": "linkerd-proxy", "image": "x"}]},
            "status": status,
        });
        change(&mut pod);
        let path = format!("/api/v1/namespaces/shop/pods/{name}");
        let kind = if state.objects.insert(path, pod.clone()).is_none() {
            "ADDED"
        } else {
            "MODIFIED"
        };
        state.events.push((kind, pod));
        self.state.1.notify_all();
    }

    /// The reason and the note of each event that was published.
    pub(crate) fn notes(&self) -> Vec<(String, String)> {
        let notes = &self.state.0.lock().unwrap().notes;
        let text = |note: &Value, key: &str| note[key].as_str().unwrap_or_default().to_owned();
        notes
            .iter()
            .map(|note| (text(note, "reason"), text(note, "note")))
            .collect()
    }

    /// The path and the preconditions of each deletion.
    pub(crate) fn deletions(&self) -> Vec<(String, Value)> {
        self.state.0.lock().unwrap().deletions.clone()
    }

    fn serve(&self, stream: TcpStream, tls: Arc<ServerConfig>) -> Option<()> {
        stream.set_nodelay(true).ok()?;
        let socket = stream.try_clone().ok()?;
        let mut stream = BufReader::new(StreamOwned::new(ServerConnection::new(tls).ok()?, stream));
        loop {
            let mut head = Vec::new();
            loop {
                let mut line = String::new();
                if stream.read_line(&mut line).ok()? == 0 {
                    return None;
                }
                match line.trim_end() {
                    "" => break,
                    line => head.push(line.to_owned()),
                }
            }
            let mut words = head.first()?.split(' ');
            let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
            let length = head.iter().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length")
                    .then(|| value.trim().parse::<usize>().ok())?
            });
            let mut body = vec![0; length.unwrap_or_default()];
            stream.read_exact(&mut body).ok()?;
            let (path, query) = target.split_once('?').unwrap_or((&target, ""));
            if method == "GET" && path == "/api/v1/pods" && query.contains("watch=true") {
                let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
                stream.get_mut().write_all(head.as_bytes()).ok()?;
                self.stream(query, |line| {
                    let chunk = format!("{:x}\r\n{line}\r\n", line.len());
                    stream
                        .get_mut()
                        .write_all(chunk.as_bytes())
                        .and_then(|()| stream.get_mut().flush())
                        .ok()
                });
                let _ = socket.shutdown(Shutdown::Both);
                return None;
            }
            if self.state.0.lock().unwrap().is_silent {
                thread::sleep(Duration::from_secs(60));
            }
            let (status, object) = self.answer(&method, path, query, &body);
            let text = object.to_string();
            let answer = format!(
                "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{text}",
                text.len()
            );
            stream.get_mut().write_all(answer.as_bytes()).ok()?;
        }
    }

    /// Sends every event after the version in the query, until the client goes away.
    fn stream(&self, query: &str, mut send: impl FnMut(&str) -> Option<()>) {
        let version = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion="));
        let mut seen: usize = version.and_then(|version| version.parse().ok()).unwrap_or_default();
        loop {
            let (state, changed) = &*self.state;
            let state = state.lock().unwrap();
            let (state, _) = changed
                .wait_timeout_while(state, Duration::from_millis(200), |it| it.events.len() <= seen)
                .unwrap();
            let lines: Vec<String> = state.events[seen..]
                .iter()
                .map(|(kind, pod)| json!({"type": kind, "object": pod}).to_string() + "\n")
                .collect();
            seen = state.events.len();
            drop(state);
            for line in lines {
                if send(&line).is_none() {
                    return;
                }
            }
        }
    }

    fn answer(&self, method: &str, path: &str, query: &str, body: &[u8]) -> (u16, Value) {
        let failure = |code: u16| {
            (
                code,
                json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code}),
            )
        };
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let mut state = self.state.0.lock().unwrap();
        if state.refuses {
            return failure(403);
        }
        match (method, path) {
            ("GET", "/api/v1/pods") => {
                // As the API server selects.
                assert!(query.contains("fieldSelector=spec.nodeName%3Dnode-1"), "{query}");
                assert!(query.contains("labelSelector=linkerd.io%2Fcontrol-plane-ns"), "{query}");
                let pods = state
                    .objects
                    .iter()
                    .filter(|(path, _)| path.starts_with("/api/v1/namespaces/shop/pods/"));
                let items: Vec<Value> = pods.map(|(_, pod)| pod.clone()).collect();
                let version = state.events.len().to_string();
                (
                    200,
                    json!({"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": version}, "items": items}),
                )
            }
            // A second event of its kind is a change of the first one.
            ("POST" | "PATCH", path) if path.starts_with("/apis/events.k8s.io/v1/namespaces/") => {
                state.notes.push(body.clone());
                (if method == "POST" { 201 } else { 200 }, body)
            }
            ("DELETE", path) if path.starts_with("/api/v1/namespaces/shop/pods/") => {
                state.deletions.push((path.to_owned(), body["preconditions"].clone()));
                match state.objects.remove(path) {
                    Some(pod) => {
                        state.version += 1;
                        state.events.push(("DELETED", pod.clone()));
                        self.state.1.notify_all();
                        (200, pod)
                    }
                    None => failure(404),
                }
            }
            ("GET", path) => match state.objects.get(path) {
                Some(object) => (200, object.clone()),
                None => failure(404),
            },
            _ => failure(403),
        }
    }
}

/// A pod's processes: in a network of their own and a cgroup of kubelet's form, until the end of the test.
pub(crate) struct Sandbox {
    cgroup: std::path::PathBuf,
    processes: Vec<std::process::Child>,
}

impl Sandbox {
    pub(crate) fn new(uid: &str) -> Self {
        // Any hierarchy will do: kubelet uses all of them.
        let root = ["/sys/fs/cgroup/freezer", "/sys/fs/cgroup/pids", "/sys/fs/cgroup"]
            .into_iter()
            .map(Path::new);
        let root = root
            .into_iter()
            .find(|root| root.join("cgroup.procs").exists())
            .unwrap();
        let cgroup = root
            .join(format!("linkerd-cni-agent-{}", std::process::id()))
            .join(format!("pod{uid}"));
        fs::create_dir_all(&cgroup).unwrap();
        Self {
            cgroup,
            processes: Vec::new(),
        }
    }

    /// Adds a process, which runs in this network.
    pub(crate) fn add(&mut self, network: &xtask::lab::Namespace) -> u32 {
        let mut command = std::process::Command::new("sleep");
        let child = network.run_here(|| command.arg("600").spawn()).unwrap();
        fs::write(self.cgroup.join("cgroup.procs"), child.id().to_string()).unwrap();
        self.processes.push(child);
        self.processes.last().unwrap().id()
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
