//! The CNI plugin and the node's agent, as deploy/cni installs them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::cluster::CHART;
use lab::connections::{Client, Connection};
use lab::shell::{Result, Run as _, root, target};
use serde_json::{Value, json};

use crate::images;
use crate::kubectl::Kubectl;
use crate::machine::{NETWORKS, PLUGINS};
use crate::pod::{self, Pod};
use crate::services::{NETWORK, wait_for};
use crate::world::{Scenario, World};

/// The namespace that deploy/cni makes.
pub(crate) const AGENTS: &str = "linkerd-cni";

pub(crate) fn scenarios() -> Vec<Scenario> {
    // Whatever pod starts meanwhile gets the plugin too.
    vec![
        Scenario::new("the node's agent and the CNI plugin, from deploy/cni", |world| {
            with_agent(world, &[], |agent| live(world, agent))
        })
        .alone(),
        Scenario::new("the node's agent, with a plugin that asks the API server", |world| {
            with_agent(world, &["api"], |agent| check_api_reader(world, agent))
        })
        .alone(),
        Scenario::new("the node's agent: a taint, many pods at once, a reboot", |world| {
            with_agent(world, &["taint"], |agent| outlive(world, agent))
        })
        .alone(),
        Scenario::new("the node's agent is gone, and the plugin stays or goes", |world| {
            with_agent(world, &[], |agent| leave(world, agent))
        })
        .alone(),
        Scenario::new("the node's agent: a second DaemonSet of it", |world| {
            with_agent(world, &[], |agent| beside(world, agent))
        })
        .alone(),
        Scenario::new("the node's agent, by the Helm chart with linkerd2-cni's values", |world| {
            with_kustomization(world, &of_chart()?, |agent| replace_linkerds(world, agent))
        })
        .alone(),
    ]
}

/// How many pods start at once.
const MANY: i64 = 20;

/// The taint that keeps pods away until the plugin is there.
const TAINT: &str = "linkerd.io/cni-not-ready";

/// What the agent says it is doing, for Prometheus.
const METRICS: &str = "http://127.0.0.1:9990/metrics";

/// deploy/cni, to be installed.
pub(crate) struct Agent<'a> {
    kubectl: &'a Kubectl,
    /// What `kubectl apply --kustomize` takes.
    folder: String,
    /// The network configuration without the plugin.
    before: Vec<u8>,
}

/// Where it is, changed.
pub(crate) const CHANGED: &str = "/run/node/deploy-cni";

/// A file of deploy/cni, and what of it is replaced, and by what.
type Change = (&'static str, &'static str, &'static str);

/// Without these, there is no image, and drift is seen late.
const NEEDED: [Change; 2] = [
    ("base/kustomization.yaml", "REGISTRY/", "registry.example/"),
    ("base/daemonset.yaml", r#""--admin-addr""#, r#""--verify-every", "3", "--admin-addr""#),
];

/// For the connections that scenarios try, in both families.
const TRIED: [Change; 4] = [
    ("base/config.yaml", IPV6.0, IPV6.1),
    ("base/config.yaml", PORTS.0, PORTS.1),
    ("components/api/kustomization.yaml", IPV6.0, IPV6.1),
    ("components/api/kustomization.yaml", PORTS.0, PORTS.1),
];
const IPV6: (&str, &str) = (r#""ipv6": false"#, r#""ipv6": true"#);
const PORTS: (&str, &str) =
    (r#"["4191", "4190"]"#, r#"["4190", "4191", "4567", "4568"], "outbound-ports-to-ignore": ["4567", "4568"]"#);

/// Does this with deploy/cni as whoever reads its pages has it, which is gone afterwards.
pub(crate) fn with_manifest(world: &World<'_>, work: impl Fn(&Agent<'_>) -> Result<String>) -> Result<String> {
    with_kustomization(world, &copied(&NEEDED, &[])?, work)
}

/// Does this with deploy/cni and these components of it, which is gone afterwards.
pub(crate) fn with_agent(
    world: &World<'_>,
    components: &[&str],
    work: impl Fn(&Agent<'_>) -> Result<String>,
) -> Result<String> {
    with_kustomization(world, &copied(&[&NEEDED[..], &TRIED].concat(), components)?, work)
}

fn with_kustomization(world: &World<'_>, folder: &Path, work: impl Fn(&Agent<'_>) -> Result<String>) -> Result<String> {
    let kubectl = &world.cluster.kubectl;
    let agent = Agent { kubectl, folder: folder.to_string_lossy().into_owned(), before: fs::read(NETWORK)? };
    let outcome = work(&agent);
    // Pods of other scenarios are to start without it. It is gone already unless something failed.
    kubectl.output("", &["delete", "--kustomize", &agent.folder, "--ignore-not-found"])?;
    outcome
}

/// What Helm has made, and a namespace, as kubectl takes them: this version of Kubernetes doesn't know all of it.
fn of_chart() -> Result<PathBuf> {
    let folder = Path::new("/run/node/chart").to_owned();
    fs::create_dir_all(&folder)?;
    fs::copy(target("cluster").join(CHART), folder.join(CHART))?;
    let namespace = "namespace.yaml";
    fs::copy(root().join("deploy/cni/base").join(namespace), folder.join(namespace))?;
    fs::write(folder.join("kustomization.yaml"), json!({"resources": [namespace, CHART]}).to_string())?;
    Ok(folder)
}

fn replace_linkerds(world: &World<'_>, agent: &Agent<'_>) -> Result<String> {
    agent.install()?;
    start(world, &injected("charted"))?.try_injected(&world.neighbour, true)?;
    // As deploy/helm's README says.
    agent.kubectl.run(&["delete", "namespace", AGENTS, "--timeout=120s"])?;
    agent.uninstall()?;
    Ok("a pod has its rules; the namespace was deleted first, and the node is as it was".to_owned())
}

fn live(world: &World<'_>, agent: &Agent<'_>) -> Result<String> {
    let namespace = world.namespace.as_str();
    let kubectl = agent.kubectl;
    agent.install()?;
    // Meshed, unmeshed, and with annotations of the pod's own.
    let meshed = start(world, &injected("meshed"))?;
    meshed.try_injected(&world.neighbour, true)?;
    unmeshed(world, "unmeshed")?;
    start(world, &annotated("skipping"))?.try_injected_but(&world.neighbour, skips_8080)?;
    // The plugin is never called for a pod with the node's network, and the agent leaves it alone: the two pods above are all
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
    let meshed_pods = standings.map(|standing| metric(&format!(r#"linkerd_cni_agent_pods{{standing="{standing}"}}"#)));
    let meshed_pods = meshed_pods.into_iter().sum::<Option<i64>>();
    let log = agent.log("linkerd-cni")?;
    let of_plugin = |pod: &Pod<'_>| log.contains(&format!("pod=\"{namespace}/{}\"", pod.name));
    let rules = Command::new("nft").args(["list", "ruleset"]).read()?;
    let events = host.events()?.join("; ");
    if meshed_pods != Some(2)
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
        agent.rolled("linkerd-cni")?;
    }
    // A pod that starts without the plugin fails its validator. The agent, once it is back, mends it where it is.
    agent.uninstall()?;
    let mut raced = injected("raced");
    raced["spec"]["initContainers"] = json!([validator()]);
    let raced = Pod::create(kubectl, namespace, &raced)?;
    let ended = raced.ended("linkerd-network-validator")?;
    if ended.code != 95 {
        return Err(format!("a pod without rules: {ended:?}").into());
    }
    agent.install()?;
    raced.ready()?;
    raced.has_event("LinkerdCNIRepaired")?;
    raced.try_injected(&world.neighbour, true)?;
    agent.uninstall()?;
    unmeshed(world, "afterwards")?;
    Ok(
        "meshed, unmeshed, annotated; rules put back, and drift reported; updated and rolled back; API server killed and back; repaired in place; \
         removed"
            .to_owned(),
    )
}

/// The API server is killed, and comes back. The agent's watches may be back only half a minute later.
fn restart_api_server(world: &World<'_>) -> Result<()> {
    world.cluster.kill_service("kube-apiserver")?;
    world.cluster.start_service("kube-apiserver")?;
    world.cluster.wait_for_api()?;
    start(world, &injected("after-the-api-server"))?.try_injected(&world.neighbour, true)
}

/// What the runtime doesn't tell, and the API server does.
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
    wait_for("a look at each pod", || metric(r#"linkerd_cni_agent_pods{standing="in_place"}"#) == Some(4))?;
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
    agent.rolled("linkerd-cni")?;
    agent.is_installed()?;
    // Its account is deleted, and so it is refused.
    in_namespace(&["delete", "serviceaccount", "linkerd-cni"])?;
    end_agent()?;
    agent.is_installed()?;
    pod_starts("without-account")?;
    agent.install()?;
    // It is killed with no time to do anything.
    in_namespace(&["delete", "pod", "--selector=k8s-app=linkerd-cni", "--force", "--grace-period=0"])?;
    agent.rolled("linkerd-cni")?;
    agent.is_installed()?;
    // Its DaemonSet leaves it behind, so that nothing says what becomes of it.
    in_namespace(&["delete", "daemonset", "linkerd-cni", "--cascade=orphan"])?;
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

/// A second DaemonSet, such as a canary or what an installation under another name has left: it has the node's network too, so its
/// pod waits for another port. Then the older agent owns the files, and whichever leaves, pods get their rules from the other one.
fn beside(world: &World<'_>, agent: &Agent<'_>) -> Result<String> {
    const CANARY: &str = "canary";
    let kubectl = agent.kubectl;
    let mut started = 0;
    let mut pod_starts = || {
        started += 1;
        start(world, &injected(&format!("meshed-{started}")))?.try_injected(&world.neighbour, true)
    };
    let delete = |name: &str| {
        let arguments = ["delete", "daemonset", "--namespace", AGENTS, name, "--cascade=foreground"];
        kubectl.run(&arguments).map(drop)
    };
    agent.install()?;
    // So that its agents know whether others follow.
    let patch = json!([{"op": "add", "path": "/rules/1/resourceNames/-", "value": CANARY}]).to_string();
    kubectl.run(&["patch", "role", "linkerd-cni", "--namespace", AGENTS, "--type=json", "--patch", &patch])?;
    kubectl.create(AGENTS, &agent.daemonset(CANARY, 9990)?)?;
    wait_for("a pod that waits for a port", || {
        let events = kubectl.run(&["get", "events", "--namespace", AGENTS]);
        events.is_ok_and(|events| events.contains("FailedScheduling") && events.contains("free ports"))
    })?;
    pod_starts()?;
    delete(CANARY)?;
    for first_to_leave in [CANARY, "linkerd-cni"] {
        kubectl.create(AGENTS, &agent.daemonset(CANARY, 9992)?)?;
        agent.rolled(CANARY)?;
        pod_starts()?;
        if !agent.log(CANARY)?.contains("another agent owns the files") {
            return Err(format!("the newer agent took the files: {}", agent.log(CANARY)?).into());
        }
        delete(first_to_leave)?;
        pod_starts()?;
        agent.is_installed()?;
    }
    delete(CANARY)?;
    agent.uninstall()?;
    Ok("on the same port, its pod waits; on another one, the older agent owns the files; whichever is deleted, pods that start \
        then have their rules; removed with the last one"
        .to_owned())
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
    wait_for("a look at each of many pods", || metric(r#"linkerd_cni_agent_pods{standing="in_place"}"#) == Some(MANY))?;
    if metric("linkerd_cni_agent_repair_seconds_count") != Some(0) {
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
    let agents = kubectl.json(&["get", "pods", "--namespace", AGENTS])?;
    let name = agents.pointer("/items/0/metadata/name").and_then(Value::as_str);
    Pod::new(kubectl, AGENTS, name.ok_or("the node has no agent")?).ready_again()?;
    start(world, &injected("after-reboot"))?.try_injected(&world.neighbour, true)?;
    if metric("linkerd_cni_agent_repair_seconds_count") != Some(0) {
        return Err("after a reboot, a pod had to be healed".into());
    }
    agent.uninstall()?;
    Ok(format!("the taint is gone once the node is ready; {MANY} pods at once; a reboot; removed"))
}

/// A metric of the agent's.
pub(crate) fn metric(name: &str) -> Option<i64> {
    let text = Command::new("curl").args(["--silent", METRICS]).read().ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    value.trim().parse().ok()
}

/// deploy/cni, changed, and a folder in it that takes the base and these components.
fn copied(changes: &[Change], components: &[&str]) -> Result<PathBuf> {
    let folder = Path::new(CHANGED);
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    let deployed = root().join("deploy/cni");
    Command::new("cp").arg("--recursive").arg(deployed).arg(folder).run()?;
    for (file, from, to) in changes {
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
    let text = json!({"resources": ["../base"], "components": components}).to_string();
    fs::write(together.join("kustomization.yaml"), text)?;
    Ok(together)
}

impl Agent<'_> {
    pub(crate) fn install(&self) -> Result<()> {
        // This version of Kubernetes doesn't know all of it; what it doesn't know, it leaves out.
        self.kubectl.run(&["apply", "--validate=false", "--kustomize", &self.folder])?;
        self.rolled("linkerd-cni")?;
        self.is_installed()
    }

    /// The node's folders have the plugin.
    fn is_installed(&self) -> Result<()> {
        let list = fs::read_to_string(NETWORK)?;
        if !list.contains(r#""linkerd-cni""#) || !Path::new(PLUGINS).join("linkerd-cni").exists() {
            return Err(format!("the agent is ready, but the node has {list}").into());
        }
        Ok(())
    }

    /// Waits until the agent of a DaemonSet is ready.
    fn rolled(&self, daemonset: &str) -> Result<()> {
        self.kubectl.run(&[
            "rollout",
            "status",
            "--timeout=120s",
            "--namespace",
            AGENTS,
            &format!("daemonset/{daemonset}"),
        ])?;
        Ok(())
    }

    /// What the agent of a DaemonSet has logged.
    fn log(&self, daemonset: &str) -> Result<String> {
        self.kubectl.run(&["logs", "--namespace", AGENTS, &format!("daemonset/{daemonset}")])
    }

    /// The installed DaemonSet under another name, and with this and the next port of the node's.
    fn daemonset(&self, name: &str, port: u16) -> Result<Value> {
        let mut object = self.kubectl.json(&["get", "daemonset", "--namespace", AGENTS, "linkerd-cni"])?;
        let mut container = object.pointer_mut("/spec/template/spec/containers/0").map(Value::take);
        let container = container.as_mut().ok_or("a DaemonSet without a container")?;
        let probes = port + 1;
        container["ports"] = json!([
            {"name": "admin", "containerPort": port},
            {"name": "probes", "containerPort": probes, "hostIP": "127.0.0.1"},
        ]);
        for argument in container["args"].as_array_mut().into_iter().flatten() {
            if *argument == json!("0.0.0.0:9990") {
                *argument = json!(format!("0.0.0.0:{port}"));
            } else if *argument == json!("127.0.0.1:9991") {
                *argument = json!(format!("127.0.0.1:{probes}"));
            }
        }
        let labels = json!({"k8s-app": name});
        let mut spec = object["spec"]["template"]["spec"].take();
        spec["containers"] = json!([container]);
        Ok(json!({
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": name},
            "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}}
        }))
    }

    /// The agent leaves the node as it was.
    fn uninstall(&self) -> Result<()> {
        self.kubectl.run(&["delete", "--kustomize", &self.folder, "--ignore-not-found", "--timeout=120s"])?;
        self.is_gone()
    }

    /// The node is as it was.
    fn is_gone(&self) -> Result<()> {
        let after = fs::read(NETWORK)?;
        if after != self.before {
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
        if left.is_empty() { Ok(()) } else { Err(format!("left behind: {}", left.join(", ")).into()) }
    }
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
