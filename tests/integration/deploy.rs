//! The manifest in deploy/, and the Dockerfile.

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

/// An image that is built by hand has labels, too.
#[test]
fn the_dockerfile_says_of_images_what_cargo_says_of_the_program() {
    let dockerfile = include_str!("../../Dockerfile");
    let (global, stages) = dockerfile.split_once("\nFROM ").unwrap();
    for argument in [
        format!("VERSION={}", env!("CARGO_PKG_VERSION")),
        format!("SOURCE={}", env!("CARGO_PKG_REPOSITORY")),
        "LICENSES=GPL-3.0-or-later".to_owned(),
    ] {
        assert!(global.lines().any(|line| line.strip_prefix("ARG ") == Some(&argument)), "{argument}");
        // A stage takes the default by naming the argument.
        let (name, _) = argument.split_once('=').unwrap();
        let named = stages.lines().filter(|line| line.strip_prefix("ARG ") == Some(name)).count();
        assert_eq!(named, 3, "{name}");
    }
}
