//! docs/debugging.md: each command in it is really run, and what it prints has to be what the page says.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::path::Path;
use std::process::Command;

use lab::linkerd;
use lab::page::{PODS, SHADOW, is_output, plain};
use lab::shell::{Result, Run as _, root};

use crate::mesh::{self, Containers};
use crate::node::Network;
use crate::pod::{Container, Pod};
use crate::scenario::{Scenario, World};

/// From the checkout.
const PAGE: &str = "docs/debugging.md";

/// Every command of the page begins so, and is one of kubectl's up to this.
const BEGINNING: &str = "    $ kubectl debug -n emojivoto ";
const END_OF_KUBECTL: &str = "--";

/// The networks of the page's pods.
pub(crate) fn networks() -> impl Iterator<Item = Network> {
    PODS.iter().map(|&(name, addresses, _)| Network {
        addresses: Some(addresses),
        ..Network::new(name)
    })
}

/// The page's scenario; what is really said goes into this folder, for whoever has to bring the page up to date.
pub(crate) fn scenario(folder: &Path) -> Scenario {
    let written = folder.join("debugging.md");
    Scenario::new(format!("what {PAGE} says"), move |world| {
        let page = fs::read_to_string(root().join(PAGE))?;
        let (really, commands) = run(world, &page)?;
        if really == page {
            return Ok(format!("all {commands} commands print it"));
        }
        fs::write(&written, &really)?;
        let mut lines = really.lines().zip(page.lines());
        let first = lines.find(|(really, page)| really != page);
        let (really, page) = first.unwrap_or(("more or less", "at the end"));
        Err(format!(
            "{page:?} should be {really:?}; {} is the page as it should be",
            written.display()
        )
        .into())
    })
}

/// The page with what its commands really print, and how many these are.
fn run(world: &World<'_>, page: &str) -> Result<(String, usize)> {
    let mut text = String::new();
    let mut lines = page.lines().peekable();
    let mut commands = 0;
    let mut pods: HashMap<&str, Pod<'_>> = HashMap::new();
    while let Some(line) = lines.next() {
        text += line;
        text.push('\n');
        let Some(rest) = line.strip_prefix(BEGINNING) else {
            continue;
        };
        let mut words: Vec<_> = rest.split_whitespace().collect();
        while words.last() == Some(&"\\") {
            words.pop();
            let more = lines.next().ok_or("a command ends with a backslash")?;
            text += more;
            text.push('\n');
            words.extend(more.split_whitespace());
        }
        let end = words.iter().position(|&word| word == END_OF_KUBECTL);
        let (kubectl, command) = words.split_at(end.ok_or_else(|| format!("no {END_OF_KUBECTL} in {line}"))?);
        let name = *kubectl.first().ok_or("a command names no pod")?;
        let mut blank = 0;
        while let Some(line) = lines.next_if(|line| is_output(line)) {
            blank = if line.is_empty() { blank + 1 } else { 0 };
        }
        let pod = match pods.entry(name) {
            Entry::Occupied(pod) => pod.into_mut(),
            Entry::Vacant(none) => none.insert(start(world, name)?),
        };
        let container = Container {
            // What the page's root.json says.
            user: kubectl.contains(&"--custom=root.json").then_some(0),
            tty: kubectl.contains(&"-it"),
            add: if kubectl.contains(&"--profile=netadmin") {
                &["NET_ADMIN", "NET_RAW"]
            } else {
                &[]
            },
            ..mesh::debugger(world.images.scratch(), &command[1..])
        };
        let mut said = pod.run(&container)?;
        // containerd 1.6 loses all that a container has written to its terminal if it ends at once: 1 of 480 times,
        // measured.
        if said.stdout.is_empty() {
            said = pod.run(&container)?;
        }
        for line in said.stdout.lines() {
            let indented = format!("    {}", plain(line));
            text += indented.trim_end();
            text.push('\n');
        }
        text += &"\n".repeat(blank);
        commands += 1;
    }
    for pod in pods.into_values() {
        pod.remove()?;
    }
    Ok((text, commands))
}

/// A pod as the page has it under this name.
fn start<'a>(world: &World<'a>, name: &str) -> Result<Pod<'a>> {
    let known = PODS.iter().find(|(pod, ..)| *pod == name);
    let &(network, _, meshed) = known.ok_or_else(|| format!("{PAGE} has a pod {name}, which is unknown here"))?;
    let pod = mesh::pod(world, network)?;
    if meshed {
        let flags = [&["--iptables-mode", "nft"][..], &linkerd::CHART_ARGUMENTS].concat();
        pod.run(&mesh::init(world.images.scratch(), &flags))?.succeeded()?;
    }
    Containers::start(world, &pod)?.try_connections(world, &mesh::connections(world, &pod, meshed))?;
    if name == "shadowed" {
        Command::new("nsenter")
            .arg(format!("--net={}", pod.netns.display()))
            .args(SHADOW.split(' '))
            .run()?;
    }
    Ok(pod)
}
