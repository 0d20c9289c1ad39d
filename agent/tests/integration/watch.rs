//! Watching pods: real processes in network namespaces and cgroups of their own, and a double of the API server.

use std::borrow::Borrow;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lab::network::{DISTANT, Lab, Namespace};
use lab::wait;
use proxy_init::{Config, Install, Mode, ModeChoice};
use serde_json::{Value, json};

use crate::cluster::{Cluster, Sandbox};
use crate::node::{Agent, ENTRY, Node, until, until_within};

/// A pod's, which no other test has, of this run or another: they run side by side, and each agent sees the processes of
/// all.
pub(crate) fn uid() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let (number, process) = (NUMBER.fetch_add(1, Ordering::Relaxed), std::process::id());
    format!("{number:08x}-b29f-11e7-9350-{process:012x}")
}

/// A bound against hanging.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn running() -> Value {
    json!({"phase": "Running", "containerStatuses": [{"name": "app", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]})
}

pub(crate) fn failed() -> Value {
    json!({"phase": "Pending", "initContainerStatuses": [{"name": "linkerd-network-validator",
        "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {"exitCode": 95}}}]})
}

/// A node whose agent watches.
pub(crate) struct Watched {
    pub(crate) agent: Agent,
    pub(crate) cluster: Cluster,
    pub(crate) node: Node,
}

/// A pod that runs until it is dropped.
pub(crate) struct Running<N = Namespace> {
    pub(crate) network: N,
    pub(crate) uid: String,
    _sandbox: Sandbox,
}

/// With an admin server.
fn with_admin<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    [&["--admin-addr", "127.0.0.1:9990"], arguments].concat()
}

impl Watched {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments, |_| ())
    }

    /// With what is in the cluster before the agent starts.
    pub(crate) fn start_with(arguments: &[&str], prepare: impl FnOnce(&Cluster)) -> Self {
        Self::start_by(prepare, |node, cluster| node.agent_of(cluster, &with_admin(arguments)))
    }

    /// Whose system calls of this name take some milliseconds.
    pub(crate) fn start_slow(call: &str) -> Self {
        Self::start_by(|_| (), |node, cluster| node.slow_agent_of(cluster, call, &with_admin(&[])))
    }

    /// With another plugin entry.
    fn start_with_entry(entry: &str, arguments: &[&str]) -> Self {
        Self::start_by(|_| (), |node, cluster| node.agent_with_entry(cluster, &with_admin(arguments), entry))
    }

    fn start_by(prepare: impl FnOnce(&Cluster), start: impl FnOnce(&Node, &Cluster) -> Agent) -> Self {
        let node = Node::with_calico();
        let cluster = Cluster::start(&node);
        prepare(&cluster);
        let agent = start(&node, &cluster);
        Self { agent, cluster, node }
    }

    pub(crate) fn metric(&self, name: &str) -> Option<String> {
        self.node.metric(name)
    }

    /// The number of pods in this state.
    pub(crate) fn pods(&self, standing: &str) -> Option<String> {
        self.node.pods(standing)
    }

    /// A pod with this status, which runs in a network of its own.
    pub(crate) fn pod(&self, name: &str, status: Value) -> Running {
        self.pod_in(Namespace::new(), name, status, |_| ())
    }

    /// One that runs in this network, and whose object is changed so.
    pub(crate) fn pod_in<N: Borrow<Namespace>>(
        &self,
        network: N,
        name: &str,
        status: Value,
        change: impl FnOnce(&mut Value),
    ) -> Running<N> {
        let uid = uid();
        let sandbox = Sandbox::of(&uid, network.borrow());
        self.cluster.pod_with(name, &uid, status, change);
        Running { network, uid, _sandbox: sandbox }
    }

    /// The number of events of this reason.
    fn noted(&self, reason: &str) -> usize {
        self.cluster.notes().iter().filter(|(one, _)| one == reason).count()
    }

    fn has_noted(&self, reason: &str) -> bool {
        self.noted(reason) > 0
    }
}

/// The redirecting rules in a network namespace, by iptables-nft's words.
pub(crate) fn rules(network: &Namespace) -> String {
    network.stdout("iptables-nft-save", ["-t", "nat"])
}

#[test]
fn a_pod_whose_validator_failed_is_healed_where_it_runs() {
    let watched = Watched::start(&[]);
    let pod = watched.pod("web-0", failed());
    until("the rules are there", || rules(&pod.network).contains("--to-ports 4143"));
    until("it is told", || watched.has_noted("LinkerdCNIRepaired"));
    assert!(rules(&pod.network).contains("--to-ports 4140"));
    until("it is counted", || watched.metric("linkerd_cni_agent_repair_seconds_count").as_deref() == Some("1"));
    until("it is in place", || watched.pods("in_place").as_deref() == Some("1"));
    assert_eq!(watched.cluster.deletions(), []);
    // It isn't healed again while its status still says that it failed.
    watched.cluster.pod("web-0", &pod.uid, failed());
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(watched.cluster.notes().len(), 1);
    // Lists in pages are read from etcd, all of the cluster's pods for each node; a watch begins from memory.
    let (lists, watches) = (watched.cluster.lists(), watched.cluster.watches());
    let first = watches.iter().find(|watch| watch.contains("/pods?")).unwrap();
    assert!(lists.is_empty() && first.contains("sendInitialEvents=true"), "{lists:?} {first}");
    watched.agent.terminate();
}

#[test]
fn rules_that_somebody_added_are_told_in_verifys_words_and_removed_only_if_asked_for() {
    for repairs in [false, true] {
        let flags = ["--verify-every", "1", "--repair", if repairs { "all" } else { "missing" }];
        let watched = Watched::start(&flags);
        let pod = watched.pod("web-0", running());
        until("it is in place", || watched.pods("in_place").as_deref() == Some("1"));
        // Some do that in an init container, for linkerd has no annotation for it.
        let added = "-d 192.0.2.0/24 -j RETURN";
        pod.network.sh(&format!("iptables-nft -t nat -I PROXY_INIT_OUTPUT {added}"));
        if repairs {
            until("it is repaired", || !rules(&pod.network).contains(added));
            until("it is told", || watched.noted("LinkerdCNIRepaired") == 2);
        } else {
            until("it is told", || watched.has_noted("LinkerdCNIDrifted"));
            let notes = watched.cluster.notes();
            let (_, note) = notes.iter().find(|(reason, _)| reason == "LinkerdCNIDrifted").unwrap();
            assert!(note.contains("IPv4, PROXY_INIT_OUTPUT: unexpected"), "{note}");
            let line = "pod shop/web-0: other rules (unexpected): IPv4, PROXY_INIT_OUTPUT: unexpected";
            assert!(watched.agent.says(line));
            until("it is counted", || {
                watched.metric(r#"linkerd_cni_agent_pods_drifted{reason="unexpected"}"#).as_deref() == Some("1")
            });
            assert!(rules(&pod.network).contains(added));
            // It is told once.
            std::thread::sleep(Duration::from_millis(2500));
            assert_eq!(watched.noted("LinkerdCNIDrifted"), 1);
        }
        assert_eq!(watched.cluster.deletions(), []);
        watched.agent.terminate();
    }
}

/// A connection, by both its ends.
struct Connection {
    client: TcpStream,
    server: TcpStream,
}

impl Connection {
    /// One of the pod's to port 8080 of a distant host, which the first or the second of these takes.
    fn open(lab: &Lab, servers: [&TcpListener; 2]) -> (Self, usize) {
        let to = SocketAddr::new(DISTANT[0], 8080);
        let client = lab.pod.run_here(|| TcpStream::connect_timeout(&to, PATIENCE)).unwrap();
        let accept = |index: usize| Some((servers[index].accept().ok()?.0, index));
        let (server, index) = wait::until(PATIENCE, || (0..2).find_map(accept)).unwrap();
        server.set_nonblocking(false).unwrap();
        for end in [&client, &server] {
            end.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        (Self { client, server }, index)
    }

    /// Returns true if the connection carries bytes, there and back.
    fn lives(&mut self) -> bool {
        let mut byte = [0];
        let there = self.client.write_all(b"x").and_then(|()| self.server.read_exact(&mut byte));
        let back = self.server.write_all(b"x").and_then(|()| self.client.read_exact(&mut byte));
        there.and(back).is_ok()
    }
}

#[test]
fn rules_that_are_partly_gone_are_put_back_and_no_connection_breaks() {
    for repair in ["missing", "nothing"] {
        let watched = Watched::start(&["--verify-every", "1", "--repair", repair]);
        let lab = Lab::new();
        install(&lab.pod, |_| ());
        let _pod = watched.pod_in(&lab.pod, "web-0", running(), |_| ());
        until("it is in place", || watched.pods("in_place").as_deref() == Some("1"));
        let proxy = lab.pod.run_here(|| TcpListener::bind("0.0.0.0:4140")).unwrap();
        let app = lab.outside.run_here(|| TcpListener::bind("0.0.0.0:8080")).unwrap();
        for listener in [&proxy, &app] {
            listener.set_nonblocking(true).unwrap();
        }
        let connect = || Connection::open(&lab, [&proxy, &app]);
        let (mut before, index) = connect();
        assert_eq!(index, 0, "to the proxy");
        lab.pod.sh("iptables-nft -t nat -F PROXY_INIT_OUTPUT");
        if repair == "nothing" {
            until("it is told", || watched.has_noted("LinkerdCNIDrifted"));
            let (_, index) = connect();
            assert_eq!(index, 1, "past the proxy");
        } else {
            let (mut meanwhile, _) = connect();
            until("they are put back", || rules(&lab.pod).contains("--to-ports 4140"));
            until("it is told", || watched.has_noted("LinkerdCNIRepaired"));
            let notes = watched.cluster.notes();
            assert!(notes[0].1.contains("(missing)"), "{notes:?}");
            let (mut after, index) = connect();
            assert_eq!(index, 0, "to the proxy");
            assert!(before.lives() && meanwhile.lives() && after.lives());
        }
        watched.agent.terminate();
    }
}

/// Installs what the agent's own entry asks for, changed like this, in nft mode.
fn install(network: &Namespace, change: impl FnOnce(&mut Config)) {
    let mut config = Config::new("4143".parse().unwrap(), "4140".parse().unwrap());
    config.ipv6 = false;
    change(&mut config);
    let mut install = Install::new(config);
    install.mode = ModeChoice::Mode(Mode::Nft);
    network.run_here(|| install.run()).unwrap();
}

#[test]
fn rules_of_an_earlier_configuration_are_nobodys_trouble_until_they_change() {
    let watched = Watched::start(&["--verify-every", "1", "--repair", "all"]);
    let mut pods = Vec::new();
    for (name, change) in [
        ("port", (|config| config.ignored_inbound_ports = vec!["4190".parse().unwrap()]) as fn(&mut Config)),
        ("proxy", |config| config.inbound_port = "5143".parse().unwrap()),
        ("ipv6", |config| config.ipv6 = true),
    ] {
        let network = Namespace::new();
        install(&network, change);
        pods.push(watched.pod_in(network, name, running(), |_| ()));
    }
    until("all are in place", || watched.pods("in_place").as_deref() == Some("3"));
    // Their rules are those of their start, and so is what listens in them.
    std::thread::sleep(Duration::from_millis(2500));
    assert!(rules(&pods[0].network).contains("--dports 4190"));
    assert!(rules(&pods[1].network).contains("--to-ports 5143"));
    assert_eq!(watched.cluster.notes(), []);
    assert!(watched.agent.says("pod shop/port: its rules are whole, and of another configuration"));
    // Whole rules too, but not what the pod had.
    install(&pods[1].network, |config| config.inbound_port = "6143".parse().unwrap());
    until("the change is undone", || rules(&pods[1].network).contains("--to-ports 5143"));
    until("it is told", || watched.has_noted("LinkerdCNIRepaired"));
    // As the plugin makes them today in a new sandbox.
    install(&pods[0].network, |_| ());
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(watched.pods("in_place").as_deref(), Some("3"));
    assert!(!rules(&pods[0].network).contains("--dports 4190"));
    assert_eq!(watched.cluster.notes().len(), 1);
    watched.agent.terminate();
}

/// Where the plugin goes by annotations, it sets up pods that have a linkerd-init of their own, too: no annotation tells. A
/// connection that either's rules redirect goes to the proxy.
#[test]
fn a_pod_that_its_own_linkerd_init_sets_up_is_left_alone() {
    let entry = ENTRY.replace(r#""iptables-mode""#, r#""pod-info": "annotations", "iptables-mode""#);
    let watched = Watched::start_with_entry(&entry, &["--verify-every", "1", "--repair", "all"]);
    let mut pods = Vec::new();
    for (name, is_plugins, mode) in [
        ("legacy", false, Some("legacy")),
        ("nft", false, Some("nft")),
        ("none", false, None),
        ("both", true, Some("legacy")),
    ] {
        let network = Namespace::new();
        if is_plugins {
            install(&network, |_| ());
        }
        for command in mode.into_iter().flat_map(|mode| lab::linkerd::commands(mode, true)) {
            network.stdout(&command[0], &command[1..]);
        }
        pods.push(watched.pod_in(network, name, running(), |pod| {
            pod["metadata"]["annotations"] = json!({"linkerd.io/proxy-version": "x"});
            pod["spec"]["initContainers"] = json!([{"name": "linkerd-init", "image": "x"}]);
        }));
    }
    until("all were looked at", || watched.pods("new").as_deref() == Some("0"));
    std::thread::sleep(Duration::from_millis(1500));
    assert!(watched.cluster.notes().is_empty(), "{:?}", watched.cluster.notes());
    for some in ["in_place", "drifted", "not_known"] {
        assert_eq!(watched.pods(some).as_deref(), Some("0"), "{some}");
    }
    // Nobody's rules are touched.
    let legacy = |network: &Namespace| network.stdout("iptables-legacy-save", ["-t", "nat"]);
    assert!(legacy(&pods[0].network).contains("PROXY_INIT") && !rules(&pods[0].network).contains("PROXY_INIT"));
    assert!(!legacy(&pods[2].network).contains("PROXY_INIT") && !rules(&pods[2].network).contains("PROXY_INIT"));
    assert!(legacy(&pods[3].network).contains("PROXY_INIT") && rules(&pods[3].network).contains("PROXY_INIT"));
    watched.agent.terminate();
}

#[test]
fn a_pod_that_cannot_be_reached_stays_as_it_is_and_the_log_says_why() {
    let watched = Watched::start(&[]);
    // Of another pod, so that the agent sees that it can see pods.
    let (network, other) = (Namespace::new(), uid());
    let _sandbox = Sandbox::of(&other, &network);
    watched.cluster.pod("web-1", &uid(), failed());
    until("it is counted", || watched.pods("not_known").as_deref() == Some("1"));
    assert_eq!(watched.cluster.deletions(), []);
    assert!(!rules(&network).contains("PROXY_INIT"));
    let said = watched.agent.terminate();
    assert!(said.contains("pod shop/web-1: no process of the pod can be seen"), "{said}");
}

#[test]
fn a_pod_that_is_nobodys_business_is_left_alone() {
    let watched = Watched::start(&[]);
    let add = |name, status, change: fn(&mut Value)| watched.pod_in(Namespace::new(), name, status, change);
    let pods = [
        add("going", failed(), |pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")),
        add("host", failed(), |pod| pod["spec"]["hostNetwork"] = json!(true)),
        add("init", running(), |pod| {
            pod["spec"]["initContainers"] = json!([{"name": "linkerd-init", "image": "x"}]);
        }),
        add("plain", running(), |pod| pod["spec"]["containers"] = json!([{"name": "app", "image": "x"}])),
    ];
    // One whose processes are in the agent's own network, as if its cgroup lied.
    let liar = watched.pod_in(&watched.node.network, "liar", running(), |_| ());
    // And one after all of them that is healed.
    let last = watched.pod("web-0", failed());
    until("the last one is healed", || rules(&last.network).contains("--to-ports 4143"));
    for network in pods.iter().map(|pod| &pod.network).chain([liar.network]) {
        assert!(!rules(network).contains("PROXY_INIT"));
    }
    assert_eq!(watched.cluster.deletions(), []);
    until("the liar is not known", || watched.pods("not_known").as_deref() == Some("1"));
    let said = watched.agent.terminate();
    assert!(said.contains("pod shop/liar: its network namespace is the agent's own"), "{said}");
}

#[test]
fn each_pod_is_counted_once() {
    let watched = Watched::start(&["--repair", "nothing"]);
    let _drifted = ["drifted", "too"].map(|name| watched.pod(name, running()));
    let liar = watched.pod_in(&watched.node.network, "liar", running(), |_| ());
    watched.cluster.pod("early", &uid(), json!({"phase": "Pending"}));
    for (standing, number) in [("drifted", "2"), ("not_known", "1"), ("new", "1"), ("in_place", "0")] {
        until(standing, || watched.pods(standing).as_deref() == Some(number));
    }
    assert_eq!(watched.pods("meshed"), None);
    drop(liar);
    watched.agent.terminate();
}

#[test]
fn off_is_off() {
    let watched = Watched::start(&["--repair", "nothing"]);
    let pod = watched.pod("web-0", failed());
    until("it is told", || watched.has_noted("LinkerdCNIDrifted"));
    assert!(!rules(&pod.network).contains("PROXY_INIT"));
    assert_eq!(watched.cluster.deletions(), []);
    watched.agent.terminate();
}

/// With IPv6 on in Linkerd and off in the plugin's configuration.
#[test]
fn a_validator_that_fails_although_the_rules_are_whole_is_told() {
    let watched = Watched::start(&[]);
    let failed_at = |time: &str| {
        let mut status = failed();
        status["initContainerStatuses"][0]["lastState"]["terminated"]["finishedAt"] = json!(time);
        status
    };
    let pod = watched.pod("web-0", failed_at("2026-01-01T00:00:00Z"));
    until("it is healed", || watched.has_noted("LinkerdCNIRepaired"));
    until("it is in place", || watched.pods("in_place").as_deref() == Some("1"));
    assert!(!watched.has_noted("LinkerdCNIValidatorFails"));
    // Its rules are there, and it fails again and again.
    for time in ["2126-01-01T00:00:00Z", "2126-01-01T00:01:00Z"] {
        watched.cluster.pod("web-0", &pod.uid, failed_at(time));
        let reason = r#"linkerd_cni_agent_pods_drifted{reason="validator"}"#;
        until("it is counted", || watched.metric(reason).as_deref() == Some("1"));
    }
    until("it is told", || watched.has_noted("LinkerdCNIValidatorFails"));
    let notes = watched.cluster.notes();
    let notes: Vec<_> = notes.iter().filter(|(reason, _)| reason == "LinkerdCNIValidatorFails").collect();
    let words = "the validator exited with 95 although the rules are whole: it connects over IPv6, and ipv6 is false";
    assert!(notes.len() == 1 && notes[0].1.starts_with(words), "{notes:?}");
    watched.cluster.pod("web-0", &pod.uid, running());
    until("it passes", || watched.pods("in_place").as_deref() == Some("1"));
    watched.agent.terminate();
}

/// As many as kubelet allows on a node. What it costs is printed: docs/node.md has the figures of the program in the
/// image, which LINKERD_CNI_AGENT names; a debug build takes more.
#[test]
fn a_full_node_costs_little() {
    const PODS: usize = 110;
    const SECONDS: u32 = 5;
    let watched = Watched::start(&["--verify-every", "1"]);
    let _pods: Vec<_> = (0..PODS).map(|number| watched.pod(&format!("web-{number}"), running())).collect();
    let all = PODS.to_string();
    until_within(Duration::from_secs(600), "all are healed", || watched.pods("in_place").as_ref() == Some(&all));
    let before = watched.agent.processor_time();
    std::thread::sleep(Duration::from_secs(SECONDS.into()));
    // Each pod was looked at once a second; by default, that is twice a minute.
    let each = (watched.agent.processor_time() - before) / SECONDS;
    let (memory, minute) = (watched.agent.memory(), each * 2 / u32::try_from(PODS).unwrap());
    let processes = Path::new("/proc").read_dir().unwrap().flatten();
    let processes = processes.filter(|entry| entry.path().join("stat").exists()).count();
    println!(
        "{PODS} pods, {processes} processes: {each:?} of processor time for a look at all of them, or {minute:?} for each \
         pod and minute; {memory} KiB at most"
    );
    assert!(each < Duration::from_secs(2), "{each:?}");
    assert!(memory < 48 << 10, "{memory} KiB");
    watched.agent.terminate();
}
