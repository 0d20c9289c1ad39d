//! Compares contenders by runs that take turns, of one pod or of a storm of pods.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use lab::network::Namespace;
use lab::samples::Samples;

use crate::cgroup::Controller;
use crate::interrupt;
use crate::result::Result;
use crate::tools::{Sample, Step, Tools};

/// A row of a table.
#[derive(Debug, Clone)]
pub(crate) struct Contender {
    /// The contender's name.
    pub(crate) name: String,
    timed: Vec<Step>,
    /// Run once afterwards, and must succeed: the check that the contender did the work of the others.
    check: Option<Step>,
    /// The contender whose median it is compared with; otherwise the group's.
    against: Option<String>,
    /// A namespace that all its runs share, because they change nothing; otherwise each has a fresh one.
    shared: Option<Arc<Namespace>>,
}

impl Contender {
    /// These steps in a fresh namespace.
    pub(crate) fn new(name: impl Into<String>, timed: impl Into<Vec<Step>>) -> Self {
        Self { name: name.into(), timed: timed.into(), check: None, against: None, shared: None }
    }

    /// Adds a step that must succeed afterwards.
    pub(crate) fn check(mut self, step: Step) -> Self {
        self.check = Some(step);
        self
    }

    /// Compared with the contender of this name.
    pub(crate) fn against(mut self, name: impl Into<String>) -> Self {
        self.against = Some(name.into());
        self
    }

    /// In this namespace, every time.
    pub(crate) fn shared(mut self, namespace: &Arc<Namespace>) -> Self {
        self.shared = Some(Arc::clone(namespace));
        self
    }

    /// Runs the contender once to see that it works here and does its work.
    ///
    /// # Errors
    /// Why not.
    fn try_out(&self, tools: &Tools) -> Result<()> {
        let namespace = self.namespace()?;
        namespace.run(|| {
            tools.launch(None, 0, &self.timed)?;
            if let Some(check) = &self.check {
                let checked = tools.launch(None, 0, std::slice::from_ref(check));
                checked.map_err(|error| format!("it ran, but left other rules than expected: {error}"))?;
            }
            Ok(())
        })
    }

    /// Where its next run takes place.
    fn namespace(&self) -> Result<Arc<Namespace>> {
        match &self.shared {
            Some(shared) => Ok(Arc::clone(shared)),
            None => Ok(Arc::new(Namespace::untouched()?)),
        }
    }

    fn once(&self, tools: &Tools, limit: Option<&Controller>) -> Result<Sample> {
        let namespace = self.namespace()?;
        let cgroup = limit.map(Controller::limited).transpose()?;
        let processes = cgroup.as_ref().map(|cgroup| cgroup.processes());
        namespace.run(|| tools.launch(processes.as_deref(), 0, &self.timed))
    }

    /// As when a node starts: [`PODS`] pods, so many of them at a time. The time is that of all, divided by the pods.
    fn storm(&self, tools: &Tools, at_once: usize) -> Result<Sample> {
        let namespaces: std::io::Result<Vec<Namespace>> = (0..PODS).map(|_| Namespace::untouched()).collect();
        let namespaces = namespaces?;
        let next = AtomicUsize::new(0);
        let worker = |number: usize| -> Result<Vec<Sample>> {
            let mut samples = Vec::new();
            while let Some(namespace) = namespaces.get(next.fetch_add(1, Ordering::Relaxed)) {
                interrupt::check()?;
                // A pod has a lock of its own; pods of one worker run one after another.
                samples.push(namespace.run_here(|| tools.launch(None, number, &self.timed))?);
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
        let wall = start.elapsed().as_secs_f64() * 1e6 / PODS as f64;
        let samples = results.into_iter().collect::<Result<Vec<_>>>()?.concat();
        Ok(Sample {
            wall,
            processor: samples.iter().map(|sample| sample.processor).sum::<f64>() / PODS as f64,
            memory: samples.iter().map(|sample| sample.memory).max().unwrap_or(0),
        })
    }
}

/// How many runs each contender has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rounds {
    pub(crate) quick: usize,
    pub(crate) full: usize,
}

/// How many pods start in one storm.
const PODS: usize = 100;

/// The condition of each run.
#[derive(Debug)]
pub(crate) enum Condition {
    Alone,
    /// With this limit on processor time.
    Limited(Controller),
    /// In a storm of pods, so many of which start at a time.
    Storm(usize),
}

/// Contenders that are compared.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) title: &'static str,
    pub(crate) rounds: Rounds,
    contenders: Vec<Contender>,
    condition: Condition,
    /// Contenders that could not be measured here, with the reasons.
    left_out: Vec<String>,
}

/// A contender's runs.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) group: &'static str,
    pub(crate) samples: Samples,
    against: String,
    /// The mean of all runs, in microseconds.
    pub(crate) processor: f64,
    /// The most that any run had, in KiB.
    pub(crate) memory: u64,
}

/// Everything that was measured.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    pub(crate) rows: Vec<Row>,
    pub(crate) left_out: Vec<String>,
}

impl Measured {
    /// How many times as long a row's median is as that of the row of its group that it is compared with.
    pub(crate) fn times(&self, row: &Row) -> f64 {
        let is_reference = |other: &&Row| other.group == row.group && other.samples.name == row.against;
        self.rows.iter().find(is_reference).map_or(f64::NAN, |reference| row.samples.p50() / reference.samples.p50())
    }
}

impl Group {
    pub(crate) fn new(title: &'static str, rounds: Rounds) -> Self {
        Self { title, rounds, contenders: vec![], condition: Condition::Alone, left_out: vec![] }
    }

    /// Runs under this condition.
    pub(crate) fn under(mut self, condition: Condition) -> Self {
        self.condition = condition;
        self
    }

    /// Adds a contender, or why there is none.
    pub(crate) fn add(&mut self, name: &str, contender: Result<Contender>) {
        match contender {
            Ok(contender) => self.contenders.push(contender),
            Err(reason) => self.left_out.push(format!("{}: {name}: {reason}", self.title)),
        }
    }

    /// Every contender once, and then as many rounds of those that work here. Each round is in another order, so that
    /// the run before, and its traces in the caches, differ too.
    ///
    /// # Errors
    /// A run fails that succeeded before, or the user has interrupted.
    pub(crate) fn measure(mut self, tools: &Tools, rounds: usize, measured: &mut Measured) -> Result<()> {
        measured.left_out.append(&mut self.left_out);
        self.contenders.retain(|contender| match contender.try_out(tools) {
            Ok(()) => true,
            Err(reason) => {
                measured.left_out.push(format!("{}: {}: {reason}", self.title, contender.name));
                false
            }
        });
        let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); self.contenders.len()];
        let random = RandomState::new();
        for round in 0..rounds {
            let mut order: Vec<usize> = (0..self.contenders.len()).collect();
            order.sort_by_cached_key(|contender| random.hash_one((round, contender)));
            for index in order {
                interrupt::check()?;
                let contender = &self.contenders[index];
                let sample = match &self.condition {
                    Condition::Alone => contender.once(tools, None),
                    Condition::Limited(controller) => contender.once(tools, Some(controller)),
                    Condition::Storm(at_once) => contender.storm(tools, *at_once),
                };
                samples[index].push(sample.map_err(|error| format!("{}: {error}", contender.name))?);
            }
        }
        let first = self.contenders.first().map(|contender| contender.name.clone());
        measured.rows.extend(self.contenders.into_iter().zip(samples).map(|(contender, samples)| Row {
            group: self.title,
            samples: Samples::new(&contender.name, samples.iter().map(|sample| sample.wall).collect()),
            against: contender.against.or_else(|| first.clone()).unwrap_or_default(),
            processor: samples.iter().map(|sample| sample.processor).sum::<f64>() / rounds as f64,
            memory: samples.iter().map(|sample| sample.memory).max().unwrap_or(0),
        }));
        Ok(())
    }
}
