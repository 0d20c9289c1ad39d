//! The rules that a pod is to have, which are those that the plugin's ADD would install, and how its rules differ from
//! them.

use std::sync::Arc;

use ::pod::{Configuration, Decision, Error, PodInfo, PodName, bounded, by_annotations, by_pod};
use proxy_init::{Config, Finding, FindingKind, HostNetwork, Install, ModeChoice, Namespace, Stamp, Verification};
use tracing::{debug, warn};

use crate::api::Server;
use crate::conflist::Entry;
use crate::pod::Meshed;

/// The longest that the words for a difference may be, in bytes: in its network namespace, a pod may add as many rules
/// as it likes.
const LONGEST_WORDS: usize = 900;

/// The rules that a pod should have, or none if they are none of the agent's business: by the plugin's own configuration,
/// what the watch told of the pod, and what else the plugin would ask for.
pub(crate) async fn wanted(entry: &Entry, server: &Server, pod: &Meshed) -> Result<Option<Arc<Install>>, String> {
    let words = |error: Error| error.to_string();
    let configuration = entry.read().map_err(words)?;
    let name = PodName::new(&pod.metadata.namespace, &pod.metadata.name)?;
    if configuration.linkerd.simulate || configuration.is_agent(&name) {
        return Ok(None);
    }
    pod.check().map_err(|reason| format!("the API server's answer makes no sense: {reason}"))?;
    let decision = match configuration.linkerd.pod_info {
        PodInfo::Annotations => {
            // The plugin can't know that the pod makes its rules itself: annotations don't name init containers.
            if pod.spec.init_containers.has_init {
                return Ok(None);
            }
            by_annotations(&configuration, &name, pod.metadata.annotations.clone())
        }
        PodInfo::Api => {
            if let Err(reason) = pod.proxy() {
                return Ok(install(&configuration, &name, Decision::Leave(reason)));
            }
            let namespace = server.annotations(name.namespace()).await?;
            let mut ports = Vec::new();
            if pod.is_control_plane() {
                ports = server.ports_of_api_server().await.unwrap_or_else(|reason| {
                    warn!("pod {name}: {reason}; linkerd.api-server-ports are taken instead");
                    configuration.api_server_ports()
                });
            }
            by_pod(&configuration, &name, pod, namespace, ports)
        }
    };
    Ok(install(&configuration, &name, decision.map_err(words)?))
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

/// The differences between a pod's rules and those that it should have.
#[derive(Debug, Clone)]
pub(crate) struct Drift {
    /// The first difference, in a word.
    pub(crate) reason: String,
    /// All of them, as verify words them, in a line.
    pub(crate) words: String,
    /// The config whose rules they are, if they are all of its rules and nothing else.
    pub(crate) config: Option<Config>,
    /// True if rules are gone and nothing was added: putting rules back undoes nobody's work.
    pub(crate) is_loss: bool,
}

impl Drift {
    /// The differences; none if the rules are in place.
    fn of(verdict: Verification) -> Option<Self> {
        if verdict.is_in_place() {
            return None;
        }
        if !verdict.finds_rules {
            let (reason, words) = ("none".to_owned(), "there are no rules by linkerd-cni".to_owned());
            return Some(Self { reason, words, config: None, is_loss: true });
        }
        let findings = verdict.findings.iter().map(Finding::in_a_line);
        let others = verdict.others.iter().map(|mode| format!("there are rules in {mode} mode too"));
        let is_loss = |finding: &Finding| {
            let kind = finding.kind();
            [FindingKind::NoRules, FindingKind::NoChain, FindingKind::Missing].contains(&kind)
        };
        let first = verdict.findings.first();
        Some(Self {
            reason: first.map_or_else(|| "other-backend".to_owned(), |finding| finding.kind().to_string()),
            words: bounded(findings.chain(others).collect::<Vec<_>>().join("; "), LONGEST_WORDS),
            is_loss: verdict.findings.iter().all(is_loss) && verdict.others.is_empty(),
            config: verdict.other_config,
        })
    }
}

/// The outcome of a look at a pod's rules.
pub(crate) struct Verified {
    /// The differences from what they should be.
    pub(crate) drift: Option<Drift>,
    /// They are as they should be, and will be found so as long as this is the same.
    pub(crate) stamp: Option<Stamp>,
}

/// Compares a pod's rules with what they should be. Changes nothing. The rules are read unless the stamp is the one
/// that was `known`: reading those of 110 untouched pods takes 2.2 ms of processor time for each pod and minute.
pub(crate) fn verify(namespace: &Namespace, wanted: &Install, known: Option<Stamp>) -> Result<Verified, String> {
    let verified = namespace.run(|| {
        let stamp = Stamp::now();
        if stamp.is_some() && stamp == known {
            return Ok(Verified { drift: None, stamp });
        }
        let mut any = wanted.clone();
        // Whichever mode holds the rules: an older configuration, or upstream's plugin, may have set the pod up.
        any.mode = ModeChoice::Auto;
        let verdict = proxy_init::verify(&any)?;
        let stamp = stamp.filter(|_| verdict.is_alone);
        Ok(Verified { drift: Drift::of(verdict), stamp })
    });
    verified.and_then(|verified| verified).map_err(|error: proxy_init::Error| error.to_string())
}

/// Installs a pod's rules, and sees that they are in place. Returns which.
pub(crate) fn repair(namespace: &Namespace, install: &Install) -> Result<String, String> {
    let installed = namespace.run(|| install.run()).and_then(|installed| installed);
    let installed = installed.map_err(|error| error.to_string())?;
    match verify(namespace, install, None)?.drift {
        None => Ok(format!("{} rules in {} mode", installed.rules(), installed.mode)),
        Some(drift) => Err(format!("the rules were installed, but {}", drift.words)),
    }
}
