//! A configuration that the plugin's own STATUS refuses replaces nothing that works.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use crate::node::{CALICO, ENTRY, Node, until};

/// The plugin knows no mode of this name.
fn bad() -> String {
    ENTRY.replace("\"nft\"", "\"nftt\"")
}

#[test]
fn a_configuration_that_the_plugin_refuses_replaces_neither_the_entry_nor_the_program() {
    let node = Node::with_calico();
    let agent = node.agent(&[]);
    until("it is ready", || agent.says("ready: the plugin is in 1 network configurations"));
    agent.terminate();
    let list = fs::read_to_string(node.net("10-calico.conflist")).unwrap();
    let program = fs::read(node.bin("linkerd-cni")).unwrap();
    let is_as_before = || {
        fs::read_to_string(node.net("10-calico.conflist")).is_ok_and(|now| now == list)
            && fs::read(node.bin("linkerd-cni")).is_ok_and(|now| now == program)
    };
    node.image("newer");
    let agent = node.agent_with(&[("CNI_NETWORK_CONFIG", &bad())]);
    until("it says why", || agent.says("what is on the node stays as it is") && agent.says("nftt"));
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
    let node = Node::with_calico();
    let agent = node.agent_with(&[("CNI_NETWORK_CONFIG", &bad())]);
    until("it says why", || agent.says("nftt"));
    sleep(Duration::from_millis(500));
    assert_eq!(fs::read_to_string(node.net("10-calico.conflist")).unwrap(), CALICO);
    assert!(!agent.says("ready: "));
    agent.terminate();
}

#[test]
fn a_plugin_that_refuses_is_asked_at_growing_pauses_whatever_happens_in_the_folder() {
    let node = Node::with_calico();
    let calls = node.path().join("calls");
    let script =
        format!("set -- strace -D -f -qq -e trace=unshare -e inject=unshare:error=EPERM -o {} \"$@\"", calls.display());
    let agent = node.agent_in_mounts(&script, &[]);
    until("it says what is wrong", || agent.says("the plugin could not set up a pod: ") && agent.says("CAP_SYS_ADMIN"));
    for _ in 0..100 {
        node.write("10-calico.conflist", CALICO);
        sleep(Duration::from_millis(50));
    }
    let tries = fs::read_to_string(&calls).unwrap().lines().filter(|line| line.contains("CLONE_NEWNET")).count();
    assert!((2..=4).contains(&tries), "{tries}");
    assert_eq!(fs::read_to_string(node.net("10-calico.conflist")).unwrap(), CALICO);
    agent.terminate();
}
