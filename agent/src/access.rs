//! Checks if the API server answers the plugin, where the plugin asks about every pod (`"pod-info": "api"`): by the
//! plugin's own code, with the kubeconfig that is on the node.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::time::Duration;

use linkerd_cni::api::Client;
use linkerd_cni::kubeconfig::Kubeconfig;
use pod::{PodInfo, PodName};
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::repeat::repeat;
use crate::settings::Installation;

/// The time for which an answer is good.
const FRESH: Duration = Duration::from_secs(30);

/// Asks for ever, and tells whether the plugin gets its answers, or asks for nothing.
pub(crate) async fn run(installation: &Installation, told: &watch::Sender<bool>) -> Infallible {
    let ask = async || {
        let asked = check_pod(installation).await;
        told.send_if_modified(|was| std::mem::replace(was, asked.is_ok()) != asked.is_ok());
        asked.map_err(|reason| format!("the plugin could not set up a pod: {reason}"))
    };
    repeat(FRESH, ask).await
}

/// Asks about a pod as the plugin would, which there needn't be. It is in another namespace than the agent's own: a role in
/// that alone isn't enough for the plugin.
async fn check_pod(installation: &Installation) -> Result<(), String> {
    let configuration = installation.entry()?.read().map_err(|error| error.to_string())?;
    if configuration.linkerd.pod_info == PodInfo::Annotations {
        return Ok(());
    }
    let namespace = match installation.namespace() {
        Ok(own) if own == "default" => "kube-system",
        Ok(_) => "default",
        // It isn't in a pod, and knows of none.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(format!("the service account's namespace: {error}")),
    };
    let pod = PodName::new(namespace, &installation.pod)?;
    let kubeconfig = installation.net().join(&installation.kubeconfig);
    let asked = spawn_blocking(move || Client::new(Kubeconfig::read(&kubeconfig)?).try_once(&pod)).await;
    asked.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}
