//! Asking the plugin itself whether it could set up a pod: STATUS of the CNI specification, by the plugin's own code, which
//! the agent has of the same build as the program in the image.

use std::time::{Duration, Instant};

use linkerd_cni::error::Error;
use pod::Configuration;
use tokio::task::spawn_blocking;

use crate::conflist::Entry;
use crate::settings::Installation;

/// The pauses before a plugin that refuses is asked again: each doubles the one before.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The last question, and its answer.
#[derive(Debug)]
pub(crate) struct Asked {
    entry: Entry,
    /// The reason why the plugin couldn't set up a pod, if it couldn't.
    pub(crate) refused: Option<String>,
    when: Instant,
    pause: Duration,
}

impl Asked {
    /// Asks about this entry, unless the answer is known and good or still fresh.
    pub(crate) async fn ask(before: Option<Self>, entry: &Entry, installation: &Installation) -> Self {
        let mut pause = SHORTEST_PAUSE;
        if let Some(before) = before.filter(|before| before.entry == *entry) {
            if before.wait().is_none_or(|wait| wait > Duration::ZERO) {
                return before;
            }
            pause = (before.pause * 2).min(LONGEST_PAUSE);
        }
        // As this container sees it.
        let seen = entry.with_kubeconfig(&installation.net().join(&installation.kubeconfig));
        let refused = status(move || Ok(seen.read()?)).await.err();
        let refused = refused.map(|reason| format!("the plugin could not set up a pod: {reason}"));
        Self { entry: entry.clone(), refused, when: Instant::now(), pause }
    }

    /// The time after which a plugin that refuses is asked again; none if it doesn't refuse.
    pub(crate) fn wait(&self) -> Option<Duration> {
        self.refused.as_ref().map(|_| (self.when + self.pause).saturating_duration_since(Instant::now()))
    }
}

/// The plugin's STATUS. It changes nothing on the node: the rules are tried out in a network namespace that is nobody's.
pub(crate) async fn status(
    configuration: impl FnOnce() -> Result<Configuration, Error> + Send + 'static,
) -> Result<(), String> {
    let work = move || linkerd_cni::plugin::status(&configuration()?);
    let done = spawn_blocking(work).await.map_err(|error| error.to_string())?;
    done.map(drop).map_err(|error| error.message())
}
