//! The fate of connections to a port, or from the app, over one family.

use derive_more::Display;
use ruleset::Family;

use crate::diagnose::explain::answer::Verdict;
use crate::diagnose::explain::{Explained, Onward};
use crate::diagnose::proxy::PodWarning;
use crate::error::{Error, chain};

#[derive(Debug)]
pub(super) struct FamilyFate {
    pub(super) family: Family,
    pub(super) fate: Fate,
    /// The fate in words, with the reason.
    pub(super) words: String,
}

/// The fate of connections to or from the app. Its text is JSON's word for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display)]
#[display(rename_all = "kebab-case")]
pub(super) enum Fate {
    Proxy,
    Bypass,
    Elsewhere,
    /// The pod is for its own network alone.
    NoRoute,
    /// The proxy's port refuses them.
    Refused,
    Lost,
    NotKnown,
}

impl FamilyFate {
    /// The fate of connections as they were followed; some can't be.
    pub(super) fn of(family: Family, followed: Result<Explained<'_>, Error>) -> Self {
        let (fate, words) = match followed {
            Ok(explained) => fate_of(&explained),
            Err(Error::NoRoute { errno, .. }) => {
                (Fate::NoRoute, format!("there is no route to other networks ({errno})"))
            }
            Err(error) => (Fate::NotKnown, format!("not known: {}", chain(&error))),
        };
        Self { family, fate, words }
    }
}

fn fate_of(explained: &Explained<'_>) -> (Fate, String) {
    if let Some(loss) = explained.onward.as_ref().and_then(Onward::loss) {
        return (Fate::Lost, format!("from the proxy: {loss}"));
    }
    if let Some(doubt) = explained.onward.as_ref().and_then(Onward::doubt) {
        return (Fate::NotKnown, format!("not known: from the proxy: {doubt}"));
    }
    match &explained.verdict {
        Verdict::Proxy(_) if explained.warnings.iter().any(PodWarning::is_refusal) => {
            (Fate::Refused, "refused: nothing listens on the proxy's port".to_owned())
        }
        Verdict::Proxy(_) => (Fate::Proxy, "by the proxy".to_owned()),
        Verdict::Bypass => {
            let place = || explained.by.as_ref().map(|by| by.place.clone());
            let why = explained.exempting_setting().or_else(place);
            (Fate::Bypass, format!("bypass the proxy: {}", why.as_deref().unwrap_or("no rule redirects it")))
        }
        Verdict::Elsewhere(place) => (Fate::Elsewhere, format!("go elsewhere: {place}")),
        verdict @ (Verdict::Dropped | Verdict::Rejected | Verdict::Lost(_)) => {
            let by = explained.by.as_ref().map_or(String::new(), |by| format!(" by {}", by.place));
            (Fate::Lost, format!("{verdict}{by}"))
        }
        verdict @ Verdict::NotKnown(_) => (Fate::NotKnown, verdict.to_string()),
    }
}
