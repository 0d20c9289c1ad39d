//! The loop that keeps the plugin on the node.

use std::convert::Infallible;
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::info;

use crate::access;
use crate::admin::Health;
use crate::api::Server;
use crate::fate::{Fate, Own};
use crate::keeper::Keeper;
use crate::settings::{OnExit, Settings};
use crate::tell::Teller;

/// The wait for a program that writes several files at once.
const SETTLE: Duration = Duration::from_millis(50);

/// Keeps the plugin on the node until a signal comes, and leaves as the settings say.
pub(crate) async fn run(settings: &Settings, server: Option<&Server>, health: &Arc<Health>) -> Result<(), String> {
    let installation = &settings.installation;
    // Without a configuration there is nothing to wait for.
    installation.entry()?;
    let mut keeper = Keeper::new(settings, Teller::new(server, "linkerd-cni-agent", health), health);
    let own = server.map(Own::new);
    let mut watched = pin!(async {
        match &own {
            Some(own) => own.watch().await,
            None => pending().await,
        }
    });
    let (told, mut access) = watch::channel(false);
    tokio::select! {
        // The first question of whether the plugin gets answers is asked once it has a kubeconfig.
        biased;
        never = keep(&mut keeper, &mut access, health) => match never {},
        () = stopped()? => {}
        never = &mut watched => match never {},
        never = access::run(installation, &told) => match never {},
    }
    health.tell(false, String::new);
    let removes = match (settings.on_exit, &own) {
        (OnExit::Keep, _) | (OnExit::Auto, None) => false,
        (OnExit::Remove, _) => {
            info!("the plugin is being removed from the node, because of --on-exit remove");
            true
        }
        (OnExit::Auto, Some(own)) => {
            let fate = tokio::select! {
                biased;
                never = &mut watched => match never {},
                fate = own.fate() => fate,
            };
            match fate {
                Fate::Wanted => false,
                Fate::Unwanted(reason) => {
                    info!("the plugin is being removed from the node, because {reason}");
                    true
                }
                Fate::Unknown(reason) => {
                    info!("whether another agent follows is not known: {reason}");
                    false
                }
            }
        }
    };
    keeper.leave(removes)
}

/// Keeps the plugin on the node, whatever happens there, and tells if it is ready.
async fn keep(keeper: &mut Keeper, access: &mut watch::Receiver<bool>, health: &Health) -> Infallible {
    loop {
        let start = Instant::now();
        let state = keeper.pass().await;
        health.metrics.pass.observe(start.elapsed().as_secs_f64());
        health.metrics.contested.set(i64::try_from(state.contested()).unwrap_or(i64::MAX));
        health.tell(state.is_ready() && *access.borrow_and_update(), || {
            let whose = if state.owns { "this agent" } else { "another agent" };
            format!("the plugin is in {} network configurations; {whose} owns the files", state.configurations)
        });
        tokio::select! {
            // The sender lives as long as this does.
            _ = access.changed() => {}
            _ = timeout(state.again, keeper.changed()) => sleep(SETTLE).await,
        }
    }
}

/// Holds SIGTERM and SIGINT back until [`stopped`] takes them. A signal that comes while its handler is being installed
/// would be lost (signal-hook-registry calls what was there before), and the first process of a container gets none
/// that it has no handler for (pid_namespaces(7)). Kubelet would wait for half a minute.
pub(crate) fn hold_signals() {
    // These are valid signals, which is all that can be wrong.
    let _ = signals().thread_block();
}

fn signals() -> SigSet {
    [Signal::SIGTERM, Signal::SIGINT].into_iter().collect()
}

/// Waits for SIGTERM or SIGINT, also for one that was held back.
pub(crate) fn stopped() -> Result<impl Future<Output = ()>, String> {
    let failed = |error| format!("signals: {error}");
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    signals().thread_unblock().map_err(|errno| failed(errno.into()))?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
