//! Programs in namespaces and cgroups of their own, of which nothing is left, however they end.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lab::shell::Result;
use lab::wait;

/// How long the kernel may take to end what was killed, and cgroups to become empty.
const PATIENCE: Duration = Duration::from_secs(20);

/// The word for a run that holds what it has made until it is killed, and what it says then.
pub(crate) const HOLD: &str = "--hold";
const HOLDING: &str = "holding";

/// A program in network, mount and process namespaces of its own, with all that it has started.
pub(crate) struct Run {
    /// Of its cgroup, and in the environment of its processes.
    name: String,
    child: Child,
    sweeper: Child,
}

impl Run {
    /// In the environment of each of its processes but those in containers.
    const VARIABLE: &str = "PROXY_INIT_RUN";

    /// Starts a program, which gets a folder, the name of the cgroup that its containers are to be in, and words.
    /// `kind` tells such runs from others.
    pub(crate) fn start(kind: &str, program: &Path, folder: &Path, words: &[String]) -> Result<Self> {
        let name = format!("proxy-init-{kind}-{}", std::process::id());
        let sweeper = Command::new(std::env::current_exe()?)
            .args(["sweep", &name])
            .stdin(Stdio::piped())
            // Ctrl-C is not for it.
            .process_group(0)
            .spawn()?;
        // Whichever process of these dies, those after it do; the last is the first of its process namespace, and with
        // it dies everything in there.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare", "--net", "--mount", "--pid", "--fork"])
            .args(["--mount-proc", "--kill-child", "--propagation", "private"])
            .arg(program)
            .arg(folder)
            .arg(&name)
            .args(words)
            .env(Self::VARIABLE, &name)
            .spawn()?;
        Ok(Self { name, child, sweeper })
    }

    /// Waits for its end. It is an error if the program fails, and if anything is left of it.
    pub(crate) fn end(mut self) -> Result<()> {
        let status = self.child.wait()?;
        drop(self.sweeper.stdin.take());
        self.sweeper.wait()?;
        let left = left_behind(&self.name);
        if !status.success() {
            return Err(format!("{}: {status}", self.name).into());
        }
        if !left.is_empty() {
            return Err(format!("left behind: {}", left.join(", ")).into());
        }
        Ok(())
    }
}

/// `sweep`: waits for the end of the process that holds the other end of stdin, then removes what outlives processes.
/// It is a process of its own, so that it does so however that one ends.
pub(crate) fn sweep(name: &str) -> Result<()> {
    std::io::stdin().read_to_end(&mut Vec::new())?;
    wait::until(PATIENCE, || {
        for cgroup in cgroups(name) {
            // Fails while processes in there are still ending.
            let _ = remove_cgroup(&cgroup);
        }
        cgroups(name).is_empty().then_some(())
    });
    Ok(())
}

/// `cargo xtask KIND --hold FOLDER`: a run that holds what it has made until this process is killed. Says what the run
/// is called first.
pub(crate) fn hold(kind: &str, program: &Path, folder: &Path) -> Result<()> {
    let run = Run::start(kind, program, folder, &[HOLD.to_owned()])?;
    println!("{}", run.name);
    run.end()
}

/// Kills a run that holds what it has made, as the kernel does when it is out of memory, and sees that nothing is left.
pub(crate) fn kill(kind: &str, folder: &Path) -> Result<()> {
    let mut holding = Command::new(std::env::current_exe()?)
        .args([kind, HOLD])
        .arg(folder)
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(holding.stdout.take().ok_or("no stdout")?).lines();
    let name = lines.next().ok_or("a run that says nothing")??;
    let holds = lines.any(|line| line.is_ok_and(|line| line == HOLDING));
    let before = left_behind(&name).len();
    holding.kill()?;
    holding.wait()?;
    if !holds || before == 0 {
        return Err("the run that was to be killed did not start".into());
    }
    let begun = Instant::now();
    let is_gone = || left_behind(&name).is_empty().then_some(());
    wait::until(PATIENCE, is_gone).ok_or_else(|| format!("left after kill -9: {}", left_behind(&name).join(", ")))?;
    println!(
        "ok     killed with kill -9: of {before} processes and cgroups nothing is left after {:.1} s",
        begun.elapsed().as_secs_f64()
    );
    Ok(())
}

/// The processes and cgroups of the run of this name.
fn left_behind(name: &str) -> Vec<String> {
    let has_name = |file: PathBuf| {
        let content = fs::read(file).unwrap_or_default();
        String::from_utf8_lossy(&content).contains(name)
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().filter(|entry| {
        ["cgroup", "environ", "cmdline"]
            .iter()
            .any(|file| has_name(entry.path().join(file)))
    });
    processes
        .map(|entry| entry.path())
        .chain(cgroups(name))
        .map(|path| path.display().to_string())
        .collect()
}

/// The run's cgroups: one in each of version 1's hierarchies, or version 2's one.
fn cgroups(name: &str) -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let hierarchies = fs::read_dir(root).into_iter().flatten().flatten();
    hierarchies
        .map(|entry| entry.path())
        .chain([root.to_owned()])
        .map(|hierarchy| hierarchy.join(name))
        .filter(|cgroup| cgroup.exists())
        .collect()
}

/// Removes a cgroup and those in it. Their files are the kernel's and go with them.
fn remove_cgroup(cgroup: &Path) -> Result<()> {
    for entry in fs::read_dir(cgroup)?.flatten() {
        if entry.file_type()?.is_dir() {
            remove_cgroup(&entry.path())?;
        }
    }
    Ok(fs::remove_dir(cgroup)?)
}
