//! The admin server: /metrics, and whether the agent is alive and ready.
//!
//! Neither axum's `serve` nor kubert's admin server bounds connections that never send a request: whoever opens enough of
//! them takes all of the agent's descriptors. So hyper's connections are counted here.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, yield_now};
use tokio::time::timeout;
use tracing::{debug, info};

use crate::metrics::Metrics;

/// The most connections that a listener has. The oldest gives way to a new one: whoever opens many, and leaves them
/// open, keeps nobody out.
const CONNECTIONS: usize = 64;
/// The longest that a connection takes, from its beginning to the last byte of its answer. It is for one request, so that
/// nobody has the server make answers that they don't read.
const PATIENCE: Duration = Duration::from_secs(5);

/// The paths that a listener answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Served {
    /// Metrics, and probes.
    All,
    /// Probes alone.
    Probes,
}

/// The agent's state, as the server tells it.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Every metric.
    pub(crate) metrics: Metrics,
    /// True if pods can be set up.
    pub(crate) ready: watch::Sender<bool>,
}

impl Health {
    /// Says whether pods can be set up, if that has changed: these are the words for it.
    pub(crate) fn tell(&self, ready: bool, words: impl FnOnce() -> String) {
        self.metrics.ready.set(ready.into());
        let is_news = self.ready.send_if_modified(|was| std::mem::replace(was, ready) != ready);
        if is_news && ready {
            info!("ready: {}", words());
        } else if is_news {
            info!("not ready");
        }
    }
}

/// Serves for ever.
pub(crate) async fn serve(address: SocketAddr, served: Served, health: Arc<Health>) -> io::Result<Infallible> {
    let listener = TcpListener::bind(address).await?;
    let mut connections: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of file descriptors, perhaps.
                debug!("accept: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        connections.retain(|connection| !connection.is_finished());
        if connections.len() >= CONNECTIONS
            && let Some(oldest) = connections.pop_front()
        {
            oldest.abort();
        }
        let connection = tokio::spawn(converse(stream, served, Arc::clone(&health)));
        connections.push_back(connection.abort_handle());
        // However many more connections wait, those that have sent a request are answered first.
        yield_now().await;
    }
}

/// Takes one request and answers it.
async fn converse(stream: TcpStream, served: Served, health: Arc<Health>) {
    let service = service_fn(|request| std::future::ready(Ok::<_, Infallible>(answer(&request, served, &health))));
    let mut server = http1::Builder::new();
    server.keep_alive(false).max_buf_size(16 << 10);
    match timeout(PATIENCE, server.serve_connection(TokioIo::new(stream), service)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!("a connection to the admin server: {error}"),
        Err(_) => debug!("a connection to the admin server took longer than {PATIENCE:?}"),
    }
}

fn answer(request: &Request<Incoming>, served: Served, health: &Health) -> Response<Full<Bytes>> {
    let (status, kind, text) = match request.uri().path() {
        "/metrics" if served == Served::All => {
            (StatusCode::OK, "application/openmetrics-text; version=1.0.0; charset=utf-8", health.metrics.text())
        }
        // The paths of upstream's repair controller, and Kubernetes' own.
        "/live" | "/livez" => (StatusCode::OK, "text/plain", "live\n".to_owned()),
        "/ready" | "/readyz" if *health.ready.borrow() => (StatusCode::OK, "text/plain", "ready\n".to_owned()),
        "/ready" | "/readyz" => {
            (StatusCode::SERVICE_UNAVAILABLE, "text/plain", "not ready: the log says why\n".to_owned())
        }
        _ => (StatusCode::NOT_FOUND, "text/plain", "not found\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    if let Ok(kind) = kind.parse() {
        response.headers_mut().insert(CONTENT_TYPE, kind);
    }
    response
}
