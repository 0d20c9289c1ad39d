//! Whether a pod is to be redirected, and by which rules.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use proxy_init::{Config, Port, PortRange};

use crate::annotations::Annotations;
use crate::api::Client;
use crate::configuration::{Configuration, LogLevel, PodInfo, api_server_ports_by_default};
use crate::error::Error;
use crate::kubeconfig::Kubeconfig;
use crate::log::Log;
use crate::pod::PodName;

/// The annotation that the injector sets on each pod whose proxy it adds.
const PROXY_VERSION: &str = "linkerd.io/proxy-version";
/// The label of Linkerd's own pods.
const CONTROL_PLANE_COMPONENT: &str = "linkerd.io/control-plane-component";

/// The rules for a pod; none if it is not to be redirected.
///
/// # Errors
/// What of the configuration, the pod or the API server stands in the way.
pub fn rules(configuration: &Configuration, pod: &PodName, log: &Log) -> Result<Option<Config>, Error> {
    match configuration.pod_info() {
        PodInfo::Annotations => by_annotations(configuration, pod, log),
        PodInfo::Api => by_api(configuration, pod, log),
    }
}

/// By what the runtime handed over: the injector has copied the namespace's annotations to the pod.
fn by_annotations(configuration: &Configuration, pod: &PodName, log: &Log) -> Result<Option<Config>, Error> {
    let handed_over = configuration.annotations();
    let handed_over = handed_over.ok_or_else(|| Error::NoAnnotations { pod: pod.clone() })?;
    if !handed_over.contains_key(PROXY_VERSION) {
        log.add(
            LogLevel::Debug,
            format_args!("no annotation {PROXY_VERSION}: nothing to do"),
        );
        return Ok(None);
    }
    let mut annotations = Annotations::default();
    annotations.add(&handed_over, &format!("pod {pod}"));
    let mut config = configuration.config()?;
    annotations.apply(&mut config)?;
    if pod.namespace() == configuration.control_plane_namespace() {
        config.ignored_outbound_ports.extend(configuration.api_server_ports());
    }
    Ok(Some(config))
}

/// By what the API server says of the pod and, if need be, of its namespace.
fn by_api(configuration: &Configuration, name: &PodName, log: &Log) -> Result<Option<Config>, Error> {
    let client = Client::new(Kubeconfig::read(&configuration.kubeconfig()?)?);
    let pod = client.pod(name)?;
    if let Some(reason) = leave_alone(&pod) {
        log.add(LogLevel::Debug, format_args!("{reason}: nothing to do"));
        return Ok(None);
    }
    let mut annotations = Annotations::default();
    let none = BTreeMap::new();
    annotations.add(
        pod.metadata.annotations.as_ref().unwrap_or(&none),
        &format!("pod {name}"),
    );
    if annotations.lack_any() {
        let namespace = client.namespace(name)?.metadata.annotations;
        let holder = format!("namespace {}", name.namespace());
        annotations.add(namespace.as_ref().unwrap_or(&none), &holder);
    }
    let mut config = configuration.config()?;
    annotations.apply(&mut config)?;
    let label = pod
        .metadata
        .labels
        .as_ref()
        .and_then(|it| it.get(CONTROL_PLANE_COMPONENT));
    if label.is_some_and(|component| !component.is_empty()) {
        let ports = match client.kubernetes_service() {
            Ok(service) => ports(&service),
            Err(error) => {
                log.add(
                    LogLevel::Warning,
                    format_args!("{error}; 443 and 6443 are skipped instead"),
                );
                api_server_ports_by_default()
            }
        };
        config.ignored_outbound_ports.extend(ports);
    }
    Ok(Some(config))
}

/// Why a pod is none of the plugin's business.
fn leave_alone(pod: &Pod) -> Option<&'static str> {
    let spec = pod.spec.as_ref();
    let initial = || {
        spec.and_then(|spec| spec.init_containers.as_deref())
            .unwrap_or_default()
    };
    let containers = spec.map(|spec| spec.containers.as_slice()).unwrap_or_default();
    if initial().iter().any(|container| container.name == "linkerd-init") {
        Some("the pod has an init container linkerd-init")
    } else if containers
        .iter()
        .chain(initial())
        .all(|container| container.name != "linkerd-proxy")
    {
        // It is among the init containers if it is a native sidecar.
        Some("the pod has no container linkerd-proxy")
    } else {
        None
    }
}

/// The ports and target ports of the API server's service. One without a target port has none to skip, and one that is
/// named is a port of the server's own pods.
fn ports(service: &Service) -> Vec<PortRange> {
    let ports = service
        .spec
        .as_ref()
        .and_then(|spec| spec.ports.as_deref())
        .unwrap_or_default();
    let numbers = ports.iter().flat_map(|port| match port.target_port {
        Some(IntOrString::Int(target)) => [Some(port.port), Some(target)],
        _ => [Some(port.port), None],
    });
    let port = |number: i32| Port::new(u16::try_from(number).ok()?);
    let ports = numbers.flatten().filter_map(port);
    ports
        .filter_map(|port| PortRange::new(port.get(), port.get()))
        .collect()
}
