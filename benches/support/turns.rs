//! Benchmarks that are compared.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, SamplingMode};

use crate::support::RUNS;

/// A name, and a run of it that times itself.
pub(crate) type Contender<'a> = (String, Box<dyn Fn() -> Duration + 'a>);

/// Contenders whose runs take turns, so that whatever else the machine does hits all alike, and a ratio is of runs side
/// by side. criterion then takes the times of those runs for its samples.
pub(crate) fn in_turns(group: &mut BenchmarkGroup<'_, WallTime>, contenders: &[Contender<'_>]) {
    group.sampling_mode(SamplingMode::Flat);
    let arguments: Vec<String> = std::env::args().collect();
    let asked = arguments.iter().skip_while(|argument| *argument != "--sample-size").nth(1);
    // Without --bench, criterion tries each once: a test that it works.
    let rounds = match asked.and_then(|number| number.parse().ok()) {
        _ if !arguments.iter().any(|argument| argument == "--bench") => 1,
        Some(number) => number,
        None => RUNS,
    };
    let mut times: Vec<Vec<Duration>> = vec![Vec::new(); contenders.len()];
    let random = RandomState::new();
    for round in 0..rounds {
        // Each round in another order: what ran before, and what it left in the caches, differs too.
        let mut order: Vec<usize> = (0..contenders.len()).collect();
        order.sort_by_cached_key(|contender| random.hash_one((round, contender)));
        for contender in order {
            times[contender].push(contenders[contender].1());
        }
    }
    for (times, (name, _)) in times.iter().zip(contenders) {
        let mut times = times.iter().cycle();
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|runs| times.by_ref().take(usize::try_from(runs).unwrap()).sum());
        });
    }
}
