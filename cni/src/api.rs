//! The few requests that the plugin makes of the API server.
//!
//! Nothing hangs: all requests of one command together have ten seconds. Within them, passing failures are tried again:
//! a connection that is refused or lost, 429 (whose Retry-After counts) and 5xx. Everything else is an error at once.

use std::fmt::Display;
use std::io::{self, Read as _};
use std::thread;
use std::time::{Duration, Instant};

use pod::{Given, Object, Pod, PodName, ServiceSpec, one_line, shortened, wrong_in_json};
use proxy_init::PortRange;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use ureq::Agent;
use ureq::http::{Response, StatusCode};
use ureq::tls::{RootCerts, TlsConfig, TlsProvider};
use ureq::unversioned::transport::DefaultConnector;

use crate::error::Error;
use crate::kubeconfig::{Kubeconfig, Trust};
use crate::names::Names;

/// The time for all requests of one command together.
const PATIENCE: Duration = Duration::from_secs(10);

/// The time for one attempt to connect, so that another of several servers behind one address can be tried.
const CONNECTING: Duration = Duration::from_secs(3);

/// The first pause before trying again; each one after it is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The longest answer. An object in etcd has at most 1.5 MiB (--max-request-bytes).
const LONGEST_ANSWER: u64 = 2 << 20;

/// The longest body of a failure that is looked at.
const LONGEST_FAILURE: u64 = 64 << 10;

/// A connection to the API server, made when it is first needed.
pub struct Client {
    agent: Agent,
    server: String,
    authorization: String,
    end: Instant,
}

impl Client {
    /// Takes the clock from here on.
    pub fn new(kubeconfig: Kubeconfig) -> Self {
        let tls = TlsConfig::builder()
            .provider(TlsProvider::Rustls)
            .unversioned_rustls_crypto_provider(rustls::crypto::ring::default_provider().into());
        let tls = match kubeconfig.trust {
            Trust::Anything => tls.disable_verification(true),
            Trust::Authorities(certificates) => tls.root_certs(RootCerts::from(certificates)),
        };
        let agent = Agent::config_builder()
            .tls_config(tls.build())
            .http_status_as_error(false)
            // The API server redirects nobody; a token stays with the server that it is for.
            .max_redirects(0)
            // Not by way of a proxy that kubelet's or containerd's environment names for something else.
            .proxy(None)
            .user_agent(concat!("linkerd-cni/", env!("CARGO_PKG_VERSION")))
            .accept("application/json")
            .timeout_connect(Some(CONNECTING))
            .build();
        let agent = Agent::with_parts(agent, DefaultConnector::new(), Names::default());
        Self {
            agent,
            server: kubeconfig.server,
            authorization: format!("Bearer {}", kubeconfig.token),
            end: Instant::now() + PATIENCE,
        }
    }

    /// The pod.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::TryAgainLater`], [`Error::Api`]
    pub fn pod(&self, pod: &PodName) -> Result<Pod, Error> {
        let request = format!("pod {pod}");
        let path = format!("namespaces/{}/pods/{}", pod.namespace(), pod.name());
        let pod: Pod = self.get("Pod", &request, &path, pod.namespace(), pod.name())?;
        pod.check().map_err(|reason| no_sense(&request, reason))?;
        Ok(pod)
    }

    /// Asks about a pod once, as [`Client::pod`] does, for a caller that only asks for an answer: also the
    /// API server's own word that there is no such pod.
    ///
    /// # Errors
    /// [`Error::Api`], also for a passing failure.
    pub fn try_once(&self, pod: &PodName) -> Result<(), Error> {
        let (namespace, name) = (pod.namespace(), pod.name());
        let (request, path) = (format!("pod {pod}"), format!("namespaces/{namespace}/pods/{name}"));
        match self.attempt(&format!("{}/api/v1/{path}", self.server)) {
            Ok((StatusCode::OK, ..)) => Ok(()),
            Ok((StatusCode::NOT_FOUND, _, body)) if is_without_pod(&body, name) => Ok(()),
            Ok((status, _, body)) => Err(refusal(&request, status, &body)),
            Err(error) => Err(self.failure(&request, &error)),
        }
    }

    /// The annotations of the pod's namespace.
    ///
    /// # Errors
    /// As of [`Client::pod`].
    pub fn namespace(&self, pod: &PodName) -> Result<Given, Error> {
        let name = pod.namespace();
        let (request, path) = (format!("namespace {name}"), format!("namespaces/{name}"));
        let namespace: Object = self.get("Namespace", &request, &path, "", name)?;
        Ok(namespace.metadata.annotations)
    }

    /// The ports and target ports of the service by which pods reach the API server.
    ///
    /// # Errors
    /// As of [`Client::pod`].
    pub fn ports_of_api_server(&self) -> Result<Vec<PortRange>, Error> {
        let request = "service default/kubernetes";
        let path = "namespaces/default/services/kubernetes";
        let service: Object<ServiceSpec> = self.get("Service", request, path, "default", "kubernetes")?;
        let ports = service.spec.ports();
        if ports.is_empty() {
            return Err(no_sense(request, "the service has no ports"));
        }
        Ok(ports)
    }

    /// The object at `path`, which is of this kind and name, and in this namespace, which is empty if its kind has none.
    fn get<S: DeserializeOwned + Default>(
        &self,
        kind: &str,
        request: &str,
        path: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Object<S>, Error> {
        let url = format!("{}/api/v1/{path}", self.server);
        let mut pause = FIRST_PAUSE;
        loop {
            let (reason, asked) = match self.attempt(&url) {
                Ok((StatusCode::OK, _, body)) => return read(kind, request, &body, namespace, name),
                Ok((status, retry_after, body)) if may_pass(status) => (said(status, &body), retry_after),
                Ok((StatusCode::NOT_FOUND, ..)) => {
                    return Err(Error::NotFound { request: request.to_owned() });
                }
                Ok((status, _, body)) => return Err(refusal(request, status, &body)),
                Err(error) if is_final(&error) => return Err(self.failure(request, &error)),
                Err(error) => (format!("{}: {error}", self.server), Duration::ZERO),
            };
            let wait = pause.max(asked);
            let left = self.left();
            if wait >= left {
                let (patience, asked) = (PATIENCE.as_secs(), asked.as_secs());
                let request = request.to_owned();
                let reason = if asked > 0 {
                    let left = left.as_secs_f32();
                    format!(
                        "{reason}, and asks for {asked} s of rest, with {left:.1} of this command's {patience} s left"
                    )
                } else {
                    format!("no usable answer within {patience} s: {reason}")
                };
                return Err(Error::TryAgainLater { request, reason });
            }
            thread::sleep(wait);
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    fn failure(&self, request: &str, error: &ureq::Error) -> Error {
        Error::Api { request: request.to_owned(), reason: format!("the API server at {}: {error}", self.server) }
    }

    /// The status, how long the server wants to be left alone, and the body.
    fn attempt(&self, url: &str) -> Result<(StatusCode, Duration, Vec<u8>), ureq::Error> {
        let request = self.agent.get(url).config().timeout_global(Some(self.left())).build();
        let mut response = request.header("Authorization", &self.authorization).call()?;
        let (status, asked) = (response.status(), retry_after(&response));
        if status == StatusCode::OK {
            // All at once: a buffer that grows is there twice while it is copied. What isn't written to takes no
            // memory.
            let mut body = Vec::with_capacity(LONGEST_ANSWER as usize + 64);
            let limited = response.body_mut().with_config().limit(LONGEST_ANSWER);
            limited.reader().read_to_end(&mut body)?;
            return Ok((status, asked, body));
        }
        // Of a failure, the status counts; the text is for people.
        let mut body = Vec::new();
        let _ = response.body_mut().as_reader().take(LONGEST_FAILURE).read_to_end(&mut body);
        Ok((status, asked, body))
    }

    fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }
}

/// Returns true if the same request may be answered a moment later.
fn may_pass(status: StatusCode) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error()
}

/// Returns true if a failure is one that trying again does not mend.
fn is_final(error: &ureq::Error) -> bool {
    match error {
        // The server's certificate, or something that isn't TLS.
        ureq::Error::Io(error) => error.kind() == io::ErrorKind::InvalidData,
        ureq::Error::Timeout(_) | ureq::Error::ConnectionFailed | ureq::Error::HostNotFound => false,
        _ => true,
    }
}

/// Returns true if this is the API server's word that it has no such pod (`NewNotFound` in
/// apimachinery/pkg/api/errors/errors.go). For a path that it doesn't serve, it names none, and a proxy's 404 is no
/// `Status` at all.
fn is_without_pod(body: &[u8], name: &str) -> bool {
    let status: Value = serde_json::from_slice(body).unwrap_or_default();
    let facts = [
        ("/code", json!(404)),
        ("/reason", json!("NotFound")),
        ("/details/kind", json!("pods")),
        ("/details/name", json!(name)),
    ];
    facts.iter().all(|(path, value)| status.pointer(path) == Some(value))
}

/// Retry-After, in whole seconds, as the API server sends it with 429.
fn retry_after<T>(response: &Response<T>) -> Duration {
    let header = response.headers().get("Retry-After");
    let seconds = header.and_then(|value| value.to_str().ok()?.trim().parse().ok());
    Duration::from_secs(seconds.unwrap_or_default())
}

/// Reads an object.
fn read<S: DeserializeOwned + Default>(
    kind: &str,
    request: &str,
    body: &[u8],
    namespace: &str,
    name: &str,
) -> Result<Object<S>, Error> {
    let object: Object<S> = serde_json::from_slice(body).map_err(|error| no_sense(request, wrong_in_json(&error)))?;
    if !object.kind.is_empty() && object.kind != kind {
        return Err(no_sense(request, format_args!("it is a {}, not a {kind}", shortened(&object.kind))));
    }
    let metadata = &object.metadata;
    if metadata.namespace == namespace && metadata.name == name {
        return Ok(object);
    }
    let shown = |text: &str| if text.is_empty() { "null".to_owned() } else { shortened(text) };
    let (namespace, name) = (shown(&metadata.namespace), shown(&metadata.name));
    let reason = format!("it is about another object, with metadata.namespace {namespace} and metadata.name {name}");
    Err(no_sense(request, reason))
}

/// An answer that isn't one to the request.
fn refusal(request: &str, status: StatusCode, body: &[u8]) -> Error {
    let advice = match status {
        // It ends with the agent's pod.
        StatusCode::UNAUTHORIZED => {
            ": the token in the kubeconfig is invalid or has expired: is the agent running on this node? kubectl get pods -n \
             linkerd-cni -o wide"
        }
        StatusCode::FORBIDDEN => ": the token's service account needs get for pods, namespaces and services",
        StatusCode::NOT_FOUND => ", which is not about the pod: is another server at the kubeconfig's address?",
        _ => "",
    };
    Error::Api { request: request.to_owned(), reason: format!("{}{advice}", said(status, body)) }
}

fn no_sense(request: &str, reason: impl Display) -> Error {
    Error::Api { request: request.to_owned(), reason: format!("the API server's answer makes no sense: {reason}") }
}

/// The API server's words about a failure: its status, and the message of the `Status` object.
fn said(status: StatusCode, body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Status {
        message: String,
    }

    match serde_json::from_slice::<Status>(body) {
        Ok(Status { message }) => format!("the API server answered {status}: {}", one_line(&message)),
        Err(_) => format!("the API server answered {status}"),
    }
}
