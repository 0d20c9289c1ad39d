//! The network configuration that the runtime hands over on standard input.

use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use proxy_init::log::{Format, Level};
use proxy_init::{Config, IdRange, Install, Interface, InvalidValue, ModeChoice, Port, PortRange, Subnet};
use serde::de::value::{MapAccessDeserializer, StringDeserializer};
use serde::de::{self, DeserializeSeed, IntoDeserializer as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::error::Category;
use serde_json::value::RawValue;

use crate::annotations::Given;
use crate::error::Error;
use crate::owner::Owner;
use crate::pod::PodName;
use crate::version::Version;

/// A network configuration, its values checked. Keys that the plugin doesn't know are ignored. docs/cni.md explains
/// each.
#[derive(Debug, Deserialize)]
pub struct Configuration {
    #[serde(rename = "cniversion")]
    version: Option<String>,
    name: Option<String>,
    log_level: Option<String>,
    log_format: Option<String>,
    #[serde(rename = "prevresult")]
    previous: Option<Box<RawValue>>,
    kubernetes: Option<Object<Kubernetes>>,
    linkerd: Option<Object<Linkerd>>,
    #[serde(rename = "runtimeconfig")]
    runtime: Option<Object<Runtime>>,
}

#[derive(Debug, Deserialize)]
struct Kubernetes {
    kubeconfig: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
struct Runtime {
    /// The outer `Option` is whether the runtime handed anything over: a pod without annotations is `null` (Go's empty
    /// map).
    #[serde(rename = "io.kubernetes.cri.pod-annotations", default, deserialize_with = "present")]
    annotations: Option<Option<Given>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Linkerd {
    incoming_proxy_port: Option<Number<Port>>,
    outgoing_proxy_port: Option<Number<Port>>,
    proxy_uid: Option<Number<Owner>>,
    proxy_gid: Option<Number<Owner>>,
    ports_to_redirect: Option<Vec<Number<Port>>>,
    inbound_ports_to_ignore: Option<Vec<Text<PortRange>>>,
    outbound_ports_to_ignore: Option<Vec<Text<PortRange>>>,
    subnets_to_ignore: Option<Vec<Text<Subnet>>>,
    outbound_subnets_to_ignore: Option<Vec<Text<Subnet>>>,
    outbound_ports_to_redirect: Option<Vec<Text<PortRange>>>,
    outbound_subnets_to_redirect: Option<Vec<Text<Subnet>>>,
    skip_uid: Option<Vec<Text<IdRange>>>,
    skip_gid: Option<Vec<Text<IdRange>>>,
    inbound_interfaces_to_ignore: Option<Vec<Text<Interface>>>,
    outbound_interfaces_to_ignore: Option<Vec<Text<Interface>>>,
    simulate: Option<bool>,
    use_wait_flag: Option<bool>,
    iptables_mode: Option<Text<NamedChoice>>,
    no_fallback: Option<bool>,
    ipv6: Option<bool>,
    pod_info: Option<PodInfo>,
    control_plane_namespace: Option<String>,
    api_server_ports: Option<Vec<Text<PortRange>>>,
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
        let Object(read) = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
            let key = error.path().to_string();
            let reason = error.into_inner();
            match reason.classify() {
                Category::Data => Error::Configuration { key, reason: reason.to_string() },
                _ => Error::NotJson(reason),
            }
        })?;
        reader.end().map_err(Error::NotJson)?;
        Ok(read)
    }

    /// The version of the specification that it is written for.
    ///
    /// # Errors
    /// [`Error::Version`]: the plugin doesn't know that one, or none is named.
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
        self.linkerd()?.log_socket.as_deref()
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
        let path = self.kubernetes.as_ref().and_then(|it| it.0.kubeconfig.clone());
        path.filter(|path| !path.as_os_str().is_empty())
            .ok_or_else(|| missing("kubernetes.kubeconfig", "the path of a kubeconfig was expected"))
    }

    /// Where the plugin learns about pods.
    pub fn pod_info(&self) -> PodInfo {
        self.linkerd().and_then(|it| it.pod_info).unwrap_or_default()
    }

    /// Whether ADD only prints the rules.
    pub fn simulates(&self) -> bool {
        self.linkerd().and_then(|it| it.simulate).unwrap_or_default()
    }

    /// The annotations that the runtime handed over; none if it handed over nothing.
    pub fn annotations(&self) -> Option<Given> {
        let handed_over = self.runtime.as_ref()?.0.annotations.as_ref()?;
        Some(handed_over.clone().unwrap_or_default())
    }

    /// The namespace of Linkerd's control plane.
    pub fn control_plane_namespace(&self) -> &str {
        let named = self.linkerd().and_then(|it| it.control_plane_namespace.as_deref());
        named.unwrap_or("linkerd")
    }

    /// Whether a pod is one of the DaemonSet of the node's agent, which `linkerd.agent` names as NAMESPACE/NAME. Such a
    /// pod has to start whatever the API server says, for it is what renews the plugin's token.
    pub fn is_agent(&self, pod: &PodName) -> bool {
        let agent = self.linkerd().and_then(|it| it.agent.as_deref());
        let Some((namespace, name)) = agent.and_then(|agent| agent.split_once('/')) else {
            return false;
        };
        // A DaemonSet's pods have its name, a dash, and five letters or digits.
        let rest = pod.name().strip_prefix(name).and_then(|rest| rest.strip_prefix('-'));
        let is_its = |rest: &str| rest.len() == 5 && rest.bytes().all(|byte| byte.is_ascii_alphanumeric());
        pod.namespace() == namespace && rest.is_some_and(is_its)
    }

    /// The ports of the API server, where it isn't asked for them; if the configuration names none, 443 and 6443.
    pub fn api_server_ports(&self) -> Vec<PortRange> {
        match self.linkerd().and_then(|it| it.api_server_ports.as_deref()) {
            Some(ports) => flat(ports),
            None => api_server_ports_by_default(),
        }
    }

    /// The rules for a pod that has no annotations.
    ///
    /// # Errors
    /// [`Error::Configuration`]: one of the proxy's two ports is missing.
    pub fn config(&self) -> Result<Config, Error> {
        let default = Linkerd::default();
        let linkerd = self.linkerd().unwrap_or(&default);
        let port = |key: &str, port: Option<Number<Port>>| {
            port.map(|it| it.0)
                .ok_or_else(|| missing(&format!("linkerd.{key}"), "the proxy's port, from 1 to 65535, was expected"))
        };
        let mut config = Config::new(
            port("incoming-proxy-port", linkerd.incoming_proxy_port)?,
            port("outgoing-proxy-port", linkerd.outgoing_proxy_port)?,
        );
        config.proxy_uid = linkerd.proxy_uid.and_then(|it| it.0.0);
        config.proxy_gid = linkerd.proxy_gid.and_then(|it| it.0.0);
        config.redirected_ports = linkerd.ports_to_redirect.iter().flatten().map(|it| it.0).collect();
        config.ignored_inbound_ports = flat(linkerd.inbound_ports_to_ignore.as_deref().unwrap_or_default());
        config.ignored_outbound_ports = flat(linkerd.outbound_ports_to_ignore.as_deref().unwrap_or_default());
        config.ignored_inbound_subnets = flat(linkerd.subnets_to_ignore.as_deref().unwrap_or_default());
        config.ignored_outbound_subnets = flat(linkerd.outbound_subnets_to_ignore.as_deref().unwrap_or_default());
        config.redirected_outbound_ports = flat(linkerd.outbound_ports_to_redirect.as_deref().unwrap_or_default());
        config.redirected_outbound_subnets = flat(linkerd.outbound_subnets_to_redirect.as_deref().unwrap_or_default());
        config.ignored_uids = flat(linkerd.skip_uid.as_deref().unwrap_or_default());
        config.ignored_gids = flat(linkerd.skip_gid.as_deref().unwrap_or_default());
        config.ignored_inbound_interfaces = flat(linkerd.inbound_interfaces_to_ignore.as_deref().unwrap_or_default());
        config.ignored_outbound_interfaces = flat(linkerd.outbound_interfaces_to_ignore.as_deref().unwrap_or_default());
        config.ipv6 = linkerd.ipv6.unwrap_or_default();
        Ok(config)
    }

    /// How to install these rules.
    pub fn install(&self, config: Config) -> Install {
        let mut install = Install::new(config);
        let mode = self.linkerd().and_then(|it| it.iptables_mode.as_ref()?.0.as_ref());
        install.mode = mode.map_or(ModeChoice::Default, |mode| mode.0);
        install.no_fallback = self.linkerd().and_then(|it| it.no_fallback).unwrap_or_default();
        install.wait_for_lock = self.linkerd().and_then(|it| it.use_wait_flag).unwrap_or_default();
        install
    }

    fn linkerd(&self) -> Option<&Linkerd> {
        self.linkerd.as_ref().map(|it| &it.0)
    }
}

/// The socket of the node's agent in a network configuration in which something else is wrong.
pub fn log_socket(stdin: &[u8]) -> Option<PathBuf> {
    let value = serde_json::from_slice::<Value>(stdin).ok()?;
    value.pointer("/linkerd/log-socket")?.as_str().map(PathBuf::from)
}

/// What upstream's plugin takes for the API server's ports where it can't ask: 443 and 6443.
pub fn api_server_ports_by_default() -> Vec<PortRange> {
    [443, 6443].into_iter().filter_map(|port| PortRange::new(port, port)).collect()
}

fn missing(key: &str, reason: &str) -> Error {
    Error::Configuration { key: key.to_owned(), reason: reason.to_owned() }
}

/// The items of a list that aren't empty.
fn flat<T: Clone>(items: &[Text<T>]) -> Vec<T> {
    items.iter().filter_map(|item| item.0.clone()).collect()
}

/// Reads a key that is there, `null` or not.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// A mode by its name, as `--iptables-mode` takes it.
#[derive(Debug, Clone, Copy)]
struct NamedChoice(ModeChoice);

impl FromStr for NamedChoice {
    type Err = InvalidValue;

    fn from_str(name: &str) -> Result<Self, InvalidValue> {
        ModeChoice::from_name(name).map(Self).ok_or_else(|| InvalidValue::ModeChoice(name.to_owned()))
    }
}

/// A JSON object whose keys count in any case, as for Go's encoding/json; fields have them in lower case. What is
/// derived for a struct would take an array too, its values in the order of the fields.
#[derive(Debug)]
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Objects<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Objects<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(InLowerCase(map))).map(Object)
            }
        }

        deserializer.deserialize_map(Objects(PhantomData))
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

/// A JSON number, checked as the flag's text is.
#[derive(Debug, Clone, Copy)]
struct Number<T>(T);

impl<'de, T: FromStr<Err = InvalidValue>> Deserialize<'de> for Number<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Numbers<T>(PhantomData<T>);

        impl<T: FromStr<Err = InvalidValue>> Visitor<'_> for Numbers<T> {
            type Value = Number<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Number<T>, E> {
                number.to_string().parse().map(Number).map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Number<T>, E> {
                number.to_string().parse().map(Number).map_err(E::custom)
            }
        }

        deserializer.deserialize_any(Numbers(PhantomData))
    }
}

/// A JSON string, checked as the flag's text is: blanks and commas around it don't count, and an empty one is none.
#[derive(Debug, Clone)]
struct Text<T>(Option<T>);

impl<'de, T: FromStr<Err = InvalidValue>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Texts<T>(PhantomData<T>);

        impl<T: FromStr<Err = InvalidValue>> Visitor<'_> for Texts<T> {
            type Value = Text<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text<T>, E> {
                let text = text.trim_matches(|character: char| character == ',' || character.is_whitespace());
                let text = Some(text).filter(|text| !text.is_empty());
                text.map(str::parse).transpose().map(Text).map_err(E::custom)
            }
        }

        deserializer.deserialize_str(Texts(PhantomData))
    }
}
