//! Pods as Linkerd's injector makes them.

use serde_json::{Value, json};

use crate::connections::Client;
use crate::{images, linkerd};

/// The init container that installs rules, and those that run on.
pub const INIT: &str = "linkerd-init";
pub const PROXY: &str = "linkerd-proxy";
pub const APP: &str = "app";

/// The security context that Linkerd's chart gives init containers.
fn restricted_context() -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": true,
        "runAsNonRoot": true,
        "runAsUser": 65534,
        "seccompProfile": {"type": "RuntimeDefault"}
    })
}

/// proxy-init as Linkerd's chart runs it (charts/partials/templates/_proxy-init.tpl): its flags, security context,
/// limits and volume.
pub fn init(image: &str, flags: &[&str]) -> Value {
    let mut context = restricted_context();
    context["capabilities"]["add"] = json!(["NET_ADMIN", "NET_RAW"]);
    let args = [flags, &linkerd::CHART_ARGUMENTS].concat();
    json!({
        "name": INIT,
        "image": image,
        "args": args,
        "securityContext": context,
        "resources": {
            "limits": {"cpu": "100m", "memory": "20Mi"},
            "requests": {"cpu": "10m", "memory": "10Mi"}
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "linkerd-proxy-init-xtables-lock", "mountPath": "/run"}]
    })
}

/// proxy-init in the place of Linkerd's network validator, as the chart runs that.
pub fn validator() -> Value {
    json!({
        "name": "linkerd-network-validator",
        "image": images::PROXY_INIT,
        "command": ["/usr/lib/linkerd/linkerd2-network-validator"],
        "args": [
            "--log-format", "plain", "--log-level", "debug", "--connect-addr", "1.1.1.1:20001",
            "--listen-addr", "[::]:4140", "--timeout", "10s"
        ],
        "securityContext": restricted_context()
    })
}

/// A pod with a proxy and an application, and without an init container.
pub fn plain(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "initContainers": [],
            "containers": [
                {
                    "name": PROXY,
                    "image": images::PROXY,
                    "securityContext": {"runAsUser": Client::Proxy.user(), "allowPrivilegeEscalation": false}
                },
                {"name": APP, "image": images::APP, "securityContext": {"runAsUser": Client::App.user()}}
            ],
            "volumes": [{"name": "linkerd-proxy-init-xtables-lock", "emptyDir": {}}]
        }
    })
}

/// The same with this init container.
pub fn meshed(name: &str, init: &Value) -> Value {
    let mut pod = plain(name);
    pod["spec"]["initContainers"] = json!([init]);
    pod
}

/// A pod as the injector makes it where `cniEnabled` is set, but for the validator.
pub fn injected(name: &str) -> Value {
    let mut pod = plain(name);
    pod["metadata"]["labels"]["linkerd.io/control-plane-ns"] = json!("linkerd");
    pod["metadata"]["annotations"] = json!({"linkerd.io/proxy-version": "edge-1"});
    pod
}

/// The same, with the validator.
pub fn validated(name: &str) -> Value {
    let mut pod = injected(name);
    pod["spec"]["initContainers"] = json!([validator()]);
    pod
}

/// The same pod with users of its own.
pub fn with_own_users(mut pod: Value) -> Value {
    pod["spec"]["hostUsers"] = json!(false);
    pod
}

/// The same pod as Pod Security's level `restricted` wants it.
pub fn restricted(mut pod: Value) -> Value {
    for container in pod["spec"]["containers"].as_array_mut().into_iter().flatten() {
        let user = container["securityContext"]["runAsUser"].take();
        container["securityContext"] = restricted_context();
        container["securityContext"]["runAsUser"] = user;
    }
    pod
}

/// A pod without a mesh, from which scenarios connect and to which they connect: on ports 8080 and 4567.
pub fn neighbour() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "neighbour"},
        "spec": {"containers": [{"name": "client", "image": images::CLIENT, "args": ["serve", "8080", "4567"]}]}
    })
}
