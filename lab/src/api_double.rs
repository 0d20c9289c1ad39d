//! A double of Kubernetes' API server: HTTPS with a certificate of its own authority, the objects that a test gives it,
//! and the failures that a test plans. Objects can be listed and watched, nodes patched, and events published.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{BufRead, BufReader, BufWriter, Read as _, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

/// The fate of one request, or of one connection.
#[derive(Debug, Clone)]
pub enum Plan {
    /// The connection is closed before the handshake.
    Drop,
    /// The connection is taken, and nothing comes.
    Hang,
    /// The request is answered with this status, these further header lines, and a `Status` object.
    Answer(u16, &'static str),
    /// The answer is this status and this body, byte for byte, which need not make sense.
    Body(u16, String),
    /// An answer that never ends: a byte of it every tenth of a second.
    Drip,
    /// Half an answer, then the end of the connection.
    Half,
    /// As if nothing had been planned, but only after this long.
    Late(Duration),
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<String, Value>,
    token: String,
    plans: VecDeque<Plan>,
    /// The plan for all further requests once `plans` are used up.
    for_ever: Option<Plan>,
    /// The plans for requests for these paths, which come first.
    of_paths: BTreeMap<String, Plan>,
    /// The plan for every watch, which comes before `for_ever`.
    for_watches: Option<Plan>,
    /// The paths, each with its query.
    requests: Vec<String>,
    asked: BTreeSet<Asked>,
    connections: usize,
    /// In their order. An object's version is the number of its last change.
    changes: Vec<Change>,
    notes: Vec<Value>,
}

#[derive(Debug)]
struct Change {
    /// As a watch calls it.
    kind: &'static str,
    path: String,
    /// The object, and what it was before.
    object: Value,
    before: Option<Value>,
}

/// The state that connections share, and the signal by which watches learn of changes.
type Shared = (Mutex<State>, Condvar);

/// The server. It ends with the process.
#[derive(Debug)]
pub struct ApiServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    authority: String,
    tls: Arc<ServerConfig>,
}

impl ApiServer {
    /// A server for this address, which nothing listens on yet. It has certificates of its own, for 127.0.0.1, ::1,
    /// this address and api.test.
    pub fn new(address: SocketAddr) -> Self {
        Self::with_authority(address, |_| ())
    }

    /// The same, whose authority's certificate has expired.
    pub fn expired(address: SocketAddr) -> Self {
        Self::with_authority(address, |params| params.not_after = date_time_ymd(2024, 2, 3))
    }

    /// The same, whose authority's certificate says that it is none.
    pub fn signed_by_a_leaf(address: SocketAddr) -> Self {
        Self::with_authority(address, |params| params.is_ca = IsCa::ExplicitNoCa)
    }

    fn with_authority(address: SocketAddr, change: impl FnOnce(&mut CertificateParams)) -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        change(&mut params);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let names = ["127.0.0.1", "::1", &address.ip().to_string(), "api.test"].map(str::to_owned);
        let leaf = CertificateParams::new(names).unwrap().signed_by(&key, &authority).unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone()], key)
            .unwrap();
        let state = State { token: "good-token".to_owned(), ..State::default() };
        Self {
            shared: Arc::new((Mutex::new(state), Condvar::new())),
            address,
            authority: authority.pem(),
            tls: Arc::new(tls),
        }
    }

    /// One that listens already.
    pub fn start(listener: TcpListener) -> Self {
        let server = Self::new(listener.local_addr().unwrap());
        server.listen(listener);
        server
    }

    /// Takes connections from here on.
    pub fn listen(&self, listener: TcpListener) {
        let (shared, tls) = (self.shared.clone(), self.tls.clone());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (shared, tls) = (shared.clone(), tls.clone());
                // A client that goes away is its own affair.
                thread::spawn(move || serve(stream, &shared, tls));
            }
        });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock().unwrap()
    }

    /// Adds an object at its path after `/api/v1/`, or at one that begins with a slash, in the place of what is there.
    /// Watches are told.
    pub fn add(&self, path: &str, object: Value) {
        self.state().put(&full(path), object);
        self.shared.1.notify_all();
    }

    /// Removes an object.
    pub fn remove(&self, path: &str) {
        self.state().remove(&full(path));
        self.shared.1.notify_all();
    }

    /// Adds a pod, which stands for all of a set whose names have a dash and a number after its name; and its
    /// namespace, with its own annotations.
    pub fn add_pod(&self, namespace: &str, name: &str, pod: &Pod<'_>) {
        let containers = |names: &[&str]| -> Value { names.iter().map(|name| json!({"name": name})).collect() };
        let (annotations, labels) = (object(pod.annotations), object(pod.labels));
        self.add(
            &format!("namespaces/{namespace}/pods/{name}"),
            json!({
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": namespace, "annotations": annotations, "labels": labels},
                "spec": {"containers": containers(pod.containers), "initContainers": containers(pod.init_containers)},
            }),
        );
        self.add(
            &format!("namespaces/{namespace}"),
            json!({
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": namespace, "annotations": object(pod.namespace)},
            }),
        );
    }

    /// Plans what happens to the next requests, one after another.
    pub fn plan(&self, plans: impl IntoIterator<Item = Plan>) {
        self.state().plans.extend(plans);
    }

    /// Plans what happens to every request from here on.
    pub fn plan_for_ever(&self, plan: Option<Plan>) {
        self.state().for_ever = plan;
    }

    /// Plans what happens to every request for an object, by a path as [`ApiServer::add`] takes it, from here on.
    pub fn plan_for(&self, path: &str, plan: Plan) {
        self.state().of_paths.insert(full(path), plan);
    }

    /// Plans what happens to every watch from here on.
    pub fn plan_watches(&self, plan: Option<Plan>) {
        self.state().for_watches = plan;
    }

    /// Takes this token only.
    pub fn expect_token(&self, token: &str) {
        self.state().token = token.to_owned();
    }

    /// The paths that were asked for.
    pub fn requests(&self) -> Vec<String> {
        let path = |request: &String| request.split('?').next().unwrap_or_default().to_owned();
        self.state().requests.iter().map(path).collect()
    }

    /// The questions that an authorizer would have been asked.
    pub fn asked(&self) -> BTreeSet<Asked> {
        self.state().asked.clone()
    }

    /// The paths and queries of all lists of pods.
    pub fn lists(&self) -> Vec<String> {
        self.requests_that(|request| request.starts_with("/api/v1/pods?") && !request.contains("watch=true"))
    }

    /// The paths and queries of all watches.
    pub fn watches(&self) -> Vec<String> {
        self.requests_that(|request| request.contains("watch=true"))
    }

    fn requests_that(&self, are_wanted: impl Fn(&str) -> bool) -> Vec<String> {
        self.state().requests.iter().filter(|request| are_wanted(request)).cloned().collect()
    }

    /// The number of connections that were made.
    pub fn connections(&self) -> usize {
        self.state().connections
    }

    /// The events that were published, in their order. The second of its kind is a change of the first one.
    pub fn notes(&self) -> Vec<Value> {
        self.state().notes.clone()
    }

    /// The object that is at a path by now.
    pub fn object(&self, path: &str) -> Option<Value> {
        self.state().objects.get(&full(path)).cloned()
    }

    /// What somebody has asked it to delete, which it refuses.
    pub fn deletions(&self) -> Vec<Asked> {
        self.asked().into_iter().filter(|asked| asked.verb == "delete").collect()
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The certificate of its authority, in PEM form.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Writes a kubeconfig as linkerd-cni's installer does (create_kubeconfig in install-cni.sh), and returns its path.
    pub fn kubeconfig(&self, folder: &Path, token: &str) -> PathBuf {
        let data = STANDARD.encode(&self.authority);
        self.kubeconfig_with(folder, token, &self.address.to_string(), &format!("certificate-authority-data: {data}"))
    }

    /// The same with this host and port, and this line about TLS.
    pub fn kubeconfig_with(&self, folder: &Path, token: &str, server: &str, tls: &str) -> PathBuf {
        let path = folder.join("ZZZ-linkerd-cni-kubeconfig");
        let text = format!(
            "# Kubeconfig file for linkerd CNI plugin.\napiVersion: v1\nkind: Config\nclusters:\n- name: local\n  cluster:\n    \
             server: https://{server}\n    {tls}\nusers:\n- name: linkerd-cni\n  user:\n    token: {token}\ncontexts:\n- name: \
             linkerd-cni-context\n  context:\n    cluster: local\n    user: linkerd-cni\ncurrent-context: \
             linkerd-cni-context\n"
        );
        std::fs::write(&path, text).unwrap();
        path
    }
}

/// The question that an authorizer is asked about a request. A part that the request doesn't name is empty.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Asked {
    /// `get`, `list`, `watch`, …
    pub verb: String,
    /// The API group.
    pub group: String,
    /// The kind of object, as paths have it.
    pub resource: String,
    /// The namespace, or none for what is in all or in none.
    pub namespace: String,
    /// The object's name.
    pub name: String,
}

/// The parts of a pod that the plugin looks at.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pod<'a> {
    /// Its own annotations.
    pub annotations: &'a [(&'a str, &'a str)],
    /// Its labels.
    pub labels: &'a [(&'a str, &'a str)],
    /// The names of its containers.
    pub containers: &'a [&'a str],
    /// The names of its init containers.
    pub init_containers: &'a [&'a str],
    /// Its namespace's annotations.
    pub namespace: &'a [(&'a str, &'a str)],
}

fn object(pairs: &[(&str, &str)]) -> Value {
    pairs.iter().map(|&(key, value)| (key.to_owned(), json!(value))).collect()
}

fn full(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/api/v1/{path}") }
}

impl State {
    /// Puts an object at its path, with a new version.
    fn put(&mut self, path: &str, mut object: Value) {
        object["metadata"]["resourceVersion"] = (self.changes.len() + 1).to_string().into();
        let before = self.objects.insert(path.to_owned(), object.clone());
        let kind = if before.is_some() { "MODIFIED" } else { "ADDED" };
        self.changes.push(Change { kind, path: path.to_owned(), object, before });
    }

    /// Removes an object.
    fn remove(&mut self, path: &str) {
        if let Some(object) = self.objects.remove(path) {
            let before = Some(object.clone());
            self.changes.push(Change { kind: "DELETED", path: path.to_owned(), object, before });
        }
    }

    /// The object at a path. A pod of a set has a dash and a number after its name.
    fn object(&self, path: &str) -> Option<Value> {
        let of_set = || {
            let mut object = self.objects.get(path.rsplit_once('-')?.0)?.clone();
            object["metadata"]["name"] = path.rsplit_once('/')?.1.into();
            Some(object)
        };
        self.objects.get(path).cloned().or_else(of_set)
    }

    /// The answer's status and body.
    fn answer(&mut self, request: &Request, changed: &Condvar) -> (u16, String) {
        if request.method == "GET" && request.is_of_many() {
            return (200, self.list(request));
        }
        let (status, body) = self.answer_about_one(request, changed);
        (status, body.to_string())
    }

    /// The objects that are asked for.
    fn list(&self, request: &Request) -> String {
        let found = self.objects.iter().filter(|(path, object)| request.selects(path, object));
        let items: Vec<String> = found.map(|(_, object)| object.to_string()).collect();
        format!(
            r#"{{"kind":"List","apiVersion":"v1","metadata":{{"resourceVersion":"{}"}},"items":[{}]}}"#,
            self.changes.len(),
            items.join(",")
        )
    }

    fn answer_about_one(&mut self, request: &Request, changed: &Condvar) -> (u16, Value) {
        let failure = |status: u16| (status, status_object(status));
        let path = request.path.as_str();
        match request.method.as_str() {
            "GET" => self.object(path).map_or_else(|| (404, not_found(path)), |object| (200, object)),
            "POST" | "PATCH" if path.starts_with("/apis/events.k8s.io/v1/namespaces/") => {
                self.notes.push(request.body.clone());
                (if request.method == "POST" { 201 } else { 200 }, request.body.clone())
            }
            "PATCH" if path.starts_with("/api/v1/nodes/") => {
                let Some(mut node) = self.objects.get(path).cloned() else {
                    return failure(404);
                };
                if request.body["metadata"]["resourceVersion"] != node["metadata"]["resourceVersion"] {
                    return failure(409);
                }
                for (key, value) in request.body["spec"].as_object().into_iter().flatten() {
                    node["spec"][key] = value.clone();
                }
                self.put(path, node.clone());
                changed.notify_all();
                (200, node)
            }
            _ => failure(403),
        }
    }
}

/// The pods of all namespaces.
const PODS: &str = "/api/v1/pods";
/// All namespaces.
const NAMESPACES: &str = "/api/v1/namespaces";

struct Request {
    method: String,
    path: String,
    query: String,
    /// Null if it is no JSON.
    body: Value,
    token: Option<String>,
}

impl Request {
    /// The next one of a connection; none at its end.
    fn read(stream: &mut impl BufRead) -> Option<Self> {
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
        let header = |name: &str| {
            head.iter().skip(1).find_map(|line| {
                let (key, value) = line.split_once(':')?;
                key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
            })
        };
        let length = header("content-length").and_then(|length| length.parse().ok());
        let mut body = vec![0; length.unwrap_or_default()];
        stream.read_exact(&mut body).ok()?;
        let mut words = head.first()?.split(' ');
        let (method, target) = (words.next()?, words.next()?);
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        Some(Self {
            method: method.to_owned(),
            path: path.to_owned(),
            query: query.to_owned(),
            body: serde_json::from_slice(&body).unwrap_or_default(),
            token: header("authorization").and_then(|value| Some(value.strip_prefix("Bearer ")?.to_owned())),
        })
    }

    /// The question that an authorizer is asked about it (`RequestInfoFactory` in
    /// apiserver/pkg/endpoints/request/requestinfo.go).
    fn asked(&self) -> Option<Asked> {
        let parts: Vec<&str> = self.path.trim_start_matches('/').split('/').collect();
        let (group, rest) = match &parts[..] {
            ["api", _, rest @ ..] => ("", rest),
            ["apis", group, _, rest @ ..] => (*group, rest),
            _ => return None,
        };
        let (namespace, resource, name) = match rest {
            ["namespaces", namespace, resource, name @ ..] => (*namespace, *resource, name.first()),
            ["namespaces", name] => (*name, "namespaces", Some(name)),
            [resource, name @ ..] => ("", *resource, name.first()),
            [] => return None,
        };
        let selected = self.parameter("fieldSelector").map(|it| it.replace("%3D", "="));
        let selected = selected.as_deref().and_then(|it| it.strip_prefix("metadata.name="));
        let verb = match self.method.as_str() {
            "GET" if name.is_some() => "get",
            "GET" if self.is_watch() => "watch",
            "GET" => "list",
            "POST" => "create",
            other => &other.to_ascii_lowercase(),
        };
        Some(Asked {
            verb: verb.to_owned(),
            group: group.to_owned(),
            resource: resource.to_owned(),
            namespace: namespace.to_owned(),
            name: name.copied().or(selected).unwrap_or_default().to_owned(),
        })
    }

    fn parameter(&self, name: &str) -> Option<&str> {
        let mut pairs = self.query.split('&');
        pairs.find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
    }

    fn is_watch(&self) -> bool {
        self.parameter("watch") == Some("true")
    }

    /// A watch that is to begin with the objects that there are.
    fn wants_initial_events(&self) -> bool {
        self.is_watch() && self.parameter("sendInitialEvents") == Some("true")
    }

    /// A list or a watch, which is about many objects.
    fn is_of_many(&self) -> bool {
        self.path == PODS || self.path == NAMESPACES || self.path.ends_with("/daemonsets")
    }

    /// Selects the objects that were asked for: by their paths, by fields that they have, or haven't, and by a
    /// label that they have.
    fn selects(&self, path: &str, object: &Value) -> bool {
        let is_below = match self.path.as_str() {
            PODS => path.contains("/pods/"),
            below => path.strip_prefix(below).is_some_and(|rest| rest.rfind('/') == Some(0)),
        };
        let fields = self.parameter("fieldSelector").is_none_or(|selector| {
            let selector = selector.replace("%3D", "=").replace("%21", "!").replace("%2C", ",");
            selector.split(',').all(|term| {
                let (field, value, is_wanted) = match (term.split_once("!="), term.split_once('=')) {
                    (Some((field, value)), _) => (field, value, false),
                    (None, Some((field, value))) => (field, value, true),
                    (None, None) => panic!("{term:?} is no field selector"),
                };
                let found = object.pointer(&format!("/{}", field.replace('.', "/")));
                (found.and_then(Value::as_str) == Some(value)) == is_wanted
            })
        });
        let label = self.parameter("labelSelector").is_none_or(|label| {
            let labels = &object["metadata"]["labels"];
            labels.get(label.replace("%2F", "/")).is_some()
        });
        is_below && fields && label
    }
}

/// Answers the requests of one connection, one after another.
fn serve(stream: TcpStream, shared: &Shared, tls: Arc<ServerConfig>) -> Option<()> {
    let (state, changed) = shared;
    state.lock().unwrap().connections += 1;
    // As Go's servers do; otherwise an answer waits for the client to acknowledge what TLS sends before it.
    stream.set_nodelay(true).ok()?;
    if let Some(Plan::Drop) = next_plan(state, |plan| matches!(plan, Plan::Drop)) {
        return None;
    }
    let mut stream = BufReader::new(StreamOwned::new(ServerConnection::new(tls).ok()?, stream));
    loop {
        let request = Request::read(&mut stream)?;
        let of_path = state.lock().unwrap().of_paths.get(&request.path).cloned();
        let plan = of_path.or_else(|| next_plan(state, |_| true));
        let mut answer = |status: u16, headers: &str, body: &str| {
            let length = body.len();
            let text = format!(
                "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
            );
            stream.get_mut().write_all(text.as_bytes()).ok()
        };
        let plan = {
            let mut state = state.lock().unwrap();
            state.requests.push(format!("{}?{}", request.path, request.query));
            state.asked.extend(request.asked());
            plan.or_else(|| state.for_watches.clone().filter(|_| request.is_watch()))
        };
        match plan {
            Some(Plan::Answer(status, headers)) => {
                answer(status, headers, &status_object(status).to_string())?;
                continue;
            }
            Some(Plan::Body(status, body)) => {
                answer(status, "", &body)?;
                continue;
            }
            Some(Plan::Drip) => {
                let text = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n";
                stream.get_mut().write_all(text.as_bytes()).ok()?;
                loop {
                    stream.get_mut().write_all(b" ").ok()?;
                    stream.get_mut().flush().ok()?;
                    thread::sleep(Duration::from_millis(100));
                }
            }
            Some(Plan::Half) => {
                let text = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"metadata\":";
                stream.get_mut().write_all(text.as_bytes()).ok()?;
                return None;
            }
            Some(Plan::Hang) => {
                // Until the client goes away.
                let _ = stream.read(&mut [0]);
                return None;
            }
            Some(Plan::Drop) => return None,
            Some(Plan::Late(time)) => thread::sleep(time),
            None => {}
        }
        if request.token.as_ref() != Some(&state.lock().unwrap().token) {
            answer(401, "", &status_object(401).to_string())?;
            continue;
        }
        if request.is_watch() {
            stream.get_mut().write_all(CHUNKED.as_bytes()).ok()?;
            return watch(stream.get_mut(), &request, shared);
        }
        let (status, body) = state.lock().unwrap().answer(&request, changed);
        if status != 200 {
            answer(status, "", &body)?;
            continue;
        }
        // In chunks, as Go's server sends whatever is longer than its buffer.
        let mut out = BufWriter::with_capacity(64 << 10, stream.get_mut());
        out.write_all(CHUNKED.as_bytes()).ok()?;
        for part in body.as_bytes().chunks(1000) {
            write!(out, "{:x}\r\n", part.len()).ok()?;
            out.write_all(part).ok()?;
            out.write_all(b"\r\n").ok()?;
        }
        out.write_all(b"0\r\n\r\n").ok()?;
        out.flush().ok()?;
    }
}

const CHUNKED: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";

/// A watch's line about an object: the type first, as Go's structs are written.
fn line(kind: &str, object: &Value) -> String {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")
}

/// Sends every change after the version that was asked for, until the client goes away. What was one of those that were
/// asked for, and isn't any more, is deleted, to this client.
fn watch(stream: &mut impl Write, request: &Request, (state, changed): &Shared) -> Option<()> {
    let version = request.parameter("resourceVersion").and_then(|version| version.parse().ok());
    let mut seen: usize = version.unwrap_or_default();
    let mut lines = Vec::new();
    if request.wants_initial_events() {
        let state = state.lock().unwrap();
        let found = state.objects.iter().filter(|(path, object)| request.selects(path, object));
        lines.extend(found.map(|(_, object)| line("ADDED", object)));
        seen = state.changes.len();
        let metadata =
            json!({"resourceVersion": seen.to_string(), "annotations": {"k8s.io/initial-events-end": "true"}});
        lines.push(line("BOOKMARK", &json!({"apiVersion": "v1", "kind": "Any", "metadata": metadata})));
    }
    loop {
        for line in lines.drain(..) {
            let chunk = format!("{:x}\r\n{line}\r\n", line.len());
            stream.write_all(chunk.as_bytes()).ok()?;
        }
        stream.flush().ok()?;
        let state = state.lock().unwrap();
        let (state, _) =
            changed.wait_timeout_while(state, Duration::from_millis(200), |it| it.changes.len() <= seen).unwrap();
        for Change { kind, path, object, before } in state.changes.iter().skip(seen) {
            if request.selects(path, object) {
                lines.push(line(kind, object));
            } else if before.as_ref().is_some_and(|before| request.selects(path, before)) {
                lines.push(line("DELETED", object));
            }
        }
        seen = state.changes.len();
    }
}

fn next_plan(state: &Mutex<State>, wanted: impl Fn(&Plan) -> bool) -> Option<Plan> {
    let mut state = state.lock().unwrap();
    if state.plans.front().is_some_and(&wanted) {
        return state.plans.pop_front();
    }
    state.for_ever.clone().filter(|plan| state.plans.is_empty() && wanted(plan))
}

/// As the API server words its failures.
fn status_object(code: u16) -> Value {
    let reason = match code {
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        422 => "Invalid",
        429 => "TooManyRequests",
        _ => "InternalError",
    };
    json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "metadata": {}, "code": code, "reason": reason,
        "message": format!("the double's words for {code}"),
    })
}

/// As the API server says that it has no such object: which one is in the details (`NewNotFound` in
/// apimachinery/pkg/api/errors/errors.go).
fn not_found(path: &str) -> Value {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let [.., kind, name] = parts[..] else {
        return status_object(404);
    };
    let mut status = status_object(404);
    status["details"] = json!({"kind": kind, "name": name});
    if let ["apis", group, ..] = parts[..] {
        status["details"]["group"] = json!(group);
    }
    status
}
