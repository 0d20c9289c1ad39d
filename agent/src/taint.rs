//! The taint that keeps pods off a node until the plugin is there.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::core::object::NotUsed;
use kube::core::{ApiResource, Object};
use kube::runtime::events::EventType;
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::info;

use crate::admin::Health;
use crate::api::{self, Server};
use crate::repeat::repeat_and_tell;
use crate::tell::{self, Teller};

/// A node, of which only the taints are kept. What else a taint has stays as it is.
type Tainted = Object<Spec, NotUsed>;

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Spec {
    taints: Vec<Value>,
}

/// Removes the taints with this key from the node whenever the agent becomes ready.
/// The log and an event of the node say once that a taint stays; the metric counts each attempt.
pub(crate) async fn run(key: &str, node: &str, server: &Server, health: &Arc<Health>) -> Infallible {
    let teller = Teller::new(Some(server), "linkerd-cni-agent", health);
    let work = async || {
        let mut ready = health.ready.subscribe();
        // The sender lives as long as this does.
        let _ = ready.wait_for(|ready| *ready).await;
        let removed = remove(key, node, server).await.map_err(|reason| {
            health.metrics.taint_errors.inc();
            format!("the taint {key} cannot be removed from the node, which gets no pods: {reason}")
        })?;
        if removed {
            info!("removed the taint {key} from the node: pods can be set up");
        }
        // The next time is after it was not ready.
        let _ = ready.wait_for(|ready| !*ready).await;
        Ok(())
    };
    let tell =
        |reason: &str| teller.tell(&tell::node(node), EventType::Warning, "LinkerdCNITaintStays", "Removing", reason);
    repeat_and_tell(Duration::ZERO, work, tell).await
}

/// Returns true if there was a taint.
async fn remove(key: &str, name: &str, server: &Server) -> Result<bool, String> {
    let api: Api<Tainted> = Api::all_with(server.client.clone(), &ApiResource::erase::<Node>(&()));
    let advice = |reason: String| {
        let roles = "the agent's roles have to allow get and patch on nodes, as deploy/cni with components/taint does";
        if reason.starts_with("403:") { format!("{reason}: {roles}") } else { reason }
    };
    let node = api::within(api.get(name)).await.map_err(advice)?;
    let (gone, taints): (Vec<Value>, Vec<Value>) =
        node.spec.taints.into_iter().partition(|taint| taint.get("key").and_then(Value::as_str) == Some(key));
    if gone.is_empty() {
        return Ok(false);
    }
    // Taints are replaced as a whole: with the version, only those that were seen.
    let patch = json!({
        "metadata": {"resourceVersion": node.metadata.resource_version},
        "spec": {"taints": taints},
    });
    let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
    api::within(api.patch(name, &parameters, &patch)).await.map_err(advice)?;
    Ok(true)
}
