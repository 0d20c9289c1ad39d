//! The agent by NRI, with a double of the runtime: one as it should be, and others that are hostile or deaf. A real one
//! is in `cargo xtask pods`.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use lab::network::Namespace;
use lab::wait;
use linkerd_cni_agent::message::{
    Annotation, ConfigureRequest, ConfigureResponse, LinuxNamespace, LinuxPodSandbox, PodRequest, PodSandbox,
    RegisterPluginRequest, Request, Response, StateChangeEvent, SynchronizeRequest, SynchronizeResponse,
};
use nix::sys::signal::Signal;
use prost::Message;
use prost::bytes::Bytes;

use crate::node::{Agent, CALICO, Node, program, traced, until, until_within};
use crate::watch::rules;

const ENTRY: &str = r#"{"name": "linkerd-cni", "type": "linkerd-cni", "linkerd": {"pod-info": "annotations",
    "incoming-proxy-port": 4143, "outgoing-proxy-port": 4140, "proxy-uid": 2102, "iptables-mode": "nft", "ipv6": true}}"#;
/// That of a plugin, as its agent writes it.
const LEFT_ENTRY: &str = r#"{"name": "linkerd-cni", "type": "linkerd-cni", "linkerd": {"pod-info": "annotations",
    "agent": "linkerd-cni/linkerd-cni", "incoming-proxy-port": 4143, "outgoing-proxy-port": 4140, "proxy-uid": 2102}}"#;
/// How long the agent takes to look at the node's folders once.
const LOOKS: Duration = Duration::from_secs(6);
/// The time that the runtime's double waits for an answer.
const PATIENCE: Duration = Duration::from_secs(20);
const RUN: i32 = 1;
const REMOVE: i32 = 3;

/// A runtime that waits for plugins on a socket on the node.
struct Runtime {
    listener: UnixListener,
}

impl Runtime {
    fn start(node: &Node) -> Self {
        let _ = fs::remove_file(socket(node));
        let listener = UnixListener::bind(socket(node)).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self { listener }
    }

    /// The agent's next connection.
    fn accept(&self) -> Plugin {
        let (stream, _) = wait::until(PATIENCE, || self.listener.accept().ok()).expect("the agent doesn't connect");
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Plugin { stream, requests: 0 }
    }

    /// One that has registered, and was told of these pods.
    fn registered(&self, pods: Vec<PodSandbox>) -> Plugin {
        let mut plugin = self.accept();
        plugin.register(0);
        plugin.synchronize(pods, false).unwrap();
        plugin
    }
}

/// The runtime's end of a connection.
struct Plugin {
    stream: UnixStream,
    requests: u32,
}

impl Plugin {
    fn send(&mut self, connection: u32, stream: u32, kind: u8, body: &[u8]) {
        let length = |length: usize| u32::try_from(length).unwrap().to_be_bytes();
        let mut message = length(body.len()).to_vec();
        message.extend(stream.to_be_bytes());
        message.extend([kind, 0]);
        message.extend(body);
        let frame = [&connection.to_be_bytes()[..], &length(message.len()), &message].concat();
        self.stream.write_all(&frame).unwrap();
    }

    /// A frame, which has a whole message: its connection, its stream, its kind and its body.
    fn receive(&mut self) -> io::Result<(u32, u32, u8, Vec<u8>)> {
        let mut head = [0; 18];
        self.stream.read_exact(&mut head)?;
        let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        assert_eq!(number(4), number(8) + 10, "a short message is in one frame");
        let mut body = vec![0; usize::try_from(number(8)).unwrap()];
        self.stream.read_exact(&mut body)?;
        Ok((number(0), number(12), head[16], body))
    }

    /// Takes the agent's registration, and tells it this deadline in milliseconds, or none.
    fn register(&mut self, request_timeout: i64) {
        let (connection, stream, kind, body) = self.receive().unwrap();
        assert_eq!((connection, kind), (2, 1));
        let request = Request::decode(body.as_slice()).unwrap();
        assert_eq!(
            (request.service.as_str(), request.method.as_str()),
            ("nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin")
        );
        let registration = RegisterPluginRequest::decode(request.payload).unwrap();
        assert_eq!((registration.plugin_idx.as_str(), registration.plugin_name.as_str()), ("10", "linkerd-proxy-init"));
        self.send(2, stream, 2, &Response::default().encode_to_vec());
        let configuration =
            ConfigureRequest { runtime_name: "double".to_owned(), runtime_version: "1".to_owned(), request_timeout };
        let answer = self.call("Configure", &configuration).unwrap();
        // RunPodSandbox, RemovePodSandbox and CreateContainer.
        assert_eq!(ConfigureResponse::decode(answer.as_slice()).unwrap().events, 0b1101);
    }

    fn synchronize(&mut self, pods: Vec<PodSandbox>, more: bool) -> Result<(), String> {
        let answer = self.call("Synchronize", &SynchronizeRequest { pods, more })?;
        assert_eq!(SynchronizeResponse::decode(answer.as_slice()).unwrap().more, more);
        Ok(())
    }

    fn call(&mut self, method: &str, message: &impl Message) -> Result<Vec<u8>, String> {
        self.requests += 1;
        let stream = 2 * self.requests - 1;
        let request = Request {
            service: "nri.pkg.api.v1alpha1.Plugin".to_owned(),
            method: method.to_owned(),
            payload: message.encode_to_vec().into(),
        };
        self.send(1, stream, 1, &request.encode_to_vec());
        let (connection, answered, kind, body) = self.receive().unwrap();
        assert_eq!((connection, answered, kind), (1, stream, 2));
        let answer = Response::decode(body.as_slice()).unwrap();
        let status = answer.status.unwrap_or_default();
        if status.code == 0 { Ok(answer.payload) } else { Err(status.message) }
    }

    fn on_pod(&mut self, method: &str, pod: &PodSandbox) -> Result<Vec<u8>, String> {
        self.call(method, &PodRequest { pod: Some(pod.clone()) })
    }

    fn state_change(&mut self, event: i32, pod: &PodSandbox) -> Result<Vec<u8>, String> {
        self.call("StateChange", &StateChangeEvent { event, pod: Some(pod.clone()) })
    }
}

fn socket(node: &Node) -> PathBuf {
    node.path().join("nri.sock")
}

/// An agent that knows the socket and the rules, and nothing of Kubernetes.
fn agent(node: &Node, arguments: &[&str]) -> Agent {
    agent_of(node, ENTRY, arguments)
}

/// A node with a runtime, and such an agent.
fn started(arguments: &[&str]) -> (Node, Runtime, Agent) {
    let node = Node::new();
    let runtime = Runtime::start(&node);
    let agent = agent(&node, arguments);
    (node, runtime, agent)
}

fn agent_of(node: &Node, entry: &str, arguments: &[&str]) -> Agent {
    start(node, Command::new(program()), entry, arguments)
}

fn start(node: &Node, mut command: Command, entry: &str, arguments: &[&str]) -> Agent {
    let socket = socket(node);
    command
        .env_clear()
        .env("CNI_NETWORK_CONFIG", entry)
        .args(["--nri", "--admin-addr", "127.0.0.1:9990", "--nri-socket"])
        .arg(socket)
        .args(arguments);
    node.start(command)
}

/// A meshed pod, with its network namespace at this path.
fn pod(name: &str, network: &Path) -> PodSandbox {
    PodSandbox {
        id: format!("sandbox-{name}"),
        name: name.to_owned(),
        uid: "00000000-0000-4000-8000-000000000001".to_owned(),
        namespace: "shop".to_owned(),
        annotations: vec![annotation("linkerd.io/proxy-version", "edge-1")],
        linux: Some(LinuxPodSandbox {
            namespaces: vec![
                namespace("pid", ""),
                namespace("mount", ""),
                namespace("network", network.to_str().unwrap()),
            ],
        }),
    }
}

fn annotation(key: &str, value: &str) -> Bytes {
    Annotation { key: key.to_owned(), value: value.to_owned() }.encode_to_vec().into()
}

fn namespace(kind: &str, path: &str) -> LinuxNamespace {
    LinuxNamespace { r#type: kind.to_owned(), path: path.to_owned() }
}

fn has_rules(network: &Namespace) -> bool {
    rules(network).contains("--to-ports 4143")
}

fn is_ready(node: &Node) -> bool {
    node.metric("linkerd_cni_agent_ready").as_deref() == Some("1")
}

#[test]
fn a_pod_has_its_rules_when_the_runtime_is_answered_however_it_tells_of_the_pod() {
    let (node, runtime, agent) = started(&[]);
    let mut plugin = runtime.accept();
    sleep(Duration::from_millis(200));
    assert!(!is_ready(&node), "before it is registered");
    plugin.register(2000);
    plugin.synchronize(Vec::new(), false).unwrap();
    until("it is ready", || is_ready(&node));
    for (name, by_state_change) in [("before", true), ("since", false)] {
        let network = Namespace::new();
        let pod = pod(name, &network.path());
        let answer =
            if by_state_change { plugin.state_change(RUN, &pod) } else { plugin.on_pod("RunPodSandbox", &pod) };
        assert_eq!(answer, Ok(Vec::new()));
        assert!(has_rules(&network), "{name}");
        assert_eq!(plugin.on_pod("CreateContainer", &pod), Ok(Vec::new()));
    }
    assert_eq!(node.pods("in_place").unwrap(), "2");
    assert_eq!(node.metric(r#"linkerd_cni_agent_sandboxes_total{code="0"}"#).unwrap(), "2");
    // Sandboxes that are gone.
    for answer in [
        plugin.state_change(REMOVE, &pod("before", Path::new("/nowhere"))),
        plugin.on_pod("RemovePodSandbox", &pod("since", Path::new("/nowhere"))),
        plugin.call("Shutdown", &PodRequest { pod: None }),
    ] {
        assert_eq!(answer, Ok(Vec::new()));
    }
    assert_eq!(node.pods("in_place").unwrap(), "0");
    // Later versions may have such a call.
    assert!(plugin.call("Other", &PodRequest { pod: None }).unwrap_err().contains("Other"));
    assert!(plugin.call("RunPodSandbox", &PodRequest { pod: None }).unwrap_err().contains("no pod"));
    drop(plugin);
    until("it is not ready", || !is_ready(&node));
    agent.terminate();
}

#[test]
fn pods_that_are_not_meshed_or_have_the_nodes_network_are_left_alone() {
    let (_node, runtime, agent) = started(&[]);
    let network = Namespace::new();
    let mut plain = pod("plain", &network.path());
    plain.annotations.clear();
    let mut of_node = pod("of-node", &network.path());
    of_node.linux.as_mut().unwrap().namespaces.pop();
    let mut plugin = runtime.registered(vec![plain.clone(), of_node.clone()]);
    for pod in [plain, of_node] {
        plugin.on_pod("RunPodSandbox", &pod).unwrap();
        plugin.on_pod("CreateContainer", &pod).unwrap();
    }
    assert!(!has_rules(&network));
    agent.terminate();
}

#[test]
fn a_sandbox_fails_with_the_reason_and_nothing_is_changed() {
    let (node, runtime, agent) = started(&[]);
    let mut plugin = runtime.registered(Vec::new());
    let network = Namespace::new();
    let file = node.path().join("file");
    fs::write(&file, "").unwrap();
    let mut wrong = pod("wrong", &network.path());
    wrong.annotations.push(annotation("config.linkerd.io/skip-outbound-ports", "3306,http"));
    // Kubernetes allows 256 KiB, of which the rules would take more memory than the agent may have.
    let mut long = pod("long", &network.path());
    long.annotations.push(annotation("proxy-init.io/outbound-interfaces-to-ignore", &"a,".repeat(130_000)));
    let mut nameless = pod("nameless", &network.path());
    nameless.name = "../x".to_owned();
    let mut not_told = pod("not-told", &network.path());
    not_told.linux = None;
    for (pod, words) in [
        (&wrong, "skip-outbound-ports of pod shop/wrong has the invalid value \"3306,http\""),
        (&long, "annotations of pod shop/long that change rules have more than 4096 bytes"),
        (&nameless, "no name in Kubernetes"),
        (&not_told, "doesn't tell its namespaces"),
        (&pod("nowhere", Path::new("")), "doesn't tell where"),
        (&pod("missing", Path::new("/var/run/netns/missing")), "No such file"),
        (&pod("file", &file), "not the file of a network namespace"),
        (&pod("mount", Path::new("/proc/self/ns/mnt")), "not the file of a network namespace"),
        (&pod("own", &node.network.path()), "that is the agent's own"),
    ] {
        let said = plugin.on_pod("RunPodSandbox", pod).unwrap_err();
        assert!(said.contains(words), "{said}");
        let said = plugin.on_pod("CreateContainer", pod).unwrap_err();
        let words = if pod.name == "missing" { "is gone" } else { words };
        assert!(said.contains(words), "{said}");
    }
    for network in [&network, &node.network] {
        assert!(!has_rules(network));
    }
    assert_eq!(node.metric(r#"linkerd_cni_agent_sandboxes_total{code="102"}"#).unwrap(), "2");
    agent.terminate();
}

#[test]
fn pods_that_started_while_the_agent_was_away_are_healed_before_they_get_a_container() {
    let node = Node::new();
    let runtime = Runtime::start(&node);
    let networks: Vec<Namespace> = (0..20).map(|_| Namespace::new()).collect();
    let mut pods: Vec<PodSandbox> =
        (0..).zip(&networks).map(|(number, network)| pod(&format!("web-{number}"), &network.path())).collect();
    // A sandbox that was stopped, and is still listed.
    pods.push(pod("stopped", Path::new("/var/run/netns/stopped")));
    // One that only tells.
    let telling = agent(&node, &["--repair", "nothing"]);
    let mut plugin = runtime.registered(pods.clone());
    plugin.on_pod("CreateContainer", &pods[0]).unwrap();
    until("all are told", || node.metric(r#"linkerd_cni_agent_pods_drifted{reason="none"}"#).as_deref() == Some("20"));
    assert!(!networks.iter().any(has_rules));
    telling.terminate();
    // One that heals them, told of them in two parts. The last of them is waited for at once.
    let healing = agent(&node, &[]);
    let mut plugin = runtime.accept();
    plugin.register(0);
    plugin.synchronize(pods[..7].to_vec(), true).unwrap();
    plugin.synchronize(pods[7..].to_vec(), false).unwrap();
    plugin.on_pod("CreateContainer", &pods[19]).unwrap();
    assert!(has_rules(&networks[19]));
    until("all are in place", || node.pods("in_place").as_deref() == Some("20"));
    assert!(networks.iter().all(has_rules));
    assert_eq!(node.metric("linkerd_cni_agent_repair_seconds_count").unwrap(), "20");
    healing.terminate();
}

#[test]
fn rules_that_somebody_changed_are_told_and_those_of_an_earlier_configuration_stay() {
    let node = Node::new();
    let runtime = Runtime::start(&node);
    let network = Namespace::new();
    let pod = pod("web-0", &network.path());
    let drifted = |reason: &str| node.metric(&format!("linkerd_cni_agent_pods_drifted{{reason=\"{reason}\"}}"));
    let first = agent(&node, &["--verify-every", "1"]);
    let mut plugin = runtime.registered(vec![pod.clone()]);
    plugin.on_pod("CreateContainer", &pod).unwrap();
    network.sh("iptables-nft -t nat -I PROXY_INIT_OUTPUT -d 192.0.2.1 -j RETURN");
    until("it is told", || drifted("unexpected").as_deref() == Some("1"));
    assert!(first.says("shop/web-0: other rules (unexpected)"));
    network.sh("iptables-nft -t nat -D PROXY_INIT_OUTPUT -d 192.0.2.1 -j RETURN");
    until("they are as they were", || drifted("unexpected").is_none());
    network.sh("iptables-nft -t nat -D PREROUTING 1");
    until("they are back", || rules(&network).contains("-j PROXY_INIT_REDIRECT"));
    // The look at registration and that before the container are one.
    assert_eq!(first.terminate().matches("healed: its rules were not in place (none)").count(), 1);
    // With another proxy port.
    let second = agent_of(&node, &ENTRY.replace("4143", "5143"), &["--verify-every", "1"]);
    let mut plugin = runtime.registered(vec![pod.clone()]);
    plugin.on_pod("CreateContainer", &pod).unwrap();
    assert!(second.says("its rules are whole, and of another configuration"));
    network.sh("iptables-nft -t nat -D PREROUTING 1");
    until("they are back", || rules(&network).contains("-j PROXY_INIT_REDIRECT"));
    assert!(has_rules(&network));
    second.terminate();
}

/// A look at rules that nobody has touched asks for nf_tables' generation, and lists nothing.
#[test]
fn untouched_rules_are_not_listed_again_and_whatever_changes_is_seen() {
    // nf_tables' number, and the message's.
    const GET_GENERATION: &str = "nlmsg_type=0xa10,";
    const GET_RULES: &str = "nlmsg_type=0xa07,";
    let node = Node::new();
    let runtime = Runtime::start(&node);
    let asked = node.path().join("asked");
    let mut strace = Command::new("strace");
    strace.args(["-D", "-f", "-qq", "-X", "raw", "--trace=sendto", "--output"]);
    strace.arg(&asked).arg(program());
    let agent = start(&node, strace, ENTRY, &["--verify-every", "1"]);
    let count = |message: &str| fs::read_to_string(&asked).unwrap().matches(message).count();
    let network = Namespace::new();
    let pod = pod("web-0", &network.path());
    let mut plugin = runtime.registered(vec![pod.clone()]);
    plugin.on_pod("CreateContainer", &pod).unwrap();
    // One look finds them where the agent has just put them.
    let before = count(GET_GENERATION);
    until("they were looked at", || count(GET_GENERATION) >= before + 6);
    let (lists, looks) = (count(GET_RULES), count(GET_GENERATION));
    assert!(lists > 0);
    until("they are looked at again and again", || count(GET_GENERATION) >= looks + 4);
    assert_eq!(count(GET_RULES), lists);
    // All of them, and one of them, are taken away.
    for line in ["nft flush ruleset", "iptables-nft -t nat -D PREROUTING 1"] {
        network.sh(line);
        until("they are back", || rules(&network).contains("-j PROXY_INIT_REDIRECT"));
    }
    // Packets that legacy tables drop are no change of nf_tables.
    let dropped = || {
        let metric = node.metric(r#"linkerd_cni_agent_pods_drifted{reason="dropped"}"#);
        metric.as_deref() == Some("1")
    };
    let looks = count(GET_GENERATION);
    until("they are looked at", || count(GET_GENERATION) >= looks + 6);
    assert!(!dropped());
    network.sh("iptables-legacy -t filter -I INPUT -p tcp --dport 4143 -j DROP");
    until("it is told", dropped);
    network.sh("iptables-legacy -t filter -F INPUT");
    until("it is over", || !dropped());
    network.sh("iptables-legacy -t filter -I INPUT -p tcp --dport 4143 -j DROP");
    until("it is told again", dropped);
    agent.terminate();
}

/// As [`crate::watch`] has it by CNI: docs/node.md has the figures of the program in the image, which LINKERD_CNI_AGENT
/// names.
#[test]
fn a_full_node_costs_little() {
    const PODS: u32 = 110;
    const SECONDS: u32 = 10;
    let (node, runtime, agent) = started(&["--verify-every", "1"]);
    let networks: Vec<Namespace> = (0..PODS).map(|_| Namespace::new()).collect();
    let pods = (0..).zip(&networks);
    let pods = pods.map(|(number, network): (u32, _)| pod(&format!("web-{number}"), &network.path()));
    let _plugin = runtime.registered(pods.collect());
    let are_in_place = || node.pods("in_place") == Some(PODS.to_string());
    until_within(Duration::from_secs(600), "all are healed", are_in_place);
    sleep(Duration::from_secs(3));
    let before = agent.processor_time();
    sleep(Duration::from_secs(SECONDS.into()));
    let minute = (agent.processor_time() - before) * 2 / SECONDS / PODS;
    let memory = agent.memory();
    println!("{PODS} pods: {minute:?} of processor time for each pod and minute; {memory} KiB at most");
    assert!(minute < Duration::from_millis(1), "{minute:?}");
    assert!(memory < 48 << 10, "{memory} KiB");
    agent.terminate();
}

#[test]
fn the_agent_answers_before_the_runtime_gives_it_up() {
    let node = Node::new();
    let runtime = Runtime::start(&node);
    // To enter a network namespace takes it three seconds.
    let agent = start(&node, traced("setns", "delay_enter=3000000"), ENTRY, &[]);
    let network = Namespace::new();
    let mut plugin = runtime.accept();
    plugin.register(1000);
    plugin.synchronize(Vec::new(), false).unwrap();
    let pod = pod("web-0", &network.path());
    let said = plugin.on_pod("RunPodSandbox", &pod).unwrap_err();
    assert!(said.contains("took longer than 750ms; try again later"), "{said}");
    assert_eq!(node.metric(r#"linkerd_cni_agent_sandboxes_total{code="11"}"#).unwrap(), "1");
    agent.terminate();
}

#[test]
fn it_registers_again_whatever_becomes_of_the_runtime() {
    let node = Node::new();
    let agent = agent(&node, &[]);
    until("it says that nobody is there", || agent.says("No such file"));
    let network = Namespace::new();
    for _ in 0..3 {
        let runtime = Runtime::start(&node);
        let mut plugin = runtime.registered(Vec::new());
        until("it is ready", || is_ready(&node));
        plugin.on_pod("RunPodSandbox", &pod("web-0", &network.path())).unwrap();
        drop((plugin, runtime));
        until("it is not ready", || !is_ready(&node));
        sleep(Duration::from_millis(500));
    }
    // One that doesn't want it.
    let runtime = Runtime::start(&node);
    let mut plugin = runtime.accept();
    let (_, stream, ..) = plugin.receive().unwrap();
    let refused = Response {
        status: Some(linkerd_cni_agent::message::Status { code: 2, message: "no such plugins".to_owned() }),
        payload: Vec::new(),
    };
    plugin.send(2, stream, 2, &refused.encode_to_vec());
    until("it says so", || agent.says("the runtime refuses the agent: no such plugins"));
    runtime.registered(Vec::new());
    agent.terminate();
}

/// A false runtime's treatment of each connection.
type Hostility = fn(&mut Plugin);

#[test]
fn a_hostile_or_deaf_runtime_costs_nothing_but_connections_at_growing_pauses() {
    let hostile: [(&str, Hostility); 5] = [
        ("closes", |_| ()),
        ("is no runtime", |plugin| drop(plugin.stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n"))),
        ("sends what is too long", |plugin| {
            let header = [0, 0, 0, 1, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 1, 1, 0];
            drop(plugin.stream.write_all(&header));
        }),
        ("sends what is no message", |plugin| plugin.send(2, 1, 2, &[255; 100])),
        ("registers it, and leaves", |plugin| {
            plugin.register(0);
            plugin.synchronize(Vec::new(), false).unwrap();
        }),
    ];
    for (does, work) in hostile {
        let node = Node::new();
        let runtime = Runtime::start(&node);
        let agent = agent(&node, &[]);
        let (start, mut connections) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_secs(4) {
            if let Ok((stream, _)) = runtime.listener.accept() {
                stream.set_nonblocking(false).unwrap();
                work(&mut Plugin { stream, requests: 0 });
                connections += 1;
            }
            sleep(Duration::from_millis(1));
        }
        // After 0.1 s, 0.2 s, and so on.
        assert!((3..=6).contains(&connections), "{does}: {connections}");
        assert!(agent.processor_time() < Duration::from_millis(300), "{does}: {:?}", agent.processor_time());
        agent.terminate();
    }
    // Deaf: one that never reads nor writes, and one that stops in the middle of a message.
    let (node, runtime, agent) = started(&[]);
    let mut half = runtime.accept();
    half.register(0);
    half.stream.write_all(&[0, 0, 0, 1, 0, 0]).unwrap();
    until("it gives that up", || agent.says("later it wasn't through"));
    let _deaf = runtime.accept();
    sleep(Duration::from_secs(1));
    assert!(!is_ready(&node));
    assert!(agent.processor_time() < Duration::from_millis(300));
    agent.terminate();
}

/// A node that was down while the DaemonSet of the plugin was deleted has the plugin still.
#[test]
fn a_plugin_that_its_agent_has_left_is_removed_once_the_runtime_asks_and_anybody_elses_stays() {
    let node = Node::with_calico();
    let before = node.tree();
    let agent_of_plugin = node.agent_with(&[("CNI_NETWORK_CONFIG", LEFT_ENTRY)]);
    node.until_installed("10-calico.conflist");
    let installed = node.tree();
    let start = || {
        let mut command = Command::new(program());
        node.prepare(&mut command);
        command.args(["--nri", "--admin-addr", "127.0.0.1:9992", "--nri-socket"]).arg(socket(&node));
        node.start(command)
    };
    let runtime = Runtime::start(&node);
    let agent = start();
    let plugin = runtime.registered(Vec::new());
    sleep(LOOKS);
    assert_eq!(node.tree(), installed, "while its agent is there");
    drop(plugin);
    agent_of_plugin.signal(Signal::SIGKILL);
    agent_of_plugin.wait();
    sleep(LOOKS);
    assert_eq!(node.tree(), installed, "while the runtime asks nobody else");
    let _plugin = runtime.registered(Vec::new());
    until("the node is as it was", || node.tree() == before);
    assert!(agent.says("was left behind"));
    // Linkerd's.
    let theirs = CALICO.replace("    }\n", "    }, {\"type\": \"linkerd-cni\", \"linkerd\": {}}\n");
    assert!(theirs.contains("linkerd-cni"));
    node.write("10-calico.conflist", &theirs);
    let others = node.tree();
    sleep(LOOKS);
    assert_eq!(node.tree(), others);
    agent.terminate();
}

#[test]
fn without_a_word_the_runtime_tells_of_pods() {
    let node = Node::new();
    let runtime = Runtime::start(&node);
    let agent = agent_of(&node, &ENTRY.replace(r#""pod-info": "annotations","#, ""), &[]);
    runtime.accept().register(0);
    until("it is registered", || agent.says("registered with"));
    agent.terminate();
}

#[test]
fn what_it_cannot_work_with_is_said_at_the_start() {
    let node = Node::new();
    for (entry, words) in [
        (ENTRY.replace("annotations", "api"), "linkerd.pod-info"),
        ("{".to_owned(), "CNI_NETWORK_CONFIG: it is not JSON"),
    ] {
        let (status, said) = agent_of(&node, &entry, &[]).wait();
        assert!(status.code() == Some(1) && said.contains(words), "{status}: {said}");
    }
}
