//! What `cargo xtask pods` runs, in network, mount and process namespaces of its own: a node with a real container
//! runtime, and scenarios on it. Its words are those that the names of scenarios must have.
//!
//! A new scenario is an entry in a list such as `init::scenarios`: a name, the network that its pods are on, and a
//! function.

mod agent;
mod cni;
mod cri;
mod documentation;
mod init;
mod mesh;
mod node;
mod nri;
mod own_users;
mod pod;
mod scenario;
mod waits;

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;

use lab::confined::{self, Inside, cover, mount_on};
use lab::containerd::NEWER;
use lab::pods;
use lab::shell::{Result, Run as _};

use cni::Servers;
use node::{Bridge, Node, Setup};
use pod::{Meta, Pod};
use scenario::{Images, World};

/// Where the node's files are.
const NODE: &str = "/run/node";

/// The bridge of its networks.
const BRIDGE: Bridge = Bridge { name: "cni0", subnets: ["10.88.0.0/16", "fd88::/64"] };

fn main() -> ExitCode {
    confined::main(|inside| run(inside).inspect_err(|_| say_what_containerd_says(&inside.folder)))
}

/// Its last complaints, and all of its log in the folder that outlives this process.
fn say_what_containerd_says(folder: &Path) {
    const LINES: usize = 20;
    let Ok(log) = std::fs::read(Path::new(NODE).join(node::LOG)) else {
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
    let newer = folder.join(NEWER);
    let is_newer = newer.exists();
    if is_newer {
        // All programs in here get its C library, which takes older ones too. The link has no colon in its name, which
        // would end it in the option.
        symlink(newer, "/run/newer")?;
        mount_on("overlay", "/usr", Some("lowerdir=/run/newer:/usr"))?;
    }
    Command::new("ip").args(["link", "set", "lo", "up"]).run()?;
    // The node lasts as long as this process.
    let images: &Images = Box::leak(Box::new(Images::new()?));
    let servers = Arc::new(Servers::start(Path::new(NODE))?);
    let mut networks = vec![init::network()];
    networks.extend(documentation::networks());
    networks.extend(cni::networks(&servers));
    networks.extend(own_users::networks());
    let node: &Node = Box::leak(Box::new(Node::start(&Setup {
        folder: NODE.into(),
        cgroup: &inside.cgroup,
        bridge: &BRIDGE,
        networks: &networks,
        plugins: &[folder.join(cni::PLUGIN)],
        images: images.all(),
        image_folder: folder,
    })?));
    if inside.holds() {
        let _pod = Pod::start(node, init::NETWORK, &Meta::default())?;
        confined::hold();
    }
    let world = World::new(node, images, init::NETWORK)?;
    if inside.words == [pods::WAITS] {
        return Ok(std::fs::write(folder.join("waits.md"), nri::waits(&world, folder)?)?);
    }
    let mut scenarios = init::scenarios();
    scenarios.push(documentation::scenario(folder));
    scenarios.extend(cni::scenarios(&servers));
    scenarios.push(agent::scenario(folder));
    if is_newer {
        scenarios.extend(own_users::scenarios());
        scenarios.extend(nri::scenarios(folder));
    } else {
        println!(
            "not tried: pods with users of their own, and NRI, which take a newer containerd: cargo xtask pods --newer"
        );
    }
    lab::scenario::run_all("pods'", &scenarios, &inside.words, |scenario| {
        scenario::with_living_shims(&scenario.name, || scenario.try_in(&world))
    })
}
