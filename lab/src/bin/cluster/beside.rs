//! What the node's agent takes of a node beside what Linkerd's installer and repair controller take, of which docs/node.md has
//! the table. Each is a process on the node, with the environment that its pod has, and alone there with its plugin.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use lab::cluster::UPSTREAM;
use lab::linkerd;
use lab::shell::Result;
use serde_json::json;

use crate::machine::{NETWORKS, PLUGINS};
use crate::scale::{self, memory, processor_time, write_account};
use crate::services::{NETWORK, wait_for};
use crate::world::{Scenario, World};

/// How long they are left alone to be measured, and before that.
const QUIET: Duration = Duration::from_secs(60);
const SETTLED: Duration = Duration::from_secs(20);

/// Where programs in pods look for their account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// A program of an image's: what it is called in the table, its file in the image, and its arguments.
type Program = (&'static str, &'static str, &'static [&'static str]);

const AGENT: &str = "usr/lib/linkerd/linkerd-cni-agent";
const INSTALLER: &str = "usr/bin/linkerd2-cni-install";
const CONTROLLER: &str = "usr/lib/linkerd/linkerd-cni-repair-controller";
const ADMIN: &[&str] = &["--admin-addr", "127.0.0.1:9990"];

/// The agent, and Linkerd's two, each with its image.
const ALL: [(&str, &[Program]); 2] = [
    ("cni", &[("linkerd-cni-agent", AGENT, ADMIN)]),
    (UPSTREAM, &[("Linkerd's installer", INSTALLER, &[]), ("Linkerd's repair controller", CONTROLLER, ADMIN)]),
];

pub(crate) fn scenario() -> Scenario {
    let name = format!("{}: beside Linkerd's installer and repair controller", scale::WORD);
    Scenario::new(name, measure).alone()
}

fn measure(world: &World<'_>) -> Result<String> {
    let namespace = world.namespace.as_str();
    let account = format!("--serviceaccount={namespace}:default");
    let role = "--clusterrole=cluster-admin";
    world.cluster.kubectl.run(&["create", "clusterrolebinding", namespace, role, &account])?;
    write_account(world, namespace, "default", ACCOUNT)?;
    let before = fs::read(NETWORK)?;
    let mut pods = 0;
    let mut rows = String::new();
    for (image, programs) in ALL {
        let started = programs.iter().map(|program| start(world, image, program));
        let running = Running(started.collect::<Result<_>>()?);
        wait_for("the plugin", || fs::read_to_string(NETWORK).is_ok_and(|list| list.contains("linkerd-cni")))?;
        sleep(SETTLED);
        let idle = running.taken()?;
        pods = scale::fill(world)?;
        sleep(SETTLED);
        let full = running.taken()?;
        let most = running.0.iter().map(|child| mebibytes(child.id(), "VmHWM:")).collect::<Result<Vec<_>>>()?;
        scale::empty(world)?;
        drop(running);
        // The next one finds the node as the first one did.
        fs::write(NETWORK, &before)?;
        fs::remove_file(Path::new(PLUGINS).join("linkerd-cni"))?;
        for ((((name, ..), idle), full), most) in programs.iter().zip(idle).zip(full).zip(most) {
            let _ = writeln!(rows, "| {name} | {idle} | {full} | {most} |");
        }
    }
    println!(
        "| | without pods: memory | processor time a minute | with {pods}: memory | processor time a minute | memory, at most |\n\
         |---|--:|--:|--:|--:|--:|\n{rows}"
    );
    Ok("measured".to_owned())
}

fn start(world: &World<'_>, image: &str, (_, file, arguments): &Program) -> Result<Child> {
    let of_image = |path: &str| world.cluster.file_of_image(&format!("{image}/{path}"));
    let entry = json!({
        "name": "linkerd-cni", "type": "linkerd-cni", "log_level": "info",
        "kubernetes": {"kubeconfig": "__KUBECONFIG_FILEPATH__"}, "linkerd": linkerd::cni_section("api"),
    });
    let mut program = Command::new(of_image(file));
    program
        .arg0(format!("/{file}"))
        .args(*arguments)
        .env_clear()
        .env("CONTAINER_MOUNT_PREFIX", "/")
        .env("CONTAINER_CNI_BIN_DIR", of_image("opt/cni/bin"))
        .env("DEST_CNI_BIN_DIR", PLUGINS)
        .env("DEST_CNI_NET_DIR", NETWORKS)
        .env("CNI_NETWORK_CONFIG", entry.to_string())
        .env("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        .env("KUBERNETES_SERVICE_PORT", "443")
        .env("LINKERD_CNI_REPAIR_CONTROLLER_NODE_NAME", "node")
        .env("LINKERD_CNI_REPAIR_CONTROLLER_POD_NAME", "linkerd-cni")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Ok(program.spawn()?)
}

/// Programs that run at the same time, killed in the end.
struct Running(Vec<Child>);

impl Drop for Running {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Running {
    /// Leaves them alone, and says of each how much memory it has and how much processor time it took meanwhile.
    fn taken(&self) -> Result<Vec<String>> {
        let times = || self.0.iter().map(|child| processor_time(child.id())).collect::<Result<Vec<_>>>();
        let before = times()?;
        sleep(QUIET);
        let after = times()?;
        let mut taken = Vec::new();
        for ((child, before), after) in self.0.iter().zip(before).zip(after) {
            let a_minute = (after - before) * 60.0 / QUIET.as_secs_f64();
            taken.push(format!("{} | {:.1} ms", mebibytes(child.id(), "VmRSS:")?, a_minute * 1000.0));
        }
        Ok(taken)
    }
}

fn mebibytes(process: u32, key: &str) -> Result<String> {
    let tenths = memory(process, key)? * 10 / 1024;
    Ok(format!("{}.{} MiB", tenths / 10, tenths % 10))
}
