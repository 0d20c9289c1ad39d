//! What scenarios are, how they are run, and what they share.

use std::error::Error;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use xtask::shell::Result;

use crate::image::Image;
use crate::node::Node;
use crate::pod::{Container, Meta, Pod, Running};

/// One thing that is tried, in pods of its own.
pub(crate) struct Scenario {
    pub(crate) name: String,
    /// Makes its pods, on whichever network; an error says what went otherwise than expected, success what was seen.
    pub(crate) try_it: Box<TryIt>,
}

type TryIt = dyn Fn(&World<'_>) -> Result<String> + Send + Sync;

impl Scenario {
    pub(crate) fn new(name: String, try_it: impl Fn(&World<'_>) -> Result<String> + Send + Sync + 'static) -> Self {
        Self {
            name,
            try_it: Box::new(try_it),
        }
    }
}

/// What all scenarios have.
pub(crate) struct World<'a> {
    pub(crate) node: &'a Node,
    pub(crate) images: &'a Images,
    /// A pod without a mesh, which listens on ports 8080 and 4567.
    pub(crate) neighbour: Pod<'a>,
    /// Its container.
    pub(crate) client: Running<'a>,
}

/// The images that there are.
#[derive(Debug)]
pub(crate) struct Images([Image; 4]);

/// How many scenarios run at a time.
const AT_A_TIME: usize = 4;

impl Images {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self([
            Image::new("peer", "/peer"),
            Image::of_dockerfile("scratch")?,
            Image::of_dockerfile("legacy")?,
            Image::of_dockerfile("file-capabilities")?,
        ]))
    }

    pub(crate) fn all(&self) -> &[Image] {
        &self.0
    }

    /// Of peer.rs: clients, servers, and the sandbox's own.
    pub(crate) fn peer(&self) -> &Image {
        &self.0[0]
    }

    /// The Dockerfile's last target: proxy-init alone.
    pub(crate) fn scratch(&self) -> &Image {
        &self.0[1]
    }

    /// The Dockerfile's target `legacy`: iptables-legacy beside it.
    pub(crate) fn legacy(&self) -> &Image {
        &self.0[2]
    }

    /// The same, where iptables-legacy has file capabilities, as in linkerd-init's image.
    pub(crate) fn file_capabilities(&self) -> &Image {
        &self.0[3]
    }
}

impl<'a> World<'a> {
    pub(crate) fn new(node: &'a Node, images: &'a Images, network: &str) -> Result<Self> {
        let meta = Meta {
            name: "neighbour".to_owned(),
            ..Meta::default()
        };
        let (neighbour, client) = with_living_shims("the neighbour", || {
            let neighbour = Pod::start(node, network, &meta)?;
            let client = neighbour.start_container(&Container {
                args: &["serve", "8080", "4567"],
                ..Container::new("client", images.peer())
            })?;
            Ok((neighbour, client))
        })?;
        Ok(Self {
            node,
            images,
            neighbour,
            client,
        })
    }
}

/// Does this again, twice at most, where a sandbox's shim died of itself: the part of containerd that starts its containers.
/// That was seen on a machine under load; it says nothing of what runs in the containers, which hadn't begun.
fn with_living_shims<T>(what: &str, work: impl Fn() -> Result<T>) -> Result<T> {
    for _ in 0..2 {
        match work() {
            Err(error) if is_dead_shim(error.as_ref()) => println!("again  {what}: {error}"),
            outcome => return outcome,
        }
    }
    work()
}

/// Whether containerd lost the shim that it had asked to start a container.
fn is_dead_shim(error: &dyn Error) -> bool {
    error
        .to_string()
        .ends_with("failed to create shim task: ttrpc: closed: unknown")
}

/// Runs those whose name has all of these words, four at a time, and says what became of each.
pub(crate) fn run_all(world: &World<'_>, scenarios: &[Scenario], words: &[String]) -> Result<()> {
    let has_all = |scenario: &&Scenario| words.iter().all(|word| scenario.name.contains(word));
    let chosen: Vec<_> = scenarios.iter().filter(has_all).collect();
    if chosen.is_empty() {
        return Err(format!("no scenario's name has {}", words.join(" and ")).into());
    }
    let begun = Instant::now();
    let failed: Vec<_> = each(AT_A_TIME, &chosen, |scenario| {
        let begun = Instant::now();
        let outcome = with_living_shims(&scenario.name, || (scenario.try_it)(world));
        let seconds = begun.elapsed().as_secs_f64();
        match outcome {
            Ok(said) => {
                println!("ok     {} ({seconds:.1} s): {said}", scenario.name);
                None
            }
            Err(error) => {
                println!("FAILED {} ({seconds:.1} s): {error}", scenario.name);
                Some(scenario.name.as_str())
            }
        }
    })
    .into_iter()
    .flatten()
    .collect();
    println!(
        "{} of {} pods' scenarios as expected, in {:.0} s",
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
pub(crate) fn each<T: Sync, R: Send>(at_a_time: usize, items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
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
