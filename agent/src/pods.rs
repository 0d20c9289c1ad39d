//! The node's meshed pods, as the API server tells of them.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use kube::api::{DeleteParams, Preconditions};
use kube::core::Request;
use kube::runtime::events::EventType;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Error};
use proxy_init::PodUid;
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tracing::{debug, info};

use crate::admin::Health;
use crate::api::{self, PATIENCE_TO_WRITE, Server};
use crate::care::{Care, Standing, Tracked};
use crate::netns::Processes;
use crate::pod::{self, Case, MESHED, Meshed};
use crate::rules;
use crate::settings::{RepairAction, Settings};
use crate::tell::Teller;

const PROC: &str = "/proc";

struct Watcher<'a> {
    server: &'a Server,
    care: Care<'a, PodUid, Meshed>,
}

/// Watches until the process ends.
pub(crate) async fn run(settings: &Settings, server: &Server, health: &Arc<Health>) -> Result<Infallible, String> {
    let node = settings.node.as_deref();
    let node =
        node.ok_or("--node-name, or LINKERD_CNI_REPAIR_CONTROLLER_NODE_NAME, must say which node's pods to watch")?;
    // Upstream's name.
    let teller = Teller::new(Some(server), "linkerd-cni-repair-controller", health);
    let watcher = Watcher { server, care: Care::new(settings, health, teller) };
    Ok(tokio::select! {
        never = watcher.follow(node) => never,
        never = watcher.care.watch(async |due| watcher.round(due).await) => never,
    })
}

impl Watcher<'_> {
    /// Follows the node's meshed pods that haven't ended.
    async fn follow(&self, node: &str) -> Infallible {
        let fields = format!("spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed");
        let which = watcher::Config::default().labels(MESHED).fields(&fields);
        let pods = Api::all(self.server.watching.clone());
        api::follow(pods, which, "the node's meshed pods", |event| self.take(event)).await
    }

    fn take(&self, event: Event<Meshed>) {
        match event {
            Event::Init => self.care.list(),
            Event::InitDone => self.care.end_list(),
            Event::InitApply(pod) | Event::Apply(pod) => {
                let Some(uid) = pod.uid() else { return };
                let (case, addresses) = (pod::case(&pod), pod.addresses().to_vec());
                self.care.keep(uid, pod, |known| case != pod::case(known) || addresses != known.addresses());
            }
            Event::Delete(pod) => {
                if let Some(uid) = pod.uid() {
                    self.care.remove(&uid);
                }
            }
        }
    }

    /// Looks at these pods, one after another.
    async fn round(&self, due: Vec<PodUid>) {
        // One look at all processes for all pods, if rules are looked at in one of these.
        let processes = OnceCell::new();
        for uid in due {
            // The pod's standing has the outcome.
            let look = async |pod: &Arc<Meshed>, tracked: &mut Tracked| self.look(&uid, pod, tracked, &processes).await;
            let _ = self.care.attend(&uid, look).await;
        }
    }

    /// A pod's state, after the agent has healed it if need be.
    async fn look(
        &self,
        uid: &PodUid,
        pod: &Arc<Meshed>,
        tracked: &mut Tracked,
        processes: &OnceCell<Result<Arc<Processes>, String>>,
    ) -> Result<Standing, String> {
        let (settings, action) = (self.care.settings, self.care.settings.repair);
        let failed = match pod::case(pod) {
            Case::Leave(reason) => {
                debug!("{pod} is left alone: {reason}");
                return Ok(Standing::LeftAlone);
            }
            // Its status will change.
            Case::Early => return Ok(tracked.standing.clone()),
            Case::Running if settings.verify_every().is_none() => return Ok(tracked.standing.clone()),
            Case::Running => None,
            Case::Failed(_) if action == RepairAction::Delete => return self.delete(pod).await,
            Case::Failed(when) => Some(when),
        };
        let read = async || {
            let read = spawn_blocking(|| Processes::read(Path::new(PROC))).await;
            read.map_err(|error| error.to_string()).flatten().map(Arc::new)
        };
        let processes = processes.get_or_init(read).await.clone();
        let (uid, found) = (uid.clone(), Arc::clone(pod));
        let open = move || processes?.network(&uid, &found);
        let today = async || rules::wanted(&settings.installation.entry()?, self.server, pod).await;
        match self.care.heal(pod, tracked, failed, open, today).await {
            // Where a pod can't be reached, upstream's way is left.
            Err(reason) if failed.is_some() && action == RepairAction::InPlace => {
                info!("{pod} cannot be healed in place: {reason}");
                self.delete(pod).await
            }
            outcome => outcome,
        }
    }

    /// Deletes a pod, as upstream's repair controller does, if it is still the one that was looked at.
    async fn delete(&self, pod: &Meshed) -> Result<Standing, String> {
        let metrics = &self.care.health.metrics;
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
        match timeout(PATIENCE_TO_WRITE, self.server.client.request_stream(request)).await {
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
                // The reason and the words of upstream's event.
                let words = "Deleting pod to create a new one with proper CNI config";
                self.care.tell(pod, EventType::Normal, "LinkerdCNINotConfigured", "Deleting", words);
                Ok(Standing::LeftAlone)
            }
        }
    }
}
