//! Scenarios, and the world that they share.

use std::sync::atomic::{AtomicU32, Ordering};

use lab::shell::Result;
use lab::wait;
use serde_json::json;

use crate::images;
use crate::pod::Pod;
use crate::services::{Cluster, PATIENCE};

/// One thing that is tried: it makes its pods in its world's namespace.
pub(crate) type Scenario = lab::scenario::Scenario<World<'static>>;

/// The world of a scenario.
pub(crate) struct World<'a> {
    pub(crate) cluster: &'a Cluster,
    /// A pod without a mesh, which listens on ports 8080 and 4567; its container is `client`.
    pub(crate) neighbour: Pod<'a>,
    /// Of Kubernetes, and its own.
    pub(crate) namespace: String,
}

/// Makes the neighbour of all scenarios.
pub(crate) fn make_neighbour(cluster: &Cluster) -> Result<Pod<'_>> {
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
    Ok(neighbour)
}

/// Tries a scenario in a namespace of its own, which is deleted after it.
pub(crate) fn try_scenario(cluster: &'static Cluster, neighbour: &Pod<'static>, scenario: &Scenario) -> Result<String> {
    static NAMESPACES: AtomicU32 = AtomicU32::new(0);
    let number = NAMESPACES.fetch_add(1, Ordering::Relaxed);
    let world = World { cluster, neighbour: neighbour.clone(), namespace: format!("scenario-{number}") };
    let (kubectl, namespace) = (&cluster.kubectl, world.namespace.as_str());
    kubectl.run(&["create", "namespace", namespace])?;
    wait_for_account(cluster, namespace)?;
    let outcome = scenario.try_in(&world);
    kubectl.run(&["delete", "namespace", namespace, "--wait=false"])?;
    outcome
}

/// Waits for the service account of a namespace's pods, without which there are none.
fn wait_for_account(cluster: &Cluster, namespace: &str) -> Result<()> {
    let account = || cluster.kubectl.run(&["get", "serviceaccount", "default", "--namespace", namespace]);
    let is_there = || account().is_ok().then_some(());
    let too_late = || format!("{namespace} gets no service account: {:?}", account()).into();
    wait::until(PATIENCE, is_there).ok_or_else(too_late)
}
