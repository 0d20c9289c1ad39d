//! Names the difference between a pod's rules and those that it should have, and decides what happens then: pure functions.

use std::fmt;
use std::time::{Duration, Instant};

use pod::bounded;
use proxy_init::{Config, Finding, FindingKind, Recognized, Verification};

use crate::settings::OnDrift;

/// After how long a drift that lasts is told again: the API server forgets events after an hour (--event-ttl).
const AGAIN: Duration = Duration::from_secs(30 * 60);

/// How long the log's line about a pod is at most: in its network namespace, a pod may add as many rules as it likes.
const LONGEST_LINE: usize = 1000;

/// How a pod's rules aren't as they should be, in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    /// There are none.
    NoRules,
    /// They are whole, and of another configuration: that of the pod's start.
    Configuration,
    /// By the first difference that was found.
    Finding(FindingKind),
    /// They are as they should be, and another mode has rules as well.
    OtherBackend,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRules => f.write_str("none"),
            Self::Configuration => f.write_str("configuration"),
            Self::Finding(kind) => kind.fmt(f),
            Self::OtherBackend => f.write_str("other-backend"),
        }
    }
}

/// How a pod's rules differ from those that it should have.
#[derive(Debug, Clone)]
pub(crate) struct Drift {
    /// In a word.
    pub(crate) reason: Reason,
    /// For people, as verify words it.
    pub(crate) words: String,
    /// The same in a line, for the log.
    pub(crate) line: String,
    /// The config whose rules they are, if they are all of its rules and nothing else.
    pub(crate) config: Option<Config>,
    /// True if rules are gone and nothing was added: putting rules back undoes nobody's work.
    is_loss: bool,
}

impl Drift {
    /// How they differ; not at all, if they are in place.
    pub(crate) fn of(verdict: Verification) -> Option<Self> {
        if verdict.is_in_place() {
            return None;
        }
        if !verdict.finds_rules {
            let words = "there are no rules of linkerd-cni's".to_owned();
            return Some(Self { reason: Reason::NoRules, line: words.clone(), words, config: None, is_loss: true });
        }
        let findings = verdict.findings.iter().map(Finding::in_a_line);
        let others = verdict.others.iter().map(|mode| format!("there are rules in {mode} mode too"));
        let is_loss = |finding: &Finding| {
            let kind = finding.kind();
            [FindingKind::NoRules, FindingKind::NoChain, FindingKind::Missing].contains(&kind)
        };
        let first = verdict.findings.first();
        Some(Self {
            reason: first.map_or(Reason::OtherBackend, |finding| Reason::Finding(finding.kind())),
            words: verdict.to_string(),
            line: bounded(findings.chain(others).collect::<Vec<_>>().join("; "), LONGEST_LINE),
            is_loss: verdict.findings.iter().all(is_loss) && verdict.others.is_empty(),
            config: verdict.other_config,
        })
    }

    /// Where a pod's own linkerd-init and the plugin have both made rules, in modes in which the one doesn't see the
    /// other's.
    pub(crate) fn of_two(recognized: &Recognized) -> Option<Self> {
        let (first, second) = recognized.mode.zip(recognized.others.first())?;
        let line = format!(
            "there are rules in {first} and in {second} mode: the pod's own linkerd-init and the plugin made some"
        );
        Some(Self {
            reason: Reason::OtherBackend,
            words: format!(
                "{line}, for the plugin goes by annotations, which don't name init containers. A connection that either \
                 redirects goes to the proxy. Set cniEnabled in Linkerd's values, so that its injector adds no linkerd-init; \
                 or the plugin's iptables-mode to that of linkerd-init, which then replaces the plugin's rules; or its pod-info \
                 to \"api\""
            ),
            line,
            config: None,
            is_loss: false,
        })
    }

    /// Returns true if a running pod gets the rules that it should have.
    pub(crate) fn is_mended(&self, on_drift: OnDrift) -> bool {
        self.is_loss || on_drift == OnDrift::Repair
    }
}

/// The last event about a pod's rules: the drift, whether it was repaired, and when that was told.
#[derive(Debug, Clone, Default)]
pub(crate) struct Told(Option<(Reason, bool, Instant)>);

impl Told {
    /// Returns true if it is to be told now, for it is news, or was told long ago; if so, it counts as told.
    pub(crate) fn tells(&mut self, reason: Reason, is_repaired: bool, now: Instant) -> bool {
        let is_old = self.0.is_some_and(|(told, was_repaired, when)| {
            (told, was_repaired) == (reason, is_repaired) && now.duration_since(when) < AGAIN
        });
        if !is_old {
            self.0 = Some((reason, is_repaired, now));
        }
        !is_old
    }

    /// There is no drift any more. A repair counts as told all the same.
    pub(crate) fn forget(&mut self) {
        self.0 = self.0.filter(|(_, is_repaired, _)| *is_repaired);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasts_is_told_again_before_the_api_server_forgets_it() {
        let start = Instant::now();
        let at = |minutes: u64| start + Duration::from_secs(60 * minutes);
        let mut told = Told::default();
        let missing = Reason::Finding(FindingKind::Missing);
        assert!(told.tells(missing, false, at(0)));
        assert!(!told.tells(missing, false, at(29)));
        assert!(told.tells(missing, false, at(30)));
        assert!(!told.tells(missing, false, at(59)));
        // News is told at once, and so is what comes back.
        assert!(told.tells(Reason::OtherBackend, false, at(60)));
        assert!(told.tells(missing, false, at(61)));
        told.forget();
        assert!(told.tells(missing, false, at(62)));
        // Rules that are taken away again and again are put back each time, and told once.
        assert!(told.tells(missing, true, at(63)));
        told.forget();
        assert!(!told.tells(missing, true, at(64)));
    }
}
