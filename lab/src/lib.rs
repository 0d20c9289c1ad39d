//! The tests' laboratory: network namespaces and real TCP connections between them, other releases' packages, kernels,
//! nodes and clusters. Tests, the demo and the benchmarks use it, and `cargo xtask` runs its programs.
//!
//! Functions for tests panic with the reason of a failure.

pub mod agent;
#[cfg(feature = "api-double")]
pub mod api_double;
pub mod apt;
pub mod architecture;
pub mod cgroups;
pub mod chart;
pub mod confined;
pub mod connections;
pub mod containerd;
pub mod handshake;
pub mod helm;
pub mod images;
pub mod install;
pub mod linkerd;
pub mod machine;
pub mod manifests;
pub mod network;
pub mod recording;
pub mod samples;
pub mod scenario;
pub mod services;
pub mod shell;
pub mod variant;
pub mod wait;

/// In the folder that `cargo xtask pods` fills for scenarios: protoc's description of the container runtime interface.
pub const INTERFACE: &str = "cri.descriptors";
/// In that of `cargo xtask cluster`: the values for deploy/helm.
pub const VALUES: &str = "values.json";
