//! A configuration that the plugin's own STATUS refuses replaces nothing that works.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::node::{CALICO, ENTRY, Node, until};

/// A plugin that refuses the mode `nftt`.
const REFUSES: &str = r#"case $asked in *nftt*) echo '{"code": 7, "msg": "the mode nftt is none"}'; exit 1;; esac"#;

fn bad() -> String {
    ENTRY.replace("\"nft\"", "\"nftt\"")
}

#[test]
fn a_configuration_that_the_plugin_refuses_replaces_neither_the_entry_nor_the_program() {
    let node = Node::new();
    node.write("10-calico.conflist", CALICO);
    node.image_whose_status(REFUSES);
    let agent = node.agent(&[]);
    until("it is ready", || agent.says("ready: the plugin is in 1 network configurations"));
    agent.terminate();
    let list = fs::read_to_string(node.net("10-calico.conflist")).unwrap();
    let program = fs::read(node.bin("linkerd-cni")).unwrap();
    let is_as_before = || {
        fs::read_to_string(node.net("10-calico.conflist")).is_ok_and(|now| now == list)
            && fs::read(node.bin("linkerd-cni")).is_ok_and(|now| now == program)
    };
    node.image_whose_status(&format!("# newer\n{REFUSES}"));
    let agent = node.agent_with(&[("CNI_NETWORK_CONFIG", &bad())]);
    until("it says why", || agent.says("what is on the node stays as it is") && agent.says("the mode nftt is none"));
    assert!(is_as_before());
    // The old entry is what it keeps.
    node.write("10-calico.conflist", CALICO);
    until("the old entry is back", is_as_before);
    sleep(Duration::from_millis(500));
    assert!(is_as_before() && !agent.says("ready: "));
    agent.terminate();
    let agent = node.agent(&[]);
    until("a good configuration is taken", || agent.says("ready: the plugin is in 1 network configurations"));
    assert_ne!(fs::read(node.bin("linkerd-cni")).unwrap(), program);
    agent.terminate();
}

#[test]
fn a_plugin_that_would_fail_each_pod_is_not_chained_at_first() {
    let node = Node::new();
    node.write("10-calico.conflist", CALICO);
    node.image_whose_status(REFUSES);
    let agent = node.agent_with(&[("CNI_NETWORK_CONFIG", &bad())]);
    until("it says why", || agent.says("the mode nftt is none"));
    sleep(Duration::from_millis(500));
    assert_eq!(fs::read_to_string(node.net("10-calico.conflist")).unwrap(), CALICO);
    assert!(!agent.says("ready: "));
    agent.terminate();
}

#[test]
fn a_plugin_that_hangs_holds_nothing_up() {
    let node = Node::new();
    node.write("10-calico.conflist", CALICO);
    let agent = node.agent(&[]);
    until("it is ready", || agent.says("ready: the plugin is in 1 network configurations"));
    agent.terminate();
    let list = fs::read_to_string(node.net("10-calico.conflist")).unwrap();
    node.image_whose_status("sleep 1000");
    let agent = node.agent(&[]);
    until("it says that the plugin takes too long", || agent.says("took longer than 5s"));
    node.write("10-calico.conflist", CALICO);
    until("the entry is back", || fs::read_to_string(node.net("10-calico.conflist")).is_ok_and(|now| now == list));
    let start = Instant::now();
    agent.terminate();
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
}

#[test]
fn a_plugin_that_refuses_is_asked_at_growing_pauses_whatever_happens_in_the_folder() {
    let node = Node::new();
    node.write("10-calico.conflist", CALICO);
    let asked = node.path().join("asked");
    node.image_whose_status(&format!("echo >> {}; exit 1", asked.display()));
    let agent = node.agent(&[]);
    until("it was asked", || asked.exists());
    for _ in 0..100 {
        node.write("10-calico.conflist", CALICO);
        sleep(Duration::from_millis(50));
    }
    let times = fs::read_to_string(&asked).unwrap().lines().count();
    assert!((2..=4).contains(&times), "{times}");
    agent.terminate();
}
