//! The program of `cargo xtask pods`, in network, mount and process namespaces of its own: a node with a real container
//! runtime, and scenarios on it. Its words are those that the names of scenarios must have.
//!
//! A new scenario is an entry in a list such as `init::scenarios`: a name, and a function.

mod cni;
mod cri;
mod init;
mod node;
mod nri;
mod pod;

use std::process::ExitCode;

use lab::confined::{self, Inside};
use lab::manifests::neighbour;
use lab::services::Services;
use lab::shell::Result;
use lab::{machine, scenario};

use node::{BRIDGE, Node};
use pod::Pod;

/// The world of all scenarios.
struct World {
    node: &'static Node,
    /// A pod without a mesh, which listens on ports 8080 and 4567.
    neighbour: Pod,
}

type Scenario = scenario::Scenario<World>;

fn main() -> ExitCode {
    confined::main(run)
}

fn run(inside: &Inside) -> Result<()> {
    machine::prepare(&inside.folder, &inside.cgroup)?;
    // These last as long as this process.
    let services = Box::leak(Box::new(Services::new(&inside.folder)));
    let outcome = try_all(inside, services);
    if outcome.is_err() {
        services.keep_logs()?;
    }
    outcome
}

fn try_all(inside: &Inside, services: &'static Services) -> Result<()> {
    let node: &'static Node = Box::leak(Box::new(Node::start(inside, services)?));
    let neighbour = Pod::start(node, BRIDGE, &neighbour())?;
    neighbour.start_containers()?;
    inside.hold_if_asked();
    let world = World { node, neighbour };
    let mut scenarios = init::scenarios();
    scenarios.extend(cni::scenarios());
    scenarios.extend(nri::scenarios());
    scenario::run_all("pods'", &scenarios, &inside.words, |scenario| scenario.try_in(&world))
}
