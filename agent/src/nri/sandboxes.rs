//! The node's meshed pods, as the runtime tells of them, and what becomes of their rules.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::EventType;
use linkerd_cni::annotations::{self, Given};
use linkerd_cni::configuration::{Configuration, PodInfo};
use linkerd_cni::error::Error;
use linkerd_cni::pod::PodName;
use linkerd_cni::redirect;
use prometheus_client::metrics::counter::Counter;
use proxy_init::{Config, Install, Namespace, OperationNotice, Simulate};
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::{sleep_until, timeout};
use tracing::{debug, error, info, warn};

use super::message::PodSandbox;
use crate::admin::Health;
use crate::drift::{self, Drift, Reason, Told};
use crate::events::Events;
use crate::netns::Identity;
use crate::rules::{self, Wanted};
use crate::schedule::{NEVER, PAUSE, Schedule};
use crate::settings::{Installation, Mode, OnDrift, Settings};
use crate::standing::{self, Standing};

/// How many bytes all sandboxes may have that are kept: some thousands, unless their annotations are long. kubelet runs 110
/// pods, or some hundred where it is told to.
const MOST: usize = 16 << 20;
const MEMORY: &str = "the node's meshed pods have more annotations than the agent keeps";

/// Why a pod's sandbox, or a container of it, can't be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// As the plugin would end with it: docs/cni.md has each.
    pub code: u32,
    /// For `kubectl describe`.
    pub message: String,
}

impl Refusal {
    fn new(code: u32, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, message }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.message())
    }
}

impl From<proxy_init::Error> for Refusal {
    fn from(error: proxy_init::Error) -> Self {
        Error::from(error).into()
    }
}

/// What the runtime tells of a meshed pod.
#[derive(Debug, Clone)]
pub struct Sandbox {
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
    ///
    /// # Errors
    /// What the runtime doesn't tell of a meshed pod, or tells wrong.
    pub fn read(pod: PodSandbox) -> Result<Option<Self>, Refusal> {
        let counting = pod.annotations.iter().filter(|(key, _)| annotations::counts(key));
        let size = 1024 + pod.id.len() + pod.uid.len() + counting.map(|(_, value)| value.len()).sum::<usize>();
        let given: Given = pod.annotations.into_iter().collect();
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

/// The sandboxes that the runtime lists, as many as are kept.
#[derive(Debug, Default)]
pub struct List {
    sandboxes: Vec<Sandbox>,
    size: usize,
}

impl Extend<Sandbox> for List {
    fn extend<I: IntoIterator<Item = Sandbox>>(&mut self, sandboxes: I) {
        for sandbox in sandboxes {
            self.size += sandbox.size;
            if self.size <= MOST {
                self.sandboxes.push(sandbox);
            }
        }
    }
}

/// The configuration of the rules.
///
/// # Errors
/// What is wrong with it.
pub fn configuration(installation: &Installation) -> Result<Configuration, Refusal> {
    let entry = installation.entry().map_err(|reason| Refusal::new(7, reason))?;
    let configuration = entry.read()?;
    if configuration.pod_info() == PodInfo::Api {
        let message = "network configuration: linkerd.pod-info: with --nri, the runtime tells of each pod, and the API server \
                       is never asked: \"annotations\" was expected";
        return Err(Refusal::new(7, message));
    }
    Ok(configuration)
}

/// A sandbox, and what was found out about it.
struct Tracked {
    sandbox: Arc<Sandbox>,
    /// The rules of its start, once they are known.
    wanted: Option<Arc<Install>>,
    standing: Standing,
    /// How it stands with these rules.
    start: Standing,
    /// When to look again.
    due: Instant,
    pause: Duration,
    /// What was told of its drift last.
    told: Told,
    /// What was told of its healing last.
    told_healed: Told,
}

impl Tracked {
    /// One that is to be looked at now.
    fn new(sandbox: Sandbox) -> Self {
        Self {
            sandbox: Arc::new(sandbox),
            wanted: None,
            standing: Standing::New,
            start: Standing::InPlace,
            due: Instant::now(),
            pause: PAUSE.0,
            told: Told::default(),
            told_healed: Told::default(),
        }
    }
}

/// What a look at a pod's rules came to.
enum Look {
    InPlace,
    /// They are whole, and of this config: that of the pod's start.
    Earlier(Config),
    Drifted(Drift),
    Repaired {
        before: Drift,
        rules: String,
        took: Duration,
    },
    /// The sandbox was stopped.
    Gone,
}

/// All of the node's meshed pods.
pub struct Sandboxes<'a> {
    settings: &'a Settings,
    health: &'a Health,
    /// Where the agent may publish some.
    events: Option<Events>,
    own: Identity,
    /// When pods are looked at again; never, if that isn't asked for.
    schedule: Option<Schedule>,
    all: RefCell<BTreeMap<String, Tracked>>,
    /// Some pod is to be looked at now.
    news: Notify,
}

impl<'a> Sandboxes<'a> {
    /// None yet.
    ///
    /// # Errors
    /// Why the agent's own network namespace isn't known.
    pub fn new(settings: &'a Settings, health: &'a Health, events: Option<Events>) -> Result<Self, String> {
        let own = "/proc/self/ns/net";
        Ok(Self {
            settings,
            health,
            events,
            own: Identity::at(Path::new(own)).map_err(|error| format!("{own}: {error}"))?,
            schedule: settings.verify_every.map(|every| Schedule::new(Instant::now(), every)),
            all: RefCell::default(),
            news: Notify::new(),
        })
    }

    /// The runtime has made a sandbox: the pod gets its rules.
    ///
    /// # Errors
    /// Why it has none: the sandbox must fail.
    pub async fn run(&self, pod: PodSandbox, patience: Duration) -> Result<(), Refusal> {
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
        let installed = in_background(move || {
            let mut warnings = Vec::new();
            let tell = |notice: OperationNotice<'_>| {
                if let OperationNotice::Warning(warning) = notice {
                    warnings.push(warning.to_string());
                }
            };
            let installed = open(&path, own)?.run(|| work.run_with(tell))??;
            Ok::<_, Refusal>((installed, warnings))
        });
        let (installed, warnings) = installed.await??;
        let (name, rules, mode) = (&sandbox.name, installed.rules(), installed.mode);
        for warning in warnings {
            warn!("pod {name}: {warning}");
        }
        info!(
            "pod {name}: {rules} rules are in place in {mode} mode, because {}",
            installed.reason
        );
        let mut tracked = Tracked::new(sandbox);
        tracked.wanted = Some(install);
        tracked.standing = Standing::InPlace;
        tracked.due = self.next(&tracked.sandbox.id);
        self.keep(tracked);
        self.count();
        Ok(())
    }

    /// The runtime is about to make a container: its pod's rules are there first, whenever its sandbox was made.
    ///
    /// # Errors
    /// Why they aren't: the container must not be made.
    pub async fn create(&self, pod: PodSandbox, patience: Duration) -> Result<(), Refusal> {
        let is_seen = |tracked: &Tracked| !matches!(tracked.standing, Standing::New | Standing::NotKnown(_));
        if self.all.borrow().get(&pod.id).is_some_and(is_seen) {
            return Ok(());
        }
        let name = format!("{}/{}", pod.namespace, pod.name);
        let outcome = match Sandbox::read(pod) {
            Ok(None) => return Ok(()),
            Ok(Some(sandbox)) => {
                let id = sandbox.id.clone();
                if !self.all.borrow().contains_key(&id) {
                    self.keep(Tracked::new(sandbox));
                }
                within(patience, self.look(&id)).await
            }
            Err(refusal) => Err(refusal),
        };
        self.count();
        outcome.inspect_err(|refusal| error!("pod {name}: no container of it is made: {}", refusal.message))
    }

    /// The runtime has removed a sandbox.
    pub fn remove(&self, id: &str) {
        self.all.borrow_mut().remove(id);
        self.count();
    }

    /// These are all of the runtime's. Each is looked at: the agent may have missed what became of it.
    pub fn synchronize(&self, listed: List) {
        if listed.size > MOST {
            warn!("{MEMORY}, and some are not looked at");
        }
        let mut before = self.all.take();
        for sandbox in listed.sandboxes {
            let mut tracked = Tracked::new(sandbox);
            if let Some(known) = before.remove(&tracked.sandbox.id) {
                // Its rules are still those of its start.
                tracked.wanted = known.wanted;
                tracked.start = known.start;
                tracked.told = known.told;
                tracked.told_healed = known.told_healed;
            }
            self.keep(tracked);
        }
        self.count();
    }

    fn keep(&self, tracked: Tracked) {
        let mut all = self.all.borrow_mut();
        let size: usize = all.values().map(|tracked| tracked.sandbox.size).sum();
        if size + tracked.sandbox.size > MOST {
            warn!("pod {} is not looked at again: {MEMORY}", tracked.sandbox.name);
            return;
        }
        all.insert(tracked.sandbox.id.clone(), tracked);
        self.news.notify_one();
    }

    /// Looks at pods as they are due, for ever.
    pub async fn watch(&self) -> std::convert::Infallible {
        loop {
            let due = self.all.borrow().values().map(|tracked| tracked.due).min();
            let due = due.unwrap_or_else(|| Instant::now() + NEVER);
            tokio::select! {
                () = self.news.notified() => continue,
                () = sleep_until(due.into()) => {}
            }
            let start = Instant::now();
            let is_due = |(_, tracked): &(&String, &Tracked)| tracked.due <= start;
            let due: Vec<String> = self
                .all
                .borrow()
                .iter()
                .filter(is_due)
                .map(|(id, _)| id.clone())
                .collect();
            for id in due {
                // What came of it is in its standing.
                let _ = self.look(&id).await;
            }
            self.health.metrics.verified(start.elapsed());
            self.count();
        }
    }

    fn count(&self) {
        let all = self.all.borrow();
        standing::tell(all.values().map(|tracked| &tracked.standing), &self.health.metrics);
    }

    fn next(&self, id: &str) -> Instant {
        let now = Instant::now();
        self.schedule.map_or(now + NEVER, |schedule| schedule.next(&id, now))
    }

    /// The rules that a pod which starts now should have; none: it stays as it is.
    fn wanted(&self, sandbox: &Sandbox) -> Result<Option<Arc<Install>>, Refusal> {
        let configuration = configuration(&self.settings.installation)?;
        let decision = redirect::by_annotations(&configuration, &sandbox.name, sandbox.given.clone())?;
        let install = rules::install(&configuration, &sandbox.name, decision);
        if !configuration.simulates() {
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
    async fn look(&self, id: &str) -> Result<(), Refusal> {
        let Some((sandbox, wanted, is_first)) = self.all.borrow().get(id).map(|tracked| {
            let is_first = tracked.wanted.is_none();
            (Arc::clone(&tracked.sandbox), tracked.wanted.clone(), is_first)
        }) else {
            return Err(Refusal::new(100, format!("it was removed, or {MEMORY}")));
        };
        let wanted = match wanted {
            Some(wanted) => Ok(Some(wanted)),
            None => self.wanted(&sandbox),
        };
        let (wanted, outcome) = match wanted {
            Ok(Some(wanted)) => {
                let (sandbox, own, work) = (Arc::clone(&sandbox), self.own, Arc::clone(&wanted));
                let (mode, on_drift) = (self.settings.mode, self.settings.on_drift);
                let failures = self.health.metrics.repair_failures.clone();
                let look = move || look(&sandbox.network, own, work, is_first, mode, on_drift, &failures);
                let look = in_background(look);
                (Some(wanted), look.await.flatten())
            }
            Ok(None) => {
                self.all.borrow_mut().remove(id);
                return Ok(());
            }
            Err(refusal) => (None, Err(refusal)),
        };
        let mut all = self.all.borrow_mut();
        let gone = || {
            let path = sandbox.network.display();
            Refusal::new(
                100,
                format!("network namespace {path}: it is gone: the sandbox was stopped"),
            )
        };
        let Some(tracked) = all.get_mut(id) else {
            // Removed meanwhile, perhaps by another look.
            return match outcome? {
                Look::Gone => Err(gone()),
                _ => Ok(()),
            };
        };
        tracked.due = self.next(&sandbox.id);
        let look = match outcome {
            Ok(look) => look,
            Err(refusal) => {
                let standing = Standing::NotKnown(refusal.message.clone());
                if tracked.standing != standing {
                    warn!("pod {}: {}", sandbox.name, refusal.message);
                    tracked.pause = PAUSE.0;
                }
                tracked.standing = standing;
                tracked.due = Instant::now() + tracked.pause;
                tracked.pause = (tracked.pause * 2).min(PAUSE.1);
                return Err(refusal);
            }
        };
        tracked.wanted = wanted;
        tracked.pause = PAUSE.0;
        match look {
            Look::InPlace => {
                tracked.told.forget();
                tracked.standing = tracked.start.clone();
            }
            Look::Earlier(config) => {
                info!(
                    "pod {}: its rules are whole, and of another configuration: it gets today's when it starts anew",
                    sandbox.name
                );
                tracked.wanted = tracked.wanted.take().map(|install| {
                    let mut earlier = Install::clone(&install);
                    earlier.config = config;
                    Arc::new(earlier)
                });
                tracked.start = Standing::Drifted(Reason::Configuration);
                tracked.standing = tracked.start.clone();
            }
            Look::Drifted(drift) => {
                tracked.standing = Standing::Drifted(drift.reason);
                if tracked.told.tells(drift.reason, Instant::now()) {
                    warn!("pod {}: other rules ({}): {}", sandbox.name, drift.reason, drift.line);
                    self.publish(
                        &sandbox,
                        EventType::Warning,
                        "LinkerdCNIDrifted",
                        "Verifying",
                        drift.words,
                    );
                }
            }
            Look::Repaired { before, rules, took } => {
                self.health.metrics.repaired(took);
                tracked.told.forget();
                tracked.standing = tracked.start.clone();
                if tracked.told_healed.tells(before.reason, Instant::now()) {
                    info!(
                        "pod {} is healed: its rules were not in place ({}); {rules} are",
                        sandbox.name, before.reason
                    );
                    let note = drift::repaired(before.reason, &rules);
                    self.publish(&sandbox, EventType::Normal, "LinkerdCNIRepaired", "Repairing", note);
                }
            }
            Look::Gone => {
                debug!("pod {}: its sandbox was stopped", sandbox.name);
                all.remove(id);
                return Err(gone());
            }
        }
        Ok(())
    }

    /// Publishes an event, and waits for nobody.
    fn publish(
        &self,
        sandbox: &Arc<Sandbox>,
        kind: EventType,
        reason: &'static str,
        action: &'static str,
        note: String,
    ) {
        let Some(events) = self.events.clone() else { return };
        let about = sandbox.reference();
        tokio::spawn(async move { events.publish(&about, kind, reason, action, &note).await });
    }
}

/// Gives work up that takes longer: the runtime would go on without an answer, and the pod without rules.
async fn within(patience: Duration, work: impl Future<Output = Result<(), Refusal>>) -> Result<(), Refusal> {
    let late = |_| {
        Err(Refusal::new(
            11,
            format!("the rules took longer than {patience:?}; try again later"),
        ))
    };
    timeout(patience, work).await.unwrap_or_else(late)
}

/// Runs what waits for the kernel on a thread of its own.
async fn in_background<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Refusal> {
    let done = spawn_blocking(work).await;
    done.map_err(|error| Refusal::new(100, error.to_string()))
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

/// Looks at the rules in a pod's network namespace, and puts them there if that is to be done.
fn look(
    path: &Path,
    own: Identity,
    install: Arc<Install>,
    is_first: bool,
    mode: Mode,
    on_drift: OnDrift,
    failures: &Counter<u64, AtomicU64>,
) -> Result<Look, Refusal> {
    if !path.exists() {
        return Ok(Look::Gone);
    }
    let failed = |reason: String| Refusal::new(100, reason);
    let namespace = open(path, own)?;
    let wanted = Wanted::Plugins(Arc::clone(&install));
    let Some(drift) = rules::verify(&namespace, &wanted).map_err(failed)? else {
        return Ok(Look::InPlace);
    };
    if let (Some(config), true) = (&drift.config, is_first) {
        return Ok(Look::Earlier(config.clone()));
    }
    if mode != Mode::InPlace || !drift.is_mended(on_drift) {
        return Ok(Look::Drifted(drift));
    }
    let start = Instant::now();
    match rules::repair(&namespace, install) {
        Ok(rules) => Ok(Look::Repaired {
            before: drift,
            rules,
            took: start.elapsed(),
        }),
        Err(reason) => {
            failures.inc();
            Err(failed(format!(
                "its rules are not in place ({}): {reason}",
                drift.reason
            )))
        }
    }
}
