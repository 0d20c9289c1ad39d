//! The admin server: /metrics, and whether the agent is alive and ready.

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
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tracing::debug;

use crate::metrics::Metrics;

/// How many connections there may be: one prober, one Prometheus, somebody who looks.
const CONNECTIONS: usize = 16;
/// How long a client may take for the head of a request.
const PATIENCE: Duration = Duration::from_secs(5);

/// How the agent is, as the server tells.
#[derive(Debug, Default)]
pub struct Health {
    /// Every metric.
    pub metrics: Metrics,
    /// Whether pods can be set up.
    pub ready: watch::Sender<bool>,
}

/// Serves for ever.
///
/// # Errors
/// The address can't be listened on.
pub async fn serve(address: SocketAddr, health: Arc<Health>) -> io::Result<Infallible> {
    let listener = TcpListener::bind(address).await?;
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            continue;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of file descriptors, perhaps.
                debug!("accept: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let health = Arc::clone(&health);
        tokio::spawn(async move {
            let _place = place;
            let service = service_fn(|request| std::future::ready(Ok::<_, Infallible>(answer(&request, &health))));
            let mut server = http1::Builder::new();
            server
                .timer(TokioTimer::new())
                .header_read_timeout(PATIENCE)
                .max_buf_size(16 << 10);
            if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
                debug!("a connection to the admin server: {error}");
            }
        });
    }
}

fn answer(request: &Request<Incoming>, health: &Health) -> Response<Full<Bytes>> {
    let (status, kind, text) = match request.uri().path() {
        "/metrics" => (
            StatusCode::OK,
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            health.metrics.text(),
        ),
        // Those of upstream's repair controller, and Kubernetes' own.
        "/live" | "/livez" => (StatusCode::OK, "text/plain", "live\n".to_owned()),
        "/ready" | "/readyz" if *health.ready.borrow() => (StatusCode::OK, "text/plain", "ready\n".to_owned()),
        "/ready" | "/readyz" => (
            StatusCode::SERVICE_UNAVAILABLE,
            "text/plain",
            "not ready: the log says why\n".to_owned(),
        ),
        _ => (StatusCode::NOT_FOUND, "text/plain", "not found\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    if let Ok(kind) = kind.parse() {
        response.headers_mut().insert(CONTENT_TYPE, kind);
    }
    response
}
