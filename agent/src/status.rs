//! Asking the plugin itself whether it could set up a pod: the verb STATUS of the CNI specification.

use std::future::pending;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
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

/// A question to the plugin.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Subject {
    /// The program.
    pub(crate) program: Stamp,
    /// Its standard input.
    pub(crate) configuration: Value,
    /// True if the kubeconfig is there.
    pub(crate) has_kubeconfig: bool,
}

/// The plugin's answer, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It could set up a pod.
    Fine,
    /// It couldn't, and why.
    Refused(String),
    /// It has yet to answer.
    #[default]
    Awaited,
}

/// Asks the plugin about one subject, and remembers the answer. Nothing waits for a plugin that hangs.
#[derive(Debug, Default)]
pub(crate) struct Inquiry {
    subject: Option<Subject>,
    answer: Answer,
    under_way: Option<JoinHandle<Result<(), String>>>,
    /// When the plugin was last asked, whatever about.
    last: Option<Instant>,
    /// How long after that it is asked again.
    pause: Duration,
}

impl Inquiry {
    /// The plugin's answer about a subject, of which `program` is the path, and when to ask again. Must be called in
    /// tokio's runtime.
    pub(crate) fn ask(&mut self, subject: Subject, program: &Path, now: Instant) -> (Answer, Duration) {
        if self.subject.as_ref() != Some(&subject) {
            if let Some(other) = self.under_way.take() {
                other.abort();
            }
            (self.answer, self.pause) = (Answer::Awaited, SHORTEST_PAUSE);
        }
        let mut wait = LONGEST_PAUSE;
        if self.under_way.is_none() {
            wait = self.last.map_or(Duration::ZERO, |last| (last + self.pause).saturating_duration_since(now));
            if wait.is_zero() {
                let work = run(program.to_owned(), subject.configuration.to_string());
                (self.under_way, self.last) = (Some(tokio::spawn(work)), Some(now));
                wait = LONGEST_PAUSE;
            }
        }
        self.subject = Some(subject);
        (self.answer.clone(), wait)
    }

    /// Waits for an answer that is under way.
    pub(crate) async fn answered(&mut self) {
        let Some(work) = &mut self.under_way else {
            return pending().await;
        };
        let said = work.await.unwrap_or_else(|error| Err(error.to_string()));
        self.under_way = None;
        self.pause = match (&said, &self.answer) {
            (Ok(()), _) => LONGEST_PAUSE,
            (Err(_), Answer::Refused(_)) => (self.pause * 2).min(LONGEST_PAUSE),
            (Err(_), _) => SHORTEST_PAUSE,
        };
        self.answer = said.map_or_else(Answer::Refused, |()| Answer::Fine);
    }
}

/// The plugin's standard input, with the kubeconfig as this container sees it.
pub(crate) fn configuration(installation: &Installation, entry: &Entry) -> Value {
    let mut configuration = entry.configuration("1.1.0");
    if let Some(kubeconfig) = configuration.pointer_mut("/kubernetes/kubeconfig") {
        *kubeconfig = Value::from(installation.net().join(&installation.kubeconfig).to_string_lossy());
    }
    configuration
}

async fn run(program: PathBuf, configuration: String) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", program.display());
    let mut child = Command::new(&program)
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
