//! The few requests that the plugin makes of the API server.
//!
//! Nothing hangs: all requests of one command together have ten seconds. Within them, what may pass is tried again: a
//! connection that is refused or lost, 429 (whose Retry-After counts) and 5xx. Everything else is an error at once.

use std::fmt::Display;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use k8s_openapi::Metadata;
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Status};
use serde::de::DeserializeOwned;
use ureq::Agent;
use ureq::http::{Response, StatusCode};
use ureq::tls::{RootCerts, TlsConfig, TlsProvider};
use ureq::unversioned::transport::DefaultConnector;

use crate::error::{Error, shortened};
use crate::kubeconfig::{Kubeconfig, Trust};
use crate::pod::PodName;
use crate::resolve::Names;

/// What all requests of one command may take together.
const PATIENCE: Duration = Duration::from_secs(10);

/// What one attempt to connect may take, so that there is time to try another of several servers behind one address.
const CONNECTING: Duration = Duration::from_secs(3);

/// The first pause before trying again; each one after it is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The longest answer. An object in etcd has at most 1.5 MiB (--max-request-bytes).
const LONGEST_ANSWER: u64 = 8 << 20;

/// A connection to the API server, made when it is first needed.
pub struct Client {
    agent: Agent,
    names: Names,
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
        let names = Names::default();
        let agent = Agent::with_parts(agent, DefaultConnector::new(), names.clone());
        Self {
            agent,
            names,
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
        let answer: Pod = self.get(&request, &path, Some(pod.namespace()), pod.name())?;
        // Kubernetes has no pod without containers and none of them without a name: such a pod would be taken for one
        // without a proxy.
        let containers = answer.spec.as_ref().map(|spec| spec.containers.as_slice());
        match containers.unwrap_or_default() {
            [] => Err(no_sense(&request, "the pod has no containers")),
            some if some.iter().any(|container| container.name.is_empty()) => {
                Err(no_sense(&request, "the pod has a container without a name"))
            }
            _ => Ok(answer),
        }
    }

    /// The pod's namespace.
    ///
    /// # Errors
    /// As of [`Client::pod`].
    pub fn namespace(&self, pod: &PodName) -> Result<Namespace, Error> {
        let name = pod.namespace();
        self.get(&format!("namespace {name}"), &format!("namespaces/{name}"), None, name)
    }

    /// The service by which pods reach the API server.
    ///
    /// # Errors
    /// As of [`Client::pod`].
    pub fn kubernetes_service(&self) -> Result<Service, Error> {
        let request = "service default/kubernetes";
        let path = "namespaces/default/services/kubernetes";
        let answer: Service = self.get(request, path, Some("default"), "kubernetes")?;
        let ports = answer.spec.as_ref().and_then(|spec| spec.ports.as_deref());
        if ports.unwrap_or_default().is_empty() {
            return Err(no_sense(request, "the service has no ports"));
        }
        Ok(answer)
    }

    /// The object at `path`, which is of this name, and in this namespace if its kind has one.
    fn get<T>(&self, request: &str, path: &str, namespace: Option<&str>, name: &str) -> Result<T, Error>
    where
        T: DeserializeOwned + Metadata<Ty = ObjectMeta>,
    {
        let url = format!("{}/api/v1/{path}", self.server);
        let mut pause = FIRST_PAUSE;
        loop {
            let (reason, asked) = match self.attempt(&url) {
                Ok((StatusCode::OK, _, body)) => return read(request, &body, namespace, name),
                Ok((status, retry_after, body)) if may_pass(status) => (said(status, &body), retry_after),
                Ok((StatusCode::NOT_FOUND, ..)) => {
                    return Err(Error::NotFound {
                        request: request.to_owned(),
                    });
                }
                Ok((status, _, body)) => {
                    let advice = match status {
                        StatusCode::UNAUTHORIZED => ": the token in the kubeconfig is invalid or has expired",
                        StatusCode::FORBIDDEN => {
                            ": the token's service account needs get for pods, namespaces and services"
                        }
                        _ => "",
                    };
                    return Err(Error::Api {
                        request: request.to_owned(),
                        reason: format!("{}{advice}", said(status, &body)),
                    });
                }
                Err(error) if is_final(&error) => {
                    return Err(Error::Api {
                        request: request.to_owned(),
                        reason: format!("the API server at {}: {error}", self.server),
                    });
                }
                Err(error) => {
                    self.names.forget();
                    (format!("{}: {error}", self.server), Duration::ZERO)
                }
            };
            let wait = pause.max(asked);
            let left = self.left();
            if wait >= left {
                let (patience, asked) = (PATIENCE.as_secs(), asked.as_secs());
                let request = request.to_owned();
                let reason = match asked > 0 {
                    true => {
                        let left = left.as_secs_f32();
                        format!(
                            "{reason}, and asks for {asked} s of rest, with {left:.1} of this command's {patience} s left"
                        )
                    }
                    false => format!("no usable answer within {patience} s: {reason}"),
                };
                return Err(Error::TryAgainLater { request, reason });
            }
            thread::sleep(wait);
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    /// The status, how long the server wants to be left alone, and the body.
    fn attempt(&self, url: &str) -> Result<(StatusCode, Duration, Vec<u8>), ureq::Error> {
        let request = self.agent.get(url).config().timeout_global(Some(self.left())).build();
        let mut response = request.header("Authorization", &self.authorization).call()?;
        let (status, asked) = (response.status(), retry_after(&response));
        let body = response.body_mut().with_config().limit(LONGEST_ANSWER).read_to_vec()?;
        Ok((status, asked, body))
    }

    fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }
}

/// Whether the same request may be answered a moment later.
fn may_pass(status: StatusCode) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error()
}

/// Whether a failure is one that trying again does not mend.
fn is_final(error: &ureq::Error) -> bool {
    match error {
        // The server's certificate, or something that isn't TLS.
        ureq::Error::Io(error) => error.kind() == io::ErrorKind::InvalidData,
        ureq::Error::Timeout(_) | ureq::Error::ConnectionFailed | ureq::Error::HostNotFound => false,
        _ => true,
    }
}

/// Retry-After, in whole seconds, as the API server sends it with 429.
fn retry_after<T>(response: &Response<T>) -> Duration {
    let header = response.headers().get("Retry-After");
    let seconds = header.and_then(|value| value.to_str().ok()?.trim().parse().ok());
    Duration::from_secs(seconds.unwrap_or_default())
}

/// Reads an object. That it is of another kind is an error of k8s-openapi's; that it is another object is one here.
fn read<T>(request: &str, body: &[u8], namespace: Option<&str>, name: &str) -> Result<T, Error>
where
    T: DeserializeOwned + Metadata<Ty = ObjectMeta>,
{
    let object: T = serde_json::from_slice(body).map_err(|error| no_sense(request, error))?;
    let metadata = object.metadata();
    let found = (metadata.namespace.as_deref(), metadata.name.as_deref());
    if found == (namespace, Some(name)) {
        return Ok(object);
    }
    let shown = |text: Option<&str>| text.map_or("null".to_owned(), shortened);
    Err(no_sense(
        request,
        format_args!(
            "it is about another object, with metadata.namespace {} and metadata.name {}",
            shown(found.0),
            shown(found.1)
        ),
    ))
}

fn no_sense(request: &str, reason: impl Display) -> Error {
    Error::Api {
        request: request.to_owned(),
        reason: format!("the API server's answer makes no sense: {reason}"),
    }
}

/// What the API server says of a failure: its status, and the message of the `Status` object that comes with it.
fn said(status: StatusCode, body: &[u8]) -> String {
    let message = serde_json::from_slice::<Status>(body).ok().and_then(|it| it.message);
    match message {
        Some(message) => format!("the API server answered {status}: {message}"),
        None => format!("the API server answered {status}"),
    }
}
