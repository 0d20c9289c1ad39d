//! The plugin's entry in network configurations: pure functions from text to text.
//!
//! Keys keep their order, and values their meaning: white space changes and, as for Go's readers, whole numbers of more than
//! 64 bits are rounded.

use std::path::Path;

use linkerd_cni::error::Error;
use linkerd_cni::version::Version;
use pod::Configuration;
use serde_json::{Map, Value, from_str, json};

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

    /// The entry that a list has, the last one; none if it has none.
    pub(crate) fn of_list(text: &str) -> Option<Self> {
        let (file, _) = read(text).ok()?;
        let mut plugins = file.get("plugins")?.as_array()?.iter().rev();
        plugins.find(|plugin| is_entry(plugin)).cloned().map(Self)
    }

    /// Sets a key of Linkerd's part of the entry, if there is such a part.
    pub(crate) fn set(&mut self, key: &str, value: &str) {
        if let Some(linkerd) = self.0.get_mut("linkerd").and_then(Value::as_object_mut) {
            linkerd.insert(key.to_owned(), value.into());
        }
    }

    /// The agent that has written the entry, if one has.
    pub(crate) fn agent(&self) -> Option<&str> {
        self.0.pointer("/linkerd/agent")?.as_str()
    }

    /// Where the plugin learns about a pod, if the entry says so.
    pub(crate) fn pod_info(&self) -> Option<&Value> {
        self.0.pointer("/linkerd/pod-info")
    }

    /// Returns true if the plugin asks the API server, for which it needs a kubeconfig.
    pub fn needs_kubeconfig(&self) -> bool {
        self.pod_info().is_none_or(|info| info != "annotations")
    }

    /// As the plugin reads it.
    pub fn read(&self) -> Result<Configuration, pod::Error> {
        Configuration::read(self.0.to_string().as_bytes())
    }

    /// The same with another path of the kubeconfig, where it has one.
    pub(crate) fn with_kubeconfig(&self, path: &Path) -> Self {
        let mut entry = self.clone();
        if let Some(kubeconfig) = entry.0.pointer_mut("/kubernetes/kubeconfig") {
            *kubeconfig = path.to_string_lossy().into();
        }
        entry
    }
}

const NO_PLUGINS: &str = "it names no plugins";
const ALONE: &str = "its only plugin is linkerd-cni, which makes no network";

/// A list of plugins, and those of them that aren't ours. There are some. An error says why a file is left as it is.
fn read(text: &str) -> Result<(Map<String, Value>, Vec<Value>), String> {
    let file = object(text)?;
    let plugins = file.get("plugins").and_then(Value::as_array).ok_or(NO_PLUGINS)?;
    if let Some(index) = plugins.iter().position(|plugin| plugin.get("type").is_none()) {
        return Err(format!("its plugin {index} is not an object with a type"));
    }
    let others: Vec<Value> = plugins.iter().filter(|plugin| !is_entry(plugin)).cloned().collect();
    if others.is_empty() {
        return Err(if plugins.is_empty() { NO_PLUGINS } else { ALONE }.to_owned());
    }
    Ok((file, others))
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    match from_str(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(NO_PLUGINS.to_owned()),
        // It may be half written.
        Err(error) => Err(format!("it is not JSON: {error}")),
    }
}

fn is_entry(plugin: &Value) -> bool {
    plugin.get("type").is_some_and(|kind| kind == PLUGIN)
}

/// The text of a list with these plugins; none if it has just these.
fn with(mut file: Map<String, Value>, plugins: Vec<Value>) -> Option<String> {
    let plugins = Value::from(plugins);
    let before = file.insert("plugins".to_owned(), plugins.clone());
    (before != Some(plugins)).then(|| format!("{:#}\n", Value::from(file)))
}

/// Checks that the plugin knows the version in which runtimes call it: newer ones take one of `cniVersions`, if there are
/// any, and without a version there is an empty one (`NetworkConfFromBytes` in containernetworking/cni).
fn check_version(file: &Map<String, Value>) -> Result<(), String> {
    let version = file.get("cniVersion").and_then(Value::as_str);
    let newer = file.get("cniVersions").and_then(Value::as_array).into_iter().flatten();
    let mut names = version.into_iter().chain(newer.filter_map(Value::as_str));
    if names.any(|name| Version::named(name).is_some()) {
        return Ok(());
    }
    let asked = version.unwrap_or_default().to_owned();
    Err(Error::Version { asked }.message())
}

/// A list with the entry last in it; none if it is there already.
pub(crate) fn chain(text: &str, entry: &Entry) -> Result<Option<String>, String> {
    let (file, mut plugins) = read(text)?;
    check_version(&file)?;
    plugins.push(entry.0.clone());
    Ok(with(file, plugins))
}

/// A list without the entry; none if it has none.
pub(crate) fn unchain(text: &str) -> Result<Option<String>, String> {
    let (file, others) = read(text)?;
    Ok(with(file, others))
}

/// The list that takes the place of a `.conf`, which holds one plugin: as Linkerd's installer makes it (`inject` in
/// internal/cni/conf.go of linkerd2-proxy-init), of version 0.3.1, with the entry after that plugin.
///
/// Upstream takes a `.conf` without a type for a list, and so does this.
pub(crate) fn list(text: &str, entry: &Entry) -> Result<String, String> {
    let mut file = object(text)?;
    match file.get("type").filter(|kind| !kind.is_null()) {
        None => Ok(chain(text, entry)?.unwrap_or_else(|| text.to_owned())),
        Some(kind) if kind == PLUGIN => Err(ALONE.to_owned()),
        Some(_) => {
            file.shift_remove("cniVersion");
            let list = json!({"cniVersion": "0.3.1", "name": "k8s-pod-network", "plugins": [file, entry.0]});
            Ok(format!("{list:#}\n"))
        }
    }
}

/// Returns true if a text names the plugin.
pub(crate) fn names_plugin(text: &str) -> bool {
    let file = object(text).unwrap_or_default();
    file.get("plugins").and_then(Value::as_array).is_some_and(|plugins| plugins.iter().any(is_entry))
}

/// Checks that a runtime with this list has the plugin set up pods. An error says why a runtime can't take it
/// (`NetworkConfFromBytes` in containernetworking/cni), or why the plugin would fail.
pub(crate) fn has_plugin(text: &str) -> Result<bool, String> {
    let (file, others) = read(text)?;
    if !matches!(file.get("name"), Some(Value::String(_))) {
        return Err("it has no name".to_owned());
    }
    check_version(&file)?;
    Ok(with(file, others).is_some())
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
        assert_eq!(entry().0["kubernetes"]["kubeconfig"], "/etc/cni/net.d/a \"quoted\" name");
        assert_eq!(entry().with_kubeconfig(Path::new("/k")).0["kubernetes"]["kubeconfig"], "/k");
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
    fn a_list_gets_the_entry_last_and_comes_back() {
        let before = "{ \"plugins\" : [ {\"type\":\"calico\", \"big\": 18446744073709551615, \"part\": 0.1} ,\n{\"type\":\"portmap\"}  ] , \"cniVersion\": \"1.0.0\" }\n";
        let after = chain(before, &entry()).unwrap().unwrap();
        assert_eq!(types(&after), ["calico", "portmap", PLUGIN]);
        assert_eq!(chain(&after, &entry()).unwrap(), None);
        let without = unchain(&after).unwrap().unwrap();
        assert!(without.contains("18446744073709551615") && without.contains("0.1\n"), "{without}");
        assert_eq!(from_str::<Value>(&without).unwrap(), from_str::<Value>(before).unwrap());
        assert_eq!(unchain(before).unwrap(), None);
        let places = ["plugins", "calico", "big", "part", "portmap", "cniVersion"].map(|word| without.find(word));
        assert!(places.is_sorted(), "{without}");
        // There and back again, nothing is added.
        assert_eq!(chain(&without, &entry()).unwrap().unwrap(), after);
    }

    #[test]
    fn what_is_no_list_is_left_alone_and_the_reason_is_told() {
        let not_json = |text: &str| chain(text, &entry()).is_err_and(|reason| reason.starts_with("it is not JSON"));
        for text in [
            "",
            "{",
            "{\"plugins\": [{\"type\": \"a\"}",
            "{\"plugins\": []} x",
            // No double has it.
            "{\"plugins\": [{\"type\": \"a\", \"b\": 1e400}]}",
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
            assert_eq!(chain(text, &entry()), Err(NO_PLUGINS.to_owned()), "{text}");
        }
        for text in [r#"{"plugins": [1, 2]}"#, r#"{"plugins": [{}]}"#, r#"{"plugins": [["linkerd-cni"]]}"#] {
            let reason = "its plugin 0 is not an object with a type".to_owned();
            assert_eq!(chain(text, &entry()), Err(reason), "{text}");
        }
        let alone = r#"{"cniVersion": "1.0.0", "plugins": [{"type": "linkerd-cni"}]}"#;
        assert_eq!(chain(alone, &entry()), Err(ALONE.to_owned()));
        assert_eq!(unchain(alone), Err(ALONE.to_owned()));
    }

    #[test]
    fn a_list_of_a_version_that_the_plugin_does_not_know_is_left_alone() {
        let refused = |asked: &str| {
            Err(format!("cniVersion {asked:?} is not supported: use one of 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0"))
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
        let conf = r#"{"type": "bridge", "cniVersion": "0.2.0", "mtu": 1, "ipam": {"type": "x"}}"#;
        let text = list(conf, &entry()).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            value,
            serde_json::json!({
                "name": "k8s-pod-network", "cniVersion": "0.3.1",
                "plugins": [{"type": "bridge", "mtu": 1, "ipam": {"type": "x"}}, entry().0],
            })
        );
        assert_eq!(chain(&text, &entry()).unwrap(), None);
        assert_eq!(list(r#"{"type": "linkerd-cni"}"#, &entry()), Err(ALONE.to_owned()));
        assert_eq!(list("{}", &entry()), Err(NO_PLUGINS.to_owned()));
        assert_eq!(
            types(&list(r#"{"cniVersion": "1.0.0", "plugins": [{"type": "a"}]}"#, &entry()).unwrap()),
            ["a", PLUGIN]
        );
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

        /// Whatever a list holds, with whatever white space, and wherever an entry was before: it is once and last in it,
        /// nothing else changes, and taking it out restores every value.
        #[test]
        fn any_list_survives_the_way_there_and_back(
            others in prop::collection::vec(("[a-z-]{1,12}", json()), 1..5),
            rest in prop::collection::btree_map("[a-km-oq-z]{1,8}", json(), 0..4),
            before in prop::collection::vec(0..6_usize, 0..3),
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
            let mut given = file.clone();
            let list = given["plugins"].as_array_mut().unwrap();
            before.iter().for_each(|at| list.insert(*at % (list.len() + 1), serde_json::json!({"type": PLUGIN, "old": at})));
            let text = if pretty { serde_json::to_string_pretty(&given).unwrap() } else { given.to_string() };
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
