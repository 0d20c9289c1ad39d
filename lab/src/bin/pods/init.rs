//! proxy-init as the init container of pods.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use lab::connections::{self, Client, Connection};
use lab::manifests::{self, injected, plain, with_own_users};
use lab::shell::{Result, Run as _};
use lab::{cgroups, images, linkerd};
use serde_json::{Value, json};

use crate::node::BRIDGE;
use crate::pod::{Ended, Pod};
use crate::{Scenario, World};

/// An image, a mode, and the mode that this comes to.
type Combination = (&'static str, &'static str, &'static [(&'static str, &'static str)]);
const COMBINATIONS: [Combination; 3] = [
    // There is no iptables in it.
    (
        "scratch",
        images::PROXY_INIT,
        &[("nft", "nft"), ("native", "native"), ("auto", "nft"), ("legacy", "nft"), ("plain", "nft")],
    ),
    (
        "legacy",
        images::LEGACY,
        &[("nft", "nft"), ("native", "native"), ("auto", "nft"), ("legacy", "legacy"), ("plain", "legacy")],
    ),
    ("file-capabilities", images::FILE_CAPABILITIES, &[("auto", "nft"), ("legacy", "legacy"), ("plain", "legacy")]),
];

/// Images and modes in pods with users of their own.
const OWN_USERS: [(&str, &str, &str); 4] = [
    ("scratch", images::PROXY_INIT, "nft"),
    ("scratch", images::PROXY_INIT, "native"),
    ("legacy", images::LEGACY, "legacy"),
    ("file-capabilities", images::FILE_CAPABILITIES, "legacy"),
];

/// The ways in which proxy-init's security context may differ from the chart's, a mode, and the mode that this comes to.
type Change = (&'static str, fn(&mut Value), &'static str, &'static str);
const CHANGES: [Change; 4] = [
    ("with NET_ADMIN alone", |context| context["capabilities"]["add"] = json!(["NET_ADMIN"]), "auto", "nft"),
    ("as root", |context| context["runAsUser"] = json!(0), "legacy", "legacy"),
    ("with privilege escalation", |context| context["allowPrivilegeEscalation"] = json!(true), "legacy", "legacy"),
    ("with the runtime's capabilities kept", |context| context["capabilities"]["drop"] = json!([]), "legacy", "legacy"),
];

pub(crate) fn scenarios() -> Vec<Scenario> {
    let mut scenarios = Vec::new();
    for (name, image, modes) in COMBINATIONS {
        for &(mode, becomes) in modes {
            scenarios.push(Scenario::new(format!("image {name}, mode {mode}"), move |world| {
                meshed(world, &plain("web"), &init(image, mode), becomes)
            }));
        }
    }
    for (name, image, mode) in OWN_USERS {
        scenarios.push(Scenario::new(format!("own users, image {name}, mode {mode}"), move |world| {
            meshed(world, &with_own_users(plain("web")), &init(image, mode), mode)
        }));
    }
    for (name, change, mode, becomes) in CHANGES {
        scenarios.push(Scenario::new(format!("mode {mode} {name}"), move |world| {
            let mut init = init(images::LEGACY, mode);
            change(&mut init["securityContext"]);
            meshed(world, &plain("web"), &init, becomes)
        }));
    }
    scenarios.push(Scenario::new("limits", limited));
    for mode in ["nft", "native", "legacy"] {
        let name = format!("mode {mode} without capabilities");
        scenarios.push(Scenario::new(name, move |world| refused(world, mode)));
        let name = format!("mode {mode}, 10,000 ports");
        scenarios.push(Scenario::new(name, move |world| many_ports(world, mode)));
    }
    scenarios
}

fn init(image: &str, mode: &str) -> Value {
    manifests::init(image, &["--iptables-mode", mode])
}

/// A pod with proxy-init, the network validator, then an application and a stand-in for the proxy: real connections in
/// both directions, and what debug containers say of it. It is removed.
fn meshed(world: &World, object: &Value, init: &Value, becomes: &str) -> Result<String> {
    let pod = Pod::start(world.node, BRIDGE, object)?;
    if object["spec"]["hostUsers"] == false {
        belongs_to_others(&pod)?;
    }
    let installed = pod.run(init)?.succeeded()?;
    // kubelet runs init containers again, when the sandbox's containers are gone.
    pod.run(init)?.succeeded()?;
    in_the_mesh(world, &pod, becomes)?;
    pod.remove()?;
    Ok(last_line(&installed))
}

/// Fails if the pod's network namespace belongs to this program's user namespace.
pub(crate) fn belongs_to_others(pod: &Pod) -> Result<()> {
    let [netns, own] = [pod.netns.as_path(), Path::new("/proc/self/ns/user")].map(fs::metadata);
    let (netns, own) = (netns?.ino(), own?.ino());
    let mut lsns = Command::new("lsns");
    lsns.args(["--type", "net", "--output", "NS,ONS", "--noheadings", "--raw"]);
    let listed = lsns.read()?;
    let owner = listed
        .lines()
        .filter_map(|line| line.split_once(' '))
        .find_map(|(namespace, owner)| (namespace.parse() == Ok(netns)).then(|| owner.parse::<u64>()))
        .ok_or_else(|| format!("lsns doesn't list the pod's network namespace {netns}: {listed}"))??;
    if owner == own {
        return Err("the pod's network namespace belongs to the node's user namespace".into());
    }
    Ok(())
}

/// A pod with the chart's rules in this mode, in which nothing runs yet: the network validator, real connections, and
/// what debug containers say.
pub(crate) fn in_the_mesh(world: &World, pod: &Pod, mode: &str) -> Result<()> {
    // As the chart does after a CNI plugin.
    for (listen, connect) in [("0.0.0.0:4140", "1.1.1.1:20001"), ("[::]:4140", "[fd00::1]:20001")] {
        pod.validate(listen, connect, "10s")?.succeeded()?;
    }
    let connections = world.try_connections(pod, true)?;
    debugged(pod, mode, &connections)
}

impl World {
    /// Starts the pod's containers, and really makes all connections from and to it.
    pub(crate) fn try_connections(&self, pod: &Pod, meshed: bool) -> Result<Vec<Connection>> {
        pod.start_containers()?;
        let connections = connections::of(&pod.addresses, &self.neighbour.addresses, meshed);
        connections::really_make(&connections, |client, command| {
            let ended = match client {
                Client::Neighbour => self.neighbour.exec("client", command),
                Client::App => pod.exec(manifests::APP, command),
                Client::Proxy => pod.exec(manifests::PROXY, command),
            };
            Ok(ended?.succeeded()?.stdout)
        })?;
        Ok(connections)
    }
}

/// Checks show, verify and explain in a debug container, as root and as the image's user, when these connections have
/// been made.
fn debugged(pod: &Pod, mode: &str, connections: &[Connection]) -> Result<()> {
    let flags = [&["--iptables-mode", mode][..], &linkerd::CHART_ARGUMENTS].concat();
    for user in [Some(0), None] {
        let shown = debug(pod, user, &["show", "--output", "json"])?.succeeded()?;
        let shown: Value = serde_json::from_str(&shown.stdout)?;
        // Only root can list legacy tables; some kernels tell others by their modules or hooks. Who can't see them says
        // so.
        let may_be_unknown = user.is_none() && mode == "legacy";
        let is_unknown = may_be_unknown && shown.get("not_known") == Some(&json!(["legacy"]));
        if !is_unknown {
            let found = shown.pointer("/backends/0/flags");
            if found != Some(&json!(flags)) {
                return Err(format!("show as {user:?}: the flags are {flags:?}, not {found:?}").into());
            }
            for port in [4143, 4140] {
                let arrived = connections.iter().filter(|connection| connection.port == Some(port));
                // The network validator has made one connection over each family.
                let expected = arrived.count() as u64 + if port == 4140 { 2 } else { 0 };
                let counted = counted(&shown, port);
                if counted != expected {
                    return Err(format!("{expected} connections went to port {port}; show counts {counted}").into());
                }
            }
            // As who can see the rules on every kernel.
            let explains = if mode == "legacy" { Some(0) } else { None };
            if user == explains {
                for connection in connections {
                    explained(pod, user, connection)?;
                }
            }
        }
        let without_flags = debug(pod, user, &["verify"])?;
        let with_flags = debug(pod, user, &[&["verify"], &flags[..]].concat())?;
        for (verified, expected) in [(without_flags, if is_unknown { 1 } else { 0 }), (with_flags, 0)] {
            if verified.code != expected {
                return Err(format!("verify as {user:?}: not {expected}: {}", verified.said()).into());
            }
        }
    }
    Ok(())
}

/// Runs proxy-init in the container that `kubectl debug --profile=netadmin -- COMMAND` adds to a running pod, as this user or
/// as the image's: an ephemeral container with two capabilities, and the command in place of the image's entry point
/// (kubectl's pkg/cmd/debug/profiles.go, `allowNetadminCapability`).
fn debug(pod: &Pod, user: Option<u32>, arguments: &[&str]) -> Result<Ended> {
    let command = [&["proxy-init"][..], arguments].concat();
    pod.run(&json!({
        "name": "debugger",
        "image": images::PROXY_INIT,
        "command": command,
        "securityContext": {"capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}, "runAsUser": user},
    }))
}

/// The number of connections that the rules of `show`'s JSON have sent to this port.
fn counted(show: &Value, port: u16) -> u64 {
    let lists = |value: &Value, key: &str| value.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    lists(show, "backends")
        .iter()
        .flat_map(|backend| lists(backend, "chains"))
        .flat_map(|chain| lists(&chain, "rules"))
        .filter(|rule| rule.get("port").and_then(Value::as_u64) == Some(port.into()))
        .filter_map(|rule| rule.get("packets")?.as_u64())
        .sum()
}

/// explain has to answer what became of the connection.
fn explained(pod: &Pod, user: Option<u32>, connection: &Connection) -> Result<()> {
    let to = connection.to.to_string();
    let owner = connection.client.user().map(|user| user.to_string());
    let mut arguments = match &owner {
        None => vec!["explain", "inbound"],
        Some(owner) => vec!["explain", "outbound", "--uid", owner],
    };
    arguments.extend(["--to", &to, "--output", "json"]);
    let answer = debug(pod, user, &arguments)?.succeeded()?;
    let answer: Value = serde_json::from_str(&answer.stdout)?;
    let proxy = connection.port.filter(|port| [4143, 4140].contains(port));
    let verdict = if proxy.is_some() { "proxy" } else { "bypass" };
    if answer.get("verdict") != Some(&json!(verdict)) || answer.get("port") != Some(&json!(proxy)) {
        return Err(format!("{connection:?}, but explain says {answer}").into());
    }
    Ok(())
}

/// proxy-init without the capabilities that it needs: it fails, says so, and leaves nothing.
fn refused(world: &World, mode: &str) -> Result<String> {
    let pod = Pod::start(world.node, BRIDGE, &plain("web"))?;
    let mut init = init(images::LEGACY, mode);
    init["securityContext"]["capabilities"]["add"] = json!([]);
    let ended = pod.run(&init)?;
    if ended.code != 1 || !ended.said().contains("CAP_NET_ADMIN") {
        return Err(format!("without capabilities: {}", ended.said()).into());
    }
    pod.has_no_rules()?;
    world.try_connections(&pod, false)?;
    pod.remove()?;
    Ok(ended.stderr.lines().last().unwrap_or_default().to_owned())
}

/// The limits that the other scenarios give to proxy-init do reach the kernel.
fn limited(world: &World) -> Result<String> {
    let pod = Pod::start(world.node, BRIDGE, &injected("web"))?;
    let mut container = init(images::CLIENT, "nft");
    container["args"] = json!(["serve"]);
    let running = pod.start_container(&container)?;
    let limits = cgroups::limits_of_chart(&pod.cgroup, &running.id)?;
    pod.remove()?;
    Ok(limits)
}

/// As many ports as nobody has, within the chart's limits.
fn many_ports(world: &World, mode: &str) -> Result<String> {
    let pod = Pod::start(world.node, BRIDGE, &plain("web"))?;
    let ports: Vec<_> = (10_000..30_000).step_by(2).map(|port: u16| port.to_string()).collect();
    let mut init = init(images::LEGACY, mode);
    let more = ["--subnets-to-ignore", "192.0.2.0/24", "--inbound-ports-to-ignore", "4191"];
    let args = init["args"].as_array_mut().ok_or("no arguments")?;
    args.extend(more.into_iter().chain(["--inbound-ports-to-ignore", &ports.join(",")]).map(Value::from));
    let installed = pod.run(&init)?.succeeded()?;
    world.try_connections(&pod, true)?;
    pod.remove()?;
    Ok(last_line(&installed))
}

fn last_line(ended: &Ended) -> String {
    ended.stdout.lines().last().unwrap_or_default().to_owned()
}
