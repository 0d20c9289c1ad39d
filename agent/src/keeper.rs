//! Puts the plugin on the node and keeps it there: one pass looks at everything and mends what differs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tracing::{debug, error, info, warn};

use crate::admin::Health;
use crate::conflist::{self, Entry, PLUGIN};
use crate::folder::{Content, Folder, Stamp, Text};
use crate::kubeconfig::Kubeconfig;
use crate::owner::{self, Lock};
use crate::plan::{self, Change, Files, Look, Step};
use crate::settings::Installation;
use crate::status::{self, Answer, Inquiry, Subject};
use crate::throttle::{Throttle, Trouble};

/// The kubeconfig's permissions: it has a token in it.
const KUBECONFIG_MODE: u32 = 0o600;
/// The longest token or certificate that is read.
const LONGEST: u64 = 1 << 20;
/// How long after a pass the next one comes without anything having changed.
const QUIET: Duration = Duration::from_secs(30);
/// The same after an error, and while another agent owns the folder.
const SOON: Duration = Duration::from_secs(1);
/// How long the runtime gets to notice that the configuration no longer names the plugin, before its binary goes.
const GRACE: Duration = Duration::from_secs(2);
/// How long an agent that uninstalls waits for another one to take the lock: a look of that agent's, and some more.
const HANDOVER: Duration = Duration::from_secs(2);
/// How often a plan is made anew because somebody else wrote at the same time.
const TRIES: usize = 5;

/// How it stands after a pass. Texts are for people.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct State {
    /// When to look again even if nothing changes.
    pub(crate) again: Duration,
    pub(crate) has_program: bool,
    /// True if the kubeconfig is in place, or isn't needed.
    pub(crate) has_kubeconfig: bool,
    /// How many configurations have the entry.
    pub(crate) configurations: usize,
    /// True if the configuration that runtimes take first has it.
    pub(crate) is_first: bool,
    /// True if the plugin says that it could set up a pod, with what is to be installed.
    pub(crate) is_accepted: bool,
    /// Why it says that it couldn't.
    pub(crate) refused: Option<String>,
    /// True if another agent of the node owns the folder.
    pub(crate) standby: bool,
    /// The obstacles.
    pub(crate) trouble: Vec<String>,
    /// The events that the agent waits for.
    pub(crate) notes: Vec<String>,
    /// The files that are left as they are, and why.
    pub(crate) skipped: BTreeMap<String, String>,
    /// The files that another program rewrites again and again, and what to do.
    pub(crate) contested: BTreeMap<String, String>,
}

impl State {
    /// Returns true if all files are there that a pod takes to be set up.
    pub(crate) fn is_installed(&self) -> bool {
        self.has_program && self.has_kubeconfig && self.is_first && self.is_accepted && self.contested.is_empty()
    }

    fn wait(&mut self, time: Duration) {
        self.again = self.again.min(time);
    }

    fn look_at(&mut self, net: &Folder, folder: &Files) {
        self.configurations = plan::count_chained(folder);
        let Some((name, has_plugin)) = plan::first(folder) else {
            self.notes.push(format!(
                "{} has no network configuration yet that the plugin could be added to; waiting for one",
                net.path().display()
            ));
            return;
        };
        let reason = match has_plugin {
            Ok(has_plugin) if has_plugin || !self.skipped.contains_key(name) => {
                // Why a file has no entry yet is said elsewhere.
                self.is_first = has_plugin;
                return;
            }
            Ok(_) => "the plugin cannot be added to it".to_owned(),
            Err(reason) => reason,
        };
        self.trouble.push(format!(
            "{} comes first by name, so that runtimes take it, or start no pod: {reason}",
            net.path().join(name).display()
        ));
    }
}

/// The node's folders, and the lock on them if this agent has it.
struct Folders {
    net: Folder,
    bin: Folder,
    lock: Option<Lock>,
}

impl Folders {
    fn open(installation: &Installation) -> Result<Self, String> {
        let open = |path: &Path| {
            Folder::open(path).map_err(|error| {
                format!("{} cannot be opened: {error}: is the node's folder mounted there?", path.display())
            })
        };
        Ok(Self { net: open(&installation.net())?, bin: open(&installation.bin())?, lock: None })
    }

    /// Takes the lock, unless another agent has it, and removes the files that a killed predecessor had not finished. Returns
    /// true if this agent has the lock.
    fn own(&mut self) -> Result<bool, String> {
        if self.lock.as_ref().is_none_or(Lock::is_void) {
            self.lock = Lock::take(&self.net).map_err(|error| {
                let path = self.net.path().join(owner::FILE);
                format!("{} cannot be locked: {error}: is the folder writable?", path.display())
            })?;
            for folder in [&self.net, &self.bin].into_iter().filter(|_| self.lock.is_some()) {
                if let Err(error) = folder.remove_unfinished() {
                    warn!("{}: {error}", folder.path().display());
                }
            }
        }
        Ok(self.lock.is_some())
    }
}

/// The image's program.
struct Source {
    path: PathBuf,
    stamp: Stamp,
    mode: u32,
}

impl Source {
    fn read(installation: &Installation) -> Result<Self, String> {
        let path = installation.source.join(PLUGIN);
        let metadata = path.metadata().map_err(|error| {
            format!("the image's plugin cannot be read: {}: {error}: is CONTAINER_CNI_BIN_DIR right?", path.display())
        })?;
        Ok(Self { path, stamp: Stamp::from(&metadata), mode: metadata.mode() & 0o7777 })
    }
}

/// Keeps the plugin on the node.
pub(crate) struct Keeper {
    installation: Installation,
    folders: Option<Folders>,
    /// True if another agent had the lock when this one last tried to take it.
    stands_by: bool,
    /// The image's program and the node's, when they were last found to have the same bytes.
    known: Option<(Stamp, Stamp)>,
    throttle: Throttle,
    inquiry: Inquiry,
    /// The entry that the configurations have, or had when one last had one.
    kept: Option<Entry>,
    /// The lines that the log has already, so that not each pass adds them, and whether each is an error.
    said: BTreeMap<String, bool>,
    health: Arc<Health>,
}

impl Keeper {
    pub(crate) fn new(installation: Installation, health: Arc<Health>) -> Self {
        Self {
            installation,
            folders: None,
            stands_by: false,
            known: None,
            throttle: Throttle::default(),
            inquiry: Inquiry::default(),
            kept: None,
            said: BTreeMap::new(),
            health,
        }
    }

    /// Waits until the plugin has answered the question of the last pass.
    pub(crate) async fn answered(&mut self) {
        self.inquiry.answered().await;
    }

    /// Looks at everything and mends what differs: first the programs, then the kubeconfig, then the configurations, so
    /// that none ever names a program that isn't there. What works is replaced once the plugin says that it could set up
    /// pods with what takes its place.
    pub(crate) fn pass(&mut self) -> State {
        let mut state = State { again: QUIET, ..State::default() };
        // Others may have the places of the node's folders by now.
        let folders = self.folders.take().filter(|folders| !folders.net.is_gone() && !folders.bin.is_gone());
        let done = folders.map_or_else(|| Folders::open(&self.installation), Ok).and_then(|mut folders| {
            let done = self.keep(&mut state, &mut folders);
            self.folders = Some(folders);
            done
        });
        if let Err(trouble) = done {
            state.trouble.push(trouble);
            state.wait(SOON);
        }
        for (name, trouble, rest) in self.throttle.troubles(Instant::now()) {
            match trouble {
                Trouble::Contested(line) => drop(state.contested.insert(name, line)),
                Trouble::Failed(reason) => state.trouble.push(reason),
            }
            state.wait(rest);
        }
        self.say(&state);
        state
    }

    /// Says in the log what is new, and what is over.
    fn say(&mut self, state: &State) {
        let errors = state.trouble.iter().chain(&state.refused).chain(state.contested.values());
        let notes = state.notes.iter().chain(state.skipped.values());
        let lines = errors.map(|line| (line.clone(), true)).chain(notes.map(|line| (line.clone(), false)));
        let before = std::mem::replace(&mut self.said, lines.collect());
        for (line, is_error) in self.said.iter().filter(|(line, _)| !before.contains_key(*line)) {
            if *is_error { error!("{line}") } else { warn!("{line}") }
        }
        for (line, was_error) in before.iter().filter(|(line, _)| !self.said.contains_key(*line)) {
            if *was_error { info!("no longer: {line}") } else { debug!("no longer: {line}") }
        }
    }

    fn keep(&mut self, state: &mut State, folders: &mut Folders) -> Result<(), String> {
        state.standby = !folders.own()?;
        let Folders { net, bin, .. } = folders;
        let stood_by = std::mem::replace(&mut self.stands_by, state.standby);
        if state.standby {
            state.wait(SOON);
            return self.look(state, net, bin);
        }
        if stood_by {
            info!("the agent that owned {} is gone; this one takes over", net.path().display());
        }
        let source = Source::read(&self.installation)?;
        if bin.stamp(PLUGIN).is_none() {
            self.program(state, bin, &source);
        }
        self.kept = plan::entry_of(&read_all(net)?.0).or(self.kept.take());
        let wanted = self.installation.entry();
        let needs_kubeconfig = wanted.as_ref().ok().into_iter().chain(&self.kept).any(Entry::needs_kubeconfig);
        self.kubeconfig(state, net, needs_kubeconfig);
        let has_kubeconfig = !needs_kubeconfig || net.stamp(&self.installation.kubeconfig).is_some();
        let mut is_replaced = self.kept.is_some() && wanted.as_ref().ok() != self.kept.as_ref();
        let answer = match &wanted {
            Err(reason) => Answer::Refused(reason.clone()),
            // Without a kubeconfig, the plugin would only say so.
            Ok(_) if !has_kubeconfig => Answer::Awaited,
            Ok(entry) => {
                let is_there = self.is_in_place(bin, &source);
                is_replaced |= !is_there;
                let program = if is_there { bin.path().join(PLUGIN) } else { source.path.clone() };
                self.inquire(state, source.stamp, &program, entry, has_kubeconfig)
            }
        };
        let entry = match (answer, wanted) {
            (Answer::Fine, Ok(entry)) => {
                state.is_accepted = true;
                state.has_program = self.program(state, bin, &source);
                Some(entry)
            }
            (answer, _) => {
                if let Answer::Refused(reason) = answer {
                    state.refused = Some(if is_replaced {
                        format!("what is on the node stays as it is: with what is to be installed, {reason}")
                    } else {
                        reason
                    });
                }
                state.has_program = bin.stamp(PLUGIN).is_some();
                self.kept.clone()
            }
        };
        // No configuration names what isn't there.
        match entry.filter(|_| has_kubeconfig && bin.stamp(PLUGIN).is_some()) {
            Some(entry) => self.configurations(state, net, &entry),
            None => {
                state.look_at(net, &read_all(net)?.0);
                Ok(())
            }
        }
    }

    /// Finds out which files are in place, without touching them.
    fn look(&mut self, state: &mut State, net: &Folder, bin: &Folder) -> Result<(), String> {
        let (folder, _) = read_all(net)?;
        let has_kubeconfig = net.stamp(&self.installation.kubeconfig).is_some();
        if let (Some(stamp), Some(entry)) = (bin.stamp(PLUGIN), plan::entry_of(&folder)) {
            state.has_program = true;
            state.has_kubeconfig = has_kubeconfig || !entry.needs_kubeconfig();
            match self.inquire(state, stamp, &bin.path().join(PLUGIN), &entry, has_kubeconfig) {
                Answer::Fine => state.is_accepted = true,
                Answer::Refused(reason) => state.refused = Some(reason),
                Answer::Awaited => {}
            }
        }
        state.look_at(net, &folder);
        Ok(())
    }

    /// Asks the plugin whether it could set up a pod with this entry.
    fn inquire(
        &mut self,
        state: &mut State,
        stamp: Stamp,
        program: &Path,
        entry: &Entry,
        has_kubeconfig: bool,
    ) -> Answer {
        let configuration = status::configuration(&self.installation, entry);
        let subject = Subject { program: stamp, configuration, has_kubeconfig };
        let (answer, wait) = self.inquiry.ask(subject, program, Instant::now());
        state.wait(wait);
        answer
    }

    /// Changes a file, unless that is held back: `line` is for a file that another program rewrites again and again. None if
    /// nothing was done.
    fn change<T>(
        &mut self,
        state: &mut State,
        name: &str,
        line: impl FnOnce() -> String,
        work: impl FnOnce() -> Result<T, String>,
    ) -> Option<T> {
        let now = Instant::now();
        if self.throttle.wait(name, now).is_zero() {
            match work() {
                Ok(done) => {
                    self.throttle.wrote(name, now, line);
                    return Some(done);
                }
                Err(reason) => self.throttle.failed(name, now, reason),
            }
        }
        state.wait(self.throttle.wait(name, now));
        None
    }

    /// Returns true if the image's program is in its place.
    fn is_in_place(&mut self, bin: &Folder, source: &Source) -> bool {
        let here = bin.stamp(PLUGIN);
        if here.is_some() && self.known == here.map(|here| (source.stamp, here)) {
            return true;
        }
        let same = File::open(&source.path).and_then(|file| bin.same(PLUGIN, file, source.mode));
        self.known = same.unwrap_or_default().map(|here| (source.stamp, here));
        self.known.is_some()
    }

    /// Puts the image's program in its place. Returns true if the program is there.
    fn program(&mut self, state: &mut State, bin: &Folder, source: &Source) -> bool {
        if self.is_in_place(bin, source) {
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
        if self.change(state, PLUGIN, || rewritten(&path), write).is_none() {
            return false;
        }
        self.health.metrics.count("program", 1);
        info!("installed {}", path.display());
        // Somebody else may have been faster.
        self.is_in_place(bin, source)
    }

    /// Writes the kubeconfig, if the plugin needs one and it isn't what it should be.
    fn kubeconfig(&mut self, state: &mut State, net: &Folder, is_needed: bool) {
        state.has_kubeconfig = !is_needed;
        if !is_needed {
            return;
        }
        let bytes = match self.kubeconfig_text() {
            Ok(text) => text.into_bytes(),
            Err(reason) => {
                state.trouble.push(reason);
                return state.wait(SOON);
            }
        };
        let name = self.installation.kubeconfig.clone();
        let wanted = Content::File(Text { bytes: bytes.clone(), mode: KUBECONFIG_MODE });
        if net.read(&name) == Some(wanted) {
            state.has_kubeconfig = true;
            return;
        }
        let path = net.path().join(&name);
        let write = || {
            let written = net.write(&name, &mut bytes.as_slice(), KUBECONFIG_MODE, None);
            written.map_err(|error| format!("the kubeconfig cannot be written: {}: {error}", path.display()))
        };
        if self.change(state, &name, || rewritten(&path), write).is_some() {
            self.health.metrics.count("kubeconfig", 1);
            info!("wrote {}", path.display());
            state.has_kubeconfig = true;
        }
    }

    fn kubeconfig_text(&self) -> Result<String, String> {
        let Installation { service_account, host, port, .. } = &self.installation;
        let token = read(&service_account.join("token"))?;
        let token = String::from_utf8(token).map_err(|_| "the service account's token is not UTF-8".to_owned())?;
        let authority = read(&self.installation.authority())?;
        let text = Kubeconfig { host, port, token: &token, authority: &authority };
        text.text().map_err(|reason| format!("no kubeconfig can be written: {reason}"))
    }

    fn configurations(&mut self, state: &mut State, net: &Folder, entry: &Entry) -> Result<(), String> {
        for _ in 0..TRIES {
            let (folder, saved) = read_all(net)?;
            let plan = Look { folder: &folder, saved: &saved, entry }.install();
            let line = |(name, reason): (String, String)| {
                let line = format!("{} is left as it is: {reason}", net.path().join(&name).display());
                (name, line)
            };
            state.skipped = plan.skipped.into_iter().map(line).collect();
            let mut is_done = true;
            for change in plan.changes {
                let line = || contested(net, &folder, &change.name);
                let written = self.change(state, &change.name, line, || make(net, &change));
                is_done &= written.is_none();
                self.health.metrics.count("configuration", written.unwrap_or_default());
            }
            if is_done {
                state.look_at(net, &folder);
                return Ok(());
            }
        }
        debug!("somebody else writes to {} at the same time", net.path().display());
        state.wait(SOON);
        state.look_at(net, &read_all(net)?.0);
        Ok(())
    }

    /// Leaves the node. If `uninstalls`, and no other agent is there, everything is taken back: the configurations
    /// first, then, after the runtime had time to notice, kubeconfig and programs.
    pub(crate) fn leave(mut self, uninstalls: bool) -> Result<(), String> {
        if !uninstalls {
            info!("the plugin stays on the node");
            return Ok(());
        }
        let Some(mut folders) = self.folders.take() else {
            return Ok(());
        };
        if folders.lock.take().is_some() {
            // Another agent on the node takes the lock meanwhile.
            sleep(HANDOVER);
        }
        if !folders.own()? {
            info!("another agent is on this node: the plugin is left to it");
            return Ok(());
        }
        remove_all(&self.installation, &folders)
    }
}

/// Takes everything back, where no agent is left that could, and where none runs, which would put it back.
pub(crate) fn uninstall(installation: &Installation) -> Result<(), String> {
    let mut folders = Folders::open(installation)?;
    if folders.own()? {
        return remove_all(installation, &folders);
    }
    let advice = "take the node out of its DaemonSet, or delete that, and the agent removes the plugin itself";
    Err(format!("an agent runs on this node, and would put the plugin back: {advice}"))
}

/// The words for a file of the agent's that another program rewrites again and again.
fn rewritten(path: &Path) -> String {
    format!(
        "{} is rewritten again and again by another program. Until that ends, pods may not start: see which DaemonSets mount \
         its folder",
        path.display()
    )
}

/// The words for a configuration that another program rewrites again and again.
fn contested(net: &Folder, folder: &Files, name: &str) -> String {
    let text = match folder.get(name) {
        Some(Content::File(file)) => String::from_utf8_lossy(&file.bytes),
        _ => "".into(),
    };
    format!(
        "{} is rewritten without the plugin again and again, by {}. Until that ends, pods may start without rules",
        net.path().join(name).display(),
        conflist::writer(&text),
    )
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
fn remove_all(installation: &Installation, Folders { net, bin, .. }: &Folders) -> Result<(), String> {
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
    for (folder, name) in [(net, installation.kubeconfig.as_str()), (bin, PLUGIN), (net, owner::FILE)] {
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

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LONGEST).read_to_end(&mut bytes));
    read.map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    Ok(bytes)
}
