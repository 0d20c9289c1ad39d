//! The node's agent, as whoever is on the node asks it.

use std::process::Command;

use crate::shell::{Result, Run as _};

/// Its answer; an error if there is no agent at this port, or if it says that something is wrong.
pub fn get(port: u16, path: &str) -> Result<String> {
    let url = format!("http://127.0.0.1:{port}{path}");
    Command::new("curl").args(["--silent", "--fail", "--max-time", "5", &url]).read()
}

/// One of its metrics.
pub fn metric(port: u16, name: &str) -> Option<usize> {
    let text = get(port, "/metrics").ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// The number of pods that it has found in place.
pub fn in_place(port: u16) -> Option<usize> {
    metric(port, r#"linkerd_cni_agent_pods{standing="in_place"}"#)
}
