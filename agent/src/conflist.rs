//! The plugin's entry in network configurations: pure functions from text to text.
//!
//! Keys keep their order, and each value is written as it was read: numbers of any length survive. White space around
//! them doesn't.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use pod::{Configuration, Version};
use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use thiserror::Error;

/// The plugin's type, which is the name of its program.
pub(crate) const PLUGIN: &str = "linkerd-cni";

/// The word in the entry of Linkerd's chart that stands for the kubeconfig's path.
const KUBECONFIG: &str = "__KUBECONFIG_FILEPATH__";

/// The plugin's entry.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry(Value);

impl Entry {
    /// The entry in `CNI_NETWORK_CONFIG`, for a kubeconfig at this path of the node.
    pub fn new(template: &str, kubeconfig: &Path) -> Result<Self, String> {
        let path = kubeconfig.to_str().ok_or("the kubeconfig's path is not UTF-8")?;
        // Within a JSON string.
        let quoted = Value::from(path).to_string();
        let text = template.replace(KUBECONFIG, quoted.trim_matches('"'));
        let value: Value = serde_json::from_str(&text).map_err(|error| format!("it is not JSON: {error}"))?;
        match value.get("type") {
            Some(kind) if kind == PLUGIN => Ok(Self(value)),
            _ => Err(format!("it has no \"type\": \"{PLUGIN}\"")),
        }
    }

    /// The shortest there is: enough to take any out again.
    pub(crate) fn bare() -> Self {
        Self(json!({"type": PLUGIN}))
    }

    /// The entry that a list has; none if it has none.
    pub(crate) fn in_list(text: &str) -> Option<Self> {
        let entry = File::read(text).ok()?.plugins().ok()?.into_iter().rfind(|plugin| plugin.is_ours)?;
        Some(Self(serde_json::from_str(entry.text.get()).ok()?))
    }

    /// Sets a key of Linkerd's part of the entry, if there is such a part.
    pub(crate) fn set(&mut self, key: &str, value: &str) {
        if let Some(linkerd) = self.0.get_mut("linkerd").and_then(Value::as_object_mut) {
            linkerd.insert(key.to_owned(), value.into());
        }
    }

    /// Where the plugin learns about a pod, if the entry says so.
    pub(crate) fn pod_info(&self) -> Option<&Value> {
        self.0.pointer("/linkerd/pod-info")
    }

    /// Whether the plugin asks the API server, for which it needs a kubeconfig.
    pub fn needs_kubeconfig(&self) -> bool {
        self.pod_info().is_none_or(|info| info != "annotations")
    }

    /// As the plugin reads it.
    pub fn read(&self) -> Result<Configuration, pod::Error> {
        Configuration::read(self.0.to_string().as_bytes())
    }

    /// The plugin's standard input, where a list with this version has the entry.
    pub(crate) fn configuration(&self, version: &str) -> Value {
        let mut value = self.0.clone();
        if let Some(map) = value.as_object_mut() {
            map.insert("cniVersion".to_owned(), version.into());
            map.insert("name".to_owned(), PLUGIN.into());
        }
        value
    }

    /// As an element of a list, which is four spaces further in.
    fn plugin(&self) -> Result<Plugin, Unusable> {
        let text = format!("{:#}", self.0).replace('\n', "\n    ");
        Ok(Plugin { text: RawValue::from_string(text).map_err(|error| not_json(&error))?, is_ours: true })
    }
}

/// Why a file is left as it is.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum Unusable {
    /// Half written, perhaps.
    #[error("it is not JSON: {0}")]
    NotJson(String),
    /// Neither a list nor a plugin.
    #[error("it names no plugins")]
    NoPlugins,
    /// This element of the list, counted from 0.
    #[error("its plugin {0} is not an object with a type")]
    NotAPlugin(usize),
    /// A list without a name.
    #[error("it has no name")]
    NoName,
    /// A list for another version of the specification than those that the plugin knows, in the plugin's words.
    #[error("{0}")]
    Version(String),
    /// A `.conf` that names the plugin alone.
    #[error("its only plugin is {PLUGIN}, which makes no network")]
    Alone,
}

fn not_json(error: &serde_json::Error) -> Unusable {
    Unusable::NotJson(error.to_string())
}

/// A configuration: its keys in their order, and each value as it is written.
struct File(Vec<(String, Box<RawValue>)>);

/// An element of a list.
struct Plugin {
    text: Box<RawValue>,
    is_ours: bool,
}

impl File {
    fn read(text: &str) -> Result<Self, Unusable> {
        let value: &RawValue = serde_json::from_str(text).map_err(|error| not_json(&error))?;
        if !value.get().starts_with('{') {
            return Err(Unusable::NoPlugins);
        }
        let file: Self = serde_json::from_str(text).map_err(|error| not_json(&error))?;
        let mut seen = BTreeSet::new();
        match file.0.iter().find(|(key, _)| !seen.insert(key)) {
            // Readers differ in which of the two they take.
            Some((key, _)) => Err(Unusable::NotJson(format!("it has {key:?} twice"))),
            None => Ok(file),
        }
    }

    fn get(&self, key: &str) -> Option<&RawValue> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| &**value)
    }

    fn value(&self, key: &str) -> Option<Value> {
        serde_json::from_str(self.get(key)?.get()).ok().filter(|value: &Value| !value.is_null())
    }

    /// The elements of the list. There are some.
    fn plugins(&self) -> Result<Vec<Plugin>, Unusable> {
        #[derive(Deserialize)]
        struct Typed {
            r#type: Value,
        }
        let list = self.get("plugins").ok_or(Unusable::NoPlugins)?;
        let texts: Vec<Box<RawValue>> = serde_json::from_str(list.get()).map_err(|_| Unusable::NoPlugins)?;
        if texts.is_empty() {
            return Err(Unusable::NoPlugins);
        }
        let plugins = texts.into_iter().enumerate().map(|(index, text)| {
            // serde's structs can be read from arrays, too.
            let object = Some(text.get()).filter(|text| text.starts_with('{'));
            let typed = object.and_then(|text| serde_json::from_str::<Typed>(text).ok());
            let is_ours = typed.ok_or(Unusable::NotAPlugin(index))?.r#type == PLUGIN;
            Ok(Plugin { text, is_ours })
        });
        plugins.collect()
    }

    /// The text of the same list with these elements.
    fn with(&self, plugins: &[Plugin]) -> Result<String, Unusable> {
        let text = serde_json::to_string_pretty(&List { file: self, plugins }).map_err(|error| not_json(&error))?;
        Ok(format!("{text}\n"))
    }

    /// Checks that the plugin knows the version in which runtimes call it: newer ones take one of `cniVersions`, if there
    /// are any, and without a version there is an empty one (`NetworkConfFromBytes` in containernetworking/cni).
    fn check_version(&self) -> Result<(), Unusable> {
        let (version, versions) = (self.value("cniVersion"), self.value("cniVersions"));
        let newer = versions.iter().filter_map(Value::as_array).flatten();
        let mut names = version.iter().chain(newer).filter_map(Value::as_str);
        if names.any(|name| Version::named(name).is_some()) {
            return Ok(());
        }
        let asked = version.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
        Err(Unusable::Version(pod::Error::Version { asked }.message()))
    }
}

impl<'de> Deserialize<'de> for File {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;

        impl<'de> Visitor<'de> for Keys {
            type Value = File;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<File, A::Error> {
                let mut file = File(Vec::new());
                while let Some(entry) = map.next_entry()? {
                    file.0.push(entry);
                }
                Ok(file)
            }
        }

        deserializer.deserialize_map(Keys)
    }
}

/// A file with other elements in its list.
struct List<'a> {
    file: &'a File,
    plugins: &'a [Plugin],
}

impl Serialize for List<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.file.0.len()))?;
        for (key, value) in &self.file.0 {
            if key == "plugins" {
                let texts: Vec<&RawValue> = self.plugins.iter().map(|plugin| &*plugin.text).collect();
                map.serialize_entry(key, &texts)?;
            } else {
                map.serialize_entry(key, value)?;
            }
        }
        map.end()
    }
}

/// A list with the entry last in it; none if it is there already.
pub(crate) fn chain(text: &str, entry: &Entry) -> Result<Option<String>, Unusable> {
    let file = File::read(text)?;
    let mut plugins = file.plugins()?;
    file.check_version()?;
    if let Some((last, others)) = plugins.split_last()
        && last.is_ours
        && !others.iter().any(|plugin| plugin.is_ours)
        && !others.is_empty()
        && serde_json::from_str::<Value>(last.text.get()).is_ok_and(|value| value == entry.0)
    {
        return Ok(None);
    }
    plugins.retain(|plugin| !plugin.is_ours);
    if plugins.is_empty() {
        return Err(Unusable::Alone);
    }
    plugins.push(entry.plugin()?);
    file.with(&plugins).map(Some)
}

/// A list without the entry; none if it has none.
pub(crate) fn unchain(text: &str) -> Result<Option<String>, Unusable> {
    let file = File::read(text)?;
    let mut plugins = file.plugins()?;
    let before = plugins.len();
    plugins.retain(|plugin| !plugin.is_ours);
    if plugins.is_empty() {
        return Err(Unusable::Alone);
    }
    if plugins.len() == before {
        return Ok(None);
    }
    file.with(&plugins).map(Some)
}

/// The list that takes the place of a `.conf`, which holds one plugin: as Linkerd's installer makes it (`inject` in
/// internal/cni/conf.go of linkerd2-proxy-init), of version 0.3.1, with the entry after that plugin.
///
/// Upstream takes a `.conf` without a type for a list, and so does this.
pub(crate) fn list(text: &str, entry: &Entry) -> Result<String, Unusable> {
    let file = File::read(text)?;
    match file.value("type") {
        None => Ok(chain(text, entry)?.unwrap_or_else(|| text.to_owned())),
        Some(kind) if kind == PLUGIN => Err(Unusable::Alone),
        Some(_) => {
            let keys = file.0.into_iter().filter(|(key, _)| key != "cniVersion");
            let plugin: BTreeMap<_, _> = keys.collect();
            let plugin = Plugin { text: to_raw_value(&plugin).map_err(|error| not_json(&error))?, is_ours: false };
            let list = File::read(r#"{"cniVersion": "0.3.1", "name": "k8s-pod-network", "plugins": null}"#)?;
            list.with(&[plugin, entry.plugin()?])
        }
    }
}

/// Whether a text names the plugin.
pub(crate) fn names_plugin(text: &str) -> bool {
    matches!(unchain(text), Ok(Some(_)) | Err(Unusable::Alone))
}

/// Whether a runtime that takes this list has the plugin set up pods.
pub(crate) fn has_plugin(text: &str) -> Result<bool, Unusable> {
    let has_plugin = unchain(text)?.is_some();
    let file = File::read(text)?;
    if !matches!(file.value("name"), Some(Value::String(_))) {
        return Err(Unusable::NoName);
    }
    file.check_version()?;
    Ok(has_plugin)
}

/// A program that keeps others' entries out of its file, by the type of its plugin, and the setting that makes it stop
/// (`cni.exclusive` in Cilium's chart; linkerd2's issues 10375 and 11597).
const JEALOUS: [(&str, &str); 1] = [("cilium-cni", "Cilium's agent: set `cni.exclusive=false` in its chart")];

/// Names the program that writes a file, as far as its plugins tell, and the advice about that program.
pub(crate) fn writer(text: &str) -> &'static str {
    let known = JEALOUS.iter().find(|(kind, _)| text.contains(&format!("\"{kind}\"")));
    known.map_or(
        "a program that is not known: see which DaemonSets mount the folder, and set one of them to leave others' entries in",
        |(_, advice)| advice,
    )
}

#[cfg(test)]
mod tests {
    use lab::network::seed;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    fn entry() -> Entry {
        let template = r#"{ "name": "linkerd-cni", "type": "linkerd-cni",
            "kubernetes": {"kubeconfig": "__KUBECONFIG_FILEPATH__"}, "linkerd": {"incoming-proxy-port": 4143} }"#;
        Entry::new(template, Path::new("/etc/cni/net.d/a \"quoted\" name")).unwrap()
    }

    fn types(text: &str) -> Vec<String> {
        let value: Value = serde_json::from_str(text).unwrap();
        let plugins = value["plugins"].as_array().unwrap().iter();
        plugins.map(|plugin| plugin["type"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn an_entry_is_an_object_of_the_plugins_type() {
        let configuration = entry().configuration("1.1.0");
        assert_eq!(configuration["kubernetes"]["kubeconfig"], "/etc/cni/net.d/a \"quoted\" name");
        assert_eq!(configuration["cniVersion"], "1.1.0");
        for bad in ["", "{", "[]", "1", "{}", r#"{"type": "calico"}"#] {
            Entry::new(bad, Path::new("/k")).unwrap_err();
        }
    }

    #[test]
    fn the_plugin_is_told_whose_pods_the_agents_are() {
        let mut entry = entry();
        entry.set("agent", "linkerd-cni/linkerd-cni");
        let list = chain(r#"{"cniVersion": "1.0.0", "plugins": [{"type": "calico"}]}"#, &entry).unwrap().unwrap();
        let value: Value = serde_json::from_str(&list).unwrap();
        assert_eq!(value["plugins"][1]["linkerd"]["agent"], "linkerd-cni/linkerd-cni");
        assert_eq!(value["plugins"][1]["linkerd"]["incoming-proxy-port"], 4143);
        assert_eq!(chain(&list, &entry).unwrap(), None);
    }

    #[test]
    fn a_list_gets_the_entry_last_and_keeps_the_order_of_its_keys_and_its_numbers() {
        let before = "{ \"cniVersion\": \"1.0.0\", \"plugins\" : [ {\"type\":\"calico\", \"big\": 123456789012345678901234567890, \"b\":1,\"a\":1e400} ,\n{\"type\":\"portmap\"}  ] , \"z\": 1 }\n";
        let without = "{\n  \"cniVersion\": \"1.0.0\",\n  \"plugins\": [\n    {\"type\":\"calico\", \"big\": 123456789012345678901234567890, \"b\":1,\"a\":1e400},\n    {\"type\":\"portmap\"}\n  ],\n  \"z\": 1\n}\n";
        let after = chain(before, &entry()).unwrap().unwrap();
        assert_eq!(types(&after.replace("1e400", "1")), ["calico", "portmap", PLUGIN]);
        assert_eq!(chain(&after, &entry()).unwrap(), None);
        assert_eq!(unchain(&after).unwrap().as_deref(), Some(without));
        assert_eq!(unchain(before).unwrap(), None);
        // There and back again, nothing is added.
        let again = chain(without, &entry()).unwrap().unwrap();
        assert_eq!(again, after);
    }

    #[test]
    fn wherever_the_entry_was_and_however_often_it_is_last_and_once_afterwards() {
        for before in [
            r#"{"cniVersion": "1.0.0", "plugins": [{"type": "linkerd-cni"}, {"type": "calico"}]}"#,
            r#"{"cniVersion": "1.0.0", "plugins": [{"type": "calico"}, {"type": "linkerd-cni", "old": true}]}"#,
            r#"{"cniVersion": "1.0.0", "plugins": [{"type": "linkerd-cni"}, {"type": "linkerd-cni"}, {"type": "calico"}, {"type": "linkerd-cni"}]}"#,
        ] {
            let after = chain(before, &entry()).unwrap().unwrap();
            assert_eq!(types(&after), ["calico", PLUGIN], "{before}");
            assert_eq!(types(&unchain(before).unwrap().unwrap()), ["calico"]);
            assert!(names_plugin(before));
        }
    }

    #[test]
    fn what_is_no_list_is_left_alone_and_the_reason_is_told() {
        let not_json = |text: &str| matches!(chain(text, &entry()), Err(Unusable::NotJson(_)));
        for text in [
            "",
            "{",
            "{\"plugins\": [{\"type\": \"a\"}",
            "{\"plugins\": []} x",
            "{\"plugins\": [], \"plugins\": []}",
            "{\"a\": 1, \"a\": 2}",
        ] {
            assert!(not_json(text), "{text}");
        }
        for text in [
            "{}",
            "[]",
            "1",
            "[[1]]",
            r#"{"plugins": []}"#,
            r#"{"plugins": {}}"#,
            r#"{"plugins": null}"#,
            r#"{"type": "a"}"#,
        ] {
            assert_eq!(chain(text, &entry()), Err(Unusable::NoPlugins), "{text}");
        }
        for text in [r#"{"plugins": [1, 2]}"#, r#"{"plugins": [{}]}"#, r#"{"plugins": [["linkerd-cni"]]}"#] {
            assert_eq!(chain(text, &entry()), Err(Unusable::NotAPlugin(0)), "{text}");
        }
        let alone = r#"{"cniVersion": "1.0.0", "plugins": [{"type": "linkerd-cni"}]}"#;
        assert_eq!(chain(alone, &entry()), Err(Unusable::Alone));
        assert_eq!(unchain(alone), Err(Unusable::Alone));
    }

    #[test]
    fn a_list_of_a_version_that_the_plugin_does_not_know_is_left_alone() {
        let refused = |asked: &str| {
            Err(Unusable::Version(format!(
                "cniVersion {asked:?} is not supported: use one of 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0"
            )))
        };
        for (versions, asked) in [
            ("", ""),
            (r#""cniVersion": null,"#, ""),
            (r#""cniVersion": 1,"#, ""),
            (r#""cniVersion": "0.1.0","#, "0.1.0"),
            (r#""cniVersion": "0.2.0", "cniVersions": ["0.1.0"],"#, "0.2.0"),
            (r#""cniVersion": "9.9.9", "cniVersions": "1.0.0","#, "9.9.9"),
        ] {
            for entry_before in ["", r#", {"type": "linkerd-cni"}"#] {
                let text = format!(r#"{{{versions} "name": "n", "plugins": [{{"type": "a"}}{entry_before}]}}"#);
                assert_eq!(chain(&text, &entry()), refused(asked), "{text}");
                assert_eq!(list(&text, &entry()).map(Some), refused(asked), "{text}");
                assert_eq!(has_plugin(&text).map(|_| None), refused(asked), "{text}");
                assert_eq!(unchain(&text).unwrap().is_some(), !entry_before.is_empty(), "{text}");
            }
        }
        for versions in [r#""cniVersions": ["0.4.0", "9.9.9"]"#, r#""cniVersion": "0.2.0", "cniVersions": ["1.1.0"]"#] {
            let text = format!(r#"{{{versions}, "name": "n", "plugins": [{{"type": "a"}}]}}"#);
            assert_eq!(has_plugin(&chain(&text, &entry()).unwrap().unwrap()), Ok(true), "{text}");
        }
    }

    #[test]
    fn a_conf_becomes_a_list_as_upstream_makes_it() {
        let conf =
            r#"{"type": "bridge", "cniVersion": "0.2.0", "mtu": 12345678901234567890123, "ipam": {"type": "x"}}"#;
        let text = list(conf, &entry()).unwrap();
        assert!(text.contains("12345678901234567890123"));
        let value: Value = serde_json::from_str(&text.replace("12345678901234567890123", "1")).unwrap();
        assert_eq!(
            value,
            serde_json::json!({
                "name": "k8s-pod-network", "cniVersion": "0.3.1",
                "plugins": [{"type": "bridge", "mtu": 1, "ipam": {"type": "x"}}, entry().0],
            })
        );
        assert_eq!(chain(&text, &entry()).unwrap(), None);
        assert_eq!(list(r#"{"type": "linkerd-cni"}"#, &entry()), Err(Unusable::Alone));
        assert_eq!(list("{}", &entry()), Err(Unusable::NoPlugins));
        assert_eq!(
            types(&list(r#"{"cniVersion": "1.0.0", "plugins": [{"type": "a"}]}"#, &entry()).unwrap()),
            ["a", PLUGIN]
        );
    }

    #[test]
    fn the_other_writer_is_named_where_its_plugin_tells() {
        assert!(writer(r#"{"plugins":[{"type":"cilium-cni"}]}"#).contains("cni.exclusive"));
        assert!(writer("{}").contains("not known"));
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".*".prop_map(Value::from)
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-z\"\\[{]{0,8}", inner, 0..4).prop_map(|map| map.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            rng_seed: RngSeed::Fixed(seed()),
            ..ProptestConfig::default()
        })]

        /// Whatever a list holds, with whatever white space: the entry is once and last in it, nothing else changes,
        /// and taking it out restores every value.
        #[test]
        fn any_list_survives_the_way_there_and_back(
            others in prop::collection::vec(("[a-z-]{1,12}", json()), 1..5),
            rest in prop::collection::btree_map("[a-km-oq-z]{1,8}", json(), 0..4),
            pretty in any::<bool>(),
            white in "[ \n\t]{0,3}",
        ) {
            let plugins: Vec<_> = others.iter().filter(|(kind, _)| kind != PLUGIN)
                .map(|(kind, value)| serde_json::json!({"type": kind, "x": value})).collect();
            prop_assume!(!plugins.is_empty());
            let mut file: serde_json::Map<_, _> = rest.into_iter().filter(|(key, _)| key != "type").collect();
            file.insert("cniVersion".to_owned(), "1.0.0".into());
            file.insert("plugins".to_owned(), plugins.clone().into());
            let file = Value::Object(file);
            let text = if pretty { serde_json::to_string_pretty(&file).unwrap() } else { file.to_string() };
            let text = format!("{white}{text}{white}");
            let after = chain(&text, &entry()).unwrap().unwrap();
            let value: Value = serde_json::from_str(&after).unwrap();
            let mut expected = file.clone();
            expected["plugins"].as_array_mut().unwrap().push(entry().0);
            prop_assert_eq!(value, expected);
            prop_assert_eq!(chain(&after, &entry()).unwrap(), None);
            let without: Value = serde_json::from_str(&unchain(&after).unwrap().unwrap()).unwrap();
            prop_assert_eq!(without, file);
        }

        /// Nothing panics.
        #[test]
        fn any_text_is_read(text in ".*") {
            let _ = (chain(&text, &entry()), unchain(&text), list(&text, &entry()));
        }

        /// A file that is cut off is never taken for a whole one.
        #[test]
        fn half_a_list_is_none(cut in 0usize..60) {
            let text = r#"{"name": "n", "plugins": [{"type": "calico", "a": [1, 2]}]}"#;
            prop_assume!(cut < text.len());
            let half = text.get(..cut).unwrap();
            prop_assert!(chain(half, &entry()).is_err() && unchain(half).is_err() && list(half, &entry()).is_err());
        }
    }
}
