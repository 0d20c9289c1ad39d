//! proxy-init as the init container of pods.

use std::fs;
use std::process::Command;

use lab::images;
use lab::machine::ADDRESS;
use lab::manifests::{self, INIT};
use lab::shell::{Result, Run as _, root};
use lab::wait::wait_for;
use serde_json::{Value, json};

use crate::pod::Pod;
use crate::world::{Scenario, World};

pub(crate) fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario::new("deploy/pod.yaml", as_deployed),
        Scenario::new("refused: a port that does not exist", refused),
        Scenario::new("--timeout-close-wait-secs, privileged", close_wait),
        Scenario::new("hostNetwork, on a node like kind's", on_the_node).alone(),
    ]
}

/// `kubectl apply -f deploy/pod.yaml`, whose images the cluster has.
fn as_deployed(world: &World<'_>) -> Result<String> {
    let file = root().join("deploy/pod.yaml");
    let applied = world.space.run(&["apply", "--filename", &file.to_string_lossy()])?;
    let pod = world.space.pod("meshed");
    pod.ready()?;
    let mut connections = pod.connections(&world.neighbour, true)?;
    // It ignores fewer ports than the chart.
    for connection in &mut connections {
        if connection.to.port() == 4567 {
            connection.port = Some(4140);
        }
    }
    pod.try_connections(&world.neighbour, &connections, ["app", "proxy"])?;
    let log = pod.logs("proxy-init")?;
    no_warnings(&pod)?;
    Ok(format!("{}; {}", applied.trim(), last_line(&log)))
}

/// The pod does not start; kubectl shows why, and nothing is left in its network namespace.
fn refused(world: &World<'_>) -> Result<String> {
    const PORT: &str = "99999";
    let mut object = manifests::meshed("web", &in_chart());
    add_flags(&mut object["spec"], &["--inbound-ports-to-ignore", PORT]);
    let pod = world.space.make(&object)?;
    let ended = pod.ended(INIT)?;
    // Twice, as kubelet tries it again.
    pod.until("is not tried again", |pod| {
        let status = pod.pointer("/status/initContainerStatuses/0")?;
        (status["restartCount"].as_i64()? > 0).then_some(())
    })?;
    let described = pod.describe()?;
    let words: Vec<_> = described.split_whitespace().collect();
    if ended.code != 2 || !described.contains(PORT) || !words.join(" ").contains("Exit Code: 2") {
        return Err(format!("{ended:?}: {described}").into());
    }
    pod.warned("BackOff")?;
    let left = pod.look("nft list ruleset; iptables-legacy-save; ip6tables-legacy-save")?;
    if left.to_uppercase().contains("PROXY_INIT") {
        return Err(format!("left behind: {left}").into());
    }
    let states = world.space.run(&["get", "pod", "--no-headers"])?;
    if !states.contains("Init:") {
        return Err(states.into());
    }
    Ok(last_line(&ended.message))
}

/// As the chart runs it where `proxyInit.closeWaitTimeoutSecs` is set.
fn close_wait(world: &World<'_>) -> Result<String> {
    let mut init = in_chart();
    init["securityContext"] = json!({"privileged": true, "runAsUser": 0, "runAsNonRoot": false});
    let mut object = manifests::meshed("web", &init);
    add_flags(&mut object["spec"], &["--timeout-close-wait-secs", "300"]);
    let pod = world.space.make(&object)?;
    installed(&pod)?;
    world.try_meshed(&pod)?;
    let setting = "cat /proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait";
    let pods = pod.look(setting)?;
    let nodes = Command::new("sh").args(["-c", setting]).read()?;
    if pods.trim() != "300" || nodes.trim() == "300" {
        return Err(format!("the pod has {pods}, the node {nodes}").into());
    }
    Ok(format!("{} s in the pod, {} s on the node", pods.trim(), nodes.trim()))
}

/// A pod with the node's network. This node is in a network namespace like any pod's, as kind's nodes are, and proxy-init takes it
/// for one: the node is redirected, and stays so without the pod, until its rules are removed as docs/faq.md says.
fn on_the_node(world: &World<'_>) -> Result<String> {
    // Nothing listens there, and the API server here.
    let [nowhere, api] = [9999, 443].map(|port| format!("{ADDRESS}:{port}"));
    // Where a connection from a pod to the node ends.
    let sent = |to: &str, expected: &str| -> Result<bool> {
        let seen = world.neighbour.exec("client", &["/peer", "connect", to])?;
        Ok(seen == format!("{expected}, sent to {to}\n"))
    };
    let redirect = || -> Result<()> {
        let mut object = manifests::meshed("web", &in_chart());
        object["spec"]["hostNetwork"] = json!(true);
        let pod = world.space.make(&object)?;
        installed(&pod)?;
        if !sent(&nowhere, "port 4143")? {
            return Err("the node is not redirected to the pod's proxy".into());
        }
        world.space.delete(&["pod", &pod.name])?;
        // The rules stay, and lead to a proxy that is gone once its container is.
        wait_for("the node without its API server", || sent(&api, "refused").is_ok_and(|refused| refused))
    };
    if !sent(&nowhere, "refused")? {
        return Err("the node is redirected already".into());
    }
    let redirected = redirect();
    // Other scenarios are to find the node as it was, whatever has failed.
    remove_from_node(world)?;
    redirected?;
    let mut unmeshed = manifests::plain("unmeshed");
    unmeshed["spec"]["hostNetwork"] = json!(true);
    let unmeshed = world.space.start(&unmeshed)?;
    if !sent(&format!("{ADDRESS}:8080"), "port 8080")? {
        return Err("the node is still redirected".into());
    }
    world.space.delete(&["pod", &unmeshed.name])?;
    Ok("the node is redirected, and its API server is refused without the pod; mended by kubectl debug node".to_owned())
}

/// Removes proxy-init's rules from the node by the command of docs/faq.md.
fn remove_from_node(world: &World<'_>) -> Result<()> {
    const COMMAND: &str =
        "kubectl debug node/NODE --image=REGISTRY/proxy-init:VERSION --profile=netadmin -- proxy-init uninstall";
    if !fs::read_to_string(root().join("docs/faq.md"))?.contains(COMMAND) {
        return Err(format!("docs/faq.md doesn't say {COMMAND}").into());
    }
    let command = COMMAND.replace("NODE", "node").replace("REGISTRY/proxy-init:VERSION", images::PROXY_INIT);
    let words: Vec<_> = command.split(' ').skip(1).collect();
    // In a namespace that allows such a pod.
    let space = &world.neighbour.space;
    let said = space.run(&words)?;
    let name = said.split(' ').find(|word| word.starts_with("node-debugger-"));
    let pod = space.pod(name.ok_or_else(|| format!("no pod in {said}"))?);
    let ended = pod
        .until("does not end", |pod| pod.pointer("/status/containerStatuses/0/state/terminated/exitCode")?.as_i64())?;
    let log = pod.logs("debugger")?;
    space.delete(&["pod", &pod.name])?;
    let rules = Command::new("nft").args(["list", "ruleset"]).read()?;
    if ended != 0 || rules.contains("PROXY_INIT") {
        return Err(format!("{command}: {ended}: {log}; the node has {rules}").into());
    }
    Ok(())
}

/// The chart's init container.
fn in_chart() -> Value {
    manifests::init(images::PROXY_INIT, &["--iptables-mode", "nft"])
}

fn add_flags(spec: &mut Value, flags: &[&str]) {
    if let Some(args) = spec["initContainers"][0]["args"].as_array_mut() {
        args.extend(flags.iter().map(|&flag| json!(flag)));
    }
}

/// Waits until a pod is ready, and returns the last line that its init container has written, which must have succeeded.
fn installed(pod: &Pod<'_>) -> Result<String> {
    pod.ready()?;
    let ended = pod.ended(INIT)?;
    let log = pod.logs(INIT)?;
    if ended.code == 0 && ended.reason == "Completed" {
        Ok(last_line(&log))
    } else {
        Err(format!("{ended:?}: {log}").into())
    }
}

/// kubelet and the runtime were content with a pod.
fn no_warnings(pod: &Pod<'_>) -> Result<()> {
    let events = pod.events()?;
    match events.iter().find(|event| event.starts_with("Warning")) {
        Some(warning) => Err(warning.as_str().into()),
        None if events.is_empty() => Err("no events".into()),
        None => Ok(()),
    }
}

fn last_line(log: &str) -> String {
    log.trim_end().lines().last().unwrap_or_default().to_owned()
}
