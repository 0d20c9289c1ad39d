//! The agent of a node: it installs the CNI plugin linkerd-cni, keeps it there, and watches and heals the pods that the
//! plugin sets up. docs/node.md describes it.
//!
//! Pure functions decide: `conflist` and `plan` say which content a folder shall have, given its content; `settings` reads
//! arguments and environment. `folder` reads and writes, `keeper` takes a folder from the one content to the other, and
//! `install` does that whenever something changes. `pods` watches: `pod` says what a pod is to the agent, `netns` finds its
//! network namespace, `rules` compares its rules with those of the plugin's own code, and `care` repairs them. `tell`
//! makes a line and an event of a fact. `fate` decides if the plugin goes when the agent does.
//!
//! `nri` has the same care without a plugin, files or an API server: the runtime itself tells of each pod.

// Nothing panics, on any input, answer of the API server or environment. Tests may: that is how they fail.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod access;
mod admin;
mod api;
mod care;
mod conflist;
mod fate;
mod folder;
mod install;
mod keeper;
mod kubeconfig;
mod log;
mod metrics;
mod netns;
mod nri;
mod plan;
mod pod;
mod pods;
mod repeat;
mod rules;
mod settings;
mod status;
mod taint;
mod tell;
mod throttle;
mod watch;

use std::future::pending;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tracing::{error, info, warn};

// For tests.
pub use crate::conflist::Entry;
pub use crate::metrics::Metrics;
pub use crate::nri::message;
pub use crate::settings::{Installation, LogFormat, OnExit, Repair, Settings};

use crate::admin::{Health, Served};
use crate::api::Server;

/// The time for which the agent's end waits for what it has begun in pods. A question to the API server may take longer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Reads arguments and environment, and runs until a signal comes.
pub fn main() -> ExitCode {
    install::hold_signals();
    let settings = match Settings::read(std::env::args_os()) {
        Ok(settings) => settings,
        Err(error) => {
            // If stdout or stderr is closed, nobody reads it.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1));
        }
    };
    log::start(&settings);
    // A signal stays held back while the plugin is removed: half of it would be no better.
    let done = if settings.uninstalls() { keeper::uninstall(&settings.installation) } else { start(&settings) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn start(settings: &Settings) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("the agent cannot start: {error}"))?;
    let done = runtime.block_on(run(settings));
    runtime.shutdown_timeout(PATIENCE);
    done
}

async fn run(settings: &Settings) -> Result<(), String> {
    info!("linkerd-cni-agent {}", proxy_init::BUILD);
    // kube takes whichever provider is the process' own.
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        return Err("another TLS provider was installed already".to_owned());
    }
    let health = Arc::new(Health::default());
    for (address, served) in [(settings.admin, Served::All), (settings.probes, Served::Probes)] {
        let Some(address) = address else { continue };
        let health = Arc::clone(&health);
        tokio::spawn(async move {
            let Err(error) = admin::serve(address, served, health).await;
            error!("the admin server cannot listen on {address}: {error}");
        });
    }
    let server = Server::new(&settings.installation);
    let known = server.as_ref().ok();
    let taint = async {
        match (&settings.remove_taint, &settings.node, known) {
            (Some(key), Some(node), Some(server)) => taint::run(key, node, server, &health).await,
            _ => pending().await,
        }
    };
    if let Some(socket) = settings.nri_socket() {
        let stopped = install::stopped()?;
        return tokio::select! {
            () = stopped => Ok(()),
            // The API server is for events, where the agent has an account for that.
            done = nri::run(settings, socket, known, &health) => done.map(|never| match never {}),
            never = taint => match never {},
        };
    }
    if let Err(reason) = &server {
        warn!(
            "the API server cannot be asked, so pods are not watched, and the plugin stays when the agent ends: {reason}"
        );
    }
    let watches = async {
        if let Some(server) = known {
            let Err(reason) = pods::run(settings, server, &health).await;
            error!("pods are not watched: {reason}");
        }
        pending().await
    };
    tokio::select! {
        done = install::run(settings, known, &health) => done,
        never = watches => never,
        never = taint => match never {},
    }
}
