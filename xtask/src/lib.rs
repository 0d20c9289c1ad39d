//! What the demo, the tests and the benchmarks share: network namespaces of their own, and real TCP connections
//! between them; and other releases' packages.
//!
//! What fails here panics with its reason: it fails a test or a demo.

pub mod apt;
pub mod connections;
pub mod containerd;
pub mod handshake;
pub mod lab;
pub mod linkerd;
pub mod page;
pub mod recording;
pub mod samples;
pub mod scenario;
pub mod shell;
pub mod wait;
