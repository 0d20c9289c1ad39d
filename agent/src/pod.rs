//! The agent's view of a pod: pure functions, and the part of the pod's status that they need.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::ops::Deref;
use std::time::{SystemTime, UNIX_EPOCH};

use ::pod::{Metadata, Pod, gather};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use proxy_init::PodUid;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::tell::{self, Subject};

/// The label of pods that Linkerd's injector meshed.
pub(crate) const MESHED: &str = "linkerd.io/control-plane-ns";
/// The init container that proves that a pod's connections are redirected.
const VALIDATOR: &str = "linkerd-network-validator";
/// With which exit code it says that they aren't (cni-repair-controller in linkerd2-proxy-init).
const UNSUCCESSFUL: i32 = 95;
/// The most addresses of a pod that are kept. Kubernetes has two, one of each family.
const MOST_ADDRESSES: usize = 4;

/// A pod, of which only what the agent needs is kept: it has up to 1.5 MiB, which whoever may create pods fills as they
/// like.
#[derive(Debug, Clone, Deserialize)]
#[serde(from = "Pod<Status>")]
pub(crate) struct Meshed {
    pod: Pod<Status>,
    /// The part of its metadata that kube's watcher asks for.
    meta: ObjectMeta,
}

impl From<Pod<Status>> for Meshed {
    fn from(pod: Pod<Status>) -> Self {
        let resource_version = Some(pod.metadata.resource_version.clone());
        Self { meta: ObjectMeta { resource_version, ..ObjectMeta::default() }, pod }
    }
}

impl Deref for Meshed {
    type Target = Pod<Status>;

    fn deref(&self) -> &Pod<Status> {
        &self.pod
    }
}

impl Resource for Meshed {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Pod".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "pods".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}

/// Part of a pod's status.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Status {
    phase: Phase,
    #[serde(rename = "podIPs", deserialize_with = "gather")]
    addresses: Addresses,
    #[serde(deserialize_with = "gather")]
    init_container_statuses: Started,
    #[serde(deserialize_with = "gather")]
    container_statuses: Started,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
enum Phase {
    Succeeded,
    Failed,
    #[default]
    #[serde(other)]
    Other,
}

/// The pod's addresses that make sense.
#[derive(Debug, Clone, Default)]
struct Addresses(Vec<IpAddr>);

/// The state of some of a pod's containers.
#[derive(Debug, Clone, Copy, Default)]
struct Started {
    is_any: bool,
    /// When the validator found no rules in its last run, if it found none.
    failed: Option<SystemTime>,
}

/// The agent's part in a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Case {
    /// None of its business.
    Leave(&'static str),
    /// Its network may not be set up yet.
    Early,
    /// It is to have rules.
    Running,
    /// Its validator found none, and ended then.
    Failed(SystemTime),
}

impl Meshed {
    /// Its UID.
    pub(crate) fn uid(&self) -> Option<PodUid> {
        PodUid::new(&self.metadata.uid)
    }

    /// Returns true if the pod's users are others than the node's: the pod has a user namespace of its own.
    pub(crate) fn has_own_users(&self) -> bool {
        self.spec.host_users == Some(false)
    }

    /// The addresses that its runtime gave it, as kubelet says.
    pub(crate) fn addresses(&self) -> &[IpAddr] {
        &self.status.addresses.0
    }
}

impl Subject for Meshed {
    fn reference(&self) -> ObjectReference {
        let Metadata { name, namespace, uid, resource_version, .. } = &self.metadata;
        ObjectReference { resource_version: Some(resource_version.clone()), ..tell::pod(namespace, name, uid) }
    }

    fn size(&self) -> usize {
        size_of::<Self>() + 1024 + self.metadata.annotations.kept()
    }
}

impl fmt::Display for Meshed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Metadata { name, namespace, .. } = &self.metadata;
        write!(f, "pod {namespace}/{name}")
    }
}

/// Says which part the agent has in a pod.
pub(crate) fn case(pod: &Meshed) -> Case {
    let (status, init) = (&pod.status, &pod.status.init_container_statuses);
    if pod.metadata.deletion_timestamp.is_some() {
        return Case::Leave("it is being deleted");
    }
    if pod.spec.host_network {
        return Case::Leave("its network is the node's");
    }
    if [Phase::Succeeded, Phase::Failed].contains(&status.phase) {
        return Case::Leave("it has ended");
    }
    if let Some(when) = init.failed {
        return Case::Failed(when);
    }
    // A container starts only after the plugin's ADD.
    if init.is_any || status.container_statuses.is_any { Case::Running } else { Case::Early }
}

/// One of a pod's addresses.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Address {
    ip: String,
}

impl Extend<Address> for Addresses {
    fn extend<I: IntoIterator<Item = Address>>(&mut self, addresses: I) {
        for Address { ip } in addresses {
            // An address that is in every network says nothing.
            let ip = ip.parse::<IpAddr>().ok();
            let ip = ip.filter(|ip| !ip.is_unspecified() && !ip.is_loopback() && !ip.is_multicast());
            if self.0.len() < MOST_ADDRESSES {
                self.0.extend(ip);
            }
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    name: String,
    state: State,
    last_state: State,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct State {
    running: Option<IgnoredAny>,
    terminated: Option<Terminated>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Terminated {
    exit_code: i32,
    finished_at: Option<Time>,
}

impl Extend<Container> for Started {
    fn extend<I: IntoIterator<Item = Container>>(&mut self, containers: I) {
        for Container { name, state, last_state } in containers {
            let ended = state.terminated.or(last_state.terminated);
            self.is_any |= state.running.is_some() || ended.is_some();
            if let Some(ended) = ended.filter(|it| name == VALIDATOR && it.exit_code == UNSUCCESSFUL) {
                self.failed = Some(ended.finished_at.map_or(UNIX_EPOCH, |time| time.0.into()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(change: impl FnOnce(&mut Value)) -> Meshed {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web", "namespace": "shop", "uid": "12345678-1"},
            "spec": {"containers": [{"name": "app"}, {"name": "linkerd-proxy"}], "initContainers": [{"name": VALIDATOR}]},
            "status": {"phase": "Pending", "initContainerStatuses": [{"name": VALIDATOR, "state": {"waiting": {"reason": "x"}}}]},
        });
        change(&mut pod);
        serde_json::from_value(pod).unwrap()
    }

    fn validator(state: Value, last: Value) -> Meshed {
        pod(|pod| {
            let status = &mut pod["status"]["initContainerStatuses"][0];
            (status["state"], status["lastState"]) = (state, last);
        })
    }

    #[test]
    fn a_validator_that_ended_with_95_failed_until_it_ends_otherwise() {
        let ended = |code: i32| json!({"terminated": {"exitCode": code}});
        let (waiting, none) = (json!({"waiting": {}}), json!({}));
        assert_eq!(case(&validator(waiting.clone(), ended(95))), Case::Failed(UNIX_EPOCH));
        // restartPolicy: Never.
        assert_eq!(case(&validator(ended(95), none.clone())), Case::Failed(UNIX_EPOCH));
        assert_eq!(case(&validator(json!({"running": {"startedAt": "x"}}), ended(95))), Case::Failed(UNIX_EPOCH));
        assert_eq!(case(&validator(ended(0), ended(95))), Case::Running);
        assert_eq!(case(&validator(waiting.clone(), ended(1))), Case::Running);
        assert_eq!(case(&validator(waiting, none.clone())), Case::Early);
        assert_eq!(case(&validator(json!({"running": {}}), none.clone())), Case::Running);
        // A pod with restartPolicy: Never doesn't start again, with rules or without.
        for phase in [Phase::Succeeded, Phase::Failed] {
            let mut over = validator(ended(95), none.clone());
            over.pod.status.phase = phase;
            assert!(matches!(case(&over), Case::Leave(_)));
        }
    }

    #[test]
    fn the_parts_that_decide_are_known_and_no_others_kept() {
        let seen = pod(|pod| {
            pod["metadata"]["labels"] = json!({"app": "web", "linkerd.io/control-plane-component": "destination"});
            pod["metadata"]["annotations"] = json!({
                "config.linkerd.io/skip-inbound-ports": "8080", "proxy-init.io/skip-uid": "7", "linkerd.io/trust-root": "y",
                "linkerd.io/proxy-version": "v2", "other/key": "x"
            });
            pod["spec"]["containers"][1]["securityContext"] = json!({"runAsUser": 2102});
        });
        seen.check().unwrap();
        assert_eq!(seen.spec.containers.proxy.unwrap().user, Some(2102));
        assert!(seen.spec.init_containers.is_any && !seen.spec.init_containers.has_init);
        assert_eq!(seen.metadata.labels.control_plane_component, "destination");
        let expected = json!({
            "config.linkerd.io/skip-inbound-ports": "8080", "proxy-init.io/skip-uid": "7", "linkerd.io/proxy-version": "v2"
        });
        assert_eq!(seen.metadata.annotations, serde_json::from_value(expected).unwrap());
        // No pod is without containers; whoever says so is asked again.
        pod(|pod| pod["spec"]["containers"] = json!([])).check().unwrap_err();
    }

    #[test]
    fn a_pods_addresses_are_those_that_make_sense() {
        let addressed = |addresses: Value| pod(|pod| pod["status"]["podIPs"] = addresses);
        let some = addressed(
            json!([{"ip": "10.0.0.1"}, {"ip": "nonsense"}, {}, {"ip": "127.0.0.1"}, {"ip": "::"}, {"ip": "fd00::1"}]),
        );
        assert_eq!(some.addresses(), ["10.0.0.1".parse::<IpAddr>().unwrap(), "fd00::1".parse().unwrap()]);
        assert!(addressed(json!([])).addresses().is_empty());
        let many = addressed((0..100).map(|number| json!({"ip": format!("10.0.0.{number}")})).collect());
        assert_eq!(many.addresses().len(), MOST_ADDRESSES);
    }
}
