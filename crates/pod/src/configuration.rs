//! The configuration of the CNI plugin, as a runtime hands it over.

use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use proxy_init::log::{Format, Level};
use proxy_init::{Config, Draft, Install, ModeChoice, PortRange};
use serde::de::value::{MapAccessDeserializer, StringDeserializer};
use serde::de::{DeserializeSeed, IntoDeserializer as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::error::Category;
use serde_json::value::RawValue;

use crate::annotations::Given;
use crate::error::Error;
use crate::name::PodName;
use crate::rules::WithoutSettings;
use crate::values::{List, Mode};
use crate::version::Version;

/// A configuration, its values checked. Keys that the plugin doesn't know are ignored. docs/cni.md explains each.
#[derive(Debug, Default, Deserialize)]
pub struct Configuration {
    #[serde(rename = "cniversion")]
    version: Option<String>,
    name: Option<String>,
    log_level: Option<String>,
    log_format: Option<String>,
    #[serde(rename = "prevresult")]
    previous: Option<Box<RawValue>>,
    #[serde(default)]
    kubernetes: Object<Kubernetes>,
    #[serde(default)]
    linkerd: Object<Linkerd>,
    #[serde(rename = "runtimeconfig", default)]
    runtime: Object<Runtime>,
}

#[derive(Debug, Default, Deserialize)]
struct Kubernetes {
    kubeconfig: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
struct Runtime {
    /// None if the runtime handed over nothing. Of a pod without annotations, it hands over `null`, which is Go's empty map.
    #[serde(rename = "io.kubernetes.cri.pod-annotations", default, deserialize_with = "handed_over")]
    annotations: Option<Given>,
}

/// The object `linkerd`: the settings of rules, and everything else.
#[derive(Debug)]
struct Linkerd {
    rules: Draft,
    rest: Rest,
}

impl Default for Linkerd {
    fn default() -> Self {
        let mut rules = Draft::default();
        // As upstream's plugin, unlike linkerd-init.
        rules.config.ipv6 = false;
        Self { rules, rest: Rest::default() }
    }
}

impl<'de> Deserialize<'de> for Linkerd {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;

        impl<'de> Visitor<'de> for Read {
            type Value = Linkerd;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Linkerd, A::Error> {
                let mut linkerd = Linkerd::default();
                let rest = WithoutSettings::new(map, &mut linkerd.rules);
                linkerd.rest = Rest::deserialize(MapAccessDeserializer::new(rest))?;
                Ok(linkerd)
            }
        }

        deserializer.deserialize_map(Read)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Rest {
    simulate: Option<bool>,
    use_wait_flag: Option<bool>,
    iptables_mode: Option<Mode>,
    no_fallback: Option<bool>,
    pod_info: Option<PodInfo>,
    control_plane_namespace: Option<String>,
    api_server_ports: Option<Vec<List<PortRange>>>,
    agent: Option<String>,
    log_socket: Option<PathBuf>,
}

/// Where the plugin learns about pods: `linkerd.pod-info`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PodInfo {
    /// From the API server.
    #[default]
    Api,
    /// From the annotations that the runtime hands over.
    Annotations,
}

impl Configuration {
    /// Reads what the runtime wrote.
    ///
    /// # Errors
    /// [`Error::NotJson`]; [`Error::Configuration`], which names the key.
    pub fn read(stdin: &[u8]) -> Result<Self, Error> {
        let mut reader = serde_json::Deserializer::from_slice(stdin);
        let read: Object<Self> = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
            let key = error.path().to_string();
            let reason = error.into_inner();
            match reason.classify() {
                Category::Data => Error::Configuration { key, reason: reason.to_string() },
                _ => Error::NotJson(reason),
            }
        })?;
        reader.end().map_err(Error::NotJson)?;
        Ok(read.0)
    }

    /// The version of the specification that the configuration is written for.
    ///
    /// # Errors
    /// [`Error::Version`]: the plugin doesn't know this version, or none is named.
    pub fn version(&self) -> Result<Version, Error> {
        let asked = self.version.as_deref().unwrap_or_default();
        Version::named(asked).ok_or_else(|| Error::Version { asked: asked.to_owned() })
    }

    /// Checks the network's name, which the specification requires and this plugin has no use for.
    ///
    /// # Errors
    /// [`Error::Configuration`]
    pub fn check_name(&self) -> Result<(), Error> {
        let name = self.name.as_deref().unwrap_or_default();
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        if name.starts_with(|first: char| first.is_ascii_alphanumeric()) && name.bytes().all(is_plain) {
            return Ok(());
        }
        Err(missing(
            "name",
            "the network's name was expected: a letter or digit, then letters, digits, dots, dashes and underscores",
        ))
    }

    /// The least important lines that the log takes: as upstream's, `debug` or `info`, and warnings for anything else.
    pub fn log_level(&self) -> Level {
        match self.log_level.as_deref().map(str::to_ascii_lowercase).as_deref() {
            Some("debug") => Level::Debug,
            Some("info") => Level::Info,
            _ => Level::Warning,
        }
    }

    /// How the log's lines are written: `json`, and plain for anything else.
    pub fn log_format(&self) -> Format {
        match self.log_format.as_deref() {
            Some(word) if word.eq_ignore_ascii_case("json") => Format::Json,
            _ => Format::Plain,
        }
    }

    /// The socket of the node's agent, which shows the log's lines in its own.
    pub fn log_socket(&self) -> Option<&Path> {
        self.linkerd.0.rest.log_socket.as_deref()
    }

    /// The result of the plugin before this one in the list.
    pub fn previous(&self) -> Option<&RawValue> {
        self.previous.as_deref()
    }

    /// The path of the kubeconfig.
    ///
    /// # Errors
    /// [`Error::Configuration`]: there is none.
    pub fn kubeconfig(&self) -> Result<PathBuf, Error> {
        let path = self.kubernetes.0.kubeconfig.clone().filter(|path| !path.as_os_str().is_empty());
        path.ok_or_else(|| missing("kubernetes.kubeconfig", "the path of a kubeconfig was expected"))
    }

    /// Where the plugin learns about pods.
    pub fn pod_info(&self) -> PodInfo {
        self.linkerd.0.rest.pod_info.unwrap_or_default()
    }

    /// Returns true if ADD only prints the rules.
    pub fn simulates(&self) -> bool {
        self.linkerd.0.rest.simulate.unwrap_or_default()
    }

    /// The annotations that the runtime handed over; none if it handed over nothing.
    pub fn annotations(&self) -> Option<Given> {
        self.runtime.0.annotations.clone()
    }

    /// The namespace of Linkerd's control plane.
    pub fn control_plane_namespace(&self) -> &str {
        self.linkerd.0.rest.control_plane_namespace.as_deref().unwrap_or("linkerd")
    }

    /// Returns true if a pod is one of the DaemonSet of the node's agent, which `linkerd.agent` names as
    /// NAMESPACE/NAME. Such a pod has to start whatever the API server says, for it is what renews the plugin's token.
    pub fn is_agent(&self, pod: &PodName) -> bool {
        let agent = self.linkerd.0.rest.agent.as_deref().unwrap_or_default();
        let Some((namespace, name)) = agent.split_once('/') else {
            return false;
        };
        // A DaemonSet's pods have its name, a dash, and five letters or digits.
        let rest = pod.name().strip_prefix(name).and_then(|rest| rest.strip_prefix('-'));
        let is_its = |rest: &str| rest.len() == 5 && rest.bytes().all(|byte| byte.is_ascii_alphanumeric());
        pod.namespace() == namespace && rest.is_some_and(is_its)
    }

    /// The ports of the API server, where it isn't asked for them; if the configuration names none, 443 and 6443.
    pub fn api_server_ports(&self) -> Vec<PortRange> {
        match &self.linkerd.0.rest.api_server_ports {
            Some(ports) => flat(ports),
            None => api_server_ports_by_default(),
        }
    }

    /// The rules for a pod that has no annotations.
    ///
    /// # Errors
    /// [`Error::Configuration`]: one of the proxy's two ports is missing.
    pub fn config(&self) -> Result<Config, Error> {
        finished(self.rules())
    }

    /// The same; a pod's annotations may change them, and name the ports that are missing.
    pub(crate) fn rules(&self) -> Draft {
        self.linkerd.0.rules.clone()
    }

    /// How to install these rules.
    pub fn install(&self, config: Config) -> Install {
        let linkerd = &self.linkerd.0.rest;
        let mut install = Install::new(config);
        install.mode = linkerd.iptables_mode.map_or(ModeChoice::Default, |mode| mode.0);
        install.no_fallback = linkerd.no_fallback.unwrap_or_default();
        install.wait_for_lock = linkerd.use_wait_flag.unwrap_or_default();
        install
    }
}

/// The socket of the node's agent in a network configuration in which something else is wrong.
pub fn log_socket(stdin: &[u8]) -> Option<PathBuf> {
    let value = serde_json::from_slice::<Value>(stdin).ok()?;
    value.pointer("/linkerd/log-socket")?.as_str().map(PathBuf::from)
}

/// The API server's ports where the plugin can't ask, as upstream's plugin has them: 443 and 6443.
pub(crate) fn api_server_ports_by_default() -> Vec<PortRange> {
    [443, 6443].into_iter().filter_map(|port| PortRange::new(port, port)).collect()
}

fn missing(key: &str, reason: &str) -> Error {
    Error::Configuration { key: key.to_owned(), reason: reason.to_owned() }
}

/// The config of such rules.
///
/// # Errors
/// [`Error::Configuration`]: one of the proxy's two ports is missing.
pub(crate) fn finished(rules: Draft) -> Result<Config, Error> {
    let config = rules.finish();
    config.map_err(|flag| missing(&format!("linkerd.{flag}"), "the proxy's port, from 1 to 65535, was expected"))
}

/// The items of several lists.
fn flat<'a, T: Clone + 'a>(lists: impl IntoIterator<Item = &'a List<T>>) -> Vec<T> {
    lists.into_iter().flat_map(|list| list.0.iter().cloned()).collect()
}

/// Reads annotations, or the `null` in their place.
fn handed_over<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Given>, D::Error> {
    Ok(Some(Option::deserialize(deserializer)?.unwrap_or_default()))
}

/// A JSON object whose keys count in any case, as for Go's encoding/json; fields have them in lower case. The code that serde
/// derives for a struct would take an array too, its values in the order of the fields.
#[derive(Debug, Default)]
struct Object<T>(T);

impl<'de, T: Default + Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Objects<T>(PhantomData<T>);

        impl<'de, T: Default + Deserialize<'de>> Visitor<'de> for Objects<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(InLowerCase(map))).map(Object)
            }

            fn visit_unit<E>(self) -> Result<Object<T>, E> {
                Ok(Object::default())
            }
        }

        deserializer.deserialize_any(Objects(PhantomData))
    }
}

/// The members of an object, with their keys in lower case.
struct InLowerCase<A>(A);

impl<'de, A: MapAccess<'de>> MapAccess<'de> for InLowerCase<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        let Some(key) = self.0.next_key::<String>()? else {
            return Ok(None);
        };
        let key: StringDeserializer<A::Error> = key.to_ascii_lowercase().into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.0.next_value_seed(seed)
    }
}
