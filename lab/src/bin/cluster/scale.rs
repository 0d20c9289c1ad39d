//! What the node's agent and the plugin cost a node and the API server: the figures of docs/node.md.
//!
//! A node full of pods, then many agents against the API server whose nodes are objects alone: no kubelet has their
//! pods. Those agents only watch, for the kernel lets one user have 128 inotify queues; installing asks the API server
//! for nothing but a watch of the agents' namespace and four requests at an agent's end.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use lab::scenario::each;
use lab::shell::Result;
use lab::wait;
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::cni::{self, AGENTS, metric};
use crate::machine::NODE;
use crate::pod;
use crate::services::AUDIT;
use crate::world::{Scenario, World};

/// The word by which it is asked for: it measures for minutes, and is no test.
pub(crate) const WORD: &str = "scale";

/// How many pods kubelet takes.
const FULL: usize = 110;
/// How many agents there are, and how many meshed pods each has.
const FLEET: usize = 1000;
const PODS: usize = 5;
/// How long they are left alone. A watch lasts 290 seconds.
const QUIET: Duration = Duration::from_secs(300);
/// A bound against hanging.
const PATIENCE: Duration = Duration::from_secs(1200);

/// One of the two, in the scenario's namespace.
type Part = fn(&World<'_>) -> Result<()>;

pub(crate) fn scenarios() -> Vec<Scenario> {
    let parts: [(String, Part); 2] = [
        (format!("{WORD}: a node full of pods, {FULL}"), one_node),
        (format!("{WORD}: a fleet of {FLEET} agents"), fleet),
    ];
    parts
        .map(|(name, part)| {
            let measure = move |world: &World<'_>| {
                cni::with_agent(world, &["api"], |agent| {
                    agent.install()?;
                    part(world)?;
                    Ok("measured".to_owned())
                })
            };
            Scenario::new(name, measure).alone()
        })
        .into()
}

/// Starts as many meshed pods as kubelet takes, and returns how many these are.
pub(crate) fn fill(world: &World<'_>) -> Result<usize> {
    let namespace = world.namespace.as_str();
    let kubectl = &world.cluster.kubectl;
    let others = kubectl.json(&["get", "pods", "--all-namespaces"])?;
    let pods = FULL - others["items"].as_array().map_or(0, Vec::len);
    let mut spec = pod::specification(&[]);
    spec["terminationGracePeriodSeconds"] = json!(0);
    let labels = json!({"app": "full", "linkerd.io/control-plane-ns": "linkerd"});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "full"}, "spec": {
        "replicas": pods, "progressDeadlineSeconds": 1200, "selector": {"matchLabels": {"app": "full"}},
        "template": {"metadata": {"labels": labels}, "spec": spec}}});
    kubectl.create(namespace, &deployment)?;
    kubectl.run(&["rollout", "status", "--timeout=1200s", "--namespace", namespace, "deployment/full"])?;
    Ok(pods)
}

/// Deletes them.
pub(crate) fn empty(world: &World<'_>) -> Result<()> {
    let of_namespace = ["delete", "deployment", "full", "--cascade=foreground", "--namespace", &world.namespace];
    world.cluster.kubectl.run(&of_namespace).map(drop)
}

/// The node, as full as kubelet lets it be.
fn one_node(world: &World<'_>) -> Result<()> {
    let mut requests = Requests::default();
    requests.new_ones()?;
    let begun = Instant::now();
    let pods = fill(world)?;
    let in_place = || metric(r#"linkerd_cni_agent_pods{standing="in_place"}"#) == i64::try_from(pods).ok();
    wait::until(PATIENCE, || in_place().then_some(())).ok_or("the agent has not looked at all pods")?;
    say(&format!("{pods} meshed pods started in {:.0} s", begun.elapsed().as_secs_f64()));
    requests.say("while they started", pods, "pod")?;
    // The scenario's agents look at all pods every three seconds.
    let agent = process_of("linkerd-cni-age").ok_or("no agent runs")?;
    let rounds = || metric("linkerd_cni_agent_round_seconds_count").unwrap_or_default();
    let (cpu, count) = (processor_time(agent)?, rounds());
    sleep(Duration::from_secs(60));
    let (cpu, count) = (processor_time(agent)? - cpu, rounds() - count);
    say(&format!(
        "the node's agent: {cpu:.2} s of processor time for a look at each of {pods} pods every three seconds in a minute, in {count} \
         rounds; at most {} KiB of memory",
        memory(agent, "VmHWM:")?
    ));
    requests.say("in the minute after that", 1, "node")?;
    empty(world)
}

/// Many agents.
fn fleet(world: &World<'_>) -> Result<()> {
    // It would delete the pods of nodes that are not there.
    world.cluster.kill_service("kube-controller-manager")?;
    let outcome = watch(world);
    world.cluster.start_service("kube-controller-manager")?;
    outcome
}

fn watch(world: &World<'_>) -> Result<()> {
    let namespace = world.namespace.as_str();
    let cluster = world.cluster;
    let kubectl = &cluster.kubectl;
    let begun = Instant::now();
    let nodes: Vec<usize> = (0..FLEET).collect();
    let chunks: Vec<&[usize]> = nodes.chunks(FLEET / 20).collect();
    let made = each(4, &chunks, |nodes| {
        let pods = nodes.iter().flat_map(|node| (0..PODS).map(move |pod| object(*node, pod)));
        let list = json!({"apiVersion": "v1", "kind": "List", "items": pods.collect::<Vec<_>>()});
        let made = kubectl.run_with(&list.to_string(), &["create", "--namespace", namespace, "--filename=-"]);
        made.map(drop).map_err(|error| error.to_string())
    });
    made.into_iter().collect::<std::result::Result<(), _>>()?;
    say(&format!("{} pods made in {:.0} s", FLEET * PODS, begun.elapsed().as_secs_f64()));
    let account = format!("{NODE}/fleet");
    write_account(world, AGENTS, "linkerd-cni", &account)?;
    let mut requests = Requests::default();
    requests.new_ones()?;
    let api = cluster.process("kube-apiserver").ok_or("no API server runs")?;
    let memory_before = memory(api, "VmRSS:")?;
    let (cpu, lists, begun) = (processor_time(api)?, lists(world)?, Instant::now());
    let mut agents = Fleet(Vec::new());
    for number in 0..FLEET {
        agents.0.push(start(world, &account, number)?);
    }
    watched(world)?;
    say(&format!(
        "{FLEET} agents watch after {:.0} s; the API server used {:.1} s of processor time, read pods from etcd {} times, and has \
         {} MiB of memory in place of {}",
        begun.elapsed().as_secs_f64(),
        processor_time(api)? - cpu,
        self::lists(world)? - lists,
        memory(api, "VmRSS:")? >> 10,
        memory_before >> 10,
    ));
    requests.say("at their start", FLEET, "agent")?;
    let each_has: u64 = agents.0.iter().filter_map(|agent| memory(agent.id(), "VmRSS:").ok()).sum();
    say(&format!("an agent has {} KiB of memory", each_has / u64::try_from(FLEET)?));
    let own: f64 = agents.0.iter().filter_map(|agent| processor_time(agent.id()).ok()).sum();
    let cpu = processor_time(api)?;
    sleep(QUIET);
    let after: f64 = agents.0.iter().filter_map(|agent| processor_time(agent.id()).ok()).sum();
    say(&format!(
        "in {} s of quiet, the API server used {:.1} s of processor time, and all agents {:.1} s",
        QUIET.as_secs(),
        processor_time(api)? - cpu,
        after - own,
    ));
    requests.say("in that time", FLEET, "agent")?;
    // All of them come back at once.
    cluster.kill_service("kube-apiserver")?;
    let begun = Instant::now();
    cluster.start_service("kube-apiserver")?;
    cluster.wait_for_api()?;
    let ready = begun.elapsed().as_secs_f64();
    watched(world)?;
    let api = cluster.process("kube-apiserver").ok_or("no API server runs")?;
    say(&format!(
        "after the API server was killed, it was ready after {ready:.0} s, and all agents watch after {:.0} s; it used {:.1} s of \
         processor time, read pods from etcd {} times, and has {} MiB of memory",
        begun.elapsed().as_secs_f64(),
        processor_time(api)?,
        self::lists(world)?,
        memory(api, "VmRSS:")? >> 10,
    ));
    requests.say("when they came back", FLEET, "agent")
}

/// Agents, killed in the end.
struct Fleet(Vec<Child>);

impl Drop for Fleet {
    fn drop(&mut self) {
        for agent in &mut self.0 {
            let _ = agent.kill();
        }
        for agent in &mut self.0 {
            let _ = agent.wait();
        }
    }
}

/// A meshed pod of a node's that is nothing but a name.
fn object(node: usize, pod: usize) -> Value {
    let mut object = pod::plain(&format!("fleet-{node}-{pod}"));
    object["metadata"]["labels"]["linkerd.io/control-plane-ns"] = json!("linkerd");
    object["spec"]["nodeName"] = json!(format!("fleet-{node}"));
    object
}

/// Fills a folder as kubelet does for pods of this service account.
pub(crate) fn write_account(world: &World<'_>, namespace: &str, account: &str, folder: &str) -> Result<()> {
    fs::create_dir_all(folder)?;
    let secrets = world.cluster.kubectl.json(&["get", "secrets", "--namespace", namespace])?;
    let secrets = secrets["items"].as_array().cloned().unwrap_or_default();
    let is_its = |secret: &&Value| {
        secret.pointer("/metadata/annotations/kubernetes.io~1service-account.name") == Some(&json!(account))
    };
    let token = secrets.iter().find(is_its).and_then(|secret| secret["data"]["token"].as_str());
    let token = token.ok_or_else(|| format!("the account {account} has no token"))?;
    let encoded = format!("{folder}/token.base64");
    fs::write(&encoded, token)?;
    let token = Command::new("base64").args(["--decode", &encoded]).output()?.stdout;
    fs::write(format!("{folder}/token"), token)?;
    fs::write(format!("{folder}/namespace"), namespace)?;
    fs::copy(format!("{NODE}/keys/ca.crt"), format!("{folder}/ca.crt"))?;
    Ok(())
}

fn start(world: &World<'_>, account: &str, number: usize) -> Result<Child> {
    let mut agent = Command::new(world.cluster.file_of_image("cni/usr/lib/linkerd/linkerd-cni-agent"));
    agent
        .args(["--admin-addr", &format!("127.0.0.1:{}", 20000 + number)])
        .env_clear()
        // It finds no folders of a node's to install the plugin in, and watches its pods.
        .env("CONTAINER_MOUNT_PREFIX", "/nonexistent")
        .env("CNI_NETWORK_CONFIG", r#"{"type": "linkerd-cni", "linkerd": {"pod-info": "annotations"}}"#)
        .env("LINKERD_CNI_AGENT_SERVICE_ACCOUNT", account)
        .env("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        .env("KUBERNETES_SERVICE_PORT", "443")
        .env("LINKERD_CNI_REPAIR_CONTROLLER_NODE_NAME", format!("fleet-{number}"))
        .env("LINKERD_CNI_REPAIR_CONTROLLER_POD_NAME", format!("linkerd-cni-{number}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Ok(agent.spawn()?)
}

/// Waits until each agent watches its pods.
fn watched(world: &World<'_>) -> Result<()> {
    let watches = || {
        let text = world.cluster.kubectl.run(&["get", "--raw", "/metrics"]).ok()?;
        let is_its = |line: &&str| {
            line.starts_with("apiserver_longrunning_gauge{")
                && line.contains(r#"resource="pods""#)
                && line.contains(r#"verb="WATCH""#)
        };
        let number: f64 = text.lines().filter(is_its).filter_map(last_word).sum();
        (number >= f64::from(u16::try_from(FLEET).ok()?)).then_some(())
    };
    wait::until(PATIENCE, watches).ok_or_else(|| "not all agents watch".into())
}

/// How often the API server has read pods from etcd.
fn lists(world: &World<'_>) -> Result<u64> {
    let text = world.cluster.kubectl.run(&["get", "--raw", "/metrics"])?;
    let is_its = |line: &&str| {
        line.starts_with("etcd_request_duration_seconds_count{")
            && line.contains(r#"operation="list""#)
            && line.contains("core.Pod\"")
    };
    Ok(text.lines().filter(is_its).filter_map(last_word).map(|count| count as u64).sum())
}

fn last_word(line: &str) -> Option<f64> {
    line.rsplit(' ').next()?.parse().ok()
}

/// The requests of agents and plugins, which the API server logs.
#[derive(Default)]
struct Requests {
    /// How many bytes of the log were read.
    read: usize,
}

impl Requests {
    /// Those since the last time, by who makes them and what they are.
    fn new_ones(&mut self) -> Result<BTreeMap<String, usize>> {
        let log = fs::read_to_string(AUDIT).unwrap_or_default();
        let new = log.get(self.read..).unwrap_or_default();
        // The last line may be half a one.
        let new = new.get(..new.rfind('\n').map_or(0, |end| end + 1)).unwrap_or_default();
        self.read += new.len();
        let mut requests = BTreeMap::new();
        for line in new.lines() {
            let request: Value = serde_json::from_str(line)?;
            // A watch has a line at its beginning, too.
            if request["stage"] == "ResponseComplete" && request["verb"] == "watch" {
                continue;
            }
            let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
            let who = text(&request["userAgent"]);
            let [verb, resource] = [&request["verb"], &request["objectRef"]["resource"]].map(text);
            let code = &request["responseStatus"]["code"];
            *requests.entry(format!("{who}: {verb} {resource} ({code})")).or_default() += 1;
        }
        Ok(requests)
    }

    fn say(&mut self, when: &str, by: usize, what: &str) -> Result<()> {
        for (request, number) in self.new_ones()? {
            #[expect(clippy::cast_precision_loss, reason = "these are some thousands")]
            let each = number as f64 / by as f64;
            say(&format!("  requests {when}: {number} of {request}, {each:.2} for each {what}"));
        }
        Ok(())
    }
}

fn say(line: &str) {
    println!("       {line}");
}

/// The first process that has this name.
fn process_of(name: &str) -> Option<u32> {
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut processes = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    processes.find(|process: &u32| {
        fs::read_to_string(format!("/proc/{process}/comm")).is_ok_and(|comm| comm.trim().starts_with(name))
    })
}

/// The seconds of processor time that a process has used.
pub(crate) fn processor_time(process: u32) -> Result<f64> {
    let clock = clock_getcpuclockid(Pid::from_raw(process.try_into()?))?;
    Ok(Duration::from(clock_gettime(clock)?).as_secs_f64())
}

/// A size in /proc/PID/status, in KiB.
pub(crate) fn memory(process: u32, key: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    Ok(line.ok_or(key)?.trim().trim_end_matches(" kB").parse()?)
}
