//! The plugin's lines in the agent's log.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Command;

use linkerd_cni::log::Log;
use proxy_init::log::{Format, Level};

use crate::node::{CALICO, Node, until};

const FLAG: [&str; 2] = ["--plugin-log", "/run/linkerd-cni"];

/// A node that runs a network, and has the folder that kubelet makes for the socket.
fn node() -> Node {
    let node = Node::with_calico();
    fs::create_dir_all(socket(&node).parent().unwrap()).unwrap();
    node
}

fn socket(node: &Node) -> PathBuf {
    node.path().join("host/run/linkerd-cni/log.sock")
}

/// Returns true if there is a socket with a listener.
fn is_heard(node: &Node) -> bool {
    let sender = UnixDatagram::unbound().unwrap();
    sender.send_to(b"{}", socket(node)).is_ok()
}

/// Logs as the plugin does.
fn log(node: &Node, level: Level, message: &str) {
    let mut log = Log::new(Level::Debug);
    log.format = Format::Plain;
    log.about = vec![("command", "ADD".to_owned()), ("pod", "shop/web-0".to_owned())];
    log.agent = Some(socket(node));
    log.add(level, message);
}

#[test]
fn the_agent_says_what_the_plugin_logs_whoever_takes_the_socket_away() {
    let node = node();
    let agent = node.agent(&FLAG);
    node.until_installed("10-calico.conflist");
    let list = fs::read_to_string(node.net("10-calico.conflist")).unwrap();
    assert!(list.contains(r#""log-socket": "/run/linkerd-cni/log.sock""#), "{list}");
    until("it listens", || is_heard(&node));
    let file = fs::metadata(socket(&node)).unwrap();
    assert!(file.file_type().is_socket() && file.permissions().mode() & 0o777 == 0o600);
    log(&node, Level::Info, "16 rules are in place");
    until("it says so", || agent.says("16 rules are in place"));
    log(&node, Level::Debug, "nothing to do");
    // Text that others chose stays in its line.
    log(&node, Level::Error, "\u{1b}[1m\n\u{202e}2026-01-01 ERROR 'forged'");
    until("the error is there", || agent.says("'forged'"));
    // By a name of its own again, without writing through a link.
    let outside = node.path().join("outside");
    fs::write(&outside, "as it was").unwrap();
    fs::remove_file(socket(&node)).unwrap();
    symlink(&outside, socket(&node)).unwrap();
    until("it listens again", || is_heard(&node));
    assert_eq!(fs::read_to_string(&outside).unwrap(), "as it was");
    // A line of another program counts as nothing.
    let sender = UnixDatagram::unbound().unwrap();
    for datagram in [&b""[..], b"no JSON", b"[1]", &[0xff; 60_000], br#"{"level": 1}"#] {
        sender.send_to(datagram, socket(&node)).unwrap();
    }
    log(&node, Level::Warning, "still here");
    until("it goes on", || agent.says("still here"));
    let said = agent.terminate();
    let line = |words: &str| said.lines().find(|line| line.contains(words)).unwrap().to_owned();
    for (level, words) in [("INFO", "16 rules"), ("WARN", "still here"), ("ERROR", "forged")] {
        let line = line(words);
        assert!(line.contains(&format!(" {level} plugin: linkerd-cni: ")), "{line}");
        assert!(line.contains(r#"command="ADD" pod="shop/web-0""#), "{line}");
    }
    assert!(line("forged").contains(r"\u{1b}[1m\n\u{202e}2026"), "{said}");
    assert!(!said.contains("nothing to do"), "{said}");
}

#[test]
fn of_two_agents_the_one_that_owns_the_files_hears_the_plugin() {
    let node = node();
    let owner = node.agent(&[&FLAG[..], &["--on-exit", "remove"]].concat());
    until("the owner listens", || is_heard(&node));
    let other = node.agent(&FLAG);
    until("the other one is ready", || other.says("ready: "));
    log(&node, Level::Info, "for the owner");
    until("it says so", || owner.says("for the owner"));
    assert!(!other.says("for the owner"));
    drop(owner);
    until("the other one takes over", || other.says("takes over"));
    until("it listens", || {
        log(&node, Level::Info, "for the other one");
        other.says("for the other one")
    });
    other.terminate();
    // It stays for the next agent, and goes with the plugin.
    assert!(socket(&node).exists());
    let last = node.agent(&[&FLAG[..], &["--on-exit", "remove"]].concat());
    until("the last one listens", || is_heard(&node));
    last.terminate();
    assert!(!socket(&node).exists());
}

#[test]
fn without_the_folder_the_plugin_is_installed_all_the_same() {
    let node = Node::with_calico();
    let agent = node.agent(&FLAG);
    node.until_installed("10-calico.conflist");
    until("it is ready", || agent.says("ready: "));
    // A pass that another program causes finds the same.
    node.write("20-other.conflist", CALICO);
    node.until_installed("20-other.conflist");
    let said = agent.terminate();
    assert_eq!(said.matches("can't be shown here").count(), 1, "{said}");
    // Nobody asked for it.
    let node = Node::with_calico();
    let agent = node.agent(&[]);
    node.until_installed("10-calico.conflist");
    let list = fs::read_to_string(node.net("10-calico.conflist")).unwrap();
    assert!(!list.contains("log-socket"), "{list}");
    agent.terminate();
}

#[test]
fn it_counts_how_the_plugins_commands_end() {
    let node = node();
    let agent = node.agent(&[&FLAG[..], &["--admin-addr", "127.0.0.1:9990"]].concat());
    until("it listens", || is_heard(&node));
    let counted = || {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "http://127.0.0.1:9990/metrics"]);
        let text = String::from_utf8(node.network.output(&mut curl).stdout).unwrap();
        let ends = text.lines().filter_map(|line| line.strip_prefix("linkerd_cni_plugin_commands_total"));
        let mut ends: Vec<String> = ends.map(str::to_owned).collect();
        ends.sort();
        ends
    };
    // Prometheus sees that it grows only from a value that it has seen.
    until("there is a value", || counted() == [r#"{command="ADD",code="0"} 0"#]);
    let end = |command: &str, level, code| {
        let mut log = Log::new(Level::Warning);
        log.about = vec![("command", command.to_owned())];
        log.agent = Some(socket(&node));
        log.end(level, code, "what became of it");
    };
    for number in ["1", "2"] {
        end("ADD", Level::Debug, 0);
        end("ADD", Level::Error, 104);
        end("CHECK", Level::Error, 101);
        // Other programs' lines make no series.
        end("add", Level::Error, 104);
        end("ADD", Level::Error, 1_000_000);
        log(&node, Level::Info, "no end");
        let ends = [("ADD", "0"), ("ADD", "104"), ("CHECK", "101")];
        let ends = ends.map(|(command, code)| format!(r#"{{command="{command}",code="{code}"}} {number}"#));
        until("they are counted", || counted() == ends);
    }
    let said = agent.terminate();
    let words = r#"what became of it command="ADD" pod="" container="" code="104""#;
    assert_eq!(said.matches(words).count(), 2, "{said}");
    assert_eq!(
        said.matches("no end").count(),
        said.matches("no end command=\"ADD\" pod=\"shop/web-0\" container=\"\"\n").count(),
        "{said}"
    );
}
