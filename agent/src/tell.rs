//! Tells of a fact once and in the same words: as a line of the log, and as an event, which `kubectl describe` shows of
//! a pod or a node.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use pod::bounded;
use proxy_init::log::escaped;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use crate::admin::Health;
use crate::api::{self, PATIENCE_TO_WRITE, Server};

/// The longest that an event's text may be (`NoteLengthLimit` in Kubernetes' pkg/apis/core/validation/events.go).
const LONGEST_NOTE: usize = 1024 - REST;
/// The longest that its action may be (`ActionLengthLimit` there).
const LONGEST_ACTION: usize = 128 - REST;
/// The length of the words that stand for the rest of a text.
const REST: usize = 40;

/// A meshed pod, of which the agent tells, and which it keeps in mind.
pub(crate) trait Subject: Display {
    /// The pod as events name it.
    fn reference(&self) -> ObjectReference;

    /// The bytes that the agent keeps of the pod, about.
    fn size(&self) -> usize;
}

/// Tells in the agent's name.
#[derive(Clone)]
pub(crate) struct Teller {
    /// None: there is only the log.
    recorder: Option<Recorder>,
    health: Arc<Health>,
}

impl Teller {
    /// In the name of this controller, where there is an API server.
    pub(crate) fn new(server: Option<&Server>, controller: &str, health: &Arc<Health>) -> Self {
        let recorder = server.map(|server| {
            let reporter = Reporter { controller: controller.to_owned(), instance: Some(server.pod.clone()) };
            Recorder::new(server.client.clone(), reporter)
        });
        Self { recorder, health: Arc::clone(health) }
    }

    /// Tells of a fact, and waits for nobody. Events of the last minutes that are alike but for the note become one with a
    /// count. What goes wrong with an event is counted, and is nobody's trouble. Must be called in tokio's runtime.
    pub(crate) fn tell(&self, about: &ObjectReference, kind: EventType, reason: &str, action: &str, words: &str) {
        let whose = about.namespace.as_ref().zip(about.name.as_ref());
        let whose = whose.map(|(namespace, name)| format!("pod {namespace}/{name}: ")).unwrap_or_default();
        match kind {
            EventType::Normal => info!("{whose}{words}"),
            EventType::Warning => warn!("{whose}{words}"),
        }
        let Some(recorder) = self.recorder.clone() else { return };
        let event = Event {
            type_: kind,
            reason: reason.to_owned(),
            note: Some(bounded(escaped(words).into_owned(), LONGEST_NOTE)),
            action: bounded(escaped(action).into_owned(), LONGEST_ACTION),
            secondary: None,
        };
        let (about, health) = (about.clone(), Arc::clone(&self.health));
        tokio::spawn(async move {
            let metrics = &health.metrics;
            let start = Instant::now();
            match timeout(PATIENCE_TO_WRITE, recorder.publish(&event, &about)).await {
                Err(_) => {
                    metrics.event_timeouts.inc();
                }
                Ok(Err(error)) => {
                    metrics.event_errors.inc();
                    debug!("an event cannot be published: {}", api::words(&error));
                }
                Ok(Ok(())) => metrics.event_latency.observe(start.elapsed().as_secs_f64()),
            }
        });
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
