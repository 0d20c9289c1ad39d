//! The manifests in deploy/cni.

use std::fs;
use std::path::{Path, PathBuf};

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ResourceQuota, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use linkerd_cni_agent::conflist::Entry;
use linkerd_cni_agent::metrics::Metrics;
use serde::Deserialize as _;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/cni")
}

/// The documents of a file.
fn documents(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    yaml_serde::Deserializer::from_str(&text)
        .map(|document| Value::deserialize(document).unwrap())
        .collect()
}

/// The objects of an overlay, or of the base, as kustomize makes them of the few things that are used here.
fn rendered(path: &Path) -> Vec<Value> {
    let kustomization = documents(&path.join("kustomization.yaml")).remove(0);
    for key in kustomization.as_object().unwrap().keys() {
        let known = ["apiVersion", "kind", "namespace", "resources", "images", "patches"];
        assert!(known.contains(&key.as_str()), "{}: {key}", path.display());
    }
    let mut objects = Vec::new();
    for resource in kustomization["resources"].as_array().unwrap() {
        let resource = path.join(resource.as_str().unwrap());
        objects.extend(if resource.is_dir() {
            rendered(&resource)
        } else {
            documents(&resource)
        });
    }
    for patch in kustomization["patches"].as_array().into_iter().flatten() {
        assert_eq!(patch["target"], json!({"kind": "DaemonSet", "name": "linkerd-cni"}));
        let set = objects.iter_mut().find(|object| object["kind"] == "DaemonSet").unwrap();
        let operations: Value = yaml_serde::from_str(patch["patch"].as_str().unwrap()).unwrap();
        for operation in operations.as_array().unwrap() {
            let (at, value) = (operation["path"].as_str().unwrap(), operation["value"].clone());
            let (parent, key) = at.rsplit_once('/').unwrap();
            match operation["op"].as_str().unwrap() {
                "replace" => *set.pointer_mut(at).unwrap() = value,
                "add" => {
                    let parent = set.pointer_mut(parent).unwrap().as_object_mut().unwrap();
                    assert_eq!(parent.insert(key.to_owned(), value), None, "{at}");
                }
                other => panic!("{other}"),
            }
        }
    }
    objects
}

/// The base and every overlay, by name.
fn all() -> Vec<(String, Vec<Value>)> {
    let overlays = folder().join("overlays").read_dir().unwrap();
    let paths = overlays.map(|overlay| overlay.unwrap().path());
    let all = std::iter::once(folder().join("base")).chain(paths);
    all.map(|path| {
        (
            path.file_name().unwrap().to_string_lossy().into_owned(),
            rendered(&path),
        )
    })
    .collect()
}

fn set(objects: &[Value]) -> DaemonSet {
    let set = objects.iter().find(|object| object["kind"] == "DaemonSet").unwrap();
    serde_json::from_value(set.clone()).unwrap()
}

/// Kubernetes' own types (of its OpenAPI description) drop what they don't know and fill in what has to be there: so what
/// comes back as it went in has neither.
#[test]
fn every_object_is_of_kubernetes_schema() {
    fn same<T: DeserializeOwned + serde::Serialize>(object: &Value) {
        let typed: T = serde_json::from_value(object.clone()).unwrap();
        assert_eq!(serde_json::to_value(typed).unwrap(), *object);
    }
    for (name, objects) in all() {
        assert!(objects.len() >= 8, "{name}");
        for object in &objects {
            match object["kind"].as_str().unwrap() {
                "Namespace" => same::<Namespace>(object),
                "ServiceAccount" => same::<ServiceAccount>(object),
                "ConfigMap" => same::<ConfigMap>(object),
                "ResourceQuota" => same::<ResourceQuota>(object),
                "ClusterRole" => same::<ClusterRole>(object),
                "ClusterRoleBinding" => same::<ClusterRoleBinding>(object),
                "Role" => same::<Role>(object),
                "RoleBinding" => same::<RoleBinding>(object),
                "DaemonSet" => same::<DaemonSet>(object),
                other => panic!("{name}: {other}"),
            }
        }
    }
}

/// The agent looks for the node's folders below /host, by the names that they have on the node.
#[test]
fn in_every_overlay_the_nodes_folders_are_mounted_where_the_agent_looks() {
    for (name, objects) in all() {
        let pod = set(&objects).spec.template.spec.unwrap();
        let container = &pod.containers[0];
        for (volume, variable) in [("bin", "DEST_CNI_BIN_DIR"), ("net", "DEST_CNI_NET_DIR")] {
            let variables = container.env.as_ref().unwrap().iter();
            let path = variables
                .filter(|it| it.name == variable)
                .find_map(|it| it.value.clone());
            let path = path.unwrap();
            let mounts = container.volume_mounts.as_ref().unwrap().iter();
            let mounted: Vec<&str> = mounts
                .filter(|mount| mount.name == volume)
                .map(|mount| mount.mount_path.as_str())
                .collect();
            assert_eq!(mounted, [format!("/host{path}")], "{name}");
            let volumes = pod.volumes.as_ref().unwrap().iter();
            let on_node: Vec<&str> = volumes
                .filter(|it| it.name == volume)
                .map(|it| it.host_path.as_ref().unwrap().path.as_str())
                .collect();
            assert_eq!(on_node, [path], "{name}");
        }
    }
}

#[test]
fn the_entry_is_one_that_agent_and_plugin_take() {
    let config = documents(&folder().join("base/config.yaml")).remove(0);
    let text = config["data"]["cni_network_config"].as_str().unwrap();
    let entry = Entry::new(text, Path::new("/etc/cni/net.d/ZZZ-linkerd-cni-kubeconfig")).unwrap();
    assert!(entry.needs_kubeconfig());
    let configuration = entry.configuration("1.0.0").to_string();
    linkerd_cni::configuration::Configuration::read(configuration.as_bytes()).unwrap();
}

/// Each metric that an alert's expression names is one that the agent has.
#[test]
fn alerts_ask_for_metrics_that_there_are() {
    let metrics = Metrics::default();
    // A family that has no member yet isn't described.
    for family in [&metrics.pods, &metrics.drifts] {
        drop(family.get_or_create(&[("label", "value".to_owned())]));
    }
    let metrics = metrics.text();
    let rules = documents(&folder().join("alerts.yaml")).remove(0);
    let rules = rules["groups"][0]["rules"].as_array().unwrap().clone();
    assert!(rules.len() >= 5);
    for rule in rules {
        let expression = rule["expr"].as_str().unwrap();
        let words = expression.split(|sign: char| !sign.is_ascii_alphanumeric() && sign != '_');
        let named: Vec<&str> = words.filter(|word| word.starts_with("linkerd_")).collect();
        assert!(!named.is_empty(), "{expression}");
        for name in named {
            // OpenMetrics' counters have a suffix that their description lacks.
            let described = format!("# TYPE {} ", name.trim_end_matches("_total"));
            assert!(metrics.contains(&described), "{name} in\n{metrics}");
        }
    }
}
