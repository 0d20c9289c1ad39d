//! The CNI plugin and the node's agent, as deploy/cni installs them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::agent;
use lab::connections::{Client, Connection};
use lab::containerd::NETWORK;
use lab::images;
use lab::machine::{NETWORKS, PLUGINS};
use lab::manifests::{self, injected, restricted, validated, validator, with_own_users};
use lab::shell::{Result, Run as _, root};
use lab::wait::wait_for;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::kubectl::{Space, TIMEOUT};
use crate::pod::Pod;
use crate::rollout::workload;
use crate::world::{Scenario, World};

/// The namespace that deploy/cni makes.
pub(crate) const AGENTS: &str = "linkerd-cni";

pub(crate) fn scenarios() -> Vec<Scenario> {
    let all: [(&str, Way, &[&str], Work); 5] = [
        ("the node's agent and the CNI plugin, from deploy/cni", BASE, &[], live),
        ("the node's agent, with a plugin that asks the API server", BASE, &["api"], check_api_reader),
        ("the node's agent: a taint, many pods at once, a reboot", BASE, &["taint"], outlive),
        ("the node's agent is gone, and the plugin stays or goes", BASE, &[], leave),
        ("the node's agent by NRI, from deploy/cni", NRI, &["nri-events"], live_by_nri),
    ];
    // Other pods that start meanwhile would get the plugin too.
    all.map(|(name, way, components, work)| {
        Scenario::new(name, move |world| with_agent(world, way, components, work)).alone()
    })
    .into()
}

type Work = fn(&World<'_>, &Agent<'_>) -> Result<String>;

/// The number of pods that start at once.
const MANY: usize = 20;

/// The taint that keeps pods away until the plugin is there.
const TAINT: &str = "linkerd.io/cni-not-ready";

/// A way to rules: the folder of deploy/cni, its DaemonSet, and where that answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Way {
    folder: &'static str,
    pub(crate) daemonset: &'static str,
    port: u16,
}
pub(crate) const BASE: Way = Way { folder: "base", daemonset: "daemonset/linkerd-cni", port: 9990 };
pub(crate) const NRI: Way = Way { folder: "overlays/nri", daemonset: "daemonset/linkerd-nri", port: 9992 };

/// An agent on the node.
pub(crate) struct Agent<'a> {
    pub(crate) space: Space<'a>,
    pub(crate) way: Way,
    /// The folder for `kubectl apply --kustomize`.
    folder: String,
    /// The network configuration without the plugin.
    before: Value,
}

/// Where deploy/cni is, changed, for each way.
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
pub(crate) fn with_agent<T>(
    world: &World<'_>,
    way: Way,
    components: &[&str],
    work: impl FnOnce(&World<'_>, &Agent<'_>) -> Result<T>,
) -> Result<T> {
    let agent = Agent { folder: changed(way, components)?, ..Agent::new(world, way)? };
    let outcome = work(world, &agent);
    // Pods of other scenarios are to start without it. It is gone already unless something failed.
    world.kubectl().output("", &["delete", "--kustomize", &agent.folder, "--ignore-not-found", TIMEOUT])?;
    outcome
}

fn live(world: &World<'_>, agent: &Agent<'_>) -> Result<String> {
    agent.install()?;
    // Meshed, unmeshed, and with annotations of the pod's own.
    let meshed = world.start_meshed(&injected("meshed"))?;
    try_kinds(world)?;
    checked_by_agent(world, &meshed)?;
    // A pod with the node's network is left alone: the pods above are all that the agent counts, a look at them after it has
    // seen this one.
    let mut host = injected("host");
    host["spec"]["hostNetwork"] = json!(true);
    let host = world.space.start(&host)?;
    try_drift(&meshed)?;
    let standings = ["new", "in_place", "drifted", "not_known"];
    let meshed_pods =
        standings.map(|standing| agent.metric(&format!(r#"linkerd_cni_agent_pods{{standing="{standing}"}}"#)));
    let meshed_pods = meshed_pods.into_iter().sum::<Option<usize>>();
    let log = agent.space.run(&["logs", agent.way.daemonset])?;
    let rules = Command::new("nft").args(["list", "ruleset"]).read()?;
    let events = host.events()?.join("; ");
    if meshed_pods != Some(1 + KINDS) || rules.contains("PROXY_INIT") || events.contains("LinkerdCNI") {
        return Err(format!("with hostNetwork: {meshed_pods:?} meshed pods; {events}; {log}; {rules}").into());
    }
    world.space.delete(&["pod", "host"])?;
    restart_api_server(world)?;
    // The agent is replaced, as in an update, and rolled back: pods that start then get their rules.
    for (what, name) in [("restart", "during-update"), ("undo", "during-rollback")] {
        agent.space.run(&["rollout", what, agent.way.daemonset])?;
        world.start_meshed(&injected(name))?;
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

/// The number of meshed pods that [`try_kinds`] leaves, and what it tries.
const KINDS: usize = 4;
const TRIED_KINDS: &str =
    "meshed, unmeshed, annotated, a native sidecar, users of its own, Pod Security's level restricted";

/// Pods of each kind, whose connections go where their rules say.
fn try_kinds(world: &World<'_>) -> Result<()> {
    unmeshed(world, "unmeshed")?;
    world.start_but(&annotated("skipping"), skips_8080)?;
    let mut sidecar = injected("sidecar");
    let mut proxy = sidecar["spec"]["containers"].as_array_mut().ok_or("no containers")?.remove(0);
    proxy["restartPolicy"] = json!("Always");
    sidecar["spec"]["initContainers"] = json!([validator(), proxy]);
    world.start_meshed(&sidecar)?;
    world.start_meshed(&with_own_users(injected("own-users")))?;
    // Without an init container that needs NET_ADMIN, a pod is admitted at the strictest level.
    world.restrict(true)?;
    world.start_meshed(&restricted(validated("restricted")))?;
    world.restrict(false)
}

/// `check` is answered by the agent, for all meshed pods, and finds nothing wrong with this one.
fn checked_by_agent(world: &World<'_>, meshed: &Pod<'_>) -> Result<()> {
    let output = world.kubectl().output("", &["proxy-init", "check", "--all-namespaces"])?;
    let (answers, errors) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
    let well = format!("{}/{}: well", world.space.name, meshed.name);
    if !errors.is_empty() || !answers.lines().any(|line| line.starts_with(&well)) {
        return Err(format!("kubectl proxy-init check -A: {answers}{errors}").into());
    }
    Ok(())
}

/// Another program takes rules away, and adds one.
fn try_drift(meshed: &Pod<'_>) -> Result<()> {
    meshed.look("nft flush chain ip nat PROXY_INIT_REDIRECT")?;
    meshed.has_event("LinkerdCNIRepaired")?;
    meshed.look("nft insert rule ip nat PROXY_INIT_OUTPUT tcp dport 5432 return")?;
    meshed.warned("LinkerdCNIDrifted")
}

/// A pod that starts where no agent is fails its validator. The agent, once it is back, mends it where it is.
fn race(world: &World<'_>, agent: &Agent<'_>) -> Result<()> {
    let raced = world.space.make(&validated("raced"))?;
    let ended = raced.ended("linkerd-network-validator")?;
    if ended.code != 95 {
        return Err(format!("a pod without rules: {ended:?}").into());
    }
    agent.install()?;
    raced.ready()?;
    raced.has_event("LinkerdCNIRepaired")?;
    world.try_meshed(&raced)
}

/// The overlay nri: the runtime tells the agent of each pod, and there is no plugin.
fn live_by_nri(world: &World<'_>, agent: &Agent<'_>) -> Result<String> {
    agent.install()?;
    let meshed = world.start_meshed(&injected("meshed"))?;
    try_kinds(world)?;
    checked_by_agent(world, &meshed)?;
    try_drift(&meshed)?;
    agent.space.run(&["rollout", "restart", agent.way.daemonset])?;
    agent.rolled()?;
    agent.space.delete(&[agent.way.daemonset, "--cascade=foreground"])?;
    race(world, agent)?;
    // After a reboot, a pod may start before the agent, which then heals it.
    world.cluster.reboot()?;
    world.neighbour.ready_again()?;
    meshed.ready_again()?;
    agent.pod()?.ready_again()?;
    wait_for("rules after a reboot", || world.try_meshed(&meshed).is_ok())?;
    agent.uninstall()?;
    unmeshed(world, "afterwards")?;
    Ok(format!("{TRIED_KINDS}; rules put back, and drift reported; updated; repaired in place; a reboot; removed"))
}

/// The API server is killed, and comes back. The agent's watches may be back only half a minute later.
fn restart_api_server(world: &World<'_>) -> Result<()> {
    world.cluster.services.kill("kube-apiserver")?;
    world.cluster.start_service("kube-apiserver")?;
    world.cluster.wait_for_api()?;
    world.start_meshed(&injected("after-the-api-server")).map(drop)
}

/// The cases that the API server tells, and the runtime doesn't.
fn check_api_reader(world: &World<'_>, agent: &Agent<'_>) -> Result<String> {
    let annotate = |annotation: &str| world.kubectl().run(&["annotate", "namespace", &world.space.name, annotation]);
    agent.install()?;
    world.start_meshed(&injected("meshed"))?;
    restart_api_server(world)?;
    unmeshed(world, "unmeshed")?;
    world.start_but(&annotated("skipping"), skips_8080)?;
    // With the same annotation of its namespace's, which the injector would have copied.
    annotate(&format!("{SKIPS}=8080"))?;
    world.start_but(&injected("of-namespace"), skips_8080)?;
    wait_for("a look at each pod", || agent::in_place(agent.way.port) == Some(4))?;
    annotate(&format!("{SKIPS}-"))?;
    // The control plane's pods have to reach the API server without a proxy.
    let mut destination = injected("destination");
    destination["metadata"]["labels"]["linkerd.io/control-plane-component"] = json!("destination");
    let rules = world.start_meshed(&destination)?.look("nft list chain ip nat PROXY_INIT_OUTPUT")?;
    if !rules.contains("443") {
        return Err(format!("a pod of the control plane's has {rules}").into());
    }
    // kubelet asks for a new token when it starts.
    let kubeconfig = Path::new(NETWORKS).join("ZZZ-linkerd-cni-kubeconfig");
    let old = fs::read(&kubeconfig)?;
    world.cluster.services.kill("kubelet")?;
    world.cluster.start_service("kubelet")?;
    wait_for("a new token", || fs::read(&kubeconfig).is_ok_and(|new| new != old))?;
    world.start_meshed(&injected("new-token"))?;
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
    let end_agent = || agent.space.delete(&["pod", "--selector=k8s-app=linkerd-cni"]);
    agent.install()?;
    // The DaemonSet no longer selects the node.
    let select = |value: Value| {
        let patch = json!({"spec": {"template": {"spec": {"nodeSelector": {"non-existing": value}}}}});
        agent.space.run(&["patch", agent.way.daemonset, "--patch", &patch.to_string()])
    };
    select(json!("true"))?;
    agent.gone()?;
    select(Value::Null)?;
    agent.rolled()?;
    agent.is_installed()?;
    // Its account is deleted, and so it is refused.
    agent.space.delete(&["serviceaccount", "linkerd-cni"])?;
    end_agent()?;
    agent.is_installed()?;
    world.start_meshed(&injected("without-account"))?;
    agent.install()?;
    // It is killed with no time to do anything.
    agent.space.delete(&["pod", "--selector=k8s-app=linkerd-cni", "--force", "--grace-period=0"])?;
    agent.rolled()?;
    agent.is_installed()?;
    // Its DaemonSet leaves it behind, and it is killed before it ends: to the next process of the same pod, nothing says
    // whether another agent follows.
    agent.space.delete(&[agent.way.daemonset, "--cascade=orphan"])?;
    let left_behind = agent.pod()?;
    kill_agent()?;
    left_behind.ready_again()?;
    end_agent()?;
    agent.is_installed()?;
    world.start_meshed(&injected("without-agent"))?;
    // By hand, as docs/node.md has it.
    let image = format!("--image={}", images::AGENT);
    let uninstall = ["--", "/usr/lib/linkerd/linkerd-cni-agent", "uninstall"];
    world.space.run(&[&["debug", "node/node", "--profile=sysadmin", &image][..], &uninstall].concat())?;
    agent.gone()?;
    agent.uninstall()?;
    Ok(
        "removed from a node that the DaemonSet doesn't select, and by hand; kept when the account was deleted, and when the \
         agent was killed or left behind"
            .to_owned(),
    )
}

/// Kills the process of the agent that keeps a plugin. kubelet starts another one.
pub(crate) fn kill_agent() -> Result<()> {
    let is_agent = |process: &PathBuf| {
        let line = fs::read_to_string(process.join("cmdline")).unwrap_or_default();
        line.starts_with("/usr/lib/linkerd/linkerd-cni-agent\0") && !line.contains("--nri")
    };
    let process = fs::read_dir("/proc")?.flatten().map(|entry| entry.path()).find(is_agent);
    let process = process.and_then(|process| process.file_name()?.to_str()?.parse().ok());
    Ok(kill(Pid::from_raw(process.ok_or("no agent runs")?), Signal::SIGKILL)?)
}

/// In place of the configuration's own ports: the proxy's port for metrics, and what the application serves.
pub(crate) fn skips_8080(connection: &mut Connection) {
    if connection.client == Client::Neighbour && connection.to.port() != 4191 {
        connection.port = Some(if connection.to.port() == 8080 { 8080 } else { 4143 });
    }
}

fn outlive(world: &World<'_>, agent: &Agent<'_>) -> Result<String> {
    let never_repaired = |pods: &str| match agent.metric("linkerd_cni_agent_repair_seconds_count") {
        Some(0) => Ok(()),
        _ => Err(format!("{pods}, and one had to be healed")),
    };
    // A node that is born with the taint.
    world.kubectl().run(&["taint", "node", "node", &format!("{TAINT}=:NoSchedule")])?;
    agent.install()?;
    wait_for("the node without the taint", || {
        let node = world.kubectl().json(&["get", "node", "node"]);
        node.is_ok_and(|node| !node["spec"]["taints"].to_string().contains(TAINT))
    })?;
    // Many pods at once: the plugin sets each of them up, and none has to be healed.
    world.space.create(&workload("Deployment", MANY, &injected("many")))?;
    world.space.rolled("deployment/web")?;
    wait_for("a look at each of many pods", || agent::in_place(agent.way.port) == Some(MANY))?;
    never_repaired("many pods started at once")?;
    world.space.delete(&["deployment", "web"])?;
    let meshed = world.start_meshed(&injected("meshed"))?;
    // After a reboot, kubelet starts each pod in a new sandbox: meshed ones get their rules, by the plugin.
    world.cluster.reboot()?;
    world.neighbour.ready_again()?;
    meshed.ready_again()?;
    world.try_meshed(&meshed)?;
    agent.pod()?.ready_again()?;
    world.start_meshed(&injected("after-reboot"))?;
    never_repaired("pods started after a reboot")?;
    agent.uninstall()?;
    Ok(format!("the taint is gone once the node is ready; {MANY} pods at once; a reboot; removed"))
}

/// deploy/cni, changed, and a folder in it that takes this way and these components.
fn changed(way: Way, components: &[&str]) -> Result<String> {
    let folder = Path::new(CHANGED).join(way.daemonset);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let deployed = root().join("deploy/cni/.");
    Command::new("cp").arg("--recursive").arg(deployed).arg(&folder).run()?;
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
    Ok(together.to_string_lossy().into_owned())
}

impl<'a> Agent<'a> {
    /// One that isn't there yet.
    pub(crate) fn new(world: &World<'a>, way: Way) -> Result<Self> {
        let space = Space::new(world.kubectl(), AGENTS);
        Ok(Self { space, way, folder: String::new(), before: network()? })
    }

    pub(crate) fn install(&self) -> Result<()> {
        self.apply()?;
        if self.way == NRI { self.is_gone() } else { self.is_installed() }
    }

    /// Applies the manifest, and waits for the agent.
    pub(crate) fn apply(&self) -> Result<()> {
        self.space.kubectl.run(&["apply", "--validate=strict", "--kustomize", &self.folder])?;
        self.rolled()
    }

    /// Port 8080 bypasses the proxy from now on.
    pub(crate) fn skip_8080(&self) -> Result<()> {
        let file = Path::new(&self.folder).with_file_name("base/config.yaml");
        let text = fs::read_to_string(&file)?;
        fs::write(&file, text.replace(r#"["4190""#, r#"["8080", "4190""#))?;
        self.apply()
    }

    /// The node's folders have the plugin.
    pub(crate) fn is_installed(&self) -> Result<()> {
        let list = fs::read_to_string(NETWORK)?;
        if !list.contains(r#""linkerd-cni""#) || !Path::new(PLUGINS).join("linkerd-cni").exists() {
            return Err(format!("the agent is ready, but the node has {list}").into());
        }
        Ok(())
    }

    /// Waits until the agent is ready.
    pub(crate) fn rolled(&self) -> Result<()> {
        self.space.rolled(self.way.daemonset)
    }

    /// The agent's pod.
    fn pod(&self) -> Result<Pod<'a>> {
        let agents = self.space.pods()?;
        let name = agents.first().and_then(|agent| agent.pointer("/metadata/name")?.as_str());
        Ok(self.space.pod(name.ok_or("the node has no agent")?))
    }

    /// One of the agent's metrics.
    fn metric(&self, name: &str) -> Option<usize> {
        agent::metric(self.way.port, name)
    }

    /// The agent leaves the node as it was.
    pub(crate) fn uninstall(&self) -> Result<()> {
        self.space.kubectl.run(&["delete", "--kustomize", &self.folder, "--ignore-not-found", TIMEOUT])?;
        self.is_gone()
    }

    /// Waits until the node is as it was.
    pub(crate) fn gone(&self) -> Result<()> {
        wait_for("a node without the plugin", || self.is_gone().is_ok())
    }

    /// The node is as it was.
    pub(crate) fn is_gone(&self) -> Result<()> {
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

/// Starts a pod that the injector has left alone: the plugin tells by the proxy's container.
fn unmeshed(world: &World<'_>, name: &str) -> Result<()> {
    let mut object = manifests::plain(name);
    object["spec"]["containers"][0]["name"] = json!("other");
    let pod = world.space.start(&object)?;
    pod.try_connections(&world.neighbour, &pod.connections(&world.neighbour, false)?, ["app", "other"])
}

/// The annotation of inbound ports that bypass the proxy.
const SKIPS: &str = "config.linkerd.io/skip-inbound-ports";

/// The same, where port 8080 bypasses the proxy.
fn annotated(name: &str) -> Value {
    let mut object = injected(name);
    object["metadata"]["annotations"][SKIPS] = json!("8080");
    object
}
