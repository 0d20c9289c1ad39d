//! The metrics that Prometheus reads.

use std::sync::atomic::{AtomicI64, AtomicU64};

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};

/// The buckets of Prometheus' client for Go, which upstream's repair controller has, too.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// A name and its value.
pub(crate) type Label = [(&'static str, String); 1];

/// A command of the runtime's, and the code with which it ended.
pub(crate) type End = [(&'static str, String); 2];

/// Every metric; [`Metrics::default`] says what each of them is.
#[derive(Debug)]
#[allow(missing_docs, reason = "the text that Prometheus reads is their documentation")]
pub struct Metrics {
    registry: Registry,
    pub ready: Gauge<i64, AtomicI64>,
    pub writes: Family<Label, Counter<u64, AtomicU64>>,
    pub contested: Gauge<i64, AtomicI64>,
    pub pass: Histogram,
    pub pods: Family<Label, Gauge<i64, AtomicI64>>,
    pub drifts: Family<Label, Gauge<i64, AtomicI64>>,
    pub round: Histogram,
    pub repairs: Histogram,
    pub repair_failures: Counter<u64, AtomicU64>,
    pub commands: Family<End, Counter<u64, AtomicU64>>,
    pub deleted: Counter<u64, AtomicU64>,
    pub delete_latency: Histogram,
    pub delete_errors: Counter<u64, AtomicU64>,
    pub delete_timeouts: Counter<u64, AtomicU64>,
    pub event_latency: Histogram,
    pub event_errors: Counter<u64, AtomicU64>,
    pub event_timeouts: Counter<u64, AtomicU64>,
}

/// Registers a metric.
fn add<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

fn add_histogram(registry: &mut Registry, name: &str, help: &str) -> Histogram {
    add(registry, name, help, Histogram::new(BUCKETS))
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();

        let own = registry.sub_registry_with_prefix("linkerd_cni_agent");
        let build = Info::new([("version", env!("CARGO_PKG_VERSION")), ("build", proxy_init::BUILD)]);
        own.register("build", "What the agent was built from", build);
        let ready = add(
            own,
            "ready",
            "1 if pods can be set up: all files are in place, and the plugin and the API server, where it is asked, say so",
            Gauge::default(),
        );
        let writes = add(own, "writes", "Files written to the node, by what they are", Family::default());
        let contested = "Files of the plugin that another program rewrites again and again";
        let contested = add(own, "contested_files", contested, Gauge::default());
        let pass = add_histogram(own, "pass_seconds", "The time of a look at the node's folders");
        let pods = add(
            own,
            "pods",
            "Meshed pods of the node: not looked at yet (new), with the rules that they should have (in_place), with others \
             (drifted), and those of which it can't be told (not_known)",
            Family::default(),
        );
        let drifts = add(
            own,
            "pods_drifted",
            "Pods whose rules are not as they should be, by the first difference in verify's words; none: without any rules",
            Family::default(),
        );
        let round = add_histogram(own, "round_seconds", "The time of a look at the pods that were due");
        let repairs = "Pods whose rules were installed while they ran, and the time of each";
        let repairs = add_histogram(own, "repair_seconds", repairs);
        let repair_failures = "Pods whose rules couldn't be installed while they ran";
        let repair_failures = add(own, "repair_failures", repair_failures, Counter::default());

        let plugin = registry.sub_registry_with_prefix("linkerd_cni_plugin");
        let commands = add(
            plugin,
            "commands",
            "Commands of the runtime's that the plugin has ended, by their code in docs/cni.md; 0: it did what was asked for",
            Family::default(),
        );

        // By the names and meanings of cni-repair-controller/src/lib.rs in linkerd2-proxy-init.
        let upstream = registry.sub_registry_with_prefix("linkerd_cni_repair_controller");
        // The agent has no queue that could overflow: a pod that is due is looked at in its turn.
        upstream.register("queue_overflow", "Always 0", Counter::<u64, AtomicU64>::default());
        let deleted = add(upstream, "pods_deleted", "Number of pods deleted", Counter::default());
        let delete_latency = add_histogram(upstream, "pods_delete_latency_seconds", "The time of each deletion");
        let delete_errors = "Deletions that the API server refused";
        let delete_errors = add(upstream, "pods_delete_errors", delete_errors, Counter::default());
        let delete_timeouts = add(upstream, "pods_delete_timeout", "Deletions that took too long", Counter::default());
        let event_latency = add_histogram(upstream, "events_publish_latency_seconds", "The time of each event");
        let event_errors = "Events that the API server refused";
        let event_errors = add(upstream, "events_publish_errors", event_errors, Counter::default());
        let event_timeouts = add(upstream, "events_publish_timeouts", "Events that took too long", Counter::default());

        Self {
            registry,
            ready,
            writes,
            contested,
            pass,
            pods,
            drifts,
            round,
            repairs,
            repair_failures,
            commands,
            deleted,
            delete_latency,
            delete_errors,
            delete_timeouts,
            event_latency,
            event_errors,
            event_timeouts,
        }
    }
}

impl Metrics {
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
