//! The images that pods of the cluster are made of, under the names that deploy/pod.yaml has.

use lab::containerd::Image;
use lab::shell::Result;

/// proxy-init alone, as the Dockerfile's last target has it.
pub(crate) const PROXY_INIT: &str = "registry.example/proxy-init:VERSION";
/// The Dockerfile's target `legacy`: iptables-legacy beside it.
pub(crate) const LEGACY: &str = "registry.example/proxy-init:legacy";
/// The CNI plugin and the node's agent, under the name that deploy/cni has.
pub(crate) const AGENT: &str = "registry.example/proxy-init-cni:VERSION";
/// Stands in for linkerd-init: it runs the iptables commands that linkerd-init runs with the chart's flags.
pub(crate) const LINKERD_INIT: &str = "registry.example/linkerd-init:1";
/// A client, which by itself only waits.
pub(crate) const CLIENT: &str = "registry.example/client:1";
/// Stands in for the proxy: takes connections on its ports, and says where they were sent.
pub(crate) const PROXY: &str = "registry.example/proxy:1";
/// An application that listens on port 8080.
pub(crate) const APP: &str = "registry.example/app:1";

/// A sandbox's, which has to do nothing, for ever.
pub(crate) fn pause() -> Image {
    Image::new("peer", "/peer")
}

/// All of them.
pub(crate) fn all() -> Result<Vec<Image>> {
    Ok(vec![
        pause(),
        Image::new("peer", "/peer").named(CLIENT),
        Image::running("peer", &["/peer", "serve", "4143", "4140", "4191"]).named(PROXY),
        Image::running("peer", &["/peer", "serve", "8080"]).named(APP),
        Image::of_dockerfile("scratch")?.named(PROXY_INIT),
        Image::of_dockerfile("legacy")?.named(LEGACY),
        Image::running("cni", &["/usr/bin/linkerd2-cni-install"]).named(AGENT),
        Image::running("linkerd-init", &["/bin/busybox", "sh", "-e", "/commands"]).named(LINKERD_INIT),
    ])
}
