//! Whether a pod is to be redirected, and by which rules: pure functions of what was asked for, by the plugin or by the
//! node's agent.

use proxy_init::{Config, OwnerId, PortRange};
use thiserror::Error;

use crate::annotations::{Annotations, Given, PROXY_VERSION};
use crate::configuration::{Configuration, api_server_ports_by_default};
use crate::error::Error;
use crate::object::{Pod, Proxy};
use crate::pod::PodName;

/// What becomes of a pod.
#[derive(Debug)]
pub enum Decision {
    /// It gets these rules.
    Redirect(Box<Config>),
    /// It stays as it is.
    Leave(Reason),
}

/// Why a pod stays as it is.
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

/// What else has to be known of a pod that the API server has told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Questions {
    /// The annotations of its namespace.
    pub namespace: bool,
    /// The ports of the API server, which it reaches without the proxy.
    pub api_server_ports: bool,
}

/// The answers to these.
#[derive(Debug, Default)]
pub struct Answers {
    /// The annotations of the pod's namespace.
    pub namespace: Given,
    /// The ports of the API server, if it told them.
    pub api_server_ports: Option<Vec<u16>>,
}

/// By the annotations that the runtime hands over: the injector has copied those of the namespace to the pod.
///
/// They don't name the pod's containers: whether it has a linkerd-init of its own, they don't tell.
///
/// # Errors
/// What of the configuration or the annotations stands in the way.
pub fn by_annotations(configuration: &Configuration, name: &PodName, given: Given) -> Result<Decision, Error> {
    if !given.is_injected {
        return Ok(Decision::Leave(Reason::NotInjected));
    }
    let mut annotations = Annotations::default();
    annotations.add(given, &format!("pod {name}"));
    let mut config = configuration.config()?;
    annotations.apply(&mut config)?;
    if name.namespace() == configuration.control_plane_namespace() {
        config.ignored_outbound_ports.extend(configuration.api_server_ports());
    }
    Ok(Decision::Redirect(Box::new(config)))
}

/// What else has to be asked for before it can be decided about a pod, by what the API server says of it.
///
/// # Errors
/// Nothing: the pod stays as it is, and this is why.
pub fn questions(pod: &Pod) -> Result<Questions, Reason> {
    proxy(pod)?;
    let mut annotations = Annotations::default();
    annotations.add(pod.annotations.clone(), "");
    Ok(Questions { namespace: annotations.lack_any(), api_server_ports: pod.labels.is_control_plane })
}

/// By what the API server says of the pod, and the answers to the [`questions`] that are open then.
///
/// # Errors
/// What of the configuration or the annotations stands in the way.
pub fn by_pod(configuration: &Configuration, name: &PodName, pod: &Pod, answers: Answers) -> Result<Decision, Error> {
    let proxy = match proxy(pod) {
        Ok(proxy) => proxy,
        Err(reason) => return Ok(Decision::Leave(reason)),
    };
    let mut annotations = Annotations::default();
    annotations.add(pod.annotations.clone(), &format!("pod {name}"));
    annotations.add(answers.namespace, &format!("namespace {}", name.namespace()));
    let mut config = configuration.config()?;
    // What the proxy runs as, if its container says so, which it does wherever the injector made it. An annotation
    // comes before that, as it does in the injector.
    let user = proxy.user.and_then(|user| OwnerId::new(user.try_into().ok()?));
    config.proxy_uid = user.or(config.proxy_uid);
    annotations.apply(&mut config)?;
    if pod.labels.is_control_plane {
        let ports = match answers.api_server_ports {
            Some(ports) => ports.into_iter().filter_map(|port| PortRange::new(port, port)).collect(),
            None => api_server_ports_by_default(),
        };
        config.ignored_outbound_ports.extend(ports);
    }
    Ok(Decision::Redirect(Box::new(config)))
}

/// The pod's proxy, or why the pod is none of the plugin's business.
fn proxy(pod: &Pod) -> Result<Proxy, Reason> {
    if pod.init_containers.has_init {
        return Err(Reason::HasInit);
    }
    // It is among the init containers if it is a native sidecar.
    let proxy = pod.containers.proxy.or(pod.init_containers.proxy);
    proxy.ok_or(Reason::HasNoProxy)
}
