//! Readiness where the plugin asks the API server about each pod.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use crate::cluster::Cluster;
use crate::node::{CALICO, ENTRY, Node, until};

/// Whether kubelet would take the agent for ready.
fn is_ready(node: &Node) -> bool {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--fail", "http://127.0.0.1:9991/readyz"]);
    node.network.output(&mut curl).status.success()
}

#[test]
fn it_is_ready_only_while_the_api_server_takes_the_plugins_token() {
    let node = Node::new();
    node.write("10-calico.conflist", CALICO);
    let cluster = Cluster::start(&node);
    let agent = node.agent_of(&cluster, "linkerd2-cni-install", &["--probe-addr", "127.0.0.1:9991"]);
    until("it is ready", || is_ready(&node));
    // The token's pod is gone, say: nothing on the node is different, and each ADD fails.
    cluster.expect_token("another");
    until("it is not ready", || !is_ready(&node));
    assert!(
        agent.says("the plugin could not set up a pod: pod linkerd-cni/agent: the API server answered 401"),
        "{}",
        agent.terminate()
    );
    // The pauses between questions grow.
    let before = cluster.questions_about_agent();
    sleep(Duration::from_secs(6));
    let asked = cluster.questions_about_agent() - before;
    assert!(asked <= 5, "{asked} times in six seconds");
    cluster.expect_token("token-1");
    until("it is ready again", || is_ready(&node));
    let said = agent.terminate();
    assert_eq!(said.matches("the plugin could not set up a pod").count(), 1, "{said}");
    assert!(said.contains("the API server answers the plugin again"), "{said}");
}

#[test]
fn with_annotations_it_is_ready_without_the_api_server() {
    let node = Node::new();
    node.write("10-calico.conflist", CALICO);
    let cluster = Cluster::start(&node);
    cluster.expect_token("another");
    let entry = ENTRY.replace(r#""linkerd": {"#, r#""linkerd": {"pod-info": "annotations", "#);
    // In a pod, as far as it can tell.
    let variables = [
        ("CNI_NETWORK_CONFIG", entry.as_str()),
        ("LINKERD_CNI_AGENT_PROBE_ADDR", "127.0.0.1:9991"),
        ("LINKERD_CNI_REPAIR_CONTROLLER_POD_NAME", "agent"),
    ];
    let agent = node.agent_with(&variables);
    until("it is ready", || is_ready(&node));
    agent.terminate();
}

/// It would be waited for while the node's pods wait for the next agent.
#[test]
fn a_question_that_hangs_holds_up_no_end() {
    let node = Node::new();
    node.write("10-calico.conflist", CALICO);
    let cluster = Cluster::start(&node);
    cluster.go_silent();
    let flags = ["--probe-addr", "127.0.0.1:9991", "--on-exit", "keep"];
    let agent = node.agent_of(&cluster, "linkerd2-cni-install", &flags);
    node.until_installed("10-calico.conflist");
    sleep(Duration::from_secs(1));
    assert!(!is_ready(&node));
    let begun = std::time::Instant::now();
    agent.terminate();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}
