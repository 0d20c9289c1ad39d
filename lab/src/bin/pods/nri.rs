//! The node's agent by NRI, on nodes of its own: containerd tells it of pods, and there is no plugin. The agent has the mounts
//! and the capabilities of deploy/cni/overlays/nri.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use lab::linkerd::{self, Flags};
use lab::scenario::{beside, each};
use lab::shell::{Result, Run as _};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::agent::{AGENT, Agent, UNSUCCESSFUL, until, validated};
use crate::cni::{PLUGIN, annotations, by_annotations, connects, has_rules, rules};
use crate::init::in_the_mesh;
use crate::node::Network;
use crate::pod::{Meta, Pod};
use crate::scenario::{Scenario, World};

/// The network without a plugin, and the one with it.
const BY_NRI: &str = "nri";
const BY_CNI: &str = "cni";

/// Of pods; to a name a number is added.
const NAMESPACE: &str = "shop";
const NAME: &str = "web";

/// The agent's mode, and the one that it comes to.
const MODES: [(&str, &str); 5] = [
    ("nft", "nft"),
    ("native", "native"),
    ("auto", "nft"),
    ("legacy", "legacy"),
    // The node's iptables is that of nf_tables.
    ("plain", "nft"),
];

/// The number of the first scenario's node.
const FIRST: u8 = 2;

type Work = fn(&Host<'_>) -> Result<String>;

pub(crate) fn scenarios(folder: &Path) -> Vec<Scenario> {
    let all: [(&str, Work); 7] = [
        ("a pod in each mode", in_each_mode),
        ("60 pods at once", at_once),
        ("the agent killed in a storm of pods, and back", storm),
        ("containerd restarted, and the socket gone", restarted),
        ("an agent that hangs", hanging),
        ("wrong annotations", wrong),
        ("a node moved from CNI to NRI and back, under load", moved),
    ];
    let all = (FIRST..).zip(all).map(|(number, (name, work))| {
        let folder = folder.to_owned();
        Scenario::new(format!("nri, {name}"), move |outer| on_a_node(outer, &folder, number, work)).alone()
    });
    all.collect()
}

/// A node, and where its agents are reached.
struct Host<'a> {
    world: World<'a>,
    images: &'a Path,
    address: SocketAddr,
}

fn on_a_node(outer: &World<'_>, images: &Path, number: u8, work: Work) -> Result<String> {
    // As on a node, where systemd has it so: mounts of this mount namespace, and of no other one, reach the agent's.
    Command::new("mount").args(["--make-rshared", "/"]).run()?;
    let networks = [Network::new(BY_NRI), Network { chained: vec![by_annotations()], ..Network::new(BY_CNI) }];
    let node = outer.node(number, &networks, &[images.join(PLUGIN)], images)?;
    let host = Host {
        world: World::new(&node, outer.images, BY_NRI)?,
        images,
        address: SocketAddr::from(([127, 0, 0, 1], 9900 + u16::from(number))),
    };
    let said = work(&host).map_err(|error| format!("{error}; the agents said: {}", host.said()))?;
    drop(host);
    Ok(said)
}

impl Host<'_> {
    /// One that has registered.
    fn agent(&self, mode: &str) -> Result<Agent> {
        let agent = self.start(mode)?;
        self.until_ready()?;
        Ok(agent)
    }

    fn start(&self, mode: &str) -> Result<Agent> {
        let mut linkerd = linkerd::cni_section("annotations");
        linkerd["iptables-mode"] = json!(mode);
        let entry = json!({"name": "linkerd-cni", "type": "linkerd-cni", "linkerd": linkerd});
        let log = File::options().create(true).append(true).open(self.world.node.folder.join("agent.log"))?;
        let mut command = Command::new("/usr/bin/unshare");
        // It sees namespaces that are made after it, as with mountPropagation: HostToContainer.
        command
            .args(["--mount", "--propagation", "slave", "/usr/bin/setpriv", "--no-new-privs"])
            .args(["--bounding-set=-all,+sys_admin,+net_admin,+net_raw", "--inh-caps=-all"])
            .arg(self.images.join(AGENT))
            .args(["--nri", "--admin-addr", &self.address.to_string(), "--nri-socket"])
            .arg(self.world.node.folder.join("nri.sock"))
            .env_clear()
            .env("CNI_NETWORK_CONFIG", entry.to_string())
            .stdin(Stdio::null())
            .stderr(log);
        Ok(Agent(command.spawn()?))
    }

    fn said(&self) -> String {
        fs::read_to_string(self.world.node.folder.join("agent.log")).unwrap_or_default()
    }

    /// The agent's answer; an error if there is no agent, or if it says that something is wrong.
    fn get(&self, path: &str) -> Result<String> {
        let url = format!("http://{}{path}", self.address);
        Command::new("curl").args(["--silent", "--fail", "--max-time", "5", &url]).read()
    }

    fn is_ready(&self) -> bool {
        self.get("/readyz").is_ok()
    }

    fn until_ready(&self) -> Result<()> {
        until("the agent is ready", || self.is_ready())
    }

    fn metric(&self, name: &str) -> Option<String> {
        let text = self.get("/metrics").ok()?;
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned))
    }

    fn meshed(&self, network: &str) -> Result<Pod<'_>> {
        self.annotated(network, &[("linkerd.io/proxy-version", "edge-1")])
    }

    fn annotated(&self, network: &str, pairs: &[(&str, &str)]) -> Result<Pod<'_>> {
        Pod::start(self.world.node, network, &meta(pairs))
    }

    /// Starts a meshed pod, which has to have the rules of linkerd-init, and removes it.
    fn meshes(&self, network: &str) -> Result<()> {
        let pod = self.meshed(network)?;
        has_rules(&pod, &Flags::default())?;
        pod.remove()
    }

    /// True if an application of the pod has rules at its first instruction, by which a connection of its own is redirected.
    fn is_redirected(&self, pod: &Pod<'_>) -> Result<bool> {
        match validated(&self.world, pod)? {
            0 => Ok(true),
            UNSUCCESSFUL => Ok(false),
            code => Err(format!("the validator ended with {code}").into()),
        }
    }
}

fn meta(pairs: &[(&str, &str)]) -> Meta {
    Meta { name: NAME.to_owned(), namespace: NAMESPACE.to_owned(), annotations: annotations(pairs), ..Meta::default() }
}

fn in_each_mode(host: &Host<'_>) -> Result<String> {
    for (mode, becomes) in MODES {
        let agent = host.agent(mode)?;
        let failed = |error| format!("mode {mode}: {error}");
        let pod = host.meshed(BY_NRI).map_err(failed)?;
        in_the_mesh(&host.world, &pod, becomes).map_err(failed)?;
        pod.remove()?;
        let own_users = Meta { own_users: true, ..meta(&[("linkerd.io/proxy-version", "edge-1")]) };
        let pod = Pod::start(host.world.node, BY_NRI, &own_users)?;
        in_the_mesh(&host.world, &pod, "native").map_err(failed)?;
        pod.remove()?;
        let plain = host.annotated(BY_NRI, &[])?;
        if !rules(&plain)?.is_empty() {
            return Err(format!("mode {mode}: a pod without a proxy has rules").into());
        }
        plain.remove()?;
        drop(agent);
    }
    Ok("each has its rules, and with users of its own native ones; one without a proxy has none".to_owned())
}

fn at_once(host: &Host<'_>) -> Result<String> {
    const PODS: usize = 60;
    let agent = host.agent("nft")?;
    let begun = Instant::now();
    let outcomes = each(PODS, &[(); PODS], |()| -> Result<Duration> {
        let pod = host.meshed(BY_NRI)?;
        let took = begun.elapsed();
        has_rules(&pod, &Flags::default())?;
        pod.remove()?;
        Ok(took)
    });
    let mut took = outcomes.into_iter().collect::<Result<Vec<_>>>()?;
    took.sort_unstable();
    let ended = host.metric(r#"linkerd_cni_plugin_commands_total{command="ADD",code="0"}"#);
    if ended.as_deref() != Some("60") {
        return Err(format!("the agent counts {ended:?} pods").into());
    }
    let slow = host.said().lines().filter(|line| line.contains("the runtime waited")).count();
    drop(agent);
    Ok(format!(
        "all have their rules; half of the sandboxes were there after {:.1?}, all after {:.1?}; {slow} answers took longer than \
         100 ms",
        took[PODS / 2],
        took[PODS - 1]
    ))
}

/// Pods whose validator is started again until it passes, as kubelet does, and then their application; and pods without a
/// validator, whose containers are made once the agent is back.
fn storm(host: &Host<'_>) -> Result<String> {
    const PODS: usize = 40;
    // Made while no agent is there. Their containers come after it.
    let early: Vec<Pod<'_>> = (0..6).map(|_| host.meshed(BY_NRI)).collect::<Result<_>>()?;
    let mut agent = host.agent("nft")?;
    for outcome in each(3, &early, |pod| host.is_redirected(pod)) {
        if !outcome? {
            return Err("an application of a pod that started without the agent has no rules".into());
        }
    }
    for pod in early {
        pod.remove()?;
    }
    let killer = |over: &AtomicBool| -> Result<usize> {
        let mut killed = 0;
        while !over.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(1500));
            drop(agent);
            killed += 1;
            sleep(Duration::from_millis(700));
            agent = host.agent("nft")?;
        }
        Ok(killed)
    };
    let (killed, waited) = beside(killer, || -> Result<usize> {
        let outcomes = each(6, &[(); PODS], |()| -> Result<usize> {
            let pod = host.meshed(BY_NRI)?;
            let mut waited = 0;
            while !host.is_redirected(&pod)? {
                waited += 1;
            }
            if !host.is_redirected(&pod)? {
                return Err("an application started without rules".into());
            }
            has_rules(&pod, &Flags::default())?;
            pod.remove()?;
            Ok(waited)
        });
        outcomes.into_iter().sum()
    })?;
    if killed < 3 {
        return Err(format!("the agent was killed {killed} times only").into());
    }
    Ok(format!(
        "0 applications without rules; the agent was killed {killed} times, and validators waited {waited} times for it in \
         {PODS} pods"
    ))
}

fn restarted(host: &Host<'_>) -> Result<String> {
    let agent = host.agent("nft")?;
    let before = host.meshed(BY_NRI)?;
    let ready = || host.is_ready();
    for _ in 0..3 {
        host.world.node.restart(|| until("the agent is not ready", || !ready()))?;
        let begun = Instant::now();
        host.until_ready()?;
        let took = begun.elapsed();
        if took > Duration::from_secs(5) {
            return Err(format!("it took {took:?} to register again").into());
        }
        host.meshes(BY_NRI)?;
        has_rules(&before, &Flags::default())?;
    }
    // The agent that is connected needs no socket, and one that comes does.
    fs::remove_file(host.world.node.folder.join("nri.sock"))?;
    host.meshes(BY_NRI)?;
    drop(agent);
    let agent = host.start("nft")?;
    until("the agent says that it is gone", || host.said().contains("No such file or directory"))?;
    if ready() {
        return Err("the agent is ready without a socket".into());
    }
    host.world.node.restart(|| Ok(()))?;
    host.until_ready()?;
    host.meshes(BY_NRI)?;
    before.remove()?;
    drop(agent);
    Ok("the agent registers again within 5 s, pods keep their rules, and new ones get them".to_owned())
}

fn hanging(host: &Host<'_>) -> Result<String> {
    let agent = host.agent("nft")?;
    agent.signal(Signal::SIGSTOP)?;
    let begun = Instant::now();
    let pod = host.meshed(BY_NRI)?;
    let took = begun.elapsed();
    // containerd goes on without a plugin that is late.
    if host.is_redirected(&pod)? {
        return Err("the pod has rules of an agent that hangs".into());
    }
    let begun = Instant::now();
    let other = host.meshed(BY_NRI)?;
    let next = begun.elapsed();
    if !(Duration::from_secs(2)..Duration::from_secs(6)).contains(&took) || next > Duration::from_secs(2) {
        return Err(format!("the first sandbox took {took:?}, the next {next:?}").into());
    }
    agent.signal(Signal::SIGCONT)?;
    until("the agent has registered again", || {
        host.is_ready() && host.metric(r#"linkerd_cni_agent_pods{standing="in_place"}"#).as_deref() == Some("2")
    })?;
    for pod in [pod, other] {
        if !host.is_redirected(&pod)? {
            return Err("a pod isn't healed".into());
        }
        connects(&host.world, &pod, true)?;
        pod.remove()?;
    }
    drop(agent);
    Ok(format!(
        "a pod waits {took:.1?} and starts without rules, its validator fails, the next waits for nobody, and both are healed \
         once the agent goes on"
    ))
}

fn wrong(host: &Host<'_>) -> Result<String> {
    let agent = host.agent("nft")?;
    let pairs = [("linkerd.io/proxy-version", "edge-1"), ("config.linkerd.io/skip-outbound-ports", "3306,http")];
    let begun = Instant::now();
    let Err(error) = host.annotated(BY_NRI, &pairs) else {
        return Err("the sandbox was made".into());
    };
    let error = error.to_string();
    let words = "annotation config.linkerd.io/skip-outbound-ports of pod shop/web-";
    if !error.contains(words) || begun.elapsed() > Duration::from_secs(5) {
        return Err(format!("after {:?}: {error}", begun.elapsed()).into());
    }
    // The node goes on.
    host.meshes(BY_NRI)?;
    drop(agent);
    Ok(format!("the sandbox failed, saying: {error}"))
}

/// Pods start and end all the time: by the plugin alone, by both, by NRI alone, and the same way back.
fn moved(host: &Host<'_>) -> Result<String> {
    let has_plugin = AtomicBool::new(true);
    let load = |over: &AtomicBool| -> Result<usize> {
        let mut started = 0;
        while !over.load(Ordering::Relaxed) {
            let network = if has_plugin.load(Ordering::Relaxed) { BY_CNI } else { BY_NRI };
            let pod = host.meshed(network)?;
            if !host.is_redirected(&pod)? {
                return Err(format!("an application on the network {network} started without rules").into());
            }
            has_rules(&pod, &Flags::default())?;
            pod.remove()?;
            started += 1;
        }
        Ok(started)
    };
    let (started, ()) = beside(load, || {
        let phase = Duration::from_secs(3);
        sleep(phase);
        let agent = host.agent("nft")?;
        sleep(phase);
        has_plugin.store(false, Ordering::Relaxed);
        sleep(phase);
        has_plugin.store(true, Ordering::Relaxed);
        // A pod that was begun by NRI alone is through before the agent ends.
        sleep(phase);
        drop(agent);
        sleep(phase);
        Ok(())
    })?;
    // The agent finds the plugin's rules in place, and changes nothing.
    let pod = host.meshed(BY_CNI)?;
    let before = handles(&pod)?;
    let agent = host.agent("nft")?;
    until("the agent has looked", || {
        host.metric(r#"linkerd_cni_agent_pods{standing="in_place"}"#).as_deref() == Some("1")
    })?;
    if handles(&pod)? != before {
        return Err("the agent changed rules that the plugin had made".into());
    }
    pod.remove()?;
    drop(agent);
    Ok(format!("{started} pods started and ended meanwhile, each with its rules"))
}

/// All rules of a pod with their numbers, which no rule has twice.
fn handles(pod: &Pod<'_>) -> Result<String> {
    let mut nft = Command::new("nsenter");
    nft.arg(format!("--net={}", pod.netns.display()));
    // Counters differ from look to look.
    nft.args(["nft", "--handle", "--stateless", "list", "ruleset"]).read()
}
