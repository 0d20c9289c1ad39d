//! The API server, as the agent's service account may use it.

use std::time::Duration;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use kube::core::object::NotUsed;
use kube::core::{ApiResource, Object};
use kube::{Api, Client, Config, Error};
use linkerd_cni::annotations::Given;
use linkerd_cni::object::ServiceSpec;
use tokio::time::timeout;

use crate::settings::Installation;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// A client, and who asks.
#[derive(Clone)]
pub struct Server {
    /// The client.
    pub client: Client,
    /// The agent's own namespace.
    pub namespace: String,
    /// The agent's own pod.
    pub pod: String,
}

impl Server {
    /// By the service account's token, which is read again as it rotates, and the cluster's authority.
    ///
    /// # Errors
    /// What is missing.
    pub fn new(installation: &Installation) -> Result<Self, String> {
        let paths = &installation.paths;
        let host = installation.host.trim_start_matches('[').trim_end_matches(']');
        let host = if host.contains(':') {
            format!("[{host}]")
        } else {
            host.to_owned()
        };
        let url = format!("https://{host}:{}", installation.port);
        let url = url
            .parse()
            .map_err(|error| format!("KUBERNETES_SERVICE_HOST and _PORT make {url:?}: {error}"))?;
        let path = paths.service_account.join("namespace");
        let namespace = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut config = Config::new(url);
        config.root_cert_file = Some(paths.authority.clone());
        // Besides that file, which is read again as it changes, nobody is trusted. Without this, kube would first ask
        // for the system's authorities, of which the image has none.
        config.root_cert = Some(Vec::new());
        config.auth_info.token_file = paths.service_account.join("token").to_str().map(str::to_owned);
        namespace.trim().clone_into(&mut config.default_namespace);
        let client = Client::try_from(config).map_err(|error| error.to_string())?;
        Ok(Self {
            client,
            namespace: namespace.trim().to_owned(),
            pod: installation.pod.clone(),
        })
    }

    /// The annotations of a namespace that count for its pods.
    ///
    /// # Errors
    /// Why they aren't known.
    pub async fn annotations(&self, namespace: &str) -> Result<Given, String> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let found = within(namespaces.get(namespace)).await;
        let found = found.map_err(|reason| format!("namespace {namespace}: {reason}"))?;
        Ok(found.metadata.annotations.unwrap_or_default().into_iter().collect())
    }

    /// The ports and target ports of the service by which pods reach the API server.
    ///
    /// # Errors
    /// Why they aren't known.
    pub async fn ports_of_api_server(&self) -> Result<Vec<u16>, String> {
        let resource = ApiResource::erase::<Service>(&());
        let services: Api<Object<ServiceSpec, NotUsed>> =
            Api::namespaced_with(self.client.clone(), "default", &resource);
        let found = within(services.get("kubernetes")).await;
        let found = found.map_err(|reason| format!("service default/kubernetes: {reason}"))?;
        let ports = found.spec.ports.unwrap_or_default().0;
        if ports.is_empty() {
            return Err("service default/kubernetes: it has no ports".to_owned());
        }
        Ok(ports)
    }

    /// What it says of the agent's own objects, within some seconds.
    pub async fn fate(&self) -> Fate {
        let asked = tokio::time::timeout(PATIENCE, self.ask()).await;
        asked.unwrap_or(Fate::Unknown)
    }

    async fn ask(&self) -> Fate {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let namespace = namespaces.get(&self.namespace).await;
        match namespace.map(|namespace| namespace.metadata.deletion_timestamp.is_some()) {
            Ok(true) => return Fate::Uninstalled("its namespace is being deleted"),
            Ok(false) => {}
            Err(error) if refused(&error) => return Fate::Refused,
            Err(_) => return Fate::Unknown,
        }
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let pod = match pods.get(&self.pod).await {
            Ok(pod) => pod,
            Err(error) if refused(&error) => return Fate::Refused,
            Err(_) => return Fate::Unknown,
        };
        let owners = pod.metadata.owner_references.unwrap_or_default();
        let Some(owner) = owners.into_iter().find(|owner| owner.kind == "DaemonSet") else {
            return Fate::Silent;
        };
        let sets: Api<DaemonSet> = Api::namespaced(self.client.clone(), &self.namespace);
        match sets.get(&owner.name).await.map(|set| set.metadata) {
            Ok(set) if set.deletion_timestamp.is_some() => Fate::Uninstalled("its DaemonSet is being deleted"),
            // One of the same name that is another one is there to stay, too.
            Ok(_) => Fate::Stays,
            Err(Error::Api(status)) if status.code == 404 => Fate::Uninstalled("its DaemonSet is gone"),
            // The role in Linkerd's chart doesn't allow to ask.
            Err(error) if refused(&error) => Fate::Silent,
            Err(_) => Fate::Unknown,
        }
    }
}

/// An answer, if it comes in time.
async fn within<T>(request: impl Future<Output = Result<T, Error>>) -> Result<T, String> {
    match timeout(PATIENCE, request).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("the API server did not answer within {} s", PATIENCE.as_secs())),
    }
}

fn refused(error: &Error) -> bool {
    matches!(error, Error::Api(status) if [401, 403].contains(&status.code))
}

/// What becomes of the agent, as far as the API server tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Its DaemonSet is there: another agent follows.
    Stays,
    /// It is being uninstalled, and this is how that shows.
    Uninstalled(&'static str),
    /// The API server refuses what the agent's role allowed before.
    Refused,
    /// It answers, and nothing of it tells.
    Silent,
    /// It doesn't answer.
    Unknown,
}

impl Fate {
    /// Whether the plugin is to be removed, and why; `was_allowed` is whether the API server answered the same
    /// questions earlier.
    ///
    /// Uninstalling Linkerd's chart deletes the role with the DaemonSet. A plugin whose requests are refused can set up
    /// no pod of the node, meshed or not, so nothing is lost with it.
    pub fn removes(self, was_allowed: bool) -> Option<&'static str> {
        match self {
            Self::Uninstalled(reason) => Some(reason),
            Self::Refused if was_allowed => Some("its role is gone"),
            Self::Refused | Self::Stays | Self::Silent | Self::Unknown => None,
        }
    }

    /// Whether the agent's role allows to ask.
    pub fn is_answer(self) -> bool {
        !matches!(self, Self::Refused | Self::Unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_doubt_the_plugin_stays() {
        for was_allowed in [false, true] {
            assert_eq!(Fate::Stays.removes(was_allowed), None);
            assert_eq!(Fate::Unknown.removes(was_allowed), None);
            assert_eq!(Fate::Silent.removes(was_allowed), None);
            assert_eq!(Fate::Uninstalled("x").removes(was_allowed), Some("x"));
        }
        assert_eq!(Fate::Refused.removes(false), None);
        assert!(Fate::Refused.removes(true).is_some());
    }
}
