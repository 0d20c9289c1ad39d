//! The API server, as the agent's service account may use it.

use std::convert::Infallible;
use std::fmt::Debug;
use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use futures::TryStreamExt as _;
use kube::api::GetParams;
use kube::client::ClientBuilder;
use kube::core::Request;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Config, Error, Resource};
use pod::{Given, Object, ServiceSpec, bounded, wrong_in_json};
use proxy_init::PortRange;
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use tower::limit::RateLimitLayer;
use tracing::{debug, info, warn};

use crate::settings::Installation;

/// The time limit of an answer to what the agent writes: as long as upstream's repair controller waits.
pub(crate) const PATIENCE_TO_WRITE: Duration = Duration::from_secs(1);
/// The time limit of other answers.
const PATIENCE: Duration = Duration::from_secs(3);
/// The most watches that may begin in this time.
const WATCHES: (u64, Duration) = (10, Duration::from_secs(30));
/// The most bytes of the API server's own words that are shown.
const LONGEST_MESSAGE: usize = 300;

/// A client, and who asks.
#[derive(Clone)]
pub(crate) struct Server {
    /// The client.
    pub(crate) client: Client,
    /// Another one, for watches alone: kube's watcher asks again at once when a watch ends without an error, thousands of
    /// times in a second if each does.
    pub(crate) watching: Client,
    /// The agent's own namespace.
    pub(crate) namespace: String,
    /// The agent's own pod.
    pub(crate) pod: String,
}

impl Server {
    /// By the service account's token, which is read again as it rotates, and the cluster's authority.
    pub(crate) fn new(installation: &Installation) -> Result<Self, String> {
        let url = installation.api_server();
        let url = url.parse().map_err(|error| format!("KUBERNETES_SERVICE_HOST and _PORT make {url:?}: {error}"))?;
        let namespace =
            installation.namespace().map_err(|error| format!("the service account's namespace: {error}"))?;
        let mut config = Config::new(url);
        config.root_cert_file = Some(installation.authority());
        // Besides that file, which is read again as it changes, nobody is trusted. Without this, kube would first ask
        // for the system's authorities, of which the image has none.
        config.root_cert = Some(Vec::new());
        config.auth_info.token_file = installation.service_account.join("token").to_str().map(str::to_owned);
        config.default_namespace.clone_from(&namespace);
        let words = |error: Error| error.to_string();
        let watching = ClientBuilder::try_from(config.clone()).map_err(words)?;
        let watching = watching.with_layer(&RateLimitLayer::new(WATCHES.0, WATCHES.1)).build();
        let client = Client::try_from(config).map_err(words)?;
        Ok(Self { client, watching, namespace, pod: installation.pod.clone() })
    }

    /// The annotations of a namespace that count for its pods.
    pub(crate) async fn annotations(&self, namespace: &str) -> Result<Given, String> {
        let found: Object = self.get("/api/v1/namespaces", namespace).await?;
        Ok(found.metadata.annotations)
    }

    /// The ports and target ports of the service by which pods reach the API server.
    pub(crate) async fn ports_of_api_server(&self) -> Result<Vec<PortRange>, String> {
        let path = "/api/v1/namespaces/default/services";
        let found: Object<ServiceSpec> = self.get(path, "kubernetes").await?;
        let ports = found.spec.ports();
        if ports.is_empty() {
            return Err(format!("{path}/kubernetes: it has no ports"));
        }
        Ok(ports)
    }

    async fn get<S: Default + DeserializeOwned>(&self, path: &str, name: &str) -> Result<Object<S>, String> {
        let request = Request::new(path).get(name, &GetParams::default());
        let found = within(async { self.client.request(request.map_err(Error::BuildRequest)?).await });
        found.await.map_err(|reason| format!("{path}/{name}: {reason}"))
    }
}

/// Follows the objects of this kind for ever, and tells `take` of each. They come one by one, also the first ones: a list
/// has them from the API server's memory only if it has all of them at once.
pub(crate) async fn follow<K>(api: Api<K>, which: watcher::Config, what: &str, take: impl Fn(Event<K>)) -> Infallible
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut news = pin!(watcher(api, which.streaming_lists()).default_backoff());
    let mut said = false;
    loop {
        match news.try_next().await {
            Ok(None) => return pending().await,
            Err(error) => {
                if !std::mem::replace(&mut said, true) {
                    warn!("{what} cannot be watched: {}", words_of_watch(&error));
                }
            }
            Ok(Some(event)) => {
                // A list begins before it is asked for.
                if !matches!(event, Event::Init) && std::mem::take(&mut said) {
                    info!("the API server answers again about {what}");
                }
                if matches!(event, Event::InitDone) {
                    debug!("{what} is watched");
                }
                take(event);
            }
        }
    }
}

/// An answer, if it comes in time.
pub(crate) async fn within<T>(request: impl Future<Output = Result<T, Error>>) -> Result<T, String> {
    match timeout(PATIENCE, request).await {
        Ok(answer) => answer.map_err(|error| words(&error)),
        Err(_) => Err(format!("the API server did not answer within {} s", PATIENCE.as_secs())),
    }
}

/// Words for a failure. They hold nothing of an answer that makes no sense, for that may have secrets in it.
pub(crate) fn words(error: &Error) -> String {
    match error {
        Error::SerdeError(error) => format!("the API server's answer makes no sense: {}", wrong_in_json(error)),
        Error::Api(status) => format!("{}: {}", status.code, bounded(status.message.clone(), LONGEST_MESSAGE)),
        other => other.to_string(),
    }
}

/// Words for the failure of a watch.
fn words_of_watch(error: &watcher::Error) -> String {
    use watcher::Error::{InitialListFailed, NoResourceVersion, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error) => match error {
            Error::Api(status) if [400, 422].contains(&status.code) => {
                format!("{}: Kubernetes 1.32 or later is needed", words(error))
            }
            _ => words(error),
        },
        WatchError(status) => words(&Error::Api(status.clone())),
        NoResourceVersion => "an answer has no version".to_owned(),
    }
}
