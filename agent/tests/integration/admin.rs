//! The admin server, when others use it for what it isn't there for.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::node::{Agent, CALICO, Node};

const METRICS: &str = "127.0.0.1:9990";
const PROBES: &str = "127.0.0.1:9991";
/// The time that kubelet waits for a probe's answer, unless the manifest says otherwise.
const DEADLINE: Duration = Duration::from_secs(1);
/// The number of probes in a row that have to fail until kubelet acts on it, unless the manifest says otherwise.
const FAILURES: usize = 3;
/// The number of connections that each listener has to bear.
const CONNECTIONS: usize = 400;

fn start(node: &Node, arguments: &[&str]) -> Agent {
    node.write("10-calico.conflist", CALICO);
    node.installed(arguments)
}

/// The status of an answer, within a deadline; none if there was no answer. To be called in the node's network.
fn status(address: &str, path: &str) -> Option<u16> {
    let end = Instant::now() + DEADLINE;
    let address: SocketAddr = address.parse().unwrap();
    let mut stream = TcpStream::connect_timeout(&address, DEADLINE).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    while !answer.ends_with(b"\n") {
        let left = end.checked_duration_since(Instant::now())?;
        stream.set_read_timeout(Some(left)).ok()?;
        match stream.read(&mut part).ok()? {
            0 => break,
            length => answer.extend(&part[..length]),
        }
    }
    let head = String::from_utf8(answer).ok()?;
    head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()
}

/// A client's ways to use up a server's connections.
#[derive(Debug, Clone, Copy)]
enum Abuse {
    /// It connects, and that is all.
    Idle,
    /// It sends its request a byte at a time.
    Slow,
    /// It asks for /metrics again and again, and reads nothing.
    Greedy,
}

/// Keeps that many connections open until it is over, whatever the server does.
fn abuse(address: &str, over: &AtomicBool) {
    let address: SocketAddr = address.parse().unwrap();
    let connect = || {
        let stream = TcpStream::connect_timeout(&address, DEADLINE).ok()?;
        stream.set_nonblocking(true).ok()?;
        Some(stream)
    };
    let requests = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(200);
    let mut clients: Vec<_> = (0..CONNECTIONS).map(|_| None).collect();
    while !over.load(Ordering::Relaxed) {
        for (number, client) in clients.iter_mut().enumerate() {
            let abuse = [Abuse::Idle, Abuse::Slow, Abuse::Greedy][number % 3];
            let stream = match client {
                Some(stream) => stream,
                None => match connect() {
                    Some(stream) => client.insert(stream),
                    None => continue,
                },
            };
            let sent = match abuse {
                Abuse::Idle => stream.peek(&mut [0]).and_then(|length| match length {
                    0 => Err(ErrorKind::UnexpectedEof.into()),
                    _ => Ok(length),
                }),
                Abuse::Slow => stream.write(b"G"),
                Abuse::Greedy => stream.write(requests.as_bytes()),
            };
            if sent.is_err_and(|error| error.kind() != ErrorKind::WouldBlock) {
                *client = None;
            }
        }
        sleep(Duration::from_millis(20));
    }
}

/// Ends the others' work, whatever becomes of its own thread's.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn whoever_uses_up_its_connections_every_probe_is_answered() {
    let node = Node::new();
    let agent = start(&node, &["--admin-addr", METRICS, "--probe-addr", PROBES]);
    let over = AtomicBool::new(false);
    let slowest = thread::scope(|scope| {
        let _over = Over(&over);
        for address in [METRICS, PROBES] {
            scope.spawn(|| node.network.run_here(|| abuse(address, &over)));
        }
        sleep(Duration::from_secs(1));
        let mut slowest = Duration::ZERO;
        let mut failures = [0; 5];
        for round in 0..30 {
            // Linkerd's chart has both on one address.
            let probes = [
                (PROBES, "/livez"),
                (PROBES, "/readyz"),
                (METRICS, "/live"),
                (METRICS, "/ready"),
                (METRICS, "/metrics"),
            ];
            for ((address, path), failures) in probes.into_iter().zip(&mut failures) {
                let begun = Instant::now();
                let answered = node.network.run_here(|| status(address, path));
                slowest = slowest.max(begun.elapsed());
                *failures = if answered == Some(200) { 0 } else { *failures + 1 };
                assert!(
                    *failures < FAILURES,
                    "round {round}: {address}{path} answers {answered:?}, {FAILURES} times in a row"
                );
            }
            sleep(Duration::from_millis(200));
        }
        slowest
    });
    println!("the slowest answer took {slowest:?}; {} KiB of memory at most", agent.memory());
    assert!(agent.memory() < 48 << 10, "{} KiB", agent.memory());
    agent.terminate();
}

#[test]
fn probes_alone_are_answered_where_only_they_are_asked_for() {
    let node = Node::new();
    let agent = start(&node, &["--probe-addr", PROBES]);
    let ask = |address: &str, path: &str| node.network.run_here(|| status(address, path));
    crate::node::until("it is ready", || ask(PROBES, "/readyz") == Some(200));
    assert_eq!(ask(PROBES, "/livez"), Some(200));
    assert_eq!(ask(PROBES, "/metrics"), Some(404));
    assert_eq!(ask(METRICS, "/metrics"), None);
    agent.terminate();
}
