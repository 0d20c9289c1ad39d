//! Many pods at once, as when a node starts.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use lab::network::Namespace;
use lab::samples::{Samples, time};

use crate::contenders::{Rules, linkerd_init, linkerds, ours, proxy_init};
use crate::group::Contender;
use crate::interrupt;
use crate::result::Result;
use crate::tools::{LIBC, Sample, Tools};

/// How many pods start in one storm, and how many at a time.
pub(crate) const PODS: usize = 100;
const AT_ONCE: [usize; 2] = [2, 16];
const MODES: [&str; 2] = ["nft", "legacy"];

/// The program that does nothing, which the others are compared with.
const EMPTY: &str = "an empty static C program";

/// One contender's storms.
#[derive(Debug)]
pub(crate) struct Storm {
    pub(crate) name: String,
    pub(crate) at_once: usize,
    /// From the first pod's start to the last one's end, each storm divided by its pods.
    pub(crate) wall: Samples,
    /// Of each pod's commands.
    processor: f64,
    /// Each pod by itself.
    single: Samples,
    /// Of the largest command, in KiB.
    memory: u64,
}

/// The measured storms, and those that could not be measured.
#[derive(Debug)]
pub(crate) struct Storms {
    pub(crate) storms: Vec<Storm>,
    pub(crate) left_out: Vec<String>,
    rounds: usize,
}

/// Every mode and linkerd-init's commands; each round a storm of each, one after another.
///
/// # Errors
/// A run fails that succeeded before, or the user has interrupted.
pub(crate) fn measure(rules: &Rules, tools: &Tools, rounds: usize) -> Result<Storms> {
    let mut left_out = Vec::new();
    let mut contenders = vec![Contender::new(format!("{EMPTY}, {LIBC}"), [tools.empty()?])];
    let mut add = |name: String, contender: Result<Contender>| match contender {
        Ok(contender) => contenders.push(contender),
        Err(reason) => left_out.push(format!("{name}: {reason}")),
    };
    for mode in MODES {
        add(ours(mode), proxy_init(rules, tools, mode));
        add(linkerds(rules, mode), linkerd_init(rules, tools, mode));
    }
    contenders.retain(|contender| match contender.try_out(tools) {
        Ok(()) => true,
        Err(reason) => {
            left_out.push(format!("{}: {reason}", contender.name));
            false
        }
    });
    let kinds: Vec<(&Contender, usize)> =
        contenders.iter().flat_map(|contender| AT_ONCE.map(|at_once| (contender, at_once))).collect();
    let mut results: Vec<(Vec<f64>, Vec<Sample>)> = kinds.iter().map(|_| Default::default()).collect();
    for _ in 0..rounds {
        for ((contender, at_once), (walls, samples)) in kinds.iter().zip(&mut results) {
            let (wall, pods) = storm(tools, contender, *at_once)?;
            walls.push(wall / PODS as f64);
            samples.extend(pods);
        }
    }
    let storms = kinds.iter().zip(results).map(|((contender, at_once), (walls, samples))| Storm {
        name: contender.name.clone(),
        at_once: *at_once,
        wall: Samples::new("", walls),
        processor: samples.iter().map(|sample| sample.processor).sum::<f64>() / samples.len() as f64,
        single: Samples::new("", samples.iter().map(|sample| sample.wall).collect()),
        memory: samples.iter().map(|sample| sample.memory).max().unwrap_or(0),
    });
    Ok(Storms { storms: storms.collect(), left_out, rounds })
}

/// Returns how long all took, in microseconds, and what each took.
fn storm(tools: &Tools, contender: &Contender, at_once: usize) -> Result<(f64, Vec<Sample>)> {
    let namespaces: std::io::Result<Vec<Namespace>> = (0..PODS).map(|_| Namespace::untouched()).collect();
    let namespaces = namespaces?;
    let next = AtomicUsize::new(0);
    let worker = |number: usize| -> Result<Vec<Sample>> {
        let mut samples = Vec::new();
        while let Some(namespace) = namespaces.get(next.fetch_add(1, Ordering::Relaxed)) {
            interrupt::check()?;
            // A pod has a lock of its own; pods of one worker run one after another.
            samples.push(namespace.run_here(|| tools.launch(None, number, contender.timed()))?);
        }
        Ok(samples)
    };
    let start = Instant::now();
    let results: Vec<Result<Vec<Sample>>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..at_once).map(|number| scope.spawn(move || worker(number))).collect();
        let join = |worker: thread::ScopedJoinHandle<'_, _>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().map(join).collect()
    });
    let wall = start.elapsed().as_secs_f64() * 1e6;
    let samples: Result<Vec<Vec<Sample>>> = results.into_iter().collect();
    let samples = samples.map_err(|error| format!("{}: {error}", contender.name))?;
    Ok((wall, samples.concat()))
}

impl Storms {
    /// A row each.
    pub(crate) fn table(&self) -> String {
        let mut text = format!(
            "{PODS} pods that start {} at a time ({} each): how long each takes of the whole, its processor time, how long \
             one in a hundred waits, and its memory.\n\n\
             | | at once | per pod | processor | p99 | memory |\n\
             |---|--:|--:|--:|--:|--:|\n",
            AT_ONCE.map(|at_once| at_once.to_string()).join(" or "),
            match self.rounds {
                1 => "one storm".to_owned(),
                rounds => format!("the median of {rounds} storms"),
            }
        );
        for storm in &self.storms {
            text += &format!(
                "| {} | {} | {} | {} | {} | {:.1} MiB |\n",
                storm.name,
                storm.at_once,
                time(storm.wall.p50()),
                time(storm.processor),
                time(storm.single.percentile(99)),
                storm.memory as f64 / 1024.0
            );
        }
        text
    }
}
