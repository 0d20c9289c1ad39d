//! A double of Kubernetes' API server: HTTPS with a certificate of its own authority, the objects that a test gives it, and
//! the failures that a test plans.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

/// What happens to one request, or to one connection.
#[derive(Debug, Clone)]
pub enum Plan {
    /// The connection is closed before the handshake.
    Drop,
    /// The connection is taken, and nothing comes.
    Hang,
    /// The request is answered with this status, these further header lines, and a `Status` object.
    Answer(u16, &'static str),
    /// With this body, which need not make sense.
    Body(String),
    /// The answer is this status and this body, byte for byte.
    Failure(u16, String),
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
    /// What all further requests get once `plans` are used up.
    for_ever: Option<Plan>,
    requests: Vec<String>,
    connections: usize,
}

/// The server. It ends with the process.
#[derive(Debug)]
pub struct ApiServer {
    state: Arc<Mutex<State>>,
    address: SocketAddr,
    authority: String,
    tls: Arc<ServerConfig>,
    /// Ends the thread that takes connections.
    listening: Mutex<Option<(Arc<AtomicBool>, JoinHandle<()>)>>,
}

impl ApiServer {
    /// A server for this address, which nothing listens on yet. It has certificates of its own, for 127.0.0.1, ::1, this
    /// address and api.test.
    ///
    /// # Panics
    /// If no certificate can be made.
    pub fn new(address: SocketAddr) -> Self {
        Self::with_authority(address, |_| ())
    }

    /// The same, whose authority's certificate has expired.
    ///
    /// # Panics
    /// If no certificate can be made.
    pub fn expired(address: SocketAddr) -> Self {
        Self::with_authority(address, |params| params.not_after = date_time_ymd(2024, 2, 3))
    }

    /// The same, whose authority's certificate says that it is none.
    ///
    /// # Panics
    /// If no certificate can be made.
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
        let leaf = CertificateParams::new(names)
            .unwrap()
            .signed_by(&key, &authority)
            .unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone()], key)
            .unwrap();
        let state = State {
            token: "good-token".to_owned(),
            ..State::default()
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            address,
            authority: authority.pem(),
            tls: Arc::new(tls),
            listening: Mutex::new(None),
        }
    }

    /// One that listens already.
    ///
    /// # Panics
    /// If no certificate can be made.
    pub fn start(listener: TcpListener) -> Self {
        let server = Self::new(listener.local_addr().unwrap());
        server.listen(listener);
        server
    }

    /// Takes connections from here on.
    pub fn listen(&self, listener: TcpListener) {
        let (state, tls, ends) = (self.state.clone(), self.tls.clone(), Arc::new(AtomicBool::new(false)));
        let end = ends.clone();
        let thread = thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if ends.load(Ordering::Relaxed) {
                    break;
                }
                let (state, tls) = (state.clone(), tls.clone());
                // A client that goes away is its own affair.
                thread::spawn(move || serve(stream, &state, tls));
            }
        });
        *self.listening.lock().unwrap() = Some((end, thread));
    }

    /// Lets connections be refused until it listens again. To be called in the network namespace that it listens in.
    pub fn go_away(&self) {
        if let Some((end, thread)) = self.listening.lock().unwrap().take() {
            end.store(true, Ordering::Relaxed);
            // It waits for a connection.
            let _ = TcpStream::connect(self.address);
            let _ = thread.join();
        }
    }

    /// Adds an object at its path after `/api/v1/`.
    pub fn add(&self, path: &str, object: Value) {
        self.state
            .lock()
            .unwrap()
            .objects
            .insert(format!("/api/v1/{path}"), object);
    }

    /// Adds a pod, which stands for all of a set whose names have a dash and a number after its name; and its namespace, with
    /// its own annotations.
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
        self.state.lock().unwrap().plans.extend(plans);
    }

    /// Plans what happens to every request from here on.
    pub fn plan_for_ever(&self, plan: Option<Plan>) {
        self.state.lock().unwrap().for_ever = plan;
    }

    /// Takes this token only.
    pub fn expect_token(&self, token: &str) {
        self.state.lock().unwrap().token = token.to_owned();
    }

    /// The paths that were asked for.
    pub fn requests(&self) -> Vec<String> {
        self.state.lock().unwrap().requests.clone()
    }

    /// How many connections were made.
    pub fn connections(&self) -> usize {
        self.state.lock().unwrap().connections
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
        let data = base64(self.authority.as_bytes());
        self.kubeconfig_with(
            folder,
            token,
            &self.address.to_string(),
            &format!("certificate-authority-data: {data}"),
        )
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

/// What the plugin looks at in a pod.
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
    pairs
        .iter()
        .map(|&(key, value)| (key.to_owned(), json!(value)))
        .collect()
}

/// As base64(1) writes it, in one line.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word = (0..3).fold(0, |word, index| {
            word << 8 | u32::from(chunk.get(index).copied().unwrap_or_default())
        });
        for digit in 0..4 {
            let shown = digit <= chunk.len();
            text.push(if shown {
                DIGITS[(word >> (18 - 6 * digit) & 63) as usize].into()
            } else {
                '='
            });
        }
    }
    text
}

/// Answers the requests of one connection, one after another.
fn serve(stream: TcpStream, state: &Mutex<State>, tls: Arc<ServerConfig>) -> Option<()> {
    state.lock().unwrap().connections += 1;
    // As Go's servers do; otherwise an answer waits for the client to acknowledge what TLS sends before it.
    stream.set_nodelay(true).ok()?;
    if let Some(Plan::Drop) = next_plan(state, |plan| matches!(plan, Plan::Drop)) {
        return None;
    }
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
        let path = head.first()?.split(' ').nth(1)?.to_owned();
        let plan = next_plan(state, |_| true);
        let mut answer = |status: u16, headers: &str, body: &str| {
            let length = body.len();
            let text = format!(
                "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
            );
            stream.get_mut().write_all(text.as_bytes()).ok()
        };
        let (object, token) = {
            let mut state = state.lock().unwrap();
            state.requests.push(path.clone());
            // A pod of a set has a dash and a number after its name.
            let of_set = || {
                let mut object = state.objects.get(path.rsplit_once('-')?.0)?.clone();
                object["metadata"]["name"] = path.rsplit_once('/')?.1.into();
                Some(object)
            };
            (state.objects.get(&path).cloned().or_else(of_set), state.token.clone())
        };
        match plan {
            Some(Plan::Answer(status, headers)) => {
                answer(status, headers, &status_object(status).to_string())?;
                continue;
            }
            Some(Plan::Body(body)) => {
                answer(200, "", &body)?;
                continue;
            }
            Some(Plan::Failure(status, body)) => {
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
        let authorized = head.iter().any(|line| {
            *line == format!("Authorization: Bearer {token}") || *line == format!("authorization: Bearer {token}")
        });
        match object {
            _ if !authorized => answer(401, "", &status_object(401).to_string())?,
            // In chunks, as Go's server sends whatever is longer than its buffer.
            Some(object) => {
                let text = object.to_string();
                let mut out = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
                    .to_owned();
                for chunk in text.as_bytes().chunks(1000) {
                    out += &format!("{:x}\r\n{}\r\n", chunk.len(), String::from_utf8_lossy(chunk));
                }
                out += "0\r\n\r\n";
                stream.get_mut().write_all(out.as_bytes()).ok()?;
            }
            None => answer(404, "", &status_object(404).to_string())?,
        }
    }
}

fn next_plan(state: &Mutex<State>, wanted: impl Fn(&Plan) -> bool) -> Option<Plan> {
    let mut state = state.lock().unwrap();
    if state.plans.front().is_some_and(&wanted) {
        return state.plans.pop_front();
    }
    state
        .for_ever
        .clone()
        .filter(|plan| state.plans.is_empty() && wanted(plan))
}

/// As the API server words its failures.
fn status_object(code: u16) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "metadata": {}, "code": code,
        "message": format!("the double's words for {code}"),
    })
}
