//! What scenarios are, and what they share.

use std::sync::RwLock;
use std::sync::atomic::{AtomicU32, Ordering};

use lab::shell::Result;
use lab::wait;
use serde_json::json;

use crate::images;
use crate::pod::Pod;
use crate::services::{Cluster, PATIENCE};

/// One thing that is tried, in a namespace of its own.
pub(crate) struct Scenario {
    pub(crate) name: String,
    /// Makes its pods in this namespace; an error says what went otherwise than expected, success what was seen.
    pub(crate) try_it: Box<TryIt>,
    /// Whether it disturbs others, such as by killing a program of the node's.
    disturbs: bool,
}

type TryIt = dyn Fn(&World<'_>, &str) -> Result<String> + Send + Sync;

impl Scenario {
    pub(crate) fn new(
        name: impl Into<String>,
        try_it: impl Fn(&World<'_>, &str) -> Result<String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            try_it: Box::new(try_it),
            disturbs: false,
        }
    }

    /// The same, while no other runs.
    pub(crate) fn alone(self) -> Self {
        Self { disturbs: true, ..self }
    }
}

/// What all scenarios have.
pub(crate) struct World<'a> {
    pub(crate) cluster: &'a Cluster,
    /// A pod without a mesh, which listens on ports 8080 and 4567; its container is `client`.
    pub(crate) neighbour: Pod<'a>,
    namespaces: AtomicU32,
    /// Held by those that may run side by side, or by one that may not.
    turn: RwLock<()>,
}

impl<'a> World<'a> {
    pub(crate) fn new(cluster: &'a Cluster) -> Result<Self> {
        wait_for_account(cluster, "default")?;
        let neighbour = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "neighbour"},
            "spec": {"containers": [
                {"name": "client", "image": images::CLIENT, "args": ["serve", "8080", "4567"]}
            ]}
        });
        let neighbour = Pod::create(&cluster.kubectl, "default", &neighbour)?;
        neighbour.ready()?;
        Ok(Self {
            cluster,
            neighbour,
            namespaces: AtomicU32::new(0),
            turn: RwLock::default(),
        })
    }

    /// Tries a scenario in a namespace of its own, which is deleted after it.
    pub(crate) fn try_scenario(&self, scenario: &Scenario) -> Result<String> {
        let (_shared, _alone);
        if scenario.disturbs {
            _alone = self.turn.write();
        } else {
            _shared = self.turn.read();
        }
        let kubectl = &self.cluster.kubectl;
        let number = self.namespaces.fetch_add(1, Ordering::Relaxed);
        let namespace = format!("scenario-{number}");
        kubectl.run(&["create", "namespace", &namespace])?;
        wait_for_account(self.cluster, &namespace)?;
        let outcome = (scenario.try_it)(self, &namespace);
        kubectl.run(&["delete", "namespace", &namespace, "--wait=false"])?;
        outcome
    }
}

/// Waits for the service account of a namespace's pods, without which there are none.
fn wait_for_account(cluster: &Cluster, namespace: &str) -> Result<()> {
    let secrets = || {
        cluster.kubectl.run(&[
            "get",
            "serviceaccount",
            "default",
            "--namespace",
            namespace,
            "--output=jsonpath={.secrets}",
        ])
    };
    let is_there = || secrets().is_ok_and(|secrets| !secrets.is_empty()).then_some(());
    let too_late = || format!("{namespace} gets no service account: {:?}", secrets()).into();
    wait::until(PATIENCE, is_there).ok_or_else(too_late)
}
