//! Puts the plugin on the node and keeps it there: one pass looks at everything and mends what differs.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use kube::runtime::events::EventType;
use tracing::{error, info, warn};

use crate::admin::Health;
use crate::conflist::{Entry, PLUGIN};
use crate::folder::{Folder, LOCK, Lock, Text};
use crate::kubeconfig;
use crate::plan::{self, Change, Files, Look, Step};
use crate::settings::{Installation, Settings};
use crate::status::Asked;
use crate::tell::{self, Teller};
use crate::throttle::Throttle;
use crate::watch::Watch;

/// The kubeconfig's permissions: it has a token in it.
const KUBECONFIG_MODE: u32 = 0o600;
/// The pause between two passes where nothing has changed.
const QUIET: Duration = Duration::from_secs(30);
/// The same after an error, while another agent owns the folder, and where the kernel doesn't say what changes.
const SOON: Duration = Duration::from_secs(1);
/// The time that the runtime gets to notice that the configuration no longer names the plugin, before its binary goes.
const GRACE: Duration = Duration::from_secs(2);
/// The time that an agent that uninstalls waits for another one to take the lock: a look of that agent's, and some more.
const HANDOVER: Duration = Duration::from_secs(2);
/// The most times that a plan for leaving is made anew because somebody else wrote at the same time.
const TRIES: usize = 5;

/// The keeper's state after a pass.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// When to look again even if nothing changes.
    pub(crate) again: Duration,
    /// True if all is there that a pod takes to be set up, and the plugin has said that it could.
    is_installed: bool,
    /// The number of configurations that have the entry.
    pub(crate) configurations: usize,
    /// True if this agent of the node owns the folders.
    pub(crate) owns: bool,
    facts: BTreeSet<Fact>,
}

/// Something that isn't as it should be, in words. They are told when it is new, and when it is over.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Fact {
    /// The pass failed, or a part of it.
    Failed(String),
    /// There is nothing to add the entry to.
    Waiting(String),
    /// The plugin says that it couldn't set up a pod.
    Refused(String),
    /// The file of this name is left as it is.
    Skipped(String, String),
    /// Another program rewrites the file of this name again and again.
    Contested(String, String),
}

impl Fact {
    fn words(&self) -> &str {
        let (Self::Failed(words)
        | Self::Waiting(words)
        | Self::Refused(words)
        | Self::Skipped(_, words)
        | Self::Contested(_, words)) = self;
        words
    }

    /// The reason of the event of the node that tells of it, and the action in it; none: only the log does.
    fn event(&self) -> Option<(&'static str, String)> {
        match self {
            Self::Failed(_) | Self::Waiting(_) => None,
            Self::Refused(_) => Some(("LinkerdCNIRefused", "Asking the plugin".to_owned())),
            Self::Skipped(name, _) => Some(("LinkerdCNISkipped", format!("Chaining {name}"))),
            Self::Contested(name, _) => Some(("LinkerdCNIContested", format!("Chaining {name}"))),
        }
    }
}

impl State {
    /// Returns true if a pod could be set up, and no file that this takes will be gone in a moment.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_installed && self.contested() == 0
    }

    /// The number of files that another program rewrites again and again.
    pub(crate) fn contested(&self) -> usize {
        self.facts.iter().filter(|fact| matches!(fact, Fact::Contested(..))).count()
    }

    fn wait(&mut self, time: Duration) {
        self.again = self.again.min(time);
    }

    fn failed(&mut self, reason: String) {
        self.facts.insert(Fact::Failed(reason));
    }

    /// Looks at what is in the folders by now. `is_accepted` is the plugin's word that it could set up a pod.
    fn look_at(&mut self, net: &Folder, bin: &Folder, kubeconfig: &str, is_accepted: bool) -> Result<(), String> {
        let (files, _) = read_all(net)?;
        let needs_kubeconfig = plan::entry_of(&files).is_none_or(|entry| entry.needs_kubeconfig());
        self.configurations = plan::count_chained(&files);
        let Some((name, has_plugin)) = plan::first(&files) else {
            let path = net.path().display();
            self.facts.insert(Fact::Waiting(format!(
                "{path} has no network configuration yet that the plugin could be added to; waiting for one"
            )));
            return Ok(());
        };
        let has_kubeconfig = !needs_kubeconfig || net.has(kubeconfig);
        self.is_installed = is_accepted && bin.has(PLUGIN) && has_kubeconfig && has_plugin == Ok(true);
        let is_skipped = self.facts.iter().any(|fact| matches!(fact, Fact::Skipped(skipped, _) if skipped == name));
        let reason = match has_plugin {
            Err(reason) => reason,
            Ok(false) if is_skipped => "the plugin cannot be added to it".to_owned(),
            // The reason why a file has no entry yet is said elsewhere.
            Ok(_) => return Ok(()),
        };
        self.failed(format!(
            "{} comes first by name, so that runtimes take it, or start no pod: {reason}",
            net.path().join(name).display()
        ));
        Ok(())
    }
}

/// The node's folders.
struct Folders {
    net: Folder,
    bin: Folder,
}

impl Folders {
    fn open(installation: &Installation) -> Result<Self, String> {
        let open = |path: &Path| {
            Folder::open(path).map_err(|error| {
                format!("{} cannot be opened: {error}: is the node's folder mounted there?", path.display())
            })
        };
        Ok(Self { net: open(&installation.net())?, bin: open(&installation.bin())? })
    }

    /// Takes the lock, unless another agent has it, and removes the files that a killed predecessor had not finished.
    /// Returns true if this agent has the lock, which is in `lock` then.
    fn own(&self, lock: &mut Option<Lock>) -> Result<bool, String> {
        if lock.as_ref().is_some_and(|lock| self.net.is_locked_by(lock)) {
            return Ok(true);
        }
        *lock = self.net.lock().map_err(|error| {
            let path = self.net.path().join(LOCK);
            format!("{} cannot be locked: {error}: is the folder writable?", path.display())
        })?;
        for folder in [&self.net, &self.bin].into_iter().filter(|_| lock.is_some()) {
            if let Err(error) = folder.remove_unfinished() {
                warn!("{}: {error}", folder.path().display());
            }
        }
        Ok(lock.is_some())
    }
}

/// The image's program.
struct Source {
    path: PathBuf,
    mode: u32,
}

impl Source {
    fn read(installation: &Installation) -> Result<Self, String> {
        let path = installation.source.join(PLUGIN);
        let metadata = path.metadata().map_err(|error| {
            format!("the image's plugin cannot be read: {}: {error}: is CONTAINER_CNI_BIN_DIR right?", path.display())
        })?;
        Ok(Self { path, mode: metadata.mode() & 0o7777 })
    }

    /// Returns true if it is in its place.
    fn is_in(&self, bin: &Folder) -> bool {
        File::open(&self.path).and_then(|file| bin.is_same(PLUGIN, file, self.mode)).unwrap_or(false)
    }
}

/// Keeps the plugin on the node.
pub(crate) struct Keeper {
    installation: Installation,
    /// Held while this agent owns the node's folders.
    lock: Option<Lock>,
    watch: Watch,
    /// True if another agent had the lock when this one last tried to take it.
    stands_by: bool,
    throttle: Throttle,
    asked: Option<Asked>,
    /// Since when no entry needs the kubeconfig that is there.
    idle_kubeconfig: Option<Instant>,
    /// The entry that the configurations have, or had when one last had one.
    kept: Option<Entry>,
    /// The facts that were told.
    told: BTreeSet<Fact>,
    teller: Teller,
    /// The node's name, if it is known.
    node: Option<String>,
    health: Arc<Health>,
}

impl Keeper {
    pub(crate) fn new(settings: &Settings, teller: Teller, health: &Arc<Health>) -> Self {
        Self {
            installation: settings.installation.clone(),
            lock: None,
            watch: Watch::default(),
            stands_by: false,
            throttle: Throttle::default(),
            asked: None,
            idle_kubeconfig: None,
            kept: None,
            told: BTreeSet::new(),
            teller,
            node: settings.node.clone(),
            health: Arc::clone(health),
        }
    }

    /// Waits until something in the node's folders has changed.
    pub(crate) async fn changed(&self) {
        self.watch.changed().await;
    }

    /// Looks at everything and mends what differs: first the programs, then the kubeconfig, then the configurations, so
    /// that none ever names a program that isn't there. What works is replaced once the plugin says that it could set up
    /// pods with what takes its place. It may be given up while the plugin is asked.
    pub(crate) async fn pass(&mut self) -> State {
        let mut state = State { again: QUIET, ..State::default() };
        if let Err(error) = self.watch_folders() {
            state.failed(format!(
                "inotify: {error}: the node's folders are looked at every second instead \
                 (fs.inotify.max_user_instances and max_user_watches limit it)"
            ));
            state.wait(SOON);
        }
        if let Err(reason) = self.keep(&mut state).await {
            state.failed(reason);
            state.wait(SOON);
        }
        for (name, failure, rest) in self.throttle.troubles(Instant::now()) {
            state.facts.insert(failure.map_or_else(|| contested(&name), Fact::Failed));
            state.wait(rest);
        }
        self.tell(&state);
        state
    }

    /// Tells what is new, and what is over.
    fn tell(&mut self, state: &State) {
        let before = std::mem::replace(&mut self.told, state.facts.clone());
        for fact in self.told.difference(&before) {
            let words = fact.words();
            match (fact.event(), &self.node) {
                (Some((reason, action)), Some(node)) => {
                    self.teller.tell(&tell::node(node), EventType::Warning, reason, &action, words);
                }
                _ if matches!(fact, Fact::Failed(_)) => error!("{words}"),
                _ => warn!("{words}"),
            }
        }
        for fact in before.difference(&self.told) {
            info!("no longer: {}", fact.words());
        }
    }

    /// Watches the node's folders; on an error, not all that there are.
    fn watch_folders(&mut self) -> io::Result<()> {
        let installation = &self.installation;
        let mut folders = vec![installation.net(), installation.bin(), installation.service_account.clone()];
        folders.extend(installation.authority().parent().map(Path::to_owned));
        folders.iter().try_for_each(|folder| self.watch.add(folder))
    }

    async fn keep(&mut self, state: &mut State) -> Result<(), String> {
        // Others may have the places of the folders that were there before.
        let folders = Folders::open(&self.installation)?;
        state.owns = folders.own(&mut self.lock)?;
        let Folders { net, bin } = &folders;
        let stood_by = std::mem::replace(&mut self.stands_by, !state.owns);
        let is_accepted = if state.owns {
            if stood_by {
                info!("the agent that owned {} is gone; this one takes over", net.path().display());
            }
            self.mend(state, net, bin).await?
        } else {
            state.wait(SOON);
            // The owner has asked the plugin.
            true
        };
        state.look_at(net, bin, &self.installation.kubeconfig, is_accepted)
    }

    /// Mends what differs. Returns true if the plugin says that it could set up a pod with what is to be installed, and its
    /// program is in place.
    async fn mend(&mut self, state: &mut State, net: &Folder, bin: &Folder) -> Result<bool, String> {
        let source = Source::read(&self.installation)?;
        if !bin.has(PLUGIN) {
            self.program(state, bin, &source);
        }
        self.kept = plan::entry_of(&read_all(net)?.0).or(self.kept.take());
        let wanted = self.installation.entry();
        let needs_kubeconfig = wanted.iter().chain(&self.kept).any(Entry::needs_kubeconfig);
        if needs_kubeconfig {
            self.kubeconfig(state, net);
        } else {
            self.remove_kubeconfig(state, net);
        }
        let has_kubeconfig = !needs_kubeconfig || net.has(&self.installation.kubeconfig);
        let refused = match &wanted {
            Err(reason) => Some(reason.clone()),
            Ok(entry) if has_kubeconfig => {
                let asked = Asked::ask(self.asked.take(), entry, &self.installation).await;
                state.wait(asked.wait().unwrap_or(QUIET));
                self.asked.insert(asked).refused.clone()
            }
            // The plugin would only say that it has no kubeconfig.
            Ok(_) => None,
        };
        if let Some(reason) = &refused {
            let words = "what is on the node stays as it is: with what is to be installed";
            state.facts.insert(Fact::Refused(format!("{words}, {reason}")));
        }
        let mut is_in_place = false;
        let entry = match wanted {
            Ok(entry) if has_kubeconfig && refused.is_none() => {
                is_in_place = self.program(state, bin, &source);
                Some(entry)
            }
            _ => self.kept.clone(),
        };
        // No configuration names what isn't there.
        if let Some(entry) = entry.filter(|_| has_kubeconfig && bin.has(PLUGIN)) {
            self.configurations(state, net, &entry)?;
        }
        Ok(is_in_place)
    }

    /// Changes a file, unless that is held back. None if nothing was done.
    fn change<T>(&mut self, state: &mut State, name: &str, work: impl FnOnce() -> Result<T, String>) -> Option<T> {
        let now = Instant::now();
        let mut done = None;
        if self.throttle.wait(name, now).is_zero() {
            let made = work();
            self.throttle.tried(name, now, made.as_ref().err().cloned());
            done = made.ok();
        }
        if done.is_none() {
            state.wait(self.throttle.wait(name, now));
        }
        done
    }

    /// Puts the image's program in its place. Returns true if the program is there.
    fn program(&mut self, state: &mut State, bin: &Folder, source: &Source) -> bool {
        if source.is_in(bin) {
            return true;
        }
        let path = bin.path().join(PLUGIN);
        let write = || {
            let written = File::open(&source.path).and_then(|mut file| bin.write(PLUGIN, &mut file, source.mode, None));
            written.map_err(|error| {
                format!(
                    "the plugin cannot be installed: {}: {error}: if that folder is read-only, set destCNIBinDir to the \
                     folder that this node's runtime takes plugins from (docs/node.md)",
                    path.display()
                )
            })
        };
        if self.change(state, PLUGIN, write).is_none() {
            return false;
        }
        self.health.metrics.count("program", 1);
        info!("installed {}", path.display());
        // Somebody else may have been faster.
        source.is_in(bin)
    }

    /// Removes the kubeconfig that no entry needs any more, once plugins that had started before are done.
    fn remove_kubeconfig(&mut self, state: &mut State, net: &Folder) {
        let path = net.path().join(&self.installation.kubeconfig);
        if !net.has(&self.installation.kubeconfig) {
            return;
        }
        if self.idle_kubeconfig.get_or_insert_with(Instant::now).elapsed() < GRACE {
            return state.wait(GRACE);
        }
        match net.remove(&self.installation.kubeconfig) {
            Ok(()) => info!("removed {}, which nobody needs", path.display()),
            Err(error) => state.failed(format!("{}: {error}", path.display())),
        }
    }

    /// Writes the kubeconfig, if it isn't what it should be.
    fn kubeconfig(&mut self, state: &mut State, net: &Folder) {
        self.idle_kubeconfig = None;
        let text = read(&self.installation.service_account.join("token"))
            .and_then(|token| kubeconfig::text(&self.installation, &token, &read(&self.installation.authority())?));
        let bytes = match text {
            Ok(text) => text.into_bytes(),
            Err(reason) => {
                state.failed(reason);
                return state.wait(SOON);
            }
        };
        let name = self.installation.kubeconfig.clone();
        let wanted = Text { bytes: bytes.clone(), mode: KUBECONFIG_MODE };
        if net.read(&name) == Some(Ok(wanted)) {
            return;
        }
        let path = net.path().join(&name);
        let write = || {
            let written = net.write(&name, &mut bytes.as_slice(), KUBECONFIG_MODE, None);
            written.map_err(|error| format!("the kubeconfig cannot be written: {}: {error}", path.display()))
        };
        if self.change(state, &name, write).is_some() {
            self.health.metrics.count("kubeconfig", 1);
            info!("wrote {}", path.display());
        }
    }

    /// Has the entry in each configuration. What others write at the same time is seen in the next pass.
    fn configurations(&mut self, state: &mut State, net: &Folder, entry: &Entry) -> Result<(), String> {
        let (folder, saved) = read_all(net)?;
        let plan = Look { folder: &folder, saved: &saved, entry }.install();
        for change in &plan.changes {
            let written = self.change(state, &change.name, || make(net, change));
            self.health.metrics.count("configuration", written.unwrap_or_default());
        }
        for (name, reason) in plan.skipped {
            let words = format!("{} is left as it is: {reason}", net.path().join(&name).display());
            state.facts.insert(Fact::Skipped(name, words));
        }
        Ok(())
    }

    /// Leaves the node. If `uninstalls`, and no other agent is there, everything is taken back: the configurations
    /// first, then, after the runtime had time to notice, kubeconfig and programs.
    pub(crate) fn leave(mut self, uninstalls: bool) -> Result<(), String> {
        if !uninstalls {
            info!("the plugin stays on the node");
            return Ok(());
        }
        // Another agent on the node takes the lock meanwhile.
        drop(self.lock.take());
        sleep(HANDOVER);
        let folders = Folders::open(&self.installation)?;
        if !folders.own(&mut self.lock)? {
            info!("another agent is on this node: the plugin is left to it");
            return Ok(());
        }
        remove_all(&self.installation, &folders)
    }
}

/// Takes everything back, where no agent is left that could, and where none runs, which would put it back.
pub(crate) fn uninstall(installation: &Installation) -> Result<(), String> {
    let (folders, mut lock) = (Folders::open(installation)?, None);
    if folders.own(&mut lock)? {
        return remove_all(installation, &folders);
    }
    let advice = "take the node out of its DaemonSet, or delete that, and the agent removes the plugin itself";
    Err(format!("an agent runs on this node, and would put the plugin back: {advice}"))
}

/// Removes the plugin if an agent has left it on the node and none keeps it there, as where the node was down while its
/// DaemonSet was deleted. Linkerd's installer has written no agent into its entry, and is left alone.
pub(crate) fn remove_left_behind(installation: &Installation) -> Result<(), String> {
    // Where the folders aren't mounted, nothing can be done.
    let Ok(folders) = Folders::open(installation) else { return Ok(()) };
    let Ok((files, _)) = read_all(&folders.net) else { return Ok(()) };
    let agent = plan::entry_of(&files).and_then(|entry| Some(entry.agent()?.to_owned()));
    let mut lock = None;
    let Some(agent) = agent.filter(|_| folders.own(&mut lock) == Ok(true)) else { return Ok(()) };
    warn!("the plugin of the agent {agent} was left behind, and is being removed from the node");
    remove_all(installation, &folders)
        .map_err(|reason| format!("the plugin of the agent {agent}, left behind: {reason}"))
}

/// Cilium's agent keeps others' entries out of its file (`cni.exclusive` in its chart; linkerd2's issues 10375 and 11597).
fn contested(name: &str) -> Fact {
    let words = format!(
        "{name} is rewritten again and again by another program. Until that ends, pods may start without rules, or not at \
         all: set `cni.exclusive=false` in Cilium's chart, or see which other DaemonSets mount the folder"
    );
    Fact::Contested(name.to_owned(), words)
}

/// Makes a change, until somebody else is faster: then another plan has to be made. Returns how many configurations were
/// written.
fn make(net: &Folder, change: &Change) -> Result<u64, String> {
    let mut written = 0;
    for step in &change.steps {
        let is_made = take(net, step).map_err(|error| {
            let path = net.path().join(&change.name);
            format!("{} cannot be changed: {error}", path.display())
        })?;
        if !is_made {
            break;
        }
        written += u64::from(step.after.is_some() && step.before.is_some());
    }
    Ok(written)
}

/// Takes a step. Returns false if somebody else was faster.
fn take(net: &Folder, Step { name, before, after }: &Step) -> io::Result<bool> {
    let is_made = match (after, before) {
        (Some(Text { bytes, mode }), _) => net.write(name, &mut bytes.as_slice(), *mode, before.as_ref())?,
        (None, Some(Some(before))) => net.remove_expected(name, before)?,
        (None, _) => net.remove(name).map(|()| true)?,
    };
    if is_made {
        let did = if after.is_some() { "wrote" } else { "removed" };
        info!("{did} {}", net.path().join(name).display());
    }
    Ok(is_made)
}

/// The configurations, and the files that keep some.
fn read_all(net: &Folder) -> Result<(Files, Files), String> {
    let is_meant = |name: &str| plan::is_configuration(name) || plan::saved_of(name).is_some();
    let files = net.files(is_meant).map_err(|error| format!("{} cannot be read: {error}", net.path().display()))?;
    Ok(files.into_iter().partition(|(name, _)| plan::is_configuration(name)))
}

/// Takes everything back, and tries each part even if another failed.
fn remove_all(installation: &Installation, Folders { net, bin }: &Folders) -> Result<(), String> {
    // By hand, it may be done without the configuration.
    let entry = installation.entry().unwrap_or_else(|_| Entry::bare());
    let mut named = false;
    let mut done = Err("somebody else writes the configurations at the same time".to_owned());
    for _ in 0..TRIES {
        let (folder, saved) = read_all(net)?;
        let plan = Look { folder: &folder, saved: &saved, entry: &entry }.remove();
        named |= !plan.changes.is_empty();
        let failures: Vec<String> = plan.changes.iter().filter_map(|change| make(net, change).err()).collect();
        if plan.changes.is_empty() || !failures.is_empty() {
            let unknown = |(name, reason): (String, String)| format!("{}: {reason}", net.path().join(name).display());
            let failure = failures.into_iter().chain(plan.skipped.into_iter().map(unknown)).next();
            done = failure.map_or(Ok(()), Err);
            break;
        }
    }
    // While a configuration names the plugin, its program has to be there.
    done?;
    if named {
        sleep(GRACE);
    }
    let mut failures = Vec::new();
    for (folder, name) in [(net, installation.kubeconfig.as_str()), (bin, PLUGIN), (net, LOCK)] {
        let path = folder.path().join(name);
        match folder.remove(name) {
            Ok(()) => info!("removed {}", path.display()),
            Err(error) => failures.push(format!("{}: {error}", path.display())),
        }
    }
    if failures.is_empty() {
        return Ok(());
    }
    Err(format!("not everything could be removed: {}", failures.join("; ")))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))
}
