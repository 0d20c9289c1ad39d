//! The program of `cargo xtask cluster`, in network, mount and process namespaces of its own: a cluster of one node with a
//! real API server, kubelet and container runtime, and scenarios on it, which kubectl starts and looks at. Its words are
//! those that the names of scenarios must have; with `--keep` as the only one it starts the cluster and says how to reach
//! it.
//!
//! A new scenario is an entry in a list such as `init::scenarios`: a name, and a function that gets the cluster and a
//! namespace of Kubernetes for its pods.

mod cni;
mod init;
mod keys;
mod kubectl;
mod kubelet;
mod moves;
mod plugin;
mod pod;
mod rollout;
mod services;
mod world;

use std::process::ExitCode;
use std::thread::park;
use std::time::Instant;

use lab::confined::{self, Inside};
use lab::machine;
use lab::shell::Result;

use services::Cluster;
use world::{make_neighbour, try_scenario};

fn main() -> ExitCode {
    confined::main(run)
}

fn run(inside: &Inside) -> Result<()> {
    let (folder, cgroup) = (inside.folder.as_path(), inside.cgroup.as_str());
    let begun = Instant::now();
    machine::prepare(folder, cgroup)?;
    // It lasts as long as this process.
    let cluster: &Cluster = Box::leak(Box::new(Cluster::start(folder, cgroup)?));
    println!("Ready after {:.0} s", begun.elapsed().as_secs_f64());
    inside.hold_if_asked();
    let words = &inside.words;
    if *words == ["--keep"] {
        println!("{}", cluster.how_to_reach());
        loop {
            park();
        }
    }
    let neighbour = make_neighbour(cluster)?;
    let mut scenarios = init::scenarios();
    scenarios.extend(cni::scenarios());
    scenarios.extend(moves::scenarios());
    scenarios.extend(plugin::scenarios());
    scenarios.extend(rollout::scenarios());
    if words.iter().any(|word| word == kubelet::WORD) {
        scenarios.extend(kubelet::scenarios());
    }
    let outcome = lab::scenario::run_all("the cluster's", &scenarios, words, |scenario| {
        try_scenario(cluster, &neighbour, scenario)
    });
    if outcome.is_err() {
        cluster.services.keep_logs()?;
    }
    outcome
}
