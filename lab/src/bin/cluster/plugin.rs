//! `kubectl proxy-init`, as people type it: kubectl finds the script of deploy/kubectl by its name.

use std::net::SocketAddr;

use lab::images;
use lab::manifests;
use lab::shell::Result;
use serde_json::Value;

use crate::rollout;
use crate::world::{Scenario, World};

pub(crate) fn scenarios() -> Vec<Scenario> {
    vec![Scenario::new("kubectl proxy-init", asked)]
}

/// The answers of show, verify and explain about a running pod, each with its exit code and without a line of kubectl's own.
fn asked(world: &World<'_>) -> Result<String> {
    let object = manifests::meshed("web", &manifests::init(images::PROXY_INIT, &["--iptables-mode", "nft"]));
    world.space.create(&rollout::workload("Deployment", 1, &object))?;
    let pod = world.space.start(&object)?;
    world.space.rolled("deployment/web")?;
    let ask = |code: i32, line: &str| -> Result<String> {
        let arguments: Vec<_> = ["proxy-init"].into_iter().chain(line.split_whitespace()).collect();
        let output = world.kubectl().output("", &[&arguments[..], &["--namespace", &world.space.name]].concat())?;
        let (stdout, stderr) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
        // Of a workload, the plugin names the pod that it asks.
        let is_quiet = stderr.is_empty() || stderr.starts_with("asking web-");
        if output.status.code() != Some(code) || (code == 0 && !is_quiet) {
            return Err(format!("kubectl proxy-init {line}: {}: {stdout}{stderr}", output.status).into());
        }
        Ok(stdout)
    };
    let mut shown = String::new();
    for of in ["web", "deploy/web"] {
        shown = ask(0, &format!("show {of}"))?;
        if !shown.starts_with("nft mode\n") || !shown.contains("to the proxy, port 4143") {
            return Err(shown.into());
        }
    }
    let verified = |line: &str| -> Result<()> {
        let verified: Value = serde_json::from_str(&ask(0, line)?)?;
        if verified["in_place"] == true { Ok(()) } else { Err(verified.to_string().into()) }
    };
    verified("verify web --output json")?;
    let address = *pod.addresses()?.first().ok_or("a pod without an address")?;
    let explained = ask(0, &format!("explain web inbound --to {}", SocketAddr::new(address, 4190)))?;
    if !explained.starts_with("bypasses the proxy") {
        return Err(explained.into());
    }
    ask(3, "verify web --incoming-proxy-port 4444 --outgoing-proxy-port 4140 --proxy-uid 2102")?;
    ask(1, "show nobody")?;
    // Where Pod Security admits no such container, the pod's node is asked.
    world.restrict(true)?;
    ask(1, "show web")?;
    verified("verify web --output json --node")?;
    Ok(shown.lines().next().unwrap_or_default().to_owned())
}
