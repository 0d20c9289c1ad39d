//! The program of `cargo xtask pods`, in network, mount and process namespaces of its own: a node with a real container
//! runtime, and scenarios on it. Its words are those that the names of scenarios must have.
//!
//! A new scenario is an entry in a list such as `init::scenarios`: a name, the network that its pods are on, and a
//! function.

mod agent;
mod cni;
mod cri;
mod init;
mod mesh;
mod node;
mod nri;
mod own_users;
mod pod;
mod scenario;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;

use lab::confined::{self, Inside, cover};
use lab::containerd::lay_over_usr;
use lab::shell::{Result, Run as _};

use cni::Servers;
use node::{Network, Node, Setup};
use pod::{Meta, Pod};
use scenario::{Images, World};

/// The number of the node that most scenarios have.
const NODE: u8 = 0;

fn main() -> ExitCode {
    confined::main(|inside| run(inside).inspect_err(|_| say_what_containerd_says(&inside.folder)))
}

/// Its last complaints, and all of its log in the folder that outlives this process.
fn say_what_containerd_says(folder: &Path) {
    const LINES: usize = 20;
    let Ok(log) = std::fs::read(node::folder(NODE).join(node::LOG)) else {
        return;
    };
    let text = String::from_utf8_lossy(&log);
    let complaints: Vec<_> = text.lines().filter(|line| !line.contains("level=info")).collect();
    for line in &complaints[complaints.len().saturating_sub(LINES)..] {
        eprintln!("containerd: {line}");
    }
    let kept = folder.join(node::LOG);
    if std::fs::write(&kept, log).is_ok() {
        eprintln!("pods: what containerd says is in {}", kept.display());
    }
}

fn run(inside: &Inside) -> Result<()> {
    let folder = inside.folder.as_path();
    // All that the runtime leaves goes with the mount namespace: containerd and its shims have their sockets, and the
    // CNI library has its cache, at places that can't be chosen.
    cover(&["/var/lib"])?;
    lay_over_usr(folder)?;
    Command::new("ip").args(["link", "set", "lo", "up"]).run()?;
    // The node lasts as long as this process.
    let images: &Images = Box::leak(Box::new(Images::new()?));
    let servers = Arc::new(Servers::start(&node::folder(NODE))?);
    let mut networks = vec![Network::new(init::NETWORK)];
    networks.extend(cni::networks(&servers));
    networks.extend(own_users::networks());
    let node: &Node = Box::leak(Box::new(Node::start(&Setup {
        number: NODE,
        cgroup: &inside.cgroup,
        networks: &networks,
        plugins: &[folder.join(cni::PLUGIN)],
        images,
        image_folder: folder,
    })?));
    if inside.holds() {
        let _pod = Pod::start(node, init::NETWORK, &Meta::default())?;
        confined::hold();
    }
    let world = World::new(node, images, init::NETWORK)?;
    let mut scenarios = init::scenarios();
    scenarios.extend(cni::scenarios(&servers));
    scenarios.push(agent::scenario(folder));
    scenarios.extend(own_users::scenarios());
    scenarios.extend(nri::scenarios(folder));
    lab::scenario::run_all("pods'", &scenarios, &inside.words, |scenario| scenario.try_in(&world))
}
