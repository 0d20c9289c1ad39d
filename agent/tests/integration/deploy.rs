//! The manifests in deploy/cni.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use k8s_openapi::api::admissionregistration::v1::{MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, Container, Namespace, Pod, ResourceQuota, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use lab::apt;
use lab::shell::{Run as _, target};
use linkerd_cni_agent::Entry;
use linkerd_cni_agent::Metrics;
use linkerd_cni_agent::Settings;
use serde::Deserialize as _;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/cni")
}

/// The documents of a file.
fn documents(path: &Path) -> Vec<Value> {
    documents_in(&fs::read_to_string(path).unwrap())
}

pub(crate) fn documents_in(text: &str) -> Vec<Value> {
    yaml_serde::Deserializer::from_str(text).map(|document| Value::deserialize(document).unwrap()).collect()
}

/// The objects that kustomize makes of a folder below deploy/cni and of components.
fn rendered(resource: &str, components: &[&str]) -> Vec<Value> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let together = target(&format!("tmp/kustomize-{}-{number}", std::process::id()));
    fs::create_dir_all(&together).unwrap();
    let above = "../../../deploy/cni";
    let components: Vec<_> = components.iter().map(|name| format!("{above}/components/{name}")).collect();
    let text = json!({"resources": [format!("{above}/{resource}")], "components": components}).to_string();
    fs::write(together.join("kustomization.yaml"), text).unwrap();
    let kubectl = apt::unpack("trixie", "kubectl").unwrap().join("usr/bin/kubectl");
    let made = Command::new(kubectl).arg("kustomize").arg(&together).read();
    fs::remove_dir_all(together).unwrap();
    documents_in(&made.unwrap())
}

/// The annotation that changes with the configuration.
pub(crate) const CONFIGURATION: &str = "proxy-init.io/configuration";

/// Agents read the configuration when they start: without a new pod, a changed one would reach no node.
#[test]
fn a_changed_configuration_is_rolled_out() {
    for (name, objects) in all() {
        let configuration = objects.iter().find(|object| object["kind"] == "ConfigMap").unwrap();
        let annotations = set(&objects).spec.template.metadata.unwrap().annotations.unwrap();
        assert_eq!(annotations[CONFIGURATION], configuration["data"]["cni_network_config"], "{name}");
    }
}

/// The base.
pub(crate) fn base() -> Vec<Value> {
    rendered("base", &[])
}

/// The overlay in which the runtime tells of pods, and the components that are for it.
const NRI: &str = "nri";
const OF_NRI: [&str; 2] = ["nri-events", "without-init-containers"];

pub(crate) fn nri() -> Vec<Value> {
    rendered("overlays/nri", &[])
}

/// The base, or the overlay that it is for, with a component.
pub(crate) fn with_component(name: &str) -> Vec<Value> {
    rendered(if OF_NRI.contains(&name) { "overlays/nri" } else { "base" }, &[name])
}

/// The base, every overlay, and the base with each component, by name.
fn all() -> Vec<(String, Vec<Value>)> {
    let names = |kind: &str| {
        let folders = folder().join(kind).read_dir().unwrap();
        folders.map(|folder| folder.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    let mut all = vec![("base".to_owned(), base())];
    all.extend(names("overlays").into_iter().map(|name| (name.clone(), rendered(&format!("overlays/{name}"), &[]))));
    all.extend(names("components").into_iter().map(|name| (name.clone(), with_component(&name))));
    all
}

pub(crate) fn set(objects: &[Value]) -> DaemonSet {
    let set = objects.iter().find(|object| object["kind"] == "DaemonSet").unwrap();
    serde_json::from_value(set.clone()).unwrap()
}

/// Kubernetes' own types (of its OpenAPI description) drop what they don't know and fill in what has to be there: so
/// what comes back as it went in has neither.
pub(crate) fn is_of_kubernetes_schema(object: &Value) {
    fn same<T: DeserializeOwned + serde::Serialize>(object: &Value) {
        let typed: T = serde_json::from_value(object.clone()).unwrap();
        assert_eq!(serde_json::to_value(typed).unwrap(), *object);
    }
    match object["kind"].as_str().unwrap() {
        "Namespace" => same::<Namespace>(object),
        "ServiceAccount" => same::<ServiceAccount>(object),
        "ConfigMap" => same::<ConfigMap>(object),
        "MutatingAdmissionPolicy" => same::<MutatingAdmissionPolicy>(object),
        "MutatingAdmissionPolicyBinding" => same::<MutatingAdmissionPolicyBinding>(object),
        "ResourceQuota" => same::<ResourceQuota>(object),
        "ClusterRole" => same::<ClusterRole>(object),
        "ClusterRoleBinding" => same::<ClusterRoleBinding>(object),
        "Role" => same::<Role>(object),
        "RoleBinding" => same::<RoleBinding>(object),
        "DaemonSet" => same::<DaemonSet>(object),
        "Pod" => same::<Pod>(object),
        other => panic!("{other}"),
    }
}

#[test]
fn every_object_is_of_kubernetes_schema() {
    for (name, objects) in all() {
        assert!(objects.len() >= if name == NRI { 4 } else { 6 }, "{name}");
        for object in &objects {
            is_of_kubernetes_schema(object);
        }
    }
}

/// The agent looks for the node's folders below /host, by the names that they have on the node.
#[test]
fn in_every_overlay_the_nodes_folders_are_mounted_where_the_agent_looks() {
    for (name, objects) in all() {
        let pod = set(&objects).spec.template.spec.unwrap();
        let container = &pod.containers[0];
        for (volume, variable) in [("cni-bin-dir", "DEST_CNI_BIN_DIR"), ("cni-net-dir", "DEST_CNI_NET_DIR")] {
            let variables = container.env.as_ref().unwrap().iter();
            let path = variables.filter(|it| it.name == variable).find_map(|it| it.value.clone());
            let path = path.unwrap();
            let mounts = container.volume_mounts.as_ref().unwrap().iter();
            let mounted: Vec<&str> =
                mounts.filter(|mount| mount.name == volume).map(|mount| mount.mount_path.as_str()).collect();
            assert_eq!(mounted, [format!("/host{path}")], "{name}");
            let volumes = pod.volumes.as_ref().unwrap().iter();
            let on_node: Vec<&str> =
                volumes.filter(|it| it.name == volume).map(|it| it.host_path.as_ref().unwrap().path.as_str()).collect();
            assert_eq!(on_node, [path], "{name}");
        }
    }
}

/// Its pods have the node's network: whoever reaches the node would reach the probes, too.
#[test]
fn in_every_overlay_kubelet_asks_where_the_agent_answers_the_node_alone() {
    for (name, objects) in all() {
        let container = set(&objects).spec.template.spec.unwrap().containers.remove(0);
        let settings = settings(&container);
        let probes = settings.probes.unwrap();
        assert!(probes.ip().is_loopback(), "{name}: {probes}");
        let port = |name: &str| {
            let mut ports = container.ports.iter().flatten();
            ports.find(|port| port.name.as_deref() == Some(name)).unwrap()
        };
        assert_eq!(port("admin").container_port, i32::from(settings.admin.unwrap().port()));
        for probe in [&container.readiness_probe, &container.liveness_probe] {
            let asked = probe.as_ref().unwrap().http_get.as_ref().unwrap();
            let IntOrString::String(named) = &asked.port else {
                panic!("{name}: {asked:?}");
            };
            let port = port(named);
            assert_eq!(port.container_port, i32::from(probes.port()), "{name}");
            assert_eq!(asked.host, Some(probes.ip().to_string()), "{name}");
            // Without a hostPort, the API server warns of a hostIP at each apply.
            assert_eq!(port.host_ip, None, "{name}");
        }
    }
}

/// It has neither a right, nor a token, nor the node's processes.
#[test]
fn by_nri_the_agent_has_the_socket_the_namespaces_and_the_folders_of_a_plugin_that_was_left() {
    let objects = nri();
    let kinds: Vec<&str> = objects.iter().map(|object| object["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["Namespace", "ServiceAccount", "ConfigMap", "DaemonSet"]);
    // Both DaemonSets may be on a node.
    let (by_nri, by_cni) = (set(&objects), set(&base()));
    assert_ne!(by_nri.metadata.name, by_cni.metadata.name);
    assert_ne!(by_nri.spec.selector, by_cni.spec.selector);
    let ports = |set: &DaemonSet| set.spec.template.spec.as_ref().unwrap().containers[0].ports.clone().unwrap();
    for port in ports(&by_nri) {
        assert!(ports(&by_cni).iter().all(|other| other.container_port != port.container_port));
    }
    let pod = set(&objects).spec.template.spec.unwrap();
    assert_eq!((pod.host_pid, pod.automount_service_account_token), (None, Some(false)));
    let container = &pod.containers[0];
    // It has to answer in time on a busy node.
    assert_eq!(
        json!(container.resources),
        json!({"requests": {"cpu": "50m", "memory": "24Mi"}, "limits": {"memory": "64Mi"}})
    );
    let security = container.security_context.as_ref().unwrap();
    let capabilities = security.capabilities.as_ref().unwrap();
    assert_eq!(capabilities.add.as_deref().unwrap(), ["SYS_ADMIN", "NET_ADMIN", "NET_RAW"]);
    assert_eq!((&security.app_armor_profile, security.privileged), (&None, None));
    let on_node = pod.volumes.as_ref().unwrap().iter().map(|volume| volume.host_path.as_ref().unwrap().path.as_str());
    assert_eq!(on_node.collect::<Vec<_>>(), ["/opt/cni/bin", "/etc/cni/net.d", "/run/nri", "/run/netns"]);
    // Where the agent looks for the socket, and where runtimes say that namespaces are.
    let mounts: Vec<_> = container.volume_mounts.as_ref().unwrap().iter().collect();
    assert_eq!(settings(container).nri_socket().unwrap(), Path::new(&mounts[2].mount_path).join("nri.sock"));
    assert_eq!(mounts[3].mount_path, "/var/run/netns");
    // A namespace is a mount that is made after the agent's container.
    assert_eq!(mounts[3].mount_propagation.as_deref(), Some("HostToContainer"));
}

/// The agent's settings from a container's arguments.
pub(crate) fn settings(container: &Container) -> Settings {
    let command = container.command.iter().flatten().take(1);
    let arguments = command.chain(container.args.iter().flatten());
    // The variables are read from this process otherwise.
    Settings::read(arguments.map(OsString::from).chain(["--node-name=node-1".into()])).unwrap()
}

/// Without the taint's component, nobody has the right to change nodes.
#[test]
fn only_the_component_of_the_taint_may_change_nodes_and_its_flag_is_one_of_the_agents() {
    let changes_nodes = |objects: &[Value]| {
        let roles = objects.iter().filter(|object| object["kind"] == "ClusterRole");
        let mut rules = roles.flat_map(|role| role["rules"].as_array().unwrap());
        rules.any(|rule| rule["resources"] == json!(["nodes"]) && rule["verbs"] != json!(["get"]))
    };
    for (name, objects) in all() {
        assert_eq!(changes_nodes(&objects), name == "taint", "{name}");
        // By NRI, no other role lets the agent read its node, and it reads the taints before it writes them.
        let taint = objects.iter().find(|object| object["metadata"]["name"] == "linkerd-cni-taint");
        let verbs = taint.map(|role| &role["rules"][0]["verbs"]);
        assert!(verbs.is_none_or(|verbs| *verbs == json!(["get", "patch"])), "{name}: {verbs:?}");
        let container = set(&objects).spec.template.spec.unwrap().containers.remove(0);
        let taint = settings(&container).remove_taint;
        assert_eq!(taint.is_some(), name == "taint", "{name}");
        assert!(taint.is_none_or(|key| key == "linkerd.io/cni-not-ready"), "{name}");
    }
}

/// The plugin's entry in what kustomize makes.
pub(crate) fn entry(objects: &[Value]) -> Value {
    let config = objects.iter().find(|object| object["kind"] == "ConfigMap").unwrap();
    serde_json::from_str(config["data"]["cni_network_config"].as_str().unwrap()).unwrap()
}

#[test]
fn the_entry_is_one_that_agent_and_plugin_take() {
    for (name, objects) in all() {
        let entry = entry(&objects);
        let text = entry.to_string();
        let entry = Entry::new(&text, Path::new("/etc/cni/net.d/ZZZ-linkerd-cni-kubeconfig")).unwrap();
        // Where the plugin asks nobody, no pod waits for the API server, nor for the agent's token.
        assert_eq!(entry.needs_kubeconfig(), name == "api");
        entry.read().unwrap();
    }
}

#[test]
fn the_component_api_changes_only_whom_the_plugin_asks() {
    let mut expected = entry(&base());
    let changed = entry(&with_component("api"));
    let annotations = "io.kubernetes.cri.pod-annotations";
    assert_eq!(expected["linkerd"]["pod-info"], "annotations");
    assert_eq!(expected["capabilities"], json!({annotations: true}));
    expected["linkerd"]["pod-info"] = json!("api");
    expected.as_object_mut().unwrap().remove("capabilities");
    expected["kubernetes"] = json!({"kubeconfig": "__KUBECONFIG_FILEPATH__"});
    assert_eq!(changed, expected);
}

/// One after another, and each for a while: what a bad version can do is limited to one node, as far as that shows.
#[test]
fn an_update_goes_on_to_the_next_node_only_if_the_agent_stays_ready() {
    for (name, objects) in all() {
        let spec = set(&objects).spec;
        let update = spec.update_strategy.unwrap().rolling_update.unwrap();
        let most = serde_json::to_value(update.max_unavailable).unwrap();
        assert_eq!((most, spec.min_ready_seconds), (json!(1), Some(10)), "{name}");
    }
}

/// The metrics that `# TYPE` lines describe.
fn described() -> BTreeSet<String> {
    let metrics = Metrics::default();
    // A family that has no member yet isn't described.
    for family in [&metrics.pods, &metrics.drifts] {
        drop(family.get_or_create(&[("label", "value".to_owned())]));
    }
    metrics.count("configuration", 0);
    metrics.begin_sandboxes();
    let text = metrics.text();
    let names = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    names.map(str::to_owned).collect()
}

/// Those of kube-state-metrics (docs/metrics in kubernetes/kube-state-metrics), all of them stable.
const OF_THE_CLUSTER: [&str; 7] = [
    "kube_daemonset_status_desired_number_scheduled",
    "kube_node_info",
    "kube_node_status_condition",
    "kube_pod_info",
    "kube_pod_status_phase",
    "kube_pod_status_ready",
    "kube_pod_status_scheduled_time",
];

/// Each metric that an expression names is one that the agent has, or the cluster.
#[track_caller]
fn asks_for_what_there_is(expression: &str) {
    let described = described();
    let words = expression.split(|sign: char| !sign.is_ascii_alphanumeric() && sign != '_');
    let named: Vec<&str> = words.filter(|word| word.starts_with("linkerd_") || word.starts_with("kube_")).collect();
    assert!(!named.is_empty(), "{expression}");
    for name in named {
        // The suffixes of OpenMetrics for counters, histograms and the build's information.
        let suffixes = ["", "_total", "_count", "_bucket", "_info"];
        let is_described = |suffix: &&str| name.strip_suffix(*suffix).is_some_and(|name| described.contains(name));
        assert!(OF_THE_CLUSTER.contains(&name) || suffixes.iter().any(is_described), "{name} is none of {described:?}");
    }
}

/// Every alert, by its name.
fn alerts() -> BTreeMap<String, String> {
    let rules = documents(&folder().join("../helm/alerts.yaml")).remove(0);
    let groups = rules["groups"].as_array().unwrap().iter();
    let rules = groups.flat_map(|group| group["rules"].as_array().unwrap());
    let text = |rule: &Value, key: &str| rule[key].as_str().unwrap().to_owned();
    rules.map(|rule| (text(rule, "alert"), text(rule, "expr"))).collect()
}

/// Every expression in the dashboard.
fn shown() -> Vec<String> {
    let text = fs::read_to_string(folder().join("dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let mut expressions: Vec<String> = targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect();
    let nodes = dashboard["templating"]["list"][1]["query"].as_str().unwrap();
    let nodes = nodes.strip_prefix("label_values(").unwrap().split(',').next();
    expressions.extend(nodes.map(str::to_owned));
    expressions
}

#[test]
fn alerts_and_the_dashboard_ask_for_metrics_that_there_are() {
    let (alerts, shown) = (alerts(), shown());
    assert!(alerts.len() >= 10 && shown.len() >= 20, "{alerts:?} {shown:?}");
    for expression in alerts.values().chain(&shown) {
        asks_for_what_there_is(expression);
    }
}

/// Nobody misses an alert that never comes.
#[test]
fn each_alert_is_tested_when_it_fires_and_when_it_does_not() {
    let tests = documents(&folder().join("alerts-test.yaml")).remove(0);
    let tests = tests["tests"].as_array().unwrap().iter();
    let cases: BTreeSet<(&str, bool)> = tests
        .flat_map(|test| test["alert_rule_test"].as_array().unwrap())
        .map(|case| {
            let fires = !case["exp_alerts"].as_array().unwrap().is_empty();
            (case["alertname"].as_str().unwrap(), fires)
        })
        .collect();
    let alerts = alerts();
    let wanted: BTreeSet<(&str, bool)> =
        alerts.keys().flat_map(|name| [(name.as_str(), true), (name.as_str(), false)]).collect();
    assert_eq!(cases, wanted);
}

/// By Prometheus' own tool, of Debian's package, which is downloaded once.
#[test]
fn promtool_takes_the_dashboards_expressions_and_each_alert_fires_when_it_has_to() {
    let prometheus = apt::unpack("bookworm", "prometheus").unwrap();
    let promtool = |arguments: &[&OsStr]| {
        let mut promtool = Command::new(prometheus.join("usr/bin/promtool"));
        let output = promtool.args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    };
    let of_alerts = folder().join("alerts-test.yaml");
    promtool(&["test".as_ref(), "rules".as_ref(), of_alerts.as_ref()]);
    // It checks what is recorded.
    let shown = shown().into_iter().enumerate();
    let rules: Vec<Value> =
        shown.map(|(number, expression)| json!({"record": format!("panel:{number}"), "expr": expression})).collect();
    let file = std::env::temp_dir().join(format!("linkerd-cni-dashboard-{}.yaml", std::process::id()));
    let text = json!({"groups": [{"name": "dashboard", "rules": rules}]}).to_string();
    fs::write(&file, text.replace("$instance", ".*")).unwrap();
    promtool(&["check".as_ref(), "rules".as_ref(), file.as_ref()]);
    fs::remove_file(file).unwrap();
}
