//! Recognises a pod's network namespace: processes that made others, copies of it, and a runtime's leftovers in a pod's
//! cgroup.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use lab::network::Namespace;
use serde_json::json;

use crate::cluster::Sandbox;
use crate::node::until;
use crate::watch::{Watched, failed, rules, running, uid};

/// One that a process made for itself, in a user namespace of its own: that takes no capability.
fn of_own_users() -> Namespace {
    Namespace::of_user_namespace(100_000)
}

/// The agent's words about a pod that it has left alone.
fn said_of(watched: Watched, name: &str) -> String {
    until("it isn't known", || watched.pods("not_known").as_deref() == Some("1"));
    let said = watched.agent.terminate();
    let line = said.lines().find(|line| line.contains(&format!("shop/{name}: ")));
    line.unwrap_or_else(|| panic!("{said}")).to_owned()
}

#[test]
fn a_network_that_a_process_made_is_not_taken_for_the_pods_whoever_is_first() {
    for elsewhere in [Namespace::new(), of_own_users()] {
        for is_first in [false, true] {
            let watched = Watched::start(&[]);
            let (network, uid) = (Namespace::new(), uid());
            let mut sandbox = Sandbox::new(&uid);
            // Start times are in hundredths of a second.
            if is_first {
                sandbox.add_elsewhere(&elsewhere);
                sleep(Duration::from_millis(50));
            }
            sandbox.add(&network);
            sleep(Duration::from_millis(50));
            sandbox.add_elsewhere(&elsewhere);
            watched.cluster.pod("web-0", &uid, failed());
            until("the rules are there", || rules(&network).contains("--to-ports 4143"));
            assert!(!rules(&elsewhere).contains("PROXY_INIT"), "is_first: {is_first}");
            watched.agent.terminate();
        }
    }
}

#[test]
fn where_only_processes_networks_can_be_seen_nothing_is_healed() {
    // With capabilities, but without the pod's address; and without any, but with it.
    let (made, copied) = (Namespace::new(), of_own_users());
    for (network, is_copy, words) in
        [(&made, false, "none of the pod's addresses"), (&copied, true, "it belongs to another user namespace")]
    {
        let watched = Watched::start(&[]);
        let uid = uid();
        let mut sandbox = Sandbox::new(&uid);
        if is_copy {
            sandbox.add(network);
        } else {
            sandbox.add_elsewhere(network);
        }
        watched.cluster.pod("web-0", &uid, running());
        let said = said_of(watched, "web-0");
        assert!(said.contains(words), "{said}");
        assert!(!rules(network).contains("PROXY_INIT"));
    }
}

#[test]
fn of_two_networks_with_the_pods_address_neither_is_taken() {
    let watched = Watched::start(&[]);
    let (network, copy, uid) = (Namespace::new(), Namespace::new(), uid());
    let mut sandbox = Sandbox::of(&uid, &network);
    sandbox.add(&copy);
    watched.cluster.pod("web-0", &uid, running());
    let said = said_of(watched, "web-0");
    assert!(said.contains("2 network namespaces"), "{said}");
    assert!(!rules(&network).contains("PROXY_INIT") && !rules(&copy).contains("PROXY_INIT"));
}

#[test]
fn without_an_address_nothing_is_known() {
    let watched = Watched::start(&[]);
    let network = Namespace::new();
    let _pod = watched.pod_in(&network, "web-0", running(), |pod| pod["status"]["podIPs"] = json!([]));
    let said = said_of(watched, "web-0");
    assert!(said.contains("doesn't say"), "{said}");
    assert!(!rules(&network).contains("PROXY_INIT"));
}

#[test]
fn a_pod_with_users_of_its_own_is_known_by_the_namespace_right_below_the_nodes() {
    for (has_own, heals) in [(true, true), (false, false)] {
        let watched = Watched::start(&[]);
        let network = of_own_users();
        let _pod = watched.pod_in(&network, "web-0", running(), |pod| pod["spec"]["hostUsers"] = json!(!has_own));
        if heals {
            until("it is in place", || watched.pods("in_place").as_deref() == Some("1"));
            watched.agent.terminate();
        } else {
            said_of(watched, "web-0");
        }
        // In whichever mode.
        let ruleset = network.stdout("nft", ["list", "ruleset"]);
        assert_eq!(ruleset.contains("4143"), heals, "{ruleset}");
    }
}

#[test]
fn a_runtimes_helper_in_the_pods_cgroup_hides_nothing() {
    // As CRI-O's conmon with `conmon_cgroup = "pod"`, which OpenShift has.
    let watched = Watched::start(&[]);
    let (network, uid) = (Namespace::new(), uid());
    let mut sandbox = Sandbox::new(&uid);
    sandbox.add_elsewhere(&watched.node.network);
    sleep(Duration::from_millis(50));
    sandbox.add(&network);
    watched.cluster.pod("web-0", &uid, failed());
    until("the rules are there", || rules(&network).contains("--to-ports 4143"));
    assert!(!rules(&watched.node.network).contains("PROXY_INIT"));
    watched.agent.terminate();
}

#[test]
fn however_fast_processes_change_networks_the_agents_own_gets_no_rules() {
    const TOGGLE: &str = r#"open my $a, "<", $ARGV[1] or die; open my $b, "<", $ARGV[2] or die;
        while (1) { for ($a, $b) { syscall($ARGV[0], fileno($_), 0x40000000) == 0 or die $! } }"#;
    const PODS: usize = 12;
    // A look at /proc is old by the time of the answer.
    let watched = Watched::start_slow("statx");
    let mut pods = Vec::new();
    for number in 0..PODS {
        let (network, uid) = (Namespace::new(), uid());
        let mut sandbox = Sandbox::new(&uid);
        let mut perl = Command::new("perl");
        perl.args(["-e", TOGGLE, &nix::libc::SYS_setns.to_string()]);
        perl.args([watched.node.network.path(), network.path()]);
        sandbox.start(&network, &mut perl);
        sleep(Duration::from_millis(50));
        sandbox.add(&network);
        watched.cluster.pod(&format!("web-{number}"), &uid, running());
        pods.push((network, sandbox));
    }
    let all = PODS.to_string();
    until("all are in place", || {
        assert!(!rules(&watched.node.network).contains("PROXY_INIT"));
        watched.pods("in_place").as_ref() == Some(&all)
    });
    for (network, _) in &pods {
        assert!(rules(network).contains("--to-ports 4143"));
    }
    watched.agent.terminate();
}
