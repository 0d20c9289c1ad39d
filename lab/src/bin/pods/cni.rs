//! The CNI plugin linkerd-cni after bridge and host-local, by the annotations that the runtime hands over. The API server's
//! answers are those of its own tests and of `cargo xtask cluster`.

use lab::linkerd::Flags;
use lab::manifests::{injected, plain, with_own_users};
use lab::network::Namespace;
use lab::shell::{Result, Run as _};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

use crate::init::{belongs_to_others, in_the_mesh};
use crate::node::{LEGACY, NFT, NOTHING};
use crate::pod::Pod;
use crate::{Scenario, World};

pub(crate) fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario::new("cni, meshed", meshed),
        Scenario::new("cni, not meshed", |world| not_meshed(world, NFT)),
        Scenario::new("cni, a wrong annotation", |world| {
            refused(world, NFT, &with_wrong_annotation(), "skip-outbound-ports of pod shop/web")
        }),
        Scenario::new("cni, no annotations handed over", |world| {
            refused(world, NOTHING, &injected("web"), "handed over no annotations")
        }),
        Scenario::new("own users, cni, mode nft", |world| own_users(world, NFT)),
        Scenario::new("own users, cni, mode legacy", |world| own_users(world, LEGACY)),
    ]
}

/// A meshed pod with an annotation that is no list of ports.
pub(crate) fn with_wrong_annotation() -> Value {
    let mut object = injected("web");
    object["metadata"]["annotations"]["config.linkerd.io/skip-outbound-ports"] = json!("3306,http");
    object
}

fn meshed(world: &World) -> Result<String> {
    let pod = Pod::start(world.node, NFT, &injected("web"))?;
    has_rules(&pod)?;
    in_the_mesh(world, &pod, "nft")?;
    // kubelet stops a sandbox until that succeeds, and the network namespace is gone the second time.
    for _ in 0..2 {
        pod.stop()?;
    }
    if pod.netns.exists() {
        return Err(format!("{} is still there", pod.netns.display()).into());
    }
    pod.remove()?;
    Ok("its rules are linkerd-init's, and connections go to the proxy in both directions; DEL twice".to_owned())
}

/// A pod without a proxy has no rules.
pub(crate) fn not_meshed(world: &World, network: &str) -> Result<String> {
    let pod = Pod::start(world.node, network, &plain("plain"))?;
    pod.has_no_rules()?;
    world.try_connections(&pod, false)?;
    pod.remove()?;
    Ok("it has no rules, and connections go straight to it".to_owned())
}

/// A sandbox that fails with these words.
pub(crate) fn refused(world: &World, network: &str, object: &Value, words: &str) -> Result<String> {
    match Pod::start(world.node, network, object) {
        Ok(_) => Err("the sandbox was made".into()),
        Err(error) if error.to_string().contains(words) => Ok("the sandbox failed, saying why".to_owned()),
        Err(error) => Err(error),
    }
}

fn own_users(world: &World, network: &str) -> Result<String> {
    let pod = Pod::start(world.node, network, &with_own_users(injected("web")))?;
    belongs_to_others(&pod)?;
    in_the_mesh(world, &pod, "native")?;
    pod.remove()?;
    Ok("its rules are in native mode, and connections go to the proxy in both directions".to_owned())
}

/// Fails unless the pod has the rules that linkerd-init's commands add for the chart's flags.
pub(crate) fn has_rules(pod: &Pod) -> Result<()> {
    let other = Namespace::new();
    Flags::default().add_with_iptables(&other, "nft");
    let (rules, expected) = (saved(&pod.netns)?, saved(&other.path())?);
    if rules == expected {
        return Ok(());
    }
    Err(format!("it has the rules\n{rules}in place of\n{expected}").into())
}

/// Both families' nat rules in a network namespace, without what differs from run to run.
fn saved(netns: &Path) -> Result<String> {
    let mut text = String::new();
    for save in ["iptables-nft-save", "ip6tables-nft-save"] {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", netns.display())).args([save, "-t", "nat"]);
        for line in command.read()?.lines().filter(|line| !line.starts_with('#')) {
            text += line.split(" [").next().unwrap_or_default();
            text.push('\n');
        }
    }
    Ok(text)
}
