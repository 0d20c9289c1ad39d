//! What the agent looks at in a pod: pure functions.

use k8s_openapi::api::core::v1::Pod;
use kube::core::{ApiResource, Object};
use linkerd_cni::annotations;
use linkerd_cni::object::{self, CONTROL_PLANE_COMPONENT, Containers, Labels};
use serde::Deserialize;

/// The label of pods that Linkerd's injector meshed.
pub const MESHED: &str = "linkerd.io/control-plane-ns";
/// The init container that proves that a pod's connections are redirected.
const VALIDATOR: &str = "linkerd-network-validator";
/// With which exit code it says that they aren't (cni-repair-controller in linkerd2-proxy-init).
const UNSUCCESSFUL: i32 = 95;

/// A pod, of which only what the agent needs is kept.
pub type Meshed = Object<Spec, Status>;

/// Part of a pod's specification.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    host_network: bool,
    containers: Option<Containers>,
    init_containers: Option<Containers>,
}

/// Part of a pod's status.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    phase: String,
    init_container_statuses: Vec<Container>,
    container_statuses: Vec<Container>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    name: String,
    state: State,
    last_state: State,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct State {
    running: Option<Running>,
    terminated: Option<Terminated>,
}

#[derive(Debug, Clone, Deserialize)]
struct Running {}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Terminated {
    exit_code: i32,
}

/// The API's resource.
pub fn resource() -> ApiResource {
    ApiResource::erase::<Pod>(&())
}

/// What a pod is to the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// None of its business.
    Leave(&'static str),
    /// Its network may not be set up yet.
    Early,
    /// It is to have rules.
    Running,
    /// Its validator found none.
    Failed,
}

/// What a pod is to the agent.
pub fn case(pod: &Meshed) -> Case {
    let status = pod.status.as_ref();
    let init = status
        .map(|status| status.init_container_statuses.as_slice())
        .unwrap_or_default();
    if pod.metadata.deletion_timestamp.is_some() {
        return Case::Leave("it is being deleted");
    }
    if pod.spec.host_network {
        return Case::Leave("its network is the node's");
    }
    if init.iter().any(failed) {
        return Case::Failed;
    }
    if status.is_some_and(|status| ["Succeeded", "Failed"].contains(&status.phase.as_str())) {
        return Case::Leave("it has ended");
    }
    // A container starts only after the plugin's ADD.
    let all = init.iter().chain(
        status
            .map(|status| status.container_statuses.as_slice())
            .unwrap_or_default(),
    );
    let started = |container: &Container| {
        let State { running, terminated } = &container.state;
        running.is_some() || terminated.is_some() || container.last_state.terminated.is_some()
    };
    if all.into_iter().any(started) {
        Case::Running
    } else {
        Case::Early
    }
}

/// Whether it is a validator that found no rules, last time it ran.
fn failed(container: &Container) -> bool {
    let ended = container
        .state
        .terminated
        .as_ref()
        .or(container.last_state.terminated.as_ref());
    container.name == VALIDATOR && ended.is_some_and(|ended| ended.exit_code == UNSUCCESSFUL)
}

/// Forgets what isn't needed: of a hundred pods, it would be most of the agent's memory.
pub fn forget(pod: &mut Meshed) {
    let metadata = &mut pod.metadata;
    metadata.managed_fields = None;
    metadata.owner_references = None;
    metadata.finalizers = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.retain(|key, _| annotations::counts(key));
    }
    if let Some(labels) = &mut metadata.labels {
        labels.retain(|key, _| key == CONTROL_PLANE_COMPONENT);
    }
}

/// What the plugin would be told of the pod if it asked; none if that makes no sense.
pub fn known(pod: &Meshed) -> Option<object::Pod> {
    let labels = pod.metadata.labels.iter().flatten();
    let is_control_plane = |(key, value): (&String, &String)| key == CONTROL_PLANE_COMPONENT && !value.is_empty();
    let containers = pod.spec.containers?;
    // Kubernetes has no pod without containers and none of them without a name.
    if !containers.is_any || containers.is_one_unnamed {
        return None;
    }
    Some(object::Pod {
        annotations: pod
            .metadata
            .annotations
            .clone()
            .unwrap_or_default()
            .into_iter()
            .collect(),
        labels: Labels {
            is_control_plane: labels.into_iter().any(is_control_plane),
        },
        containers,
        init_containers: pod.spec.init_containers.unwrap_or_default(),
    })
}

/// A pod's UID as it may stand in a path: only letters, digits and dashes count as one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Uid(String);

impl Uid {
    /// The API's.
    pub fn new(text: &str) -> Option<Self> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        let is_whole = (8..=64).contains(&text.len()) && text.bytes().all(is_plain);
        is_whole.then(|| Self(text.to_owned()))
    }

    /// The one in /proc/PID/cgroup: kubelet's cgroups are `…/podUID/CONTAINER` or, with systemd, in which a dash is a level,
    /// `…/kubepods-besteffort-podUID.slice/…` with underscores (pkg/kubelet/cm/pod_container_manager_linux.go).
    ///
    /// Below its own cgroup, a pod may name cgroups as it likes: the first that is a pod's counts.
    pub fn in_cgroup(text: &str) -> Option<Self> {
        let parts = text
            .lines()
            .filter_map(|line| line.splitn(3, ':').nth(2))
            .flat_map(|path| path.split('/'));
        for part in parts {
            let (slice, is_slice) = match part.strip_suffix(".slice") {
                Some(slice) => (slice, true),
                None => (part, false),
            };
            let uid = match is_slice {
                true => slice
                    .strip_prefix("kubepods")
                    .and_then(|rest| rest.rsplit_once("-pod"))
                    .map(|(_, uid)| uid),
                false => slice.strip_prefix("pod"),
            };
            if let Some(uid) = uid.and_then(|uid| Self::new(&uid.replace('_', "-"))) {
                return Some(uid);
            }
        }
        None
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
        assert_eq!(case(&validator(waiting.clone(), ended(95))), Case::Failed);
        // restartPolicy: Never.
        assert_eq!(case(&validator(ended(95), none.clone())), Case::Failed);
        assert_eq!(
            case(&validator(json!({"running": {"startedAt": "x"}}), ended(95))),
            Case::Failed
        );
        assert_eq!(case(&validator(ended(0), ended(95))), Case::Running);
        assert_eq!(case(&validator(waiting.clone(), ended(1))), Case::Running);
        assert_eq!(case(&validator(waiting, none.clone())), Case::Early);
        assert_eq!(case(&validator(json!({"running": {}}), none)), Case::Running);
    }

    #[test]
    fn pods_that_are_nobodys_business_are_left_alone() {
        let leave = |pod| matches!(case(&pod), Case::Leave(_));
        let failed = |pod: &mut Value| {
            pod["status"]["initContainerStatuses"][0]["lastState"] = json!({"terminated": {"exitCode": 95}});
        };
        assert!(!leave(pod(failed)));
        for change in [
            (|pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")) as fn(&mut Value),
            |pod| pod["spec"]["hostNetwork"] = json!(true),
        ] {
            assert!(leave(pod(|pod| {
                failed(pod);
                change(pod);
            })));
        }
        assert!(leave(pod(|pod| pod["status"]["phase"] = json!("Succeeded"))));
    }

    #[test]
    fn what_the_plugin_would_ask_for_is_known_and_nothing_else_is_kept() {
        let mut seen = pod(|pod| {
            pod["metadata"]["labels"] = json!({"app": "web", CONTROL_PLANE_COMPONENT: "destination"});
            pod["metadata"]["annotations"] = json!({
                "config.linkerd.io/skip-inbound-ports": "8080", "proxy-init.io/skip-uid": "7", "linkerd.io/trust-root": "y",
                "linkerd.io/proxy-version": "v2", "other/key": "x"
            });
            pod["spec"]["containers"][1]["securityContext"] = json!({"runAsUser": 2102});
        });
        forget(&mut seen);
        let labels = seen.metadata.labels.clone().unwrap();
        assert_eq!(labels.into_keys().collect::<Vec<_>>(), [CONTROL_PLANE_COMPONENT]);
        let known = known(&seen).unwrap();
        assert_eq!(known.containers.proxy.unwrap().user, Some(2102));
        assert!(known.init_containers.is_any && !known.init_containers.has_init);
        assert!(known.labels.is_control_plane);
        let expected = json!({
            "config.linkerd.io/skip-inbound-ports": "8080", "proxy-init.io/skip-uid": "7", "linkerd.io/proxy-version": "v2"
        });
        assert_eq!(json!(seen.metadata.annotations), expected);
        assert_eq!(known.annotations, serde_json::from_value(expected).unwrap());
        // No pod is without containers; whoever says so is asked again.
        let none = super::known(&pod(|pod| pod["spec"]["containers"] = json!([])));
        assert!(none.is_none());
    }

    #[test]
    fn a_pods_uid_is_read_from_both_kinds_of_cgroups_and_never_from_what_a_pod_named() {
        let uid = "2c48913c-b29f-11e7-9350-020968147796";
        let slice = uid.replace('-', "_");
        for text in [
            format!("0::/kubepods/besteffort/pod{uid}/0123abc"),
            format!("12:cpu:/kubepods/pod{uid}/0123abc\n11:memory:/kubepods/pod{uid}/0123abc\n"),
            format!(
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/cri-containerd-0.scope"
            ),
            format!("0::/kubepods.slice/kubepods-pod{slice}.slice/crio-0.scope"),
            format!("0::/kubelet.slice/kubelet-kubepods.slice/x\n0::/kubepods.slice/kubepods-pod{slice}.slice/x"),
            // A container that may write to its cgroup made one with another pod's name.
            format!("0::/kubepods/pod{uid}/0123abc/podffffffff-b29f-11e7-9350-020968147796/x"),
        ] {
            assert_eq!(Uid::in_cgroup(&text), Uid::new(uid), "{text}");
        }
        for text in [
            "",
            "0::/",
            "0::/init.scope",
            "0::/system.slice/podman.service",
            "0::/pod",
            "0::/pod../x",
            "nonsense",
        ] {
            assert_eq!(Uid::in_cgroup(text), None, "{text}");
        }
        assert_eq!(Uid::new("../../etc"), None);
        assert_eq!(Uid::new(""), None);
    }
}
