//! From linkerd-init to proxy-init and back, as docs/rollout.md does it, while connections are made all the time.

use lab::images;
use lab::manifests::{self, INIT};
use lab::shell::Result;
use serde_json::{Value, json};

use crate::pod::Started;
use crate::world::{Scenario, World};

/// The number of pods that serve.
pub(crate) const REPLICAS: usize = 2;

pub(crate) fn scenarios() -> Vec<Scenario> {
    ["Deployment", "StatefulSet"]
        .map(|kind| {
            Scenario::new(format!("rollout of a {kind} under load, to proxy-init and back"), move |world| {
                rolled(world, kind)
            })
        })
        .into()
}

/// linkerd-init in legacy mode, proxy-init in nft mode, and linkerd-init again.
fn rolled(world: &World<'_>, kind: &str) -> Result<String> {
    let linkerd = linkerd_init();
    let ours = manifests::init(images::PROXY_INIT, &["--iptables-mode", "nft"]);
    let with = |init: &Value| workload(kind, REPLICAS, &manifests::meshed("web", init));
    world.space.create(&with(&linkerd))?;
    let name = format!("{kind}/web");
    world.space.rolled(&name)?;
    check(world, Some(images::LINKERD_INIT))?;
    let load = Load::begin(world)?;
    for (init, image) in [(&ours, images::PROXY_INIT), (&linkerd, images::LINKERD_INIT)] {
        world.space.hand_over("replace", &with(init))?;
        world.space.rolled(&name)?;
        check(world, Some(image))?;
    }
    load.end()
}

/// A client that makes connections to the workload all the while. Every one has to be answered, and by a proxy.
pub(crate) struct Load(Started);

impl Load {
    pub(crate) fn begin(world: &World<'_>) -> Result<Self> {
        world.space.hand_over("apply", &service())?;
        let found = world.space.json(&["get", "service", "web"])?;
        let address = found["spec"]["clusterIP"].as_str().ok_or("a service without an address")?;
        Ok(Self(world.neighbour.start("client", &["/peer", "load", &format!("{address}:8080")])?))
    }

    /// Ends it, and says how many connections there were.
    pub(crate) fn end(self) -> Result<String> {
        let said = self.0.end()?;
        let total = said.trim().strip_suffix(" answered by port 4143");
        match total.map(str::parse::<u64>) {
            Some(Ok(total)) if total > 100 => Ok(format!("{total} connections, of which none was lost")),
            _ => Err(said.into()),
        }
    }
}

/// The init container that stands in for linkerd-init.
pub(crate) fn linkerd_init() -> Value {
    json!({
        "name": INIT,
        "image": images::LINKERD_INIT,
        "securityContext": {"capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}},
        "volumeMounts": [{"name": "linkerd-proxy-init-xtables-lock", "mountPath": "/run"}]
    })
}

/// All pods that stay have the chart's rules and, if one is given, this init image.
pub(crate) fn check(world: &World<'_>, image: Option<&str>) -> Result<()> {
    let stay = world.space.pods()?;
    if stay.len() != REPLICAS {
        return Err(format!("{} pods instead of {REPLICAS}", stay.len()).into());
    }
    for pod in stay {
        if image.is_some_and(|image| pod.pointer("/spec/initContainers/0/image") != Some(&json!(image))) {
            return Err(format!("a pod that has not {image:?}: {pod}").into());
        }
        let name = pod.pointer("/metadata/name").and_then(Value::as_str);
        world.try_meshed(&world.space.pod(name.ok_or("a pod without a name")?))?;
    }
    Ok(())
}

fn service() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 8080}]}
    })
}

/// A workload of so many such pods. They go on for a while after they are told to end: as long as kube-proxy may need to
/// send connections elsewhere.
pub(crate) fn workload(kind: &str, replicas: usize, pod: &Value) -> Value {
    let mut template = json!({"metadata": pod["metadata"], "spec": pod["spec"]});
    template["metadata"]["labels"]["app"] = json!("web");
    template["spec"]["terminationGracePeriodSeconds"] = json!(5);
    for container in template["spec"]["containers"].as_array_mut().into_iter().flatten() {
        if container["name"] == "app" {
            container["readinessProbe"] = json!({"tcpSocket": {"port": 8080}, "periodSeconds": 1});
        }
    }
    let mut workload = json!({
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": "web"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    });
    if kind == "Deployment" {
        workload["spec"]["strategy"] = json!({"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}});
    } else {
        workload["spec"]["serviceName"] = json!("web");
    }
    workload
}
