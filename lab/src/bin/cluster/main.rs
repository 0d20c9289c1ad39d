//! What `cargo xtask cluster` runs, in network, mount and process namespaces of its own: a cluster of one node with a
//! real API server, kubelet and container runtime, and scenarios on it, which kubectl starts and looks at.
//!
//! `cluster FOLDER CGROUP [WORD...]`: the folder that `cargo xtask cluster` has filled, the cgroup for all containers,
//! and words that the names of scenarios must have. With `--hold` as the only word it starts the cluster and waits to
//! be killed.
//!
//! A new scenario is an entry in a list such as `init::scenarios`: a name, and a function that gets the cluster and a
//! namespace of Kubernetes' for its pods.

mod cni;
mod documentation;
mod images;
mod init;
mod keys;
mod kubectl;
mod machine;
mod plugin;
mod pod;
mod rollout;
mod scale;
mod services;
mod world;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use lab::shell::Result;
use nix::sys::wait::{WaitStatus, wait};
use nix::unistd::Pid;

use services::Cluster;
use world::World;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, cgroup, words @ ..] = arguments.as_slice() else {
        eprintln!("cargo xtask cluster runs this");
        return ExitCode::FAILURE;
    };
    let outcome = if Pid::this().as_raw() == 1 {
        first_process(&arguments)
    } else {
        run(Path::new(folder), cgroup, words).map(|()| 0)
    };
    match outcome {
        Ok(code) => code.into(),
        Err(error) => {
            eprintln!("cluster: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The first process of a process namespace inherits those whose parents have ended, such as containers' shims, and has
/// to wait for their ends. It ends with the one that does the work.
fn first_process(arguments: &[String]) -> Result<u8> {
    let worker = Command::new(std::env::current_exe()?).args(arguments).spawn()?;
    let worker = Pid::from_raw(worker.id().try_into()?);
    loop {
        match wait()? {
            WaitStatus::Exited(ended, code) if ended == worker => return Ok(code.try_into()?),
            WaitStatus::Signaled(ended, signal, _) if ended == worker => return Err(signal.as_str().into()),
            _ => {}
        }
    }
}

fn run(folder: &Path, cgroup: &str, words: &[String]) -> Result<()> {
    let begun = Instant::now();
    machine::prepare(cgroup)?;
    let cluster = Cluster::start(folder, cgroup)?;
    println!("Ready after {:.0} s", begun.elapsed().as_secs_f64());
    if words == ["--hold"] {
        println!("holding");
        loop {
            std::thread::park();
        }
    }
    if words == ["--keep"] {
        println!("{}", cluster.how_to_reach());
        loop {
            std::thread::park();
        }
    }
    let world = World::new(&cluster)?;
    let mut scenarios = init::scenarios();
    scenarios.extend(documentation::scenarios(folder));
    scenarios.extend(cni::scenarios());
    scenarios.extend(plugin::scenarios());
    scenarios.extend(rollout::scenarios());
    if words.iter().any(|word| word == scale::WORD) {
        scenarios.extend(scale::scenarios());
    }
    let outcome = lab::scenario::run_all(
        "the cluster's",
        &scenarios,
        words,
        |scenario| &scenario.name,
        |scenario| world.try_scenario(scenario),
    );
    if outcome.is_err() {
        cluster.keep_logs(&folder.join("logs"))?;
    }
    outcome
}
