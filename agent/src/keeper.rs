//! Puts the plugin on the node and keeps it there: one pass looks at everything and mends what differs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
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
use crate::plan::{self, Change, Files, First, Look, Step};
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

/// How it stands after a pass.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct State {
    /// Whether the plugin's programs are in place.
    pub(crate) binary: bool,
    /// Whether the kubeconfig is in place, or isn't needed.
    pub(crate) kubeconfig: bool,
    /// How many configurations have the entry.
    pub(crate) configurations: usize,
    /// Whether that which runtimes take first has it.
    pub(crate) is_first: bool,
    /// Whether the plugin says that it could set up a pod, with what is to be installed.
    pub(crate) is_accepted: bool,
    /// Why it says that it couldn't, for people.
    pub(crate) refused: Option<String>,
    /// Whether another agent of the node owns the folder.
    pub(crate) standby: bool,
    /// The obstacles, in words for people.
    pub(crate) trouble: Vec<String>,
    /// The events that the agent waits for, in words for people.
    pub(crate) notes: Vec<String>,
    /// The files that are left as they are, and why, for people.
    pub(crate) skipped: BTreeMap<String, String>,
    /// The files that another program rewrites again and again, and what to do, for people.
    pub(crate) contested: BTreeMap<String, String>,
}

impl State {
    /// Whether all files are there that a pod takes to be set up.
    pub(crate) fn is_installed(&self) -> bool {
        self.binary && self.kubeconfig && self.is_first && self.is_accepted && self.contested.is_empty()
    }

    fn look_at(&mut self, net: &Folder, folder: &Files) {
        self.configurations = plan::count_chained(folder);
        let first = plan::first(folder);
        self.is_first = first == First::Plugin;
        match first {
            First::Nothing => self.notes.push(format!(
                "{} has no network configuration yet that the plugin could be added to; waiting for one",
                net.path().display()
            )),
            First::Unusable(name, reason) => self.comes_first(net, &name, &reason),
            First::Without(name) if self.skipped.contains_key(&name) => {
                self.comes_first(net, &name, "the plugin cannot be added to it");
            }
            // Why it isn't changed yet is said elsewhere.
            First::Without(_) | First::Plugin => {}
        }
    }

    fn comes_first(&mut self, net: &Folder, name: &str, reason: &str) {
        self.trouble.push(format!(
            "{} comes first by name, so that runtimes take it, or start no pod: {reason}",
            net.path().join(name).display()
        ));
    }
}

/// A look at everything.
struct Pass {
    /// How it stands.
    state: State,
    /// When to look again even if nothing changes.
    again: Duration,
}

impl Pass {
    fn wait(&mut self, time: Duration) {
        self.again = self.again.min(time);
    }
}

/// The node's folders.
struct Folders {
    net: Folder,
    bin: Folder,
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
    folders: Option<Arc<Folders>>,
    lock: Option<Lock>,
    /// Whether another agent had the lock when this one last tried to take it.
    stands_by: bool,
    /// The image's program and the node's, when they were last found to have the same bytes.
    known: Option<(Stamp, Stamp)>,
    throttle: Throttle,
    inquiry: Inquiry,
    /// The entry that the configurations have, or had when one last had one.
    kept: Option<Entry>,
    /// The lines that the log has already, so that not each pass adds them.
    said: BTreeSet<String>,
    noted: BTreeSet<String>,
    health: Arc<Health>,
}

impl Keeper {
    /// Nothing is done yet.
    pub(crate) fn new(installation: Installation, health: Arc<Health>) -> Self {
        Self {
            installation,
            folders: None,
            lock: None,
            stands_by: false,
            known: None,
            throttle: Throttle::default(),
            inquiry: Inquiry::default(),
            kept: None,
            said: BTreeSet::new(),
            noted: BTreeSet::new(),
            health,
        }
    }

    /// Waits until the plugin has answered what the last pass asked.
    pub(crate) async fn answered(&mut self) {
        self.inquiry.answered().await;
    }

    /// Looks at everything and mends what differs: first the programs, then the kubeconfig, then the configurations, so
    /// that none ever names a program that isn't there. What works is replaced once the plugin says that it could set up
    /// pods with what takes its place.
    ///
    /// Returns how it stands, and when to look again even if nothing changes.
    pub(crate) fn pass(&mut self) -> (State, Duration) {
        let mut pass = Pass { state: State::default(), again: QUIET };
        if let Err(trouble) = self.try_pass(&mut pass) {
            pass.state.trouble.push(trouble);
            pass.wait(SOON);
        }
        for (name, trouble, rest) in self.throttle.troubles(Instant::now()) {
            match trouble {
                Trouble::Contested(line) => drop(pass.state.contested.insert(name, line)),
                Trouble::Failed(reason) => pass.state.trouble.push(reason),
            }
            pass.wait(rest);
        }
        let Pass { state, again } = pass;
        say(
            &mut self.said,
            state.trouble.iter().chain(&state.refused).chain(state.contested.values()),
            |line| error!("{line}"),
            |line| info!("no longer: {line}"),
        );
        say(
            &mut self.noted,
            state.notes.iter().chain(state.skipped.values()),
            |line| warn!("{line}"),
            |line| debug!("no longer: {line}"),
        );
        (state, again)
    }

    fn try_pass(&mut self, pass: &mut Pass) -> Result<(), String> {
        let folders = self.folders()?;
        let Folders { net, bin } = &*folders;
        if self.lock.as_ref().is_none_or(Lock::is_void) {
            self.lock = lock(net)?;
            if self.lock.is_some() {
                if std::mem::take(&mut self.stands_by) {
                    info!("the agent that owned {} is gone; this one takes over", net.path().display());
                }
                take_possession(net, bin);
            }
        }
        if self.lock.is_none() {
            self.stands_by = true;
            pass.wait(SOON);
            pass.state.standby = true;
            return self.look(pass, &folders);
        }
        let source = Source::read(&self.installation)?;
        if bin.stamp(PLUGIN).is_none() {
            self.program(pass, bin, &source);
        }
        let (folder, _) = read_all(net)?;
        self.kept = plan::entry_of(&folder).or(self.kept.take());
        let wanted = self.installation.entry();
        let entries = wanted.as_ref().ok().into_iter().chain(&self.kept);
        let needs_kubeconfig = entries.clone().any(Entry::needs_kubeconfig);
        self.kubeconfig(pass, net, needs_kubeconfig);
        let has_kubeconfig = !needs_kubeconfig || net.stamp(&self.installation.kubeconfig).is_some();
        let is_new = wanted.as_ref().ok() != self.kept.as_ref();
        let mut is_replaced = is_new && self.kept.is_some();
        let answer = match &wanted {
            Err(reason) => Answer::Refused(reason.clone()),
            // Without a kubeconfig, the plugin would only say so.
            Ok(_) if !has_kubeconfig => Answer::Awaited,
            Ok(entry) => {
                let is_there = self.is_in_place(bin, &source);
                is_replaced |= !is_there;
                let program = if is_there { bin.path().join(PLUGIN) } else { source.path.clone() };
                self.inquire(pass, source.stamp, &program, entry, has_kubeconfig)
            }
        };
        let entry = match (answer, wanted) {
            (Answer::Fine, Ok(entry)) => {
                pass.state.is_accepted = true;
                pass.state.binary = self.program(pass, bin, &source);
                Some(entry)
            }
            (answer, _) => {
                if let Answer::Refused(reason) = answer {
                    pass.state.refused = Some(if is_replaced {
                        format!("what is on the node stays as it is: with what is to be installed, {reason}")
                    } else {
                        reason
                    });
                }
                pass.state.binary = bin.stamp(PLUGIN).is_some();
                self.kept.clone()
            }
        };
        // No configuration names what isn't there.
        match entry.filter(|_| has_kubeconfig && bin.stamp(PLUGIN).is_some()) {
            Some(entry) => self.configurations(pass, net, &entry),
            None => {
                pass.state.look_at(net, &read_all(net)?.0);
                Ok(())
            }
        }
    }

    /// Asks the plugin whether it could set up a pod with this entry.
    fn inquire(&mut self, pass: &mut Pass, stamp: Stamp, program: &Path, entry: &Entry, kubeconfig: bool) -> Answer {
        let subject =
            Subject { program: stamp, configuration: status::configuration(&self.installation, entry), kubeconfig };
        let (answer, wait) = self.inquiry.plugin_status(subject, program, Instant::now());
        pass.wait(wait);
        answer
    }

    /// Changes a file, unless that is held back: `line` is what there is to say if another program rewrites it again and
    /// again. None if nothing was done.
    fn change<T>(
        &mut self,
        pass: &mut Pass,
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
        pass.wait(self.throttle.wait(name, now));
        None
    }

    /// The node's folders, opened again if others have their places by now.
    fn folders(&mut self) -> Result<Arc<Folders>, String> {
        match &self.folders {
            Some(folders) if !folders.net.is_gone() && !folders.bin.is_gone() => Ok(Arc::clone(folders)),
            _ => {
                self.folders = None;
                // Of the folder that is gone.
                self.lock = None;
                let folders = open(&self.installation)?;
                Ok(Arc::clone(self.folders.insert(Arc::new(folders))))
            }
        }
    }

    /// Finds out which files are in place, without touching them.
    fn look(&mut self, pass: &mut Pass, folders: &Folders) -> Result<(), String> {
        let Folders { net, bin } = folders;
        let (folder, _) = read_all(net)?;
        let kubeconfig = net.stamp(&self.installation.kubeconfig).is_some();
        if let (Some(stamp), Some(entry)) = (bin.stamp(PLUGIN), plan::entry_of(&folder)) {
            pass.state.binary = true;
            pass.state.kubeconfig = kubeconfig || !entry.needs_kubeconfig();
            let program = bin.path().join(PLUGIN);
            match self.inquire(pass, stamp, &program, &entry, kubeconfig) {
                Answer::Fine => pass.state.is_accepted = true,
                Answer::Refused(reason) => pass.state.refused = Some(reason),
                Answer::Awaited => {}
            }
        }
        pass.state.look_at(net, &folder);
        Ok(())
    }

    /// Whether the image's program is in its place.
    fn is_in_place(&mut self, bin: &Folder, source: &Source) -> bool {
        let here = bin.stamp(PLUGIN);
        if here.is_some() && self.known == here.map(|here| (source.stamp, here)) {
            return true;
        }
        let same = File::open(&source.path).and_then(|mut file| bin.same(PLUGIN, &mut file, source.mode));
        let same = same.unwrap_or_default();
        self.known = same.map(|here| (source.stamp, here));
        same.is_some()
    }

    /// Puts the image's program in its place; whether it is there.
    fn program(&mut self, pass: &mut Pass, bin: &Folder, source: &Source) -> bool {
        if self.is_in_place(bin, source) {
            return true;
        }
        let path = bin.path().join(PLUGIN);
        let line = || rewritten(&path);
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
        if self.change(pass, PLUGIN, line, write).is_none() {
            return false;
        }
        self.health.metrics.count("program", 1);
        info!("installed {}", path.display());
        // Somebody else may have been faster.
        self.is_in_place(bin, source)
    }

    /// Writes the kubeconfig, if the plugin needs one and it isn't what it should be.
    fn kubeconfig(&mut self, pass: &mut Pass, net: &Folder, is_needed: bool) {
        if !is_needed {
            pass.state.kubeconfig = true;
            return;
        }
        let text = match self.kubeconfig_text() {
            Ok(text) => text,
            Err(reason) => {
                pass.state.trouble.push(reason);
                pass.wait(SOON);
                return;
            }
        };
        let name = self.installation.kubeconfig.clone();
        let wanted = Content::File(Text { bytes: text.clone().into_bytes(), mode: KUBECONFIG_MODE });
        if net.read(&name) == Some(wanted) {
            pass.state.kubeconfig = true;
            return;
        }
        let path = net.path().join(&name);
        let line = || rewritten(&path);
        let write = || {
            let written = net.write(&name, &mut text.as_bytes(), KUBECONFIG_MODE, None);
            written.map_err(|error| format!("the kubeconfig cannot be written: {}: {error}", path.display()))
        };
        if self.change(pass, &name, line, write).is_some() {
            self.health.metrics.count("kubeconfig", 1);
            info!("wrote {}", path.display());
            pass.state.kubeconfig = true;
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

    fn configurations(&mut self, pass: &mut Pass, net: &Folder, entry: &Entry) -> Result<(), String> {
        for _ in 0..TRIES {
            // That of the last try.
            pass.state.skipped.clear();
            let (folder, saved) = read_all(net)?;
            let look = Look { folder: &folder, saved: &saved, entry };
            let plan = look.install();
            for (name, reason) in plan.skipped {
                let line = format!("{} is left as it is: {reason}", net.path().join(&name).display());
                pass.state.skipped.insert(name, line);
            }
            let mut is_done = true;
            for change in plan.changes {
                let line = || contested(net, &folder, &change.name);
                let written = self.change(pass, &change.name, line, || make(net, &change));
                is_done &= written.is_none();
                self.health.metrics.count("configuration", written.unwrap_or_default());
            }
            if is_done {
                pass.state.look_at(net, &folder);
                return Ok(());
            }
        }
        debug!("somebody else writes to {} at the same time", net.path().display());
        pass.wait(SOON);
        pass.state.look_at(net, &read_all(net)?.0);
        Ok(())
    }

    /// Leaves the node. If `uninstalls`, and no other agent is there, everything is taken back: the configurations
    /// first, then, after the runtime had time to notice, kubeconfig and programs.
    pub(crate) fn leave(mut self, uninstalls: bool) -> Result<(), String> {
        if !uninstalls {
            info!("the plugin stays on the node");
            return Ok(());
        }
        let Some(folders) = self.folders.take() else {
            return Ok(());
        };
        let Folders { net, bin } = &*folders;
        if self.lock.take().is_some() {
            // Another agent on the node takes the lock meanwhile.
            sleep(HANDOVER);
        }
        let Some(_lock) = lock(net)? else {
            info!("another agent is on this node: the plugin is left to it");
            return Ok(());
        };
        remove_all(&self.installation, net, bin)
    }
}

/// Takes the lock on the node's folders; none if another agent has it.
fn lock(net: &Folder) -> Result<Option<Lock>, String> {
    Lock::take(net).map_err(|error| {
        let path = net.path().join(owner::FILE);
        format!("{} cannot be locked: {error}: is the folder writable?", path.display())
    })
}

/// Opens the node's folders.
fn open(installation: &Installation) -> Result<Folders, String> {
    let open = |path: &Path| {
        Folder::open(path).map_err(|error| {
            format!("{} cannot be opened: {error}: is the node's folder mounted there?", path.display())
        })
    };
    Ok(Folders { net: open(&installation.net())?, bin: open(&installation.bin())? })
}

/// Takes everything back, where no agent is left that could.
pub(crate) fn uninstall(installation: &Installation) -> Result<(), String> {
    let Folders { net, bin } = open(installation)?;
    let Some(_lock) = lock(&net)? else {
        return Err(
            "an agent runs on this node, and would put the plugin back: take the node out of its DaemonSet, or \
                    delete that, and the agent removes the plugin itself"
                .to_owned(),
        );
    };
    take_possession(&net, &bin);
    remove_all(installation, &net, &bin)
}

/// The words for a file of the agent's that another program rewrites again and again.
fn rewritten(path: &Path) -> String {
    format!(
        "{} is rewritten again and again by another program. Until that ends, pods may not start: see which DaemonSets mount \
         its folder",
        path.display()
    )
}

/// The words for a configuration of which that is so.
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

/// Makes a change, until somebody else is faster; how many configurations were written.
fn make(net: &Folder, change: &Change) -> Result<u64, String> {
    let mut written = 0;
    for step in &change.steps {
        let is_made = take(net, step).map_err(|error| {
            let path = net.path().join(&change.name);
            format!("{} cannot be changed: {error}", path.display())
        })?;
        // Another plan has to be made.
        if !is_made {
            break;
        }
        written += u64::from(matches!(step, Step::Write { .. }));
    }
    Ok(written)
}

/// Takes a step; false: somebody else was faster.
fn take(net: &Folder, step: &Step) -> io::Result<bool> {
    let path = |name: &str| net.path().join(name).display().to_string();
    match step {
        Step::Write { name, text, mode, before } => {
            let is_made = net.write(name, &mut text.as_bytes(), *mode, Some(before.as_ref()))?;
            if is_made {
                info!("wrote {}", path(name));
            }
            Ok(is_made)
        }
        Step::Remove { name, before } => {
            let is_made = net.remove_expected(name, before)?;
            if is_made {
                info!("removed {}", path(name));
            }
            Ok(is_made)
        }
        Step::Save { name, text, mode } => net.write(name, &mut text.as_bytes(), *mode, None),
        Step::Discard { name } => {
            net.remove(name)?;
            info!("removed {}", path(name));
            Ok(true)
        }
    }
}

/// The configurations, and the files that keep some.
fn read_all(net: &Folder) -> Result<(Files, Files), String> {
    let unreadable = |error: io::Error| format!("{} cannot be read: {error}", net.path().display());
    let is_meant = |name: &str| plan::is_configuration(name) || plan::saved_of(name).is_some();
    let files = net.files(is_meant).map_err(unreadable)?;
    Ok(files.into_iter().partition(|(name, _)| plan::is_configuration(name)))
}

/// Takes everything back, and tries each part even if another failed.
fn remove_all(installation: &Installation, net: &Folder, bin: &Folder) -> Result<(), String> {
    let mut named = false;
    let mut done = Err("somebody else writes the configurations at the same time".to_owned());
    for _ in 0..TRIES {
        let (folder, saved) = read_all(net)?;
        let look = Look {
            folder: &folder,
            saved: &saved,
            // By hand, it may be done without the configuration.
            entry: &installation.entry().unwrap_or_else(|_| Entry::bare()),
        };
        let plan = look.remove();
        named |= !plan.changes.is_empty();
        let made = plan.changes.iter().map(|change| make(net, change));
        // Each is tried.
        let failure = made.fold(None, |failure, made| failure.or(made.err()));
        if plan.changes.is_empty() || failure.is_some() {
            let unknown = plan.skipped.into_iter().next();
            let unknown = unknown.map(|(name, reason)| format!("{}: {reason}", net.path().join(name).display()));
            done = failure.or(unknown).map_or(Ok(()), Err);
            break;
        }
    }
    // While a configuration names the plugin, its program has to be there.
    done?;
    if named {
        sleep(GRACE);
    }
    let mut failures = Vec::new();
    let mut remove = |folder: &Folder, name: &str| match folder.remove(name) {
        Ok(()) => info!("removed {}", folder.path().join(name).display()),
        Err(error) => failures.push(format!("{}: {error}", folder.path().join(name).display())),
    };
    remove(net, &installation.kubeconfig);
    remove(bin, PLUGIN);
    remove(net, owner::FILE);
    if failures.is_empty() {
        return Ok(());
    }
    Err(format!("not everything could be removed: {}", failures.join("; ")))
}

/// Removes the files that a killed predecessor had not finished.
fn take_possession(net: &Folder, bin: &Folder) {
    for folder in [net, bin] {
        if let Err(error) = folder.remove_unfinished() {
            warn!("{}: {error}", folder.path().display());
        }
    }
}

/// Says what is new, and what is over.
fn say<'a>(
    said: &mut BTreeSet<String>,
    now: impl Iterator<Item = &'a String>,
    begin: impl Fn(&str),
    end: impl Fn(&str),
) {
    let now: BTreeSet<String> = now.cloned().collect();
    now.difference(said).for_each(|line| begin(line));
    said.difference(&now).for_each(|line| end(line));
    *said = now;
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LONGEST).read_to_end(&mut bytes));
    read.map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    Ok(bytes)
}
