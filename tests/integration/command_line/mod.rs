//! The command line as users write it.

mod help;
mod output;
mod simulate;
mod values;

use crate::support::{Finished, Run};

pub(super) const CHART_PORTS: &str = "-p 4143 -o 4140 -u 2102";

/// The output of a run that needs no namespace.
pub(super) fn stdout(arguments: &[&str]) -> String {
    Finished(Run::new("").arguments(arguments).command().output().unwrap()).success()
}
