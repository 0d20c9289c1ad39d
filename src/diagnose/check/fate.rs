//! The fate of connections to a port, or from the app, over one family.

use ruleset::Family;

use crate::diagnose::explain::answer::Verdict;
use crate::diagnose::explain::{Explained, Onward};
use crate::diagnose::proxy::PodWarning;
use crate::error::{Error, chain};

#[derive(Debug)]
pub(super) struct FamilyFate {
    pub(super) family: Family,
    pub(super) fate: Fate,
}

/// The fate of connections to or from the app.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fate {
    Proxy,
    /// They bypass the proxy; the text says why.
    Bypass(String),
    /// They go elsewhere; the text says where.
    Elsewhere(String),
    /// The pod is for its own network alone; the text says so.
    NoRoute(String),
    /// The proxy's port refuses them.
    Refused,
    /// They are lost; the text says how.
    Lost(String),
    NotKnown(String),
}

impl Fate {
    /// The fate of connections as they were followed; some can't be.
    pub(super) fn of(followed: Result<Explained<'_>, Error>) -> Self {
        let explained = match followed {
            Ok(explained) => explained,
            Err(Error::NoRoute { errno, .. }) => {
                return Self::NoRoute(format!("there is no route to other networks ({errno})"));
            }
            Err(error) => return Self::NotKnown(chain(&error).to_string()),
        };
        if let Some(loss) = explained.onward.as_ref().and_then(Onward::loss) {
            return Self::Lost(format!("from the proxy: {loss}"));
        }
        if let Some(doubt) = explained.onward.as_ref().and_then(Onward::doubt) {
            return Self::NotKnown(format!("from the proxy: {doubt}"));
        }
        let by = explained.by.as_ref().map_or(String::new(), |by| format!(" by {}", by.place));
        match &explained.verdict {
            Verdict::Proxy(_) if explained.warnings.iter().any(PodWarning::is_refusal) => Self::Refused,
            Verdict::Proxy(_) => Self::Proxy,
            Verdict::Bypass => Self::Bypass(match (explained.exempting_setting(), explained.by) {
                (Some(setting), _) => setting,
                (None, Some(by)) => by.place,
                (None, None) => "no rule redirects it".to_owned(),
            }),
            Verdict::Elsewhere(place) => Self::Elsewhere(place.clone()),
            verdict @ (Verdict::Dropped | Verdict::Rejected | Verdict::Lost(_)) => Self::Lost(format!("{verdict}{by}")),
            Verdict::NotKnown(why) => Self::NotKnown(why.clone()),
        }
    }
}
