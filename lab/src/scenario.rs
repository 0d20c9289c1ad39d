//! Running scenarios: several at a time, each said with what became of it.

use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use crate::shell::Result;

/// How many run at a time.
const AT_A_TIME: usize = 4;

/// Runs those whose name has all of these words, and says what became of each. `kind` is what such scenarios are
/// called.
///
/// # Errors
/// The names of those that went otherwise than expected, or that no scenario has such a name.
pub fn run_all<S: Sync>(
    kind: &str,
    scenarios: &[S],
    words: &[String],
    name: impl Fn(&S) -> &str + Sync,
    try_it: impl Fn(&S) -> Result<String> + Sync,
) -> Result<()> {
    let has_all = |scenario: &&S| words.iter().all(|word| name(scenario).contains(word));
    let chosen: Vec<_> = scenarios.iter().filter(has_all).collect();
    if chosen.is_empty() {
        return Err(format!("no scenario's name has {}", words.join(" and ")).into());
    }
    let begun = Instant::now();
    let failed: Vec<_> = each(AT_A_TIME, &chosen, |scenario| {
        let name = name(scenario);
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
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!("not as expected: {}", failed.join("; ")).into())
    }
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
