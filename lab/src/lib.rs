//! The tests' laboratory: network namespaces and real TCP connections between them, other releases' packages, kernels,
//! nodes and clusters. Tests, the demo and the benchmarks use it, and `cargo xtask` runs its programs.
//!
//! Functions for tests panic with the reason of a failure.

use std::path::Path;

use shell::Result;

#[cfg(feature = "api-double")]
pub mod api_double;
pub mod apt;
pub mod architecture;
pub mod cgroups;
pub mod chart;
pub mod cluster;
pub mod confined;
pub mod connections;
pub mod containerd;
pub mod handshake;
pub mod helm;
pub mod images;
pub mod install;
pub mod kernels;
pub mod linkerd;
pub mod machine;
pub mod manifests;
pub mod network;
pub mod pods;
pub mod recording;
pub mod rootfs;
pub mod samples;
pub mod scenario;
pub mod services;
pub mod shell;
pub mod wait;

/// Puts the files of each image that is built into a folder of its name in this one: `scratch`, `legacy` and `cni` as in
/// the Dockerfile, and `peer`.
pub type LayOut = fn(&Path) -> Result<()>;

/// The reason why nothing was tried, if it wasn't.
pub type Skipped = Option<String>;

/// An error for whoever asked for a trial that was skipped.
fn tried(skipped: Skipped) -> Result<()> {
    skipped.map_or(Ok(()), |reason| Err(format!("nothing was tried: {reason}").into()))
}
