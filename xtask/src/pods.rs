//! `cargo xtask pods`: pods by a real containerd, in namespaces of its own.
//!
//! What happens in there is the crate in xtask/pods: a crate of its own, for its gRPC client is not for those who only build.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use xtask::apt;
use xtask::shell::{Result, Run as _, cargo, need_root, target};

use crate::architecture::Architecture;
use crate::build;
use crate::rootfs::Origin;
use crate::{image, release, setup};

/// What it takes, and Debian's packages of it.
const NEEDS: [(&str, &str); 5] = [
    ("containerd", "containerd"),
    ("runc", "runc"),
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
    ("setcap", "libcap2-bin"),
    ("xtables-legacy-multi", "iptables"),
];

/// How long the kernel may take to end what was killed, and cgroups to become empty.
const PATIENCE: Duration = Duration::from_secs(20);

/// What came of it.
pub(crate) enum Outcome {
    AsExpected,
    /// Nothing was tried, because of this.
    Skipped(String),
}

/// `cargo xtask pods [--release] [--only WORD...]`
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let (layout, rest) = match arguments {
        [flag, rest @ ..] if flag == "--release" => (Some(release::layout("proxy-init")), rest),
        rest => (None, rest),
    };
    let words = match rest {
        [] => &[],
        [flag, words @ ..] if flag == "--only" && !words.is_empty() => words,
        _ => return Err("usage: cargo xtask pods [--release] [--only WORD...]".into()),
    };
    match try_with(layout.as_deref(), words)? {
        Outcome::AsExpected => Ok(()),
        Outcome::Skipped(reason) => Err(format!("nothing was tried: {reason}").into()),
    }
}

/// Runs all scenarios.
pub(crate) fn check() -> Result<Outcome> {
    try_with(None, &[])
}

/// Runs the scenarios whose names have all of these words, with the image of this OCI layout if there is one, then sees that
/// nothing is left, also after a kill -9.
fn try_with(layout: Option<&Path>, words: &[String]) -> Result<Outcome> {
    need_root("cargo xtask pods", "to make network namespaces")?;
    if NEEDS.iter().any(|(program, _)| setup::find(program).is_none())
        && let Err(error) = apt::mirror()
    {
        return Ok(Outcome::Skipped(format!(
            "containerd is a package of Debian's, and {error}"
        )));
    }
    setup::programs(&NEEDS)?;
    let folder = lay_out()?;
    if let Some(layout) = layout {
        if !layout.exists() {
            return Err(format!("no {}: cargo xtask release makes it", layout.display()).into());
        }
        let mut archive = Command::new("tar");
        archive
            .arg("-C")
            .arg(layout)
            .arg("-cf")
            .arg(folder.join("scratch.oci.tar"));
        archive.arg(".").run()?;
    }
    let mut run = Run::start(&folder, words)?;
    let status = run.child.wait()?;
    let left = run.end()?;
    if !status.success() {
        return Err(format!("pods: {status}").into());
    }
    if !left.is_empty() {
        return Err(format!("left behind: {}", left.join(", ")).into());
    }
    killed(&folder)?;
    Ok(Outcome::AsExpected)
}

/// `--hold`: one pod, until this process is killed. Says what the run is called first.
pub(crate) fn hold(folder: &Path) -> Result<()> {
    let mut run = Run::start(folder, &["--hold".to_owned()])?;
    println!("{}", run.name);
    Err(format!("pods: {}", run.child.wait()?).into())
}

/// `--sweep`: waits for the end of the process that holds the other end of stdin, then removes what outlives processes. It is a
/// process of its own, so that it does so however that one ends.
pub(crate) fn sweep(name: &str) -> Result<()> {
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let begun = Instant::now();
    while !cgroups(name).is_empty() && begun.elapsed() < PATIENCE {
        for cgroup in cgroups(name) {
            // Fails while processes in there are still ending.
            let _ = remove_cgroup(&cgroup);
        }
        sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// A process in namespaces of its own, with all that it has started.
struct Run {
    /// Of its cgroup, and in the environment of its processes.
    name: String,
    child: Child,
    sweeper: Child,
}

impl Run {
    /// In the environment of each of its processes but those in containers.
    const VARIABLE: &str = "PROXY_INIT_PODS";

    fn start(folder: &Path, words: &[String]) -> Result<Self> {
        let name = format!("proxy-init-pods-{}", std::process::id());
        let sweeper = Command::new(std::env::current_exe()?)
            .args(["pods", "--sweep", &name])
            .stdin(Stdio::piped())
            // Ctrl-C is not for it.
            .process_group(0)
            .spawn()?;
        // Whichever process of these dies, those after it do; the last is the first of its process namespace, and with it dies
        // everything in there.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare", "--net", "--mount", "--pid", "--fork"])
            .args(["--mount-proc", "--kill-child", "--propagation", "private"])
            .arg(target("debug/pods"))
            .arg(folder)
            .arg(&name)
            .args(words)
            .env(Self::VARIABLE, &name)
            .spawn()?;
        Ok(Self { name, child, sweeper })
    }

    /// What is left once the sweeper has done its work.
    fn end(mut self) -> Result<Vec<String>> {
        drop(self.sweeper.stdin.take());
        self.sweeper.wait()?;
        Ok(left_behind(&self.name))
    }
}

/// Kills a run as the kernel does when it is out of memory, and sees that nothing is left.
fn killed(folder: &Path) -> Result<()> {
    let mut holding = Command::new(std::env::current_exe()?)
        .args(["pods", "--hold"])
        .arg(folder)
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(holding.stdout.take().ok_or("no stdout")?).lines();
    let mut next = || lines.next().and_then(|line| line.ok()).unwrap_or_default();
    let name = next();
    let holds = next() == "holding";
    let before = left_behind(&name).len();
    holding.kill()?;
    holding.wait()?;
    if !holds || before == 0 {
        return Err("the run that was to be killed did not start".into());
    }
    let begun = Instant::now();
    let mut left = left_behind(&name);
    while !left.is_empty() && begun.elapsed() < PATIENCE {
        sleep(Duration::from_millis(20));
        left = left_behind(&name);
    }
    if !left.is_empty() {
        return Err(format!("left behind after kill -9: {}", left.join(", ")).into());
    }
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

/// Builds what runs, and puts each image's files into a folder of its name.
fn lay_out() -> Result<PathBuf> {
    let folder = target("pods");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    image::lay_out(&folder, Architecture::here()?)?;
    let legacy = folder.join("legacy");
    Origin::here()?.add_iptables_legacy(&legacy)?;
    let file_capabilities = folder.join("file-capabilities");
    Command::new("cp")
        .arg("--archive")
        .arg(&legacy)
        .arg(&file_capabilities)
        .run()?;
    Command::new("setcap")
        .arg("cap_net_admin,cap_net_raw+eip")
        .arg(file_capabilities.join("usr/sbin/xtables-legacy-multi"))
        .run()?;
    let peer = folder.join("peer");
    fs::create_dir_all(&peer)?;
    fs::copy(build::of_xtask("peer", Architecture::here()?)?, peer.join("peer"))?;
    cargo(&["build", "--locked", "--package", "pods"])
        .env("CARGO_TARGET_DIR", target(""))
        .run()?;
    Ok(folder)
}
