//! Pods with users of their own (`hostUsers: false`), and the plugin linkerd-cni in them.
//!
//! Their network namespaces belong to user namespaces of theirs. The plugin is outside of these, and installs in native
//! mode, whichever mode is asked for.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use lab::shell::{Result, Run as _};
use serde_json::json;

use crate::cni;
use crate::init;
use crate::mesh;
use crate::node::Network;
use crate::pod::{Meta, Pod};
use crate::scenario::{Scenario, World};

/// The beginning of the scenarios' names.
pub(crate) const NAME: &str = "own users";

/// The plugin's modes, each with a network of its own.
const MODES: [(&str, &str); 2] = [("nft", "own-users-nft"), ("legacy", "own-users-legacy")];

/// The plugin in each mode, by annotations.
pub(crate) fn networks() -> impl Iterator<Item = Network> {
    MODES.iter().map(|&(mode, name)| {
        let mut entry = cni::by_annotations();
        entry["linkerd"]["iptables-mode"] = json!(mode);
        Network { chained: vec![entry], ..Network::new(name) }
    })
}

pub(crate) fn scenarios() -> impl Iterator<Item = Scenario> {
    MODES.iter().map(|&(mode, network)| {
        Scenario::new(format!("{NAME}, cni, mode {mode}"), move |world| {
            let pod = pod(world, network)?;
            init::in_the_mesh(world, &pod, "native")?;
            pod.remove()?;
            Ok("its rules are in native mode, and connections go to the proxy in both directions".to_owned())
        })
    })
}

pub(crate) fn pod<'a>(world: &World<'a>, network: &str) -> Result<Pod<'a>> {
    let meta = Meta {
        annotations: cni::annotations(&[("linkerd.io/proxy-version", "edge-1")]),
        own_users: true,
        ..mesh::meta()
    };
    let pod = Pod::start(world.node, network, &meta)?;
    belongs_to_others(&pod)?;
    Ok(pod)
}

/// Fails if the pod's network namespace belongs to this program's user namespace.
fn belongs_to_others(pod: &Pod<'_>) -> Result<()> {
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
