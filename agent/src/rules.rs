//! The rules that a pod is to have: what the plugin's ADD would install.

use std::path::Path;

use linkerd_cni::configuration::{Configuration, LogLevel};
use linkerd_cni::log::Log;
use linkerd_cni::pod::PodName;
use linkerd_cni::redirect;
use proxy_init::{Choice, Finding, HostNetwork, Install, Namespace, Verification};
use serde_json::{Value, json};

use crate::conflist::Entry;
use crate::pod::{self, Meshed};

/// What the plugin would install, by its own configuration, and its own requests for what the watch doesn't tell, with
/// this kubeconfig; none if it would leave the pod alone.
///
/// # Errors
/// What stands in the way, in the plugin's words.
pub fn wanted(entry: &Entry, kubeconfig: &Path, pod: &Meshed) -> Result<Option<Install>, String> {
    let mut configuration = entry.configuration("1.0.0");
    if let Some(path) = configuration.pointer_mut("/kubernetes/kubeconfig") {
        *path = Value::from(kubeconfig.to_string_lossy());
    }
    // As a runtime hands them over.
    if let Some(map) = configuration.as_object_mut() {
        let annotations = json!({"io.kubernetes.cri.pod-annotations": pod.metadata.annotations});
        map.insert("runtimeConfig".to_owned(), annotations);
    }
    let words = |error: linkerd_cni::error::Error| error.to_string();
    let configuration = Configuration::read(configuration.to_string().as_bytes()).map_err(words)?;
    if configuration.simulates() {
        return Ok(None);
    }
    let metadata = &pod.metadata;
    let (Some(namespace), Some(name)) = (&metadata.namespace, &metadata.name) else {
        return Err("the pod has no name".to_owned());
    };
    let name = PodName::in_arguments(&format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}"
    ))?;
    let Some(name) = name else { return Ok(None) };
    let mut log = Log::new(LogLevel::Warning);
    log.format = configuration.log_format();
    log.about.push(("pod", name.to_string()));
    let config = redirect::rules(&configuration, &name, pod::known(pod), &log).map_err(words)?;
    Ok(config.map(|config| {
        let mut install = configuration.install(config);
        // Whatever a pod's processes did to be taken for it.
        install.host_network = HostNetwork::Refuse;
        install
    }))
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
        /// The kind of the first difference, in `verify`'s words (docs/verify.md).
        reason: &'static str,
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
    Ok(found(&verdict, install))
}

fn found(verdict: &Verification, install: &Install) -> Found {
    if verdict.is_in_place() {
        return Found::InPlace;
    }
    let first = verdict.findings.first();
    // A family that has none of the rules is one finding; native mode's table is for all families.
    let has_none = verdict.findings.iter().all(|finding| finding.kind() == "no-rules");
    let families = if install.config.ipv6 { 2 } else { 1 };
    let is_all = verdict.findings.len() == families || first.is_some_and(|finding| finding.family == "inet");
    if verdict.others.is_empty() && has_none && is_all {
        return Found::None;
    }
    Found::Drifted {
        reason: first.map_or("other-backend", Finding::kind),
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
