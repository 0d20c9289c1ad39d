//! proxy-init as the init container of pods.

use std::fs;
use std::process::Command;

use lab::shell::{Result, Run as _, root};
use serde_json::{Value, json};

use crate::images;
use crate::machine::ADDRESS;
use crate::pod::{self, INIT, Pod};
use crate::services::wait_for;
use crate::world::{Scenario, World};

/// An image, a mode, and the mode that this comes to.
const COMBINATIONS: [(&str, &str, &str, &str); 7] = [
    ("scratch", images::PROXY_INIT, "nft", "nft"),
    ("scratch", images::PROXY_INIT, "native", "native"),
    ("scratch", images::PROXY_INIT, "auto", "nft"),
    // There is no iptables.
    ("scratch", images::PROXY_INIT, "legacy", "nft"),
    ("scratch", images::PROXY_INIT, "plain", "nft"),
    ("legacy", images::LEGACY, "legacy", "legacy"),
    ("legacy", images::LEGACY, "plain", "legacy"),
];

/// A pod that must not start: what is wrong with it, a change of its specification or of its init container, the init
/// container's exit code, and what `kubectl describe` must say.
struct Refused {
    name: &'static str,
    image: &'static str,
    mode: &'static str,
    change: fn(&mut Value),
    code: i64,
    says: &'static str,
}

// hostNetwork is not among these: this node isn't in the machine's own network namespace, which proxy-init refuses.
const REFUSED: [Refused; 5] = [
    Refused {
        name: "a flag that does not exist",
        image: images::PROXY_INIT,
        mode: "nft",
        change: |spec| add_flags(spec, &["--no-such-flag"]),
        code: 2,
        says: "--no-such-flag",
    },
    Refused {
        name: "a port that does not exist",
        image: images::PROXY_INIT,
        mode: "nft",
        change: |spec| add_flags(spec, &["--inbound-ports-to-ignore", "99999"]),
        code: 2,
        says: "99999",
    },
    Refused {
        name: "no NET_ADMIN",
        image: images::PROXY_INIT,
        mode: "nft",
        change: |spec| spec["initContainers"][0]["securityContext"]["capabilities"]["add"] = json!(["NET_RAW"]),
        code: 1,
        says: "CAP_NET_ADMIN",
    },
    Refused {
        name: "no NET_RAW, legacy mode",
        image: images::LEGACY,
        mode: "legacy",
        change: |spec| spec["initContainers"][0]["securityContext"]["capabilities"]["add"] = json!(["NET_ADMIN"]),
        code: 1,
        says: "NET_RAW",
    },
    Refused {
        name: "--timeout-close-wait-secs, unprivileged",
        image: images::PROXY_INIT,
        mode: "nft",
        change: |spec| add_flags(spec, &["--timeout-close-wait-secs", "300"]),
        code: 1,
        says: "cannot write the close-wait timeout",
    },
];

pub(crate) fn scenarios() -> Vec<Scenario> {
    let mut scenarios = vec![Scenario::new("deploy/pod.yaml", as_deployed)];
    for (name, image, mode, comes_to) in COMBINATIONS {
        scenarios.push(Scenario::new(format!("{name} image, {mode} mode"), move |world| {
            in_mode(world, image, mode, comes_to)
        }));
    }
    for case in &REFUSED {
        scenarios.push(Scenario::new(format!("refused: {}", case.name), |world| refused(world, case)));
    }
    scenarios.push(Scenario::new("--timeout-close-wait-secs, privileged", close_wait));
    scenarios.push(Scenario::new("limits of processor time and memory", limited));
    scenarios.push(Scenario::new("the init container again in the same sandbox", again).alone());
    scenarios.push(Scenario::new("hostNetwork, on a node like kind's", on_the_node).alone());
    scenarios
}

/// `kubectl apply -f deploy/pod.yaml`, whose images the cluster has.
fn as_deployed(world: &World<'_>) -> Result<String> {
    let namespace = world.namespace.as_str();
    let kubectl = &world.cluster.kubectl;
    let file = root().join("deploy/pod.yaml");
    let applied = kubectl.run(&["apply", "--namespace", namespace, "--filename", &file.to_string_lossy()])?;
    let pod = Pod::new(kubectl, namespace, "meshed");
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

/// The chart's pod: its init container succeeds, all connections arrive where they must, and kubelet has nothing to warn of.
fn in_mode(world: &World<'_>, image: &str, mode: &str, comes_to: &str) -> Result<String> {
    let namespace = world.namespace.as_str();
    let pod = Pod::create(&world.cluster.kubectl, namespace, &pod::meshed("web", &in_chart(image, mode)))?;
    let last = installed(&pod)?;
    if !last.contains(&format!("in {comes_to} mode")) {
        return Err(last.into());
    }
    pod.try_injected(&world.neighbour, true)?;
    no_warnings(&pod)?;
    Ok(last)
}

/// The pod does not start; kubectl shows why, and nothing is left in its network namespace.
fn refused(world: &World<'_>, case: &Refused) -> Result<String> {
    let namespace = world.namespace.as_str();
    let mut object = pod::meshed("web", &in_chart(case.image, case.mode));
    (case.change)(&mut object["spec"]);
    let pod = Pod::create(&world.cluster.kubectl, namespace, &object)?;
    let ended = pod.ended(INIT)?;
    if ended.code != case.code || !ended.message.contains(case.says) {
        return Err(format!("{ended:?}").into());
    }
    // Twice, as kubelet tries it again.
    pod.until("is not tried again", |pod| {
        let status = pod.pointer("/status/initContainerStatuses/0")?;
        (status["restartCount"].as_i64()? > 0).then_some(())
    })?;
    let described = pod.describe()?;
    let words: Vec<_> = described.split_whitespace().collect();
    if !described.contains(case.says) || !words.join(" ").contains(&format!("Exit Code: {}", case.code)) {
        return Err(described.into());
    }
    pod.warned("BackOff")?;
    let left = pod.look("nft list ruleset; iptables-legacy-save; ip6tables-legacy-save")?;
    if left.to_uppercase().contains("PROXY_INIT") {
        return Err(format!("left behind: {left}").into());
    }
    let states = world.cluster.kubectl.run(&["get", "pod", "--namespace", namespace, "--no-headers"])?;
    if !states.contains("Init:") {
        return Err(states.into());
    }
    Ok(last_line(&ended.message))
}

/// As the chart runs it where `proxyInit.closeWaitTimeoutSecs` is set.
fn close_wait(world: &World<'_>) -> Result<String> {
    let namespace = world.namespace.as_str();
    let mut init = in_chart(images::PROXY_INIT, "nft");
    init["securityContext"] = json!({"privileged": true, "runAsUser": 0, "runAsNonRoot": false});
    let mut object = pod::meshed("web", &init);
    add_flags(&mut object["spec"], &["--timeout-close-wait-secs", "300"]);
    let pod = Pod::create(&world.cluster.kubectl, namespace, &object)?;
    installed(&pod)?;
    pod.try_injected(&world.neighbour, true)?;
    let setting = "cat /proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait";
    let pods = pod.look(setting)?;
    let nodes = Command::new("sh").args(["-c", setting]).read()?;
    if pods.trim() != "300" || nodes.trim() == "300" {
        return Err(format!("the pod has {pods}, the node {nodes}").into());
    }
    Ok(format!("{} s in the pod, {} s on the node", pods.trim(), nodes.trim()))
}

/// The limits that the chart gives to proxy-init reach the kernel: those of a container that runs on with the same ones.
fn limited(world: &World<'_>) -> Result<String> {
    let namespace = world.namespace.as_str();
    let mut object = pod::meshed("web", &in_chart(images::PROXY_INIT, "nft"));
    object["spec"]["containers"][1]["resources"] = object["spec"]["initContainers"][0]["resources"].clone();
    let pod = Pod::create(&world.cluster.kubectl, namespace, &object)?;
    installed(&pod)?;
    let id = pod.until("has no container", |pod| {
        let statuses = pod.pointer("/status/containerStatuses")?.as_array()?;
        let status = statuses.iter().find(|status| status["name"] == "app")?;
        Some(status["containerID"].as_str()?.strip_prefix("containerd://")?.to_owned())
    })?;
    world.cluster.limits_of_chart(&id)
}

/// kubelet runs init containers again where the runtime no longer knows that they have run, such as after somebody has removed
/// ended containers: in a network namespace that has the rules, beside containers that use them.
fn again(world: &World<'_>) -> Result<String> {
    let namespace = world.namespace.as_str();
    let pod =
        Pod::create(&world.cluster.kubectl, namespace, &pod::meshed("web", &in_chart(images::PROXY_INIT, "nft")))?;
    installed(&pod)?;
    let id = |pod: &Value| Some(pod.pointer("/status/initContainerStatuses/0/containerID")?.as_str()?.to_owned());
    let first = pod.until("has no init container", id)?;
    world.cluster.forget_container(first.trim_start_matches("containerd://"))?;
    pod.until("does not run its init container again", |pod| {
        let ended = pod.pointer("/status/initContainerStatuses/0/state/terminated")?;
        (id(pod)? != first).then_some(())?;
        Some(ended.clone())
    })?;
    let last = installed(&pod)?;
    if !last.contains("were installed already; nothing was changed") {
        return Err(last.into());
    }
    pod.try_injected(&world.neighbour, true)?;
    Ok(last)
}

/// A pod with the node's network. This node is in a network namespace like any pod's, as kind's nodes are, and proxy-init takes it
/// for one: the node is redirected, and stays so without the pod, until its rules are removed as docs/faq.md says.
fn on_the_node(world: &World<'_>) -> Result<String> {
    let namespace = world.namespace.as_str();
    // Nothing listens there, and the API server here.
    let [nowhere, api] = [9999, 443].map(|port| format!("{ADDRESS}:{port}"));
    // Where a connection from a pod to the node ends.
    let sent = |to: &str, expected: &str| -> Result<bool> {
        let seen = world.neighbour.exec("client", &["/peer", "connect", to])?;
        Ok(seen == format!("{expected}, sent to {to}\n"))
    };
    let kubectl = &world.cluster.kubectl;
    let redirect = || -> Result<()> {
        let mut object = pod::meshed("web", &in_chart(images::PROXY_INIT, "nft"));
        object["spec"]["hostNetwork"] = json!(true);
        let pod = Pod::create(kubectl, namespace, &object)?;
        installed(&pod)?;
        if !sent(&nowhere, "port 4143")? {
            return Err("the node is not redirected to the pod's proxy".into());
        }
        kubectl.run(&["delete", "pod", "--namespace", namespace, &pod.name])?;
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
    let mut unmeshed = pod::plain("unmeshed");
    unmeshed["spec"]["hostNetwork"] = json!(true);
    let unmeshed = Pod::create(kubectl, namespace, &unmeshed)?;
    unmeshed.ready()?;
    if !sent(&format!("{ADDRESS}:8080"), "port 8080")? {
        return Err("the node is still redirected".into());
    }
    kubectl.run(&["delete", "pod", "--namespace", namespace, &unmeshed.name])?;
    Ok("the node is redirected, and its API server is refused without the pod; mended by kubectl debug node".to_owned())
}

/// Removes proxy-init's rules from the node by the command of docs/faq.md.
fn remove_from_node(world: &World<'_>) -> Result<()> {
    const COMMAND: &str =
        "kubectl debug node/NODE --image=REGISTRY/proxy-init:VERSION --profile=netadmin -- proxy-init uninstall";
    let kubectl = &world.cluster.kubectl;
    if !fs::read_to_string(root().join("docs/faq.md"))?.contains(COMMAND) {
        return Err(format!("docs/faq.md doesn't say {COMMAND}").into());
    }
    let command = COMMAND.replace("NODE", "node").replace("REGISTRY/proxy-init:VERSION", images::PROXY_INIT);
    let words: Vec<_> = command.split(' ').skip(1).collect();
    let said = kubectl.run(&words)?;
    let name = said.split(' ').find(|word| word.starts_with("node-debugger-"));
    let pod = Pod::new(kubectl, "default", name.ok_or_else(|| format!("no pod in {said}"))?);
    let ended = pod
        .until("does not end", |pod| pod.pointer("/status/containerStatuses/0/state/terminated/exitCode")?.as_i64())?;
    let log = pod.logs("debugger")?;
    kubectl.run(&["delete", "pod", "--namespace", "default", &pod.name])?;
    let rules = Command::new("nft").args(["list", "ruleset"]).read()?;
    if ended != 0 || rules.contains("PROXY_INIT") {
        return Err(format!("{command}: {ended}: {log}; the node has {rules}").into());
    }
    Ok(())
}

/// The chart's init container in this mode.
fn in_chart(image: &str, mode: &str) -> Value {
    pod::init(image, &["--iptables-mode", mode])
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
