//! The command line as users write it.

mod help;
mod output;
mod simulate;
mod subcommands;
mod values;

use lab::network::Namespace;

use crate::support::{Finished, Run};

pub(super) const CHART_PORTS: &str = "-p 4143 -o 4140 -u 2102";

/// The output of a run that needs no namespace.
pub(super) fn stdout(arguments: &[&str]) -> String {
    Finished(Run::new("").arguments(arguments).command().output().unwrap()).success()
}

/// The refusal of a run with these arguments; nothing may be touched.
pub(super) fn refusal(namespace: &Namespace, arguments: &[&str]) -> String {
    let before = namespace.sh("nft list ruleset");
    let finished = Run::new("").arguments(arguments).output(namespace);
    let text = finished.stderr();
    assert_eq!(finished.code(), Some(2), "{arguments:?}: {text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert_eq!(finished.stdout(), "", "{arguments:?}");
    assert_eq!(namespace.sh("nft list ruleset"), before, "{arguments:?}");
    text
}
