//! How the node's meshed pods stand, as Prometheus is told.

use std::collections::BTreeMap;

use crate::drift::Reason;
use crate::metrics::Metrics;

/// How a pod stood when it was last looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It was not looked at yet.
    New,
    /// It has the rules that it should have.
    InPlace,
    /// It has others.
    Drifted(Reason),
    /// Why not.
    NotKnown(String),
    /// It is none of the agent's business.
    Left,
}

/// Tells Prometheus how the pods stand: each of them once, so that their sum is the number of meshed pods.
pub fn tell<'a>(pods: impl Iterator<Item = &'a Standing>, metrics: &Metrics) {
    let mut standings = BTreeMap::from([("new", 0), ("in_place", 0), ("drifted", 0), ("not_known", 0)]);
    let mut reasons = BTreeMap::new();
    for standing in pods {
        let standing = match standing {
            Standing::Left => continue,
            Standing::New => "new",
            Standing::InPlace => "in_place",
            Standing::NotKnown(_) => "not_known",
            Standing::Drifted(reason) => {
                *reasons.entry(*reason).or_insert(0) += 1;
                "drifted"
            }
        };
        *standings.entry(standing).or_insert(0) += 1;
    }
    for (standing, number) in standings {
        metrics
            .pods
            .get_or_create(&[("standing", standing.to_owned())])
            .set(number);
    }
    metrics.drifts.clear();
    for (reason, number) in reasons {
        metrics
            .drifts
            .get_or_create(&[("reason", reason.to_string())])
            .set(number);
    }
}
