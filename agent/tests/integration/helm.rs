//! The chart in deploy/helm, as Helm itself renders it.

use std::fs;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::PodSpec;
use lab::helm::template;
use lab::linkerd::CHARTS;
use lab::shell::{root, target};
use linkerd_cni_agent::{LogFormat, Repair};
use proxy_init::{Form, SETTINGS};
use serde_json::{Value, json};

use crate::deploy::{
    CONFIGURATION, base, documents_in, entry, is_of_kubernetes_schema, nri, set, settings, with_component,
};

/// The chart's objects with these values, and an image.
fn rendered(mut values: Value) -> Vec<Value> {
    if values.get("agent.image").is_none() {
        values["agent"]["image"] = json!({"name": "registry.example/proxy-init-cni"});
    }
    let objects = documents_in(&template(None, &values, None).unwrap());
    objects.into_iter().filter(|object| !object.is_null()).collect()
}

/// There is one source: the files of deploy/cni that are the chart's are what Helm makes of it. Where one differs, what it
/// should be is left in target/helm.
#[test]
fn the_files_for_kustomize_are_made_from_the_chart() {
    let values = root().join("deploy/helm/kustomize.yaml");
    let mut differ = Vec::new();
    for (file, name, more) in [
        ("base/role.yaml", "templates/role.yaml", json!({})),
        ("base/config.yaml", "templates/config.yaml", json!({})),
        ("base/daemonset.yaml", "templates/daemonset.yaml", json!({})),
        ("components/api/role.yaml", "templates/api.yaml", json!({"agent.podInfo": "api"})),
        ("components/taint/role.yaml", "templates/taint.yaml", json!({"agent.removeTaint": true})),
        (
            "components/nri-events/role.yaml",
            "templates/nri-events.yaml",
            json!({"agent.nri": true, "agent.nriEvents": true}),
        ),
        (
            "components/without-init-containers/policy.yaml",
            "templates/without-init-containers.yaml",
            json!({"agent.nri": true, "agent.withoutInitContainers": true}),
        ),
    ] {
        let text = template(Some(&values), &more, Some(name)).unwrap();
        // Each document has this above it.
        let text = text.replace(&format!("# Source: proxy-init-cni/{name}\n"), "");
        let text = text.strip_prefix("---\n").unwrap();
        // kustomize copies the configuration instead.
        let lines =
            text.split_inclusive('\n').filter(|line| !line.contains("checksum") && !line.contains("rolled out"));
        let made = format!("# Made from deploy/helm/{name}.\n{}", lines.collect::<String>());
        if fs::read_to_string(root().join("deploy/cni").join(file)).unwrap() != made {
            let left = target("helm").join(file.replace('/', "-"));
            fs::write(&left, made).unwrap();
            differ.push(format!("cp {} deploy/cni/{file}", left.display()));
        }
    }
    assert!(differ.is_empty(), "the chart makes others:\n{}", differ.join("\n"));
}

#[test]
fn the_component_api_has_the_charts_configuration() {
    let with_api = rendered(json!({"agent": {"podInfo": "api"}}));
    assert_eq!(entry(&with_api), entry(&with_component("api")));
}

/// The agent by NRI is the overlay's, under its own name, and without a role unless it is to say something to the API server.
#[test]
fn by_nri_the_chart_makes_what_the_overlay_does() {
    let cluster_wide = json!(["ClusterRole", "ClusterRoleBinding"]);
    for (agent, overlay, roles) in [
        (json!({"nri": true}), nri(), json!([])),
        (json!({"nri": true, "nriEvents": true}), with_component("nri-events"), cluster_wide),
    ] {
        let ours = rendered(json!({"agent": agent, "priorityClassName": "system-node-critical"}));
        let kinds = |objects: &[Value], of_roles: bool| {
            let kinds = objects.iter().map(|object| object["kind"].clone());
            Value::from_iter(kinds.filter(|kind| kind.as_str().unwrap().starts_with("ClusterRole") == of_roles))
        };
        assert_eq!(kinds(&ours, false), json!(["ServiceAccount", "ConfigMap", "DaemonSet", "Pod"]));
        assert_eq!(kinds(&ours, true), roles);
        assert_eq!(entry(&ours), entry(&overlay));
        let (mut ours, mut expected) = (set(&ours), set(&overlay));
        pod(&mut expected).containers[0].image = pod(&mut ours).containers[0].image.clone();
        without_configuration([&mut ours, &mut expected]);
        assert_eq!(json!(ours), json!(expected));
    }
}

/// The agent reads its configuration when it starts: without a new pod, a changed one would reach no node.
#[test]
fn a_changed_configuration_is_rolled_out() {
    let template = |values: Value| set(&rendered(values)).spec.template;
    let before = template(json!({}));
    assert_eq!(template(json!({"podMonitor": {"enabled": true}})), before);
    for values in
        [json!({"ignoreInboundPorts": 9999}), json!({"rules": {"skipUID": "0"}}), json!({"agent": {"nri": true}})]
    {
        assert_ne!(template(values.clone()), before, "{values}");
    }
}

/// Removes the annotations that change with the configuration: Helm's, and kustomize's.
fn without_configuration(sets: [&mut DaemonSet; 2]) {
    for (set, name) in sets.into_iter().zip(["checksum/config", CONFIGURATION]) {
        let annotations = set.spec.template.metadata.as_mut().unwrap().annotations.as_mut().unwrap();
        annotations.remove(name).unwrap();
    }
}

#[test]
fn the_chart_has_the_projects_version() {
    let chart = documents_in(&fs::read_to_string(root().join("deploy/helm/Chart.yaml")).unwrap()).remove(0);
    for key in ["version", "appVersion"] {
        assert_eq!(chart[key], env!("CARGO_PKG_VERSION"), "{key}");
    }
}

/// The whole change of who has linkerd2-cni: the values stay. What they say is as in deploy/cni, which differs in two.
#[test]
fn linkerds_own_values_are_taken() {
    for charts in &CHARTS {
        let version = charts.version;
        let objects = rendered(charts.cni_values());
        objects.iter().for_each(is_of_kubernetes_schema);
        let mut expected = entry(&base());
        expected["linkerd"]["iptables-mode"] = json!(charts.iptables_mode);
        assert_eq!(entry(&objects), expected, "{version}");
        let (mut ours, mut expected) = (set(&objects), set(&base()));
        without_configuration([&mut ours, &mut expected]);
        let container = pod(&mut expected).containers.first_mut().unwrap();
        container.image = Some(format!("registry.example/proxy-init-cni:{}", env!("CARGO_PKG_VERSION")));
        container.args.as_mut().unwrap().push("--repair=nothing".to_owned());
        pod(&mut expected).priority_class_name = None;
        assert_eq!(json!(ours), json!(expected), "{version}");
        // Helm replaces objects of these names, and can't change what the DaemonSet selects nor which role is bound.
        let mut names: Vec<_> = objects.iter().map(|object| (&object["kind"], &object["metadata"]["name"])).collect();
        names.sort_by_key(|(kind, _)| kind.to_string());
        names.dedup();
        // The test's pod is no part of the release.
        for (kind, name) in names.into_iter().filter(|(kind, _)| *kind != "Pod") {
            let expected = if kind == "ConfigMap" { "linkerd-cni-config" } else { "linkerd-cni" };
            assert_eq!(name, expected, "{kind}");
        }
        let labels = ours.spec.selector.match_labels.unwrap();
        assert_eq!(json!(labels), json!({"k8s-app": "linkerd-cni"}));
    }
}

fn pod(set: &mut DaemonSet) -> &mut PodSpec {
    set.spec.template.spec.as_mut().unwrap()
}

#[test]
fn each_of_linkerds_values_counts() {
    let init = json!({
        "name": "wait-for-other-cni",
        "image": "busybox",
        "volumeMounts": [
            {"name": "cni-net-dir", "mountPath": "/host/etc/cni/net.d"},
            {"name": "cni-bin-dir", "mountPath": "/host/opt/cni/bin"},
            {"name": "linkerd-tmp-dir", "mountPath": "/tmp"},
        ],
    });
    let terms = json!([{"matchExpressions": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}]}]);
    let affinity = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
    let objects = rendered(json!({
        "inboundProxyPort": 14143,
        "outboundProxyPort": "14140",
        "proxyAdminPort": 14191,
        "proxyControlPort": 14190,
        "ignoreInboundPorts": "25, 8000-8100",
        "ignoreOutboundPorts": 443,
        "portsToRedirect": "80,8080",
        "proxyUID": 1_000_680_000,
        "proxyGID": 2103,
        "logLevel": "debug",
        "useWaitFlag": true,
        "iptablesMode": "legacy",
        "disableIPv6": false,
        "destCNINetDir": "/var/lib/rancher/k3s/agent/etc/cni/net.d",
        "destCNIBinDir": "/var/lib/rancher/k3s/data/cni",
        "podLabels": {"team": "mesh"},
        "commonLabels": {"part-of": "mesh"},
        "priorityClassName": "system-node-critical",
        "revisionHistoryLimit": 3,
        "updateStrategy": {"rollingUpdate": {"maxUnavailable": "10%"}},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "nodeAffinity": affinity,
        "image": {"name": "mirror.example/cni-plugin", "version": "v1.6.8", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "registry"}],
        "extraInitContainers": [init],
        "resources": {"cpu": {"limit": "100m"}, "memory": {"request": "32Mi", "limit": ""}},
        "repairController": {"enabled": true, "logLevel": "debug", "logFormat": "json"},
        // As --reuse-values passes them.
        "partials": {"global": {}},
        "global": {},
    }));
    objects.iter().for_each(is_of_kubernetes_schema);
    assert_eq!(
        entry(&objects),
        json!({
            "name": "linkerd-cni",
            "type": "linkerd-cni",
            "log_level": "debug",
            "capabilities": {"io.kubernetes.cri.pod-annotations": true},
            "linkerd": {
                "pod-info": "annotations",
                "incoming-proxy-port": 14143,
                "outgoing-proxy-port": 14140,
                "proxy-uid": 1_000_680_000,
                "proxy-gid": 2103,
                "ports-to-redirect": [80, 8080],
                "inbound-ports-to-ignore": ["14191", "14190", "25", "8000-8100"],
                "outbound-ports-to-ignore": ["443"],
                "simulate": false,
                "use-wait-flag": true,
                "iptables-mode": "legacy",
                "ipv6": true,
            },
        })
    );
    for object in &objects {
        assert_eq!(object["metadata"]["labels"]["part-of"], "mesh", "{object}");
    }
    let of_account = objects.iter().find(|object| object["kind"] == "ServiceAccount").unwrap();
    assert_eq!(of_account["imagePullSecrets"], json!([{"name": "registry"}]));
    let set = set(&objects);
    assert_eq!(set.spec.revision_history_limit, Some(3));
    assert_eq!(
        json!(set.spec.update_strategy),
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}})
    );
    let template = json!(set.spec.template);
    assert_eq!(template["metadata"]["labels"]["team"], "mesh");
    let pod = &template["spec"];
    assert_eq!(pod["priorityClassName"], "system-node-critical");
    assert_eq!(pod["tolerations"], json!([{"key": "gpu", "operator": "Exists"}]));
    assert_eq!(pod["affinity"], json!({"nodeAffinity": affinity}));
    assert_eq!(pod["initContainers"], json!([init]));
    let volumes: Vec<_> = pod["volumes"].as_array().unwrap().iter().map(|volume| &volume["name"]).collect();
    assert_eq!(json!(volumes), json!(["cni-bin-dir", "cni-net-dir", "linkerd-tmp-dir"]));
    assert_eq!(pod["volumes"][0]["hostPath"]["path"], "/var/lib/rancher/k3s/data/cni");
    let container = &pod["containers"][0];
    assert_eq!(container["imagePullPolicy"], "Always");
    assert_eq!(container["resources"], json!({"limits": {"cpu": "100m"}, "requests": {"memory": "32Mi"}}));
    let settings = settings(&set.spec.template.spec.unwrap().containers[0]);
    assert_eq!(settings.admin.unwrap().to_string(), "[::]:9990");
    assert_eq!((settings.repair, settings.log_format), (Repair::Missing, LogFormat::Json));
}

/// A value of each setting of rules, as the chart has it and as the plugin's configuration has it.
#[test]
fn each_setting_of_rules_has_a_value() {
    for setting in SETTINGS {
        let (value, expected) = match (setting.form, setting.placeholder) {
            (Form::Number, _) => (json!(5143), json!(5143)),
            (Form::Numbers, _) => (json!("80, 443"), json!([80, 443])),
            // The chart has Linkerd's disableIPv6.
            (Form::Switch, _) => (json!(false), json!(true)),
            (Form::Texts, "SUBNETS") => (json!("10.0.0.0/8, fd00::/8"), json!(["10.0.0.0/8", "fd00::/8"])),
            (Form::Texts, "NAMES") => (json!("net1,k6t-eth0"), json!(["net1", "k6t-eth0"])),
            (Form::Texts, _) => (json!("25,8000-8100"), json!(["25", "8000-8100"])),
        };
        let linkerd = entry(&rendered(json!({setting.chart: value})))["linkerd"].take();
        let made = &linkerd[setting.key()];
        let made = match made.as_array() {
            // The proxy's own ports come first.
            Some(items) if setting.adds => json!(items[2..]),
            _ => made.clone(),
        };
        assert_eq!(made, expected, "{}: {linkerd}", setting.chart);
    }
}

/// Such as a registry's mirror names it.
#[test]
fn an_image_may_be_named_by_its_digest() {
    for (image, expected) in [
        (json!({"name": "r/x@sha256:00"}), "r/x@sha256:00"),
        (json!({"name": "r:5000/x", "version": "v1"}), "r:5000/x:v1"),
    ] {
        let objects = rendered(json!({"agent.image": image}));
        assert_eq!(set(&objects).spec.template.spec.unwrap().containers[0].image.as_deref(), Some(expected));
    }
}

/// As where plugins and configurations are in one folder, and on OpenShift.
#[test]
fn one_folder_is_mounted_once_and_a_privileged_agent_asks_for_no_capabilities() {
    let objects = rendered(json!({"destCNINetDir": "/cni", "destCNIBinDir": "/cni", "privileged": true}));
    objects.iter().for_each(is_of_kubernetes_schema);
    let container = set(&objects).spec.template.spec.unwrap().containers.remove(0);
    let paths: Vec<_> = container.volume_mounts.unwrap().into_iter().map(|mount| mount.mount_path).collect();
    assert_eq!(paths, ["/host/cni"]);
    let security = container.security_context.unwrap();
    assert_eq!(
        (security.privileged, security.capabilities, security.allow_privilege_escalation),
        (Some(true), None, None)
    );
}

#[test]
fn what_the_chart_cannot_do_is_an_error() {
    let image = json!({"image": {"name": "registry.example/proxy-init-cni"}});
    for (values, expected) in [
        (json!({}), "agent.image.name is required"),
        (json!({"agent": image, "proxyUid": 3}), "proxyUid"),
        (json!({"agent": image, "iptablesMode": "nftables"}), "iptablesMode"),
        (json!({"agent": image, "enablePSP": true}), "enablePSP"),
        (
            json!({"agent.image": image["image"], "agent.nri": true, "agent.podInfo": "api"}),
            "agent.nri asks the API server about no pod",
        ),
        (json!({"agent": image, "inboundProxyPort": 70_000}), "inboundProxyPort"),
        (json!({"agent": image, "inboundProxyPort": "70000"}), "inboundProxyPort: \"70000\" is no number"),
        (json!({"agent": image, "ignoreInboundPorts": "90-80,,-"}), "the range 90-80 ends before it begins"),
        (json!({"agent": image, "ignoreOutboundPorts": "443,-"}), "ignoreOutboundPorts: \"-\" is no number or range"),
        (json!({"agent": image, "portsToRedirect": "80-90"}), "portsToRedirect"),
        (json!({"agent.image": image["image"], "agent.withoutInitContainers": true}), "needs agent.nri"),
        (json!({"agent": image, "logLevel": "loud"}), "logLevel"),
        (json!({"agent": image, "repairController": {"logLevel": "loud"}}), "logLevel"),
        (json!({"agent": image, "rules": {"skipUID": "root"}}), "skipUID"),
        (json!({"agent": image, "rules": {"unknown": ""}}), "unknown"),
    ] {
        let said = template(None, &values, None).unwrap_err().to_string();
        assert!(said.contains(expected), "{said}");
    }
}

/// The Prometheus operator's, whose kinds Kubernetes' own types don't have.
#[test]
fn the_operator_scrapes_the_port_for_metrics_and_has_the_alerts() {
    let labels = json!({"release": "prometheus"});
    let enabled = json!({"enabled": true, "labels": labels});
    let objects = rendered(json!({"podMonitor": enabled, "prometheusRule": enabled}));
    let of_kind = |kind: &str| objects.iter().find(|object| object["kind"] == kind).unwrap();
    let (monitor, rule) = (of_kind("PodMonitor"), of_kind("PrometheusRule"));
    for object in [monitor, rule] {
        assert_eq!(object["metadata"]["labels"]["release"], "prometheus");
    }
    let alerts = fs::read_to_string(root().join("deploy/helm/alerts.yaml")).unwrap();
    assert_eq!(rule["spec"], documents_in(&alerts)[0]);
    let set = set(&objects);
    assert_eq!(monitor["spec"]["selector"], json!(set.spec.selector));
    let ports = set.spec.template.spec.unwrap().containers.remove(0).ports.unwrap();
    let named = &monitor["spec"]["podMetricsEndpoints"][0]["port"];
    let port = ports.iter().find(|port| json!(port.name) == *named).unwrap();
    assert_eq!(port.container_port, 9990);
}
