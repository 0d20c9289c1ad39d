//! Compares with upstream's installer on a node's folders, in the cases of its own tests (internal/cni/*_test.go in
//! linkerd2-proxy-init): the same files before, and the same files afterwards.
//!
//! Only what both installers read is used here, so LINKERD_CNI_AGENT may name upstream's program as well, if its
//! service account's folder is mounted over /var/run/secrets/kubernetes.io/serviceaccount. That is how these trees were
//! checked against it, at 183e791 of 2026-07-23.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::node::{Agent, CERTIFICATE, KUBECONFIG, Node, until};

/// A list of two plugins, with an escape, nested values, and keys out of order.
const LIST: &str = r#"{"name": "net", "cniVersion": "0.3.1", "plugins": [
    {"type": "calico", "mtu": 0, "path": "\/var", "a": [true, null]},
    {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}}]}"#;
/// A plugin alone.
const ALONE: &str = r#"{"cniVersion": "0.3.1", "type": "calico", "ipam": {"type": "calico-ipam"}, "mtu": 0}"#;
/// The plugin's entry, before and after the path of the kubeconfig is known.
const TEMPLATE: &str = r#"{"name": "linkerd-cni", "type": "linkerd-cni", "kubernetes": {"kubeconfig": "__KUBECONFIG_FILEPATH__"},
    "linkerd": {"incoming-proxy-port": 4143, "outgoing-proxy-port": 4140, "proxy-uid": 2102, "ports-to-redirect": [],
    "inbound-ports-to-ignore": ["4191", "4190"], "simulate": false, "iptables-mode": "legacy", "ipv6": false}}"#;

const PROGRAM: &str = "#!/bin/sh\ncat > /dev/null\n";

fn entry(kubeconfig: &str) -> Value {
    serde_json::from_str(&TEMPLATE.replace("__KUBECONFIG_FILEPATH__", kubeconfig)).unwrap()
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// A list with the entry after what it had.
fn chained(list: &str, entry: &Value) -> Value {
    let mut list = parsed(list);
    list["plugins"].as_array_mut().unwrap().push(entry.clone());
    list
}

/// The list made of a single plugin.
fn promoted(alone: &str, entry: &Value) -> Value {
    let mut alone = parsed(alone);
    alone.as_object_mut().unwrap().remove("cniVersion");
    json!({"name": "k8s-pod-network", "cniVersion": "0.3.1", "plugins": [alone, entry]})
}

/// The configurations in a folder, by name. What is hidden is the agent's own.
fn configurations(folder: &Path) -> BTreeMap<String, Value> {
    let files = folder.read_dir().into_iter().flatten().flatten();
    let named = files.filter_map(|file| {
        let name = file.file_name().into_string().unwrap();
        let is_one = !name.starts_with('.') && (name.ends_with(".conf") || name.ends_with(".conflist"));
        let text = is_one.then(|| fs::read_to_string(file.path()).ok()).flatten()?;
        Some((name, serde_json::from_str(&text).unwrap_or(Value::String(text))))
    });
    named.collect()
}

/// Starts an installer with other variables than usual; an empty one counts as none.
fn start(node: &Node, variables: &[(&str, &str)]) -> Agent {
    let mut all = vec![("CNI_NETWORK_CONFIG", TEMPLATE), ("LINKERD_CNI_AGENT_ON_EXIT", "remove")];
    all.extend(variables);
    node.agent_with(&all)
}

#[test]
fn the_entry_comes_last_wherever_its_text_is_from() {
    let entry = entry(&format!("/etc/cni/net.d/{KUBECONFIG}"));
    let other = TEMPLATE.replace("2102", "2103");
    let file = std::env::temp_dir().join(format!("linkerd-cni-template-{}", std::process::id()));
    fs::write(&file, TEMPLATE).unwrap();
    let (here, nowhere) = (file.to_str().unwrap(), "/nonexistent/template");
    let old = chained(LIST, &parsed(&other)).to_string();
    for (what, variables) in [
        ("the environment", [("CNI_NETWORK_CONFIG", TEMPLATE), ("CNI_NETWORK_CONFIG_FILE", "")]),
        ("a file", [("CNI_NETWORK_CONFIG", ""), ("CNI_NETWORK_CONFIG_FILE", here)]),
        ("the environment before a file", [("CNI_NETWORK_CONFIG", TEMPLATE), ("CNI_NETWORK_CONFIG_FILE", here)]),
        (
            "the environment where there is no file",
            [("CNI_NETWORK_CONFIG", TEMPLATE), ("CNI_NETWORK_CONFIG_FILE", nowhere)],
        ),
    ] {
        let node = Node::new();
        node.write("10-list.conflist", LIST);
        node.write("20-alone.conf", ALONE);
        // Of an installer with other settings.
        node.write("30-old.conflist", &old);
        let agent = start(&node, &variables);
        let expected = BTreeMap::from([
            ("10-list.conflist".to_owned(), chained(LIST, &entry)),
            ("20-alone.conflist".to_owned(), promoted(ALONE, &entry)),
            ("30-old.conflist".to_owned(), chained(LIST, &entry)),
        ]);
        until(what, || configurations(&node.net("")) == expected);
        agent.terminate();
        // The lists are what they were. (What becomes of the promoted one differs: see docs/node.md.)
        let after = configurations(&node.net(""));
        assert_eq!(after["10-list.conflist"], parsed(LIST), "{what}");
        assert_eq!(after["30-old.conflist"], parsed(LIST), "{what}");
        assert!(!node.net(KUBECONFIG).exists() && !node.bin("linkerd-cni").exists(), "{what}");
    }
    fs::remove_file(file).unwrap();
}

#[test]
fn without_a_text_for_the_entry_no_configuration_changes() {
    for variables in [
        [("CNI_NETWORK_CONFIG", ""), ("CNI_NETWORK_CONFIG_FILE", "")],
        [("CNI_NETWORK_CONFIG", ""), ("CNI_NETWORK_CONFIG_FILE", "/nonexistent/template")],
    ] {
        let node = Node::new();
        node.write("10-list.conflist", LIST);
        let (status, said) = start(&node, &variables).wait();
        assert!(!status.success(), "{said}");
        assert_eq!(fs::read_to_string(node.net("10-list.conflist")).unwrap(), LIST);
    }
}

#[test]
fn each_variable_moves_what_it_is_about() {
    let node = Node::new();
    for folder in ["prefix/var/plugins", "prefix/var/networks", "programs/folder"] {
        fs::create_dir_all(node.path().join(folder)).unwrap();
    }
    let at = |path: &str| node.path().join(path);
    fs::write(at("programs/linkerd-cni"), PROGRAM).unwrap();
    fs::set_permissions(at("programs/linkerd-cni"), fs::Permissions::from_mode(0o750)).unwrap();
    symlink("linkerd-cni", at("programs/link")).unwrap();
    // A file of the plugin's name is overwritten.
    fs::write(at("prefix/var/plugins/linkerd-cni"), "").unwrap();
    fs::write(at("prefix/var/networks/10-list.conflist"), LIST).unwrap();
    fs::write(at("another-ca"), CERTIFICATE).unwrap();
    fs::write(at("account/..1/ca.crt"), "no certificate").unwrap();
    let text = |path: &str| at(path).to_str().unwrap().to_owned();
    let variables = [
        ("CONTAINER_MOUNT_PREFIX", text("prefix")),
        ("CONTAINER_CNI_BIN_DIR", text("programs")),
        ("DEST_CNI_BIN_DIR", "/var/plugins".to_owned()),
        ("DEST_CNI_NET_DIR", "/var/networks".to_owned()),
        ("KUBECONFIG_FILE_NAME", "the-kubeconfig".to_owned()),
        ("KUBE_CA_FILE", text("another-ca")),
        ("KUBERNETES_SERVICE_HOST", "api.example".to_owned()),
        ("KUBERNETES_SERVICE_PORT", "8443".to_owned()),
    ];
    let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let agent = start(&node, &variables);
    let expected =
        BTreeMap::from([("10-list.conflist".to_owned(), chained(LIST, &entry("/var/networks/the-kubeconfig")))]);
    until("the list has the entry", || configurations(&at("prefix/var/networks")) == expected);
    until("there is a kubeconfig", || at("prefix/var/networks/the-kubeconfig").exists());
    let kubeconfig = fs::read_to_string(at("prefix/var/networks/the-kubeconfig")).unwrap();
    let kubeconfig: Value = yaml_serde::from_str(&kubeconfig).unwrap();
    let expected = json!({"apiVersion": "v1", "kind": "Config", "current-context": "linkerd-cni-context",
        "clusters": [{"name": "local", "cluster": {"server": "https://api.example:8443",
            "certificate-authority-data": STANDARD.encode(CERTIFICATE.trim())}}],
        "users": [{"name": "linkerd-cni", "user": {"token": "token-1"}}],
        "contexts": [{"name": "linkerd-cni-context", "context": {"cluster": "local", "user": "linkerd-cni"}}]});
    assert_eq!(kubeconfig, expected);
    let installed: Vec<_> =
        at("prefix/var/plugins").read_dir().unwrap().map(|file| file.unwrap().file_name()).collect();
    // Neither the folder nor the link.
    assert_eq!(installed, ["linkerd-cni"]);
    assert_eq!(fs::read_to_string(at("prefix/var/plugins/linkerd-cni")).unwrap(), PROGRAM);
    let mode = fs::metadata(at("prefix/var/plugins/linkerd-cni")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o750);
    agent.terminate();
    assert!(!at("prefix/var/plugins/linkerd-cni").exists() && !at("prefix/var/networks/the-kubeconfig").exists());
}

#[test]
fn without_what_a_kubeconfig_takes_there_is_none() {
    type Change = fn(&Node) -> (&'static str, &'static str);
    let changes: [(&str, Change); 2] = [
        ("no token", |node| {
            fs::remove_file(node.path().join("account/..1/token")).unwrap();
            ("UNUSED", "")
        }),
        ("an authority that isn't there", |_| ("KUBE_CA_FILE", "/nonexistent/ca")),
    ];
    for (what, change) in changes {
        let node = Node::new();
        node.write("10-list.conflist", LIST);
        let agent = start(&node, &[change(&node)]);
        until("the program is there", || node.bin("linkerd-cni").exists());
        until("it says what is missing", || agent.says("level=fatal") || agent.says("ERROR"));
        assert!(!node.net(KUBECONFIG).exists(), "{what}");
    }
}

#[test]
fn folders_that_cannot_be_used_are_named() {
    for (variable, path, named) in [
        ("DEST_CNI_BIN_DIR", "/nowhere", "/nowhere"),
        ("DEST_CNI_BIN_DIR", "/etc/cni/net.d/10-list.conflist", "10-list.conflist"),
        ("CONTAINER_CNI_BIN_DIR", "/nonexistent/programs", "/nonexistent/programs"),
    ] {
        let node = Node::new();
        node.write("10-list.conflist", LIST);
        let agent = start(&node, &[(variable, path)]);
        until("it names the folder", || agent.says(named));
        assert_eq!(fs::read_to_string(node.net("10-list.conflist")).unwrap(), LIST);
        drop(agent);
    }
}
