//! Runs iptables commands: with the capabilities that they need and no others, and for a limited time.

use std::fs::File;
use std::io::{self, PipeReader, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use caps::{CapSet, Capability, CapsHashSet};
use netfilter::netlink::signals::keep_ended_children;
use nix::errno::Errno;
use nix::sys::prctl::set_no_new_privs;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use super::environment::handed_on;
use crate::error::{ModeError, Privilege};
use crate::netns::on_a_thread;

/// iptables-legacy needs NET_ADMIN to change tables, and NET_RAW for the raw socket that it does so on.
const NEEDED: [Capability; 2] = [Capability::CAP_NET_ADMIN, Capability::CAP_NET_RAW];

/// The time that a command may take; commands take milliseconds.
const LIMIT: Duration = Duration::from_secs(10);

/// The most bytes that are kept of a command's words: more than iptables ever writes.
const LONGEST: u64 = 4096;

/// A restore command, and its input.
#[derive(Debug)]
pub(super) struct Restore {
    pub(super) program: PathBuf,
    pub(super) input: Vec<u8>,
}

/// Runs restore commands, each to its end before the next gets its input. All are started first: if one can't be started,
/// none commits anything.
///
/// `lock` is the locked file of the xtables lock. The commands inherit the file, so that it stays locked until they have
/// ended even if this process is killed.
///
/// # Errors
/// The first command's that failed. Commands may have changed their tables all the same.
pub(super) fn run_restores(restores: &[&Restore], lock: &File) -> Result<(), ModeError> {
    let mut started = Vec::new();
    for restore in restores {
        started.push(start_restore(restore, lock).map_err(|error| not_run(&restore.program, error))?);
    }
    for (running, restore) in started.into_iter().zip(restores) {
        succeed(&restore.program, running.end(&restore.input))?;
    }
    Ok(())
}

fn start_restore(restore: &Restore, lock: &File) -> io::Result<Running> {
    let (said, stderr) = io::pipe()?;
    let mut command = prepare(&restore.program);
    command
        // Without -w: its alarm would end a command that waits for its input.
        .arg("--noflush")
        // The command would try to take the lock that is held for it. It gets a file that nobody else locks: the pipe that
        // is its stderr.
        .env("XTABLES_LOCKFILE", "/proc/self/fd/2")
        .stdin(Stdio::piped())
        // Nothing is printed. A copy of the locked file keeps it locked.
        .stdout(lock.try_clone()?)
        .stderr(stderr);
    Running::start(command, said)
}

/// The content of a program's version line.
///
/// # Errors
/// The program can't be run, or fails.
pub(super) fn version(program: &Path) -> Result<String, ModeError> {
    let start = || {
        let (said, stdout) = io::pipe()?;
        let mut command = prepare(program);
        command.arg("--version").stdin(Stdio::null()).stdout(stdout).stderr(Stdio::null());
        Running::start(command, said)?.end(&[])
    };
    succeed(program, start())
}

fn prepare(program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .envs(handed_on())
        // A group of its own, so that the command's children can be killed with it.
        .process_group(0);
    command
}

/// A command that has ended.
struct Ended {
    status: ExitStatus,
    said: String,
}

/// The words of a command that has succeeded; none: it was killed, because it took too long.
fn succeed(program: &Path, ended: io::Result<Option<Ended>>) -> Result<String, ModeError> {
    match ended {
        Ok(Some(Ended { status, said })) if status.success() => Ok(said),
        Ok(Some(ended)) => Err(refusal(program, &ended)),
        Ok(None) => Err(ModeError::CommandHung { command: program.to_owned(), seconds: LIMIT.as_secs() }),
        Err(error) => Err(not_run(program, error)),
    }
}

fn not_run(program: &Path, error: io::Error) -> ModeError {
    ModeError::CommandFailed { command: program.to_owned(), error }
}

/// The error that a command's exit code and its words mean.
fn refusal(program: &Path, ended: &Ended) -> ModeError {
    let stderr = ended.said.replace('\n', "; ");
    let says = |words: &[&str]| words.iter().any(|word| stderr.contains(word));
    let no_table = says(&["unable to initialize table", "can't initialize ip"]);
    // If iptables-restore finds no table because a capability is missing, it doesn't say so.
    if says(&["you must be root", "Permission denied"]) || no_table && missing_capability().is_some() {
        not_permitted(Privilege::Change)
    } else if no_table {
        ModeError::NoTables { stderr }
    } else {
        ModeError::CommandRefused { command: program.to_owned(), status: ended.status.to_string(), stderr }
    }
}

/// A command that was started. It is killed when this is dropped before it has ended.
struct Running {
    child: Child,
    pipe: PipeReader,
}

impl Running {
    /// Starts a command, which has the other end of the pipe, with all but the needed capabilities given up: capabilities
    /// belong to threads, and a child gets those of the thread that starts it.
    fn start(mut command: Command, pipe: PipeReader) -> io::Result<Self> {
        keep_ended_children()?;
        let child = on_a_thread(|| {
            confine()?;
            command.spawn()
        })??;
        Ok(Self { child, pipe })
    }

    /// Hands the command its input, and waits until it has ended and nobody has its pipe any more; none: it has not ended
    /// in time, and was killed.
    fn end(mut self, input: &[u8]) -> io::Result<Option<Ended>> {
        let group = self.group();
        let (ended, is_ended) = channel::<()>();
        let (said, is_late) = thread::scope(|scope| {
            let watch = thread::Builder::new().spawn_scoped(scope, move || {
                let is_late = is_ended.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout);
                if is_late {
                    let _ = killpg(group, Signal::SIGKILL);
                }
                is_late
            })?;
            let said = self.converse(input);
            // Its number is its own as long as nobody has asked how it ended.
            drop(ended);
            io::Result::Ok((said?, watch.join().unwrap_or(false)))
        })?;
        let status = self.child.wait()?;
        Ok((!is_late).then_some(Ended { status, said }))
    }

    fn converse(&mut self, input: &[u8]) -> io::Result<String> {
        if let Some(mut stdin) = self.child.stdin.take() {
            // A command that ends before it has read everything has failed, and says why.
            let _ = stdin.write_all(input);
        }
        let mut said = Vec::new();
        self.pipe.by_ref().take(LONGEST).read_to_end(&mut said)?;
        let more = io::copy(&mut self.pipe, &mut io::sink())?;
        while waitid(Id::Pid(self.group()), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(Errno::EINTR) {}
        let said = String::from_utf8_lossy(&said).trim().to_owned();
        Ok(if more > 0 { format!("{said}… (and {more} bytes more)") } else { said })
    }

    /// The number of the command's process, which leads a group of its own.
    fn group(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        let _ = killpg(self.group(), Signal::SIGKILL);
        // A killed process finishes the system call that it is in. When the last one that had this pipe is gone, nothing
        // can change any more.
        let _ = io::copy(&mut self.pipe, &mut io::sink());
        let _ = self.child.wait();
    }
}

/// Limits this thread, and its children, to the needed capabilities. A command may still have those that this process
/// lacks as file capabilities.
fn confine() -> io::Result<()> {
    let kept: CapsHashSet = NEEDED.into_iter().filter(is_permitted).collect();
    // The effective set must not exceed the permitted one.
    for set in [CapSet::Effective, CapSet::Permitted, CapSet::Inheritable] {
        caps::set(None, set, &kept).map_err(io::Error::other)?;
    }
    for capability in kept {
        // Without root, a program gets only ambient capabilities, or its file capabilities. If this is refused, the program
        // says what it lacks.
        let _ = caps::raise(None, CapSet::Ambient, capability);
    }
    // Without it, what root executes would get all of the bounding set; with it, no more than is permitted now
    // (`cap_bprm_creds_from_file` in security/commoncap.c).
    Ok(set_no_new_privs()?)
}

/// The error about something that was not permitted, which names the capability that is missing, if one is.
pub(super) fn not_permitted(lacking: Privilege) -> ModeError {
    let capability = missing_capability().map(|capability| Privilege::Capability(capability.to_string()));
    ModeError::NotPermitted(capability.unwrap_or(lacking))
}

/// The first of the needed capabilities that this process lacks.
pub(super) fn missing_capability() -> Option<Capability> {
    NEEDED.into_iter().find(|needed| !is_permitted(needed))
}

fn is_permitted(capability: &Capability) -> bool {
    caps::has_cap(None, CapSet::Permitted, *capability).unwrap_or(false)
}
