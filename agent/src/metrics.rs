//! What Prometheus reads.

use std::sync::atomic::{AtomicI64, AtomicU64};

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

/// The buckets of Prometheus' client for Go, which upstream's repair controller has, too.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// A name and its value.
pub type Label = [(&'static str, String); 1];

/// A command of the runtime's, and the code with which it ended.
pub type End = [(&'static str, String); 2];

/// Every metric.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Whether pods can be set up.
    pub ready: Gauge<i64, AtomicI64>,
    /// Files written, by what they are.
    pub writes: Family<Label, Counter<u64, AtomicU64>>,
    /// Files that another program rewrites again and again.
    pub contested: Gauge<i64, AtomicI64>,
    /// How long a pass over the folders took.
    pub pass: Histogram,
    /// Pods, by how they stand.
    pub pods: Family<Label, Gauge<i64, AtomicI64>>,
    /// Pods whose rules are not as they should be, by the first difference.
    pub drifts: Family<Label, Gauge<i64, AtomicI64>>,
    /// How long a look at pods took.
    pub round: Histogram,
    /// Pods healed in place.
    pub repairs: Histogram,
    /// Pods that couldn't be.
    pub repair_failures: Counter<u64, AtomicU64>,
    /// The plugin's commands that the agent heard of, by how they ended.
    pub commands: Family<End, Counter<u64, AtomicU64>>,
    /// Upstream's, under its names, from here on.
    pub deleted: Counter<u64, AtomicU64>,
    /// Deletions' times.
    pub delete_latency: Histogram,
    /// Deletions that were refused.
    pub delete_errors: Counter<u64, AtomicU64>,
    /// Deletions that took too long.
    pub delete_timeouts: Counter<u64, AtomicU64>,
    /// Events' times.
    pub event_latency: Histogram,
    /// Events that were refused.
    pub event_errors: Counter<u64, AtomicU64>,
    /// Events that took too long.
    pub event_timeouts: Counter<u64, AtomicU64>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let metrics = Self::unregistered();
        let build = Info::new([("version", env!("CARGO_PKG_VERSION")), ("build", proxy_init::BUILD)]);
        let own = registry.sub_registry_with_prefix("linkerd_cni_agent");
        own.register("build", "What the agent was built from", build);
        metrics.register_own(own);
        registry.sub_registry_with_prefix("linkerd_cni_plugin").register(
            "commands",
            "Commands of the runtime's that the plugin has ended, by their code in docs/cni.md; 0: it did what was asked for",
            metrics.commands.clone(),
        );
        metrics.register_upstreams(registry.sub_registry_with_prefix("linkerd_cni_repair_controller"));
        Self { registry, ..metrics }
    }
}

impl Metrics {
    fn unregistered() -> Self {
        Self {
            registry: Registry::default(),
            ready: Gauge::default(),
            writes: Family::default(),
            contested: Gauge::default(),
            pass: Histogram::new(BUCKETS),
            pods: Family::default(),
            drifts: Family::default(),
            round: Histogram::new(BUCKETS),
            repairs: Histogram::new(BUCKETS),
            repair_failures: Counter::default(),
            commands: Family::default(),
            deleted: Counter::default(),
            delete_latency: Histogram::new(BUCKETS),
            delete_errors: Counter::default(),
            delete_timeouts: Counter::default(),
            event_latency: Histogram::new(BUCKETS),
            event_errors: Counter::default(),
            event_timeouts: Counter::default(),
        }
    }

    fn register_own(&self, own: &mut Registry) {
        own.register(
            "ready",
            "1 if pods can be set up: all files are in place, and the plugin and the API server, where it is asked, say so",
            self.ready.clone(),
        );
        own.register("writes", "Files written to the node, by what they are", self.writes.clone());
        own.register(
            "contested_files",
            "Files of the plugin that another program rewrites again and again",
            self.contested.clone(),
        );
        own.register("pass_seconds", "The time of a look at the node's folders", self.pass.clone());
        own.register(
            "pods",
            "Meshed pods of the node: not looked at yet (new), with the rules that they should have (in_place), with others \
             (drifted), and those of which it can't be told (not_known)",
            self.pods.clone(),
        );
        own.register(
            "pods_drifted",
            "Pods whose rules are not as they should be, by the first difference in verify's words; none: without any rules",
            self.drifts.clone(),
        );
        own.register("round_seconds", "The time of a look at the pods that were due", self.round.clone());
        own.register(
            "repair_seconds",
            "Pods whose rules were installed while they ran, and the time of each",
            self.repairs.clone(),
        );
        own.register(
            "repair_failures",
            "Pods whose rules couldn't be installed while they ran",
            self.repair_failures.clone(),
        );
    }

    /// By the names and meanings of cni-repair-controller/src/lib.rs in linkerd2-proxy-init.
    fn register_upstreams(&self, upstream: &mut Registry) {
        // This agent has no queue that could overflow: a pod that is due is looked at in its turn.
        upstream.register("queue_overflow", "Always 0", Counter::<u64, AtomicU64>::default());
        upstream.register("pods_deleted", "Number of pods deleted", self.deleted.clone());
        upstream.register("pods_delete_latency_seconds", "The time of each deletion", self.delete_latency.clone());
        upstream.register("pods_delete_errors", "Deletions that the API server refused", self.delete_errors.clone());
        upstream.register("pods_delete_timeout", "Deletions that took too long", self.delete_timeouts.clone());
        upstream.register("events_publish_latency_seconds", "The time of each event", self.event_latency.clone());
        upstream.register("events_publish_errors", "Events that the API server refused", self.event_errors.clone());
        upstream.register("events_publish_timeouts", "Events that took too long", self.event_timeouts.clone());
    }

    /// In OpenMetrics' text format.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String can't fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    /// Counts files.
    pub fn count(&self, what: &str, number: u64) {
        self.writes.get_or_create(&[("what", what.to_owned())]).inc_by(number);
    }

    /// Commands of the plugin's are counted from here on: what Prometheus sees of a counter is how it grows from a value
    /// that was there before.
    pub fn begin_commands(&self) {
        drop(self.commands.get_or_create(&end("ADD".to_owned(), 0)));
    }

    /// Counts a command of the plugin's.
    pub fn ended(&self, command: String, code: u32) {
        self.commands.get_or_create(&end(command, code)).inc();
    }
}

fn end(command: String, code: u32) -> End {
    [("command", command), ("code", code.to_string())]
}
