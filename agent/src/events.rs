//! Events, as `kubectl describe` shows them of a pod or a node.

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use pod::bounded;
use proxy_init::log::escaped;
use tokio::time::timeout;
use tracing::debug;

use crate::admin::Health;
use crate::api::{self, Server};

/// How long an answer of the API server may take: as long as upstream's repair controller waits.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long an event's text may be (`NoteLengthLimit` in Kubernetes' pkg/apis/core/validation/events.go).
const LONGEST_NOTE: usize = 1024 - REST;
/// How long its action may be (`ActionLengthLimit` there).
const LONGEST_ACTION: usize = 128 - REST;
/// The length of the words that stand for the rest of a text.
const REST: usize = 40;

/// Publishes events in the agent's name, and counts them.
#[derive(Clone)]
pub(crate) struct Events {
    recorder: Recorder,
    health: Arc<Health>,
}

impl Events {
    /// In the name of this controller.
    pub(crate) fn new(server: &Server, controller: &str, health: &Arc<Health>) -> Self {
        let reporter = Reporter { controller: controller.to_owned(), instance: Some(server.pod.clone()) };
        Self { recorder: Recorder::new(server.client.clone(), reporter), health: Arc::clone(health) }
    }

    /// Publishes one. Those of the last minutes that are alike but for the note become one with a count. What goes
    /// wrong is counted, and is nobody's trouble.
    pub(crate) async fn publish(&self, about: &ObjectReference, event: &Event) {
        let metrics = &self.health.metrics;
        let start = Instant::now();
        match timeout(PATIENCE, self.recorder.publish(event, about)).await {
            Err(_) => {
                metrics.event_timeouts.inc();
            }
            Ok(Err(error)) => {
                metrics.event_errors.inc();
                debug!("an event cannot be published: {}", api::words(&error));
            }
            Ok(Ok(())) => metrics.event_latency.observe(start.elapsed().as_secs_f64()),
        }
    }
}

/// An event in which everything can be seen, as long as one may be.
pub(crate) fn event(kind: EventType, reason: &str, action: &str, note: &str) -> Event {
    Event {
        type_: kind,
        reason: reason.to_owned(),
        note: Some(bounded(visible(note), LONGEST_NOTE)),
        action: bounded(visible(action), LONGEST_ACTION),
        secondary: None,
    }
}

/// A node, as kubelet names it in events: `kubectl describe node` looks for its name in the place of its UID.
pub(crate) fn node(name: &str) -> ObjectReference {
    ObjectReference { uid: Some(name.to_owned()), ..reference("Node", name) }
}

pub(crate) fn pod(namespace: &str, name: &str, uid: &str) -> ObjectReference {
    ObjectReference { namespace: Some(namespace.to_owned()), uid: Some(uid.to_owned()), ..reference("Pod", name) }
}

fn reference(kind: &str, name: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some(kind.to_owned()),
        name: Some(name.to_owned()),
        ..ObjectReference::default()
    }
}

/// A text of several lines, in which everything can be seen.
fn visible(text: &str) -> String {
    let lines: Vec<_> = text.split('\n').map(escaped).collect();
    lines.join("\n")
}
