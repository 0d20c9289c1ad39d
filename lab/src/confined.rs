//! A program in namespaces and cgroups of its own, of which nothing is left, however it ends.
//!
//! `cargo xtask pods` and `cargo xtask cluster` start such programs as a [`Program`]; in there, they call [`main`].

use std::env::current_exe;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::park;
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sys::wait::{WaitStatus, wait};
use nix::unistd::Pid;

use crate::cgroups;
use crate::shell::{Result, Run as _, cargo, target};
use crate::wait;

/// The time limit of the kernel to end what was killed, and cgroups to become empty.
const PATIENCE: Duration = Duration::from_secs(20);

/// The word for a run that holds what it has made until it is killed, and what it says then.
const HOLD: &str = "--hold";
const HOLDING: &str = "holding";

/// Such a program, from outside.
#[derive(Debug)]
pub struct Program {
    name: String,
    file: PathBuf,
}

impl Program {
    /// Builds the laboratory's program of this name, with these further words for cargo.
    pub fn build(name: &str, words: &[&str]) -> Result<Self> {
        cargo(&["build", "--locked", "--package", "lab", "--bin", name])
            .args(words)
            .env("CARGO_TARGET_DIR", target(""))
            .run()?;
        Ok(Self { name: name.to_owned(), file: target("debug").join(name) })
    }

    /// Runs it, with the folder that was filled for it, and words for what it does. It is an error if the program fails, and
    /// if anything is left of it.
    pub fn run(&self, folder: &Path, words: &[String]) -> Result<()> {
        let mut run = self.start(folder, words, Stdio::inherit())?;
        let status = run.child.wait()?;
        let ended = run.end();
        if !status.success() {
            return Err(format!("{}: {status}", self.name).into());
        }
        ended
    }

    /// Starts it and kills it, as the kernel does when it is out of memory, and sees that nothing is left.
    pub fn kill(&self, folder: &Path) -> Result<()> {
        let mut run = self.start(folder, &[HOLD.to_owned()], Stdio::piped())?;
        let mut lines = BufReader::new(run.child.stdout.take().ok_or("no stdout")?).lines();
        let holds = lines.any(|line| line.is_ok_and(|line| line == HOLDING));
        let before = left_behind(&run.name).len();
        run.child.kill()?;
        run.child.wait()?;
        let begun = Instant::now();
        run.end()?;
        if !holds || before == 0 {
            return Err("the run that was to be killed did not start".into());
        }
        println!(
            "ok     killed with kill -9: of {before} processes and cgroups nothing is left after {:.1} s",
            begun.elapsed().as_secs_f64()
        );
        Ok(())
    }

    fn start(&self, folder: &Path, words: &[String], stdout: Stdio) -> Result<Run> {
        let name = format!("proxy-init-{}-{}", self.name, std::process::id());
        let sweeper = Command::new(&self.file)
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
            .arg(&self.file)
            .arg("inside")
            .arg(folder)
            .arg(&name)
            .args(words)
            .env(VARIABLE, &name)
            .stdout(stdout)
            .spawn()?;
        Ok(Run { name, child, sweeper })
    }
}

/// In the environment of each process of a run but those in containers.
const VARIABLE: &str = "PROXY_INIT_RUN";

/// A program in network, mount and process namespaces of its own, with all that it has started.
struct Run {
    /// Of its cgroup, and in the environment of its processes.
    name: String,
    child: Child,
    sweeper: Child,
}

impl Run {
    /// Once the program has ended: has what outlives it removed, and sees that nothing is left.
    fn end(mut self) -> Result<()> {
        drop(self.sweeper.stdin.take());
        self.sweeper.wait()?;
        let is_gone = || left_behind(&self.name).is_empty().then_some(());
        let left = || format!("left behind: {}", left_behind(&self.name).join(", ")).into();
        wait::until(PATIENCE, is_gone).ok_or_else(left)
    }
}

/// The task of the program in there.
#[derive(Debug)]
pub struct Inside {
    /// The folder that was filled for it.
    pub folder: PathBuf,
    /// The cgroup for all of its containers.
    pub cgroup: String,
    /// The words that it was given.
    pub words: Vec<String>,
}

impl Inside {
    /// Holds what the program has made until it is killed, if it is to do so.
    pub fn hold_if_asked(&self) {
        if self.words == [HOLD] {
            println!("{HOLDING}");
            loop {
                park();
            }
        }
    }
}

/// The whole of such a program, but for what it does in there.
pub fn main(inside: impl Fn(&Inside) -> Result<()>) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.as_slice() {
        [verb, name] if verb == "sweep" => sweep(name),
        [verb, ..] if verb == "inside" && Pid::this().as_raw() == 1 => first_process(&arguments),
        [verb, folder, cgroup, words @ ..] if verb == "inside" => {
            inside(&Inside { folder: folder.into(), cgroup: cgroup.clone(), words: words.to_vec() })
        }
        _ => Err("cargo xtask runs this".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The first process of a process namespace inherits those whose parents have ended, such as containers' shims, and has
/// to wait for their ends. It ends with the one that does the work, which has said why it failed.
fn first_process(arguments: &[String]) -> Result<()> {
    let worker = Command::new(current_exe()?).args(arguments).spawn()?;
    let worker = Pid::from_raw(worker.id().try_into()?);
    loop {
        match wait()? {
            WaitStatus::Exited(ended, code) if ended == worker => std::process::exit(code),
            WaitStatus::Signaled(ended, signal, _) if ended == worker => return Err(signal.as_str().into()),
            _ => {}
        }
    }
}

/// `sweep`: waits for the end of the process that holds the other end of stdin, then removes what outlives processes.
/// It is a process of its own, so that it does so however that one ends.
fn sweep(name: &str) -> Result<()> {
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

/// The processes and cgroups of the run of this name.
fn left_behind(name: &str) -> Vec<String> {
    let has_name = |file: PathBuf| {
        let content = fs::read(file).unwrap_or_default();
        String::from_utf8_lossy(&content).contains(name)
    };
    let processes = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| ["cgroup", "environ", "cmdline"].iter().any(|file| has_name(entry.path().join(file))));
    processes.map(|entry| entry.path()).chain(cgroups(name)).map(|path| path.display().to_string()).collect()
}

/// The run's cgroups.
fn cgroups(name: &str) -> Vec<PathBuf> {
    let all = cgroups::hierarchies().into_iter().map(|hierarchy| hierarchy.join(name));
    all.filter(|cgroup| cgroup.exists()).collect()
}

/// Removes a cgroup and those in it. Their files are the kernel's and go with them.
pub fn remove_cgroup(cgroup: &Path) -> Result<()> {
    for entry in fs::read_dir(cgroup)?.flatten() {
        if entry.file_type()?.is_dir() {
            remove_cgroup(&entry.path())?;
        }
    }
    Ok(fs::remove_dir(cgroup)?)
}

/// Mounts a file system of this kind on a folder.
pub fn mount_on(kind: &str, folder: &str, options: Option<&str>) -> Result<()> {
    mount(Some(kind), folder, Some(kind), MsFlags::empty(), options)
        .map_err(|errno| format!("cannot mount {kind} on {folder}: {errno}").into())
}

/// Lays file systems of its own over /run and over these folders: what is in the latter stays visible, as it may be the
/// checkout, and what is written goes with the mount namespace.
pub fn cover(folders: &[&str]) -> Result<()> {
    std::env::set_current_dir("/")?;
    mount_on("tmpfs", "/run", None)?;
    for folder in folders {
        let [upper, work] = ["upper", "work"].map(|part| format!("/run/{part}{folder}"));
        fs::create_dir_all(&upper)?;
        fs::create_dir_all(&work)?;
        let options = format!("lowerdir={folder},upperdir={upper},workdir={work}");
        mount_on("overlay", folder, Some(&options))?;
    }
    Ok(())
}
