//! Compares contenders by runs that take turns.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

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
    /// Run once afterwards, and must succeed: that it did what the others do.
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

    /// The timed steps.
    pub(crate) fn timed(&self) -> &[Step] {
        &self.timed
    }

    /// Runs it once to see that it works here and does what it should.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn try_out(&self, tools: &Tools) -> Result<()> {
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
}

/// How many runs each contender has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rounds {
    pub(crate) quick: usize,
    pub(crate) full: usize,
}

/// A table to be.
#[derive(Debug)]
pub(crate) struct Group {
    /// Its heading.
    pub(crate) title: &'static str,
    /// The table's meaning, in one sentence.
    pub(crate) says: String,
    pub(crate) rounds: Rounds,
    contenders: Vec<Contender>,
    /// Under which limit it runs.
    limit: Option<Controller>,
    /// Contenders that could not be measured here, with the reasons.
    left_out: Vec<String>,
}

/// A contender's runs.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) samples: Samples,
    against: String,
    /// The most that any run had, in KiB.
    pub(crate) memory: u64,
}

/// A table that was measured.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) rows: Vec<Row>,
    pub(crate) left_out: Vec<String>,
}

impl Measured {
    /// The row of this name.
    pub(crate) fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.samples.name == name)
    }

    /// The rows, each with the median that it is compared with.
    pub(crate) fn compared(&self) -> impl Iterator<Item = (&Samples, f64)> {
        self.rows.iter().map(|row| {
            let reference = self.row(&row.against);
            (&row.samples, reference.map_or(f64::NAN, |row| row.samples.p50()))
        })
    }
}

impl Group {
    pub(crate) fn new(title: &'static str, says: impl Into<String>, rounds: Rounds) -> Self {
        Self { title, says: says.into(), rounds, contenders: vec![], limit: None, left_out: vec![] }
    }

    /// With this limit on each run's processor time.
    pub(crate) fn limit(mut self, controller: Controller) -> Self {
        self.limit = Some(controller);
        self
    }

    /// Adds a contender, or why there is none.
    pub(crate) fn add(&mut self, name: &str, contender: Result<Contender>) {
        match contender {
            Ok(contender) => self.contenders.push(contender),
            Err(reason) => self.left_out.push(format!("{name}: {reason}")),
        }
    }

    /// Every contender once, and then as many rounds of those that work here. Each round is in another order: what ran
    /// before, and what it left in the caches, differs too.
    ///
    /// # Errors
    /// A run fails that succeeded before, or the user has interrupted.
    pub(crate) fn measure(self, tools: &Tools, rounds: usize) -> Result<Measured> {
        let mut left_out = self.left_out;
        let mut contenders = self.contenders;
        contenders.retain(|contender| match contender.try_out(tools) {
            Ok(()) => true,
            Err(reason) => {
                left_out.push(format!("{}: {reason}", contender.name));
                false
            }
        });
        let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); contenders.len()];
        let random = RandomState::new();
        for round in 0..rounds {
            let mut order: Vec<usize> = (0..contenders.len()).collect();
            order.sort_by_cached_key(|contender| random.hash_one((round, contender)));
            for index in order {
                interrupt::check()?;
                let contender = &contenders[index];
                let sample = contender.once(tools, self.limit.as_ref());
                samples[index].push(sample.map_err(|error| format!("{}: {error}", contender.name))?);
            }
        }
        let first = contenders.first().map(|contender| contender.name.clone());
        let rows = contenders.into_iter().zip(samples).map(|(contender, samples)| Row {
            samples: Samples::new(&contender.name, samples.iter().map(|sample| sample.wall).collect()),
            against: contender.against.or_else(|| first.clone()).unwrap_or_default(),
            memory: samples.iter().map(|sample| sample.memory).max().unwrap_or(0),
        });
        Ok(Measured { rows: rows.collect(), left_out })
    }
}
