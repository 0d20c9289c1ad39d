//! What a pod waits for, from RunPodSandbox to the first byte of its application, by each way to its rules:
//! `cargo xtask bench --pods`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use lab::cgroups::hierarchies;
use lab::chart::{self, Row};
use lab::linkerd::CHART_ARGUMENTS;
use lab::network::{Reached, connect_from_here};
use lab::samples::{Samples, time};
use lab::scenario::each;
use lab::shell::Result;
use nix::time::{ClockId, clock_gettime};

use crate::agent::validated;
use crate::mesh::init;
use crate::nri::{BY_CNI, BY_NRI, Host};
use crate::pod::{Container, Pod};

/// How many pods start at once, and how often.
const TURNS: [(usize, usize); 2] = [(1, 60), (60, 3)];
const PROXY: &str = "4143";
const APP: &str = "8080";

/// What gives a pod its rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Nothing,
    /// linkerd-init's commands for these families, by a shell.
    Commands(&'static str),
    ProxyInit,
    Plugin,
    Nri,
}

#[derive(Debug)]
struct Way {
    name: &'static str,
    by: By,
    /// Whether a validator comes before the application.
    is_validated: bool,
}

const fn way(name: &'static str, by: By, is_validated: bool) -> Way {
    Way { name, by, is_validated }
}

const WAYS: [Way; 8] = [
    way("no mesh", By::Nothing, false),
    way("init container: linkerd-init's 24 commands", By::Commands("/24.sh"), false),
    way("init container: its 12, for IPv4 alone", By::Commands("/12.sh"), false),
    way("init container: proxy-init", By::ProxyInit, false),
    way("CNI: linkerd-cni", By::Plugin, false),
    way("CNI: linkerd-cni, and a validator", By::Plugin, true),
    way("NRI: linkerd-cni-agent", By::Nri, false),
    way("NRI: linkerd-cni-agent, and a validator", By::Nri, true),
];

/// The table, and the chart of pods that start alone.
pub(crate) fn measure(host: &Host<'_>, folder: &Path) -> Result<String> {
    let [alone, at_once] = TURNS.map(|(pods, turns)| turns_of(host, pods, turns));
    let (alone, at_once) = (alone?, at_once?);
    let mut text = String::from(
        "| | alone: p50 | p99 | processor | 60 at once: p50 | p99 | processor |\n|---|--:|--:|--:|--:|--:|--:|\n",
    );
    for (alone, at_once) in alone.iter().zip(&at_once) {
        let _ = write!(text, "| {} |", alone.0.name);
        for (samples, processor) in [alone, at_once] {
            let [p50, p99] = [50, 99].map(|percent| time(samples.percentile(percent)));
            let _ = write!(text, " {p50} | {p99} | {} |", time(*processor));
        }
        text.push('\n');
    }
    let rows = WAYS.iter().zip(&alone).map(|(way, (samples, _))| Row {
        name: way.name.to_owned(),
        is_ours: matches!(way.by, By::ProxyInit | By::Plugin | By::Nri),
        microseconds: samples.p50(),
        after: String::new(),
    });
    let rows: Vec<Row> = rows.collect();
    let subtitle = "Median from RunPodSandbox to the first byte, of pods that start alone; containerd, without kubelet";
    let chart = chart::bars("What a pod waits for", subtitle, "others", &rows);
    fs::write(folder.join("waits.svg"), chart)?;
    Ok(text)
}

/// How long pods wait by each way, and the processor time of one, in microseconds. The ways take turns, in another order each
/// round.
fn turns_of(host: &Host<'_>, at_once: usize, turns: usize) -> Result<Vec<(Samples, f64)>> {
    let mut all = WAYS.map(|_| (Vec::new(), 0.0));
    for turn in 0..turns {
        for (number, way) in WAYS.iter().enumerate().cycle().skip(turn).take(WAYS.len()) {
            let (waits, processor) = pods(host, way, at_once)?;
            if let Some(known) = all.get_mut(number) {
                known.0.extend(waits);
                known.1 += processor / turns as f64;
            }
        }
    }
    let named = WAYS.iter().zip(all);
    Ok(named.map(|(way, (waits, processor))| (Samples::new(way.name, waits), processor)).collect())
}

/// So many pods at once: how long each waited, and the processor time of one, in microseconds.
fn pods(host: &Host<'_>, way: &Way, at_once: usize) -> Result<(Vec<f64>, f64)> {
    let agent = (way.by == By::Nri).then(|| host.agent("nft")).transpose()?;
    // What the last ones have left to be done.
    sleep(Duration::from_millis(200));
    let cgroup = &host.world.node.cgroup;
    let before = used(cgroup)?;
    let started = each(at_once, &vec![(); at_once], |()| start(host, way).map_err(|error| error.to_string()));
    let took = (used(cgroup)? - before) / at_once as f64;
    let mut waits = Vec::new();
    for outcome in started {
        let (pod, waited) = outcome.map_err(|error| format!("{}: {error}", way.name))?;
        pod.remove()?;
        waits.push(waited.as_secs_f64() * 1e6);
    }
    drop(agent);
    Ok((waits, took))
}

/// Starts a pod: its sandbox, its init containers one after another, and a container that stands for the proxy, or without
/// a mesh for the application.
fn start<'a>(host: &'a Host<'_>, way: &Way) -> Result<(Pod<'a>, Duration)> {
    let images = host.world.images;
    let begun = Instant::now();
    let pod = match way.by {
        By::Plugin => host.meshed(BY_CNI)?,
        By::Nri => host.meshed(BY_NRI)?,
        By::Nothing | By::Commands(_) | By::ProxyInit => host.annotated(BY_NRI, &[])?,
    };
    match way.by {
        By::Commands(script) => {
            let container = Container {
                command: &["/bin/dash", script],
                user: Some(0),
                limits: None,
                ..init(images.commands(), &[])
            };
            pod.run(&container)?.succeeded()?;
        }
        By::ProxyInit => {
            let container = Container { limits: None, ..init(images.scratch(), &CHART_ARGUMENTS) };
            pod.run(&container)?.succeeded()?;
        }
        By::Nothing | By::Plugin | By::Nri => {}
    }
    if way.is_validated && validated(&host.world, &pod)? != 0 {
        return Err("the validator finds no rules".into());
    }
    let listens_on = if way.by == By::Nothing { APP } else { PROXY };
    pod.start_container(&Container { args: &["serve", listens_on], ..Container::new("app", images.peer()) })?;
    let address = *pod.addresses.first().ok_or("the pod has no address")?;
    let to = (address, APP.parse()?).into();
    loop {
        match connect_from_here(to) {
            Reached::Server { port, .. } if port.to_string() == listens_on => return Ok((pod, begun.elapsed())),
            Reached::Server { port, .. } => return Err(format!("port {port} answers").into()),
            Reached::Refused if begun.elapsed() > Duration::from_secs(60) => return Err("nobody answers".into()),
            Reached::Refused => sleep(Duration::from_millis(1)),
        }
    }
}

/// Has what this process starts from now on counted, beside the node's containers.
pub(crate) fn join(cgroup: &str) -> Result<()> {
    for hierarchy in hierarchies() {
        let cgroup = hierarchy.join(cgroup).join("runtime");
        if hierarchy.join("cpuacct.usage").exists() || hierarchy.join("cgroup.controllers").exists() {
            fs::create_dir_all(&cgroup)?;
            fs::write(cgroup.join("cgroup.procs"), "0")?;
        }
    }
    Ok(())
}

/// The processor time, in microseconds, of containerd, all that it starts, the agent and the containers, but not of the
/// client, which is this process.
fn used(cgroup: &str) -> Result<f64> {
    let own = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?;
    let own = own.tv_sec() as f64 * 1e6 + own.tv_nsec() as f64 / 1e3;
    for hierarchy in hierarchies() {
        let cgroup = hierarchy.join(cgroup);
        if let Ok(nanoseconds) = fs::read_to_string(cgroup.join("cpuacct.usage")) {
            return Ok(nanoseconds.trim().parse::<f64>()? / 1e3 - own);
        }
        let stat = fs::read_to_string(cgroup.join("cpu.stat")).unwrap_or_default();
        if let Some(microseconds) = stat.lines().find_map(|line| line.strip_prefix("usage_usec ")) {
            return Ok(microseconds.parse::<f64>()? - own);
        }
    }
    Err("no hierarchy of cgroups counts processor time".into())
}
