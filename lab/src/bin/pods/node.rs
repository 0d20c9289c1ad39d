//! A node of a cluster, but for kubelet: containerd, with networks and images.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use lab::confined::Inside;
use lab::containerd::{self, SOCKET};
use lab::machine::{NODE, PLUGINS};
use lab::services::Services;
use lab::shell::Result;
use lab::wait::wait_for;
use lab::{INTERFACE, linkerd};
use serde_json::{Value, json};

use crate::cri::Client;

/// The networks, which all reach each other, by the names of the runtimes that a sandbox is made with. The first is the
/// bridge alone.
pub(crate) const BRIDGE: &str = "";
/// The plugin linkerd-cni after the bridge, in nft and in legacy mode, by annotations.
pub(crate) const NFT: &str = "nft";
pub(crate) const LEGACY: &str = "legacy";
/// The same for a runtime that is told to hand over nothing.
pub(crate) const NOTHING: &str = "nothing";

/// A running containerd.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) client: Client,
    pub(crate) cgroup: String,
    pub(crate) services: &'static Services,
}

impl Node {
    pub(crate) fn start(inside: &Inside, services: &'static Services) -> Result<Self> {
        let plugin = inside.folder.join("images/cni/opt/cni/bin/linkerd-cni");
        symlink(plugin, Path::new(PLUGINS).join("linkerd-cni"))?;
        let handed_over = json!({"io.kubernetes.cri.pod-annotations": true});
        let mut runtimes = String::new();
        for (name, mode, capabilities) in
            [(NFT, "nft", &handed_over), (LEGACY, "legacy", &handed_over), (NOTHING, "nft", &Value::Null)]
        {
            let folder = format!("{NODE}/networks/{name}");
            fs::create_dir_all(&folder)?;
            let mut entry = json!({
                "type": "linkerd-cni",
                "log_level": "debug",
                "kubernetes": {"kubeconfig": "/nonexistent"},
                "linkerd": linkerd::cni_section("annotations"),
                "capabilities": capabilities,
            });
            entry["linkerd"]["iptables-mode"] = json!(mode);
            fs::write(format!("{folder}/10.conflist"), containerd::network(&[entry]).to_string())?;
            runtimes += &format!(
                r#"[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}]
runtime_type = "io.containerd.runc.v2"
cni_conf_dir = "{folder}"
"#
            );
        }
        containerd::begin(services, &runtimes)?;
        let client = Client::connect(Path::new(SOCKET), &inside.folder.join(INTERFACE))?;
        Ok(Self { client, cgroup: inside.cgroup.clone(), services })
    }

    /// Kills containerd, does this, and starts it again. Its pods go on.
    pub(crate) fn restart(&self, meanwhile: impl FnOnce() -> Result<()>) -> Result<()> {
        self.services.kill("containerd")?;
        meanwhile()?;
        containerd::start(self.services)?;
        // Stopping what isn't there does nothing.
        let none = json!({"pod_sandbox_id": "none"});
        wait_for("containerd's answer", || self.client.call("StopPodSandbox", none.clone()).is_ok())
    }

    /// A number that no other pod or container has.
    pub(crate) fn next(&self) -> u32 {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        NUMBER.fetch_add(1, Ordering::Relaxed)
    }
}
