//! Asking the plugin itself whether it could set up a pod: the verb STATUS of the CNI specification.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::timeout;

use crate::conflist::{Entry, PLUGIN};
use crate::settings::Paths;

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

/// Runs the plugin that is installed on the node.
///
/// # Errors
/// Why it can't set up pods.
pub async fn ask(paths: &Paths, entry: &Entry) -> Result<(), String> {
    let mut configuration = entry.configuration("1.1.0");
    // The same file, as this container sees it.
    if let Some(kubeconfig) = configuration.pointer_mut("/kubernetes/kubeconfig") {
        *kubeconfig = Value::from(paths.net.join(&paths.kubeconfig).to_string_lossy());
    }
    run(&paths.bin.join(PLUGIN), &configuration.to_string()).await
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
        .spawn()
        .map_err(failed)?;
    let work = async {
        if let Some(mut stdin) = child.stdin.take() {
            // A plugin that doesn't read fails by itself.
            let _ = stdin.write_all(configuration.as_bytes()).await;
        }
        child.wait_with_output().await
    };
    let output = timeout(PATIENCE, work).await;
    let output = output.map_err(|_| format!("{} took longer than {PATIENCE:?}", program.display()))?;
    let output = output.map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let message = said.get("msg").and_then(Value::as_str).unwrap_or("it said nothing");
    Err(format!("the plugin could not set up a pod: {message}"))
}
