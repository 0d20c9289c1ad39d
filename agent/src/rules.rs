//! The rules that a pod is to have: what the plugin's ADD would install.

use linkerd_cni::configuration::PodInfo;
use linkerd_cni::error::Error;
use linkerd_cni::pod::PodName;
use linkerd_cni::redirect::{self, Answers, Decision};
use proxy_init::{Choice, HostNetwork, Install, Namespace};
use tracing::{debug, warn};

use crate::api::Server;
use crate::conflist::Entry;
use crate::drift::Drift;
use crate::pod::{self, Meshed};

/// What the plugin would install, by its own configuration, what the watch told of the pod, and what else the plugin
/// would ask for; none if it would leave the pod alone.
///
/// # Errors
/// What stands in the way.
pub async fn wanted(entry: &Entry, server: &Server, pod: &Meshed) -> Result<Option<Install>, String> {
    let words = |error: Error| error.to_string();
    let configuration = entry.read().map_err(words)?;
    let name = PodName::new(&pod.metadata.namespace, &pod.metadata.name)?;
    if configuration.simulates() || configuration.is_agent(&name) {
        return Ok(None);
    }
    let pod = pod::known(pod)?;
    let decision = match configuration.pod_info() {
        PodInfo::Annotations => redirect::by_annotations(&configuration, &name, pod.annotations),
        PodInfo::Api => match redirect::questions(&pod) {
            Err(reason) => Ok(Decision::Leave(reason)),
            Ok(questions) => {
                let mut answers = Answers::default();
                if questions.namespace {
                    answers.namespace = server.annotations(name.namespace()).await?;
                }
                if questions.api_server_ports {
                    match server.ports_of_api_server().await {
                        Ok(ports) => answers.api_server_ports = Some(ports),
                        Err(reason) => warn!("pod {name}: {reason}; 443 and 6443 are taken for its ports instead"),
                    }
                }
                redirect::by_pod(&configuration, &name, &pod, answers)
            }
        },
    };
    match decision.map_err(words)? {
        Decision::Redirect(config) => {
            let mut install = configuration.install(*config);
            // Whatever a pod's processes did to be taken for it.
            install.host_network = HostNetwork::Refuse;
            Ok(Some(install))
        }
        Decision::Leave(reason) => {
            debug!("pod {name} is left alone: {reason}");
            Ok(None)
        }
    }
}

/// How a pod's rules differ from what they should be. Changes nothing.
///
/// # Errors
/// Why they can't be read.
pub fn verify(namespace: &Namespace, install: &Install) -> Result<Option<Drift>, String> {
    let mut any = install.clone();
    // Whichever mode holds the rules: an older configuration, or upstream's plugin, may have set the pod up.
    any.mode = Choice::Auto;
    let verdict = namespace
        .run(|| any.verify())
        .and_then(|verdict| verdict)
        .map_err(|error| error.to_string())?;
    Ok(Drift::of(verdict))
}

/// Installs a pod's rules, and sees that they are in place.
///
/// # Errors
/// Why they can't be installed, or aren't in place afterwards.
pub fn repair(namespace: &Namespace, install: &Install) -> Result<String, String> {
    let installed = namespace
        .run(|| install.run())
        .and_then(|installed| installed)
        .map_err(|error| error.to_string())?;
    match verify(namespace, install)? {
        None => Ok(format!("{} rules in {} mode", installed.rules(), installed.mode)),
        Some(drift) => Err(format!("the rules were installed, but {}", drift.line)),
    }
}
