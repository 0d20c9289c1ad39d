//! The CNI plugin and the node's agent, as deploy/cni installs them.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use xtask::connections::{Client, Connection};
use xtask::shell::{Result, Run as _, root};

use crate::images;
use crate::kubectl::Kubectl;
use crate::machine::{NETWORKS, NODE, PLUGINS};
use crate::pod::{self, Pod};
use crate::services::NETWORK;
use crate::world::{Scenario, World};

/// The namespace that deploy/cni makes.
const AGENTS: &str = "linkerd-cni";

pub(crate) fn scenarios() -> Vec<Scenario> {
    // Whatever pod starts meanwhile gets the plugin too.
    vec![Scenario::new("the node's agent and the CNI plugin, from deploy/cni", installed).alone()]
}

/// What deploy/cni is changed in: the images' names, and flags of the chart's that other scenarios count on.
const CHANGES: [(&str, &str, &str); 4] = [
    ("kustomization.yaml", "REGISTRY/", "registry.example/"),
    ("config.yaml", r#""ipv6": false"#, r#""ipv6": true"#),
    (
        "config.yaml",
        r#"["4191", "4190"]"#,
        r#"["4190", "4191", "4567", "4568"], "outbound-ports-to-ignore": ["4567", "4568"]"#,
    ),
    // So that drift is seen soon.
    (
        "daemonset.yaml",
        r#""--admin-addr""#,
        r#""--verify-every", "3", "--admin-addr""#,
    ),
];

fn installed(world: &World<'_>, namespace: &str) -> Result<String> {
    let kubectl = &world.cluster.kubectl;
    let folder = copied()?;
    let folder = folder.to_string_lossy();
    let before = fs::read(NETWORK)?;
    let outcome = try_all(world, namespace, &folder, &before);
    // Pods of other scenarios are to start without it. It is gone already unless something failed.
    kubectl.output("", &["delete", "--kustomize", &folder, "--ignore-not-found"])?;
    outcome
}

fn try_all(world: &World<'_>, namespace: &str, folder: &str, before: &[u8]) -> Result<String> {
    let kubectl = &world.cluster.kubectl;
    install(kubectl, folder)?;
    // Meshed, unmeshed, and with annotations of the pod's own.
    let meshed = start(world, namespace, &injected("meshed"))?;
    meshed.try_injected(&world.neighbour, true)?;
    unmeshed(world, namespace, "unmeshed")?;
    let mut skipping = injected("skipping");
    skipping["metadata"]["annotations"] = json!({"config.linkerd.io/skip-inbound-ports": "8080"});
    let skipping = start(world, namespace, &skipping)?;
    skipping.try_injected_but(&world.neighbour, |connection: &mut Connection| {
        // In place of the configuration's own: the proxy's port for metrics, and what the application serves.
        if connection.client == Client::Neighbour && connection.to.port() != 4191 {
            connection.port = Some(if connection.to.port() == 8080 { 8080 } else { 4143 });
        }
    })?;
    // Another program takes a rule away.
    meshed.look("nft flush chain ip nat PROXY_INIT_REDIRECT")?;
    meshed.warned("LinkerdCNIDrifted")?;
    // The agent is replaced, as in an update: pods that start then get their rules.
    kubectl.run(&["rollout", "restart", "--namespace", AGENTS, "daemonset/linkerd-cni"])?;
    start(world, namespace, &injected("during-update"))?.try_injected(&world.neighbour, true)?;
    rolled(kubectl)?;
    // The API server is killed, and comes back.
    world.cluster.kill_service("kube-apiserver")?;
    world.cluster.start_service("kube-apiserver")?;
    world.cluster.wait_for_api()?;
    start(world, namespace, &injected("after-the-api-server"))?.try_injected(&world.neighbour, true)?;
    // A pod that starts without the plugin fails its validator. The agent, once it is back, mends it where it is.
    uninstall(kubectl, folder, before)?;
    let mut raced = injected("raced");
    raced["spec"]["initContainers"] = json!([validator()]);
    let raced = Pod::create(kubectl, namespace, &raced)?;
    let ended = raced.ended("linkerd-network-validator")?;
    if ended.code != 95 {
        return Err(format!("a pod without rules: {ended:?}").into());
    }
    install(kubectl, folder)?;
    raced.ready()?;
    raced.has_event("LinkerdCNIRepaired")?;
    raced.try_injected(&world.neighbour, true)?;
    uninstall(kubectl, folder, before)?;
    unmeshed(world, namespace, "afterwards")?;
    Ok(
        "meshed, unmeshed, annotated; drift reported; updated; API server killed and back; repaired in place; removed"
            .to_owned(),
    )
}

/// deploy/cni/base, changed.
fn copied() -> Result<std::path::PathBuf> {
    let folder = Path::new(NODE).join("deploy-cni");
    let base = root().join("deploy/cni/base");
    Command::new("cp").arg("--recursive").arg(base).arg(&folder).run()?;
    for (file, from, to) in CHANGES {
        let file = folder.join(file);
        let text = fs::read_to_string(&file)?;
        if !text.contains(from) {
            return Err(format!("{} has no {from}", file.display()).into());
        }
        fs::write(&file, text.replace(from, to))?;
    }
    Ok(folder)
}

fn install(kubectl: &Kubectl, folder: &str) -> Result<()> {
    // This version of Kubernetes doesn't know all of it; what it doesn't know, it leaves out.
    kubectl.run(&["apply", "--validate=false", "--kustomize", folder])?;
    rolled(kubectl)?;
    let list = fs::read_to_string(NETWORK)?;
    if !list.contains(r#""linkerd-cni""#) || !Path::new(PLUGINS).join("linkerd-cni").exists() {
        return Err(format!("the agent is ready, but the node has {list}").into());
    }
    Ok(())
}

/// Waits until the agent is ready.
fn rolled(kubectl: &Kubectl) -> Result<()> {
    kubectl.run(&[
        "rollout",
        "status",
        "--timeout=120s",
        "--namespace",
        AGENTS,
        "daemonset/linkerd-cni",
    ])?;
    Ok(())
}

/// The agent leaves the node as it was.
fn uninstall(kubectl: &Kubectl, folder: &str, before: &[u8]) -> Result<()> {
    kubectl.run(&["delete", "--kustomize", folder, "--timeout=120s"])?;
    let after = fs::read(NETWORK)?;
    if after != before {
        return Err(format!("{NETWORK} became {}", String::from_utf8_lossy(&after)).into());
    }
    let left: Vec<_> = [PLUGINS, NETWORKS]
        .iter()
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.contains("linkerd"))
        .collect();
    if left.is_empty() {
        Ok(())
    } else {
        Err(format!("left behind: {}", left.join(", ")).into())
    }
}

fn start<'a>(world: &World<'a>, namespace: &str, object: &Value) -> Result<Pod<'a>> {
    let pod = Pod::create(&world.cluster.kubectl, namespace, object)?;
    pod.ready()?;
    Ok(pod)
}

/// Starts a pod that the injector has left alone: the plugin tells by the proxy's container.
fn unmeshed(world: &World<'_>, namespace: &str, name: &str) -> Result<()> {
    let mut object = pod::plain(name);
    object["spec"]["containers"][0]["name"] = json!("other");
    let pod = start(world, namespace, &object)?;
    pod.try_connections(
        &world.neighbour,
        &pod.connections(&world.neighbour, false)?,
        ["app", "other"],
    )
}

/// A pod as the injector makes it where `cniEnabled` is set, but for the validator.
fn injected(name: &str) -> Value {
    let mut object = pod::plain(name);
    object["metadata"]["labels"]["linkerd.io/control-plane-ns"] = json!("linkerd");
    object["metadata"]["annotations"] = json!({"linkerd.io/proxy-version": "edge-1"});
    object
}

/// proxy-init in the place of Linkerd's network validator, as the chart runs that.
fn validator() -> Value {
    json!({
        "name": "linkerd-network-validator",
        "image": images::PROXY_INIT,
        "command": ["/usr/lib/linkerd/linkerd2-network-validator"],
        "args": [
            "--log-format", "plain", "--log-level", "debug", "--connect-addr", "1.1.1.1:20001",
            "--listen-addr", "[::]:4140", "--timeout", "10s"
        ],
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": true,
            "runAsNonRoot": true,
            "runAsUser": 65534,
            "seccompProfile": {"type": "RuntimeDefault"}
        }
    })
}
