//! Decides if a pod is to be redirected, and by which rules.

use proxy_init::{Config, OwnerId, PortRange};
use thiserror::Error;

use crate::annotations::{Given, PROXY_VERSION, apply};
use crate::configuration::{Configuration, api_server_ports_by_default, finished};
use crate::error::Error;
use crate::name::PodName;
use crate::object::{Pod, Proxy};

/// The decision about a pod.
#[derive(Debug)]
pub enum Decision {
    /// It gets these rules.
    Redirect(Box<Config>),
    /// It stays as it is.
    Leave(Reason),
}

/// The reason why a pod stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Reason {
    /// The injector has added no proxy.
    #[error("no annotation {PROXY_VERSION}")]
    NotInjected,
    /// It makes its rules itself.
    #[error("the pod has an init container linkerd-init")]
    HasInit,
    /// Nothing would take its connections.
    #[error("the pod has no container linkerd-proxy")]
    HasNoProxy,
}

/// The API server's answers about a pod's surroundings.
#[derive(Debug, Default)]
pub struct Answers {
    /// The annotations of the pod's namespace.
    pub namespace: Given,
    /// The ports of the API server, if it told them.
    pub api_server_ports: Option<Vec<u16>>,
}

/// Decides by the annotations that the runtime hands over: the injector has copied those of the namespace to the pod.
///
/// They don't name the pod's containers, so a linkerd-init of the pod's own stays unseen.
///
/// # Errors
/// The value of the configuration or of the annotations that stands in the way.
pub fn by_annotations(configuration: &Configuration, name: &PodName, given: Given) -> Result<Decision, Error> {
    if !given.is_injected {
        return Ok(Decision::Leave(Reason::NotInjected));
    }
    let mut rules = configuration.rules.clone();
    apply(&[(given, format!("pod {name}"))], &mut rules)?;
    let mut config = finished(rules)?;
    if name.namespace() == configuration.control_plane_namespace() {
        config.ignored_outbound_ports.extend(configuration.api_server_ports());
    }
    Ok(Decision::Redirect(Box::new(config)))
}

/// Returns true if the ports of the API server have to be known before [`by_pod`] can decide: a pod of the control
/// plane reaches them without the proxy.
///
/// # Errors
/// Nothing failed: the pod stays as it is, for this reason.
pub fn needs_api_server_ports<T>(pod: &Pod<T>) -> Result<bool, Reason> {
    proxy(pod)?;
    Ok(is_control_plane(pod))
}

/// Decides by the pod's object and these answers.
///
/// # Errors
/// The value of the configuration or of the annotations that stands in the way.
pub fn by_pod<T>(
    configuration: &Configuration,
    name: &PodName,
    pod: &Pod<T>,
    answers: Answers,
) -> Result<Decision, Error> {
    let proxy = match proxy(pod) {
        Ok(proxy) => proxy,
        Err(reason) => return Ok(Decision::Leave(reason)),
    };
    let of_namespace = (answers.namespace, format!("namespace {}", name.namespace()));
    let annotations = [(pod.metadata.annotations.clone(), format!("pod {name}")), of_namespace];
    let mut rules = configuration.rules.clone();
    // The proxy's own container names its user, wherever the injector made the container. An annotation comes before
    // that, as it does in the injector.
    let user = proxy.user.and_then(|user| OwnerId::new(user.try_into().ok()?));
    rules.config.proxy_uid = user.or(rules.config.proxy_uid);
    apply(&annotations, &mut rules)?;
    let mut config = finished(rules)?;
    if is_control_plane(pod) {
        let ports = match answers.api_server_ports {
            Some(ports) => ports.into_iter().filter_map(|port| PortRange::new(port, port)).collect(),
            None => api_server_ports_by_default(),
        };
        config.ignored_outbound_ports.extend(ports);
    }
    Ok(Decision::Redirect(Box::new(config)))
}

/// The pod's proxy, or the reason why the pod stays as it is.
fn proxy<T>(pod: &Pod<T>) -> Result<Proxy, Reason> {
    if pod.spec.init_containers.has_init {
        return Err(Reason::HasInit);
    }
    // A native sidecar is among the init containers.
    let proxy = pod.spec.containers.proxy.or(pod.spec.init_containers.proxy);
    proxy.ok_or(Reason::HasNoProxy)
}

fn is_control_plane<T>(pod: &Pod<T>) -> bool {
    !pod.metadata.labels.control_plane_component.is_empty()
}
