//! Doing something again and again.

use std::convert::Infallible;
use std::time::Duration;

use kube::runtime::utils::Backoff as _;
use kube::runtime::watcher::DefaultBackoff;
use tokio::time::sleep;
use tracing::{error, info};

/// The pause after a failure, in case that the growing ones end.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Does something for ever: at this interval while that goes well, and after growing pauses while it doesn't. The log has
/// each reason once, and says when it is over.
pub(crate) async fn repeat(every: Duration, work: impl AsyncFn() -> Result<(), String>) -> Infallible {
    repeat_and_tell(every, work, |reason| error!("{reason}")).await
}

/// The same, and `tell` tells of each reason.
pub(crate) async fn repeat_and_tell(
    every: Duration,
    work: impl AsyncFn() -> Result<(), String>,
    tell: impl Fn(&str),
) -> Infallible {
    let (mut pauses, mut said) = (DefaultBackoff::default(), None);
    loop {
        let failed = work().await.err();
        match (&failed, &said) {
            (Some(reason), _) if failed != said => tell(reason),
            (None, Some(reason)) => info!("no longer: {reason}"),
            _ => {}
        }
        let pause = match failed {
            Some(_) => pauses.next().unwrap_or(LONGEST_PAUSE),
            None => {
                pauses.reset();
                every
            }
        };
        said = failed;
        sleep(pause).await;
    }
}
