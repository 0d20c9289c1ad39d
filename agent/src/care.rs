//! The care for the rules of the node's meshed pods, whoever tells the agent of them, the API server or the runtime: look,
//! repair, look, tell.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use kube::runtime::events::EventType;
use proxy_init::{Install, Namespace, Stamp};
use tokio::sync::{Mutex, Notify};
use tokio::task::spawn_blocking;
use tokio::time::sleep_until;
use tracing::{info, warn};

use crate::admin::Health;
use crate::rules;
use crate::settings::{Repair, Settings};
use crate::tell::{Subject, Teller};

/// The most bytes of all pods that are kept: some thousands of pods, unless their annotations are long. kubelet runs 110
/// pods, or some hundred where it is told to.
const MOST: usize = 16 << 20;
/// The time after which a pod without a turn is looked at: `--verify-every` is 0, or its status alone decides.
const NEVER: Duration = Duration::from_secs(365 * 86400);
/// The time after which a pod is looked at again that couldn't be healed, or whose state isn't known, at first and
/// at most.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));
/// The time for which a pod's rules are taken for those that were read, as nf_tables says that nobody has changed them.
/// What it doesn't tell of, such as tables that go with the program that owns them, is seen then.
const READ_AGAIN: Duration = Duration::from_secs(600);
/// The time after which a drift that lasts is told again: the API server forgets events after an hour (--event-ttl).
const AGAIN: Duration = Duration::from_secs(30 * 60);

/// The agent's knowledge of a pod's rules.
#[derive(Debug, Clone)]
pub(crate) struct Tracked {
    /// The rules that the pod should have. They are asked for once, for they are those of the pod's start.
    wanted: Option<Arc<Install>>,
    /// Its state at the last look.
    pub(crate) standing: Standing,
    /// If its rules were in place and nothing else mattered when they were read last: when that was.
    read: Option<(Stamp, Instant)>,
    /// The time since which they are in place, for all that the agent has seen.
    whole: Option<SystemTime>,
    /// When to look again.
    due: Instant,
    pause: Duration,
    told: Told,
}

/// A pod's state when it was last looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It was not looked at yet, or has changed since.
    New,
    /// It has the rules that it should have.
    InPlace,
    /// It has others, and the first difference.
    Drifted(String),
    /// It isn't known, for this reason.
    NotKnown(String),
    /// It is none of the agent's business.
    LeftAlone,
}

impl Standing {
    /// Returns true if a look has found out how the pod stands.
    pub(crate) fn is_known(&self) -> bool {
        !matches!(self, Self::New | Self::NotKnown(_))
    }
}

/// All pods that are known by keys of this type.
pub(crate) struct Care<'a, K, P> {
    pub(crate) settings: &'a Settings,
    pub(crate) health: &'a Health,
    teller: Teller,
    /// When the turns began.
    start: Instant,
    all: RefCell<BTreeMap<K, (Arc<P>, Tracked)>>,
    /// Those that were told of since the last list began.
    listed: RefCell<BTreeSet<K>>,
    /// True if the log has said that there are too many pods.
    said_too_many: Cell<bool>,
    /// Some pod may be due now, or stands otherwise.
    news: Notify,
    /// Held by a look: of two at the same moment, both would find the rules missing.
    turn: Mutex<()>,
}

impl<'a, K: Ord + Clone, P: Subject> Care<'a, K, P> {
    pub(crate) fn new(settings: &'a Settings, health: &'a Health, teller: Teller) -> Self {
        Self {
            settings,
            health,
            teller,
            start: Instant::now(),
            all: RefCell::default(),
            listed: RefCell::default(),
            said_too_many: Cell::new(false),
            news: Notify::new(),
            turn: Mutex::default(),
        }
    }

    /// Keeps a pod in mind, unless there are too many, and looks at it at once if it is new, or `is_news` compared with
    /// what was known.
    pub(crate) fn keep(&self, key: K, pod: P, is_news: impl FnOnce(&P) -> bool) {
        let tracked = match self.all.borrow().get(&key) {
            // A pod that can't be healed changes its status again and again; its pause goes on.
            Some((known, tracked)) if !is_news(known) => tracked.clone(),
            Some((_, tracked)) => Tracked { standing: Standing::New, due: Instant::now(), ..tracked.clone() },
            None => Tracked::new(None, Standing::New, Instant::now()),
        };
        self.insert(key, pod, tracked);
    }

    /// Keeps a pod in mind in which these rules were installed now.
    pub(crate) fn installed(&self, key: K, pod: P, install: Arc<Install>) {
        let due = self.next_turn(Instant::now());
        self.insert(key, pod, Tracked::new(Some(install), Standing::InPlace, due));
    }

    fn insert(&self, key: K, pod: P, tracked: Tracked) {
        let mut all = self.all.borrow_mut();
        let others = all.iter().filter(|(other, _)| **other != key).map(|(_, (other, _))| other.size());
        if others.sum::<usize>() + pod.size() > MOST {
            if !self.said_too_many.replace(true) {
                warn!("{pod} and others are not looked at: the node has more meshed pods than the agent keeps");
            }
            return;
        }
        self.listed.borrow_mut().insert(key.clone());
        all.insert(key, (Arc::new(pod), tracked));
        self.news.notify_one();
    }

    pub(crate) fn remove(&self, key: &K) {
        self.listed.borrow_mut().remove(key);
        self.all.borrow_mut().remove(key);
        self.news.notify_one();
    }

    /// All pods are about to be listed.
    pub(crate) fn list(&self) {
        self.listed.take();
    }

    /// All pods are listed: others are gone.
    pub(crate) fn end_list(&self) {
        let listed = self.listed.take();
        self.all.borrow_mut().retain(|key, _| listed.contains(key));
        self.news.notify_one();
    }

    /// Has `look` take care of the pods that are due, for ever.
    pub(crate) async fn watch(&self, look: impl AsyncFn(Vec<K>)) -> Infallible {
        loop {
            self.count();
            let next = self.all.borrow().values().map(|(_, tracked)| tracked.due).min();
            tokio::select! {
                () = self.news.notified() => continue,
                () = sleep_until(next.unwrap_or_else(|| Instant::now() + NEVER).into()) => {}
            }
            let start = Instant::now();
            let due: Vec<K> = {
                let all = self.all.borrow();
                let due = all.iter().filter(|(_, (_, tracked))| tracked.due <= start);
                due.map(|(key, _)| key.clone()).collect()
            };
            look(due).await;
            self.health.metrics.round.observe(start.elapsed().as_secs_f64());
        }
    }

    /// Notes what a look at a pod comes to. The next one is in the pod's turn, or after a pause that grows as long as
    /// it isn't known how the pod stands. An error says why that isn't known.
    pub(crate) async fn attend(
        &self,
        key: &K,
        look: impl AsyncFnOnce(&Arc<P>, &mut Tracked) -> Result<Standing, String>,
    ) -> Result<(), String> {
        let _turn = self.turn.lock().await;
        let known = self.all.borrow().get(key).cloned();
        let gone = "it is gone, or there are too many pods";
        let (pod, mut tracked) = known.ok_or(gone)?;
        let (due, before) = (tracked.due, tracked.standing.clone());
        let outcome = look(&pod, &mut tracked).await;
        let mut all = self.all.borrow_mut();
        let (_, known) = all.get_mut(key).ok_or(gone)?;
        let now = Instant::now();
        match outcome.clone() {
            Ok(standing) => {
                (tracked.standing, tracked.pause, tracked.due) = (standing, PAUSE.0, self.next_turn(now));
            }
            Err(reason) => {
                tracked.standing = Standing::NotKnown(reason.clone());
                if tracked.standing != before {
                    warn!("{pod}: {reason}");
                }
                tracked.due = now + tracked.pause;
                tracked.pause = (tracked.pause * 2).min(PAUSE.1);
            }
        }
        // There was news meanwhile.
        if known.due != due {
            tracked.due = known.due;
        }
        *known = tracked;
        self.news.notify_one();
        outcome.map(drop)
    }

    /// Looks at the pod's rules in the namespace that `open` finds, and puts them there if that is to be done, as it is
    /// whenever the pod has failed for lack of them, at a time. `today` says which rules the pod would have if it
    /// started now; none: it is none of the agent's business.
    pub(crate) async fn heal(
        &self,
        pod: &P,
        tracked: &mut Tracked,
        failed: Option<SystemTime>,
        open: impl FnOnce() -> Result<Namespace, String> + Send + 'static,
        today: impl AsyncFn() -> Result<Option<Arc<Install>>, String>,
    ) -> Result<Standing, String> {
        let is_first = tracked.wanted.is_none();
        let wanted = match &tracked.wanted {
            Some(wanted) => Some(Arc::clone(wanted)),
            // Nothing has changed since.
            None if tracked.standing == Standing::LeftAlone => None,
            None => today().await?,
        };
        let Some(mut wanted) = wanted else { return Ok(Standing::LeftAlone) };
        let (asked, begun) = (Arc::clone(&wanted), Instant::now());
        let read = tracked.read.take().filter(|(_, when)| failed.is_none() && begun < *when + READ_AGAIN);
        let look = in_background(move || {
            let network = open()?;
            Ok((rules::verify(&network, &asked, read.map(|(stamp, _)| stamp))?, network))
        });
        let (looked, network) = look.await?;
        let network = Arc::new(network);
        let is_read = |stamp: &Stamp| read.filter(|(known, _)| known == stamp);
        tracked.read = looked.stamp.map(|stamp| is_read(&stamp).unwrap_or((stamp, begun)));
        let mut drift = looked.drift;
        if drift.is_some() && is_first && failed.is_none() {
            // Taking away a rule that a config may do without leaves complete rules of another config, too. So only
            // what the pod had when it was first looked at is taken for what it was started with.
            if let Some(config) = drift.as_ref().and_then(|found| found.config.clone()) {
                info!("{pod}: its rules are whole, and of another configuration: it gets today's when it starts anew");
                Arc::make_mut(&mut wanted).config = config;
                drift = None;
            }
        } else if drift.is_some() && !is_first && !matches!(tracked.standing, Standing::Drifted(_)) {
            // It may have a new sandbox since, and the plugin goes by today's configuration and annotations.
            tracked.wanted = None;
            let Some(today) = today().await? else { return Ok(Standing::LeftAlone) };
            let (network, asked) = (Arc::clone(&network), Arc::clone(&today));
            if in_background(move || rules::verify(&network, &asked, None)).await?.drift.is_none() {
                (wanted, drift) = (today, None);
            }
        }
        tracked.wanted = Some(Arc::clone(&wanted));
        let Some(drift) = drift else {
            let whole = *tracked.whole.get_or_insert_with(SystemTime::now);
            // Kubelet tells the second in which it ended.
            if failed.is_some_and(|when| when > whole) {
                return Ok(self.tell_of_validator(pod, tracked, &wanted));
            }
            tracked.told.forget();
            return Ok(Standing::InPlace);
        };
        tracked.whole = None;
        let is_mended = match self.settings.repair {
            Repair::Nothing => false,
            Repair::Missing => failed.is_some() || drift.is_loss,
            Repair::All => true,
        };
        if !is_mended {
            if tracked.told.tells(&drift.reason, false, Instant::now()) {
                let words = format!("other rules ({}): {}", drift.reason, drift.words);
                self.tell(pod, EventType::Warning, "LinkerdCNIDrifted", "Verifying", &words);
            }
            return Ok(Standing::Drifted(drift.reason));
        }
        let metrics = &self.health.metrics;
        let begun = Instant::now();
        let rules = in_background(move || rules::repair(&network, &wanted)).await.map_err(|error| {
            metrics.repair_failures.inc();
            format!("its rules are not in place ({}), and it cannot be healed: {error}", drift.reason)
        })?;
        metrics.repairs.observe(begun.elapsed().as_secs_f64());
        tracked.whole = Some(SystemTime::now());
        // A program that takes rules away again and again gets them back each time, but no event for each.
        if tracked.told.tells(&drift.reason, true, Instant::now()) {
            let words = format!(
                "healed: its rules were not in place ({}); {rules} were installed while it runs. A container that failed for \
                 lack of them passes when it starts again",
                drift.reason
            );
            self.tell(pod, EventType::Normal, "LinkerdCNIRepaired", "Repairing", &words);
        }
        Ok(Standing::InPlace)
    }

    /// The state of a pod whose validator fails although the rules are whole: no other rules would let it pass.
    fn tell_of_validator(&self, pod: &P, tracked: &mut Tracked, install: &Install) -> Standing {
        let reason = "validator";
        if tracked.told.tells(reason, false, Instant::now()) {
            let advice = if install.config.ipv6 {
                ""
            } else {
                ": it connects over IPv6, and ipv6 is false. Set ipv6 for the plugin, or disableIPv6 in Linkerd's values"
            };
            let words = format!("the validator exited with 95 although the rules are whole{advice}");
            self.tell(pod, EventType::Warning, "LinkerdCNIValidatorFails", "Verifying", &words);
        }
        Standing::Drifted(reason.to_owned())
    }

    /// Tells of a fact about a pod.
    pub(crate) fn tell(&self, pod: &P, kind: EventType, reason: &str, action: &str, words: &str) {
        self.teller.tell(&pod.reference(), kind, reason, action, words);
    }

    /// Tells Prometheus how the pods stand: each of them once, so that their sum is the number of meshed pods.
    fn count(&self) {
        let mut standings = BTreeMap::from([("new", 0), ("in_place", 0), ("drifted", 0), ("not_known", 0)]);
        let mut reasons = BTreeMap::new();
        for (_, tracked) in self.all.borrow().values() {
            let standing = match &tracked.standing {
                Standing::LeftAlone => continue,
                Standing::New => "new",
                Standing::InPlace => "in_place",
                Standing::NotKnown(_) => "not_known",
                Standing::Drifted(reason) => {
                    *reasons.entry(reason.clone()).or_insert(0) += 1;
                    "drifted"
                }
            };
            *standings.entry(standing).or_insert(0) += 1;
        }
        let metrics = &self.health.metrics;
        for (standing, number) in standings {
            metrics.pods.get_or_create(&[("standing", standing.to_owned())]).set(number);
        }
        metrics.drifts.clear();
        for (reason, number) in reasons {
            metrics.drifts.get_or_create(&[("reason", reason)]).set(number);
        }
    }

    /// When a pod is looked at next: all pods have their turns together, so that one look at the node's processes, which
    /// costs more than many a pod, serves all of them.
    fn next_turn(&self, now: Instant) -> Instant {
        next_turn(self.start, self.settings.verify_every(), now)
    }
}

fn next_turn(start: Instant, every: Option<Duration>, now: Instant) -> Instant {
    let Some(every) = every else {
        return now + NEVER;
    };
    let rounds = now.duration_since(start).as_nanos() / every.as_nanos().max(1) + 1;
    // More rounds than that take a century.
    start + every * u32::try_from(rounds).unwrap_or(u32::MAX)
}

/// Runs what waits for the kernel on a thread of its own.
async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    spawn_blocking(work).await.map_err(|error| error.to_string())?
}

impl Tracked {
    fn new(wanted: Option<Arc<Install>>, standing: Standing, due: Instant) -> Self {
        Self { wanted, standing, read: None, whole: None, due, pause: PAUSE.0, told: Told::default() }
    }
}

/// The last event about a pod's rules: the drift, whether it was repaired, and when that was told.
#[derive(Debug, Clone, Default)]
struct Told(Option<(String, bool, Instant)>);

impl Told {
    /// Returns true if it is to be told now, for it is news, or was told long ago; if so, it counts as told.
    fn tells(&mut self, reason: &str, is_repaired: bool, now: Instant) -> bool {
        let is_old = self.0.as_ref().is_some_and(|(told, was_repaired, when)| {
            (told.as_str(), *was_repaired) == (reason, is_repaired) && now.duration_since(*when) < AGAIN
        });
        if !is_old {
            self.0 = Some((reason.to_owned(), is_repaired, now));
        }
        !is_old
    }

    /// There is no drift any more. A repair counts as told all the same.
    fn forget(&mut self) {
        self.0.take_if(|(_, is_repaired, _)| !*is_repaired);
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
        assert!(told.tells("missing", false, at(0)));
        assert!(!told.tells("missing", false, at(29)));
        assert!(told.tells("missing", false, at(30)));
        assert!(!told.tells("missing", false, at(59)));
        // News is told at once, and so is what comes back.
        assert!(told.tells("other-backend", false, at(60)));
        assert!(told.tells("missing", false, at(61)));
        told.forget();
        assert!(told.tells("missing", false, at(62)));
        // Rules that are taken away again and again are put back each time, and told once.
        assert!(told.tells("missing", true, at(63)));
        told.forget();
        assert!(!told.tells("missing", true, at(64)));
    }

    #[test]
    fn the_turns_are_at_the_same_distance_whenever_a_pod_was_looked_at() {
        let (start, every) = (Instant::now(), Duration::from_secs(30));
        let next = |seconds: u64| next_turn(start, Some(every), start + Duration::from_secs(seconds)) - start;
        for (seconds, turn) in [(0, 30), (29, 30), (30, 60), (31, 60), (30_000, 30_030)] {
            assert_eq!(next(seconds), Duration::from_secs(turn));
        }
    }
}
