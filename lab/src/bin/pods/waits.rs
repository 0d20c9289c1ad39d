//! What a pod waits for, from RunPodSandbox to the first byte of its application, by each way to its rules:
//! `cargo xtask bench --pods`.

use std::fmt::Write as _;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use lab::api_double::{ApiServer, Pod as Object};
use lab::cgroups::hierarchies;
use lab::chart::{self, Row};
use lab::linkerd::CHART_ARGUMENTS;
use lab::network::{Reached, connect_from_here};
use lab::pods::{UPSTREAM_INIT, UPSTREAM_PLUGIN};
use lab::samples::{Samples, time};
use lab::scenario::each;
use lab::shell::Result;
use nix::time::{ClockId, clock_gettime};
use serde_json::json;

use crate::agent::validated;
use crate::cni::entry;
use crate::mesh::init;
use crate::node::Network;
use crate::nri::{BY_CNI, BY_NRI, Host, NAME, NAMESPACE};
use crate::pod::{Container, Pod};

/// How many pods start at once, and how often.
const TURNS: [(usize, usize); 2] = [(1, 40), (60, 1)];
const PROXY: &str = "4143";
const APP: &str = "8080";

/// The networks by an API server: of our plugin, and of Linkerd's, for both families and for IPv4 alone.
const BY_API: &str = "api";
const BY_LINKERDS: &str = "linkerds";
const BY_LINKERDS_IPV4: &str = "linkerds-ipv4";

/// What gives a pod its rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Nothing,
    /// linkerd-init's commands for these families, by a shell.
    Commands(&'static str),
    /// linkerd-init itself, with this besides the chart's arguments.
    LinkerdInit(&'static str),
    ProxyInit,
    /// Linkerd's plugin, on this network.
    LinkerdsPlugin(&'static str),
    /// Ours.
    Plugin(&'static str),
    Nri,
}

#[derive(Debug)]
struct Way {
    name: &'static str,
    by: By,
    /// Whether a validator comes before the application.
    is_validated: bool,
}

/// With Linkerd's own programs, if there are such.
fn measured_ways(has_upstream: bool) -> Vec<Way> {
    let way = |name, by| Way { name, by, is_validated: false };
    let validated = |name, by| Way { name, by, is_validated: true };
    let mut ways = vec![way("no mesh", By::Nothing)];
    if has_upstream {
        ways.extend([
            way("init container: linkerd-init", By::LinkerdInit("--ipv6=true")),
            way("init container: linkerd-init, IPv4 alone", By::LinkerdInit("--ipv6=false")),
        ]);
    } else {
        ways.extend([
            way("init container: linkerd-init's 24 commands", By::Commands("/24.sh")),
            way("init container: its 12, for IPv4 alone", By::Commands("/12.sh")),
        ]);
    }
    ways.push(way("init container: proxy-init", By::ProxyInit));
    if has_upstream {
        ways.extend([
            way("CNI: Linkerd's plugin", By::LinkerdsPlugin(BY_LINKERDS)),
            way("CNI: Linkerd's plugin, IPv4 alone", By::LinkerdsPlugin(BY_LINKERDS_IPV4)),
            validated("CNI: the same, and a validator", By::LinkerdsPlugin(BY_LINKERDS_IPV4)),
        ]);
    }
    ways.extend([
        way("CNI: linkerd-cni", By::Plugin(BY_CNI)),
        way("CNI: linkerd-cni, by the API server", By::Plugin(BY_API)),
        validated("CNI: linkerd-cni, and a validator", By::Plugin(BY_CNI)),
        way("NRI: linkerd-cni-agent", By::Nri),
        validated("NRI: linkerd-cni-agent, and a validator", By::Nri),
    ]);
    ways
}

/// The API server that plugins ask. It has every pod, and is this process, whose time isn't counted.
pub(crate) fn api_server() -> Result<ApiServer> {
    let server = ApiServer::start(TcpListener::bind("127.0.0.1:0")?);
    server.add_pod(NAMESPACE, NAME, &Object { containers: &["app", "linkerd-proxy"], ..Object::default() });
    Ok(server)
}

/// The networks whose plugins ask an API server.
pub(crate) fn networks(kubeconfig: &Path) -> Vec<Network> {
    let ours = entry(kubeconfig, "api");
    let mut both = ours.clone();
    both["type"] = json!(UPSTREAM_PLUGIN);
    // As its chart has it. It says every command that it runs.
    both["log_level"] = json!("info");
    let mut ipv4 = both.clone();
    ipv4["linkerd"]["ipv6"] = json!(false);
    let networks = [(BY_API, ours), (BY_LINKERDS, both), (BY_LINKERDS_IPV4, ipv4)];
    networks.map(|(name, entry)| Network { chained: vec![entry], ..Network::new(name) }).into()
}

/// The table, and the chart of pods that start alone.
pub(crate) fn measure(host: &Host<'_>, folder: &Path) -> Result<String> {
    let ways = measured_ways(host.has_upstream());
    let [alone, at_once] = TURNS.map(|(pods, turns)| turns_of(host, &ways, pods, turns));
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
    let rows = ways.iter().zip(&alone).map(|(way, (samples, _))| Row {
        name: way.name.to_owned(),
        is_ours: matches!(way.by, By::ProxyInit | By::Plugin(_) | By::Nri),
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
fn turns_of(host: &Host<'_>, ways: &[Way], at_once: usize, turns: usize) -> Result<Vec<(Samples, f64)>> {
    let mut all = vec![(Vec::new(), 0.0); ways.len()];
    for turn in 0..turns {
        for (number, way) in ways.iter().enumerate().cycle().skip(turn).take(ways.len()) {
            let (waits, processor) = pods(host, way, at_once)?;
            if let Some(known) = all.get_mut(number) {
                known.0.extend(waits);
                known.1 += processor / turns as f64;
            }
        }
    }
    let named = ways.iter().zip(all);
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
        By::LinkerdsPlugin(network) | By::Plugin(network) => host.meshed(network)?,
        By::Nri => host.meshed(BY_NRI)?,
        By::Nothing | By::Commands(_) | By::LinkerdInit(_) | By::ProxyInit => host.annotated(BY_NRI, &[])?,
    };
    let commands = |command: &[&str], args: &[&str], user: u32| -> Result<()> {
        let container = init(images.commands(), args);
        pod.run(&Container { command, user: Some(user), limits: None, ..container })?.succeeded()?;
        Ok(())
    };
    match way.by {
        By::Commands(script) => commands(&["/bin/dash", script], &[], 0)?,
        By::LinkerdInit(families) => {
            let arguments = [&["--iptables-mode", "nft", families], &CHART_ARGUMENTS[..]].concat();
            commands(&[UPSTREAM_INIT], &arguments, 65534)?;
        }
        By::ProxyInit => {
            let container = Container { limits: None, ..init(images.scratch(), &CHART_ARGUMENTS) };
            pod.run(&container)?.succeeded()?;
        }
        By::Nothing | By::LinkerdsPlugin(_) | By::Plugin(_) | By::Nri => {}
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
