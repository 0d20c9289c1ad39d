//! Scenarios: several are tried at a time, and each is said with what became of it.

use std::sync::{Mutex, RwLock};
use std::thread;
use std::time::Instant;

use crate::shell::Result;

/// The words after `--only`, if there are any arguments.
pub fn only<'a>(arguments: &'a [String], usage: &str) -> Result<&'a [String]> {
    match arguments {
        [] => Ok(&[]),
        [flag, words @ ..] if flag == "--only" && !words.is_empty() => Ok(words),
        _ => Err(usage.into()),
    }
}

/// The number of scenarios that run at a time.
const AT_A_TIME: usize = 4;

/// One thing that is tried in a world of this kind.
pub struct Scenario<W> {
    /// `--only` looks for its words in it.
    pub name: String,
    try_in: Box<TryIn<W>>,
    /// True if it disturbs others, such as by killing one of the node's programs.
    disturbs: bool,
}

type TryIn<W> = dyn Fn(&W) -> Result<String> + Send + Sync;

impl<W> Scenario<W> {
    /// An error of `try_in` says what went otherwise than expected, success what was seen.
    pub fn new(name: impl Into<String>, try_in: impl Fn(&W) -> Result<String> + Send + Sync + 'static) -> Self {
        Self { name: name.into(), try_in: Box::new(try_in), disturbs: false }
    }

    /// The same, while no other runs.
    pub fn alone(self) -> Self {
        Self { disturbs: true, ..self }
    }

    /// Tries it.
    pub fn try_in(&self, world: &W) -> Result<String> {
        (self.try_in)(world)
    }
}

/// Tries those whose name has all of these words, and says what became of each. `kind` is what such scenarios are
/// called, and `try_it` gives them their world.
pub fn run_all<W>(
    kind: &str,
    scenarios: &[Scenario<W>],
    words: &[String],
    try_it: impl Fn(&Scenario<W>) -> Result<String> + Sync,
) -> Result<()> {
    let has_all = |scenario: &&Scenario<W>| words.iter().all(|word| scenario.name.contains(word));
    let chosen: Vec<_> = scenarios.iter().filter(has_all).collect();
    if chosen.is_empty() {
        return Err(format!("no scenario's name has {}", words.join(" and ")).into());
    }
    // Held by those that may run side by side, or by one that may not.
    let turn = RwLock::new(());
    let begun = Instant::now();
    let failed: Vec<_> = each(AT_A_TIME, &chosen, |scenario| {
        let (_shared, _alone);
        if scenario.disturbs {
            _alone = turn.write();
        } else {
            _shared = turn.read();
        }
        let name = scenario.name.as_str();
        let begun = Instant::now();
        let outcome = try_it(scenario);
        let seconds = begun.elapsed().as_secs_f64();
        match outcome {
            Ok(said) => {
                println!("ok     {name} ({seconds:.1} s): {said}");
                None
            }
            Err(error) => {
                println!("FAILED {name} ({seconds:.1} s): {error}");
                Some(name)
            }
        }
    })
    .into_iter()
    .flatten()
    .collect();
    println!(
        "{} of {} {kind} scenarios as expected, in {:.0} s",
        chosen.len() - failed.len(),
        chosen.len(),
        begun.elapsed().as_secs_f64()
    );
    if failed.is_empty() { Ok(()) } else { Err(format!("not as expected: {}", failed.join("; ")).into()) }
}

/// Does this to each item, so many at a time; the results in their order.
pub fn each<T: Sync, R: Send>(at_a_time: usize, items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let queue = Mutex::new(items.iter().enumerate());
    let next = || queue.lock().ok().and_then(|mut queue| queue.next());
    let mut done: Vec<_> = thread::scope(|scope| {
        let worker = || {
            let mut done = Vec::new();
            while let Some((number, item)) = next() {
                done.push((number, work(item)));
            }
            done
        };
        let workers: Vec<_> = (0..at_a_time).map(|_| scope.spawn(worker)).collect();
        let join = |worker: thread::ScopedJoinHandle<'_, _>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().flat_map(join).collect()
    });
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, result)| result).collect()
}
