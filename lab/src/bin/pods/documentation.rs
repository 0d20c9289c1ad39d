//! docs/debugging.md: each command in it is really run, and what it prints has to be what the page says.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;
use std::process::Command;

use lab::linkerd;
use lab::page::{PODS, Page, SHADOW};
use lab::shell::{Result, Run as _};

use crate::mesh::{self, Containers};
use crate::node::Network;
use crate::pod::{Container, Pod};
use crate::scenario::{Scenario, World};

/// From the checkout.
const PATH: &str = "docs/debugging.md";

/// Every command of the page begins so, and is one of kubectl's up to this.
const BEGINNING: &str = "kubectl debug -n emojivoto ";
const END_OF_KUBECTL: &str = "--";

/// The networks of the page's pods.
pub(crate) fn networks() -> impl Iterator<Item = Network> {
    PODS.iter().map(|&(name, addresses, _)| Network { addresses: Some(addresses), ..Network::new(name) })
}

/// The page's scenario; what is really said goes into this folder, for whoever has to bring the page up to date.
pub(crate) fn scenario(folder: &Path) -> Scenario {
    let folder = folder.to_owned();
    Scenario::new(format!("what {PATH} says"), move |world| {
        let page = Page {
            path: PATH,
            is_run: &|command| command.starts_with(BEGINNING),
            at_least: 1,
            is_same: |printed, said| printed == said,
        };
        let mut pods = HashMap::new();
        let said = page.check(&folder, |command| debug(world, &mut pods, command))?;
        for pod in pods.into_values() {
            pod.remove()?;
        }
        Ok(said)
    })
}

/// What a command of the page prints, in a pod that is made for the first command that names it.
fn debug<'a>(world: &World<'a>, pods: &mut HashMap<String, Pod<'a>>, command: &str) -> Result<String> {
    let words: Vec<_> = command.trim_start_matches(BEGINNING).split_whitespace().collect();
    let end = words.iter().position(|&word| word == END_OF_KUBECTL);
    let (kubectl, command) = words.split_at(end.ok_or_else(|| format!("no {END_OF_KUBECTL} in {command}"))?);
    let name = *kubectl.first().ok_or("a command names no pod")?;
    let pod = match pods.entry(name.to_owned()) {
        Entry::Occupied(pod) => pod.into_mut(),
        Entry::Vacant(none) => none.insert(start(world, name)?),
    };
    let container = Container {
        // What the page's root.json says.
        user: kubectl.contains(&"--custom=root.json").then_some(0),
        tty: kubectl.contains(&"-it"),
        add: if kubectl.contains(&"--profile=netadmin") { &["NET_ADMIN", "NET_RAW"] } else { &[] },
        ..mesh::debugger(world.images.scratch(), &command[1..])
    };
    let mut said = pod.run(&container)?;
    // containerd 1.6 loses all that a container has written to its terminal if it ends at once: 1 of 480 times,
    // measured.
    if said.stdout.is_empty() {
        said = pod.run(&container)?;
    }
    Ok(said.stdout)
}

/// A pod as the page has it under this name.
fn start<'a>(world: &World<'a>, name: &str) -> Result<Pod<'a>> {
    let known = PODS.iter().find(|(pod, ..)| *pod == name);
    let &(network, _, meshed) = known.ok_or_else(|| format!("{PATH} has a pod {name}, which is unknown here"))?;
    let pod = mesh::pod(world, network)?;
    if meshed {
        let flags = [&["--iptables-mode", "nft"][..], &linkerd::CHART_ARGUMENTS].concat();
        pod.run(&mesh::init(world.images.scratch(), &flags))?.succeeded()?;
    }
    Containers::start(world, &pod)?.try_connections(world, &mesh::connections(world, &pod, meshed))?;
    if name == "shadowed" {
        Command::new("nsenter").arg(format!("--net={}", pod.netns.display())).args(SHADOW.split(' ')).run()?;
    }
    Ok(pod)
}
