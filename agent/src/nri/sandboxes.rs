//! The node's meshed pods, as the runtime tells of them, and the care for their rules.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use linkerd_cni::error::Error;
use pod::{Configuration, Given, PodInfo, PodName};
use prost::Message as _;
use proxy_init::{Install, Namespace, OperationNotice, Simulate};
use tokio::sync::{Mutex, Notify};
use tokio::task::spawn_blocking;
use tokio::time::{sleep_until, timeout};
use tracing::{debug, error, info, warn};

use super::message::{Annotation, PodSandbox};
use crate::admin::Health;
use crate::events::{self, Events};
use crate::rules::{self, Wanted};
use crate::schedule::Schedule;
use crate::settings::{Installation, Settings};
use crate::tracked::{self, Standing, Tracked};

/// How many bytes all sandboxes may have that are kept: some thousands, unless their annotations are long. kubelet runs 110
/// pods, or some hundred where it is told to.
const MOST: usize = 16 << 20;
const MEMORY: &str = "the node's meshed pods have more annotations than the agent keeps";

/// A meshed pod, as the runtime describes it.
#[derive(Debug)]
pub(crate) struct Sandbox {
    id: String,
    name: PodName,
    uid: String,
    given: Given,
    network: PathBuf,
    /// How many bytes it has, about.
    size: usize,
    /// Held by a look: two at the same moment would both find the rules missing, and the later repair would undo, untold,
    /// what somebody changed after the earlier one.
    turn: Mutex<()>,
}

impl Sandbox {
    /// None: the pod is none of the agent's business, for it isn't meshed or has the node's network. An error is about a fact
    /// that the runtime leaves out or gets wrong.
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
        Ok(Some(Self {
            id: pod.id,
            name,
            uid: pod.uid,
            given,
            network: network.path.into(),
            size,
            turn: Mutex::default(),
        }))
    }
}

impl fmt::Display for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pod {}", self.name)
    }
}

/// Returns true if another one is kept beside these. If not, the log says so.
pub(crate) fn fits<'a>(kept: impl Iterator<Item = &'a Sandbox>, other: &Sandbox) -> bool {
    let fits = kept.map(|sandbox| sandbox.size).sum::<usize>() + other.size <= MOST;
    if !fits {
        warn!("{other} is not looked at: {MEMORY}");
    }
    fits
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
    settings: &'a Settings,
    health: &'a Health,
    /// Where the agent may publish some.
    events: Option<Events>,
    /// When pods are looked at again; never, if that isn't asked for.
    schedule: Schedule,
    all: RefCell<BTreeMap<String, (Arc<Sandbox>, Tracked)>>,
    /// Some pod is to be looked at now.
    news: Notify,
}

impl<'a> Sandboxes<'a> {
    pub(crate) fn new(settings: &'a Settings, health: &'a Health, events: Option<Events>) -> Self {
        let schedule = Schedule::new(Instant::now(), settings.verify_every());
        Self { settings, health, events, schedule, all: RefCell::default(), news: Notify::new() }
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
        self.health.metrics.ended("ADD".to_owned(), code);
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
        let due = self.schedule.next(&sandbox.id, Instant::now());
        self.keep(sandbox.into(), Tracked::installed(install, due));
        self.count();
        Ok(())
    }

    /// The runtime is about to make a container: its pod's rules are there first, whenever its sandbox was made, or the
    /// container must not be made.
    pub(crate) async fn create(&self, pod: PodSandbox, patience: Duration) -> Result<(), String> {
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
                let look = timeout(patience, self.look(&id)).await;
                look.unwrap_or_else(|_| Err(late(patience).message()))
            }
            Err(error) => Err(error.message()),
        };
        self.count();
        outcome.inspect_err(|reason| error!("pod {name}: no container of it is made: {reason}"))
    }

    /// The runtime has removed a sandbox.
    pub(crate) fn remove(&self, id: &str) {
        self.all.borrow_mut().remove(id);
        self.count();
    }

    /// These are all of the runtime's. Each is looked at: the agent may have missed some change of it.
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
            let due = tracked::next(&self.all.borrow());
            tokio::select! {
                () = self.news.notified() => continue,
                () = sleep_until(due.into()) => {}
            }
            let start = Instant::now();
            let due: Vec<String> = tracked::due(&self.all.borrow(), start);
            for id in due {
                // The pod's standing has the outcome.
                let _ = self.look(&id).await;
            }
            self.health.metrics.round.observe(start.elapsed().as_secs_f64());
            self.count();
        }
    }

    fn count(&self) {
        tracked::count(&self.all.borrow(), &self.health.metrics);
    }

    /// The rules that a pod which starts now should have; none: it stays as it is.
    fn wanted(&self, sandbox: &Sandbox) -> Result<Option<Arc<Install>>, Error> {
        let configuration = configuration(&self.settings.installation)?;
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

    /// Looks at a pod's rules, and heals the pod if need be.
    async fn look(&self, id: &str) -> Result<(), String> {
        let removed = || format!("it was removed, or {MEMORY}");
        let known = self.all.borrow().get(id).map(|(sandbox, tracked)| (Arc::clone(sandbox), tracked.due));
        let (sandbox, due) = known.ok_or_else(removed)?;
        let _turn = sandbox.turn.lock().await;
        let (_, mut tracked) = self.all.borrow().get(id).cloned().ok_or_else(removed)?;
        if tracked.due != due {
            // Another look ended while this one waited.
            return match tracked.standing {
                Standing::NotKnown(reason) => Err(reason),
                _ => Ok(()),
            };
        }
        let path = sandbox.network.clone();
        let open = move || open(&path).map_err(|error| error.message());
        let today = async || {
            let install = self.wanted(&sandbox).map_err(|error| error.message())?;
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
                let about = events::pod(sandbox.name.namespace(), sandbox.name.name(), &sandbox.uid);
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
