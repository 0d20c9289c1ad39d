//! proxy-init as the init container of pods.

use lab::connections::Connection;
use lab::linkerd;
use lab::shell::Result;
use serde_json::{Value, json};

use crate::cni;
use crate::mesh::{self, Containers};
use crate::own_users;
use crate::pod::{Container, Ended, Pod};
use crate::scenario::{Scenario, World};

/// The network of these pods: the bridge alone.
pub(crate) const NETWORK: &str = "bridge";

/// An image, a mode, and the mode that this comes to.
type Combination = (&'static str, &'static [(&'static str, &'static str)]);
const COMBINATIONS: [Combination; 3] = [
    // There is no iptables in it.
    ("scratch", &[("nft", "nft"), ("native", "native"), ("auto", "nft"), ("legacy", "nft"), ("plain", "nft")]),
    ("legacy", &[("nft", "nft"), ("native", "native"), ("auto", "nft"), ("legacy", "legacy"), ("plain", "legacy")]),
    ("file-capabilities", &[("auto", "nft"), ("legacy", "legacy"), ("plain", "legacy")]),
];

/// Images and modes in pods with users of their own.
const OWN_USERS: [(&str, &str); 4] =
    [("scratch", "nft"), ("scratch", "native"), ("legacy", "legacy"), ("file-capabilities", "legacy")];

/// The ways in which proxy-init's container may differ from the chart's, a mode, and the mode that this comes to.
type Change = (&'static str, fn(&mut Container<'_>), &'static str, &'static str);
const CHANGES: [Change; 4] = [
    ("with NET_ADMIN alone", |init| init.add = &["NET_ADMIN"], "auto", "nft"),
    ("as root", |init| init.user = Some(0), "legacy", "legacy"),
    ("with privilege escalation", |init| init.no_new_privs = false, "legacy", "legacy"),
    ("with the runtime's capabilities kept", |init| init.drop = &[], "legacy", "legacy"),
];

pub(crate) fn scenarios() -> Vec<Scenario> {
    let mut scenarios = Vec::new();
    for (image, modes) in COMBINATIONS {
        for &(mode, becomes) in modes {
            scenarios.push(Scenario::new(format!("image {image}, mode {mode}"), move |world| {
                meshed(world, mesh::pod(world, NETWORK)?, image, mode, becomes, |_| {})
            }));
        }
    }
    for (image, mode) in OWN_USERS {
        scenarios.push(Scenario::new(format!("{}, image {image}, mode {mode}", own_users::NAME), move |world| {
            meshed(world, own_users::pod(world, NETWORK)?, image, mode, mode, |_| {})
        }));
    }
    for (name, change, mode, becomes) in CHANGES {
        scenarios.push(Scenario::new(format!("mode {mode} {name}"), move |world| {
            meshed(world, mesh::pod(world, NETWORK)?, "legacy", mode, becomes, change)
        }));
    }
    scenarios.push(Scenario::new("limits".to_owned(), limited));
    for mode in ["nft", "native", "legacy"] {
        let name = format!("mode {mode} without capabilities");
        scenarios.push(Scenario::new(name, move |world| refused(world, mode)));
        let name = format!("mode {mode}, 10,000 ports");
        scenarios.push(Scenario::new(name, move |world| many_ports(world, mode)));
    }
    scenarios
}

/// The arguments of Linkerd's chart in this mode.
fn flags(mode: &str) -> Vec<&str> {
    [&["--iptables-mode", mode][..], &linkerd::CHART_ARGUMENTS].concat()
}

/// A pod with proxy-init, the network validator, then an application and a stand-in for the proxy: real connections in
/// both directions, and what debug containers say of it. It is removed.
fn meshed(
    world: &World<'_>,
    pod: Pod<'_>,
    image: &str,
    mode: &str,
    becomes: &str,
    change: impl Fn(&mut Container<'_>),
) -> Result<String> {
    let flags = flags(mode);
    let mut init = mesh::init(world.images.named(image), &flags);
    change(&mut init);
    let installed = pod.run(&init)?.succeeded()?;
    // kubelet runs init containers again, when the sandbox's containers are gone.
    pod.run(&init)?.succeeded()?;
    in_the_mesh(world, &pod, becomes)?;
    pod.remove()?;
    Ok(last_line(&installed))
}

/// A pod with the chart's rules in this mode, in which nothing runs yet: the network validator, real connections, and
/// what debug containers say.
pub(crate) fn in_the_mesh(world: &World<'_>, pod: &Pod<'_>, mode: &str) -> Result<()> {
    // As the chart does after a CNI plugin.
    for (listen, connect) in [("0.0.0.0:4140", "1.1.1.1:20001"), ("[::]:4140", "[fd00::1]:20001")] {
        let args = ["--listen-addr", listen, "--connect-addr", connect, "--timeout", "10s"];
        pod.run(&mesh::validator(&world.images.scratch, &args))?.succeeded()?;
    }
    let connections = mesh::connections(world, pod, true);
    Containers::start(world, pod)?.try_connections(world, &connections)?;
    debugged(world, pod, mode, &connections)
}

/// Checks show, verify and explain in a debug container, as root and as the image's user, when these connections have
/// been made.
fn debugged(world: &World<'_>, pod: &Pod<'_>, mode: &str, connections: &[Connection]) -> Result<()> {
    let flags = flags(mode);
    for user in [Some(0), None] {
        let shown = mesh::debug(world, pod, user, &["show", "--output", "json"])?.succeeded()?;
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
                let counted = mesh::counted(&shown, port);
                if counted != expected {
                    return Err(format!("{expected} connections went to port {port}; show counts {counted}").into());
                }
            }
            // As who can see the rules on every kernel.
            let explains = if mode == "legacy" { Some(0) } else { None };
            if user == explains {
                for connection in connections {
                    explained(world, pod, user, connection)?;
                }
            }
        }
        let without_flags = mesh::debug(world, pod, user, &["verify"])?;
        let with_flags = mesh::debug(world, pod, user, &[&["verify"], &flags[..]].concat())?;
        for (verified, expected) in [(without_flags, if is_unknown { 1 } else { 0 }), (with_flags, 0)] {
            if verified.code != expected {
                return Err(format!("verify as {user:?}: not {expected}: {}", verified.said()).into());
            }
        }
    }
    Ok(())
}

/// explain has to answer what became of the connection.
fn explained(world: &World<'_>, pod: &Pod<'_>, user: Option<u32>, connection: &Connection) -> Result<()> {
    let to = connection.to.to_string();
    let owner = connection.client.user().map(|user| user.to_string());
    let mut arguments = match &owner {
        None => vec!["explain", "inbound"],
        Some(owner) => vec!["explain", "outbound", "--uid", owner],
    };
    arguments.extend(["--to", &to, "--output", "json"]);
    let answer = mesh::debug(world, pod, user, &arguments)?.succeeded()?;
    let answer: Value = serde_json::from_str(&answer.stdout)?;
    let proxy = connection.port.filter(|port| [4143, 4140].contains(port));
    let verdict = if proxy.is_some() { "proxy" } else { "bypass" };
    if answer.get("verdict") != Some(&json!(verdict)) || answer.get("port") != Some(&json!(proxy)) {
        return Err(format!("{connection:?}, but explain says {answer}").into());
    }
    Ok(())
}

/// proxy-init without the capabilities that it needs: it fails, says so, and leaves nothing.
fn refused(world: &World<'_>, mode: &str) -> Result<String> {
    let pod = mesh::pod(world, NETWORK)?;
    let flags = flags(mode);
    let init = Container { add: &[], ..mesh::init(&world.images.legacy, &flags) };
    let ended = pod.run(&init)?;
    if ended.code != 1 || !ended.said().contains("CAP_NET_ADMIN") {
        return Err(format!("without capabilities: {}", ended.said()).into());
    }
    let left = cni::rules(&pod)?;
    if !left.is_empty() {
        return Err(format!("left behind: {left}").into());
    }
    Containers::start(world, &pod)?.try_connections(world, &mesh::connections(world, &pod, false))?;
    pod.remove()?;
    Ok(ended.stderr.lines().last().unwrap_or_default().to_owned())
}

/// The limits that the other scenarios give to proxy-init do reach the kernel.
fn limited(world: &World<'_>) -> Result<String> {
    let pod = mesh::pod(world, NETWORK)?;
    let container = Container {
        args: &["serve"],
        limits: mesh::init(&world.images.scratch, &[]).limits,
        ..Container::new("limited", &world.images.peer)
    };
    let running = pod.start_container(&container)?;
    let limits = running.limits_of_chart()?;
    pod.remove()?;
    Ok(limits)
}

/// As many ports as nobody has, within the chart's limits.
fn many_ports(world: &World<'_>, mode: &str) -> Result<String> {
    let pod = mesh::pod(world, NETWORK)?;
    let ports: Vec<_> = (10_000..30_000).step_by(2).map(|port: u16| port.to_string()).collect();
    let ports = ports.join(",");
    let mut flags = flags(mode);
    flags.extend([
        "--subnets-to-ignore",
        "192.0.2.0/24",
        "--inbound-ports-to-ignore",
        "4191",
        "--inbound-ports-to-ignore",
        &ports,
    ]);
    let installed = pod.run(&mesh::init(&world.images.legacy, &flags))?.succeeded()?;
    Containers::start(world, &pod)?.try_connections(world, &mesh::connections(world, &pod, true))?;
    pod.remove()?;
    Ok(last_line(&installed))
}

fn last_line(ended: &Ended) -> String {
    ended.stdout.lines().last().unwrap_or_default().to_owned()
}
