//! What init containers cost under kubelet, of which docs/benchmarks.md has the table.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use lab::samples::{self, Samples};
use lab::shell::Result;
use serde_json::{Value, json};

use crate::images;
use crate::services::PATIENCE;
use crate::world::{Scenario, World};

/// The word by which it is asked for: it measures for minutes, and is no test.
pub(crate) const WORD: &str = "kubelet";

/// How often a pod of each kind is made.
const TURNS: u32 = 25;
/// How many init containers the kinds have.
const MOST: u32 = 3;

pub(crate) fn scenarios() -> Vec<Scenario> {
    vec![Scenario::new(format!("{WORD}: pods with 0 to {MOST} init containers"), measure).alone()]
}

fn measure(world: &World<'_>) -> Result<String> {
    let namespace = world.namespace.as_str();
    let kubectl = &world.cluster.kubectl;
    let line = r#"{.metadata.name} {.status.conditions[?(@.type=="Ready")].status}{"\n"}"#;
    let output = format!("--output=jsonpath={line}");
    let mut watch = kubectl.start(&["get", "pods", "--namespace", namespace, "--watch", &output])?;
    let stdout = watch.stdout.take().ok_or("kubectl has no stdout")?;
    let (sender, events) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(std::result::Result::ok) {
            // Nobody asks any more after the last pod.
            let _ = sender.send((Instant::now(), line));
        }
    });
    let mut waits: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for turn in 0..TURNS {
        for init in (0..=MOST).map(|place| (place + turn) % (MOST + 1)) {
            // kubelet looks at its containers once a second, and so a pod begins at another part of that second each turn.
            // Until then, nothing is left of the last pod.
            sleep(Duration::from_secs(3) + Duration::from_secs(1) * turn / TURNS);
            let name = format!("web-{turn}-{init}");
            kubectl.create(namespace, &pod(&name, init))?;
            let created = when(&events, &name)?;
            let ready = when(&events, &format!("{name} True"))?;
            waits.entry(init).or_default().push(ready.duration_since(created).as_secs_f64() * 1e6);
            kubectl.run(&["delete", "pod", "--namespace", namespace, &name])?;
        }
    }
    watch.kill()?;
    watch.wait()?;
    let all = waits
        .into_iter()
        .map(|(init, waits)| Samples::new(format!("init containers: {init}"), waits))
        .collect::<Vec<_>>();
    let first = all.first().ok_or("nothing was measured")?.p50();
    println!("{}", samples::table(all.iter().map(|samples| (samples, first))));
    Ok("measured".to_owned())
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

/// A pod whose init containers end at once.
fn pod(name: &str, init: u32) -> Value {
    let container = |number| json!({"name": format!("init-{number}"), "image": images::CLIENT, "args": ["connect"]});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "terminationGracePeriodSeconds": 0,
        "initContainers": (0..init).map(container).collect::<Vec<_>>(),
        "containers": [{"name": "app", "image": images::APP}],
    }})
}
