//! The node's meshed pods, as the API server tells of them.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

use kube::Api;
use kube::runtime::watcher::{self, Event};
use proxy_init::PodUid;
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;
use tracing::debug;

use crate::admin::Health;
use crate::api::{self, Server};
use crate::care::{Care, Standing, Tracked};
use crate::netns::Processes;
use crate::pod::{self, Case, MESHED, Meshed};
use crate::rules;
use crate::settings::Settings;
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
        let settings = self.care.settings;
        let failed = match pod::case(pod) {
            Case::Leave(reason) => {
                debug!("{pod} is left alone: {reason}");
                return Ok(Standing::LeftAlone);
            }
            // Its status will change.
            Case::Early => return Ok(tracked.standing.clone()),
            Case::Running if settings.verify_every().is_none() => return Ok(tracked.standing.clone()),
            Case::Running => None,
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
        self.care.heal(pod, tracked, failed, open, today).await
    }
}
