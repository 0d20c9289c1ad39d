//! Asking the plugin itself whether it could set up a pod: the verb STATUS of the CNI specification.

use std::future::pending;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use pod::Configuration;
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::conflist::Entry;
use crate::folder::Stamp;
use crate::settings::Installation;

/// The pauses between questions: the longest after the plugin is fine; while it isn't, each doubles the one before.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

const PATIENCE: Duration = Duration::from_secs(5);

/// The capability that STATUS needs, since it tries the rules in a network namespace of its own (capability.h).
const CAP_SYS_ADMIN: u32 = 21;

/// Whether the plugin can be asked here: Linkerd's chart gives its container no such capability.
pub fn can_be_asked() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    effective.is_some_and(|capabilities| capabilities >> CAP_SYS_ADMIN & 1 == 1)
}

/// What the plugin is asked about.
#[derive(Debug, Clone, PartialEq)]
pub struct Subject {
    /// The program.
    pub program: Stamp,
    /// What it gets on standard input.
    pub configuration: Value,
    /// Whether the kubeconfig is there.
    pub kubeconfig: bool,
}

/// What is known of the plugin's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It could set up a pod.
    Fine,
    /// It couldn't, and why.
    Refused(String),
    /// It has yet to answer.
    Awaited,
}

/// Asks the plugin, and remembers what it answered. Nothing waits for a plugin that hangs.
#[derive(Debug)]
pub struct Inquiry {
    can_ask: bool,
    answer: Option<(Subject, Answer)>,
    under_way: Option<(Subject, JoinHandle<Result<(), String>>)>,
    /// When it was last asked.
    last: Option<Instant>,
    /// How long after that the same is asked again.
    pause: Duration,
}

impl Inquiry {
    /// Nothing was asked yet.
    pub fn new(can_ask: bool) -> Self {
        Self { can_ask, answer: None, under_way: None, last: None, pause: SHORTEST_PAUSE }
    }

    /// What the plugin says of a subject, of which `program` is the path, and when to ask again. Must be called in tokio's
    /// runtime.
    pub fn plugin_status(&mut self, subject: Subject, program: &Path, now: Instant) -> (Answer, Duration) {
        if !self.can_ask {
            let checked = check(&subject.configuration);
            return (checked.map_or_else(Answer::Refused, |()| Answer::Fine), LONGEST_PAUSE);
        }
        let known = self.answer.as_ref().filter(|(about, _)| *about == subject);
        let answer = known.map_or(Answer::Awaited, |(_, answer)| answer.clone());
        if self.under_way.as_ref().is_some_and(|(about, _)| *about == subject) {
            return (answer, LONGEST_PAUSE);
        }
        let pause = if known.is_some() { self.pause } else { SHORTEST_PAUSE };
        let wait = self.last.map_or(Duration::ZERO, |last| (last + pause).saturating_duration_since(now));
        if !wait.is_zero() {
            return (answer, wait);
        }
        if let Some((_, other)) = self.under_way.take() {
            other.abort();
        }
        let (program, configuration) = (program.to_owned(), subject.configuration.to_string());
        let work = tokio::spawn(async move { run(&program, &configuration).await });
        self.last = Some(now);
        self.under_way = Some((subject, work));
        (answer, LONGEST_PAUSE)
    }

    /// Waits for an answer that is under way.
    pub async fn answered(&mut self) {
        let Some((_, work)) = &mut self.under_way else {
            return pending().await;
        };
        let said = work.await.unwrap_or_else(|error| Err(error.to_string()));
        let Some((subject, _)) = self.under_way.take() else {
            return;
        };
        let before = self.answer.take().filter(|(about, _)| *about == subject);
        let answer = said.map_or_else(Answer::Refused, |()| Answer::Fine);
        self.pause = match (&answer, before) {
            (Answer::Fine, _) => LONGEST_PAUSE,
            (_, Some((_, Answer::Refused(_)))) => (self.pause * 2).min(LONGEST_PAUSE),
            _ => SHORTEST_PAUSE,
        };
        self.answer = Some((subject, answer));
    }
}

/// Where the plugin can't be asked, its configuration can still be read by its own code.
fn check(configuration: &Value) -> Result<(), String> {
    let configuration = Configuration::read(configuration.to_string().as_bytes());
    let config = configuration.and_then(|configuration| configuration.config());
    config.map(drop).map_err(|error| format!("the plugin could not set up a pod: {error}"))
}

/// What the plugin gets on standard input, with the kubeconfig as this container sees it.
pub fn configuration(installation: &Installation, entry: &Entry) -> Value {
    let mut configuration = entry.configuration("1.1.0");
    if let Some(kubeconfig) = configuration.pointer_mut("/kubernetes/kubeconfig") {
        *kubeconfig = Value::from(installation.net().join(&installation.kubeconfig).to_string_lossy());
    }
    configuration
}

async fn run(program: &Path, configuration: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", program.display());
    let mut child = Command::new(program)
        .env_clear()
        .env("CNI_COMMAND", "STATUS")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        // With what it starts.
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    let group = child.id().and_then(|id| i32::try_from(id).ok());
    let work = async {
        if let Some(mut stdin) = child.stdin.take() {
            // A plugin that doesn't read fails by itself.
            let _ = stdin.write_all(configuration.as_bytes()).await;
        }
        child.wait_with_output().await
    };
    let output = timeout(PATIENCE, work).await;
    let Ok(output) = output else {
        if let Some(group) = group {
            // It isn't waited for yet, so that the number is still its own. It may be gone.
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        return Err(format!("{} took longer than {PATIENCE:?}", program.display()));
    };
    let output = output.map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let message = said.get("msg").and_then(Value::as_str).unwrap_or("it said nothing");
    Err(format!("the plugin could not set up a pod: {message}"))
}
