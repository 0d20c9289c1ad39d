//! Doing something again and again.

use std::convert::Infallible;
use std::time::Duration;

use kube::runtime::utils::Backoff as _;
use kube::runtime::watcher::DefaultBackoff;
use tokio::time::sleep;
use tracing::{error, info};

/// Does something for ever: at this interval while that goes well, and after growing pauses while it doesn't. The log has
/// each reason once, and says when it is over.
pub(crate) async fn repeat(every: Duration, work: impl AsyncFn() -> Result<(), String>) -> Infallible {
    let (mut pauses, mut said) = (DefaultBackoff::default(), None);
    loop {
        let failed = work().await.err();
        match (&failed, &said) {
            (Some(reason), _) if failed != said => error!("{reason}"),
            (None, Some(reason)) => info!("no longer: {reason}"),
            _ => {}
        }
        let pause = match failed {
            Some(_) => pauses.next().unwrap_or(every),
            None => {
                pauses.reset();
                every
            }
        };
        said = failed;
        sleep(pause).await;
    }
}
