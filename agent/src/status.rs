//! Asking the plugin itself whether it could set up a pod: the verb STATUS of the CNI specification.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::timeout;

use crate::conflist::Entry;
use crate::folder::Stamp;
use crate::settings::Installation;

/// The pauses before a plugin that refuses is asked again: each doubles the one before.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The time limit of the plugin.
const PATIENCE: Duration = Duration::from_secs(5);

/// A question to the plugin.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Question {
    /// The program.
    pub(crate) program: Stamp,
    /// Its standard input.
    pub(crate) configuration: Value,
}

/// The last question, and its answer.
#[derive(Debug)]
pub(crate) struct Asked {
    question: Question,
    refused: Option<String>,
    when: Instant,
    pause: Duration,
}

impl Asked {
    /// Asks the plugin, whose path is `program`, unless the answer is known and good or still fresh.
    pub(crate) async fn ask(before: Option<Self>, question: Question, program: &Path) -> Self {
        let mut pause = SHORTEST_PAUSE;
        if let Some(before) = before.filter(|before| before.question == question) {
            if before.refused.is_none() || before.wait() > Duration::ZERO {
                return before;
            }
            pause = (before.pause * 2).min(LONGEST_PAUSE);
        }
        let refused = run(program, question.configuration.to_string()).await.err();
        Self { question, refused, when: Instant::now(), pause }
    }

    /// The reason why the plugin couldn't set up a pod, if it couldn't.
    pub(crate) fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// The time after which a plugin that refuses is asked again.
    pub(crate) fn wait(&self) -> Duration {
        (self.when + self.pause).saturating_duration_since(Instant::now())
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

async fn run(program: &Path, configuration: String) -> Result<(), String> {
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
