//! Text that others chose, in the agent's log and in events.

use std::time::Duration;

use lab::network::Namespace;
use serde_json::json;

use crate::cluster::{Cluster, Sandbox};
use crate::node::{Node, until};

/// A character that turns the direction of writing around.
const TURNS: char = '\u{202e}';

#[test]
fn of_an_answer_that_makes_no_sense_nothing_is_logged() {
    for is_listed in [true, false] {
        let node = Node::with_calico();
        let cluster = Cluster::start(&node);
        let add = || {
            cluster.pod_with("web-0", "1d6e2ed1-b29f-11e7-9350-020968147796", json!({}), |pod| {
                pod["spec"]["containers"][0]["env"] = json!([{"name": "PASSWORD", "value": "hunter2"}]);
                pod["spec"]["hostNetwork"] = json!("hunter2");
            });
        };
        if is_listed {
            add();
        }
        let agent = node.agent_of(&cluster, &["--log-level", "trace"]);
        until("pods are watched", || cluster.watches().iter().any(|watch| watch.contains("/pods?")));
        if !is_listed {
            std::thread::sleep(Duration::from_millis(500));
            add();
        }
        until("it says so", || agent.says("the node's meshed pods cannot be watched"));
        let said = agent.terminate();
        for secret in ["hunter2", "token-1"] {
            let line = said.lines().find(|line| line.contains(secret));
            assert_eq!(line, None, "listed: {is_listed}");
        }
    }
}

#[test]
fn what_others_chose_shows_as_it_is() {
    for format in ["plain", "json"] {
        let node = Node::with_calico();
        node.write(&format!("20-{TURNS}.conflist"), "{}");
        let cluster = Cluster::start(&node);
        let flags = ["--repair", "nothing", "--log-format", format];
        let agent = node.agent_of(&cluster, &flags);
        let (network, uid) = (Namespace::new(), crate::watch::uid());
        network.sh("iptables-nft -t nat -N PROXY_INIT_REDIRECT");
        let comment = format!("proxy-init/{TURNS}\u{7f}x");
        let append = ["-t", "nat", "-A", "PROXY_INIT_REDIRECT", "-m", "comment", "--comment", &comment, "-j", "RETURN"];
        network.stdout("iptables-nft", append);
        let _sandbox = Sandbox::of(&uid, &network);
        cluster.pod("web-0", &uid, crate::watch::running());
        until("it is told", || cluster.notes().iter().any(|(_, note)| note.contains("x\"")));
        let (_, note) = cluster.notes().into_iter().find(|(_, note)| note.contains("x\"")).unwrap();
        assert!(note.contains(r"proxy-init/\u{202e}\u{7f}x"), "{note}");
        until("the file is named", || agent.says(".conflist is left as it is"));
        let said = agent.terminate();
        assert!(!said.chars().any(|character| character == TURNS || character == '\u{7f}'), "{said}");
        for line in said.lines() {
            if format == "json" {
                let line: serde_json::Value = serde_json::from_str(line).unwrap();
                assert!(line["message"].is_string(), "{line}");
            } else {
                assert!(line.starts_with("20"), "{line}");
            }
        }
    }
}
