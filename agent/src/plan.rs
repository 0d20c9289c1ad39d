//! What a folder of network configurations shall hold, given what it holds: pure functions.

use std::collections::BTreeMap;

use crate::conflist::{self, Entry, Unusable};
use crate::folder::{Content, Text};

/// The permissions of a list that takes the place of nothing: as upstream's.
const MODE: u32 = 0o644;

/// A change of the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Write a file whole.
    Write {
        /// Its name.
        name: String,
        /// What it will hold.
        text: String,
        /// Its permissions.
        mode: u32,
        /// What it held when the plan was made.
        before: Option<Text>,
    },
    /// Remove a file.
    Remove {
        /// Its name.
        name: String,
        /// What it held when the plan was made.
        before: Option<Text>,
    },
}

impl Step {
    /// The file that it changes.
    pub fn name(&self) -> &str {
        match self {
            Step::Write { name, .. } | Step::Remove { name, .. } => name,
        }
    }

    /// Whether it only puts the entry into a list that is there already, whatever became of the steps before it.
    pub fn stands_alone(&self) -> bool {
        match self {
            Step::Write {
                name,
                text,
                before: Some(_),
                ..
            } => !name.starts_with('.') && conflist::names_plugin(text),
            _ => false,
        }
    }
}

/// The changes, in their order, and what was left alone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// One after another: at no moment is there less than before.
    pub steps: Vec<Step>,
    /// The files that are left as they are, and why.
    pub skipped: Vec<(String, String)>,
    /// How many files will have the entry.
    pub chained: usize,
}

impl Plan {
    fn write(&mut self, name: &str, text: String, before: Option<&Text>) {
        self.steps.push(Step::Write {
            name: name.to_owned(),
            text,
            mode: before.map_or(MODE, |before| before.mode),
            before: before.cloned(),
        });
    }

    fn remove(&mut self, name: &str, before: Option<&Text>) {
        self.steps.push(Step::Remove {
            name: name.to_owned(),
            before: before.cloned(),
        });
    }

    fn skip(&mut self, name: &str, reason: impl ToString) {
        self.skipped.push((name.to_owned(), reason.to_string()));
    }
}

/// Where the entry goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Into each configuration, as upstream's installer puts it.
    Chained,
    /// Into a list of the agent's own, which this is the name of: a copy of the first configuration with the entry,
    /// which runtimes read before that one. Others' files stay as they are, but for those that come even before it.
    Own(String),
}

/// A hidden file that keeps a `.conf` whose place a list took.
fn saved(conf: &str) -> String {
    format!(".{conf}.before-linkerd-cni")
}

fn text(content: &Content) -> Result<(&Text, &str), String> {
    match content {
        Content::Other(reason) => Err(reason.clone()),
        Content::File(file) => {
            let text = std::str::from_utf8(&file.bytes).map_err(|error| format!("it is not UTF-8: {error}"))?;
            Ok((file, text))
        }
    }
}

/// What makes the entry be in the configurations.
pub fn install(folder: &BTreeMap<String, Content>, entry: &Entry, place: &Place) -> Plan {
    let mut plan = Plan::default();
    match place {
        Place::Chained => {
            for (name, content) in folder {
                if let Err(reason) = chain_into(&mut plan, folder, name, content, entry) {
                    plan.skip(name, reason);
                }
            }
        }
        Place::Own(own) => {
            let mut others = folder.iter().filter(|(name, _)| *name != own);
            let main = others.find_map(|(name, content)| match copy(name, content, entry) {
                Ok(copy) => Some(copy),
                Err(reason) => {
                    plan.skip(name, reason);
                    None
                }
            });
            let before = folder.get(own).and_then(|content| text(content).ok());
            match main {
                // After a reboot, the network's own program may not have written its file yet. Ours is what it was.
                None => plan.chained = usize::from(before.is_some()),
                Some(copy) => {
                    plan.chained = 1;
                    if before.is_none_or(|(_, text)| text != copy) {
                        plan.write(own, copy, before.map(|(file, _)| file));
                    }
                }
            }
            if plan.chained > 0 {
                for (name, content) in folder.iter().filter(|(name, _)| *name != own) {
                    if name > own {
                        // From a time when the entry was chained into them.
                        take_out(&mut plan, name, content);
                    } else {
                        // Runtimes read it first. Where it can't be used, they can't either.
                        let _ = chain_into(&mut plan, folder, name, content, entry);
                    }
                }
            }
        }
    }
    plan
}

fn chain_into(
    plan: &mut Plan,
    folder: &BTreeMap<String, Content>,
    name: &str,
    content: &Content,
    entry: &Entry,
) -> Result<(), String> {
    let words = |unusable: Unusable| unusable.to_string();
    let (file, text) = text(content)?;
    if !name.ends_with(".conf") {
        // A .conf of that name comes first, and a list made of it takes this one's place.
        let conf = name.trim_end_matches("list");
        if folder
            .get(conf)
            .is_some_and(|conf| self::text(conf).is_ok_and(|(_, text)| conflist::list(text, entry).is_ok()))
        {
            return Ok(());
        }
        if let Some(chained) = conflist::chain(text, entry).map_err(words)? {
            plan.write(name, chained, Some(file));
        }
        plan.chained += 1;
        return Ok(());
    }
    let list = conflist::list(text, entry).map_err(words)?;
    let list_name = format!("{name}list");
    let before = match folder.get(&list_name) {
        None => None,
        Some(Content::File(before)) => Some(before),
        Some(Content::Other(reason)) => return Err(format!("{list_name} is in the way: {reason}")),
    };
    // To be put back when the plugin leaves.
    plan.steps.push(Step::Write {
        name: saved(name),
        text: text.to_owned(),
        mode: file.mode,
        before: None,
    });
    plan.steps.push(Step::Write {
        name: list_name,
        text: list,
        mode: file.mode,
        before: before.cloned(),
    });
    plan.remove(name, Some(file));
    plan.chained += 1;
    Ok(())
}

/// What the agent's own file holds where this is the main configuration.
fn copy(name: &str, content: &Content, entry: &Entry) -> Result<String, String> {
    let words = |unusable: Unusable| unusable.to_string();
    let (_, text) = text(content)?;
    if name.ends_with(".conf") {
        return conflist::list(text, entry).map_err(words);
    }
    Ok(conflist::chain(text, entry)
        .map_err(words)?
        .unwrap_or_else(|| text.to_owned()))
}

fn take_out(plan: &mut Plan, name: &str, content: &Content) {
    if let Ok((file, text)) = text(content)
        && let Ok(Some(without)) = conflist::unchain(text)
    {
        plan.write(name, without, Some(file));
    }
}

/// What takes the entry out of every configuration; `hidden` are the saved files that the folder holds, by their names.
pub fn remove(
    folder: &BTreeMap<String, Content>,
    hidden: &BTreeMap<String, Content>,
    entry: &Entry,
    place: &Place,
) -> Plan {
    let mut plan = Plan::default();
    for (name, content) in folder {
        if let Place::Own(own) = place
            && name == own
        {
            plan.remove(name, None);
            continue;
        }
        let conf = name.strip_suffix("list").unwrap_or(name);
        let kept = hidden.get(&saved(conf)).and_then(|content| text(content).ok());
        let here = text(content).ok();
        match (kept, here) {
            // The list that was made of a .conf gives way to it.
            (Some((kept, conf_text)), Some((list_file, list)))
                if !folder.contains_key(conf) && is_made_of(list, conf_text, entry) =>
            {
                plan.steps.push(Step::Write {
                    name: conf.to_owned(),
                    text: conf_text.to_owned(),
                    mode: kept.mode,
                    before: None,
                });
                plan.remove(name, Some(list_file));
            }
            _ => take_out(&mut plan, name, content),
        }
    }
    for (name, content) in hidden {
        match text(content) {
            Ok(_) => plan.remove(name, None),
            // It may be all that is left of somebody's file.
            Err(reason) => plan.skip(name, reason),
        }
    }
    plan
}

/// Whether a list is what this `.conf` became, entries apart.
fn is_made_of(list: &str, conf: &str, entry: &Entry) -> bool {
    let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
    let without = |text: &str| value(&conflist::unchain(text).ok()?.unwrap_or_else(|| text.to_owned()));
    let made = conflist::list(conf, entry).ok().and_then(|made| without(&made));
    made.is_some() && made == without(list)
}

/// Whether a file of this name keeps a `.conf`.
pub fn is_saved(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(".before-linkerd-cni")
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
        Content::File(Text {
            bytes: text.into(),
            mode: 0o600,
        })
    }

    fn folder(files: &[(&str, &str)]) -> BTreeMap<String, Content> {
        files
            .iter()
            .map(|(name, text)| ((*name).to_owned(), file(text)))
            .collect()
    }

    /// The folder after the first `steps` steps; hidden files are in it.
    fn after(folder: &BTreeMap<String, Content>, plan: &Plan, steps: usize) -> BTreeMap<String, Content> {
        let mut folder = folder.clone();
        for step in plan.steps.iter().take(steps) {
            match step {
                Step::Write { name, text, mode, .. } => {
                    let bytes = text.clone().into_bytes();
                    folder.insert(name.clone(), Content::File(Text { bytes, mode: *mode }));
                }
                Step::Remove { name, .. } => drop(folder.remove(name)),
            }
        }
        folder
    }

    fn split(folder: BTreeMap<String, Content>) -> (BTreeMap<String, Content>, BTreeMap<String, Content>) {
        folder.into_iter().partition(|(name, _)| !name.starts_with('.'))
    }

    const CALICO: &str = r#"{"name": "k8s", "plugins": [{"type": "calico"}]}"#;
    const CONF: &str = r#"{"type": "bridge", "cniVersion": "0.4.0"}"#;

    #[test]
    fn every_usable_file_gets_the_entry_and_nothing_is_fatal() {
        let mut files = folder(&[
            ("10-calico.conflist", CALICO),
            ("20-half.conflist", "{\"plugins\": ["),
            ("30-none.conf", "{}"),
        ]);
        files.insert(
            "40-link.conf".to_owned(),
            Content::Other("it is a symbolic link".to_owned()),
        );
        files.insert(
            "50-bytes.conf".to_owned(),
            Content::File(Text {
                bytes: vec![0xff],
                mode: 0o644,
            }),
        );
        let plan = install(&files, &entry(), &Place::Chained);
        let skipped: Vec<&str> = plan.skipped.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            skipped,
            ["20-half.conflist", "30-none.conf", "40-link.conf", "50-bytes.conf"]
        );
        assert_eq!((plan.steps.len(), plan.chained), (1, 1));
        let [Step::Write { name, mode, .. }] = &plan.steps[..] else {
            panic!("{plan:?}")
        };
        assert_eq!((name.as_str(), *mode), ("10-calico.conflist", 0o600));
    }

    #[test]
    fn a_conf_gives_way_to_a_list_and_comes_back_with_every_byte() {
        let files = folder(&[("99-bridge.conf", CONF)]);
        let plan = install(&files, &entry(), &Place::Chained);
        let (installed, hidden) = split(after(&files, &plan, 9));
        assert_eq!(installed.keys().collect::<Vec<_>>(), ["99-bridge.conflist"]);
        let again = install(&installed, &entry(), &Place::Chained);
        assert_eq!((again.steps.len(), again.chained), (0, 1));
        let all = installed.clone().into_iter().chain(hidden.clone()).collect();
        let removed = after(&all, &remove(&installed, &hidden, &entry(), &Place::Chained), 9);
        assert_eq!(removed, files);
    }

    #[test]
    fn a_list_that_changed_since_it_was_made_of_a_conf_stays_a_list() {
        let files = folder(&[("99-bridge.conf", CONF)]);
        let plan = install(&files, &entry(), &Place::Chained);
        let (mut installed, hidden) = split(after(&files, &plan, 9));
        installed.insert("99-bridge.conflist".to_owned(), file(CALICO));
        let all = installed.clone().into_iter().chain(hidden.clone()).collect();
        let removed = after(&all, &remove(&installed, &hidden, &entry(), &Place::Chained), 9);
        assert_eq!(removed, folder(&[("99-bridge.conflist", CALICO)]));
    }

    #[test]
    fn a_file_of_its_own_is_a_copy_of_the_first_and_follows_it() {
        let own = Place::Own("00-linkerd-cni.conflist".to_owned());
        let files = folder(&[
            ("05-broken.conf", "{"),
            ("10-calico.conflist", CALICO),
            ("20-x.conflist", CALICO),
        ]);
        let plan = install(&files, &entry(), &own);
        let installed = after(&files, &plan, 9);
        assert_eq!(plan.chained, 1);
        assert_eq!(
            installed.get("10-calico.conflist"),
            files.get("10-calico.conflist"),
            "others' files stay"
        );
        let Some(Content::File(text)) = installed.get("00-linkerd-cni.conflist") else {
            panic!("{installed:?}")
        };
        assert!(String::from_utf8_lossy(&text.bytes).contains("calico"));
        assert_eq!(install(&installed, &entry(), &own).steps, []);
        // Another network.
        let mut changed = installed.clone();
        changed.insert(
            "10-calico.conflist".to_owned(),
            file(&CALICO.replace("calico", "cilium")),
        );
        assert_eq!(install(&changed, &entry(), &own).steps.len(), 1);
        // A reboot: there is only ours.
        let only = split(installed.clone()).0.into_iter().take(1).collect();
        let plan = install(&only, &entry(), &own);
        assert_eq!((plan.steps.len(), plan.chained), (0, 1));
        // Leaving.
        let none = BTreeMap::new();
        assert_eq!(after(&installed, &remove(&installed, &none, &entry(), &own), 9), files);
    }

    #[test]
    fn going_over_to_a_file_of_its_own_takes_the_entry_out_of_the_others_afterwards() {
        let files = folder(&[("10-calico.conflist", CALICO)]);
        let chained = after(&files, &install(&files, &entry(), &Place::Chained), 9);
        let plan = install(&chained, &entry(), &Place::Own("00-own.conflist".to_owned()));
        let names: Vec<&str> = plan.steps.iter().map(Step::name).collect();
        assert_eq!(names, ["00-own.conflist", "10-calico.conflist"]);
        let now = after(&chained, &plan, 9);
        assert_eq!(now.get("10-calico.conflist"), files.get("10-calico.conflist"));
    }

    fn content() -> impl Strategy<Value = Content> {
        prop_oneof![
            4 => Just(file(CALICO)),
            2 => Just(file(CONF)),
            2 => Just(file(r#"{"plugins": [{"type": "linkerd-cni", "old": 1}, {"type": "a"}]}"#)),
            1 => Just(file(r#"{"plugins": [{"type": "linkerd-cni"}]}"#)),
            1 => Just(file("{")),
            1 => Just(file("")),
            1 => Just(Content::Other("it is a symbolic link".to_owned())),
            1 => ".*".prop_map(|text| file(&text)),
        ]
    }

    /// The first configuration that a runtime would take, and whether it has the plugin.
    fn first(folder: &BTreeMap<String, Content>) -> Option<bool> {
        folder
            .iter()
            .filter(|(name, _)| !name.starts_with('.'))
            .find_map(|(_, content)| {
                let text = text(content).ok()?.1;
                conflist::list(text, &entry())
                    .ok()
                    .or(conflist::chain(text, &entry()).ok().flatten())?;
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
            files in prop::collection::btree_map("[0-2][0-9]-[ab]\\.conf(list)?", content(), 0..5),
            own in any::<bool>(),
            killed in 0usize..12,
        ) {
            let place = if own { Place::Own("00-linkerd-cni.conflist".to_owned()) } else { Place::Chained };
            let plan = install(&files, &entry(), &place);
            let whole = after(&files, &plan, usize::MAX);
            let partly = after(&files, &plan, killed);
            prop_assert!(first(&files) != Some(true) || first(&partly) == Some(true));
            let (visible, _) = split(partly.clone());
            let resumed = after(&partly, &install(&visible, &entry(), &place), usize::MAX);
            prop_assert_eq!(split(resumed).0, split(whole.clone()).0);
            // There is nothing left to do then.
            let (visible, hidden) = split(whole.clone());
            prop_assert_eq!(install(&visible, &entry(), &place).steps, vec![]);
            // And nothing names the plugin after it left, nor is anything of ours there.
            let removed = after(&whole, &remove(&visible, &hidden, &entry(), &place), usize::MAX);
            for (name, content) in &removed {
                prop_assert!(!name.starts_with('.'));
                if let Ok((_, text)) = text(content) {
                    prop_assert!(conflist::unchain(text) != Ok(None) || !conflist::names_plugin(text), "{}", text);
                }
            }
        }
    }
}
