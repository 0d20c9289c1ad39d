//! Decides if a pod is to be redirected, and by which rules.

use proxy_init::{Config, OwnerId, PartialConfig, PortRange};

use crate::annotations::{Given, apply};
use crate::configuration::{Configuration, finished};
use crate::error::Error;
use crate::name::PodName;
use crate::object::Pod;

/// The decision about a pod.
#[derive(Debug)]
pub enum Decision {
    /// It gets these rules.
    Redirect(Box<Config>),
    /// It stays as it is, for this reason.
    Leave(&'static str),
}

/// Decides by the annotations that the runtime hands over: the injector has copied those of the namespace to the pod.
///
/// They don't name the pod's containers, so a linkerd-init of the pod's own stays unseen.
///
/// # Errors
/// The value of the configuration or of the annotations that stands in the way.
pub fn by_annotations(configuration: &Configuration, name: &PodName, given: Given) -> Result<Decision, Error> {
    if !given.is_injected {
        return Ok(Decision::Leave("no annotation linkerd.io/proxy-version"));
    }
    let is_control_plane = name.namespace() == configuration.control_plane_namespace();
    let ports = if is_control_plane { configuration.api_server_ports() } else { Vec::new() };
    redirect(configuration.rules.clone(), &[(given, format!("pod {name}"))], ports)
}

/// Decides by the pod's object, the annotations of its namespace and, for a pod of the control plane, the ports of the API
/// server, which it reaches without the proxy.
///
/// # Errors
/// The value of the configuration or of the annotations that stands in the way.
pub fn by_pod<T>(
    configuration: &Configuration,
    name: &PodName,
    pod: &Pod<T>,
    namespace: Given,
    api_server_ports: Vec<PortRange>,
) -> Result<Decision, Error> {
    let proxy = match pod.proxy() {
        Ok(proxy) => proxy,
        Err(reason) => return Ok(Decision::Leave(reason)),
    };
    let of_namespace = (namespace, format!("namespace {}", name.namespace()));
    let annotations = [(pod.metadata.annotations.clone(), format!("pod {name}")), of_namespace];
    let mut rules = configuration.rules.clone();
    // The proxy's own container names its user, wherever the injector made the container. An annotation comes before
    // that, as it does in the injector.
    let user = proxy.user.and_then(|user| OwnerId::new(user.try_into().ok()?));
    rules.config.proxy_uid = user.or(rules.config.proxy_uid);
    redirect(rules, &annotations, api_server_ports)
}

/// The rules, as these annotations change them; the pod reaches the API server's ports without the proxy.
fn redirect(
    mut rules: PartialConfig,
    annotations: &[(Given, String)],
    api_server_ports: Vec<PortRange>,
) -> Result<Decision, Error> {
    apply(annotations, &mut rules)?;
    let mut config = finished(rules)?;
    config.ignored_outbound_ports.extend(api_server_ports);
    Ok(Decision::Redirect(Box::new(config)))
}
