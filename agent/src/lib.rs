//! The agent of a node: it installs the CNI plugin linkerd-cni, keeps it there, and watches and heals the pods that the
//! plugin sets up. docs/node.md describes it.
//!
//! Pure functions decide: [`conflist`] and [`plan`] say which content a folder shall have, given the content that it has; [`settings`] reads arguments and environment. [`folder`] reads and writes, [`keeper`] takes one to
//! the other, and [`install`] does that whenever something changes. [`pods`] watches: [`pod`] says what a pod is to the
//! agent, [`netns`] finds its network namespace, [`rules`] asks the plugin's own code what is to be there, and looks,
//! [`drift`] says what a difference means, and [`tracked`] heals. [`plugin_log`] shows what the plugin says. [`fate`] decides whether the plugin
//! goes when the agent does. Both of these [`follow`] objects at the API server.
//!
//! [`nri`] does all of it without a plugin, files or an API server: the runtime itself tells of each pod.

// Nothing panics, on any input, answer of the API server or environment. Tests may: that is how they fail.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod access;
mod admin;
mod api;
mod conflist;
mod drift;
mod events;
mod fate;
mod folder;
mod follow;
mod install;
mod keeper;
mod kubeconfig;
mod log;
mod metrics;
mod netns;
mod nri;
mod owner;
mod plan;
mod plugin_log;
mod pod;
mod pods;
mod rules;
mod schedule;
mod settings;
mod status;
mod taint;
mod throttle;
mod tracked;
mod watch;

use std::convert::Infallible;
use std::future::pending;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use tracing::{error, info, warn};

// For tests.
pub use crate::conflist::Entry;
pub use crate::metrics::Metrics;
pub use crate::nri::message;
pub use crate::settings::{Installation, LogFormat, OnDrift, OnExit, RepairAction, Settings};

use crate::admin::{Health, Served};
use crate::api::Server;

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
    if settings.uninstalls() {
        // A signal stays held back: half of it would be no better.
        return exit_code(keeper::uninstall(&settings.installation));
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            error!("the agent cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    exit_code(runtime.block_on(run(&settings)))
}

fn exit_code(done: Result<(), String>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{error}");
            ExitCode::FAILURE
        }
    }
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
    if let Some(socket) = settings.nri_socket() {
        return run_by_nri(settings, socket, server.ok().as_ref(), &health).await;
    }
    if let Err(reason) = &server {
        warn!(
            "the API server cannot be asked, so pods are not watched, and the plugin stays when the agent ends: {reason}"
        );
    }
    let server = server.ok();
    let watches = async {
        if let Some(server) = &server {
            let Err(reason) = pods::run(settings, server, &health).await;
            error!("pods are not watched: {reason}");
        }
        pending().await
    };
    tokio::select! {
        done = install::run(settings, server.as_ref(), &health) => done,
        never = watches => never,
        never = remove_taint(settings, server.as_ref(), &health) => match never {},
    }
}

/// As a plugin of the runtime's. The API server is for events and for the taint, where the agent has an account for that.
async fn run_by_nri(
    settings: &Settings,
    socket: &Path,
    server: Option<&Server>,
    health: &Arc<Health>,
) -> Result<(), String> {
    let stopped = install::stopped()?;
    tokio::select! {
        () = stopped => Ok(()),
        done = nri::run(settings, socket, server, health) => done.map(|never| match never {}),
        never = remove_taint(settings, server, health) => match never {},
    }
}

async fn remove_taint(settings: &Settings, server: Option<&Server>, health: &Health) -> Infallible {
    match (&settings.remove_taint, &settings.node, server) {
        (Some(key), Some(node), Some(server)) => taint::run(key, node, server, health).await,
        _ => pending().await,
    }
}
