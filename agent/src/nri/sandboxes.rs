//! The node's meshed pods, as the runtime tells of them, and the care for their rules.

use std::convert::Infallible;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use linkerd_cni::error::Error;
use pod::{Configuration, Given, PodInfo, PodName};
use prost::Message as _;
use proxy_init::{Install, Namespace, OperationNotice, Simulate};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tracing::{debug, error, info, warn};

use super::message::{Annotation, PodSandbox};
use crate::admin::Health;
use crate::care::{Care, Standing, Tracked};
use crate::rules;
use crate::settings::{Installation, Settings};
use crate::tell::{self, Subject, Teller};

/// A meshed pod, as the runtime describes it.
#[derive(Debug)]
pub(crate) struct Sandbox {
    id: String,
    name: PodName,
    uid: String,
    given: Given,
    network: PathBuf,
    /// Its size in bytes, about.
    size: usize,
}

impl Sandbox {
    /// None: the pod is none of the agent's business, for it isn't meshed or has the node's network. An error is about
    /// a fact that the runtime leaves out or gets wrong.
    pub(crate) fn read(pod: PodSandbox) -> Result<Option<Self>, Error> {
        let wrong = |reason: String| Error::Environment { variable: "the runtime:", reason };
        let annotations =
            pod.annotations.into_iter().map(|entry| Annotation::decode(entry).map(|it| (it.key, it.value)));
        let given = annotations.collect::<Result<Given, _>>();
        let given = given.map_err(|error| wrong(format!("a pod's annotations: {error}")))?;
        if !given.is_injected {
            return Ok(None);
        }
        let name = PodName::new(&pod.namespace, &pod.name).map_err(wrong)?;
        let namespaces = pod.linux.unwrap_or_default().namespaces;
        if namespaces.is_empty() {
            // Even with the node's network, a pod has a mount namespace of its own: the runtime couldn't look.
            return Err(wrong(format!("pod {name}: it doesn't tell its namespaces; the runtime's log may say why")));
        }
        let Some(network) = namespaces.into_iter().find(|namespace| namespace.r#type == "network") else {
            debug!("pod {name} is left alone: it has the node's network");
            return Ok(None);
        };
        if network.path.is_empty() {
            return Err(wrong(format!("pod {name}: it doesn't tell where the network namespace can be opened")));
        }
        let size = 1024 + pod.id.len() + pod.uid.len() + given.kept() + network.path.len();
        Ok(Some(Self { id: pod.id, name, uid: pod.uid, given, network: network.path.into(), size }))
    }
}

impl Subject for Sandbox {
    fn reference(&self) -> ObjectReference {
        tell::pod(self.name.namespace(), self.name.name(), &self.uid)
    }

    fn size(&self) -> usize {
        self.size
    }
}

impl fmt::Display for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pod {}", self.name)
    }
}

/// The configuration of the rules.
pub(crate) fn configuration(installation: &Installation) -> Result<Configuration, Error> {
    let wrong = |key: &str, reason: String| pod::Error::Configuration { key: key.to_owned(), reason };
    let mut entry = installation.entry().map_err(|reason| wrong("the agent's", reason))?;
    if entry.pod_info().is_none() {
        // Nothing else is possible here.
        entry.set("pod-info", "annotations");
    }
    let configuration = entry.read()?;
    if configuration.linkerd.pod_info == PodInfo::Api {
        let reason = "with --nri, the runtime tells of each pod, and the API server is never asked: \"annotations\" was expected";
        return Err(wrong("linkerd.pod-info", reason.to_owned()).into());
    }
    Ok(configuration)
}

/// All of the node's meshed pods.
pub(crate) struct Sandboxes<'a> {
    pub(crate) care: Care<'a, String, Sandbox>,
}

impl<'a> Sandboxes<'a> {
    pub(crate) fn new(settings: &'a Settings, health: &'a Health, teller: Teller) -> Self {
        Self { care: Care::new(settings, health, teller) }
    }

    /// The runtime has made a sandbox: the pod gets its rules, or the sandbox must fail.
    pub(crate) async fn run(&self, pod: PodSandbox, patience: Duration) -> Result<(), String> {
        let name = format!("{}/{}", pod.namespace, pod.name);
        let outcome = match Sandbox::read(pod) {
            Ok(None) => return Ok(()),
            Ok(Some(sandbox)) => timeout(patience, self.add(sandbox)).await.unwrap_or_else(|_| Err(late(patience))),
            Err(error) => Err(error),
        };
        let code = outcome.as_ref().map_or_else(Error::code, |()| 0);
        self.care.health.metrics.sandboxes.get_or_create(&[("code", code.to_string())]).inc();
        let outcome = outcome.map_err(|error| error.message());
        outcome.inspect_err(|reason| error!("pod {name}: its sandbox fails: {reason}"))
    }

    async fn add(&self, sandbox: Sandbox) -> Result<(), Error> {
        let Some(install) = self.wanted(&sandbox)? else {
            return Ok(());
        };
        let (path, work) = (sandbox.network.clone(), Arc::clone(&install));
        let installed = spawn_blocking(move || {
            let mut warnings = Vec::new();
            let tell = |notice: OperationNotice<'_>| {
                if let OperationNotice::Warning(warning) = notice {
                    warnings.push(warning.to_string());
                }
            };
            let installed = open(&path)?.run(|| work.run_with(tell))??;
            Ok::<_, Error>((installed, warnings))
        });
        let failed = |error: tokio::task::JoinError| Error::Stdin(error.into());
        let (installed, warnings) = installed.await.map_err(failed)??;
        let (rules, mode) = (installed.rules(), installed.mode);
        for warning in warnings {
            warn!("{sandbox}: {warning}");
        }
        info!("{sandbox}: {rules} rules are in place in {mode} mode, because {}", installed.reason);
        self.care.installed(sandbox.id.clone(), sandbox, install);
        Ok(())
    }

    /// The runtime is about to make a container: its pod's rules are there first, whenever its sandbox was made, or the
    /// container must not be made.
    pub(crate) async fn create(&self, pod: PodSandbox, patience: Duration) -> Result<(), String> {
        let name = format!("{}/{}", pod.namespace, pod.name);
        let outcome = match Sandbox::read(pod) {
            Ok(None) => return Ok(()),
            Ok(Some(sandbox)) => {
                let id = sandbox.id.clone();
                self.care.keep(id.clone(), sandbox, |_| false);
                let look = timeout(patience, self.look(&id, |standing| standing.is_known())).await;
                look.unwrap_or_else(|_| Err(late(patience).message()))
            }
            Err(error) => Err(error.message()),
        };
        outcome.inspect_err(|reason| error!("pod {name}: no container of it is made: {reason}"))
    }

    /// The runtime lists a pod. It is looked at, for the agent may have missed some change of it; its rules are still those of its
    /// start.
    pub(crate) fn list(&self, pod: PodSandbox) {
        match Sandbox::read(pod) {
            Ok(Some(sandbox)) => self.care.keep(sandbox.id.clone(), sandbox, |_| true),
            Ok(None) => {}
            Err(error) => warn!("{}", error.message()),
        }
    }

    /// Looks at pods as they are due, for ever.
    pub(crate) async fn watch(&self) -> Infallible {
        let look = async |due: Vec<String>| {
            for id in due {
                // The pod's standing has the outcome.
                let _ = self.look(&id, |_| false).await;
            }
        };
        self.care.watch(look).await
    }

    /// The rules that a pod which starts now should have; none: it stays as it is.
    fn wanted(&self, sandbox: &Sandbox) -> Result<Option<Arc<Install>>, Error> {
        let configuration = configuration(&self.care.settings.installation)?;
        let decision = pod::by_annotations(&configuration, &sandbox.name, sandbox.given.clone())?;
        let install = rules::install(&configuration, &sandbox.name, decision);
        if !configuration.linkerd.simulate {
            return Ok(install);
        }
        if let Some(install) = install {
            for line in install.simulate(Simulate::AllFamilies).lines() {
                info!("{sandbox}: {line}");
            }
        }
        Ok(None)
    }

    /// Looks at a pod's rules, unless it stands well enough, and heals the pod if need be.
    async fn look(&self, id: &String, is_enough: impl Fn(&Standing) -> bool) -> Result<(), String> {
        let look = async |sandbox: &Arc<Sandbox>, tracked: &mut Tracked| {
            if is_enough(&tracked.standing) {
                return Ok(tracked.standing.clone());
            }
            let path = sandbox.network.clone();
            let open = move || open(&path).map_err(|error| error.message());
            let today = async || self.wanted(sandbox).map_err(|error| error.message());
            let outcome = self.care.heal(sandbox, tracked, None, open, today).await;
            if outcome.is_err() && !sandbox.network.exists() {
                // The sandbox was stopped.
                self.care.remove(id);
            }
            outcome
        };
        self.care.attend(id, look).await
    }
}

/// Work is given up that takes longer: the runtime would go on without an answer, and the pod without rules.
fn late(patience: Duration) -> Error {
    Error::TryAgainLater { request: "the rules".to_owned(), reason: format!("they took longer than {patience:?}") }
}

/// Opens a pod's network namespace, unless it is the agent's own.
fn open(path: &Path) -> Result<Namespace, Error> {
    let reason = match linkerd_cni::plugin::open_another(path) {
        Ok(Some(namespace)) => return Ok(namespace),
        Ok(None) => {
            format!("{}: that is the agent's own, and the node's with hostNetwork: nothing was changed", path.display())
        }
        Err(reason) => reason,
    };
    Err(Error::Environment { variable: "the runtime:", reason: format!("the pod's network: {reason}") })
}
