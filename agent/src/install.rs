//! The loop that keeps the plugin on the node.

use std::future::pending;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::runtime::events::{Event, EventType};
use nix::sys::signal::{SigSet, Signal};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::access;
use crate::admin::Health;
use crate::api::Server;
use crate::events::{self, Events, event};
use crate::fate::{Fate, Own};
use crate::keeper::{Keeper, State};
use crate::plugin_log::PluginLog;
use crate::settings::{Installation, OnExit, Settings};
use crate::watch::Watch;

/// How long to wait for a program that writes several files at once.
const SETTLE: Duration = Duration::from_millis(50);

/// How long after a pass the next one comes where the kernel doesn't say what changes.
const UNWATCHED: Duration = Duration::from_secs(1);
/// How many events of one kind a pass makes: a folder may have any number of files.
const EVENTS: usize = 8;

/// Keeps the plugin on the node until a signal comes, and leaves as the settings say.
pub(crate) async fn run(settings: &Settings, server: Option<&Server>, health: &Arc<Health>) -> Result<(), String> {
    let installation = &settings.installation;
    // Without a configuration there is nothing to wait for.
    installation.entry()?;
    let mut watch = None;
    let mut unwatched = None;
    let mut keeper = Keeper::new(installation.clone(), Arc::clone(health));
    let mut plugin_log = installation.plugin_log().map(|folder| PluginLog::new(&folder, health));
    let events = server.map(|server| Events::new(server, "linkerd-cni-agent", health));
    let own = server.map(Own::new);
    let mut watched = pin!(async {
        match &own {
            Some(own) => own.watch().await,
            None => pending().await,
        }
    });
    {
        let mut stopped = pin!(stopped()?);
        let (told, mut access) = watch::channel(false);
        let mut asked = pin!(access::run(installation, &told));
        let (mut last, mut was_ready) = (State::default(), None);
        loop {
            let trouble = watch_folders(&mut watch, installation).err().map(|error| error.to_string());
            if trouble != unwatched {
                if let Some(error) = &trouble {
                    warn!(
                        "inotify: {error}: the node's folders are looked at every second instead \
                         (fs.inotify.max_user_instances and max_user_watches limit it)"
                    );
                }
                unwatched = trouble;
            }
            let start = Instant::now();
            let state = keeper.pass();
            health.metrics.pass.observe(start.elapsed().as_secs_f64());
            let again = if unwatched.is_some() { state.again.min(UNWATCHED) } else { state.again };
            // The agent that owns the files has the socket, too.
            if let Some(log) = plugin_log.as_mut().filter(|_| state.has_program && !state.standby) {
                log.keep();
            }
            let ready = state.is_installed() && *access.borrow_and_update();
            let news = news(&state, &last);
            if let (Some(events), Some(node), false) = (&events, &settings.node, news.is_empty()) {
                let (events, node) = (events.clone(), events::node(node));
                // The next pass may begin meanwhile.
                tokio::spawn(async move {
                    for event in news {
                        events.publish(&node, &event).await;
                    }
                });
            }
            tell(&state, ready, was_ready.replace(ready), health);
            last = state;
            tokio::select! {
                () = &mut stopped => break,
                () = keeper.answered() => {}
                never = &mut watched => match never {},
                never = &mut asked => match never {},
                // The sender lives as long as the loop.
                _ = access.changed() => {}
                changed = timeout(again, changed(&watch)) => {
                    if let Ok(Err(error)) = changed {
                        warn!("inotify: {error}");
                        sleep(Duration::from_secs(1)).await;
                    }
                    sleep(SETTLE).await;
                }
            }
        }
    }
    health.ready.send_replace(false);
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
    if let Some(log) = plugin_log.filter(|_| removes) {
        log.remove();
    }
    keeper.leave(removes)
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

/// Watches the node's folders; on an error, not all that there are.
fn watch_folders(watch: &mut Option<Watch>, installation: &Installation) -> io::Result<()> {
    let watch = match watch {
        Some(watch) => watch,
        None => watch.insert(Watch::new()?),
    };
    let mut folders = vec![installation.net(), installation.bin(), installation.service_account.clone()];
    folders.extend(installation.authority().parent().map(Path::to_owned));
    folders.extend(installation.plugin_log());
    for folder in folders {
        match watch.add(&folder) {
            // A folder that isn't there is the pass' trouble, which looks again.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            added => added?,
        }
    }
    Ok(())
}

/// Waits until something in the folders that are watched has changed.
async fn changed(watch: &Option<Watch>) -> io::Result<()> {
    match watch {
        Some(watch) => watch.changed().await,
        None => pending().await,
    }
}

/// The events of files that the plugin can't be kept in, and of what it refuses, if they are news.
fn news(now: &State, before: &State) -> Vec<Event> {
    let mut events = Vec::new();
    for (reason, now, before) in [
        ("LinkerdCNIContested", &now.contested, &before.contested),
        ("LinkerdCNISkipped", &now.skipped, &before.skipped),
    ] {
        let new = now.iter().filter(|(name, line)| before.get(*name) != Some(line)).take(EVENTS);
        events.extend(new.map(|(name, line)| event(EventType::Warning, reason, &format!("Chaining {name}"), line)));
    }
    if let Some(refused) = now.refused.as_ref().filter(|_| now.refused != before.refused) {
        events.push(event(EventType::Warning, "LinkerdCNIRefused", "Asking the plugin", refused));
    }
    events
}

/// Tells whoever asks, and the log if that is news.
fn tell(state: &State, ready: bool, was_ready: Option<bool>, health: &Health) {
    let metrics = &health.metrics;
    metrics.contested.set(i64::try_from(state.contested.len()).unwrap_or(i64::MAX));
    metrics.ready.set(ready.into());
    health.ready.send_if_modified(|was| std::mem::replace(was, ready) != ready);
    if was_ready == Some(ready) {
        return;
    }
    if ready {
        let files = state.configurations;
        let whose = if state.standby { "another agent" } else { "this agent" };
        info!("ready: the plugin is in {files} network configurations; {whose} owns the files");
    } else {
        info!("not ready yet");
    }
}
