//! The node's agent by NRI: containerd tells it of pods, and there is no plugin. The agent has the mounts and the capabilities
//! of deploy/cni/overlays/nri.

use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use lab::manifests::{injected, with_own_users};
use lab::scenario::each;
use lab::shell::Result;
use lab::wait::wait_for;
use lab::{agent, linkerd};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::cni::{has_rules, not_meshed, refused, with_wrong_annotation};
use crate::init::in_the_mesh;
use crate::node::{BRIDGE, NFT};
use crate::pod::Pod;
use crate::{Scenario, World};

/// The agent's mode, and the one that it comes to.
const MODES: [(&str, &str); 5] = [
    ("nft", "nft"),
    ("native", "native"),
    ("auto", "nft"),
    ("legacy", "legacy"),
    // The node's iptables is that of nf_tables.
    ("plain", "nft"),
];

/// The network validator's exit code where nothing is redirected.
const UNSUCCESSFUL: i64 = 95;

type Work = fn(&World) -> Result<String>;

pub(crate) fn scenarios() -> Vec<Scenario> {
    let all: [(&str, Work); 7] = [
        ("a pod in each mode", in_each_mode),
        ("60 pods at once", at_once),
        ("the agent killed in a storm of pods, and back", storm),
        ("containerd restarted, and the socket gone", restarted),
        ("an agent that hangs", hanging),
        ("a wrong annotation", wrong),
        ("rules of the plugin's", of_the_plugin),
    ];
    // Other pods that start meanwhile would get rules too.
    let scenario = |(name, work): (&str, Work)| {
        let work =
            move |world: &World| work(world).map_err(|error| format!("{error}; the agent said: {}", said()).into());
        Scenario::new(format!("nri, {name}"), work).alone()
    };
    all.map(scenario).into()
}

/// An agent, killed in the end.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Agent {
    /// One that has registered.
    fn ready(world: &World, mode: &str) -> Result<Self> {
        let agent = Self::start(world, mode)?;
        until_ready()?;
        Ok(agent)
    }

    fn start(world: &World, mode: &str) -> Result<Self> {
        let mut linkerd = linkerd::cni_section("annotations");
        linkerd["iptables-mode"] = json!(mode);
        let entry = json!({"name": "linkerd-cni", "type": "linkerd-cni", "linkerd": linkerd});
        let mut command = Command::new("/usr/bin/unshare");
        // It sees namespaces that are made after it, as with mountPropagation: HostToContainer.
        command
            .args(["--mount", "--propagation", "slave", "/usr/bin/setpriv", "--no-new-privs"])
            .args(["--bounding-set=-all,+sys_admin,+net_admin,+net_raw", "--inh-caps=-all"])
            .arg(world.node.services.folder.join("images/cni/usr/lib/linkerd/linkerd-cni-agent"))
            .args(["--nri", "--admin-addr", &format!("127.0.0.1:{PORT}")])
            .env_clear()
            .env("CNI_NETWORK_CONFIG", entry.to_string())
            .stdin(Stdio::null())
            .stderr(File::create(LOG)?);
        Ok(Self(command.spawn()?))
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(i32::try_from(self.0.id())?), signal)?)
    }
}

/// Where the agent answers.
const PORT: u16 = 9992;

/// What the last agent says.
const LOG: &str = "/run/node/logs/agent";

fn said() -> String {
    fs::read_to_string(LOG).unwrap_or_default()
}

fn is_ready() -> bool {
    agent::get(PORT, "/readyz").is_ok()
}

fn until_ready() -> Result<()> {
    wait_for("a ready agent", is_ready)
}

fn start_meshed(world: &World) -> Result<Pod> {
    Pod::start(world.node, BRIDGE, &injected("web"))
}

/// Starts a meshed pod, which has to have the rules of linkerd-init, and removes it.
fn meshes(world: &World) -> Result<()> {
    let pod = start_meshed(world)?;
    has_rules(&pod)?;
    pod.remove()
}

/// True if an application of the pod has rules at its first instruction, by which a connection of its own is redirected.
fn is_redirected(pod: &Pod) -> Result<bool> {
    match pod.validate("0.0.0.0:4140", "192.0.2.1:20001", "1s")?.code {
        0 => Ok(true),
        UNSUCCESSFUL => Ok(false),
        code => Err(format!("the validator ended with {code}").into()),
    }
}

fn in_each_mode(world: &World) -> Result<String> {
    for (mode, becomes) in MODES {
        let agent = Agent::ready(world, mode)?;
        let failed = |error| format!("mode {mode}: {error}");
        let pod = start_meshed(world).map_err(failed)?;
        in_the_mesh(world, &pod, becomes).map_err(failed)?;
        pod.remove()?;
        let pod = Pod::start(world.node, BRIDGE, &with_own_users(injected("web")))?;
        in_the_mesh(world, &pod, "native").map_err(failed)?;
        pod.remove()?;
        not_meshed(world, BRIDGE).map_err(failed)?;
        drop(agent);
    }
    Ok("each has its rules, and with users of its own native ones; one without a proxy has none".to_owned())
}

fn at_once(world: &World) -> Result<String> {
    const PODS: usize = 60;
    let agent = Agent::ready(world, "nft")?;
    let begun = Instant::now();
    let outcomes = each(PODS, &[(); PODS], |()| -> Result<Duration> {
        let pod = start_meshed(world)?;
        let took = begun.elapsed();
        has_rules(&pod)?;
        pod.remove()?;
        Ok(took)
    });
    let mut took = outcomes.into_iter().collect::<Result<Vec<_>>>()?;
    took.sort_unstable();
    let ended = agent::metric(PORT, r#"linkerd_cni_agent_sandboxes_total{code="0"}"#);
    if ended != Some(PODS) {
        return Err(format!("the agent counts {ended:?} pods").into());
    }
    let slow = said().lines().filter(|line| line.contains("the runtime waited")).count();
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
fn storm(world: &World) -> Result<String> {
    const PODS: usize = 40;
    // Made while no agent is there. Their containers come after it.
    let early: Vec<Pod> = (0..6).map(|_| start_meshed(world)).collect::<Result<_>>()?;
    let mut agent = Agent::ready(world, "nft")?;
    for outcome in each(3, &early, is_redirected) {
        if !outcome? {
            return Err("an application of a pod that started without the agent has no rules".into());
        }
    }
    for pod in early {
        pod.remove()?;
    }
    let start_pod = |&(): &()| -> Result<usize> {
        let pod = start_meshed(world)?;
        let mut waited = 0;
        while !is_redirected(&pod)? {
            waited += 1;
        }
        if !is_redirected(&pod)? {
            return Err("an application started without rules".into());
        }
        has_rules(&pod)?;
        pod.remove()?;
        Ok(waited)
    };
    let mut killed = 0;
    let waited = thread::scope(|scope| -> Result<usize> {
        let pods = scope.spawn(|| each(6, &[(); PODS], start_pod));
        while !pods.is_finished() {
            sleep(Duration::from_millis(1500));
            drop(agent);
            killed += 1;
            sleep(Duration::from_millis(700));
            agent = Agent::ready(world, "nft")?;
        }
        let outcomes = pods.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
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

fn restarted(world: &World) -> Result<String> {
    let agent = Agent::ready(world, "nft")?;
    let before = start_meshed(world)?;
    for _ in 0..3 {
        world.node.restart(|| wait_for("an agent that is not ready", || !is_ready()))?;
        let begun = Instant::now();
        until_ready()?;
        let took = begun.elapsed();
        if took > Duration::from_secs(5) {
            return Err(format!("it took {took:?} to register again").into());
        }
        meshes(world)?;
        has_rules(&before)?;
    }
    // The agent that is connected needs no socket, and one that comes does.
    fs::remove_file("/run/nri/nri.sock")?;
    meshes(world)?;
    drop(agent);
    let agent = Agent::start(world, "nft")?;
    wait_for("the agent's word that it is gone", || said().contains("No such file or directory"))?;
    if is_ready() {
        return Err("the agent is ready without a socket".into());
    }
    world.node.restart(|| Ok(()))?;
    until_ready()?;
    meshes(world)?;
    before.remove()?;
    drop(agent);
    Ok("the agent registers again within 5 s, pods keep their rules, and new ones get them".to_owned())
}

fn hanging(world: &World) -> Result<String> {
    let agent = Agent::ready(world, "nft")?;
    agent.signal(Signal::SIGSTOP)?;
    let begun = Instant::now();
    let pod = start_meshed(world)?;
    let took = begun.elapsed();
    // containerd goes on without a plugin that is late.
    if is_redirected(&pod)? {
        return Err("the pod has rules of an agent that hangs".into());
    }
    let begun = Instant::now();
    let other = start_meshed(world)?;
    let next = begun.elapsed();
    if !(Duration::from_secs(2)..Duration::from_secs(6)).contains(&took) || next > Duration::from_secs(2) {
        return Err(format!("the first sandbox took {took:?}, the next {next:?}").into());
    }
    agent.signal(Signal::SIGCONT)?;
    wait_for("the agent's registration", || is_ready() && agent::in_place(PORT) == Some(2))?;
    for pod in [pod, other] {
        if !is_redirected(&pod)? {
            return Err("a pod isn't healed".into());
        }
        world.try_connections(&pod, true)?;
        pod.remove()?;
    }
    drop(agent);
    Ok(format!(
        "a pod waits {took:.1?} and starts without rules, its validator fails, the next waits for nobody, and both are healed \
         once the agent goes on"
    ))
}

fn wrong(world: &World) -> Result<String> {
    let _agent = Agent::ready(world, "nft")?;
    let words = "annotation config.linkerd.io/skip-outbound-ports of pod shop/web-";
    let begun = Instant::now();
    let said = refused(world, BRIDGE, &with_wrong_annotation(), words)?;
    if begun.elapsed() > Duration::from_secs(5) {
        return Err(format!("{said}, after {:?}", begun.elapsed()).into());
    }
    // The node goes on.
    meshes(world)?;
    Ok(said)
}

/// The agent finds the plugin's rules in place, and changes nothing.
fn of_the_plugin(world: &World) -> Result<String> {
    let pod = Pod::start(world.node, NFT, &injected("web"))?;
    // With the rules' numbers, which no rule has twice. Counters differ from look to look.
    let list = || pod.rules(&["--handle", "--stateless"]);
    let before = list()?;
    let _agent = Agent::ready(world, "nft")?;
    wait_for("the agent's look", || agent::in_place(PORT) == Some(1))?;
    if list()? != before {
        return Err("the agent changed rules that the plugin had made".into());
    }
    pod.remove()?;
    Ok("they are in place, and stay as they are".to_owned())
}
