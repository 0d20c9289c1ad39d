//! The rules that a pod is to have, which are those that the plugin's ADD would install, and how its rules differ from
//! them.

use std::sync::Arc;

use ::pod::{
    Answers, Configuration, Decision, Error, PodInfo, PodName, bounded, by_annotations, by_pod, needs_api_server_ports,
};
use proxy_init::{
    Config, Finding, FindingKind, HostNetwork, Install, ModeChoice, Namespace, Recognized, Stamp, Verification,
    recognize,
};
use tracing::{debug, warn};

use crate::api::Server;
use crate::conflist::Entry;
use crate::pod::Meshed;

/// The longest that the words for a difference may be, in bytes: in its network namespace, a pod may add as many rules
/// as it likes.
const LONGEST_WORDS: usize = 900;

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
            reason: first.map_or_else(|| OTHER_BACKEND.to_owned(), |finding| finding.kind().to_string()),
            words: bounded(findings.chain(others).collect::<Vec<_>>().join("; "), LONGEST_WORDS),
            is_loss: verdict.findings.iter().all(is_loss) && verdict.others.is_empty(),
            config: verdict.other_config,
        })
    }

    /// Where a pod's own linkerd-init and the plugin have both made rules, in modes in which the one doesn't see the
    /// other's.
    fn of_two(recognized: &Recognized) -> Option<Self> {
        let (first, second) = recognized.mode.zip(recognized.others.first())?;
        Some(Self {
            reason: OTHER_BACKEND.to_owned(),
            words: format!(
                "there are rules in {first} and in {second} mode: the pod's own linkerd-init and the plugin made some, for \
                 the plugin goes by annotations, which don't name init containers. A connection that either redirects goes \
                 to the proxy. Set cniEnabled in Linkerd's values, so that its injector adds no linkerd-init; or the \
                 plugin's iptables-mode to that of linkerd-init, which then replaces the plugin's rules; or its pod-info to \
                 \"api\""
            ),
            config: None,
            is_loss: false,
        })
    }
}

/// The reason where another mode has rules, too.
const OTHER_BACKEND: &str = "other-backend";

/// The outcome of a look at a pod's rules.
pub(crate) struct Verified {
    /// The differences from what they should be.
    pub(crate) drift: Option<Drift>,
    /// They are as they should be, and will be found so as long as this is the same.
    pub(crate) stamp: Option<Stamp>,
}

/// Compares a pod's rules with what they should be. Changes nothing. The rules are read unless the stamp is the one
/// that was `known`: reading those of 110 untouched pods takes 2.2 ms of processor time for each pod and minute.
pub(crate) fn verify(namespace: &Namespace, wanted: &Wanted, known: Option<Stamp>) -> Result<Verified, String> {
    let verified = namespace.run(|| match wanted {
        Wanted::Plugins(install) => {
            let stamp = Stamp::now();
            if stamp.is_some() && stamp == known {
                return Ok(Verified { drift: None, stamp });
            }
            let mut any = Install::clone(install);
            // Whichever mode holds the rules: an older configuration, or upstream's plugin, may have set the pod up.
            any.mode = ModeChoice::Auto;
            let verdict = proxy_init::verify(&any)?;
            let stamp = stamp.filter(|_| verdict.is_alone);
            Ok(Verified { drift: Drift::of(verdict), stamp })
        }
        Wanted::Inits => recognize(None, None).map(|seen| Verified { drift: Drift::of_two(&seen), stamp: None }),
        Wanted::Any => Ok(Verified { drift: None, stamp: None }),
    });
    verified.and_then(|verified| verified).map_err(|error| error.to_string())
}

/// Installs a pod's rules, and sees that they are in place. Returns which.
pub(crate) fn repair(namespace: &Namespace, install: Arc<Install>) -> Result<String, String> {
    let installed = namespace.run(|| install.run()).and_then(|installed| installed);
    let installed = installed.map_err(|error| error.to_string())?;
    match verify(namespace, &Wanted::Plugins(install), None)?.drift {
        None => Ok(format!("{} rules in {} mode", installed.rules(), installed.mode)),
        Some(drift) => Err(format!("the rules were installed, but {}", drift.words)),
    }
}
