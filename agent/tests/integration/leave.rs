//! Leaving the node, and two agents on one.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use lab::api_double::Plan;
use nix::sys::signal::Signal;
use serde_json::json;

use crate::cluster::{Cluster, SET, not_found};
use crate::node::{AGENT, CALICO, KUBECONFIG, Node, until};

const CONF: &str = r#"{"cniVersion": "0.3.1", "type": "bridge", "bridge": "cni0"}"#;

/// The time that a watch may take to tell of a change, before nothing answers any more.
const SEEN: Duration = Duration::from_secs(2);

/// Runs `work` while another thread sees that no configuration ever names a program or a kubeconfig that isn't there.
pub(crate) fn watched(node: &Node, work: impl FnOnce()) {
    /// However the work ends, the watcher does too.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut looks = 0;
            while !over.load(Ordering::Relaxed) {
                let there = || node.bin("linkerd-cni").exists() && node.net(KUBECONFIG).exists();
                // Each file that names the program, with what tells it from another of its name.
                let named = || -> Vec<_> {
                    ["10-calico.conflist", "99-bridge.conflist", "99-bridge.json.conflist", ".05-hidden.conflist"]
                        .iter()
                        .filter(|name| {
                            fs::read_to_string(node.net(name)).is_ok_and(|text| text.contains("linkerd-cni"))
                        })
                        .filter_map(|name| fs::metadata(node.net(name)).ok())
                        .map(|file| (file.ino(), file.mtime(), file.mtime_nsec()))
                        .collect()
                };
                // A file that is there before and afterwards was there all the while.
                let before = named();
                if !there() {
                    let after = named();
                    assert!(
                        !before.iter().any(|file| after.contains(file)),
                        "the configuration names a program that isn't there"
                    );
                }
                looks += 1;
                sleep(Duration::from_micros(100));
            }
            assert!(looks > 0);
        });
        let ends = Over(&over);
        work();
        drop(ends);
        watcher.join().unwrap();
    });
}

#[test]
fn during_an_update_nothing_is_removed() {
    let node = Node::with_calico();
    watched(&node, || {
        for round in 0..5 {
            let agent = node.installed(&[]);
            until("the new program is there", || {
                fs::read(node.bin("linkerd-cni")).ok() == fs::read(node.path().join("image/linkerd-cni")).ok()
            });
            agent.terminate();
            assert_eq!(node.types("10-calico.conflist").unwrap(), ["calico", "linkerd-cni"]);
            assert!(node.bin("linkerd-cni").exists() && node.net(KUBECONFIG).exists());
            node.image(&format!("version {round}"));
        }
    });
}

#[test]
fn uninstalling_takes_everything_back_in_an_order_that_breaks_no_pod() {
    let node = Node::with_calico();
    node.write("99-bridge.conf", CONF);
    fs::write(node.bin("bridge"), "somebody else's").unwrap();
    let before = node.tree();
    watched(&node, || {
        let agent = node.agent(&["--on-exit", "remove"]);
        node.until_installed("99-bridge.conflist");
        agent.terminate();
    });
    assert_eq!(node.tree(), before);
}

/// Runtimes read hidden ones too, and `.json` (libcni's ConfFiles).
#[test]
fn every_file_that_a_runtime_reads_has_the_entry_and_is_what_it_was_afterwards() {
    let node = Node::new();
    let other = CALICO.replace("calico", "other");
    node.write(".05-hidden.conflist", &other);
    node.write("10-net.conf", CONF);
    node.write("10-net.conflist", CALICO);
    node.write("10-net.json", CONF);
    let before = node.tree();
    let agent = node.agent(&["--on-exit", "remove"]);
    until("the agent is ready", || agent.says("ready: the plugin is in 4 network configurations"));
    let mut lists: Vec<_> = node
        .net("")
        .read_dir()
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .filter(|name| [".conf", ".conflist", ".json"].iter().any(|end| name.ends_with(end)))
        .map(|name| {
            let types = node.types(&name);
            (name, types.unwrap())
        })
        .collect();
    lists.sort();
    // In the order in which runtimes read them.
    let expected = [
        (".05-hidden.conflist", "other"),
        ("10-net.conf.conflist", "bridge"),
        ("10-net.conflist", "calico"),
        ("10-net.json.conflist", "bridge"),
    ];
    assert_eq!(lists, expected.map(|(name, kind)| (name.to_owned(), vec![kind.to_owned(), "linkerd-cni".to_owned()])));
    agent.terminate();
    assert_eq!(node.tree(), before);
}

#[test]
fn of_two_agents_one_owns_the_files_and_the_last_one_takes_them_along() {
    for order in ["older first", "newer first"] {
        let node = Node::with_calico();
        let before = node.tree();
        watched(&node, || {
            let older = node.installed(&["--on-exit", "remove"]);
            let newer = node.agent(&["--on-exit", "remove"]);
            until("the newer one is ready", || newer.says("ready: "));
            assert!(!newer.says("takes over"));
            let (first, last) = if order == "older first" { (older, newer) } else { (newer, older) };
            first.terminate();
            assert!(node.bin("linkerd-cni").exists() && node.net(KUBECONFIG).exists());
            assert_eq!(node.types("10-calico.conflist").unwrap(), ["calico", "linkerd-cni"]);
            // The agent that is left keeps it there.
            node.write("10-calico.conflist", CALICO);
            until("the entry is back", || node.types("10-calico.conflist").is_some_and(|it| it.len() == 2));
            last.terminate();
        });
        assert_eq!(node.tree(), before, "{order}");
    }
}

#[test]
fn when_the_agent_that_owns_the_files_is_killed_the_other_one_takes_over() {
    let node = Node::with_calico();
    let owner = node.installed(&[]);
    let other = node.agent(&[]);
    until("the other one is ready", || other.says("ready: "));
    owner.signal(Signal::SIGKILL);
    owner.wait();
    node.write("10-calico.conflist", CALICO);
    until("the entry is back", || node.types("10-calico.conflist").is_some_and(|it| it.len() == 2));
    assert!(other.terminate().contains("this one takes over"));
}

#[test]
fn the_last_agent_takes_everything_along_before_it_has_noticed_that_it_is_the_last() {
    for signal in [Signal::SIGTERM, Signal::SIGKILL].repeat(3) {
        let node = Node::with_calico();
        let before = node.tree();
        watched(&node, || {
            let older = node.agent(&["--on-exit", "remove"]);
            until("the older one is ready", || older.says("ready: "));
            let owner = node.agent(&["--on-exit", "keep"]);
            until("the owner is ready", || owner.says("ready: "));
            // The older one sees that it owns nothing.
            sleep(Duration::from_millis(200));
            // It learns at the same moment that the owner is gone and that it is to leave.
            older.signal(Signal::SIGSTOP);
            owner.signal(signal);
            owner.wait();
            older.signal(Signal::SIGTERM);
            older.signal(Signal::SIGCONT);
            older.wait();
        });
        assert_eq!(node.tree(), before, "{signal}");
    }
}

/// When an object was deleted.
const WHEN: &str = "2026-01-01T00:00:00Z";

/// An agent that a cluster's DaemonSet has put on a node, until it has installed the plugin and knows its namespace;
/// then the cluster changes, and the agent is told to end. What it said, and whether the node is as it was before.
fn ended(change: impl FnOnce(&Cluster)) -> (String, bool) {
    let node = Node::with_calico();
    let before = node.tree();
    let cluster = Cluster::start(&node);
    let agent = node.agent_of(&cluster, &["--log-level", "debug"]);
    node.until_installed("10-calico.conflist");
    until("it watches its namespace", || agent.says("its namespace is watched"));
    until("it watches its DaemonSet", || agent.says("its DaemonSet is watched"));
    change(&cluster);
    let said = agent.terminate();
    let is_removed = node.tree() == before;
    let types = node.types("10-calico.conflist").unwrap();
    assert_eq!(types.len(), if is_removed { 1 } else { 2 }, "{types:?}: {said}");
    assert!(is_removed || node.bin("linkerd-cni").exists() && node.net(KUBECONFIG).exists());
    (said, is_removed)
}

/// A change of a cluster, in words.
type Change = (&'static str, fn(&Cluster));

#[test]
fn the_plugin_goes_if_the_api_server_says_for_certain_that_no_agent_follows() {
    let cases: [Change; 10] = [
        ("the DaemonSet is gone", |cluster| cluster.remove_daemon_set()),
        ("the DaemonSet is being deleted", |cluster| {
            cluster.daemon_set(|set| set["metadata"]["deletionTimestamp"] = json!(WHEN));
        }),
        ("the namespace is being deleted", Cluster::end_namespace),
        // kubectl delete --kustomize deletes the namespace first, and then the account and its roles.
        ("the namespace is being deleted, and the role is gone", |cluster| {
            cluster.end_namespace();
            cluster.answer_all(Plan::Answer(403, ""));
        }),
        ("the namespace is being deleted, and the account is gone", |cluster| {
            cluster.end_namespace();
            cluster.answer_all(Plan::Answer(401, ""));
        }),
        ("the namespace is gone, and nothing answers", |cluster| {
            cluster.remove("namespaces/linkerd-cni");
            sleep(SEEN);
            cluster.go_silent();
        }),
        // Helm deletes the DaemonSet first, and then the account and its roles.
        ("the DaemonSet is gone, and then the role", |cluster| {
            cluster.remove_daemon_set();
            sleep(SEEN);
            cluster.answer_all(Plan::Answer(403, ""));
        }),
        ("the DaemonSet is being deleted, and the account is gone", |cluster| {
            cluster.daemon_set(|set| set["metadata"]["deletionTimestamp"] = json!(WHEN));
            sleep(SEEN);
            cluster.answer_all(Plan::Answer(401, ""));
        }),
        ("the DaemonSet selects nodes by a label that there isn't", |cluster| {
            cluster.pods_of_daemon_set(|pods| pods["nodeSelector"]["non-existing"] = json!("true"));
        }),
        ("the DaemonSet selects nodes by another value", |cluster| {
            cluster.pods_of_daemon_set(|pods| pods["nodeSelector"]["kubernetes.io/os"] = json!("windows"));
        }),
    ];
    thread::scope(|scope| {
        for (case, change) in cases {
            scope.spawn(move || {
                let (said, is_removed) = ended(change);
                assert!(is_removed, "{case}: {said}");
                assert!(said.contains("the plugin is being removed from the node, because"), "{case}: {said}");
            });
        }
    });
}

#[test]
fn in_doubt_the_plugin_stays() {
    let cases: [Change; 22] = [
        ("an update", |_| ()),
        ("the role is gone", |cluster| cluster.answer_all(Plan::Answer(403, ""))),
        ("the account was made anew, or its key was rotated", |cluster| {
            cluster.answer_all(Plan::Answer(401, ""));
        }),
        ("the agent was force-deleted", |cluster| {
            cluster.remove("namespaces/linkerd-cni/pods/agent");
        }),
        ("another pod of its name", |cluster| {
            cluster.add("namespaces/linkerd-cni/pods/agent", json!({"metadata": {"name": "agent"}}));
        }),
        ("another DaemonSet of its name", |cluster| {
            cluster.daemon_set(|set| set["metadata"]["uid"] = json!("another"));
        }),
        ("nothing answers", Cluster::go_silent),
        ("an error", |cluster| cluster.answer_all(Plan::Answer(500, ""))),
        ("a proxy's 404", |cluster| {
            cluster.answer_for_daemon_set(Plan::Body(404, "<html>404 Not Found</html>".to_owned()));
        }),
        ("404 of a path that there isn't", |cluster| {
            cluster.answer_for_daemon_set(Plan::Answer(404, ""));
        }),
        ("404 of something else", |cluster| {
            cluster.answer_for_daemon_set(not_found("pods", "linkerd-cni"));
        }),
        ("404 of another object", |cluster| {
            cluster.answer_for_daemon_set(not_found("daemonsets", "another"));
        }),
        ("everything is gone, to a proxy", |cluster| {
            cluster.answer_all(Plan::Body(404, "<html>404 Not Found</html>".to_owned()));
        }),
        ("an empty answer", |cluster| cluster.answer_for_daemon_set(Plan::Body(200, "{}".to_owned()))),
        ("another object", |cluster| {
            let other =
                json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "x", "deletionTimestamp": WHEN}});
            cluster.answer_all(Plan::Body(200, other.to_string()));
        }),
        ("another DaemonSet", |cluster| {
            let other = json!({"metadata": {"name": "another", "deletionTimestamp": WHEN}});
            cluster.answer_for_daemon_set(Plan::Body(200, other.to_string()));
        }),
        ("another namespace is being deleted", |cluster| {
            cluster.add("namespaces/shop", json!({"metadata": {"name": "shop", "deletionTimestamp": WHEN}}));
        }),
        ("its namespace was deleted and made anew", |cluster| {
            cluster.end_namespace();
            cluster.add("namespaces/linkerd-cni", json!({"metadata": {"name": "linkerd-cni"}}));
        }),
        ("the node may not be read", |cluster| cluster.remove("nodes/node-1")),
        ("a node without labels", |cluster| {
            cluster.add("nodes/node-1", json!({"metadata": {"name": "node-1"}}));
            cluster.pods_of_daemon_set(|pods| pods["nodeSelector"]["non-existing"] = json!("true"));
        }),
        ("its DaemonSet was deleted and made anew", |cluster| {
            cluster.remove_daemon_set();
            sleep(SEEN);
            cluster.add(SET, json!({"metadata": {"name": "linkerd-cni", "uid": "newer"}, "spec": {}}));
        }),
        ("a taint that keeps pods away", |cluster| {
            cluster.taint(&json!([{"key": "x", "effect": "NoExecute"}]));
        }),
    ];
    thread::scope(|scope| {
        for (case, change) in cases {
            scope.spawn(move || {
                let (said, is_removed) = ended(change);
                assert!(!is_removed, "{case}: {said}");
            });
        }
    });
}

#[test]
fn another_programs_kind_of_daemon_set_is_not_the_agents() {
    let node = Node::with_calico();
    let cluster = Cluster::start(&node);
    let owner = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "DaemonSet", "name": "linkerd-cni", "uid": "set",
        "controller": true});
    let pod = json!({"metadata": {"name": "agent", "ownerReferences": [owner]}, "spec": {"nodeName": "node-1"}});
    cluster.add("namespaces/linkerd-cni/pods/agent", pod);
    cluster.remove_daemon_set();
    let agent = node.agent_of(&cluster, &[]);
    node.until_installed("10-calico.conflist");
    assert!(agent.terminate().contains("no DaemonSet of Kubernetes has made the agent's pod"));
    assert_eq!(node.types("10-calico.conflist").unwrap(), ["calico", "linkerd-cni"]);
}

/// Runs `linkerd-cni-agent`, with these arguments, on a node and without the plugin's configuration. Whether it
/// succeeded, and what it said.
fn by_hand(node: &Node, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(AGENT.as_str());
    node.prepare(&mut command);
    let said = command.env_remove("CNI_NETWORK_CONFIG").args(arguments).output().unwrap();
    (said.status.success(), String::from_utf8(said.stderr).unwrap())
}

#[test]
fn by_hand_a_node_that_no_agent_is_on_becomes_what_it_was() {
    let node = Node::with_calico();
    node.write("99-bridge.conf", CONF);
    let before = node.tree();
    watched(&node, || {
        let agent = node.agent(&[]);
        until("it is ready", || agent.says("ready: "));
        let installed = node.tree();
        // While an agent is there, it would be back.
        let (is_done, said) = by_hand(&node, &["uninstall"]);
        assert!(!is_done && said.contains("an agent runs on this node"), "{said}");
        assert_eq!(node.tree(), installed);
        assert!(!agent.says("takes over"));
        agent.signal(Signal::SIGKILL);
        agent.wait();
        let (is_done, said) = by_hand(&node, &["uninstall"]);
        assert!(is_done, "{said}");
    });
    assert_eq!(node.tree(), before);
    // Where there is nothing to do, it does nothing.
    let (is_done, said) = by_hand(&node, &["uninstall"]);
    assert!(is_done, "{said}");
    assert_eq!(node.tree(), before);
}

#[test]
fn by_hand_it_says_which_folder_of_the_node_is_missing() {
    let node = Node::new();
    fs::remove_dir_all(node.net("")).unwrap();
    let (is_done, said) = by_hand(&node, &["uninstall"]);
    assert!(!is_done && said.contains("etc/cni/net.d cannot be opened"), "{said}");
}
