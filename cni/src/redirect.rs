//! Whether a pod is to be redirected, and by which rules.

use proxy_init::{Config, OwnerId, PortRange};

use crate::annotations::{Annotations, PROXY_VERSION};
use crate::api::{Client, Pod};
use crate::configuration::{Configuration, LogLevel, PodInfo, api_server_ports_by_default};
use crate::error::Error;
use crate::kubeconfig::Kubeconfig;
use crate::log::Log;
use crate::object::Proxy;
use crate::pod::PodName;

/// The rules for a pod; none if it is not to be redirected. Whoever knows already what the API server says of the pod
/// hands it over.
///
/// # Errors
/// What of the configuration, the pod or the API server stands in the way.
pub fn rules(
    configuration: &Configuration,
    pod: &PodName,
    known: Option<Pod>,
    log: &Log,
) -> Result<Option<Config>, Error> {
    if configuration.is_agent(pod) {
        log.add(LogLevel::Debug, "the pod is the node's agent: nothing to do");
        return Ok(None);
    }
    match configuration.pod_info() {
        PodInfo::Annotations => by_annotations(configuration, pod, log),
        PodInfo::Api => by_api(configuration, pod, known, log),
    }
}

/// By what the runtime handed over: the injector has copied the namespace's annotations to the pod.
fn by_annotations(configuration: &Configuration, pod: &PodName, log: &Log) -> Result<Option<Config>, Error> {
    let handed_over = configuration.annotations();
    let handed_over = handed_over.ok_or_else(|| Error::NoAnnotations { pod: pod.clone() })?;
    if !handed_over.is_injected {
        log.add(
            LogLevel::Debug,
            format_args!("no annotation {PROXY_VERSION}: nothing to do"),
        );
        return Ok(None);
    }
    let mut annotations = Annotations::default();
    annotations.add(handed_over, &format!("pod {pod}"));
    let mut config = configuration.config()?;
    annotations.apply(&mut config)?;
    if pod.namespace() == configuration.control_plane_namespace() {
        config.ignored_outbound_ports.extend(configuration.api_server_ports());
    }
    Ok(Some(config))
}

/// By what the API server says of the pod and, if need be, of its namespace.
fn by_api(
    configuration: &Configuration,
    name: &PodName,
    known: Option<Pod>,
    log: &Log,
) -> Result<Option<Config>, Error> {
    let client = Client::new(Kubeconfig::read(&configuration.kubeconfig()?)?);
    let pod = match known {
        Some(pod) => pod,
        None => client.pod(name)?,
    };
    let proxy = match proxy(&pod) {
        Ok(proxy) => proxy,
        Err(reason) => {
            log.add(LogLevel::Debug, format_args!("{reason}: nothing to do"));
            return Ok(None);
        }
    };
    let mut annotations = Annotations::default();
    annotations.add(pod.metadata.annotations.unwrap_or_default(), &format!("pod {name}"));
    if annotations.lack_any() {
        let namespace = client.namespace(name)?.annotations;
        let holder = format!("namespace {}", name.namespace());
        annotations.add(namespace.unwrap_or_default(), &holder);
    }
    let mut config = configuration.config()?;
    // What the proxy runs as, if its container says so, which it does wherever the injector made it. An annotation
    // comes before that, as it does in the injector.
    let user = proxy.user.and_then(|user| OwnerId::new(user.try_into().ok()?));
    config.proxy_uid = user.or(config.proxy_uid);
    annotations.apply(&mut config)?;
    if pod.metadata.labels.is_some_and(|labels| labels.is_control_plane) {
        let ports = match client.ports_of_api_server() {
            Ok(ports) => ports
                .into_iter()
                .filter_map(|port| PortRange::new(port, port))
                .collect(),
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

/// The pod's proxy, or why the pod is none of the plugin's business.
fn proxy(pod: &Pod) -> Result<Proxy, &'static str> {
    if pod.init_containers.has_init {
        return Err("the pod has an init container linkerd-init");
    }
    // It is among the init containers if it is a native sidecar.
    let proxy = pod.containers.proxy.or(pod.init_containers.proxy);
    proxy.ok_or("the pod has no container linkerd-proxy")
}
