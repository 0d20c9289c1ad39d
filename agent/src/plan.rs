//! Plans the changes to a folder of network configurations, given its content: pure functions.

use std::collections::{BTreeMap, BTreeSet};

use crate::conflist::{self, Entry};
use crate::folder::{Content, Text};

/// Files by their names.
pub(crate) type Files = BTreeMap<String, Content>;

/// A file that becomes another, whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) name: String,
    /// The file when the plan was made, or none: if that isn't so any more, another plan has to be made. The agent's
    /// own file is changed whatever it is.
    pub(crate) before: Option<Option<Text>>,
    /// The file afterwards, if there is to be one.
    pub(crate) after: Option<Text>,
}

/// The change of one configuration, step by step: at no moment is there less than before. Where a step fails, those
/// after it are left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) name: String,
    pub(crate) steps: Vec<Step>,
}

/// The changes, and the files that are left alone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Plan {
    /// Each stands alone. There may be more to do once these are made.
    pub(crate) changes: Vec<Change>,
    /// The files that are left as they are, and why.
    pub(crate) skipped: BTreeMap<String, String>,
}

impl Plan {
    fn add(&mut self, name: &str, steps: Result<Vec<Step>, String>) {
        let name = name.to_owned();
        match steps {
            Ok(steps) if steps.is_empty() => {}
            Ok(steps) => self.changes.push(Change { name, steps }),
            Err(reason) => drop(self.skipped.insert(name, reason)),
        }
    }
}

/// Returns true if runtimes read a file of this name, hidden or not: containerd and CRI-O take the first of them by name
/// (`loadFromConfDir` in containerd/go-cni, `loadNetworks` in cri-o/ocicni, `ConfFiles` in libcni). A `.conflist` is a
/// list of plugins, the others are one plugin's.
pub(crate) fn is_configuration(name: &str) -> bool {
    is_list(name) || name.ends_with(".conf") || name.ends_with(".json")
}

fn is_list(name: &str) -> bool {
    name.ends_with(".conflist")
}

const SAVED: &str = ".before-linkerd-cni";

/// The file that keeps a configuration whose place a list took.
fn saved_name(name: &str) -> String {
    format!(".{name}{SAVED}")
}

/// The configuration that a file of this name keeps, if it is such a file.
pub(crate) fn saved_of(name: &str) -> Option<&str> {
    name.strip_prefix('.')?.strip_suffix(SAVED)
}

/// The names that the list may have which takes the place of one plugin's configuration. The first one is upstream's;
/// the last one comes right after the configuration's own, wherever that is among the others.
fn list_names(name: &str) -> Vec<String> {
    let upstream = name.ends_with(".conf").then(|| format!("{name}list"));
    upstream.into_iter().chain([format!("{name}.conflist")]).collect()
}

fn text(content: &Content) -> Result<(&Text, &str), String> {
    let file = content.as_ref().map_err(Clone::clone)?;
    let text = std::str::from_utf8(&file.bytes).map_err(|error| format!("it is not UTF-8: {error}"))?;
    Ok((file, text))
}

fn text_of<'a>(files: &'a Files, name: &str) -> Option<(&'a Text, &'a str)> {
    files.get(name).and_then(|content| text(content).ok())
}

/// The facts that a plan is made from: the configurations, the files that keep some, and the plugin's entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look<'a> {
    pub(crate) folder: &'a Files,
    pub(crate) saved: &'a Files,
    pub(crate) entry: &'a Entry,
}

impl Look<'_> {
    /// Plans to have the entry in each configuration.
    pub(crate) fn install(&self) -> Plan {
        let mut plan = Plan::default();
        let (lists, singles): (Vec<_>, Vec<_>) = self.folder.iter().partition(|(name, _)| is_list(name));
        let mut made = BTreeSet::new();
        for (name, content) in singles {
            let steps = self.promote(name, content, &mut made);
            plan.add(name, steps);
        }
        for (name, content) in lists.into_iter().filter(|(name, _)| !made.contains(*name)) {
            plan.add(
                name,
                text(content).and_then(|(file, text)| {
                    let chained = conflist::chain(text, self.entry)?;
                    Ok(chained.map(|text| rewrite(name, text, file)).into_iter().collect())
                }),
            );
        }
        // As runtimes read them.
        plan.changes.sort_by(|one, other| one.name.cmp(&other.name));
        plan
    }

    /// Makes a list of one plugin's configuration. `taken` are the lists that the plan makes already.
    ///
    /// The list comes before the file that is to be put back when the plugin leaves. So whatever is killed in between: a
    /// list that was made here is known by one of the two.
    fn promote(&self, name: &str, content: &Content, taken: &mut BTreeSet<String>) -> Result<Vec<Step>, String> {
        let (file, text) = text(content)?;
        let list = conflist::list(text, self.entry)?;
        let names = list_names(name);
        let is_free = |name: &&String| !self.folder.contains_key(*name) && !taken.contains(*name);
        let list_name = self.made_list(name).or_else(|| names.iter().find(is_free).cloned());
        let list_name = list_name.ok_or_else(|| format!("{} is another configuration's", names.join(" or ")))?;
        taken.insert(list_name.clone());
        let before = text_of(self.folder, &list_name);
        let mut steps = Vec::new();
        if before.is_none_or(|(_, before)| before != list) {
            let list = Text { bytes: list.into_bytes(), mode: file.mode };
            steps.push(Step { name: list_name, before: Some(before.map(|(file, _)| file.clone())), after: Some(list) });
        }
        if self.saved.get(&saved_name(name)) != Some(content) {
            steps.push(Step { name: saved_name(name), before: None, after: Some(file.clone()) });
        }
        steps.push(Step { name: name.to_owned(), before: Some(Some(file.clone())), after: None });
        Ok(steps)
    }

    /// The list that was made of one plugin's configuration, of what it is now or of what was saved, entries apart. One
    /// without an entry, where nothing was saved yet, is somebody else's.
    fn made_list(&self, name: &str) -> Option<String> {
        let saved = text_of(self.saved, &saved_name(name));
        let originals = [text_of(self.folder, name), saved].into_iter().flatten();
        let originals: Vec<_> =
            originals.filter_map(|(_, text)| without_entry(&conflist::list(text, self.entry).ok()?)).collect();
        // Nobody but the agent makes one of the last name.
        list_names(name).into_iter().rev().find(|name| {
            text_of(self.folder, name).is_some_and(|(_, text)| {
                (saved.is_some() || conflist::names_plugin(text))
                    && without_entry(text).is_some_and(|list| originals.contains(&list))
            })
        })
    }

    /// Plans to have the entry in no configuration.
    pub(crate) fn remove(&self) -> Plan {
        let mut plan = Plan::default();
        let mut done = BTreeSet::new();
        let kept = self.saved.keys().filter_map(|name| saved_of(name));
        let singles: BTreeSet<&str> = kept.chain(self.folder.keys().map(String::as_str)).collect();
        for name in singles.into_iter().filter(|name| !is_list(name)) {
            let list = self.made_list(name);
            match self.restore(name, list.as_deref()) {
                Ok(steps) => plan.add(name, Ok(steps)),
                // It may be all that is left of somebody's file.
                Err(reason) => plan.add(&saved_name(name), Err(reason)),
            }
            done.extend(list);
        }
        for (name, content) in self.folder.iter().filter(|(name, _)| !done.contains(*name)) {
            if let Ok((file, text)) = text(content)
                && let Ok(Some(without)) = conflist::unchain(text)
            {
                plan.add(name, Ok(vec![rewrite(name, without, file)]));
            }
        }
        plan
    }

    /// Puts one plugin's configuration back in the place of the list that was made of it.
    fn restore(&self, name: &str, list: Option<&str>) -> Result<Vec<Step>, String> {
        let kept = self.saved.get(&saved_name(name)).map(text).transpose()?;
        let mut steps = Vec::new();
        if let Some(list) = list
            && let Some((file, _)) = text_of(self.folder, list)
        {
            if let Some((kept, text)) = kept
                && !self.folder.contains_key(name)
            {
                let text = conflist::unchain(text).ok().flatten().unwrap_or_else(|| text.to_owned());
                let after = Text { bytes: text.into_bytes(), mode: kept.mode };
                steps.push(Step { name: name.to_owned(), before: Some(None), after: Some(after) });
            }
            steps.push(Step { name: list.to_owned(), before: Some(Some(file.clone())), after: None });
        }
        if kept.is_some() {
            steps.push(Step { name: saved_name(name), before: None, after: None });
        }
        Ok(steps)
    }
}

fn without_entry(list: &str) -> Option<serde_json::Value> {
    let without = conflist::unchain(list).ok()?;
    serde_json::from_str(without.as_deref().unwrap_or(list)).ok()
}

fn rewrite(name: &str, text: String, before: &Text) -> Step {
    let after = Text { bytes: text.into_bytes(), mode: before.mode };
    Step { name: name.to_owned(), before: Some(Some(before.clone())), after: Some(after) }
}

/// Finds the configuration that runtimes take for each pod, the first by name. An error says why it can't be told whether
/// it has the plugin.
pub(crate) fn first(folder: &Files) -> Option<(&str, Result<bool, String>)> {
    let (name, content) = folder.first_key_value()?;
    let has_plugin = match text(content) {
        Ok((_, text)) if is_list(name) => conflist::has_plugin(text),
        Ok(_) => Ok(false),
        Err(reason) => Err(reason),
    };
    Some((name, has_plugin))
}

/// The entry of the first configuration that has one.
pub(crate) fn entry_of(folder: &Files) -> Option<Entry> {
    folder.values().find_map(|content| Entry::of_list(text(content).ok()?.1))
}

/// The number of configurations that name the plugin.
pub(crate) fn count_chained(folder: &Files) -> usize {
    let texts = folder.values().filter_map(|content| text(content).ok());
    texts.filter(|(_, text)| conflist::names_plugin(text)).count()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use lab::network::seed;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    fn entry() -> Entry {
        let text = r#"{"type": "linkerd-cni", "name": "linkerd-cni", "kubernetes": {"kubeconfig": "__KUBECONFIG_FILEPATH__"}}"#;
        Entry::new(text, Path::new("/etc/cni/net.d/ZZZ")).unwrap()
    }

    fn file(text: &str) -> Content {
        Ok(Text { bytes: text.into(), mode: 0o600 })
    }

    fn folder(files: &[(&str, &str)]) -> Files {
        files.iter().map(|(name, text)| ((*name).to_owned(), file(text))).collect()
    }

    /// The folder after the first `steps` steps; the saved files are in it.
    fn after(folder: &Files, plan: &Plan, steps: usize) -> Files {
        let mut folder = folder.clone();
        for step in plan.changes.iter().flat_map(|change| &change.steps).take(steps) {
            match step.after.clone() {
                Some(after) => drop(folder.insert(step.name.clone(), Ok(after))),
                None => drop(folder.remove(&step.name)),
            }
        }
        folder
    }

    fn split(folder: Files) -> (Files, Files) {
        folder.into_iter().partition(|(name, _)| is_configuration(name))
    }

    fn plan(all: &Files) -> Plan {
        let (folder, saved) = split(all.clone());
        Look { folder: &folder, saved: &saved, entry: &entry() }.install()
    }

    /// The folder when there is nothing left to do.
    fn installed(all: &Files) -> Files {
        let mut all = all.clone();
        for _ in 0..4 {
            let plan = plan(&all);
            if plan.changes.is_empty() {
                return all;
            }
            all = after(&all, &plan, usize::MAX);
        }
        panic!("there is always more to do: {:?}", plan(&all))
    }

    fn removed(all: &Files) -> Files {
        let (folder, saved) = split(all.clone());
        after(all, &Look { folder: &folder, saved: &saved, entry: &entry() }.remove(), usize::MAX)
    }

    /// The meaning of files: white space in JSON is nothing.
    fn meant(files: &Files) -> BTreeMap<&str, Result<serde_json::Value, &Content>> {
        let read = |content| text(content).ok().and_then(|(_, text)| serde_json::from_str(text).ok()).ok_or(content);
        files.iter().map(|(name, content)| (name.as_str(), read(content))).collect()
    }

    fn names(files: &Files) -> Vec<&str> {
        files.keys().filter(|name| is_configuration(name)).map(String::as_str).collect()
    }

    const CALICO: &str = r#"{"name": "k8s", "cniVersion": "1.0.0", "plugins": [{"type": "calico"}]}"#;
    const UNKNOWN: &str = r#"{"name": "k8s", "cniVersion": "0.2.0", "plugins": [{"type": "calico"}]}"#;
    const OLD: &str = r#"{"cniVersion": "1.0.0", "plugins": [{"type": "linkerd-cni", "old": 1}, {"type": "a"}]}"#;
    const CONF: &str = r#"{"type": "bridge", "cniVersion": "0.4.0"}"#;

    #[test]
    fn runtimes_take_the_first_file() {
        let chained = r#"{"name": "n", "cniVersion": "1.0.0", "plugins": [{"type": "a"}, {"type": "linkerd-cni"}]}"#;
        let alone = r#"{"name": "n", "plugins": [{"type": "linkerd-cni"}]}"#;
        let mut files = folder(&[("10-a.conflist", chained), ("20-b.conflist", CALICO)]);
        assert_eq!(first(&Files::new()), None);
        assert_eq!(first(&files), Some(("10-a.conflist", Ok(true))));
        files.insert("05.conflist".to_owned(), file(CALICO));
        assert_eq!(first(&files), Some(("05.conflist", Ok(false))));
        for (text, reason) in [
            (alone, "its only plugin is linkerd-cni, which makes no network"),
            (r#"{"plugins": [{"type": "a"}, {"type": "linkerd-cni"}]}"#, "it has no name"),
        ] {
            files.insert("05.conflist".to_owned(), file(text));
            assert_eq!(first(&files), Some(("05.conflist", Err(reason.to_owned()))));
        }
        files.insert(".0.conf".to_owned(), file(chained));
        assert_eq!(first(&files), Some((".0.conf", Ok(false))));
    }

    #[test]
    fn a_list_that_changed_since_it_was_made_of_a_conf_stays_a_list() {
        let files = folder(&[("99-bridge.conf", CONF)]);
        let mut whole = installed(&files);
        whole.insert("99-bridge.conflist".to_owned(), file(CALICO));
        let removed = removed(&whole);
        assert_eq!(removed, folder(&[("99-bridge.conflist", CALICO)]));
    }

    #[test]
    fn a_conf_that_is_written_anew_takes_the_place_of_the_list_that_was_made_of_it() {
        let newer = CONF.replace("bridge", "newer");
        let mut whole = installed(&folder(&[("99-bridge.conf", CONF)]));
        whole.insert("99-bridge.conf".to_owned(), file(&newer));
        let steps = plan(&whole).changes.iter().map(|change| change.steps.len()).sum();
        for killed in 0..=steps {
            let partly = after(&whole, &plan(&whole), killed);
            let resumed = installed(&partly);
            assert_eq!(names(&resumed), ["99-bridge.conflist"]);
            let expected = folder(&[("99-bridge.conf", &newer)]);
            assert_eq!(removed(&resumed), expected, "killed after step {killed}");
            assert_eq!(removed(&partly), expected, "killed after step {killed}");
        }
    }

    fn content() -> impl Strategy<Value = Content> {
        prop_oneof![
            4 => Just(file(CALICO)),
            2 => Just(file(CONF)),
            2 => Just(file(OLD)),
            1 => Just(file(r#"{"plugins": [{"type": "linkerd-cni"}]}"#)),
            1 => Just(file(UNKNOWN)),
            1 => Just(file(&OLD.replace("1.0.0", "9.9.9"))),
            1 => Just(file("{")),
            1 => Just(file("")),
            1 => Just(Err("it is a symbolic link".to_owned())),
            1 => ".*".prop_map(|text| file(&text)),
        ]
    }

    /// The first configuration that could have the plugin, and whether it has.
    fn first_usable(folder: &Files) -> Option<bool> {
        folder.iter().filter(|(name, _)| is_configuration(name)).find_map(|(_, content)| {
            let text = text(content).ok()?.1;
            conflist::list(text, &entry()).ok().or(conflist::chain(text, &entry()).ok().flatten())?;
            Some(conflist::names_plugin(text))
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            rng_seed: RngSeed::Fixed(seed()),
            ..ProptestConfig::default()
        })]

        /// Whatever the folder holds and wherever the agent is killed: what is left is never worse than before, and the
        /// next agent ends at the same place.
        #[test]
        fn killed_after_any_step_the_next_agent_finishes(
            files in prop::collection::btree_map("\\.?[0-2][0-9]-[ab]\\.(conf(list)?|json)", content(), 0..5),
            killed in 0usize..12,
        ) {
            // Such a list is taken for one that an installer made of the other file.
            let old = file(OLD);
            prop_assume!(!files.iter().any(|(name, content)| *content == old && files.get(&format!("{name}list")) == Some(&old)));
            let partly = after(&files, &plan(&files), killed);
            prop_assert!(first_usable(&files) != Some(true) || first_usable(&partly) == Some(true));
            let whole = installed(&files);
            prop_assert_eq!(&installed(&partly), &whole);
            // Nothing names the plugin after it left, nor is anything of ours there, and all else is as it was.
            let expected: Files = files.iter().map(|(name, content)| {
                let without = text(content).ok().and_then(|(_, text)| conflist::unchain(text).ok().flatten());
                (name.clone(), without.map_or_else(|| content.clone(), |text| file(&text)))
            }).collect();
            for installed in [whole, partly] {
                let removed = removed(&installed);
                prop_assert_eq!(meant(&removed), meant(&expected));
            }
        }
    }
}
