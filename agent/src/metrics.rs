//! What Prometheus reads.

use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::Duration;

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
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let own = registry.sub_registry_with_prefix("linkerd_cni_agent");
        let build = Info::new([("version", env!("CARGO_PKG_VERSION")), ("build", proxy_init::BUILD)]);
        own.register("build", "What the agent was built from", build);
        let metrics = Self {
            ready: Gauge::default(),
            writes: Family::default(),
            contested: Gauge::default(),
            pass: Histogram::new(BUCKETS),
            registry: Registry::default(),
        };
        own.register(
            "ready",
            "1 if pods can be set up: binary, kubeconfig and configuration are in place",
            metrics.ready.clone(),
        );
        own.register(
            "writes",
            "Files written to the node, by what they are",
            metrics.writes.clone(),
        );
        own.register(
            "contested_files",
            "Configurations that another program rewrites without the plugin again and again",
            metrics.contested.clone(),
        );
        own.register(
            "pass_seconds",
            "The time of a look at the node's folders",
            metrics.pass.clone(),
        );
        Self { registry, ..metrics }
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

    /// Counts a pass.
    pub fn passed(&self, time: Duration) {
        self.pass.observe(time.as_secs_f64());
    }
}
