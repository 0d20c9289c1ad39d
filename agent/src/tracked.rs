//! A meshed pod's rules, and what becomes of them, whoever tells the agent of the pod: the API server or the runtime.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::runtime::events::{Event, EventType};
use proxy_init::{Install, Namespace, Stamp};
use tokio::task::spawn_blocking;
use tracing::{info, warn};

use crate::drift::{Reason, Told};
use crate::events::event;
use crate::metrics::Metrics;
use crate::rules::{self, Wanted};
use crate::schedule::NEVER;
use crate::settings::{RepairAction, Settings};

/// After how long a pod is looked at again that couldn't be healed, or of which it isn't known how it stands, at first and
/// at most.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// For how long a pod's rules are taken for those that were read, as nf_tables says that nobody has changed them. What it
/// doesn't tell of, such as tables that go with the program that owns them, is seen then. Reading them so often costs next to
/// nothing beside asking each half minute.
const READ_AGAIN: Duration = Duration::from_secs(600);

/// The agent's knowledge of a pod's rules.
#[derive(Debug, Clone)]
pub(crate) struct Tracked {
    /// The rules that the pod should have. They are asked for once, for they are those of the pod's start.
    wanted: Option<Wanted>,
    /// True if these are of an earlier configuration than today's, as the pod's rules were whole, and of another config, when
    /// they were first looked at. None before that.
    is_earlier: Option<bool>,
    /// How it stood last time.
    pub(crate) standing: Standing,
    /// If its rules were in place and nothing else mattered when they were read last: when that was.
    read: Option<(Stamp, Instant)>,
    /// When to look again.
    pub(crate) due: Instant,
    pause: Duration,
    told: Told,
}

/// How a pod stood when it was last looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
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

/// Of a pod that is to be looked at now.
impl Default for Tracked {
    fn default() -> Self {
        Self {
            wanted: None,
            is_earlier: None,
            standing: Standing::New,
            read: None,
            due: Instant::now(),
            pause: PAUSE.0,
            told: Told::default(),
        }
    }
}

impl Tracked {
    /// Of a pod in which these rules were installed now.
    pub(crate) fn installed(install: Arc<Install>, due: Instant) -> Self {
        let (wanted, standing) = (Some(Wanted::Plugins(install)), Standing::InPlace);
        Self { wanted, is_earlier: Some(false), standing, due, ..Self::default() }
    }

    /// Of a pod that may have changed while nobody looked.
    pub(crate) fn anew(self) -> Self {
        Self { standing: Standing::New, due: Instant::now(), ..self }
    }

    /// Looks at the pod's rules in the namespace that `open` finds, and puts them there if that is to be done, as it is
    /// whenever the pod has `failed` for lack of them. `today` says which rules the pod would have if it started now.
    pub(crate) async fn heal(
        &mut self,
        pod: &impl Display,
        failed: bool,
        settings: &Settings,
        metrics: &Metrics,
        open: impl FnOnce() -> Result<Namespace, String> + Send + 'static,
        today: impl AsyncFn() -> Result<Wanted, String>,
    ) -> Result<(Standing, Option<Event>), String> {
        let wanted = match &self.wanted {
            Some(wanted) => wanted.clone(),
            None => self.wanted.insert(today().await?).clone(),
        };
        if let Wanted::Any = wanted {
            return Ok((Standing::Left, None));
        }
        let (asked, begun) = (wanted.clone(), Instant::now());
        let read = self.read.take().filter(|(_, when)| !failed && begun < *when + READ_AGAIN);
        let look = in_background(move || {
            let network = open()?;
            Ok((rules::verify(&network, &asked, read.map(|(stamp, _)| stamp))?, network))
        });
        let ((drift, stamp), network) = look.await?;
        let network = Arc::new(network);
        let Some(drift) = drift else {
            let is_read = |stamp: &Stamp| read.filter(|(read, _)| read == stamp);
            self.read = stamp.map(|stamp| is_read(&stamp).unwrap_or((stamp, begun)));
            self.is_earlier.get_or_insert(false);
            return Ok((self.as_at_start(), None));
        };
        if self.is_earlier.is_none() {
            self.is_earlier = Some(false);
            // Taking away a rule that a config may do without leaves complete rules of another config, too. So only
            // what the pod had when it was first looked at is taken for an earlier configuration's.
            if let (Wanted::Plugins(install), Some(config), false) = (&wanted, &drift.config, failed) {
                info!("{pod}: its rules are whole, and of another configuration: it gets today's when it starts anew");
                self.is_earlier = Some(true);
                let mut earlier = Install::clone(install);
                earlier.config = config.clone();
                self.wanted = Some(Wanted::Plugins(Arc::new(earlier)));
                return Ok((self.as_at_start(), None));
            }
        } else if !matches!(self.standing, Standing::Drifted(reason) if reason != Reason::Configuration) {
            // It may have a new sandbox since, and the plugin goes by today's configuration and annotations.
            let today = today().await?;
            let (network, asked) = (Arc::clone(&network), today.clone());
            let (drift, _) = in_background(move || rules::verify(&network, &asked, None)).await?;
            if drift.is_none() {
                self.is_earlier = Some(false);
                self.wanted = Some(today);
                return Ok((self.as_at_start(), None));
            }
        }
        let reason = drift.reason;
        let is_mended = settings.repair == RepairAction::InPlace && (failed || drift.is_mended(settings.on_drift));
        let install = match wanted {
            Wanted::Plugins(install) if is_mended => install,
            Wanted::Plugins(_) | Wanted::Inits | Wanted::Any => {
                let event = self.told.tells(reason, false, Instant::now()).then(|| {
                    warn!("{pod}: other rules ({reason}): {}", drift.line);
                    event(EventType::Warning, "LinkerdCNIDrifted", "Verifying", &drift.words)
                });
                return Ok((Standing::Drifted(reason), event));
            }
        };
        let begun = Instant::now();
        let rules = in_background(move || rules::repair(&network, install)).await.map_err(|error| {
            metrics.repair_failures.inc();
            format!("its rules are not in place ({reason}), and it cannot be healed: {error}")
        })?;
        metrics.repairs.observe(begun.elapsed().as_secs_f64());
        // A program that takes rules away again and again gets them back each time, but no event for each.
        let event = self.told.tells(reason, true, Instant::now()).then(|| {
            info!("{pod} is healed: its rules were not in place ({reason}); {rules} are");
            let note = format!(
                "The pod's rules were not in place ({reason}); {rules} were installed in the running pod and verified. A \
                 container that failed for lack of them passes when it starts again"
            );
            event(EventType::Normal, "LinkerdCNIRepaired", "Repairing", &note)
        });
        Ok((self.as_at_start(), event))
    }

    /// How a pod stands that has the rules of its start: there is no drift to tell any more.
    fn as_at_start(&mut self) -> Standing {
        self.told.forget();
        match &self.wanted {
            Some(Wanted::Plugins(_)) if self.is_earlier == Some(true) => Standing::Drifted(Reason::Configuration),
            Some(Wanted::Plugins(_)) => Standing::InPlace,
            Some(Wanted::Inits | Wanted::Any) | None => Standing::Left,
        }
    }

    /// Notes what a look came to. The next one is in its turn, or after a pause that grows as long as it isn't known how
    /// the pod stands.
    pub(crate) fn note(&mut self, pod: &impl Display, outcome: Result<Standing, String>, turn: Instant) {
        (self.standing, self.due) = match outcome {
            Ok(standing) => {
                self.pause = PAUSE.0;
                (standing, turn)
            }
            Err(reason) => {
                let standing = Standing::NotKnown(reason.clone());
                if self.standing != standing {
                    warn!("{pod}: {reason}");
                }
                let due = Instant::now() + self.pause;
                self.pause = (self.pause * 2).min(PAUSE.1);
                (standing, due)
            }
        };
    }
}

/// Runs what waits for the kernel on a thread of its own.
async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    spawn_blocking(work).await.map_err(|error| error.to_string())?
}

/// Tells Prometheus how the pods stand: each of them once, so that their sum is the number of meshed pods.
pub(crate) fn count<K, P>(pods: &BTreeMap<K, (P, Tracked)>, metrics: &Metrics) {
    let mut standings = BTreeMap::from([("new", 0), ("in_place", 0), ("drifted", 0), ("not_known", 0)]);
    let mut reasons = BTreeMap::new();
    for (_, tracked) in pods.values() {
        let standing = match tracked.standing {
            Standing::Left => continue,
            Standing::New => "new",
            Standing::InPlace => "in_place",
            Standing::NotKnown(_) => "not_known",
            Standing::Drifted(reason) => {
                *reasons.entry(reason).or_insert(0) += 1;
                "drifted"
            }
        };
        *standings.entry(standing).or_insert(0) += 1;
    }
    for (standing, number) in standings {
        let label = [("standing", standing.to_owned())];
        metrics.pods.get_or_create(&label).set(number);
    }
    metrics.drifts.clear();
    for (reason, number) in reasons {
        let label = [("reason", reason.to_string())];
        metrics.drifts.get_or_create(&label).set(number);
    }
}

/// When the next pod is to be looked at.
pub(crate) fn next<K, P>(pods: &BTreeMap<K, (P, Tracked)>) -> Instant {
    pods.values().map(|(_, tracked)| tracked.due).min().unwrap_or_else(|| Instant::now() + NEVER)
}

/// The pods that are to be looked at by now.
pub(crate) fn due<K: Clone, P>(pods: &BTreeMap<K, (P, Tracked)>, now: Instant) -> Vec<K> {
    let due = pods.iter().filter(|(_, (_, tracked))| tracked.due <= now);
    due.map(|(key, _)| key.clone()).collect()
}
