//! Keeps watch over the meshed pods of the node: verifies their rules, and heals pods that started without any.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Error;
use kube::api::{DeleteParams, Preconditions};
use kube::core::Request;
use kube::runtime::events::EventType;
use kube::runtime::watcher::Event;
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;
use tokio::time::{sleep_until, timeout};
use tracing::{debug, info, warn};

use crate::admin::Health;
use crate::api::{self, Server};
use crate::events::{Events, event};
use crate::follow::{Which, follow};
use crate::netns::{Facts, Processes};
use crate::pod::{self, Case, MESHED, Meshed, Uid};
use crate::rules;
use crate::schedule::Schedule;
use crate::settings::{RepairAction, Settings};
use crate::tracked::{self, Standing, Tracked};

const PROC: &str = "/proc";
/// How long an answer of the API server may take: as long as upstream's repair controller waits.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many pods are kept: so many are within the agent's limit of memory. kubelet runs 110, or some hundred where it is
/// told to, and refuses others, which have ended then.
const MOST_PODS: usize = 8192;
/// The reason of upstream's event.
const NOT_CONFIGURED: &str = "LinkerdCNINotConfigured";

/// The watch over pods, and all that it needs.
struct Watcher<'a> {
    settings: &'a Settings,
    server: &'a Server,
    health: &'a Health,
    events: Events,
    /// When pods are verified; never, if it isn't asked for.
    schedule: Schedule,
    pods: BTreeMap<Uid, (Meshed, Tracked)>,
    /// The pods of a list that isn't complete yet.
    listed: BTreeSet<Uid>,
    /// True if the log has said that there are too many pods.
    said_too_many: bool,
}

/// Watches until the process ends.
pub(crate) async fn run(settings: &Settings, server: &Server, health: &Arc<Health>) -> Result<Infallible, String> {
    let node = settings.node.as_deref();
    let node =
        node.ok_or("--node-name, or LINKERD_CNI_REPAIR_CONTROLLER_NODE_NAME, must say which node's pods to watch")?;
    let mut watcher = Watcher {
        settings,
        server,
        health,
        // The name of upstream's.
        events: Events::new(server, "linkerd-cni-repair-controller", health),
        schedule: Schedule::new(Instant::now(), settings.verify_every()),
        pods: BTreeMap::new(),
        listed: BTreeSet::new(),
        said_too_many: false,
    };
    let mut news = follow(server.client.clone(), of_node(node));
    let mut said = false;
    loop {
        let due = tracked::next(&watcher.pods);
        tokio::select! {
            news = news.recv() => match news {
                Some(Err(reason)) => {
                    if !said {
                        warn!("the node's pods cannot be watched: {reason}");
                        said = true;
                    }
                }
                Some(Ok(event)) => {
                    // A list begins before it is asked for.
                    if said && !matches!(event, Event::Init) {
                        info!("the API server answers again");
                        said = false;
                    }
                    watcher.take(event);
                }
                None => return Err("the watch ended".to_owned()),
            },
            () = sleep_until(due.into()) => watcher.round().await,
        }
    }
}

impl Watcher<'_> {
    fn take(&mut self, event: Event<Meshed>) {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(pod) => {
                if let Some(uid) = self.keep(pod) {
                    self.listed.insert(uid);
                }
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed);
                self.pods.retain(|uid, _| listed.contains(uid));
                self.count();
            }
            Event::Apply(pod) => {
                self.keep(pod);
                self.count();
            }
            Event::Delete(pod) => {
                if let Some(uid) = pod.uid() {
                    self.pods.remove(&uid);
                    self.count();
                }
            }
        }
    }

    /// Keeps a pod in mind, and looks at it at once if something about it changed that matters.
    fn keep(&mut self, pod: Meshed) -> Option<Uid> {
        let uid = pod.uid()?;
        let (now, number) = (Instant::now(), self.pods.len());
        match self.pods.get_mut(&uid) {
            Some((known, tracked)) => {
                // A pod that can't be healed changes its status again and again; its pause goes on.
                if pod::case(&pod) != pod::case(known) || pod.addresses() != known.addresses() {
                    tracked.due = now;
                }
                *known = pod;
            }
            None if number >= MOST_PODS => {
                if !self.said_too_many {
                    warn!("{pod} and others are not looked at: the node has more than {MOST_PODS} meshed pods");
                    self.said_too_many = true;
                }
                return None;
            }
            None => {
                self.pods.insert(uid.clone(), (pod, Tracked::default()));
            }
        }
        Some(uid)
    }

    /// Looks at each pod that is due, one after another.
    async fn round(&mut self) {
        let start = Instant::now();
        // One look at all processes for all pods, if rules are looked at in one of these.
        let processes = OnceCell::new();
        for uid in tracked::due(&self.pods, start) {
            let Some((pod, mut tracked)) = self.pods.remove(&uid) else {
                continue;
            };
            let turn = self.schedule.next(&uid, Instant::now());
            let outcome = self.look(&uid, &pod, &mut tracked, &processes).await;
            tracked.note(&pod, outcome, turn);
            self.pods.insert(uid, (pod, tracked));
        }
        self.health.metrics.round.observe(start.elapsed().as_secs_f64());
        self.count();
    }

    /// How a pod stands, after the agent has healed it if need be.
    async fn look(
        &self,
        uid: &Uid,
        pod: &Meshed,
        tracked: &mut Tracked,
        processes: &OnceCell<Result<Arc<Processes>, String>>,
    ) -> Result<Standing, String> {
        let (settings, action) = (self.settings, self.settings.repair);
        let failed = match pod::case(pod) {
            Case::Leave(reason) => {
                debug!("{pod} is left alone: {reason}");
                return Ok(Standing::Left);
            }
            // Its status will change.
            Case::Early => return Ok(tracked.standing.clone()),
            Case::Running if settings.verify_every().is_none() => return Ok(tracked.standing.clone()),
            Case::Running => false,
            Case::Failed if action == RepairAction::Delete => return self.delete(pod).await,
            Case::Failed => true,
        };
        let read = async || {
            let read = spawn_blocking(|| Processes::read(Path::new(PROC))).await;
            read.map_err(|error| error.to_string()).flatten().map(Arc::new)
        };
        let (facts, processes) = (Facts::new(uid, pod), processes.get_or_init(read).await.clone());
        let open = move || processes?.network(&facts);
        let today = async || rules::wanted(&settings.installation.entry()?, self.server, pod).await;
        match tracked.heal(pod, failed, settings, &self.health.metrics, open, today).await {
            Ok((standing, event)) => {
                if let Some(event) = event {
                    self.events.publish(&pod.reference(), &event).await;
                }
                Ok(standing)
            }
            // Where a pod can't be reached, upstream's way is left.
            Err(reason) if failed && action == RepairAction::InPlace => {
                info!("{pod} cannot be healed in place: {reason}");
                self.delete(pod).await
            }
            Err(reason) => Err(reason),
        }
    }

    /// Deletes a pod, as upstream's repair controller does, if it is still the one that was looked at.
    async fn delete(&self, pod: &Meshed) -> Result<Standing, String> {
        let metrics = &self.health.metrics;
        let ::pod::Metadata { name, namespace, uid, resource_version, .. } = pod.metadata.clone();
        let parameters = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: Some(uid), resource_version: Some(resource_version) }),
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
                Err(format!("it started without rules, and cannot be deleted: {}{advice}", api::words(&error)))
            }
            Ok(Ok(_)) => {
                metrics.deleted.inc();
                metrics.delete_latency.observe(start.elapsed().as_secs_f64());
                info!("deleted {pod}, which started without rules");
                let note = "Deleting pod to create a new one with proper CNI config";
                let event = event(EventType::Normal, NOT_CONFIGURED, "Deleting", note);
                self.events.publish(&pod.reference(), &event).await;
                Ok(Standing::Left)
            }
        }
    }

    fn count(&self) {
        tracked::count(&self.pods, &self.health.metrics);
    }
}

/// The node's meshed pods that haven't ended.
fn of_node(node: &str) -> Which {
    Which {
        path: "/api/v1/pods".to_owned(),
        label: Some(MESHED),
        fields: format!("spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"),
    }
}
