//! Random sequences of what happens on a node: agents that come, go and are killed, reboots, tokens, updates, and
//! programs that write the same files. Each ends right, and none has a moment in which a configuration names a program
//! that isn't there.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex};
use std::thread::{self, sleep};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::leave::watched;
use crate::node::{Agent, CALICO, KUBECONFIG, Node, types, until};

/// The number of sequences, unless LINKERD_CNI_CHAOS says another number, and how many run side by side: most of
/// their time is spent waiting.
const SEQUENCES: u64 = 24;
const AT_A_TIME: usize = 8;

/// Knuth's generator (MMIX).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// A node, and what its other programs wrote last.
struct Sequence {
    node: Arc<Node>,
    others: BTreeMap<&'static str, String>,
    agents: Vec<Agent>,
    token: String,
    random: Random,
    done: Vec<String>,
}

impl Sequence {
    fn new(seed: u64) -> Self {
        let mut sequence = Self {
            node: Arc::new(Node::new()),
            others: BTreeMap::new(),
            agents: Vec::new(),
            token: "token-1".to_owned(),
            random: Random(seed),
            done: Vec::new(),
        };
        sequence.other_writes("10-calico.conflist");
        sequence
    }

    fn start(&mut self, on_exit: &str) {
        self.agents.push(self.node.agent(&["--on-exit", on_exit]));
    }

    /// A text that this file has not had, in one step or, as a shell does, in two.
    fn other_writes(&mut self, name: &'static str) {
        let number = self.random.below(1 << 30);
        let text = if !name.ends_with(".conflist") {
            format!(r#"{{"cniVersion": "0.3.1", "type": "bridge", "mtu": {number}}}"#)
        } else {
            CALICO.replace("1440", &number.to_string())
        };
        if self.random.below(2) == 0 {
            self.node.write(name, &text);
        } else {
            fs::write(self.node.net(name), &text).unwrap();
        }
        self.others.insert(name, text);
    }

    fn step(&mut self) {
        let what = match self.random.below(13) {
            0 | 1 => {
                let on_exit = ["keep", "remove"][usize::try_from(self.random.below(2)).unwrap()];
                self.start(on_exit);
                format!("an agent with --on-exit {on_exit}")
            }
            kind @ 2..=4 if !self.agents.is_empty() => {
                let count = u64::try_from(self.agents.len()).unwrap();
                let index = usize::try_from(self.random.below(count)).unwrap();
                let agent = self.agents.remove(index);
                agent.signal(if kind == 2 { Signal::SIGKILL } else { Signal::SIGTERM });
                agent.wait();
                format!("agent {index} ends, {kind}")
            }
            5 => {
                self.agents.clear();
                self.start("keep");
                "a reboot".to_owned()
            }
            6 => {
                self.token = format!("token-{}", self.random.below(1 << 30));
                self.node.rotate(&self.token);
                "a token".to_owned()
            }
            7 => {
                self.node.image(&format!("version {}", self.random.below(1 << 30)));
                self.start("keep");
                "an update".to_owned()
            }
            8 => {
                self.other_writes("99-bridge.conf");
                "a .conf".to_owned()
            }
            9 => {
                self.other_writes("99-bridge.json");
                "a .json".to_owned()
            }
            10 => {
                self.other_writes(".05-hidden.conflist");
                "a hidden list".to_owned()
            }
            _ => {
                self.other_writes("10-calico.conflist");
                "a list".to_owned()
            }
        };
        self.done.push(what);
        let pause = self.random.below(60_000);
        sleep(Duration::from_micros(pause));
    }

    /// All is in place, as the last to write it meant it.
    fn is_right(&self) -> bool {
        let node = &self.node;
        let holds = |name: &str, text: &str| {
            let (wanted, found): (serde_json::Value, _) =
                (serde_json::from_str(text).unwrap(), fs::read_to_string(node.net(name)));
            let Ok(found) = found else { return false };
            let value: serde_json::Value = serde_json::from_str(&found).unwrap_or_default();
            let mtu = wanted.get("mtu").or_else(|| wanted["plugins"][0].get("mtu"));
            types(&found).is_some_and(|types| types.len() == 2 && types[1] == "linkerd-cni")
                && value["plugins"][0].get("mtu") == mtu
        };
        let files = self.others.iter().all(|(name, text)| {
            let list = match name.rsplit_once('.') {
                Some((stem, "conf")) => format!("{stem}.conflist"),
                Some((_, "json")) => format!("{name}.conflist"),
                _ => return holds(name, text),
            };
            !node.net(name).exists() && holds(&list, text)
        });
        files
            && fs::read(node.bin("linkerd-cni")).ok() == fs::read(node.path().join("image/linkerd-cni")).ok()
            && fs::read_to_string(node.net(KUBECONFIG)).is_ok_and(|text| text.contains(&format!("\"{}\"", self.token)))
    }

    fn run(mut self) {
        let steps = 4 + self.random.below(8);
        let node = Arc::clone(&self.node);
        watched(&node, || {
            for _ in 0..steps {
                self.step();
            }
            // The last agent's removals are back with the next agent.
            self.start("remove");
            let done = &self.done;
            let last = self.agents.last().unwrap();
            // An agent that was started before this one may join after it: who owns the folder says nothing of this
            // one.
            until("the last agent has joined", || last.says("ready: "));
            until(&format!("all is in place after {done:?}"), || self.is_right());
            let last = self.agents.pop().unwrap();
            while !self.agents.is_empty() {
                let agent = self.agents.remove(0);
                agent.signal(Signal::SIGTERM);
                agent.wait();
            }
            assert!(self.is_right(), "an older agent took something along after {:?}", self.done);
            last.terminate();
        });
        let mut left = BTreeMap::new();
        for (path, bytes) in self.node.tree() {
            let name = path.rsplit_once('/').unwrap().1.to_owned();
            left.insert(name, String::from_utf8(bytes).unwrap());
        }
        let others: BTreeMap<String, String> =
            self.others.iter().map(|(name, text)| ((*name).to_owned(), text.clone())).collect();
        assert_eq!(left, others, "after {:?}", self.done);
    }
}

#[test]
fn whatever_happens_on_a_node_ends_right() {
    let number = std::env::var("LINKERD_CNI_CHAOS").ok();
    let number = number.map_or(SEQUENCES, |number| number.parse().unwrap());
    let seed = lab::network::seed();
    let next = Mutex::new(0..number);
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                while let Some(sequence) = { next.lock().unwrap().next() } {
                    Sequence::new(seed.wrapping_add(sequence)).run();
                }
            });
        }
    });
}
