//! Keeps watch over the meshed pods of the node: verifies their rules, and heals pods that started without any.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Error;
use kube::api::{DeleteParams, Preconditions};
use kube::core::Request;
use kube::runtime::events::EventType;
use proxy_init::{Install, Namespace};
use tokio::task::spawn_blocking;
use tokio::time::{sleep_until, timeout};
use tracing::{debug, info, warn};

use crate::admin::Health;
use crate::api::{self, Server};
use crate::drift::{self, Drift, Reason, Told};
use crate::events::Events;
use crate::follow::{News, Which, follow};
use crate::netns::{Facts, Processes};
use crate::pod::{self, Case, MESHED, Meshed, Metadata, Uid};
use crate::rules::{self, Wanted};
use crate::schedule::{NEVER, PAUSE, Schedule};
use crate::settings::{Mode, Settings};
use crate::standing::{self, Standing};

const PROC: &str = "/proc";
/// How long an answer of the API server may take: as long as upstream's repair controller waits.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many pods are kept: so many are within the agent's limit of memory. kubelet runs 110, or some hundred where it is
/// told to, and refuses others, which have ended then.
const MOST_PODS: usize = 8192;
/// The reason of upstream's event.
const NOT_CONFIGURED: &str = "LinkerdCNINotConfigured";

/// A pod, and what was found out about it.
struct Tracked {
    pod: Meshed,
    /// What it is to have; asked once, for its rules are those of its start.
    wanted: Option<Wanted>,
    start: Start,
    /// How it stood last time.
    standing: Standing,
    /// When to look again.
    due: Instant,
    pause: Duration,
    /// What was told of its drift last.
    told: Told,
    /// What was told of its healing last.
    told_healed: Told,
}

/// Which configuration a pod started by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// Its rules were not looked at yet.
    NotKnown,
    /// Today's, as far as can be told.
    Today,
    /// An earlier one, as its rules were whole, and of another config, when they were first looked at.
    Earlier,
}

impl Start {
    /// How a pod stands that has the rules of its start.
    fn standing(self) -> Standing {
        match self {
            Self::NotKnown | Self::Today => Standing::InPlace,
            Self::Earlier => Standing::Drifted(Reason::Configuration),
        }
    }
}

/// How a pod's rules differ from these.
async fn differs(network: &Arc<Namespace>, wanted: &Wanted) -> Result<Option<Drift>, String> {
    let (network, wanted) = (Arc::clone(network), wanted.clone());
    let work = move || rules::verify(&network, &wanted);
    spawn_blocking(work).await.map_err(|error| error.to_string())?
}

/// What watching takes.
struct Watcher<'a> {
    settings: &'a Settings,
    server: &'a Server,
    health: &'a Health,
    events: Events,
    /// When pods are verified; never, if it isn't asked for.
    schedule: Option<Schedule>,
    pods: BTreeMap<Uid, Tracked>,
    /// Those of a list that isn't complete yet.
    listed: BTreeSet<Uid>,
    /// Whether it was said that there are too many.
    said_too_many: bool,
}

/// Watches until the process ends.
///
/// # Errors
/// What is missing for it.
pub async fn run(settings: &Settings, server: &Server, health: &Arc<Health>) -> Result<(), String> {
    let node = settings.node.as_deref();
    let node =
        node.ok_or("--node-name, or LINKERD_CNI_REPAIR_CONTROLLER_NODE_NAME, must say which node's pods to watch")?;
    let mut watcher = Watcher {
        settings,
        server,
        health,
        // The name of upstream's.
        events: Events::new(server, "linkerd-cni-repair-controller", health),
        schedule: settings.verify_every.map(|every| Schedule::new(Instant::now(), every)),
        pods: BTreeMap::new(),
        listed: BTreeSet::new(),
        said_too_many: false,
    };
    let mut news = follow(server.client.clone(), of_node(node));
    let mut said = false;
    loop {
        let due = watcher.pods.values().map(|pod| pod.due).min();
        let due = due.map(tokio::time::Instant::from_std);
        tokio::select! {
            news = news.recv() => match news {
                Some(News::Failed(reason)) => {
                    if !said {
                        warn!("the node's pods cannot be watched: {reason}");
                        said = true;
                    }
                }
                Some(news) => {
                    // A list begins before it is asked for.
                    if said && !matches!(news, News::Begins) {
                        info!("the API server answers again");
                        said = false;
                    }
                    watcher.take(news);
                }
                None => return Err("the watch ended".to_owned()),
            },
            () = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => std::future::pending().await,
                }
            } => watcher.round().await,
        }
    }
}

impl Watcher<'_> {
    fn take(&mut self, news: News<Meshed>) {
        match news {
            News::Begins => self.listed.clear(),
            News::Listed(pod) => {
                if let Some(uid) = self.keep(pod) {
                    self.listed.insert(uid);
                }
            }
            News::Complete => {
                let listed = std::mem::take(&mut self.listed);
                self.pods.retain(|uid, _| listed.contains(uid));
                self.count();
                if !self.settings.program.installs() {
                    // Watching is all that it does.
                    self.health.ready.send_replace(true);
                }
            }
            News::Changed(pod) => {
                self.keep(pod);
                self.count();
            }
            News::Gone(pod) => {
                if let Some(uid) = pod.uid() {
                    self.pods.remove(&uid);
                    self.count();
                }
            }
            News::Failed(_) => {}
        }
    }

    /// Keeps a pod in mind, and looks at it at once if something about it changed that matters.
    fn keep(&mut self, pod: Meshed) -> Option<Uid> {
        let uid = pod.uid()?;
        let (now, number) = (Instant::now(), self.pods.len());
        match self.pods.get_mut(&uid) {
            Some(tracked) => {
                // A pod that can't be healed changes its status again and again; its pause goes on.
                if pod::case(&pod) != pod::case(&tracked.pod) || pod.addresses() != tracked.pod.addresses() {
                    tracked.due = now;
                }
                tracked.pod = pod;
            }
            None if number >= MOST_PODS => {
                if !self.said_too_many {
                    warn!("{pod} and others are not looked at: the node has more than {MOST_PODS} meshed pods");
                    self.said_too_many = true;
                }
                return None;
            }
            None => {
                let tracked = Tracked {
                    pod,
                    wanted: None,
                    standing: Standing::New,
                    due: now,
                    pause: PAUSE.0,
                    start: Start::NotKnown,
                    told: Told::default(),
                    told_healed: Told::default(),
                };
                self.pods.insert(uid.clone(), tracked);
            }
        }
        Some(uid)
    }

    /// Looks at each pod that is due, one after another.
    async fn round(&mut self) {
        let start = Instant::now();
        let due: Vec<Uid> = self
            .pods
            .iter()
            .filter(|(_, pod)| pod.due <= start)
            .map(|(uid, _)| uid.clone())
            .collect();
        // One look at all processes for all pods, if rules are looked at in one of these.
        let processes = if due.iter().any(|uid| self.looks_at_rules(uid)) {
            let processes = spawn_blocking(|| Processes::read(Path::new(PROC))).await;
            processes.map_err(|error| error.to_string()).flatten().map(Arc::new)
        } else {
            Err("nobody looked at processes".to_owned())
        };
        for uid in &due {
            let Some(mut tracked) = self.pods.remove(uid) else {
                continue;
            };
            self.look(uid, &mut tracked, &processes).await;
            self.pods.insert(uid.clone(), tracked);
        }
        self.health.metrics.verified(start.elapsed());
        self.count();
    }

    /// Whether the rules of a pod decide what becomes of it.
    fn looks_at_rules(&self, uid: &Uid) -> bool {
        match self.pods.get(uid).map(|tracked| pod::case(&tracked.pod)) {
            Some(Case::Running) => self.schedule.is_some(),
            Some(Case::Failed) => self.settings.mode != Mode::Delete,
            Some(Case::Early | Case::Leave(_)) | None => false,
        }
    }

    async fn look(&self, uid: &Uid, tracked: &mut Tracked, processes: &Result<Arc<Processes>, String>) {
        let (now, case) = (Instant::now(), pod::case(&tracked.pod));
        tracked.due = self.schedule.map_or(now + NEVER, |schedule| schedule.next(uid, now));
        let failed = match case {
            Case::Leave(reason) => {
                debug!("{} is left alone: {reason}", tracked.pod);
                tracked.standing = Standing::Left;
                return;
            }
            // Its status will change.
            Case::Early => return,
            Case::Running if self.schedule.is_none() => return,
            Case::Running => false,
            Case::Failed => true,
        };
        let outcome = self.find_out(uid, tracked, processes, failed).await;
        match outcome {
            Ok(standing) => {
                tracked.pause = PAUSE.0;
                tracked.standing = standing;
            }
            Err(reason) => {
                let standing = Standing::NotKnown(reason);
                if tracked.standing != standing
                    && let Standing::NotKnown(reason) = &standing
                {
                    warn!("{}: {reason}", tracked.pod);
                }
                tracked.standing = standing;
                tracked.due = Instant::now() + tracked.pause;
                tracked.pause = (tracked.pause * 2).min(PAUSE.1);
            }
        }
    }

    /// How a pod stands, after what is to be done about it.
    async fn find_out(
        &self,
        uid: &Uid,
        tracked: &mut Tracked,
        processes: &Result<Arc<Processes>, String>,
        failed: bool,
    ) -> Result<Standing, String> {
        let mode = self.settings.mode;
        if failed && mode == Mode::Delete {
            return self.delete(&tracked.pod).await;
        }
        let found = self.verify(uid, tracked, processes, failed).await;
        let (wanted, drift) = match found {
            Ok(found) => found,
            // Where a pod can't be reached, upstream's way is left.
            Err(reason) if failed && mode == Mode::InPlace => {
                info!("{} cannot be healed in place: {reason}", tracked.pod);
                return self.delete(&tracked.pod).await;
            }
            Err(reason) => return Err(reason),
        };
        let Some((drift, network)) = drift else {
            tracked.told.forget();
            return Ok(match wanted {
                Wanted::Plugins(_) => tracked.start.standing(),
                Wanted::Inits | Wanted::Any => Standing::Left,
            });
        };
        let reason = drift.reason;
        let is_mended = mode == Mode::InPlace && (failed || drift.is_mended(self.settings.on_drift));
        let install = match wanted {
            Wanted::Plugins(install) if is_mended => install,
            Wanted::Plugins(_) | Wanted::Inits | Wanted::Any => {
                if tracked.told.tells(reason, Instant::now()) {
                    warn!("{}: other rules ({reason}): {}", tracked.pod, drift.line);
                    self.publish(
                        &tracked.pod,
                        EventType::Warning,
                        "LinkerdCNIDrifted",
                        "Verifying",
                        &drift.words,
                    )
                    .await;
                }
                return Ok(Standing::Drifted(reason));
            }
        };
        let start = Instant::now();
        let work = move || rules::repair(&network, install);
        let repaired = spawn_blocking(work).await.map_err(|error| error.to_string())?;
        let metrics = &self.health.metrics;
        match repaired {
            Ok(rules) => {
                metrics.repaired(start.elapsed());
                tracked.told.forget();
                // Whoever takes them away again and again gets them back each time, and no event for each.
                if tracked.told_healed.tells(reason, Instant::now()) {
                    info!(
                        "{} is healed: its rules were not in place ({reason}); {rules} are",
                        tracked.pod
                    );
                    let note = drift::repaired(reason, &rules);
                    self.publish(
                        &tracked.pod,
                        EventType::Normal,
                        "LinkerdCNIRepaired",
                        "Repairing",
                        &note,
                    )
                    .await;
                }
                Ok(tracked.start.standing())
            }
            Err(error) => {
                metrics.repair_failures.inc();
                if failed {
                    info!("{} cannot be healed in place: {error}", tracked.pod);
                    return self.delete(&tracked.pod).await;
                }
                Err(format!(
                    "its rules are not in place ({reason}), and it cannot be healed: {error}"
                ))
            }
        }
    }

    /// Which rules a pod should have, and how those that it has differ, and where.
    async fn verify(
        &self,
        uid: &Uid,
        tracked: &mut Tracked,
        processes: &Result<Arc<Processes>, String>,
        failed: bool,
    ) -> Result<(Wanted, Option<(Drift, Arc<Namespace>)>), String> {
        let processes = Arc::clone(processes.as_ref().map_err(Clone::clone)?);
        let wanted = match &tracked.wanted {
            Some(wanted) => wanted.clone(),
            None => tracked.wanted.insert(self.wanted(&tracked.pod).await?).clone(),
        };
        if let Wanted::Any = wanted {
            return Ok((wanted, None));
        }
        let facts = Facts::new(uid, &tracked.pod);
        let network = spawn_blocking(move || processes.network(&facts)).await;
        let network = Arc::new(network.map_err(|error| error.to_string())??);
        let Some(drift) = differs(&network, &wanted).await? else {
            if tracked.start == Start::NotKnown {
                tracked.start = Start::Today;
            }
            return Ok((wanted, None));
        };
        if tracked.start == Start::NotKnown {
            tracked.start = Start::Today;
            // Whoever takes away a rule that a config may do without leaves whole rules of another config, too. So only
            // what the pod had when it was first looked at is taken for an earlier configuration's.
            if let (Wanted::Plugins(install), Some(config), false) = (&wanted, &drift.config, failed) {
                info!(
                    "{}: its rules are whole, and of another configuration: it gets today's when it starts anew",
                    tracked.pod
                );
                tracked.start = Start::Earlier;
                let mut earlier = Install::clone(install);
                earlier.config = config.clone();
                let earlier = Wanted::Plugins(Arc::new(earlier));
                return Ok((tracked.wanted.insert(earlier).clone(), None));
            }
        } else if !matches!(tracked.standing, Standing::Drifted(reason) if reason != Reason::Configuration) {
            // It may have a new sandbox since, and the plugin goes by today's configuration and annotations.
            let today = self.wanted(&tracked.pod).await?;
            if differs(&network, &today).await?.is_none() {
                tracked.start = Start::Today;
                return Ok((tracked.wanted.insert(today).clone(), None));
            }
        }
        Ok((wanted, Some((drift, network))))
    }

    /// Which rules a pod that starts now should have.
    async fn wanted(&self, pod: &Meshed) -> Result<Wanted, String> {
        let entry = self.settings.installation.entry()?;
        rules::wanted(&entry, self.server, pod).await
    }

    /// Deletes a pod, as upstream's repair controller does, if it is still the one that was looked at.
    async fn delete(&self, pod: &Meshed) -> Result<Standing, String> {
        let metrics = &self.health.metrics;
        let Metadata {
            name,
            namespace,
            uid,
            resource_version,
            ..
        } = pod.metadata.clone();
        let parameters = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions {
                uid: Some(uid),
                resource_version: Some(resource_version),
            }),
            ..DeleteParams::default()
        };
        let request = Request::new(format!("/api/v1/namespaces/{namespace}/pods"));
        let request = request.delete(&name, &parameters).map_err(|error| error.to_string())?;
        let start = Instant::now();
        // The answer is the pod, however long that is: it isn't read.
        match timeout(PATIENCE, self.server.client.request_stream(request)).await {
            Err(_) => {
                metrics.delete_timeouts.inc();
                Err("it started without rules, and deleting it took longer than a second".to_owned())
            }
            // It has changed, or is gone.
            Ok(Err(Error::Api(status))) if [404, 409].contains(&status.code) => Err("it changed meanwhile".to_owned()),
            Ok(Err(error)) => {
                metrics.delete_errors.inc();
                let advice = match &error {
                    Error::Api(status) if status.code == 403 => {
                        ": deploy/cni/components/delete-pods has a role that allows it"
                    }
                    _ => "",
                };
                Err(format!(
                    "it started without rules, and cannot be deleted: {}{advice}",
                    api::words(&error)
                ))
            }
            Ok(Ok(_)) => {
                metrics.deleted.inc();
                metrics.delete_latency.observe(start.elapsed().as_secs_f64());
                info!("deleted {pod}, which started without rules");
                let note = "Deleting pod to create a new one with proper CNI config";
                self.publish(pod, EventType::Normal, NOT_CONFIGURED, "Deleting", note)
                    .await;
                Ok(Standing::Left)
            }
        }
    }

    async fn publish(&self, pod: &Meshed, kind: EventType, reason: &str, action: &str, note: &str) {
        self.events.publish(&pod.reference(), kind, reason, action, note).await;
    }

    fn count(&self) {
        standing::tell(self.pods.values().map(|pod| &pod.standing), &self.health.metrics);
    }
}

/// The node's meshed pods that haven't ended.
fn of_node(node: &str) -> Which {
    Which {
        path: "/api/v1/pods",
        label: Some(MESHED),
        fields: format!("spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"),
    }
}
