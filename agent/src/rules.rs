//! The rules that a pod is to have: what the plugin's ADD would install.

use std::sync::Arc;

use ::pod::{
    Answers, Configuration, Decision, Error, PodInfo, PodName, by_annotations, by_pod, needs_api_server_ports,
};
use proxy_init::{HostNetwork, Install, ModeChoice, Namespace, Stamp, recognize};
use tracing::{debug, warn};

use crate::api::Server;
use crate::conflist::Entry;
use crate::drift::Drift;
use crate::pod::Meshed;

/// The rules that a pod should have.
#[derive(Debug, Clone)]
pub(crate) enum Wanted {
    /// The rules that the plugin installs.
    Plugins(Arc<Install>),
    /// The rules of its own linkerd-init alone, though the plugin has set the pod up: it goes by annotations, which don't
    /// name init containers.
    Inits,
    /// Whichever: they are none of the agent's business.
    Any,
}

/// By the plugin's own configuration, what the watch told of the pod, and what else the plugin would ask for.
pub(crate) async fn wanted(entry: &Entry, server: &Server, pod: &Meshed) -> Result<Wanted, String> {
    let words = |error: Error| error.to_string();
    let configuration = entry.read().map_err(words)?;
    let name = PodName::new(&pod.metadata.namespace, &pod.metadata.name)?;
    if configuration.linkerd.simulate || configuration.is_agent(&name) {
        return Ok(Wanted::Any);
    }
    pod.check().map_err(|reason| format!("the API server's answer makes no sense: {reason}"))?;
    let decision = match configuration.linkerd.pod_info {
        PodInfo::Annotations => {
            let has_init = pod.spec.init_containers.has_init;
            let decision = by_annotations(&configuration, &name, pod.metadata.annotations.clone());
            if has_init && matches!(decision, Ok(Decision::Redirect(_))) {
                return Ok(Wanted::Inits);
            }
            decision
        }
        PodInfo::Api => match needs_api_server_ports(pod) {
            Err(reason) => Ok(Decision::Leave(reason)),
            Ok(needs_ports) => {
                let namespace = server.annotations(name.namespace()).await?;
                let mut answers = Answers { namespace, ..Answers::default() };
                if needs_ports {
                    match server.ports_of_api_server().await {
                        Ok(ports) => answers.api_server_ports = Some(ports),
                        Err(reason) => warn!("pod {name}: {reason}; 443 and 6443 are taken for its ports instead"),
                    }
                }
                by_pod(&configuration, &name, pod, answers)
            }
        },
    };
    let install = install(&configuration, &name, decision.map_err(words)?);
    Ok(install.map_or(Wanted::Any, Wanted::Plugins))
}

/// The installation for a pod's network namespace; none: the namespace stays as it is.
pub(crate) fn install(configuration: &Configuration, name: &PodName, decision: Decision) -> Option<Arc<Install>> {
    match decision {
        Decision::Redirect(config) => {
            let mut install = configuration.install(*config);
            // A pod's processes, or the runtime, may have had the node's network taken for the pod's.
            install.host_network = HostNetwork::Refuse;
            Some(Arc::new(install))
        }
        Decision::Leave(reason) => {
            debug!("pod {name} is left alone: {reason}");
            None
        }
    }
}

/// How a pod's rules differ from what they should be. Changes nothing.
///
/// The rules are read unless the stamp is the one that was `known`. A stamp comes back where they are as they should be, and
/// will be found so as long as it is the same.
pub(crate) fn verify(
    namespace: &Namespace,
    wanted: &Wanted,
    known: Option<Stamp>,
) -> Result<(Option<Drift>, Option<Stamp>), String> {
    let outcome = namespace.run(|| match wanted {
        Wanted::Plugins(install) => {
            let stamp = Stamp::now();
            if stamp.is_some() && stamp == known {
                return Ok((None, stamp));
            }
            let mut any = Install::clone(install);
            // Whichever mode holds the rules: an older configuration, or upstream's plugin, may have set the pod up.
            any.mode = ModeChoice::Auto;
            let verdict = proxy_init::verify(&any)?;
            let stamp = stamp.filter(|_| verdict.is_alone);
            Ok((Drift::of(verdict), stamp))
        }
        Wanted::Inits => recognize(None, None).map(|recognized| (Drift::of_two(&recognized), None)),
        Wanted::Any => Ok((None, None)),
    });
    outcome.and_then(|outcome| outcome).map_err(|error| error.to_string())
}

/// Installs a pod's rules, and sees that they are in place.
pub(crate) fn repair(namespace: &Namespace, install: Arc<Install>) -> Result<String, String> {
    let installed =
        namespace.run(|| install.run()).and_then(|installed| installed).map_err(|error| error.to_string())?;
    let (drift, _) = verify(namespace, &Wanted::Plugins(install), None)?;
    match drift {
        None => Ok(format!("{} rules in {} mode", installed.rules(), installed.mode)),
        Some(drift) => Err(format!("the rules were installed, but {}", drift.line)),
    }
}
