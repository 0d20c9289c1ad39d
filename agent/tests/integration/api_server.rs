//! Answers of the API server: pods that are long or many, and watches that end.

use std::thread;
use std::time::Duration;

use lab::api_double::Plan;
use lab::network::Namespace;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Sandbox};
use crate::node::{until, until_within};
use crate::watch::{Watched, failed, rules, running, uid};

/// The memory of the agent's container, in KiB: `limits` in deploy/cni/base/daemonset.yaml.
const LIMIT: u64 = 64 << 10;

/// A pod as long as etcd takes: most of it is in what nobody asks for.
fn lengthen(pod: &mut Value) {
    let text = |length: usize| "x".repeat(length);
    pod["metadata"]["annotations"] = json!({"example.com/notes": text(250 << 10), "linkerd.io/proxy-version": "v2"});
    pod["metadata"]["managedFields"] = json!([{"manager": "kubelet", "fieldsV1": {text(200 << 10): {}}}]);
    pod["spec"]["containers"][0]["args"] = json!([text(512 << 10), text(538 << 10)]);
}

fn ended() -> Value {
    json!({"phase": "Failed", "reason": "Evicted", "containerStatuses": [{"name": "app", "state": {"terminated": {"exitCode": 1}}}]})
}

/// Waits until another pod is healed, for which the agent has to be well; its UID.
fn heal_last_pod(watched: &Watched) -> String {
    let pod = watched.pod("last", failed());
    until("the last pod has its rules", || rules(&pod.network).contains("--to-ports 4143"));
    pod.uid
}

#[test]
fn long_pods_take_no_more_memory_than_the_agent_may_have() {
    let uids: Vec<String> = (0..110).map(|_| uid()).collect();
    let tell = |cluster: &Cluster, pods: usize| {
        for (number, uid) in uids.iter().enumerate().take(pods) {
            cluster.pod_with(&format!("long-{number}"), uid, json!({"phase": "Pending"}), lengthen);
        }
    };
    let watched = Watched::start_with(&[], |cluster| tell(cluster, 110));
    until_within(Duration::from_secs(300), "all are known", || watched.pods("new").as_deref() == Some("110"));
    let listed = watched.agent.memory();
    // Some change.
    tell(&watched.cluster, 20);
    heal_last_pod(&watched);
    let memory = watched.agent.memory();
    println!("110 pods of 1.5 MB: {listed} KiB once they are listed, {memory} KiB once 20 have changed");
    assert!(memory < LIMIT, "{memory} KiB");
    watched.agent.terminate();
}

#[test]
fn many_pods_take_no_more_memory_than_the_agent_may_have() {
    let watched = Watched::start_with(&[], |cluster| {
        for number in 0..5000 {
            cluster.pod(&format!("small-{number}"), &uid(), running());
        }
    });
    until_within(Duration::from_secs(300), "all are known", || watched.pods("not_known").as_deref() == Some("5000"));
    heal_last_pod(&watched);
    let memory = watched.agent.memory();
    println!("5000 pods: {memory} KiB");
    assert!(memory < LIMIT, "{memory} KiB");
    watched.agent.terminate();
}

#[test]
fn annotations_that_are_too_long_to_be_kept_leave_a_pods_rules_unknown() {
    let long = json!({"config.linkerd.io/skip-outbound-ports": "1,".repeat(2049)});
    let annotations = |object: &mut Value| object["metadata"]["annotations"] = long.clone();
    let watched = Watched::start_with(&[], |cluster| {
        let mut namespace = json!({"metadata": {"name": "long"}});
        annotations(&mut namespace);
        cluster.add("namespaces/long", namespace);
    });
    let networks = [Namespace::new(), Namespace::new()];
    let mut sandboxes = Vec::new();
    for (network, namespace) in networks.iter().zip(["shop", "long"]) {
        let uid = uid();
        let sandbox = Sandbox::of(&uid, network);
        sandboxes.push(sandbox);
        watched.cluster.pod_with("noted", &uid, running(), |pod| {
            pod["metadata"]["namespace"] = json!(namespace);
            if namespace == "shop" {
                annotations(pod);
            }
        });
    }
    heal_last_pod(&watched);
    until("neither is known", || watched.pods("not_known").as_deref() == Some("2"));
    assert!(networks.iter().all(|network| !rules(network).contains("PROXY_INIT")));
    let said = watched.agent.terminate();
    for words in ["the annotations of pod shop/noted", "the annotations of namespace long"] {
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn pods_that_have_ended_are_not_even_asked_for() {
    let watched = Watched::start_with(&[], |cluster| {
        for number in 0..60 {
            cluster.pod_with(&format!("long-{number}"), &uid(), ended(), lengthen);
        }
    });
    let last = heal_last_pod(&watched);
    let in_place = || watched.pods("in_place");
    until("the last one counts", || in_place().as_deref() == Some("1"));
    let new = watched.pods("new");
    assert_eq!(new.as_deref(), Some("0"));
    assert!(watched.agent.memory() < LIMIT, "{} KiB", watched.agent.memory());
    // One that ends is gone.
    watched.cluster.pod("last", &last, ended());
    until("none is left", || in_place().as_deref() == Some("0"));
    let mut watches = watched.cluster.watches();
    watches.retain(|watch| watch.contains("/pods?"));
    assert!(!watches.is_empty());
    for query in [watched.cluster.lists(), watches].concat() {
        assert!(query.contains("status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed"), "{query}");
    }
    watched.agent.terminate();
}

#[test]
fn a_watch_that_ends_at_once_is_asked_for_seldom() {
    let gone = r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",
        "message":"too old resource version: 1 (2)","reason":"Expired","code":410}}"#;
    let cases = [
        ("it ends", Plan::Body(200, String::new())),
        ("it breaks off", Plan::Half),
        ("it fails", Plan::Answer(500, "")),
        ("its version is too old", Plan::Answer(410, "")),
        ("its version is too old, as it says", Plan::Body(200, gone.to_owned())),
    ];
    thread::scope(|scope| {
        for (what, plan) in cases {
            scope.spawn(move || {
                let watched = Watched::start_with(&[], |cluster| {
                    cluster.plan_watches(Some(plan));
                });
                thread::sleep(Duration::from_secs(8));
                let (lists, watches) = (watched.cluster.lists().len(), watched.cluster.watches());
                println!("{what}: {lists} lists and {} watches", watches.len());
                for kind in ["/pods?", "/namespaces?"] {
                    assert!(watches.iter().any(|watch| watch.contains(kind)), "{what}: {watches:?}");
                }
                // So many in half a minute.
                assert!(watches.len() <= 10, "{what}: {watches:?}");
                assert_eq!(lists, 0, "{what}");
                watched.cluster.plan_watches(None);
                heal_last_pod(&watched);
                watched.agent.terminate();
            });
        }
    });
}
