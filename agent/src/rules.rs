//! The rules that a pod is to have: what the plugin's ADD would install.

use std::fmt;

use linkerd_cni::configuration::PodInfo;
use linkerd_cni::error::Error;
use linkerd_cni::pod::PodName;
use linkerd_cni::redirect::{self, Answers, Decision};
use proxy_init::{Choice, FindingKind, HostNetwork, Install, Namespace, Verification};
use tracing::{debug, warn};

use crate::api::Server;
use crate::conflist::Entry;
use crate::pod::{self, Meshed};

/// What the plugin would install, by its own configuration, what the watch told of the pod, and what else the plugin
/// would ask for; none if it would leave the pod alone.
///
/// # Errors
/// What stands in the way.
pub async fn wanted(entry: &Entry, server: &Server, pod: &Meshed) -> Result<Option<Install>, String> {
    let words = |error: Error| error.to_string();
    let configuration = entry.read().map_err(words)?;
    let metadata = &pod.metadata;
    let (Some(namespace), Some(name)) = (&metadata.namespace, &metadata.name) else {
        return Err("the pod has no name".to_owned());
    };
    let name = PodName::new(namespace, name)?;
    if configuration.simulates() || configuration.is_agent(&name) {
        return Ok(None);
    }
    let pod = pod::known(pod).ok_or("the API server's words about the pod make no sense: it has no containers")?;
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

/// How a pod's rules aren't as they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Drift {
    /// There are none.
    NoRules,
    /// By the first difference that was found.
    Finding(FindingKind),
    /// They are as they should be, and another mode has rules as well.
    OtherBackend,
}

impl Drift {
    /// The word for it in metrics and events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoRules => "none",
            Self::Finding(kind) => kind.as_str(),
            Self::OtherBackend => "other-backend",
        }
    }
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a look at a pod's rules came to.
#[derive(Debug)]
pub enum Found {
    /// All is as it should be.
    InPlace,
    /// There are no rules at all.
    None,
    /// There are others, and this is how they differ.
    Drifted {
        /// In a word.
        reason: Drift,
        /// All of them, for people.
        words: String,
    },
}

/// Compares a pod's rules with what they should be, and changes nothing.
///
/// # Errors
/// Why they can't be read.
pub fn verify(namespace: &Namespace, install: &Install) -> Result<Found, String> {
    let mut any = install.clone();
    // Whichever mode holds the rules: an older configuration, or upstream's plugin, may have set the pod up.
    any.mode = Choice::Auto;
    let verdict = namespace
        .run(|| any.verify())
        .and_then(|verdict| verdict)
        .map_err(|error| error.to_string())?;
    Ok(found(&verdict))
}

fn found(verdict: &Verification) -> Found {
    if verdict.is_in_place() {
        return Found::InPlace;
    }
    if !verdict.finds_rules {
        return Found::None;
    }
    Found::Drifted {
        reason: verdict
            .findings
            .first()
            .map_or(Drift::OtherBackend, |finding| Drift::Finding(finding.kind())),
        words: verdict.to_string(),
    }
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
        Found::InPlace => Ok(format!("{} rules in {} mode", installed.rules(), installed.mode)),
        Found::None => Err("the rules were installed, and gone at once".to_owned()),
        Found::Drifted { words, .. } => Err(format!("the rules were installed, but {words}")),
    }
}
