//! The CNI plugin and the node's agent, as deploy/cni installs them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::cluster::VALUES;
use lab::connections::{Client, Connection};
use lab::shell::{Result, Run as _, root, target};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::images;
use crate::kubectl::Kubectl;
use crate::machine::{NETWORKS, PLUGINS};
use crate::pod::{self, Pod};
use crate::services::{NETWORK, wait_for};
use crate::world::{Scenario, World};

/// How long kubectl waits for what it has begun, on a machine that others use too.
const TIMEOUT: &str = "--timeout=300s";

/// The namespace that deploy/cni makes.
const AGENTS: &str = "linkerd-cni";

pub(crate) fn scenarios() -> Vec<Scenario> {
    let all: [(&str, Work); 6] = [
        ("the node's agent and the CNI plugin, from deploy/cni", |world| with_agent(world, BASE, &[], live)),
        ("the node's agent, with a plugin that asks the API server", |world| {
            with_agent(world, BASE, &["api"], check_api_reader)
        }),
        ("the node's agent: a taint, many pods at once, a reboot", |world| {
            with_agent(world, BASE, &["taint"], outlive)
        }),
        ("the node's agent is gone, and the plugin stays or goes", |world| with_agent(world, BASE, &[], leave)),
        ("the node's agent by NRI, from deploy/cni", |world| with_agent(world, NRI, &["nri-events"], live_by_nri)),
        ("the node's agent, by the Helm chart with linkerd2-cni's values", by_helm),
    ];
    // Other pods that start meanwhile would get the plugin too.
    all.map(|(name, work)| Scenario::new(name, work).alone()).into()
}

type Work = fn(&World<'_>) -> Result<String>;

/// How many pods start at once.
const MANY: i64 = 20;

/// The taint that keeps pods away until the plugin is there.
const TAINT: &str = "linkerd.io/cni-not-ready";

/// A way to rules: the folder of deploy/cni, its DaemonSet, and where that answers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way {
    folder: &'static str,
    daemonset: &'static str,
    port: u16,
}
pub(crate) const BASE: Way = Way { folder: "base", daemonset: "linkerd-cni", port: 9990 };
pub(crate) const NRI: Way = Way { folder: "overlays/nri", daemonset: "linkerd-nri", port: 9992 };

/// deploy/cni, to be installed.
pub(crate) struct Agent<'a> {
    kubectl: &'a Kubectl,
    way: Way,
    /// The folder for `kubectl apply --kustomize`.
    folder: String,
    /// The network configuration without the plugin.
    before: Value,
}

/// Where it is, changed.
const CHANGED: &str = "/run/node/deploy-cni";

/// A file of deploy/cni, and what of it is replaced, and by what.
type Change = (&'static str, &'static str, &'static str);

/// An image that is there, drift that is seen early, and ports for the connections that scenarios try, in both families.
const CHANGES: [Change; 7] = [
    ("base/kustomization.yaml", "REGISTRY/", "registry.example/"),
    ("base/daemonset.yaml", r#""--admin-addr""#, r#""--verify-every", "3", "--admin-addr""#),
    ("overlays/nri/kustomization.yaml", r#""--admin-addr""#, r#""--verify-every", "3", "--admin-addr""#),
    ("base/config.yaml", IPV6.0, IPV6.1),
    ("base/config.yaml", PORTS.0, PORTS.1),
    ("components/api/kustomization.yaml", IPV6.0, IPV6.1),
    ("components/api/kustomization.yaml", PORTS.0, PORTS.1),
];
const IPV6: (&str, &str) = (r#""ipv6": false"#, r#""ipv6": true"#);
const PORTS: (&str, &str) =
    (r#"["4191", "4190"]"#, r#"["4190", "4191", "4567", "4568"], "outbound-ports-to-ignore": ["4567", "4568"]"#);

/// Does this with deploy/cni by one of the ways and with these components, which is gone afterwards.
pub(crate) fn with_agent(
    world: &World<'_>,
    way: Way,
    components: &[&str],
    work: impl FnOnce(&World<'_>, &Agent<'_>) -> Result<String>,
) -> Result<String> {
    let kubectl = &world.cluster.kubectl;
    let folder = changed(way, components)?.to_string_lossy().into_owned();
    let agent = Agent { kubectl, way, folder, before: network()? };
    let outcome = work(world, &agent);
    // Pods of other scenarios are to start without it. It is gone already unless something failed.
    kubectl.output("", &["delete", "--kustomize", &agent.folder, "--ignore-not-found", TIMEOUT])?;
    outcome
}

/// By Helm itself, in place of linkerd2-cni, as deploy/helm's README says.
fn by_helm(world: &World<'_>) -> Result<String> {
    let (kubectl, neighbour) = (&world.cluster.kubectl, &world.neighbour);
    let agent = Agent { kubectl, way: BASE, folder: String::new(), before: network()? };
    let folder = target("cluster");
    let (chart, values) = (root().join("deploy/helm"), folder.join(VALUES));
    let [chart, values] = [chart, values].map(|path| path.to_string_lossy().into_owned());
    let helm = |arguments: &[&str]| {
        let mut helm = Command::new(folder.join("bin/helm"));
        helm.args(arguments).args(["--namespace", AGENTS, "--wait", "--timeout=300s"]);
        helm.envs(kubectl.environment()).read()
    };
    let upgrade = |more: &[&str]| {
        let upgrade = ["upgrade", "--install", "--create-namespace", "linkerd2-cni", &chart, "--values", &values];
        helm(&[&upgrade[..], more].concat())?;
        // Helm waits for all nodes but as many as may be unavailable, which is the only one here.
        agent.rolled()
    };
    let work = || -> Result<()> {
        upgrade(&[])?;
        agent.is_installed()?;
        start(world, &injected("charted"))?.try_injected(neighbour, true)?;
        upgrade(&["--set-json", r#"ignoreInboundPorts="4567,4568,8080""#])?;
        start(world, &injected("upgraded"))?.try_injected_but(neighbour, skips_8080)
    };
    let outcome = work();
    let uninstalled = helm(&["uninstall", "linkerd2-cni"]);
    kubectl.run(&["delete", "namespace", AGENTS, "--ignore-not-found", TIMEOUT])?;
    outcome?;
    uninstalled?;
    agent.is_gone()?;
    Ok("a pod has its rules, and another one those of an upgrade; uninstalled, and the node is as it was".to_owned())
}

fn live(world: &World<'_>, agent: &Agent<'_>) -> Result<String> {
    let namespace = world.namespace.as_str();
    let kubectl = agent.kubectl;
    agent.install()?;
    // Meshed, unmeshed, and with annotations of the pod's own.
    let meshed = start(world, &injected("meshed"))?;
    meshed.try_injected(&world.neighbour, true)?;
    try_kinds(world)?;
    // The plugin is never called for a pod with the node's network, and the agent leaves it alone: the pods above are all
    // that it counts, a look at them after it has seen this one.
    let mut host = injected("host");
    host["spec"]["hostNetwork"] = json!(true);
    let host = start(world, &host)?;
    // Another program takes rules away, and adds one.
    meshed.look("nft flush chain ip nat PROXY_INIT_REDIRECT")?;
    meshed.has_event("LinkerdCNIRepaired")?;
    meshed.look("nft insert rule ip nat PROXY_INIT_OUTPUT tcp dport 5432 return")?;
    meshed.warned("LinkerdCNIDrifted")?;
    let standings = ["new", "in_place", "drifted", "not_known"];
    let meshed_pods =
        standings.map(|standing| agent.metric(&format!(r#"linkerd_cni_agent_pods{{standing="{standing}"}}"#)));
    let meshed_pods = meshed_pods.into_iter().sum::<Option<i64>>();
    let log = agent.log()?;
    let of_plugin = |pod: &Pod<'_>| log.contains(&format!("pod=\"{namespace}/{}\"", pod.name));
    let rules = Command::new("nft").args(["list", "ruleset"]).read()?;
    let events = host.events()?.join("; ");
    if meshed_pods != Some(1 + KINDS)
        || !of_plugin(&meshed)
        || of_plugin(&host)
        || rules.contains("PROXY_INIT")
        || events.contains("LinkerdCNI")
    {
        return Err(format!("with hostNetwork: {meshed_pods:?} meshed pods; {events}; {log}; {rules}").into());
    }
    kubectl.run(&["delete", "pod", "--namespace", namespace, "host"])?;
    restart_api_server(world)?;
    // The agent is replaced, as in an update, and rolled back: pods that start then get their rules.
    for (what, name) in [("restart", "during-update"), ("undo", "during-rollback")] {
        kubectl.run(&["rollout", what, "--namespace", AGENTS, "daemonset/linkerd-cni"])?;
        start(world, &injected(name))?.try_injected(&world.neighbour, true)?;
        agent.rolled()?;
    }
    agent.uninstall()?;
    race(world, agent)?;
    agent.uninstall()?;
    unmeshed(world, "afterwards")?;
    Ok(format!(
        "{TRIED_KINDS}; rules put back, and drift reported; updated and rolled back; API server killed and back; repaired in \
         place; removed"
    ))
}

/// How many meshed pods [`try_kinds`] leaves, and what it tries.
const KINDS: i64 = 4;
const TRIED_KINDS: &str =
    "meshed, unmeshed, annotated, a native sidecar, users of its own, Pod Security's level restricted";

/// Pods of each kind, whose connections go where their rules say.
fn try_kinds(world: &World<'_>) -> Result<()> {
    let neighbour = &world.neighbour;
    let (kubectl, namespace) = (&world.cluster.kubectl, world.namespace.as_str());
    unmeshed(world, "unmeshed")?;
    start(world, &annotated("skipping"))?.try_injected_but(neighbour, skips_8080)?;
    let mut sidecar = injected("sidecar");
    let mut proxy = sidecar["spec"]["containers"].as_array_mut().ok_or("no containers")?.remove(0);
    proxy["restartPolicy"] = json!("Always");
    sidecar["spec"]["initContainers"] = json!([validator(), proxy]);
    start(world, &sidecar)?.try_injected(neighbour, true)?;
    let mut own_users = injected("own-users");
    own_users["spec"]["hostUsers"] = json!(false);
    start(world, &own_users)?.try_injected(neighbour, true)?;
    // Without an init container that needs NET_ADMIN, a pod is admitted at the strictest level.
    let level = "pod-security.kubernetes.io/enforce";
    kubectl.run(&["label", "namespace", namespace, &format!("{level}=restricted")])?;
    let mut restricted = injected("restricted");
    restricted["spec"]["initContainers"] = json!([validator()]);
    let security_context = validator()["securityContext"].take();
    for container in restricted["spec"]["containers"].as_array_mut().into_iter().flatten() {
        let user = container["securityContext"]["runAsUser"].take();
        container["securityContext"] = security_context.clone();
        container["securityContext"]["runAsUser"] = user;
    }
    start(world, &restricted)?.try_injected(neighbour, true)?;
    kubectl.run(&["label", "namespace", namespace, &format!("{level}-")]).map(drop)
}

/// A pod that starts where no agent is fails its validator. The agent, once it is back, mends it where it is.
fn race(world: &World<'_>, agent: &Agent<'_>) -> Result<()> {
    let mut raced = injected("raced");
    raced["spec"]["initContainers"] = json!([validator()]);
    let raced = Pod::create(agent.kubectl, &world.namespace, &raced)?;
    let ended = raced.ended("linkerd-network-validator")?;
    if ended.code != 95 {
        return Err(format!("a pod without rules: {ended:?}").into());
    }
    agent.install()?;
    raced.ready()?;
    raced.has_event("LinkerdCNIRepaired")?;
    raced.try_injected(&world.neighbour, true)
}

/// The overlay nri: the runtime tells the agent of each pod, and there is no plugin.
fn live_by_nri(world: &World<'_>, agent: &Agent<'_>) -> Result<String> {
    let kubectl = agent.kubectl;
    agent.install()?;
    let meshed = start(world, &injected("meshed"))?;
    meshed.try_injected(&world.neighbour, true)?;
    try_kinds(world)?;
    meshed.look("nft flush chain ip nat PROXY_INIT_REDIRECT")?;
    meshed.has_event("LinkerdCNIRepaired")?;
    meshed.look("nft insert rule ip nat PROXY_INIT_OUTPUT tcp dport 5432 return")?;
    meshed.warned("LinkerdCNIDrifted")?;
    kubectl.run(&["rollout", "restart", "--namespace", AGENTS, "daemonset/linkerd-nri"])?;
    agent.rolled()?;
    kubectl.run(&["delete", "daemonset", "--namespace", AGENTS, "linkerd-nri", "--cascade=foreground"])?;
    race(world, agent)?;
    // After a reboot, a pod may start before the agent, which then heals it.
    world.cluster.reboot()?;
    world.neighbour.ready_again()?;
    meshed.ready_again()?;
    agent.pod()?.ready_again()?;
    wait_for("rules after a reboot", || meshed.try_injected(&world.neighbour, true).is_ok())?;
    agent.uninstall()?;
    unmeshed(world, "afterwards")?;
    Ok(format!("{TRIED_KINDS}; rules put back, and drift reported; updated; repaired in place; a reboot; removed"))
}

/// The API server is killed, and comes back. The agent's watches may be back only half a minute later.
fn restart_api_server(world: &World<'_>) -> Result<()> {
    world.cluster.kill_service("kube-apiserver")?;
    world.cluster.start_service("kube-apiserver")?;
    world.cluster.wait_for_api()?;
    start(world, &injected("after-the-api-server"))?.try_injected(&world.neighbour, true)
}

/// The cases that the API server tells, and the runtime doesn't.
fn check_api_reader(world: &World<'_>, agent: &Agent<'_>) -> Result<String> {
    let namespace = world.namespace.as_str();
    let kubectl = agent.kubectl;
    agent.install()?;
    start(world, &injected("meshed"))?.try_injected(&world.neighbour, true)?;
    restart_api_server(world)?;
    unmeshed(world, "unmeshed")?;
    start(world, &annotated("skipping"))?.try_injected_but(&world.neighbour, skips_8080)?;
    // With the same annotation of its namespace's, which the injector would have copied.
    kubectl.run(&["annotate", "namespace", namespace, &format!("{SKIPS}=8080")])?;
    start(world, &injected("of-namespace"))?.try_injected_but(&world.neighbour, skips_8080)?;
    wait_for("a look at each pod", || agent.in_place() == Some(4))?;
    kubectl.run(&["annotate", "namespace", namespace, &format!("{SKIPS}-")])?;
    // The control plane's pods have to reach the API server without a proxy.
    let mut destination = injected("destination");
    destination["metadata"]["labels"]["linkerd.io/control-plane-component"] = json!("destination");
    let destination = start(world, &destination)?;
    destination.try_injected(&world.neighbour, true)?;
    let rules = destination.look("nft list chain ip nat PROXY_INIT_OUTPUT")?;
    if !rules.contains("443") {
        return Err(format!("a pod of the control plane's has {rules}").into());
    }
    // kubelet asks for a new token when it starts.
    let kubeconfig = Path::new(NETWORKS).join("ZZZ-linkerd-cni-kubeconfig");
    let old = fs::read(&kubeconfig)?;
    world.cluster.kill_service("kubelet")?;
    world.cluster.start_service("kubelet")?;
    wait_for("a new token", || fs::read(&kubeconfig).is_ok_and(|new| new != old))?;
    start(world, &injected("new-token"))?.try_injected(&world.neighbour, true)?;
    agent.uninstall()?;
    unmeshed(world, "afterwards")?;
    Ok(
        "meshed, unmeshed, annotated, annotated by its namespace, control plane; API server killed and back; a new token; \
         removed"
            .to_owned(),
    )
}

/// The agent ends, and none follows: whether the plugin goes is up to what is certain.
fn leave(world: &World<'_>, agent: &Agent<'_>) -> Result<String> {
    let namespace = world.namespace.as_str();
    let kubectl = agent.kubectl;
    let pod_starts = |name: &str| start(world, &injected(name))?.try_injected(&world.neighbour, true);
    let in_namespace = |arguments: &[&str]| kubectl.run(&[arguments, &["--namespace", AGENTS]].concat());
    let end_agent = || in_namespace(&["delete", "pod", "--selector=k8s-app=linkerd-cni"]);
    agent.install()?;
    // The DaemonSet no longer selects the node.
    let select = |value: Value| {
        let patch = json!({"spec": {"template": {"spec": {"nodeSelector": {"non-existing": value}}}}});
        in_namespace(&["patch", "daemonset", "linkerd-cni", "--patch", &patch.to_string()])
    };
    select(json!("true"))?;
    wait_for("a node without the plugin", || agent.is_gone().is_ok())?;
    select(Value::Null)?;
    agent.rolled()?;
    agent.is_installed()?;
    // Its account is deleted, and so it is refused.
    in_namespace(&["delete", "serviceaccount", "linkerd-cni"])?;
    end_agent()?;
    agent.is_installed()?;
    pod_starts("without-account")?;
    agent.install()?;
    // It is killed with no time to do anything.
    in_namespace(&["delete", "pod", "--selector=k8s-app=linkerd-cni", "--force", "--grace-period=0"])?;
    agent.rolled()?;
    agent.is_installed()?;
    // Its DaemonSet leaves it behind, and it is killed before it ends: to the next process of the same pod, nothing says
    // whether another agent follows.
    in_namespace(&["delete", "daemonset", "linkerd-cni", "--cascade=orphan"])?;
    let left_behind = agent.pod()?;
    kill_agent()?;
    left_behind.ready_again()?;
    end_agent()?;
    agent.is_installed()?;
    pod_starts("without-agent")?;
    // By hand, as docs/node.md has it.
    let image = format!("--image={}", images::AGENT);
    let uninstall = ["--", "/usr/lib/linkerd/linkerd-cni-agent", "uninstall"];
    let debug = ["debug", "node/node", "--profile=sysadmin", &image, "--namespace", namespace];
    kubectl.run(&[&debug[..], &uninstall].concat())?;
    wait_for("a node without the plugin", || agent.is_gone().is_ok())?;
    agent.uninstall()?;
    Ok(
        "removed from a node that the DaemonSet doesn't select, and by hand; kept when the account was deleted, and when the \
         agent was killed or left behind"
            .to_owned(),
    )
}

/// Kills the agent's process. kubelet starts another one.
fn kill_agent() -> Result<()> {
    // A process's name has 15 letters.
    let is_agent =
        |process: &PathBuf| fs::read_to_string(process.join("comm")).is_ok_and(|name| name.trim() == "linkerd-cni-age");
    let process = fs::read_dir("/proc")?.flatten().map(|entry| entry.path()).find(is_agent);
    let process = process.and_then(|process| process.file_name()?.to_str()?.parse().ok());
    Ok(kill(Pid::from_raw(process.ok_or("no agent runs")?), Signal::SIGKILL)?)
}

/// In place of the configuration's own ports: the proxy's port for metrics, and what the application serves.
fn skips_8080(connection: &mut Connection) {
    if connection.client == Client::Neighbour && connection.to.port() != 4191 {
        connection.port = Some(if connection.to.port() == 8080 { 8080 } else { 4143 });
    }
}

fn outlive(world: &World<'_>, agent: &Agent<'_>) -> Result<String> {
    let namespace = world.namespace.as_str();
    let kubectl = agent.kubectl;
    // A node that is born with the taint.
    let taint = format!("{TAINT}=:NoSchedule");
    kubectl.run(&["taint", "node", "node", &taint])?;
    agent.install()?;
    wait_for("the node without the taint", || {
        let node = kubectl.json(&["get", "node", "node"]);
        node.is_ok_and(|node| !node["spec"]["taints"].to_string().contains(TAINT))
    })?;
    // Many pods at once: the plugin sets each of them up, and none has to be healed.
    let mut spec = pod::specification(&[]);
    spec["terminationGracePeriodSeconds"] = json!(0);
    let template = json!({"metadata": {"labels": {"app": "many", "linkerd.io/control-plane-ns": "linkerd"},
            "annotations": {"linkerd.io/proxy-version": "edge-1"}}, "spec": spec});
    let many = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "many"},
        "spec": {"replicas": MANY, "selector": {"matchLabels": {"app": "many"}}, "template": template}});
    kubectl.create(namespace, &many)?;
    kubectl.run(&["rollout", "status", "--timeout=300s", "--namespace", namespace, "deployment/many"])?;
    wait_for("a look at each of many pods", || agent.in_place() == Some(MANY))?;
    if agent.metric("linkerd_cni_agent_repair_seconds_count") != Some(0) {
        return Err("of many pods that started at once, one had to be healed".into());
    }
    kubectl.run(&["delete", "deployment", "many", "--namespace", namespace])?;
    let meshed = start(world, &injected("meshed"))?;
    meshed.try_injected(&world.neighbour, true)?;
    // After a reboot, kubelet starts each pod in a new sandbox: meshed ones get their rules, by the plugin.
    world.cluster.reboot()?;
    world.neighbour.ready_again()?;
    meshed.ready_again()?;
    meshed.try_injected(&world.neighbour, true)?;
    agent.pod()?.ready_again()?;
    start(world, &injected("after-reboot"))?.try_injected(&world.neighbour, true)?;
    if agent.metric("linkerd_cni_agent_repair_seconds_count") != Some(0) {
        return Err("after a reboot, a pod had to be healed".into());
    }
    agent.uninstall()?;
    Ok(format!("the taint is gone once the node is ready; {MANY} pods at once; a reboot; removed"))
}

/// deploy/cni, changed, and a folder in it that takes this way and these components.
fn changed(way: Way, components: &[&str]) -> Result<PathBuf> {
    let folder = Path::new(CHANGED);
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    let deployed = root().join("deploy/cni");
    Command::new("cp").arg("--recursive").arg(deployed).arg(folder).run()?;
    for (file, from, to) in CHANGES {
        let file = folder.join(file);
        let text = fs::read_to_string(&file)?;
        if !text.contains(from) {
            return Err(format!("{} has no {from}", file.display()).into());
        }
        fs::write(&file, text.replace(from, to))?;
    }
    let together = folder.join("together");
    fs::create_dir(&together)?;
    let components: Vec<String> = components.iter().map(|name| format!("../components/{name}")).collect();
    let text = json!({"resources": [format!("../{}", way.folder)], "components": components}).to_string();
    fs::write(together.join("kustomization.yaml"), text)?;
    Ok(together)
}

impl Agent<'_> {
    pub(crate) fn install(&self) -> Result<()> {
        self.kubectl.run(&["apply", "--validate=strict", "--kustomize", &self.folder])?;
        self.rolled()?;
        if self.way.daemonset == NRI.daemonset { self.is_gone() } else { self.is_installed() }
    }

    /// The node's folders have the plugin.
    fn is_installed(&self) -> Result<()> {
        let list = fs::read_to_string(NETWORK)?;
        if !list.contains(r#""linkerd-cni""#) || !Path::new(PLUGINS).join("linkerd-cni").exists() {
            return Err(format!("the agent is ready, but the node has {list}").into());
        }
        Ok(())
    }

    /// Waits until the agent is ready.
    fn rolled(&self) -> Result<()> {
        let daemonset = format!("daemonset/{}", self.way.daemonset);
        self.kubectl.run(&["rollout", "status", TIMEOUT, "--namespace", AGENTS, &daemonset]).map(drop)
    }

    /// The agent's log.
    fn log(&self) -> Result<String> {
        self.kubectl.run(&["logs", "--namespace", AGENTS, &format!("daemonset/{}", self.way.daemonset)])
    }

    /// The agent's pod.
    fn pod(&self) -> Result<Pod<'_>> {
        let agents = self.kubectl.json(&["get", "pods", "--namespace", AGENTS])?;
        let name = agents.pointer("/items/0/metadata/name").and_then(Value::as_str);
        Ok(Pod::new(self.kubectl, AGENTS, name.ok_or("the node has no agent")?))
    }

    /// A metric of the agent's.
    fn metric(&self, name: &str) -> Option<i64> {
        let metrics = format!("http://127.0.0.1:{}/metrics", self.way.port);
        let text = Command::new("curl").args(["--silent", &metrics]).read().ok()?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        value.trim().parse().ok()
    }

    /// How many pods the agent has found in place.
    fn in_place(&self) -> Option<i64> {
        self.metric(r#"linkerd_cni_agent_pods{standing="in_place"}"#)
    }

    /// The agent leaves the node as it was.
    pub(crate) fn uninstall(&self) -> Result<()> {
        self.kubectl.run(&["delete", "--kustomize", &self.folder, "--ignore-not-found", TIMEOUT])?;
        self.is_gone()
    }

    /// The node is as it was.
    fn is_gone(&self) -> Result<()> {
        let after = network()?;
        if after != self.before {
            return Err(format!("{NETWORK} became {after}").into());
        }
        let left: Vec<_> = [PLUGINS, NETWORKS]
            .iter()
            .filter_map(|folder| fs::read_dir(folder).ok())
            .flatten()
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name.contains("linkerd"))
            .collect();
        if left.is_empty() { Ok(()) } else { Err(format!("left behind: {}", left.join(", ")).into()) }
    }
}

/// The network configuration. The agent writes it in lines of its own.
fn network() -> Result<Value> {
    Ok(serde_json::from_slice(&fs::read(NETWORK)?)?)
}

fn start<'a>(world: &World<'a>, object: &Value) -> Result<Pod<'a>> {
    let pod = Pod::create(&world.cluster.kubectl, &world.namespace, object)?;
    pod.ready()?;
    Ok(pod)
}

/// Starts a pod that the injector has left alone: the plugin tells by the proxy's container.
fn unmeshed(world: &World<'_>, name: &str) -> Result<()> {
    let mut object = pod::plain(name);
    object["spec"]["containers"][0]["name"] = json!("other");
    let pod = start(world, &object)?;
    pod.try_connections(&world.neighbour, &pod.connections(&world.neighbour, false)?, ["app", "other"])
}

/// A pod as the injector makes it where `cniEnabled` is set, but for the validator.
pub(crate) fn injected(name: &str) -> Value {
    let mut object = pod::plain(name);
    object["metadata"]["labels"]["linkerd.io/control-plane-ns"] = json!("linkerd");
    object["metadata"]["annotations"] = json!({"linkerd.io/proxy-version": "edge-1"});
    object
}

/// The annotation of inbound ports that bypass the proxy.
const SKIPS: &str = "config.linkerd.io/skip-inbound-ports";

/// The same, where port 8080 bypasses the proxy.
fn annotated(name: &str) -> Value {
    let mut object = injected(name);
    object["metadata"]["annotations"][SKIPS] = json!("8080");
    object
}

/// proxy-init in the place of Linkerd's network validator, as the chart runs that.
pub(crate) fn validator() -> Value {
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
