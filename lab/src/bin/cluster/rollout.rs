//! From linkerd-init to proxy-init and back, as docs/rollout.md does it, while connections are made all the time.

use lab::shell::Result;
use serde_json::{Value, json};

use crate::images;
use crate::pod::{self, INIT, Pod};
use crate::world::{Scenario, World};

/// How many pods serve.
const REPLICAS: usize = 2;

pub(crate) fn scenarios() -> Vec<Scenario> {
    ["Deployment", "StatefulSet"]
        .map(|kind| {
            Scenario::new(format!("rollout of a {kind} under load, to proxy-init and back"), move |world| {
                rolled(world, kind)
            })
        })
        .into()
}

/// linkerd-init in legacy mode, proxy-init in nft mode, and linkerd-init again. A client makes connections to the service; every
/// one has to be answered, and by a proxy.
fn rolled(world: &World<'_>, kind: &str) -> Result<String> {
    let namespace = world.namespace.as_str();
    let kubectl = &world.cluster.kubectl;
    let linkerd = linkerd_init();
    let ours = pod::init(images::PROXY_INIT, &["--iptables-mode", "nft"]);
    kubectl.create(namespace, &service())?;
    kubectl.create(namespace, &workload(kind, REPLICAS, &linkerd))?;
    let workload_name = format!("{kind}/web");
    wait_until_rolled(world, &workload_name)?;
    check(world, images::LINKERD_INIT)?;
    let found = kubectl.json(&["get", "service", "--namespace", namespace, "web"])?;
    let address = found["spec"]["clusterIP"].as_str().ok_or("a service without an address")?;
    let load = world.neighbour.start("client", &["/peer", "load", &format!("{address}:8080")])?;
    for (init, image) in [(&ours, images::PROXY_INIT), (&linkerd, images::LINKERD_INIT)] {
        kubectl.run_with(
            &workload(kind, REPLICAS, init).to_string(),
            &["replace", "--namespace", namespace, "--filename=-"],
        )?;
        wait_until_rolled(world, &workload_name)?;
        check(world, image)?;
    }
    let said = load.end()?;
    let total = said.trim().strip_suffix(" answered by port 4143");
    match total.map(str::parse::<u64>) {
        Some(Ok(total)) if total > 100 => Ok(format!("{total} connections, of which none was lost")),
        _ => Err(said.into()),
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

/// Waits until all pods are new ones and ready.
pub(crate) fn wait_until_rolled(world: &World<'_>, workload: &str) -> Result<()> {
    let namespace = world.namespace.as_str();
    let arguments = ["rollout", "status", "--timeout=300s", "--namespace", namespace, workload];
    world.cluster.kubectl.run(&arguments)?;
    Ok(())
}

/// All pods that stay have this init image, and the chart's rules.
fn check(world: &World<'_>, image: &str) -> Result<()> {
    let namespace = world.namespace.as_str();
    let kubectl = &world.cluster.kubectl;
    let pods = kubectl.json(&["get", "pods", "--namespace", namespace])?;
    let pods = pods["items"].as_array().cloned().unwrap_or_default();
    let stays = |pod: &&Value| pod.pointer("/metadata/deletionTimestamp").is_none();
    let stay: Vec<_> = pods.iter().filter(stays).collect();
    if stay.len() != REPLICAS {
        return Err(format!("{} pods instead of {REPLICAS}", stay.len()).into());
    }
    for pod in stay {
        if pod.pointer("/spec/initContainers/0/image") != Some(&json!(image)) {
            return Err(format!("a pod that has not {image}: {pod}").into());
        }
        let name = pod.pointer("/metadata/name").and_then(Value::as_str);
        Pod::new(kubectl, namespace, name.ok_or("a pod without a name")?).try_injected(&world.neighbour, true)?;
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

/// A workload of so many pods with this init container. They go on for a while after they are told to end: as long as kube-proxy may
/// need to send connections elsewhere.
pub(crate) fn workload(kind: &str, replicas: usize, init: &Value) -> Value {
    let mut spec = pod::specification(&[init]);
    spec["terminationGracePeriodSeconds"] = json!(5);
    for container in spec["containers"].as_array_mut().into_iter().flatten() {
        if container["name"] == "app" {
            container["readinessProbe"] = json!({"tcpSocket": {"port": 8080}, "periodSeconds": 1});
        }
    }
    let mut workload = json!({
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": spec}
        }
    });
    if kind == "Deployment" {
        workload["spec"]["strategy"] = json!({"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}});
    } else {
        workload["spec"]["serviceName"] = json!("web");
    }
    workload
}
