//! Readiness where the plugin asks the API server about each pod.

use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use lab::api_double::Plan;

use crate::cluster::Cluster;
use crate::node::{ENTRY, Node, until};

/// Returns true if kubelet would take the agent for ready.
fn is_ready(node: &Node) -> bool {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--fail", "http://127.0.0.1:9991/readyz"]);
    node.network.output(&mut curl).status.success()
}

#[test]
fn it_is_ready_only_while_the_api_server_takes_the_plugins_token() {
    let node = Node::with_calico();
    let cluster = Cluster::start(&node);
    let agent = node.agent_of(&cluster, &["--probe-addr", "127.0.0.1:9991"]);
    until("it is ready", || is_ready(&node));
    // The token's pod is gone, say: nothing on the node is different, and each ADD fails.
    cluster.expect_token("another");
    until("it is not ready", || !is_ready(&node));
    assert!(
        agent.says("the plugin could not set up a pod: pod default/agent: the API server answered 401"),
        "{}",
        agent.terminate()
    );
    // The pauses between questions grow.
    let before = cluster.questions_about_access();
    sleep(Duration::from_secs(6));
    let asked = cluster.questions_about_access() - before;
    assert!(asked <= 5, "{asked} times in six seconds");
    cluster.expect_token("token-1");
    until("it is ready again", || is_ready(&node));
    let said = agent.terminate();
    assert_eq!(said.matches("ERROR linkerd_cni_agent::repeat: the plugin could not set up a pod").count(), 1, "{said}");
    assert!(said.contains("no longer: the plugin could not set up a pod"), "{said}");
}

/// A role in the agent's own namespace isn't enough, nor is what a proxy says.
#[test]
fn it_is_ready_only_while_the_api_server_answers_about_pods_of_other_namespaces() {
    for (own, other) in [("linkerd-cni", "default"), ("default", "kube-system")] {
        let node = Node::with_calico();
        let cluster = Cluster::start(&node);
        fs::write(node.path().join("account/namespace"), own).unwrap();
        let path = format!("namespaces/{other}/pods/agent");
        cluster.plan_for(&path, Plan::Answer(403, ""));
        let agent = node.agent_of(&cluster, &["--probe-addr", "127.0.0.1:9991"]);
        let says = |status: &str| {
            let line =
                format!("the plugin could not set up a pod: pod {other}/agent: the API server answered {status}");
            until("it says what the answer was", || agent.says(&line));
            assert!(!is_ready(&node), "{status}");
        };
        says("403");
        cluster.plan_for(&path, Plan::Body(404, "<html>404</html>".to_owned()));
        says("404 Not Found, which is not about the pod");
        // For a path that it doesn't serve.
        cluster.plan_for(&path, Plan::Answer(404, ""));
        says("404 Not Found: the double's words for 404, which is not about the pod");
        cluster.plan_for(&path, Plan::Late(Duration::ZERO));
        until("it is ready", || is_ready(&node));
        agent.terminate();
    }
}

#[test]
fn with_annotations_it_is_ready_without_the_api_server() {
    let node = Node::with_calico();
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
    let node = Node::with_calico();
    let cluster = Cluster::start(&node);
    cluster.go_silent();
    let flags = ["--probe-addr", "127.0.0.1:9991", "--on-exit", "keep"];
    let agent = node.agent_of(&cluster, &flags);
    node.until_installed("10-calico.conflist");
    sleep(Duration::from_secs(1));
    assert!(!is_ready(&node));
    let begun = std::time::Instant::now();
    agent.terminate();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}
