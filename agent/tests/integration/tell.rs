//! The agent's words about the node at the API server: events, and the removed taint.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::node::{CALICO, Node, until_within};

const TAINT: &str = "linkerd.io/cni-not-ready";
/// A bound against hanging.
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn the_taint_goes_once_the_node_is_ready_and_nothing_else_does() {
    let node = Node::new();
    let cluster = Cluster::start(&node);
    let other =
        json!({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"});
    let ours = |effect: &str| json!({"key": TAINT, "effect": effect});
    let tainted = json!([ours("NoSchedule"), other, ours("NoExecute")]);
    cluster.taint(&tainted);
    let agent = node.agent_of(&cluster, &["--remove-taint", TAINT]);
    // Without a configuration it isn't ready.
    until_within(LIMIT, "the plugin is there", || node.bin("linkerd-cni").exists());
    thread::sleep(Duration::from_millis(300));
    assert_eq!(cluster.node()["taints"], tainted);
    node.write("10-calico.conflist", CALICO);
    until_within(LIMIT, "the taint is gone", || cluster.node()["taints"] == json!([other]));
    assert_eq!(cluster.node()["podCIDR"], "10.0.0.0/24");
    // A user who taints the node while it is ready has a reason.
    cluster.taint(&tainted);
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(cluster.node()["taints"], tainted);
    let said = agent.terminate();
    assert_eq!(said.matches("removed the taint").count(), 1, "{said}");
}

#[test]
fn a_taint_that_cannot_be_removed_is_told_once_and_tried_again() {
    let node = Node::with_calico();
    let cluster = Cluster::start(&node);
    // There is no such node yet.
    cluster.remove("nodes/node-1");
    let agent = node.agent_of(&cluster, &["--remove-taint", TAINT]);
    node.until_installed("10-calico.conflist");
    let told = || cluster.notes_of_node().into_iter().filter(|note| note["reason"] == "LinkerdCNITaintStays").count();
    until_within(LIMIT, "an event says that the taint stays", || told() == 1);
    cluster.taint(&json!([{"key": TAINT, "effect": "NoSchedule"}]));
    until_within(LIMIT, "the taint is gone", || cluster.node()["taints"] == json!([]));
    assert_eq!(told(), 1);
    let said = agent.terminate();
    let said_so = |level: &str| {
        let is_so = |line: &&str| line.contains(level) && line.contains("cannot be removed from the node");
        said.lines().filter(is_so).count()
    };
    assert_eq!((said_so(" WARN "), said_so(" INFO ")), (1, 1), "{said}");
}

#[test]
fn files_that_are_skipped_or_contested_are_events_of_the_node() {
    let node = Node::new();
    node.write("05-half.conflist", r#"{"name": "half", "plugins": ["#);
    node.write("06-none.conflist", r#"{"name": "none", "plugins": []}"#);
    node.write("10-calico.conflist", CALICO);
    let cluster = Cluster::start(&node);
    let agent = node.agent_of(&cluster, &[]);
    let note = |reason: &str, words: &str| {
        let is_so = |note: &Value| {
            let text = note["note"].as_str().unwrap_or_default();
            note["reason"] == reason && note["type"] == "Warning" && text.contains(words)
        };
        cluster.notes_of_node().into_iter().find(is_so)
    };
    for file in ["05-half.conflist", "06-none.conflist"] {
        until_within(LIMIT, "a skipped file is told", || note("LinkerdCNISkipped", file).is_some());
    }
    let told = note("LinkerdCNISkipped", "05-half.conflist").unwrap();
    assert_eq!(told["regarding"], json!({"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "node-1"}));
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                node.write("10-calico.conflist", CALICO);
                thread::sleep(Duration::from_millis(20));
            }
        });
        let begun = std::time::Instant::now();
        while note("LinkerdCNIContested", "10-calico.conflist").is_none() && begun.elapsed() < LIMIT {
            thread::sleep(Duration::from_millis(20));
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(note("LinkerdCNIContested", "10-calico.conflist").is_some());
    agent.terminate();
}
