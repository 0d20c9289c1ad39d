//! What the demo, the tests and the benchmarks share: network namespaces of their own, and real TCP connections
//! between them; and other releases' packages.
//!
//! What fails here panics with its reason: it fails a test or a demo.

#[cfg(feature = "api-double")]
pub mod api_double;
pub mod apt;
pub mod connections;
pub mod containerd;
pub mod handshake;
pub mod linkerd;
pub mod network;
pub mod page;
pub mod recording;
pub mod samples;
pub mod scenario;
pub mod shell;
pub mod wait;
