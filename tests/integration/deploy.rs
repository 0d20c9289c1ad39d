//! The manifest in deploy/.

use k8s_openapi::api::core::v1::Pod;
use lab::network::Namespace;
use serde_json::Value;

use crate::support::{install, saved};

const MANIFEST: &str = include_str!("../../deploy/pod.yaml");

/// Kubernetes' own types (of its OpenAPI description) drop what they don't know and fill in what has to be there: so
/// what comes back as it went in has neither.
#[test]
fn the_manifest_is_of_kubernetes_schema() {
    let written: Value = yaml_serde::from_str(MANIFEST).unwrap();
    let pod: Pod = serde_json::from_value(written.clone()).unwrap();
    assert_eq!(serde_json::to_value(pod).unwrap(), written);
}

#[test]
fn the_manifests_arguments_install_what_it_says() {
    let pod: Pod = yaml_serde::from_str(MANIFEST).unwrap();
    let containers = pod.spec.unwrap().init_containers.unwrap();
    let arguments = containers[0].args.clone().unwrap().join(" ");
    let namespace = Namespace::new();
    install(&namespace, &arguments);
    let rules = saved(&namespace, "nft");
    for part in ["--to-ports 4143", "--to-ports 4140", "--uid-owner 2102", "--dports 4190,4191"] {
        assert_eq!(rules.matches(part).count(), 2, "{part} in\n{rules}");
    }
}
