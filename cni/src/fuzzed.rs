//! The readers of foreign input, for the fuzzer: standard input, `CNI_ARGS`, annotations and kubeconfigs.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use pod::{Configuration, Decision, Error, Given, Object, Pod, PodName, ServiceSpec};
use proxy_init::internal::plan;
use proxy_init::log::escaped;
use ureq::tls::Certificate;

use crate::authority::usable;
use crate::command::pod_in;
use crate::kubeconfig::Kubeconfig;
use crate::plugin;
use crate::version::{Version, result};

/// Feeds one input to every reader.
pub fn read_all(input: &[u8]) {
    match Configuration::read(input) {
        Ok(configuration) => {
            for version in Version::ALL {
                if let Ok(text) = result(version, configuration.previous.as_deref()) {
                    assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok_and(|value| value.is_object()));
                }
            }
            if let Ok(config) = configuration.config() {
                let _ = plan(&configuration.install(config).config);
            }
        }
        Err(error) => assert!(matches!(error, Error::NotJson(_) | Error::Configuration { .. }), "{error}"),
    }
    read_objects(input);
    let _ = usable(vec![Certificate::from_der(input).to_owned()], Duration::ZERO);
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    if let Ok(Some(pod)) = pod_in(text) {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-./".contains(&byte);
        assert!(pod.to_string().bytes().all(plain), "{pod}");
        assert!(!pod.to_string().contains(".."), "{pod}");
    }
    let _ = Kubeconfig::parse(text, Path::new("/nonexistent"));
    read_annotations(text);
    // As a whole, with the same for every variable. There is no such network namespace, so nothing is installed.
    for verb in ["ADD", "CHECK", "DEL", "GC", "VERSION"] {
        let environment = |name: &str| -> Option<OsString> {
            Some(match name {
                "CNI_COMMAND" => verb.into(),
                "CNI_NETNS" => "/nonexistent".into(),
                "CNI_CONTAINERID" | "CNI_IFNAME" => "x".into(),
                _ => text.into(),
            })
        };
        let outcome = plugin::run(&environment, || Ok(input.to_vec()));
        let printed = serde_json::from_str::<serde_json::Value>(&outcome.stdout);
        let is_error = printed.is_ok_and(|object| object.get("code").is_some() && object.get("msg").is_some());
        assert!(outcome.code == 0 || is_error, "{}", outcome.stdout);
    }
}

/// The answers of the API server.
fn read_objects(input: &[u8]) {
    if let Ok(pod) = serde_json::from_slice::<Pod>(input) {
        let _ = (pod.check(), pod.proxy());
    }
    let _ = serde_json::from_slice::<Object>(input);
    let _ = serde_json::from_slice::<Object<ServiceSpec>>(input);
}

/// A pod that has this value in each annotation.
fn read_annotations(value: &str) {
    let configuration = r#"{"linkerd": {"incoming-proxy-port": 4143, "outgoing-proxy-port": 4140}}"#;
    let (Ok(configuration), Ok(name)) = (Configuration::read(configuration.as_bytes()), PodName::new("a", "b")) else {
        return;
    };
    for key in pod::keys() {
        let annotations = [("linkerd.io/proxy-version", "x"), (key, value)];
        let given: Given = annotations.map(|(key, value)| (key.to_owned(), value.to_owned())).into_iter().collect();
        match pod::by_annotations(&configuration, &name, given) {
            Ok(Decision::Redirect(config)) => drop(plan(&config)),
            Ok(Decision::Leave(_)) => {}
            Err(error) => {
                let message = error.to_string();
                assert!(message.len() < 4000 && escaped(&message) == message, "{message:?}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lab::network::seed;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    #[test]
    fn the_corpus() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/cni");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            read_all(&std::fs::read(entry.unwrap().path()).unwrap());
            count += 1;
        }
        assert!(count > 3, "{count} files");
    }

    /// Damaged entries of the corpus.
    fn any_damage() -> impl Strategy<Value = Vec<u8>> {
        let files: Vec<Vec<u8>> = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/cni"))
            .unwrap()
            .map(|entry| std::fs::read(entry.unwrap().path()).unwrap())
            .collect();
        let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
        (prop::sample::select(files), damage, any::<prop::sample::Index>()).prop_map(|(mut bytes, damage, end)| {
            for (index, byte) in damage {
                let index = index.index(bytes.len());
                bytes[index] = byte;
            }
            bytes.truncate(end.index(bytes.len() + 1));
            bytes
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            rng_seed: RngSeed::Fixed(seed()),
            ..ProptestConfig::default()
        })]

        #[test]
        fn no_bytes_make_it_panic(input: Vec<u8>) {
            read_all(&input);
        }

        #[test]
        fn no_damage_makes_it_panic(input in any_damage()) {
            read_all(&input);
        }
    }
}
