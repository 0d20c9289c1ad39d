//! From one way to rules to another and back, as docs/node.md and the chart's README do it.

use std::process::{Child, Command};
use std::time::Instant;

use lab::VALUES;
use lab::images;
use lab::machine::NODE;
use lab::manifests::{self, injected, validated, validator};
use lab::shell::{Result, Run as _, root, target};
use lab::wait::wait_for;
use serde_json::{Value, json};

use crate::cni::{AGENTS, Agent, BASE, NRI, kill_agent, skips_8080, with_agent};
use crate::kubectl::{Space, TIMEOUT};
use crate::rollout::{Load, REPLICAS, check, workload};
use crate::world::{Scenario, World};

pub(crate) fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario::new("the node's agent, by the Helm chart with linkerd2-cni's values, to NRI and back", by_helm)
            .alone(),
        Scenario::new("the node's agent to NRI and back, by deploy/cni", by_kustomize).alone(),
        Scenario::new("pods by NRI without init containers, beside others", without_init_containers).alone(),
    ]
}

const WEB: &str = "deployment/web";

/// Starts a workload, and connections to its service.
fn serve(world: &World<'_>) -> Result<Load> {
    world.space.create(&workload("Deployment", REPLICAS, &validated("web")))?;
    world.space.rolled(WEB)?;
    check(world, None)?;
    Load::begin(world)
}

/// Starts the workload's pods again: those that start now get their rules.
fn restart(world: &World<'_>) -> Result<()> {
    world.space.run(&["rollout", "restart", WEB])?;
    world.space.rolled(WEB)?;
    check(world, None)
}

/// By Helm itself, in place of linkerd2-cni, as deploy/helm's README says.
fn by_helm(world: &World<'_>) -> Result<String> {
    let [cni, nri] = [Agent::new(world, BASE)?, Agent::new(world, NRI)?];
    let folder = target("cluster");
    let (chart, values) = (root().join("deploy/helm"), folder.join(VALUES));
    let [chart, values] = [chart, values].map(|path| path.to_string_lossy().into_owned());
    let helm = |arguments: &[&str]| {
        let mut helm = Command::new(folder.join("bin/helm"));
        helm.args(arguments).args(["--namespace", AGENTS, "--wait", "--timeout=300s"]);
        helm.envs(world.kubectl().environment()).read()
    };
    let test = || {
        let mut helm = Command::new(folder.join("bin/helm"));
        helm.args(["test", "linkerd2-cni", "--namespace", AGENTS, "--timeout=300s"]);
        helm.envs(world.kubectl().environment()).read()
    };
    let upgrade = |agent: &Agent<'_>, more: &[&str]| {
        let upgrade = ["upgrade", "--install", "--create-namespace", "linkerd2-cni", &chart, "--values", &values];
        helm(&[&upgrade[..], more].concat())?;
        // Helm waits for all nodes but as many as may be unavailable, which is the only one here.
        agent.rolled()
    };
    let work = || -> Result<String> {
        upgrade(&cni, &[])?;
        cni.is_installed()?;
        test()?;
        let load = serve(world)?;
        upgrade(&nri, &["--set", "agent.nri=true"])?;
        nri.gone()?;
        test()?;
        restart(world)?;
        upgrade(&cni, &[])?;
        cni.is_installed()?;
        restart(world)?;
        let load = load.end()?;
        upgrade(&cni, &["--set-json", r#"ignoreInboundPorts="4567,4568,8080""#])?;
        world.start_but(&injected("upgraded"), skips_8080)?;
        Ok(load)
    };
    let outcome = work();
    let uninstalled = helm(&["uninstall", "linkerd2-cni"]);
    world.kubectl().run(&["delete", "namespace", AGENTS, "--ignore-not-found", TIMEOUT])?;
    let load = outcome?;
    uninstalled?;
    cni.is_gone()?;
    Ok(format!("to NRI and back: {load}; a setting is changed; uninstalled, and the node is as it was"))
}

/// By kustomize. Its first agent ends as on a node that is down while its DaemonSet is deleted: the plugin stays.
fn by_kustomize(world: &World<'_>) -> Result<String> {
    let work = |cni: &Agent<'_>, nri: &Agent<'_>| {
        cni.install()?;
        let load = serve(world)?;
        nri.apply()?;
        restart(world)?;
        // It is sent by way of kubelet.
        let before = load.end()?;
        world.cluster.services.kill("kubelet")?;
        kill_agent()?;
        cni.space.delete(&[cni.way.daemonset, "--cascade=orphan"])?;
        cni.space.delete(&["pod", "--selector=k8s-app=linkerd-cni", "--force", "--grace-period=0"])?;
        world.cluster.start_service("kubelet")?;
        nri.gone()?;
        let load = Load::begin(world)?;
        restart(world)?;
        cni.apply()?;
        cni.is_installed()?;
        nri.space.delete(&[nri.way.daemonset])?;
        restart(world)?;
        let after = load.end()?;
        cni.skip_8080()?;
        world.start_but(&injected("upgraded"), skips_8080)?;
        cni.uninstall()?;
        Ok(format!(
            "{before}; a plugin that was left behind is removed; {after}; a setting is changed; the node is as it was"
        ))
    };
    with_agent(world, BASE, &[], |_, cni| with_agent(world, NRI, &["nri-events"], |_, nri| work(cni, nri)))
}

/// The component of that name: in a namespace with the label, the injector's init containers are taken out, and the pods have
/// their rules. Beside them, those of a namespace without the label keep theirs.
fn without_init_containers(world: &World<'_>) -> Result<String> {
    let beside = Space::new(world.kubectl(), &format!("{}-beside", world.space.name));
    world.kubectl().run(&["create", "namespace", &beside.name])?;
    beside.wait_for_account()?;
    let outcome = with_agent(world, NRI, &["nri-events", "without-init-containers"], |_, agent| {
        agent.install()?;
        let mut injector = start_injector(world, &beside)?;
        let outcome = try_injector(world, &beside, agent);
        injector.kill()?;
        injector.wait()?;
        world.kubectl().run(&["delete", "mutatingwebhookconfiguration", INJECTOR])?;
        outcome
    });
    world.kubectl().run(&["delete", "namespace", &beside.name, "--wait=false"])?;
    outcome
}

fn try_injector(world: &World<'_>, beside: &Space<'_>, agent: &Agent<'_>) -> Result<String> {
    const LABEL: &str = "proxy-init.io/without-init-containers";
    world.kubectl().run(&["label", "namespace", &world.space.name, &format!("{LABEL}=true")])?;
    // The API server has the policy and the webhook in its cache only a moment later.
    wait_for("a pod without init containers", || {
        let pod = world.space.make(&manifests::plain("first")).and_then(|pod| pod.object());
        let is_so = pod.is_ok_and(|pod| is_injected(&pod) && init_containers(&pod).is_empty());
        world.space.delete(&["pod", "first"]).is_ok() && is_so
    })?;
    let start = |space: &Space<'_>, expected: &[&str]| -> Result<f64> {
        let begun = Instant::now();
        let pod = space.start(&manifests::plain("web"))?;
        let took = begun.elapsed().as_secs_f64();
        let object = pod.object()?;
        if !is_injected(&object) || init_containers(&object) != expected {
            return Err(format!("not with the init containers {expected:?}: {object}").into());
        }
        world.try_meshed(&pod)?;
        Ok(took)
    };
    let without = start(&world.space, &[])?;
    let with = start(beside, &[manifests::INIT, "linkerd-network-validator"])?;
    // While no agent is there, such a pod starts outside of the mesh.
    agent.space.delete(&[agent.way.daemonset, "--cascade=foreground"])?;
    let early = world.space.start(&manifests::plain("early"))?;
    early.try_injected(&world.neighbour, false)?;
    agent.apply()?;
    early.has_event("LinkerdCNIRepaired")?;
    world.try_meshed(&early)?;
    Ok(format!(
        "ready after {without:.1} s, with init containers after {with:.1} s; one that started while no agent was there is \
         outside of the mesh, until the agent heals it"
    ))
}

/// Whether the injector's double has changed a pod.
fn is_injected(pod: &Value) -> bool {
    pod["metadata"]["annotations"]["linkerd.io/proxy-version"].is_string()
}

/// The names of a pod's init containers.
fn init_containers(pod: &Value) -> Vec<&str> {
    let containers = pod["spec"]["initContainers"].as_array().into_iter().flatten();
    containers.filter_map(|container| container["name"].as_str()).collect()
}

/// The webhook of Linkerd's injector, and of its double.
const INJECTOR: &str = "linkerd-proxy-injector-webhook-config";

/// Starts a double of Linkerd's injector for these two namespaces. It adds the init containers and the annotation.
fn start_injector(world: &World<'_>, beside: &Space<'_>) -> Result<Child> {
    const PORT: &str = "8443";
    let injected = injected("");
    let init = manifests::init(images::PROXY_INIT, &["--iptables-mode", "nft"]);
    let patch = json!([
        {"op": "add", "path": "/metadata/annotations", "value": injected["metadata"]["annotations"]},
        {"op": "add", "path": "/metadata/labels", "value": injected["metadata"]["labels"]},
        {"op": "add", "path": "/spec/initContainers", "value": [init, validator()]},
    ]);
    let keys = format!("{NODE}/keys");
    let [certificate, key] = ["crt", "key"].map(|file| format!("{keys}/apiserver.{file}"));
    let injector = Command::new("python3")
        .args(["-c", include_str!("injector.py"), PORT, &certificate, &key, &patch.to_string()])
        .spawn()?;
    let authority = Command::new("base64").args(["--wrap=0", &format!("{keys}/ca.crt")]).read()?;
    let namespaces = json!([{
        "key": "kubernetes.io/metadata.name", "operator": "In", "values": [world.space.name, beside.name]
    }]);
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": INJECTOR},
        "webhooks": [{
            "name": "linkerd-proxy-injector.linkerd.io",
            "clientConfig": {"url": format!("https://127.0.0.1:{PORT}/"), "caBundle": authority.trim()},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "namespaceSelector": {"matchExpressions": namespaces},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"]
        }]
    });
    world.space.create(&webhook)?;
    Ok(injector)
}
