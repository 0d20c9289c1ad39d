//! The images that pods are made of, under the names that deploy/pod.yaml has.

/// proxy-init alone, as the Dockerfile's last target has it.
pub const PROXY_INIT: &str = "registry.example/proxy-init:VERSION";
/// The Dockerfile's target `legacy`: iptables-legacy beside it.
pub const LEGACY: &str = "registry.example/proxy-init:legacy";
/// The CNI plugin and the node's agent, under the name that deploy/cni has.
pub const AGENT: &str = "registry.example/proxy-init-cni:VERSION";
/// Stands in for linkerd-init: it runs the iptables commands that linkerd-init runs with the chart's flags.
pub const LINKERD_INIT: &str = "registry.example/linkerd-init:1";
/// A client, which by itself only waits.
pub const CLIENT: &str = "registry.example/client:1";
/// Stands in for the proxy: takes connections on its ports, and says where they were sent.
pub const PROXY: &str = "registry.example/proxy:1";
/// An application that listens on port 8080.
pub const APP: &str = "registry.example/app:1";

/// The image `legacy`, where iptables-legacy has file capabilities, as in linkerd-init's image.
pub const FILE_CAPABILITIES: &str = "registry.example/proxy-init:file-capabilities";
/// A sandbox's, which has to do nothing, for ever.
pub(crate) const PAUSE: &str = "registry.example/pause:1";
