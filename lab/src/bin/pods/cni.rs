//! The CNI plugin linkerd-cni after bridge and host-local, by both ways of knowing the pod.

use std::collections::HashMap;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use lab::api_double::{ApiServer, Plan, Pod as Object};
use lab::linkerd::{self, Flags};
use lab::network::Namespace;
use lab::scenario::{beside, each};
use lab::shell::{Result, Run as _};
use lab::wait;
use serde_json::{Value, json};

use crate::mesh::{self, Containers};
use crate::node::Network;
use crate::pod::{Meta, Pod};
use crate::scenario::{Scenario, World};

/// The plugin, in the folder that `cargo xtask pods` fills as it does the Dockerfile's target `cni`.
pub(crate) const PLUGIN: &str = "cni/opt/cni/bin/linkerd-cni";

const NAMESPACE: &str = "emojivoto";
const POD_ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";

/// API servers on the node's loopback address, each with its own way of answering, and their kubeconfigs.
pub(crate) struct Servers {
    /// Has all objects.
    good: ApiServer,
    /// Goes away and comes back.
    flapping: ApiServer,
    /// Holds its answers back for as long as its scenario needs.
    waiting: ApiServer,
    folder: PathBuf,
}

/// The kubeconfig where none is read.
const NO_FILE: &str = "/nonexistent";
/// The network by annotations.
const BY_ANNOTATIONS: &str = "annotations";
/// The same for a runtime that is told to hand over nothing.
const NOTHING: &str = "nothing";

impl Servers {
    pub(crate) fn start(folder: &Path) -> Result<Self> {
        let listen = || TcpListener::bind("127.0.0.1:0").map(ApiServer::start);
        let folder = folder.join("kubeconfigs");
        let servers = Self { good: listen()?, flapping: listen()?, waiting: listen()?, folder };
        let meshed = Object { containers: &["app", "linkerd-proxy"], ..Object::default() };
        for (name, server) in servers.all() {
            let folder = servers.folder.join(name);
            fs::create_dir_all(&folder)?;
            server.kubeconfig(&folder, "good-token");
            server.add_pod(NAMESPACE, "web", &meshed);
        }
        servers.waiting.add_pod(NAMESPACE, "vanishing", &meshed);
        let sidecar = Object { containers: &["app"], init_containers: &["linkerd-proxy"], ..Object::default() };
        servers.good.add_pod(NAMESPACE, "native-sidecar", &sidecar);
        servers.good.add_pod(NAMESPACE, "plain", &Object { containers: &["app"], ..Object::default() });
        let annotations = &[("config.linkerd.io/skip-outbound-ports", "3306,http")];
        servers.good.add_pod(NAMESPACE, "wrong", &Object { annotations, ..meshed });
        Ok(servers)
    }

    /// With the names of their networks.
    fn all(&self) -> [(&'static str, &ApiServer); 3] {
        [("good", &self.good), ("flapping", &self.flapping), ("waiting", &self.waiting)]
    }

    fn kubeconfig(&self, name: &str) -> PathBuf {
        self.folder.join(name).join("ZZZ-linkerd-cni-kubeconfig")
    }
}

/// The plugin in a list of network configurations.
pub(crate) fn entry(kubeconfig: &Path, pod_info: &str) -> Value {
    json!({
        "type": "linkerd-cni",
        "log_level": "debug",
        "kubernetes": {"kubeconfig": kubeconfig},
        "linkerd": linkerd::cni_section(pod_info),
    })
}

/// The same, for a runtime that hands over the pod's annotations.
pub(crate) fn by_annotations() -> Value {
    let mut entry = entry(Path::new(NO_FILE), "annotations");
    entry["capabilities"] = json!({POD_ANNOTATIONS: true});
    entry
}

/// One for each server, with Linkerd's default configuration in nft mode, and those by annotations.
pub(crate) fn networks(servers: &Servers) -> Vec<Network> {
    let chained = |name: &'static str, entry: Value| Network { chained: vec![entry], ..Network::new(name) };
    let by_api = servers.all().map(|(name, _)| chained(name, entry(&servers.kubeconfig(name), "api")));
    let mut networks: Vec<_> = by_api.into();
    networks.push(chained(BY_ANNOTATIONS, by_annotations()));
    networks.push(chained(NOTHING, entry(Path::new(NO_FILE), "annotations")));
    networks
}

pub(crate) fn scenarios(servers: &Arc<Servers>) -> Vec<Scenario> {
    let mut scenarios = Vec::new();
    let mut add = |scenario: Scenario| scenarios.push(scenario);
    let named = |name: &str| format!("cni, {name}");
    let meshed = || annotations(&[("linkerd.io/proxy-version", "edge-1")]);
    for (name, network, pod, carried) in [
        ("by annotations, meshed", BY_ANNOTATIONS, "web", meshed()),
        ("by the API server, meshed", "good", "web", HashMap::new()),
        ("by the API server, native sidecar", "good", "native-sidecar", HashMap::new()),
    ] {
        add(Scenario::new(named(name), move |world| in_the_mesh(world, network, pod, &carried)));
    }
    for (name, network, pod) in
        [("by annotations, not meshed", BY_ANNOTATIONS, "plain"), ("by the API server, not meshed", "good", "plain")]
    {
        add(Scenario::new(named(name), move |world| not_in_the_mesh(world, network, pod)));
    }
    let wrong =
        annotations(&[("linkerd.io/proxy-version", "edge-1"), ("config.linkerd.io/skip-outbound-ports", "3306,http")]);
    for (name, network, pod, carried, words) in [
        ("by annotations, a wrong one", BY_ANNOTATIONS, "web", wrong, "skip-outbound-ports of pod emojivoto/web"),
        ("by the API server, a wrong annotation", "good", "wrong", HashMap::new(), "of pod emojivoto/wrong"),
        ("by annotations, none handed over", NOTHING, "web", HashMap::new(), "handed over no annotations"),
        ("by the API server, no such pod", "good", "unknown", HashMap::new(), "404"),
    ] {
        add(Scenario::new(named(name), move |world| match start(world, network, pod, &carried) {
            Ok(_) => Err("the sandbox was made".into()),
            Err(error) if error.to_string().contains(words) => Ok("the sandbox failed, saying why".to_owned()),
            Err(error) => Err(error),
        }));
    }
    add(Scenario::new(named("DEL twice"), deleted_twice));
    let shared = Arc::clone(servers);
    add(Scenario::new(named("a network namespace that vanishes during ADD"), move |world| {
        vanishing(world, &shared.waiting)
    }));
    let shared = Arc::clone(servers);
    add(Scenario::new(named("30 pods, 8 at a time, while the API server goes away and comes back"), move |world| {
        storm(world, &shared.flapping)
    }));
    scenarios
}

pub(crate) fn annotations(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    // kubelet's own.
    let kubelets = [("kubernetes.io/config.source", "api")];
    let all = kubelets.iter().chain(pairs);
    all.map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn start<'a>(world: &World<'a>, network: &str, name: &str, annotations: &HashMap<String, String>) -> Result<Pod<'a>> {
    let (name, namespace) = (name.to_owned(), NAMESPACE.to_owned());
    Pod::start(world.node, network, &Meta { name, namespace, annotations: annotations.clone(), ..Meta::default() })
}

/// Both families' nat rules in a network namespace, without what differs from run to run.
fn saved(netns: &Path) -> Result<String> {
    let mut text = String::new();
    for save in ["iptables-nft-save", "ip6tables-nft-save"] {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", netns.display())).args([save, "-t", "nat"]);
        for line in command.read()?.lines().filter(|line| !line.starts_with('#')) {
            text += line.split(" [").next().unwrap_or_default();
            text.push('\n');
        }
    }
    Ok(text)
}

/// All rules in a pod's network namespace.
pub(crate) fn rules(pod: &Pod<'_>) -> Result<String> {
    let mut nft = Command::new("nsenter");
    nft.arg(format!("--net={}", pod.netns.display())).args(["nft", "list", "ruleset"]);
    nft.read()
}

/// Fails unless the pod has the rules that linkerd-init's commands add for these flags.
pub(crate) fn has_rules(pod: &Pod<'_>, flags: &Flags) -> Result<()> {
    let other = Namespace::new();
    flags.add_with_iptables(&other, "nft");
    let (rules, expected) = (saved(&pod.netns)?, saved(&other.path())?);
    if rules == expected {
        return Ok(());
    }
    Err(format!("it has the rules\n{rules}in place of\n{expected}").into())
}

/// Real connections in both directions, to a stand-in for the proxy or past it.
pub(crate) fn connects(world: &World<'_>, pod: &Pod<'_>, meshed: bool) -> Result<()> {
    let connections = mesh::connections(world, pod, meshed);
    Containers::start(world, pod)?.try_connections(world, &connections)
}

fn in_the_mesh(world: &World<'_>, network: &str, name: &str, annotations: &HashMap<String, String>) -> Result<String> {
    let pod = start(world, network, name, annotations)?;
    has_rules(&pod, &Flags::default())?;
    connects(world, &pod, true)?;
    pod.remove()?;
    Ok("its rules are linkerd-init's, and connections go to the proxy in both directions".to_owned())
}

fn not_in_the_mesh(world: &World<'_>, network: &str, name: &str) -> Result<String> {
    let pod = start(world, network, name, &annotations(&[]))?;
    let rules = rules(&pod)?;
    if !rules.is_empty() {
        return Err(format!("it has rules: {rules}").into());
    }
    connects(world, &pod, false)?;
    pod.remove()?;
    Ok("it has no rules, and connections go straight to it".to_owned())
}

/// kubelet stops a sandbox until that succeeds, and the network namespace is gone the second time.
fn deleted_twice(world: &World<'_>) -> Result<String> {
    let pod = start(world, "good", "web", &HashMap::new())?;
    for _ in 0..2 {
        pod.stop()?;
    }
    if pod.netns.exists() {
        return Err(format!("{} is still there", pod.netns.display()).into());
    }
    pod.remove()?;
    Ok("each time it succeeded".to_owned())
}

/// The network namespace's file is removed while the plugin waits for the API server.
fn vanishing(world: &World<'_>, server: &ApiServer) -> Result<String> {
    let rules_of_node = || Command::new("nft").args(["list", "ruleset"]).read();
    let before = rules_of_node()?;
    server.plan([Plan::Late(Duration::from_secs(2))]);
    let made = thread::scope(|scope| -> Result<_> {
        let pod = scope.spawn(|| start(world, "waiting", "vanishing", &HashMap::new()).map(drop));
        let netns = || match netns_of_add("vanishing") {
            None if pod.is_finished() => Some(None),
            found => found.map(Some),
        };
        let netns = wait::until(Duration::from_secs(60), netns).flatten();
        let netns = netns.ok_or("the plugin did not run")?;
        // As the runtime does it.
        Command::new("umount").arg("--lazy").arg(&netns).run()?;
        fs::remove_file(&netns)?;
        Ok(pod.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    if rules_of_node()? != before {
        return Err(format!("the node's own rules have changed: {}", rules_of_node()?).into());
    }
    // The node goes on.
    start(world, "waiting", "web", &HashMap::new())?.remove()?;
    let said = match made {
        Ok(()) => "the sandbox was made without it".to_owned(),
        Err(error) => format!("the sandbox failed: {error}"),
    };
    Ok(format!("the node's own rules are unchanged; {said}"))
}

/// `CNI_NETNS` of the linkerd-cni that is adding a pod of this name.
fn netns_of_add(pod: &str) -> Option<PathBuf> {
    fs::read_dir("/proc").ok()?.flatten().find_map(|process| {
        let name = fs::read_to_string(process.path().join("comm")).ok()?;
        let environment = fs::read(process.path().join("environ")).ok()?;
        let environment = String::from_utf8_lossy(&environment);
        let value = |name: &str| environment.split('\0').find_map(|it| it.strip_prefix(name)?.strip_prefix('='));
        let is_it = name.trim() == "linkerd-cni"
            && value("CNI_COMMAND") == Some("ADD")
            && value("CNI_ARGS")?.contains(&format!("K8S_POD_NAME={pod}-"));
        is_it.then(|| value("CNI_NETNS").map(PathBuf::from)).flatten()
    })
}

/// Each pod has all its rules, or its sandbox failed.
fn storm(world: &World<'_>, server: &ApiServer) -> Result<String> {
    let address: SocketAddr = server.address();
    let flap = |over: &AtomicBool| -> Result<()> {
        // Away for a moment, and then for longer than the plugin waits.
        for away in [1, 2, 13, 1, 1].into_iter().cycle() {
            server.go_away();
            for _ in 0..10 * away {
                sleep(Duration::from_millis(100));
                if over.load(Ordering::Relaxed) {
                    break;
                }
            }
            server.listen(TcpListener::bind(address)?);
            if over.load(Ordering::Relaxed) {
                break;
            }
            sleep(Duration::from_millis(1500));
        }
        Ok(())
    };
    let ((), whole) = beside(flap, || {
        let outcomes = each(8, &[(); 30], |()| match start(world, "flapping", "web", &HashMap::new()) {
            Ok(pod) => {
                has_rules(&pod, &Flags::default())?;
                pod.remove()?;
                Ok(true)
            }
            Err(error) if ["linkerd-cni", "try again later"].iter().any(|words| error.to_string().contains(words)) => {
                Ok(false)
            }
            Err(error) => Err(error),
        });
        outcomes.into_iter().collect::<Result<Vec<bool>>>()
    })?;
    let made = whole.iter().filter(|&&whole| whole).count();
    if made == 0 {
        return Err("no pod was made".into());
    }
    let failed = whole.len() - made;
    Ok(format!("{made} pods have all their rules, {failed} sandboxes failed, and none is half a pod"))
}
