//! The configuration of the CNI plugin, as a runtime hands it over.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use proxy_init::{
    Config, Form, Install, InvalidValue, ModeChoice, PartialConfig, PortRange, SETTINGS, Setting, list_items,
};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::error::Category;
use serde_json::value::RawValue;
use serde_json::{Map, Value, from_value};

use crate::annotations::Given;
use crate::error::Error;
use crate::name::PodName;
use crate::object::or_default;

/// A configuration, its values checked. Keys that the plugin doesn't know are ignored. docs/cni.md explains each.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "docs/cni.md says what each key is")]
pub struct Configuration {
    #[serde(rename = "cniVersion")]
    pub version: Option<String>,
    pub name: Option<String>,
    pub log_level: Option<String>,
    pub log_format: Option<String>,
    #[serde(rename = "prevResult")]
    pub previous: Option<Box<RawValue>>,
    #[serde(deserialize_with = "or_default")]
    kubernetes: Kubernetes,
    #[serde(rename = "runtimeConfig", deserialize_with = "or_default")]
    runtime: Runtime,
    #[serde(rename = "linkerd", deserialize_with = "or_default")]
    members: Map<String, Value>,
    #[serde(skip)]
    pub linkerd: Linkerd,
    /// The rules for a pod without annotations; these may change the rules, and name ports of the proxy that are missing.
    #[serde(skip)]
    pub(crate) rules: PartialConfig,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Kubernetes {
    kubeconfig: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Runtime {
    /// None if the runtime handed over nothing. Of a pod without annotations, it hands over `null`, which is Go's empty
    /// map.
    #[serde(rename = "io.kubernetes.cri.pod-annotations", deserialize_with = "handed_over")]
    annotations: Option<Given>,
}

/// The part of the object `linkerd` that is no setting of rules.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
#[allow(missing_docs, reason = "docs/cni.md says what each key is")]
pub struct Linkerd {
    pub simulate: bool,
    use_wait_flag: bool,
    #[serde(deserialize_with = "mode")]
    iptables_mode: Option<ModeChoice>,
    no_fallback: bool,
    pub pod_info: PodInfo,
    control_plane_namespace: Option<String>,
    api_server_ports: Option<Vec<Ports>>,
    agent: String,
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
    /// Reads the runtime's text.
    ///
    /// # Errors
    /// [`Error::NotJson`]; [`Error::Configuration`], which names the key.
    pub fn read(stdin: &[u8]) -> Result<Self, Error> {
        let mut reader = serde_json::Deserializer::from_slice(stdin);
        let mut configuration: Self = tracked(&mut reader, "")?;
        reader.end().map_err(Error::NotJson)?;
        // As upstream's plugin, unlike linkerd-init.
        configuration.rules.config.ipv6 = false;
        let mut members = std::mem::take(&mut configuration.members);
        members.retain(|_, value| !value.is_null());
        for setting in SETTINGS {
            if let Some(value) = members.remove(setting.key()) {
                set(setting, &mut configuration.rules, value)?;
            }
        }
        configuration.linkerd = tracked(Value::Object(members), "linkerd.")?;
        Ok(configuration)
    }

    /// The path of the kubeconfig.
    pub fn kubeconfig(&self) -> Option<&Path> {
        self.kubernetes.kubeconfig.as_deref().filter(|path| !path.as_os_str().is_empty())
    }

    /// The annotations that the runtime handed over; none if it handed over nothing.
    pub fn annotations(&self) -> Option<&Given> {
        self.runtime.annotations.as_ref()
    }

    /// The namespace of Linkerd's control plane.
    pub(crate) fn control_plane_namespace(&self) -> &str {
        self.linkerd.control_plane_namespace.as_deref().unwrap_or("linkerd")
    }

    /// The ports of the API server, where it doesn't tell them; if the configuration names none, those that upstream's
    /// plugin takes.
    pub fn api_server_ports(&self) -> Vec<PortRange> {
        match &self.linkerd.api_server_ports {
            Some(items) => items.iter().flat_map(|ports| ports.0.iter().copied()).collect(),
            None => [443, 6443].into_iter().filter_map(|port| PortRange::new(port, port)).collect(),
        }
    }

    /// Returns true if a pod is one of the DaemonSet of the node's agent, which `linkerd.agent` names as
    /// NAMESPACE/NAME. Such a pod has to start whatever the API server says, for it is what renews the plugin's token.
    pub fn is_agent(&self, pod: &PodName) -> bool {
        let Some((namespace, name)) = self.linkerd.agent.split_once('/') else {
            return false;
        };
        // A DaemonSet's pods have its name, a dash, and five letters or digits.
        let rest = pod.name().strip_prefix(name).and_then(|rest| rest.strip_prefix('-'));
        let is_its = |rest: &str| rest.len() == 5 && rest.bytes().all(|byte| byte.is_ascii_alphanumeric());
        pod.namespace() == namespace && rest.is_some_and(is_its)
    }

    /// The rules for a pod that has no annotations.
    ///
    /// # Errors
    /// [`Error::Configuration`]: one of the proxy's two ports is missing.
    pub fn config(&self) -> Result<Config, Error> {
        finished(self.rules.clone())
    }

    /// The way to install these rules.
    pub fn install(&self, config: Config) -> Install {
        let mut install = Install::new(config);
        install.mode = self.linkerd.iptables_mode.unwrap_or(ModeChoice::Default);
        install.no_fallback = self.linkerd.no_fallback;
        install.wait_for_lock = self.linkerd.use_wait_flag;
        install
    }
}

/// Reads a value; an error names its key, which begins like this.
fn tracked<'de, T: Deserialize<'de>, D>(reader: D, prefix: &str) -> Result<T, Error>
where
    D: Deserializer<'de, Error = serde_json::Error>,
{
    serde_path_to_error::deserialize(reader).map_err(|error| {
        let key = format!("{prefix}{}", error.path());
        let reason = error.into_inner();
        match reason.classify() {
            Category::Data => wrong(&key, reason),
            _ => Error::NotJson(reason),
        }
    })
}

/// Reads the value of a setting of rules, as its flag has it. An item of a list that is without text doesn't count.
fn set(setting: &Setting, rules: &mut PartialConfig, value: Value) -> Result<(), Error> {
    let key = format!("linkerd.{}", setting.key());
    let items = match setting.form {
        Form::Number | Form::Switch => vec![(key, value)],
        Form::Numbers | Form::Texts => {
            let items: Vec<Value> = from_value(value).map_err(|error| wrong(&key, error))?;
            items.into_iter().enumerate().map(|(index, item)| (format!("{key}[{index}]"), item)).collect()
        }
    };
    for (key, item) in items {
        let text = match setting.form {
            Form::Number | Form::Numbers => from_value(item).map(|number: i64| number.to_string()),
            Form::Switch => from_value(item).map(|is_on: bool| is_on.to_string()),
            Form::Texts => from_value(item),
        };
        let text = text.map_err(|error| wrong(&key, error))?;
        if list_items(&text).next().is_some() {
            setting.read(rules, &text).map_err(|invalid| wrong(&key, invalid))?;
        }
    }
    Ok(())
}

/// Reads a mode by its name, as `--iptables-mode` takes it. An empty one is none.
fn mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ModeChoice>, D::Error> {
    let name = String::deserialize(deserializer)?;
    let name = name.trim();
    let mode = ModeChoice::from_name(name);
    if mode.is_none() && !name.is_empty() {
        return Err(D::Error::custom(InvalidValue::ModeChoice(name.to_owned())));
    }
    Ok(mode)
}

/// An item of a list of ports, which may be such a list itself.
#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct Ports(Vec<PortRange>);

impl TryFrom<String> for Ports {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        list_items(&text).map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

/// The config of such rules.
///
/// # Errors
/// [`Error::Configuration`]: one of the proxy's two ports is missing.
pub(crate) fn finished(rules: PartialConfig) -> Result<Config, Error> {
    let config = rules.finish();
    config.map_err(|flags| {
        wrong(&format!("linkerd.{}", flags.join(" and linkerd.")), "the proxy's port, from 1 to 65535, was expected")
    })
}

fn wrong(key: &str, reason: impl Display) -> Error {
    Error::Configuration { key: key.to_owned(), reason: reason.to_string() }
}

/// Reads annotations, or the `null` in their place.
fn handed_over<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Given>, D::Error> {
    Ok(Some(Option::deserialize(deserializer)?.unwrap_or_default()))
}
