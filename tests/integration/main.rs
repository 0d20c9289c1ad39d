//! The real program on a real kernel, each test in network namespaces of its own. Needs root, and says so.
//!
//! What is expected comes from what we didn't write: the iptables commands that linkerd-init would have run, what
//! iptables and nft read back, and real connections.

mod cli;
mod deploy;
mod errors;
mod flags;
mod legacy;
mod legacy_locks;
mod library;
mod linkerd;
mod modes;
mod native;
mod nft;
mod operate;
#[allow(dead_code)] // all of it is used once the tests are merged
mod support;
mod traffic;
mod versions;

use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use xtask::lab::Namespace;

/// The program under test.
fn proxy_init() -> Command {
    Command::new(env!("CARGO_BIN_EXE_proxy-init"))
}

/// Runs the program in a namespace, with a line of arguments.
fn run(namespace: &Namespace, arguments: &str) -> Output {
    namespace.output(proxy_init().args(arguments.split_whitespace()))
}

/// The same as somebody without any privilege.
fn run_without_privileges(namespace: &Namespace, arguments: &str) -> Output {
    let mut command = Command::new("setpriv");
    command.args([
        "--reuid=65534",
        "--clear-groups",
        "--inh-caps=-all",
        env!("CARGO_BIN_EXE_proxy-init"),
    ]);
    namespace.output(command.args(arguments.split_whitespace()))
}

/// The system calls of a run that succeeds.
struct Calls(String);

impl Calls {
    /// Runs the program under strace.
    fn of(namespace: &Namespace, arguments: &str) -> Self {
        static TRACES: AtomicU32 = AtomicU32::new(0);
        let number = TRACES.fetch_add(1, Ordering::Relaxed);
        let file = std::env::temp_dir().join(format!("proxy-init-{}-{number}.trace", std::process::id()));
        let mut command = Command::new("strace");
        // What a call is given is left out, but for the first bytes.
        command
            .args(["--follow-forks", "--string-limit=32", "--output"])
            .arg(&file);
        command
            .arg(env!("CARGO_BIN_EXE_proxy-init"))
            .args(arguments.split_whitespace());
        let output = namespace.output(&mut command);
        let calls = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert_success(&output);
        Self(calls)
    }

    /// How many of these there are that didn't fail.
    fn count(&self, names: &[&str]) -> usize {
        let is_call =
            |line: &&str| names.iter().any(|name| line.contains(&format!(" {name}("))) && !line.contains("= -1 ");
        self.0.lines().filter(is_call).count()
    }
}

/// Runs the program with a system call that fails each time.
fn run_with_failing(namespace: &Namespace, call: &str, error: &str, arguments: &str) -> Output {
    let mut command = Command::new("strace");
    command
        .args(["-o", "/dev/null"])
        .arg(format!("--trace={call}"))
        .arg(format!("--inject={call}:error={error}"))
        .arg(env!("CARGO_BIN_EXE_proxy-init"));
    namespace.output(command.args(arguments.split_whitespace()))
}

/// Runs the program as root, and it must succeed.
fn install(namespace: &Namespace, arguments: &str) -> String {
    let output = run(namespace, arguments);
    assert_success(&output);
    String::from_utf8(output.stdout).unwrap()
}

/// Fails with what the program said last. (All that it said may be a line for each of thousands of rules.)
fn assert_success(output: &Output) {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let last = stdout.lines().last().unwrap_or_default();
    assert!(
        output.status.success(),
        "{}: {last} {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The last line of what a failed run logged: all that Kubernetes may show.
fn last_line(output: &Output) -> String {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let last = stdout.lines().last().unwrap_or_default();
    assert_eq!(
        output.status.code(),
        Some(1),
        "{last} {}",
        String::from_utf8_lossy(&output.stderr)
    );
    last.to_owned()
}

/// What `iptables-nft-save` and the like print, without what differs from run to run: comments and counters.
fn saved(namespace: &Namespace, save: &str) -> String {
    let text = namespace.stdout(save, ["-t", "nat"]);
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split(" [").next().unwrap_or_default())
        .fold(String::new(), |text, line| text + line + "\n")
}

/// Both families, one after the other.
fn saved_by_nft(namespace: &Namespace) -> String {
    saved(namespace, "iptables-nft-save") + &saved(namespace, "ip6tables-nft-save")
}
