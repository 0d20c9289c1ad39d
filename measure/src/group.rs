//! Compares contenders by runs that take turns, of one pod or of a storm of pods.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Instant;

use lab::network::Namespace;
use lab::samples::Samples;
use lab::scenario::each;

use crate::cgroup::Controller;
use crate::interrupt;
use crate::tools::{Sample, Step, Tools};
use lab::shell::Result;

/// A row of a table.
#[derive(Debug)]
pub(crate) struct Contender {
    /// The contender's name.
    pub(crate) name: String,
    /// The timed command, or the reason why it can't be run here.
    timed: Result<Vec<Step>>,
    /// Run once afterwards, and must succeed: the check that the contender did the work of the others.
    check: Option<Step>,
    /// A namespace that all its runs share, because they change nothing; otherwise each has a fresh one.
    shared: Option<Arc<Namespace>>,
}

impl Contender {
    /// These steps in a fresh namespace.
    pub(crate) fn new(name: impl Into<String>, timed: Result<Vec<Step>>) -> Self {
        Self { name: name.into(), timed, check: None, shared: None }
    }

    /// Adds a step that must succeed afterwards.
    pub(crate) fn check(self, step: Step) -> Self {
        Self { check: Some(step), ..self }
    }

    /// In this namespace, every time.
    pub(crate) fn shared(self, namespace: &Arc<Namespace>) -> Self {
        Self { shared: Some(Arc::clone(namespace)), ..self }
    }

    fn steps(&self) -> Result<&[Step]> {
        Ok(self.timed.as_ref().map_err(|error| error.to_string())?)
    }

    /// Runs the contender once to see that it works here and does its work.
    fn try_out(&self, tools: &Tools) -> Result<()> {
        let namespace = self.namespace()?;
        namespace.run(|| {
            tools.launch(None, 0, self.steps()?)?;
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
        namespace.run(|| tools.launch(processes.as_deref(), 0, self.steps()?))
    }

    /// As when a node starts: [`PODS`] pods, so many of them at a time. The time is that of all, divided by the pods.
    fn storm(&self, tools: &Tools, at_once: usize) -> Result<Sample> {
        let pods = (0..PODS).map(|number| Ok((number, Namespace::untouched()?))).collect::<Result<Vec<_>>>()?;
        let start = Instant::now();
        let samples = each(at_once, &pods, |(number, namespace)| {
            interrupt::check()?;
            // A pod has a lock of its own.
            namespace.run_here(|| tools.launch(None, *number, self.steps()?))
        });
        let wall = start.elapsed().as_secs_f64() * 1e6 / PODS as f64;
        let samples = samples.into_iter().collect::<Result<Vec<_>>>()?;
        Ok(Sample {
            wall,
            processor: samples.iter().map(|sample| sample.processor).sum::<f64>() / PODS as f64,
            memory: samples.iter().map(|sample| sample.memory).max().unwrap_or(0),
        })
    }
}

/// The number of pods that start in one storm.
const PODS: usize = 100;

/// The condition of each run.
#[derive(Debug)]
pub(crate) enum Condition {
    Alone,
    /// With a limit on processor time; or why there can be none here.
    Limited(std::result::Result<Controller, String>),
    /// In a storm of pods, so many of which start at a time.
    Storm(usize),
}

/// Contenders that are compared, with the first one of them.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) title: &'static str,
    /// The number of runs of each contender, usually and with `--full`.
    pub(crate) rounds: usize,
    pub(crate) full_rounds: usize,
    pub(crate) condition: Condition,
    pub(crate) contenders: Vec<Contender>,
}

/// A contender's runs.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) group: &'static str,
    pub(crate) samples: Samples,
    /// The ratio of its median to that of the group's first contender.
    pub(crate) times: f64,
    /// The mean of all runs, in microseconds.
    pub(crate) processor: f64,
    /// The most that any run had, in KiB.
    pub(crate) memory: u64,
}

/// Everything that was measured.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    pub(crate) rows: Vec<Row>,
    /// Contenders that could not be measured here, with the reasons.
    pub(crate) left_out: Vec<String>,
}

impl Group {
    /// Every contender once, and then as many rounds of those that work here. Each round is in another order, so that
    /// the run before, and its traces in the caches, differ too. It is an error if a run fails that succeeded before.
    pub(crate) fn measure(mut self, tools: &Tools, rounds: usize, measured: &mut Measured) -> Result<()> {
        if let Condition::Limited(Err(reason)) = &self.condition {
            measured.left_out.push(format!("{}: all of it: {reason}", self.title));
            return Ok(());
        }
        let reference = self.contenders.first().map(|contender| contender.name.clone());
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
                    Condition::Storm(at_once) => contender.storm(tools, *at_once),
                    Condition::Limited(Ok(controller)) => contender.once(tools, Some(controller)),
                    Condition::Limited(Err(_)) | Condition::Alone => contender.once(tools, None),
                };
                samples[index].push(sample.map_err(|error| format!("{}: {error}", contender.name))?);
            }
        }
        let mut median = f64::NAN;
        for (contender, samples) in self.contenders.into_iter().zip(samples) {
            let times = Samples::new(&contender.name, samples.iter().map(|sample| sample.wall).collect());
            if Some(&contender.name) == reference.as_ref() {
                median = times.p50();
            }
            measured.rows.push(Row {
                group: self.title,
                times: times.p50() / median,
                samples: times,
                processor: samples.iter().map(|sample| sample.processor).sum::<f64>() / rounds as f64,
                memory: samples.iter().map(|sample| sample.memory).max().unwrap_or(0),
            });
        }
        Ok(())
    }
}
