//! Scenarios, and the world that they share.

use std::sync::atomic::{AtomicU32, Ordering};

use lab::connections::Connection;
use lab::manifests::{self, APP, PROXY};
use lab::shell::Result;
use serde_json::Value;

use crate::kubectl::{Kubectl, Space};
use crate::pod::Pod;
use crate::services::Cluster;

/// One thing that is tried: it makes its pods in its world's namespace.
pub(crate) type Scenario = lab::scenario::Scenario<World<'static>>;

/// The world of a scenario.
pub(crate) struct World<'a> {
    pub(crate) cluster: &'a Cluster,
    /// A pod without a mesh, which listens on ports 8080 and 4567; its container is `client`.
    pub(crate) neighbour: Pod<'a>,
    /// Its own.
    pub(crate) space: Space<'a>,
}

impl<'a> World<'a> {
    pub(crate) fn kubectl(&self) -> &'a Kubectl {
        &self.cluster.kubectl
    }

    /// Really makes the connections of a pod that has rules with the chart's flags.
    pub(crate) fn try_meshed(&self, pod: &Pod<'_>) -> Result<()> {
        pod.try_injected(&self.neighbour, true)
    }

    /// Starts such a pod.
    pub(crate) fn start_meshed(&self, object: &Value) -> Result<Pod<'a>> {
        let pod = self.space.start(object)?;
        self.try_meshed(&pod)?;
        Ok(pod)
    }

    /// Makes its namespace one of Pod Security's level `restricted`, or one of no level.
    pub(crate) fn restrict(&self, restricted: bool) -> Result<()> {
        let level = if restricted { "=restricted" } else { "-" };
        let label = format!("pod-security.kubernetes.io/enforce{level}");
        self.kubectl().run(&["label", "namespace", &self.space.name, &label]).map(drop)
    }

    /// Starts one with other rules: `differs` changes what is expected with the chart's.
    pub(crate) fn start_but(&self, object: &Value, differs: impl Fn(&mut Connection)) -> Result<()> {
        let pod = self.space.start(object)?;
        let mut connections = pod.connections(&self.neighbour, true)?;
        connections.iter_mut().for_each(differs);
        pod.try_connections(&self.neighbour, &connections, [APP, PROXY])
    }
}

/// Makes the neighbour of all scenarios.
pub(crate) fn make_neighbour(cluster: &Cluster) -> Result<Pod<'_>> {
    let space = Space::new(&cluster.kubectl, "default");
    space.wait_for_account()?;
    space.start(&manifests::neighbour())
}

/// Tries a scenario in a namespace of its own, which is deleted after it.
pub(crate) fn try_scenario(cluster: &'static Cluster, neighbour: &Pod<'static>, scenario: &Scenario) -> Result<String> {
    static NAMESPACES: AtomicU32 = AtomicU32::new(0);
    let number = NAMESPACES.fetch_add(1, Ordering::Relaxed);
    let space = Space::new(&cluster.kubectl, &format!("scenario-{number}"));
    let world = World { cluster, neighbour: neighbour.clone(), space };
    let delete = ["delete", "namespace", &world.space.name, "--wait=false"];
    world.kubectl().run(&["create", "namespace", &world.space.name])?;
    world.space.wait_for_account()?;
    let outcome = scenario.try_in(&world);
    world.kubectl().run(&delete)?;
    outcome
}
