//! Measures a pod's start under kubelet by each way to its rules, for docs/benchmarks.md.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use lab::images;
use lab::manifests::{self, injected, validated};
use lab::samples::{self, Samples};
use lab::shell::Result;
use lab::wait::PATIENCE;
use serde_json::Value;

use crate::cni::{self, BASE, NRI};
use crate::rollout::linkerd_init;
use crate::world::{Scenario, World};

/// The word by which it is asked for: it measures for minutes, and is no test.
pub(crate) const WORD: &str = "kubelet";

/// The number of pods of each kind that are made.
const TURNS: u32 = 25;

/// The first is what the others are compared with.
const NONE: &str = "no mesh";

pub(crate) fn scenarios() -> Vec<Scenario> {
    vec![Scenario::new(format!("{WORD}: what a pod waits for by each way to its rules"), measure).alone()]
}

/// A pod's name in the table, and what makes it of a name.
type Kind = (&'static str, fn(&str) -> Value);

fn measure(world: &World<'_>) -> Result<String> {
    let kinds: [Kind; 5] = [
        (NONE, manifests::plain),
        ("init container: linkerd-init's commands", |name| manifests::meshed(name, &linkerd_init())),
        ("init container: proxy-init", |name| manifests::meshed(name, &manifests::init(images::PROXY_INIT, &[]))),
        ("CNI", injected),
        ("CNI, and a validator", validated),
    ];
    let by_nri: [Kind; 2] = [("NRI", injected), ("NRI, and a validator", validated)];
    let mut waits = BTreeMap::new();
    for (way, kinds) in [(BASE, &kinds[..]), (NRI, &by_nri[..])] {
        cni::with_agent(world, way, &[], |world, agent| {
            agent.install()?;
            measure_kinds(world, kinds, &mut waits)?;
            agent.uninstall()?;
            Ok(String::new())
        })?;
    }
    let names = kinds.iter().chain(&by_nri).map(|(name, _)| *name);
    let all: Vec<_> = names.map(|name| Samples::new(name, waits.get(name).cloned().unwrap_or_default())).collect();
    let first = all.first().map_or(f64::NAN, Samples::p50);
    println!("{}", samples::table(all.iter().map(|samples| (samples, first))));
    Ok("measured".to_owned())
}

/// From a pod's creation to its condition Ready, in microseconds, of pods of these kinds in turns.
fn measure_kinds(world: &World<'_>, kinds: &[Kind], waits: &mut BTreeMap<&'static str, Vec<f64>>) -> Result<()> {
    let line = r#"{.metadata.name} {.status.conditions[?(@.type=="Ready")].status}{"\n"}"#;
    let output = format!("--output=jsonpath={line}");
    let arguments = ["--namespace", &world.space.name, "get", "pods", "--watch", &output];
    let mut watch = world.kubectl().start(&arguments)?;
    let stdout = watch.stdout.take().ok_or("kubectl has no stdout")?;
    let (sender, events) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(std::result::Result::ok) {
            // Nobody asks any more after the last pod.
            let _ = sender.send((Instant::now(), line));
        }
    });
    for turn in 0..TURNS {
        for (number, (kind, make)) in kinds.iter().enumerate() {
            // kubelet looks at its containers once a second, and so a pod begins at another part of that second each turn.
            // Until then, nothing is left of the last pod.
            sleep(Duration::from_secs(2) + Duration::from_secs(1) * turn / TURNS);
            let name = format!("web-{turn}-{number}");
            world.space.create(&make(&name))?;
            let created = when(&events, &name)?;
            let ready = when(&events, &format!("{name} True"))?;
            waits.entry(kind).or_default().push(ready.duration_since(created).as_secs_f64() * 1e6);
            world.space.delete(&["pod", &name])?;
        }
    }
    watch.kill()?;
    watch.wait()?;
    Ok(())
}

/// When the watch first told something that begins so.
fn when(events: &Receiver<(Instant, String)>, beginning: &str) -> Result<Instant> {
    loop {
        let (when, line) = events.recv_timeout(PATIENCE).map_err(|_| format!("no event says {beginning}"))?;
        if line.starts_with(beginning) {
            return Ok(when);
        }
    }
}
