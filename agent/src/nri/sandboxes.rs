//! The node's meshed pods, as the runtime tells of them, and what becomes of their rules.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use pod::{Configuration, Given, PodInfo, PodName};
use prost::Message as _;
use proxy_init::{Install, Namespace, OperationNotice, Simulate};
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::{sleep_until, timeout};
use tracing::{debug, error, info, warn};

use super::message::{Annotation, PodSandbox};
use crate::admin::Health;
use crate::events::Events;
use crate::netns::Identity;
use crate::rules::{self, Wanted};
use crate::schedule::{NEVER, Schedule};
use crate::settings::{Installation, Settings};
use crate::tracked::{self, Standing, Tracked};

/// How many bytes all sandboxes may have that are kept: some thousands, unless their annotations are long. kubelet runs 110
/// pods, or some hundred where it is told to.
const MOST: usize = 16 << 20;
const MEMORY: &str = "the node's meshed pods have more annotations than the agent keeps";

/// Why a pod's sandbox, or a container of it, can't be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// As the plugin would end with it: docs/cni.md has each.
    pub(crate) code: u32,
    /// For `kubectl describe`.
    pub(crate) message: String,
}

impl Refusal {
    fn new(code: u32, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, message }
    }
}

impl From<pod::Error> for Refusal {
    fn from(error: pod::Error) -> Self {
        Self::new(error.code(), error.message())
    }
}

impl From<linkerd_cni::error::Error> for Refusal {
    fn from(error: linkerd_cni::error::Error) -> Self {
        Self::new(error.code(), error.message())
    }
}

impl From<proxy_init::Error> for Refusal {
    fn from(error: proxy_init::Error) -> Self {
        linkerd_cni::error::Error::from(error).into()
    }
}

/// A meshed pod, as the runtime describes it.
#[derive(Debug, Clone)]
pub(crate) struct Sandbox {
    id: String,
    name: PodName,
    uid: String,
    given: Given,
    network: PathBuf,
    /// How many bytes it has, about.
    size: usize,
}

impl Sandbox {
    /// None: the pod is none of the agent's business, for it isn't meshed or has the node's network.
    pub(crate) fn read(pod: PodSandbox) -> Result<Option<Self>, Refusal> {
        let annotations =
            pod.annotations.into_iter().map(|entry| Annotation::decode(entry).map(|it| (it.key, it.value)));
        let given = annotations.collect::<Result<Given, _>>();
        let given = given.map_err(|error| Refusal::new(4, format!("the runtime: a pod's annotations: {error}")))?;
        let size = 1024 + pod.id.len() + pod.uid.len() + given.kept();
        if !given.is_injected {
            return Ok(None);
        }
        let name =
            PodName::new(&pod.namespace, &pod.name).map_err(|what| Refusal::new(4, format!("the runtime: {what}")))?;
        let namespaces = pod.linux.unwrap_or_default().namespaces;
        if namespaces.is_empty() {
            // Even with the node's network, a pod has a mount namespace of its own: the runtime couldn't look.
            let message = format!("pod {name}: the runtime doesn't tell its namespaces; its log may say why");
            return Err(Refusal::new(4, message));
        }
        let Some(network) = namespaces.into_iter().find(|namespace| namespace.r#type == "network") else {
            debug!("pod {name} is left alone: it has the node's network");
            return Ok(None);
        };
        if network.path.is_empty() {
            let message = format!("pod {name}: the runtime doesn't tell where its network namespace can be opened");
            return Err(Refusal::new(4, message));
        }
        Ok(Some(Self {
            id: pod.id,
            name,
            uid: pod.uid,
            given,
            size: size + network.path.len(),
            network: network.path.into(),
        }))
    }

    /// The pod, as events name it.
    fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(self.name.name().to_owned()),
            namespace: Some(self.name.namespace().to_owned()),
            uid: Some(self.uid.clone()),
            ..ObjectReference::default()
        }
    }
}

impl fmt::Display for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pod {}", self.name)
    }
}

/// Returns true if another sandbox is kept beside these. If not, logs so.
pub(crate) fn fits<'a>(kept: impl Iterator<Item = &'a Sandbox>, other: &Sandbox) -> bool {
    let fits = kept.map(|sandbox| sandbox.size).sum::<usize>() + other.size <= MOST;
    if !fits {
        warn!("{other} is not looked at: {MEMORY}");
    }
    fits
}

/// The configuration of the rules.
pub(crate) fn configuration(installation: &Installation) -> Result<Configuration, Refusal> {
    let mut entry = installation.entry().map_err(|reason| Refusal::new(7, reason))?;
    if entry.pod_info().is_none() {
        // Nothing else is possible here.
        entry.set("pod-info", "annotations");
    }
    let configuration = entry.read()?;
    if configuration.linkerd.pod_info == PodInfo::Api {
        let message = "network configuration: linkerd.pod-info: with --nri, the runtime tells of each pod, and the API server \
                       is never asked: \"annotations\" was expected";
        return Err(Refusal::new(7, message));
    }
    Ok(configuration)
}

/// All of the node's meshed pods.
pub(crate) struct Sandboxes<'a> {
    settings: &'a Settings,
    health: &'a Health,
    /// Where the agent may publish some.
    events: Option<Events>,
    own: Identity,
    /// When pods are looked at again; never, if that isn't asked for.
    schedule: Schedule,
    all: RefCell<BTreeMap<String, (Arc<Sandbox>, Tracked)>>,
    /// Some pod is to be looked at now.
    news: Notify,
}

impl<'a> Sandboxes<'a> {
    /// None yet.
    pub(crate) fn new(settings: &'a Settings, health: &'a Health, events: Option<Events>) -> Result<Self, String> {
        let own = "/proc/self/ns/net";
        Ok(Self {
            settings,
            health,
            events,
            own: Identity::at(Path::new(own)).map_err(|error| format!("{own}: {error}"))?,
            schedule: Schedule::new(Instant::now(), settings.verify_every()),
            all: RefCell::default(),
            news: Notify::new(),
        })
    }

    /// The runtime has made a sandbox: the pod gets its rules.
    pub(crate) async fn run(&self, pod: PodSandbox, patience: Duration) -> Result<(), Refusal> {
        let name = format!("{}/{}", pod.namespace, pod.name);
        let outcome = match Sandbox::read(pod) {
            Ok(None) => return Ok(()),
            Ok(Some(sandbox)) => within(patience, self.add(sandbox)).await,
            Err(refusal) => Err(refusal),
        };
        let code = outcome.as_ref().map_or_else(|refusal| refusal.code, |()| 0);
        self.health.metrics.ended("ADD".to_owned(), code);
        outcome.inspect_err(|refusal| error!("pod {name}: its sandbox fails: {}", refusal.message))
    }

    async fn add(&self, sandbox: Sandbox) -> Result<(), Refusal> {
        let Some(install) = self.wanted(&sandbox)? else {
            return Ok(());
        };
        let (path, own, work) = (sandbox.network.clone(), self.own, Arc::clone(&install));
        let installed = spawn_blocking(move || {
            let mut warnings = Vec::new();
            let tell = |notice: OperationNotice<'_>| {
                if let OperationNotice::Warning(warning) = notice {
                    warnings.push(warning.to_string());
                }
            };
            let installed = open(&path, own)?.run(|| work.run_with(tell))??;
            Ok::<_, Refusal>((installed, warnings))
        });
        let installed = installed.await.map_err(|error| Refusal::new(100, error.to_string()));
        let (installed, warnings) = installed??;
        let (rules, mode) = (installed.rules(), installed.mode);
        for warning in warnings {
            warn!("{sandbox}: {warning}");
        }
        info!("{sandbox}: {rules} rules are in place in {mode} mode, because {}", installed.reason);
        let due = self.schedule.next(&sandbox.id, Instant::now());
        self.keep(sandbox.into(), Tracked::installed(install, due));
        self.count();
        Ok(())
    }

    /// The runtime is about to make a container: its pod's rules are there first, whenever its sandbox was made.
    pub(crate) async fn create(&self, pod: PodSandbox, patience: Duration) -> Result<(), Refusal> {
        if let Some((_, tracked)) = self.all.borrow().get(&pod.id)
            && !matches!(tracked.standing, Standing::New | Standing::NotKnown(_))
        {
            return Ok(());
        }
        let name = format!("{}/{}", pod.namespace, pod.name);
        let outcome = match Sandbox::read(pod) {
            Ok(None) => return Ok(()),
            Ok(Some(sandbox)) => {
                let id = sandbox.id.clone();
                if !self.all.borrow().contains_key(&id) {
                    self.keep(sandbox.into(), Tracked::default());
                }
                let look = async { self.look(&id).await.map_err(|reason| Refusal::new(100, reason)) };
                within(patience, look).await
            }
            Err(refusal) => Err(refusal),
        };
        self.count();
        outcome.inspect_err(|refusal| error!("pod {name}: no container of it is made: {}", refusal.message))
    }

    /// The runtime has removed a sandbox.
    pub(crate) fn remove(&self, id: &str) {
        self.all.borrow_mut().remove(id);
        self.count();
    }

    /// These are all of the runtime's. Each is looked at: the agent may have missed what became of it.
    pub(crate) fn synchronize(&self, listed: Vec<Sandbox>) {
        let mut before = self.all.take();
        for sandbox in listed {
            // Its rules are still those of its start.
            let known = before.remove(&sandbox.id).map(|(_, tracked)| tracked.anew());
            self.keep(sandbox.into(), known.unwrap_or_default());
        }
        self.count();
    }

    fn keep(&self, sandbox: Arc<Sandbox>, tracked: Tracked) {
        let mut all = self.all.borrow_mut();
        if fits(all.values().map(|(kept, _)| &**kept), &sandbox) {
            all.insert(sandbox.id.clone(), (sandbox, tracked));
            self.news.notify_one();
        }
    }

    /// Looks at pods as they are due, for ever.
    pub(crate) async fn watch(&self) -> std::convert::Infallible {
        loop {
            let due = self.all.borrow().values().map(|(_, tracked)| tracked.due).min();
            let due = due.unwrap_or_else(|| Instant::now() + NEVER);
            tokio::select! {
                () = self.news.notified() => continue,
                () = sleep_until(due.into()) => {}
            }
            let start = Instant::now();
            for id in self.due(start) {
                // The pod's standing has the outcome.
                let _ = self.look(&id).await;
            }
            self.health.metrics.round.observe(start.elapsed().as_secs_f64());
            self.count();
        }
    }

    fn due(&self, now: Instant) -> Vec<String> {
        let all = self.all.borrow();
        let due = all.iter().filter(|(_, (_, tracked))| tracked.due <= now);
        due.map(|(id, _)| id.clone()).collect()
    }

    fn count(&self) {
        let all = self.all.borrow();
        tracked::count(all.values().map(|(_, tracked)| tracked), &self.health.metrics);
    }

    /// The rules that a pod which starts now should have; none: it stays as it is.
    fn wanted(&self, sandbox: &Sandbox) -> Result<Option<Arc<Install>>, Refusal> {
        let configuration = configuration(&self.settings.installation)?;
        let decision = pod::by_annotations(&configuration, &sandbox.name, sandbox.given.clone())?;
        let install = rules::install(&configuration, &sandbox.name, decision);
        if !configuration.linkerd.simulate {
            return Ok(install);
        }
        if let Some(install) = install {
            for line in install.simulate(Simulate::AllFamilies).lines() {
                info!("pod {}: {line}", sandbox.name);
            }
        }
        Ok(None)
    }

    /// Looks at a pod's rules, and does what is to be done about them.
    async fn look(&self, id: &str) -> Result<(), String> {
        let Some((sandbox, mut tracked)) = self.all.borrow().get(id).cloned() else {
            return Err(format!("it was removed, or {MEMORY}"));
        };
        let (path, own) = (sandbox.network.clone(), self.own);
        let open = move || open(&path, own).map_err(|refusal| refusal.message);
        let today = async || {
            let install = self.wanted(&sandbox).map_err(|refusal| refusal.message)?;
            Ok(install.map_or(Wanted::Any, Wanted::Plugins))
        };
        let (settings, metrics) = (self.settings, &self.health.metrics);
        let outcome = tracked.heal(&*sandbox, false, settings, metrics, open, today).await;
        if outcome.is_err() && !sandbox.network.exists() {
            self.all.borrow_mut().remove(id);
            let path = sandbox.network.display();
            return Err(format!("network namespace {path}: it is gone: the sandbox was stopped"));
        }
        let outcome = outcome.map(|(standing, event)| {
            if let (Some(event), Some(events)) = (event, self.events.clone()) {
                let about = sandbox.reference();
                // The runtime doesn't wait for it.
                tokio::spawn(async move { events.publish(&about, &event).await });
            }
            standing
        });
        let refused = outcome.clone().map(drop);
        tracked.note(&*sandbox, outcome, self.schedule.next(&id, Instant::now()));
        let mut all = self.all.borrow_mut();
        // It may have been removed meanwhile.
        if tracked.standing == Standing::Left {
            all.remove(id);
        } else if let Some(known) = all.get_mut(id) {
            known.1 = tracked;
        }
        refused
    }
}

/// Gives work up that takes longer: the runtime would go on without an answer, and the pod without rules.
async fn within(patience: Duration, work: impl Future<Output = Result<(), Refusal>>) -> Result<(), Refusal> {
    let late = format!("the rules took longer than {patience:?}; try again later");
    let outcome = timeout(patience, work).await;
    outcome.unwrap_or_else(|_| Err(Refusal::new(11, late)))
}

/// Opens a pod's network namespace, unless it is the agent's own.
fn open(path: &Path, own: Identity) -> Result<Namespace, Refusal> {
    let namespace = Namespace::open(path)?;
    let invalid = |reason: String| Refusal::new(4, format!("network namespace {}: {reason}", path.display()));
    let identity = Identity::of(&namespace).map_err(|errno| invalid(format!("fstat: {errno}")))?;
    if identity == own {
        return Err(invalid(
            "that is the agent's own, and the node's with hostNetwork: nothing was changed".to_owned(),
        ));
    }
    Ok(namespace)
}
