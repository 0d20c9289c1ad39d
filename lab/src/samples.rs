//! Times of single runs, and the tables that compare them.

use std::fmt::Write as _;

/// The times of one contender.
#[derive(Debug, Clone)]
pub struct Samples {
    /// Its name in tables and charts.
    pub name: String,
    /// Sorted.
    microseconds: Vec<f64>,
}

impl Samples {
    /// Of these runs, in any order.
    pub fn new(name: impl Into<String>, mut microseconds: Vec<f64>) -> Self {
        microseconds.sort_by(f64::total_cmp);
        Self { name: name.into(), microseconds }
    }

    /// In microseconds; not a number if there are no runs.
    pub fn percentile(&self, percent: usize) -> f64 {
        let last = self.microseconds.len().saturating_sub(1);
        self.microseconds.get(last * percent / 100).copied().unwrap_or(f64::NAN)
    }

    /// The median, in microseconds.
    pub fn p50(&self) -> f64 {
        self.percentile(50)
    }
}

/// A row each, with the median, in microseconds, that it is compared with.
pub fn table<'a>(rows: impl IntoIterator<Item = (&'a Samples, f64)>) -> String {
    let mut text = String::from("| | p50 | p10–p90 | p99 | × |\n|---|--:|--:|--:|--:|\n");
    for (samples, reference) in rows {
        let _ = writeln!(
            text,
            "| {} | {} | {} – {} | {} | {:.2} |",
            samples.name,
            time(samples.p50()),
            time(samples.percentile(10)),
            time(samples.percentile(90)),
            time(samples.percentile(99)),
            samples.p50() / reference
        );
    }
    text
}

/// Microseconds, for people.
pub fn time(microseconds: f64) -> String {
    if microseconds < 1000.0 {
        format!("{microseconds:.0} µs")
    } else if microseconds < 100_000.0 {
        format!("{:.2} ms", microseconds / 1000.0)
    } else {
        format!("{:.0} ms", microseconds / 1000.0)
    }
}
