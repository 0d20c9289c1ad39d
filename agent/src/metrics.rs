//! The metrics that Prometheus reads.

use std::ops::Deref;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

/// A name with its value.
type Label = [(&'static str, String); 1];

/// Every metric; [`Metrics::text`] says what each of them is.
#[derive(Debug, Default)]
#[allow(missing_docs, reason = "the text that Prometheus reads is their documentation")]
pub struct Metrics {
    pub ready: Gauge,
    pub writes: Family<Label, Counter>,
    pub contested: Gauge,
    pub pass: Seconds,
    pub pods: Family<Label, Gauge>,
    pub drifts: Family<Label, Gauge>,
    pub round: Seconds,
    pub repairs: Seconds,
    pub repair_failures: Counter,
    pub sandboxes: Family<Label, Counter>,
    pub event_latency: Seconds,
    pub event_errors: Counter,
    pub event_timeouts: Counter,
    pub taint_errors: Counter,
}

/// Times, in the buckets of Prometheus' client for Go, which upstream's repair controller has, too.
#[derive(Debug)]
pub struct Seconds(Histogram);

impl Default for Seconds {
    fn default() -> Self {
        Self(Histogram::new([0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]))
    }
}

impl Deref for Seconds {
    type Target = Histogram;

    fn deref(&self) -> &Histogram {
        &self.0
    }
}

impl Metrics {
    /// In OpenMetrics' text format.
    pub fn text(&self) -> String {
        let mut registry = Registry::default();
        let own = registry.sub_registry_with_prefix("linkerd_cni_agent");
        let build = Info::new([("version", env!("CARGO_PKG_VERSION")), ("build", proxy_init::BUILD)]);
        own.register("build", "What the agent was built from", build);
        own.register(
            "ready",
            "1 if pods can be set up: all files are in place, and the plugin and the API server, where it is asked, say so",
            self.ready.clone(),
        );
        own.register("writes", "Files written to the node, by what they are", self.writes.clone());
        let help = "Files of the plugin that another program rewrites again and again";
        own.register("contested_files", help, self.contested.clone());
        own.register("pass_seconds", "The time of a look at the node's folders", self.pass.clone());
        own.register(
            "pods",
            "Meshed pods of the node: not looked at yet (new), with the rules that they should have (in_place), with others \
             (drifted), and those of which it can't be told (not_known)",
            self.pods.clone(),
        );
        own.register(
            "pods_drifted",
            "Pods whose rules are not as they should be, by the first difference in verify's words; none: without any rules; \
             validator: Linkerd's validator fails although they are",
            self.drifts.clone(),
        );
        own.register("round_seconds", "The time of a look at the pods that were due", self.round.clone());
        let help = "Pods whose rules were installed while they ran, and the time of each";
        own.register("repair_seconds", help, self.repairs.clone());
        let help = "Pods whose rules couldn't be installed while they ran";
        own.register("repair_failures", help, self.repair_failures.clone());
        let help = "Attempts to remove the taint of --remove-taint from the node that failed";
        own.register("taint_errors", help, self.taint_errors.clone());
        let help = "Pods that the runtime had set up by NRI, by the code in docs/cni.md; 0: they have their rules";
        own.register("sandboxes", help, self.sandboxes.clone());

        // By the names and meanings of cni-repair-controller/src/lib.rs in linkerd2-proxy-init.
        let upstream = registry.sub_registry_with_prefix("linkerd_cni_repair_controller");
        upstream.register("events_publish_latency_seconds", "The time of each event", self.event_latency.clone());
        upstream.register("events_publish_errors", "Events that the API server refused", self.event_errors.clone());
        upstream.register("events_publish_timeouts", "Events that took too long", self.event_timeouts.clone());
        let mut text = String::new();
        // Writing to a String can't fail.
        let _ = encode(&mut text, &registry);
        text
    }

    /// Counts files.
    pub fn count(&self, what: &str, number: u64) {
        self.writes.get_or_create(&[("what", what.to_owned())]).inc_by(number);
    }

    /// Sandboxes are counted from here on: what Prometheus sees of a counter is how it grows from a value that was there
    /// before.
    pub fn begin_sandboxes(&self) {
        drop(self.sandboxes.get_or_create(&[("code", 0.to_string())]));
    }
}
