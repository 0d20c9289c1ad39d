//! Every error of the plugin that needs no API server, and that nothing was changed.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use lab::network::Namespace;
use serde_json::{Value, json};

use crate::support::{POD_ANNOTATIONS, Run, assert_untouched, by_annotations, meshed};

#[test]
fn the_environment_is_checked() {
    let (node, pod) = (Namespace::new(), Namespace::new());
    for verb in ["ADD", "CHECK"] {
        let run = || Run::new(verb, &meshed(), pod.path());
        for variable in ["CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"] {
            for run in [run().without(variable), run().with(variable, "")] {
                let message = run.output(&node).error(4);
                assert!(message.contains(variable) && message.contains("missing"), "{message}");
            }
            let not_utf_8 = OsString::from_vec(b"a\xff".to_vec());
            assert!(run().with(variable, not_utf_8).output(&node).error(4).contains("UTF-8"));
        }
        for (variable, value) in [
            ("CNI_COMMAND", "add"),
            ("CNI_COMMAND", "REMOVE"),
            ("CNI_CONTAINERID", "-x"),
            ("CNI_CONTAINERID", "a/b"),
            ("CNI_IFNAME", "sixteen-bytes-is"),
            ("CNI_IFNAME", ".."),
            ("CNI_IFNAME", "a/b"),
            ("CNI_IFNAME", "a b"),
            ("CNI_NETNS", "/nonexistent"),
            ("CNI_NETNS", "/proc/self/ns/mnt"),
            ("CNI_NETNS", "/dev/null"),
            ("CNI_ARGS", "nonsense"),
            ("CNI_ARGS", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=../secrets"),
        ] {
            let message = run().with(variable, value).output(&node).error(4);
            assert!(message.contains(variable), "{message}");
            let value = value.rsplit('=').next().unwrap();
            assert!(message.contains(value), "{message}");
        }
        // Only plugins that call others need these.
        let finished = run().without("CNI_PATH").with("CNI_ARGS", "").output(&node);
        finished.success();
    }
    assert_untouched(&pod);
    assert_untouched(&node);
}

/// Upstream's plugin redirects the node's own connections then.
#[test]
fn the_plugins_own_namespace_is_refused() {
    let node = Namespace::new();
    for verb in ["ADD", "CHECK"] {
        for path in ["/proc/self/ns/net".into(), "/proc/thread-self/ns/net".into(), node.path()] {
            let message = Run::new(verb, &meshed(), path).output(&node).error(4);
            assert!(message.contains("CNI_NETNS") && message.contains("the plugin itself"), "{message}");
        }
    }
    assert_untouched(&node);
}

#[test]
fn what_is_not_json_says_where() {
    let (node, pod) = (Namespace::new(), Namespace::new());
    for (stdin, place) in [
        ("", "line 1 column 0"),
        ("nonsense", "line 1 column 2"),
        ("{\n  \"cniVersion\": \"1.1.0\",\n  \"name\" \"x\"\n}", "line 3 column 10"),
        ("{\"cniVersion\": \"1.1.0\"", "line 1 column 22"),
        ("{} {}", "line 1 column 4"),
    ] {
        for verb in ["ADD", "CHECK"] {
            let message = Run::new(verb, &json!({}), pod.path()).stdin(stdin).output(&node).error(6);
            assert!(message.contains(place), "{stdin}: {message}");
        }
    }
    let deep = format!("{{\"args\": {}", "[".repeat(1 << 20));
    Run::new("ADD", &json!({}), pod.path()).stdin(deep).output(&node).error(6);
    let not_utf_8 = b"{\"name\": \"\xff\"}".to_vec();
    Run::new("ADD", &json!({}), pod.path()).stdin(not_utf_8).output(&node).error(6);
    assert_untouched(&pod);
}

#[test]
fn a_key_of_the_wrong_type_or_value_is_named() {
    let (node, pod) = (Namespace::new(), Namespace::new());
    for (path, value, words) in [
        ("/cniVersion", json!(1), "cniVersion: invalid type"),
        ("/name", json!(7), "name: invalid type"),
        ("/name", json!(""), "name: the network's name was expected"),
        ("/name", json!("a b"), "name: the network's name was expected"),
        ("/log_level", json!([]), "log_level: invalid type"),
        ("/log_format", json!(1), "log_format: invalid type"),
        ("/kubernetes", json!("x"), "kubernetes: invalid type"),
        ("/kubernetes/kubeconfig", json!({}), "kubernetes.kubeconfig: invalid type"),
        ("/linkerd", json!([4143, 4140]), "linkerd: invalid type: sequence"),
        ("/linkerd/incoming-proxy-port", json!("4143"), "linkerd.incoming-proxy-port: invalid type: string"),
        ("/linkerd/incoming-proxy-port", json!(0), "linkerd.incoming-proxy-port: \"0\" is not a valid TCP port"),
        ("/linkerd/incoming-proxy-port", Value::Null, "linkerd.incoming-proxy-port: the proxy's port"),
        ("/linkerd/outgoing-proxy-port", json!(65536), "linkerd.outgoing-proxy-port: \"65536\""),
        ("/linkerd/outgoing-proxy-port", json!(41.5), "linkerd.outgoing-proxy-port: invalid type: floating point"),
        ("/linkerd/proxy-uid", json!("2102"), "linkerd.proxy-uid: invalid type"),
        ("/linkerd/proxy-uid", json!(1.5), "linkerd.proxy-uid: invalid type"),
        ("/linkerd/proxy-gid", json!(4_294_967_295_u32), "linkerd.proxy-gid: \"4294967295\""),
        ("/linkerd/ports-to-redirect", json!(80), "linkerd.ports-to-redirect: invalid type"),
        ("/linkerd/ports-to-redirect", json!([80, "81"]), "linkerd.ports-to-redirect[1]: invalid type"),
        ("/linkerd/inbound-ports-to-ignore", json!("25"), "linkerd.inbound-ports-to-ignore: invalid type"),
        ("/linkerd/inbound-ports-to-ignore", json!([25]), "linkerd.inbound-ports-to-ignore[0]: invalid type"),
        ("/linkerd/inbound-ports-to-ignore", json!(["1", "9-1"]), "linkerd.inbound-ports-to-ignore[1]: \"9-1\""),
        ("/linkerd/outbound-ports-to-ignore", json!(["http"]), "linkerd.outbound-ports-to-ignore[0]: \"http\""),
        ("/linkerd/subnets-to-ignore", json!(["10.0.0.0/33"]), "linkerd.subnets-to-ignore[0]: 10.0.0.0/33"),
        ("/linkerd/outbound-subnets-to-ignore", json!(["x"]), "linkerd.outbound-subnets-to-ignore[0]: x"),
        ("/linkerd/simulate", json!("no"), "linkerd.simulate: invalid type"),
        ("/linkerd/use-wait-flag", json!(1), "linkerd.use-wait-flag: invalid type"),
        ("/linkerd/iptables-mode", json!("nftables"), "linkerd.iptables-mode: \"nftables\" is not a mode"),
        ("/linkerd/ipv6", json!("true"), "linkerd.ipv6: invalid type"),
        ("/linkerd/pod-info", json!("guess"), "linkerd.pod-info: unknown variant `guess`"),
        ("/linkerd/control-plane-namespace", json!(1), "linkerd.control-plane-namespace: invalid type"),
        ("/linkerd/api-server-ports", json!(["x"]), "linkerd.api-server-ports[0]: \"x\""),
        ("/prevResult", json!("x"), "prevResult: a result"),
        ("/runtimeConfig", json!(1), "runtimeConfig: invalid type"),
        (
            "/runtimeConfig",
            json!({POD_ANNOTATIONS: {"config.linkerd.io/proxy-uid": 1}}),
            "runtimeConfig.io.kubernetes.cri.pod-annotations.config.linkerd.io/proxy-uid: invalid type",
        ),
    ] {
        let mut configuration = meshed();
        configuration["prevResult"] = json!({});
        *configuration.pointer_mut(path).unwrap_or(&mut Value::Null) = value.clone();
        if let Some((parent, key)) = path.rsplit_once('/') {
            configuration.pointer_mut(parent).unwrap()[key] = value.clone();
        }
        for (verb, version) in [("ADD", "0.3.0"), ("ADD", "1.0.0"), ("CHECK", "1.1.0")] {
            if verb == "CHECK" && path == "/prevResult" {
                continue;
            }
            if path != "/cniVersion" {
                configuration["cniVersion"] = version.into();
            }
            let finished = Run::new(verb, &configuration, pod.path()).output(&node);
            let message = finished.error(7);
            assert!(message.contains(words), "{path} {value}: {message}");
            // An error is in the version of the configuration.
            let object: Value = serde_json::from_str(&finished.stdout()).unwrap();
            assert!(path == "/cniVersion" || object["cniVersion"] == version, "{object}");
        }
    }
    assert_untouched(&pod);
}

#[test]
fn unknown_keys_and_null_are_ignored() {
    let (node, pod) = (Namespace::new(), Namespace::new());
    let mut configuration = meshed();
    configuration["args"] = json!({"cni": [1, 2]});
    configuration["linkerd"]["new-key"] = json!({"x": null});
    configuration["prevResult"] = Value::Null;
    for key in ["proxy-gid", "simulate", "subnets-to-ignore", "ports-to-redirect", "pod-info"] {
        configuration["linkerd"][key] = Value::Null;
    }
    configuration["linkerd"]["pod-info"] = "annotations".into();
    configuration["linkerd"]["inbound-ports-to-ignore"] = json!([" 4190 ", ""]);
    Run::new("ADD", &configuration, pod.path()).output(&node).success();
    assert!(pod.sh("iptables-nft-save -t nat").contains("--dports 4190 "));
}

/// As upstream's plugin, by Go's encoding/json and its own checks.
#[test]
fn what_upstream_takes_is_taken() {
    let (node, pod) = (Namespace::new(), Namespace::new());
    let configuration = json!({
        "cniVersion": "1.0.0",
        "name": "net",
        "runtimeConfig": {POD_ANNOTATIONS: {"linkerd.io/proxy-version": "x"}},
        "linkerd": {
            "incoming-proxy-port": 4143,
            "outgoing-proxy-port": 4140,
            "proxy-uid": 2102,
            "proxy-gid": -2,
            "inbound-ports-to-ignore": ["4190", ",", "4191,", " , "],
            "subnets-to-ignore": [","],
            "pod-info": "annotations",
            "iptables-mode": "nft",
            "ipv6": true,
        },
    });
    let result = Run::new("ADD", &configuration, pod.path()).output(&node).result();
    assert_eq!(result, json!({"cniVersion": "1.0.0"}));
    let rules = pod.sh("ip6tables-nft-save -t nat");
    assert!(rules.contains("--uid-owner 2102 ") && rules.contains("--dports 4190,4191 "), "{rules}");
    assert!(!rules.contains("gid-owner") && !rules.contains(" -s "), "{rules}");
}

#[test]
fn a_message_has_a_bound() {
    let (node, pod) = (Namespace::new(), Namespace::new());
    let long = "é".repeat(1 << 20);
    let mut configuration = meshed();
    configuration["linkerd"]["proxy-uid"] = long.clone().into();
    let finished = Run::new("ADD", &configuration, pod.path()).output(&node);
    let message = finished.error(7);
    assert!(message.len() < 4500 && message.contains("bytes more)"), "{message:.500}");
    assert!(finished.stderr().len() < 9000, "{}", finished.stderr().len());
    let run = Run::new("ADD", &meshed(), pod.path()).with("CNI_ARGS", &long[..60_000]);
    assert!(run.output(&node).error(4).len() < 4500);
}

/// A bad value in upstream's plugin leaves seven rules; `"3306, 5000"` loses its second port.
#[test]
fn a_bad_annotation_installs_nothing_and_is_named() {
    let (node, pod) = (Namespace::new(), Namespace::new());
    for (key, value) in [
        ("skip-outbound-ports", "3306,http"),
        ("skip-inbound-ports", "0-65536"),
        ("skip-subnets", "10.0.0.0/8,nonsense"),
        ("proxy-uid", "root"),
        ("proxy-gid", "99999999999"),
        ("skip-outbound-ports", "80\" -j ACCEPT; reboot \u{1b}[31m\n"),
    ] {
        let key = format!("config.linkerd.io/{key}");
        let configuration = by_annotations(json!({"linkerd.io/proxy-version": "edge-1", &key: value}));
        for verb in ["ADD", "CHECK"] {
            let message = Run::new(verb, &configuration, pod.path()).output(&node).error(102);
            assert!(message.contains(&key) && message.contains("pod shop/web"), "{message}");
            assert!(message.contains(&format!("{value:?}")), "{message}");
            assert!(!message.trim_end().contains(['\n', '\u{1b}']), "{message:?}");
        }
        Run::new("DEL", &configuration, pod.path()).output(&node).success();
    }
    assert_untouched(&pod);
}

#[test]
fn nothing_handed_over_is_an_error_and_not_a_guess() {
    let (node, pod) = (Namespace::new(), Namespace::new());
    for runtime in [None, Some(Value::Null), Some(json!({})), Some(json!({"portMappings": []}))] {
        let mut configuration = meshed();
        match runtime {
            Some(runtime) => configuration["runtimeConfig"] = runtime,
            None => drop(configuration.as_object_mut().unwrap().remove("runtimeConfig")),
        }
        for verb in ["ADD", "CHECK"] {
            let message = Run::new(verb, &configuration, pod.path()).output(&node).error(106);
            assert!(message.contains(POD_ANNOTATIONS) && message.contains("capabilities"), "{message}");
        }
    }
    assert_untouched(&pod);
}

#[test]
fn the_log_is_json_where_the_configuration_asks_for_it() {
    let (node, pod) = (Namespace::new(), Namespace::new());
    let mut configuration = meshed();
    configuration["log_format"] = json!("json");
    let finished = Run::new("ADD", &configuration, pod.path()).output(&node);
    let stderr = finished.stderr();
    finished.success();
    let lines: Vec<Value> = stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let last = lines.last().unwrap();
    assert!(last["msg"].as_str().unwrap().contains("rules are in place"), "{stderr}");
    let about = ["level", "command", "containerID", "pod"].map(|key| last[key].as_str());
    assert_eq!(about, ["info", "ADD", "sandbox-1", "shop/web"].map(Some));
}

#[test]
fn the_last_line_of_the_log_has_the_errors_code() {
    let (node, pod) = (Namespace::new(), Namespace::new());
    let finished = Run::new("ADD", &meshed(), pod.path()).without("CNI_CONTAINERID").output(&node);
    finished.error(4);
    assert!(finished.stderr().ends_with(" command=ADD code=\"4\"\n"), "{}", finished.stderr());
}

#[test]
fn an_answer_that_cannot_be_written_is_an_error_that_says_so() {
    let (node, pod) = (Namespace::new(), Namespace::new());
    let run = |verb: &str| {
        let full = ["sh", "-c", "exec \"$@\" >/dev/full", "sh"];
        Run::new(verb, &meshed(), pod.path()).under(&full).output(&node)
    };
    for verb in ["ADD", "VERSION"] {
        let finished = run(verb);
        let stderr = finished.stderr();
        assert_eq!(finished.0.status.code(), Some(1), "{verb}: {stderr}");
        let errors: Vec<&str> = stderr.lines().filter(|line| line.starts_with("level=error ")).collect();
        assert!(
            matches!(errors[..], [error] if error.contains("stdout") && error.contains("No space left")),
            "{verb}: {stderr}"
        );
    }
    // These verbs have nothing to say.
    for verb in ["CHECK", "DEL", "GC"] {
        run(verb).success();
    }
    // A caller that doesn't want to know.
    for redirection in [">/dev/null", "| cat >/dev/null"] {
        let script = format!("\"$@\" {redirection}");
        let run = Run::new("ADD", &meshed(), pod.path()).under(&["bash", "-o", "pipefail", "-c", &script, "sh"]);
        run.output(&node).success();
    }
}

/// The library's refusal, here because of another program's table.
#[test]
fn what_the_kernel_refuses_is_code_100() {
    let (node, pod) = (Namespace::new(), Namespace::new());
    let finished = Run::new("ADD", &meshed(), pod.path())
        .under(&["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"])
        .output(&node);
    let message = finished.error(100);
    assert!(message.contains("EPERM") && message.contains("CAP_NET_ADMIN"), "{message}");
    assert_untouched(&pod);
}
