//! The plugin's entry in network configurations: pure functions from text to text.
//!
//! What others wrote stays as it is, byte for byte: the entry is put into the text and cut out of it again. Numbers,
//! the order of keys and white space survive, and whoever compares the file with their own finds one change.

use std::collections::BTreeMap;
use std::path::Path;

use linkerd_cni::configuration::Configuration;
use linkerd_cni::error::Error as PluginError;
use linkerd_cni::version::Version;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use thiserror::Error;

/// The plugin's type, which is the name of its program.
pub const PLUGIN: &str = "linkerd-cni";

/// What Linkerd's chart has in the entry where the kubeconfig's path is to be.
const KUBECONFIG: &str = "__KUBECONFIG_FILEPATH__";

/// The plugin's entry.
#[derive(Debug, Clone)]
pub struct Entry {
    text: String,
    value: Value,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl Entry {
    /// The entry in `CNI_NETWORK_CONFIG`, for a kubeconfig at this path of the node.
    ///
    /// # Errors
    /// Why it is none.
    pub fn new(template: &str, kubeconfig: &Path) -> Result<Self, String> {
        let path = kubeconfig.to_str().ok_or("the kubeconfig's path is not UTF-8")?;
        // Within a JSON string.
        let quoted = Value::from(path).to_string();
        let text = template.trim().replace(KUBECONFIG, quoted.trim_matches('"'));
        let value: Value = serde_json::from_str(&text).map_err(|error| format!("it is not JSON: {error}"))?;
        match value.get("type") {
            Some(kind) if kind == PLUGIN => Ok(Self { text, value }),
            _ => Err(format!("it has no \"type\": \"{PLUGIN}\"")),
        }
    }

    /// The shortest there is: enough to take any out again.
    pub fn bare() -> Self {
        let value = json!({"type": PLUGIN});
        Self { text: value.to_string(), value }
    }

    /// The entry that a list has; none if it has none.
    pub fn in_list(text: &str) -> Option<Self> {
        let plugins = File::read(text).ok()?.plugins().ok()?;
        let ours = ours(&plugins).ok()?;
        let (plugin, _) = plugins.into_iter().zip(ours).rfind(|(_, is_ours)| *is_ours)?;
        Some(Self { text: plugin.get().to_owned(), value: serde_json::from_str(plugin.get()).ok()? })
    }

    /// The same, with the DaemonSet (NAMESPACE/NAME) of the agents themselves, about whose pods the plugin doesn't ask:
    /// the token that it asks with is worth nothing once the agent's pod is gone, and the next one has to start first.
    pub fn of_agent(self, agent: &str) -> Self {
        self.with("agent", agent)
    }

    /// The same, with the socket to which the plugin sends what it logs, as the plugin sees it.
    pub fn logging_to(self, socket: &str) -> Self {
        self.with("log-socket", socket)
    }

    /// The same, with another key of Linkerd's.
    fn with(mut self, key: &str, value: &str) -> Self {
        if let Some(linkerd) = self.value.get_mut("linkerd").and_then(Value::as_object_mut) {
            linkerd.insert(key.to_owned(), value.into());
            self.text = format!("{:#}", self.value);
        }
        self
    }

    /// Whether the plugin asks the API server, for which it needs a kubeconfig.
    pub fn needs_kubeconfig(&self) -> bool {
        self.value.pointer("/linkerd/pod-info").is_none_or(|info| info != "annotations")
    }

    /// As the plugin reads it.
    ///
    /// # Errors
    /// What is wrong with it, in the plugin's words.
    pub fn read(&self) -> Result<Configuration, linkerd_cni::error::Error> {
        Configuration::read(self.text.as_bytes())
    }

    /// What the plugin gets on standard input, where a list with this version has the entry.
    pub fn configuration(&self, version: &str) -> Value {
        let mut value = self.value.clone();
        if let Some(map) = value.as_object_mut() {
            map.insert("cniVersion".to_owned(), version.into());
            map.insert("name".to_owned(), PLUGIN.into());
        }
        value
    }
}

/// Why a file is left as it is.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unusable {
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

#[derive(Deserialize)]
struct File<'a> {
    #[serde(rename = "type")]
    kind: Option<Value>,
    name: Option<Value>,
    #[serde(rename = "cniVersion")]
    version: Option<Value>,
    #[serde(rename = "cniVersions")]
    versions: Option<Value>,
    #[serde(borrow)]
    plugins: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Plugin {
    #[serde(rename = "type")]
    kind: Option<Value>,
}

#[cfg(test)]
thread_local! {
    /// How many bytes of lists this thread has read.
    static READ: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl<'a> File<'a> {
    fn read(text: &'a str) -> Result<Self, Unusable> {
        #[cfg(test)]
        READ.set(READ.get() + text.len());
        // serde's structs can be read from arrays too.
        let file: &RawValue = serde_json::from_str(text).map_err(|error| Unusable::NotJson(error.to_string()))?;
        if !file.get().starts_with('{') {
            return Err(Unusable::NoPlugins);
        }
        serde_json::from_str(text).map_err(|error| Unusable::NotJson(error.to_string()))
    }

    /// The elements of its list.
    fn plugins(&self) -> Result<Vec<&'a RawValue>, Unusable> {
        let list = self.plugins.ok_or(Unusable::NoPlugins)?;
        let plugins: Vec<&RawValue> = serde_json::from_str(list.get()).map_err(|_| Unusable::NoPlugins)?;
        if plugins.is_empty() {
            return Err(Unusable::NoPlugins);
        }
        Ok(plugins)
    }

    /// Checks that the plugin knows the version in which runtimes call it: newer ones take one of `cniVersions`, if there
    /// are any, and without a version there is an empty one (`NetworkConfFromBytes` in containernetworking/cni).
    fn check_version(&self) -> Result<(), Unusable> {
        let newer = self.versions.iter().filter_map(Value::as_array).flatten();
        let mut names = self.version.iter().chain(newer).filter_map(Value::as_str);
        if names.any(|name| Version::named(name).is_some()) {
            return Ok(());
        }
        let asked = self.version.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
        Err(Unusable::Version(PluginError::Version { asked }.message()))
    }
}

/// Whether each plugin of a list is ours.
fn ours(plugins: &[&RawValue]) -> Result<Vec<bool>, Unusable> {
    let kinds = plugins.iter().enumerate().map(|(index, plugin)| {
        let read = Some(plugin.get()).filter(|text| text.starts_with('{'));
        let read = read.and_then(|text| serde_json::from_str::<Plugin>(text).ok());
        let kind = read.and_then(|plugin| plugin.kind);
        kind.map(|kind| kind == PLUGIN).ok_or(Unusable::NotAPlugin(index))
    });
    kinds.collect()
}

/// Where a part of a text is in it.
fn range(text: &str, part: &RawValue) -> std::ops::Range<usize> {
    let start = part.get().as_ptr().addr() - text.as_ptr().addr();
    start..start + part.get().len()
}

/// A list with the entry last in it; none if it is there already.
///
/// # Errors
/// Why the text is no list of plugins, or none that the plugin could be in.
pub fn chain(text: &str, entry: &Entry) -> Result<Option<String>, Unusable> {
    let file = File::read(text)?;
    let plugins = file.plugins()?;
    let ours = ours(&plugins)?;
    file.check_version()?;
    if let ([.., true], 1) = (&ours[..], ours.iter().filter(|it| **it).count())
        && let Some(last) = plugins.last()
        && serde_json::from_str::<Value>(last.get()).is_ok_and(|value| value == entry.value)
    {
        return Ok(None);
    }
    if ours.iter().all(|it| *it) {
        return Err(Unusable::Alone);
    }
    let mut text = unchain(text)?.unwrap_or_else(|| text.to_owned());
    let end = File::read(&text)?.plugins()?.last().map(|last| range(&text, last).end);
    text.insert_str(end.ok_or(Unusable::NoPlugins)?, &format!(",\n    {}", entry.text));
    Ok(Some(text))
}

/// A list without the entry; none if it has none.
///
/// # Errors
/// Why the text is no list of plugins.
pub fn unchain(text: &str) -> Result<Option<String>, Unusable> {
    let plugins = File::read(text)?.plugins()?;
    let ours = ours(&plugins)?;
    if !ours.contains(&true) {
        return Ok(None);
    }
    if !ours.contains(&false) {
        return Err(Unusable::Alone);
    }
    let mut left = String::with_capacity(text.len());
    // Of the plugin before, whether that stays or not: a plugin takes along what separates the two.
    let mut end = None;
    let mut is_first = true;
    for (plugin, is_ours) in plugins.into_iter().zip(ours) {
        let range = range(text, plugin);
        // Up to the first plugin, all stays.
        if end.is_none() {
            left.push_str(text.get(..range.start).unwrap_or_default());
        }
        if !is_ours {
            let start = end.filter(|_| !is_first).unwrap_or(range.start);
            left.push_str(text.get(start..range.end).unwrap_or_default());
            is_first = false;
        }
        end = Some(range.end);
    }
    left.push_str(end.and_then(|end| text.get(end..)).unwrap_or_default());
    Ok(Some(left))
}

/// The list that takes the place of a `.conf`, which holds one plugin: as Linkerd's installer makes it (`inject` in
/// internal/cni/conf.go of linkerd2-proxy-init), of version 0.3.1, with the entry after that plugin.
///
/// Upstream takes a `.conf` without a type for a list, and so does this.
///
/// # Errors
/// Why the text is neither.
pub fn list(text: &str, entry: &Entry) -> Result<String, Unusable> {
    #[derive(Serialize)]
    struct List<'a> {
        #[serde(rename = "cniVersion")]
        version: &'a str,
        name: &'a str,
        plugins: (BTreeMap<String, &'a RawValue>, &'a RawValue),
    }
    match File::read(text)?.kind {
        None => Ok(chain(text, entry)?.unwrap_or_else(|| text.to_owned())),
        Some(kind) if kind == PLUGIN => Err(Unusable::Alone),
        Some(_) => {
            let not_json = |error: serde_json::Error| Unusable::NotJson(error.to_string());
            let mut plugin: BTreeMap<String, &RawValue> = serde_json::from_str(text).map_err(not_json)?;
            plugin.remove("cniVersion");
            let list = List {
                version: "0.3.1",
                name: "k8s-pod-network",
                plugins: (plugin, serde_json::from_str(&entry.text).map_err(not_json)?),
            };
            serde_json::to_string_pretty(&list).map_err(not_json)
        }
    }
}

/// Whether a text names the plugin.
pub fn names_plugin(text: &str) -> bool {
    matches!(unchain(text), Ok(Some(_)) | Err(Unusable::Alone))
}

/// Whether a runtime that takes this list has the plugin set up pods.
///
/// # Errors
/// Why a runtime can't take it (`NetworkConfFromBytes` in containernetworking/cni), or the plugin would fail.
pub fn has_plugin(text: &str) -> Result<bool, Unusable> {
    let has_plugin = unchain(text)?.is_some();
    let file = File::read(text)?;
    if !matches!(file.name, Some(Value::String(_))) {
        return Err(Unusable::NoName);
    }
    file.check_version()?;
    Ok(has_plugin)
}

/// A program that keeps others' entries out of its file, by the type of its plugin, and the setting that makes it stop
/// (`cni.exclusive` in Cilium's chart; linkerd2's issues 10375 and 11597).
const JEALOUS: [(&str, &str); 1] = [("cilium-cni", "Cilium's agent: set `cni.exclusive=false` in its chart")];

/// Who writes a file, as far as its plugins tell, and what to do about it.
pub fn writer(text: &str) -> &'static str {
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
        let entry = entry().of_agent("linkerd-cni/linkerd-cni");
        let list = chain(r#"{"cniVersion": "1.0.0", "plugins": [{"type": "calico"}]}"#, &entry).unwrap().unwrap();
        let value: Value = serde_json::from_str(&list).unwrap();
        assert_eq!(value["plugins"][1]["linkerd"]["agent"], "linkerd-cni/linkerd-cni");
        assert_eq!(value["plugins"][1]["linkerd"]["incoming-proxy-port"], 4143);
        assert_eq!(chain(&list, &entry).unwrap(), None);
    }

    #[test]
    fn a_list_gets_the_entry_last_and_keeps_its_bytes() {
        let before = "{ \"cniVersion\": \"1.0.0\", \"plugins\" : [ {\"type\":\"calico\", \"big\": 123456789012345678901234567890, \"b\":1,\"a\":1e400} ,\n{\"type\":\"portmap\"}  ] , \"z\": 1 }\n";
        let after = chain(before, &entry()).unwrap().unwrap();
        assert!(after.starts_with(
            "{ \"cniVersion\": \"1.0.0\", \"plugins\" : [ {\"type\":\"calico\", \"big\": 123456789012345678901234567890, \"b\":1,\"a\":1e400} ,\n{\"type\":\"portmap\"},\n    { \"name\""
        ), "{after}");
        assert_eq!(types(&after.replace("1e400", "1")), ["calico", "portmap", PLUGIN]);
        assert_eq!(chain(&after, &entry()).unwrap(), None);
        assert_eq!(unchain(&after).unwrap().as_deref(), Some(before));
        assert_eq!(unchain(before).unwrap(), None);
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
        let before =
            r#"{"plugins": [ {"type": "linkerd-cni"} , {"type": "a"} , {"type": "linkerd-cni"} ,{"type": "b"} ]}"#;
        let after = r#"{"plugins": [ {"type": "a"} ,{"type": "b"} ]}"#;
        assert_eq!(unchain(before).unwrap().as_deref(), Some(after));
    }

    #[test]
    fn however_often_the_entry_is_there_the_list_is_read_a_few_times() {
        let entries = vec![r#"{"type": "linkerd-cni"}"#; 1000].join(",");
        let before = format!(r#"{{"cniVersion": "1.0.0", "plugins": [{entries}, {{"type": "calico"}}, {entries}]}}"#);
        READ.set(0);
        assert_eq!(types(&unchain(&before).unwrap().unwrap()), ["calico"]);
        assert_eq!(types(&chain(&before, &entry()).unwrap().unwrap()), ["calico", PLUGIN]);
        assert!(READ.get() <= 4 * before.len(), "{} of {}", READ.get(), before.len());
    }

    #[test]
    fn what_is_no_list_is_left_alone_and_the_reason_is_told() {
        let not_json = |text: &str| matches!(chain(text, &entry()), Err(Unusable::NotJson(_)));
        for text in
            ["", "{", "{\"plugins\": [{\"type\": \"a\"}", "{\"plugins\": []} x", "{\"plugins\": [], \"plugins\": []}"]
        {
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
                "plugins": [{"type": "bridge", "mtu": 1, "ipam": {"type": "x"}}, entry().value],
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
        /// and taking it out restores every byte.
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
            expected["plugins"].as_array_mut().unwrap().push(entry().value);
            prop_assert_eq!(value, expected);
            prop_assert_eq!(chain(&after, &entry()).unwrap(), None);
            prop_assert_eq!(unchain(&after).unwrap(), Some(text));
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
