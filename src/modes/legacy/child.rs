//! Runs iptables commands: with the capabilities that they need and no others, and for a limited time.

use std::fs::File;
use std::io::{self, ErrorKind, PipeReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use caps::{CapSet, Capability, CapsHashSet};
use netfilter::netlink::signals::keep_ended_children;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_no_new_privs;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::environment::handed_on;
use crate::config::Mode;
use crate::error::{Error, LegacyError, ModeError, Privilege};
use crate::netns::on_a_thread;

/// iptables-legacy needs NET_ADMIN to change tables, and NET_RAW for the raw socket that it does so on.
const NEEDED: [Capability; 2] = [Capability::CAP_NET_ADMIN, Capability::CAP_NET_RAW];

/// How long commands may take; they take milliseconds.
const LIMIT: Duration = Duration::from_secs(10);

/// How much is kept of a command's words: more than iptables ever writes.
const LONGEST: usize = 4096;

/// How long to sleep between two checks whether a command has ended that has closed its pipe.
const PAUSE: Duration = Duration::from_micros(30);

/// How long to wait for a killed command to be gone.
const DEATH: Duration = Duration::from_secs(1);

/// A restore command, and what it reads.
#[derive(Debug)]
pub(super) struct Restore {
    pub(super) program: PathBuf,
    pub(super) input: Vec<u8>,
}

/// Runs restore commands side by side, and returns when all have ended. They get their input once all have started: if one
/// can't be started, or this process is killed meanwhile, none commits anything.
///
/// `lock` is the locked file of the xtables lock. The commands inherit the file, so that it stays locked until they have
/// ended even if this process is killed.
///
/// # Errors
/// The first command's that failed. Commands may have changed their tables all the same.
pub(super) fn run_restores(restores: &[&Restore], lock: &File) -> Result<(), Error> {
    let deadline = Instant::now() + LIMIT;
    let mut started = Vec::new();
    for restore in restores {
        started.push(start_restore(restore, lock).map_err(|error| not_run(&restore.program, error))?);
    }
    let feeds: Vec<_> = started.iter_mut().map(|running| running.child.stdin.take()).zip(restores).collect();
    let ended: Vec<io::Result<Option<Ended>>> = thread::scope(|scope| {
        // A command that hangs does not read, and this thread has to see to it that it ends.
        let feed = || {
            for (stdin, restore) in feeds {
                // A command that ends before it has read everything has failed, and says why.
                let _ = stdin.map(|mut stdin| stdin.write_all(&restore.input));
            }
        };
        match thread::Builder::new().spawn_scoped(scope, feed) {
            Ok(_) => started.into_iter().map(|running| running.end(deadline)).collect(),
            Err(error) => vec![Err(error)],
        }
    });
    for (ended, restore) in ended.into_iter().zip(restores) {
        succeed(&restore.program, ended)?;
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
pub(super) fn version(program: &Path) -> Result<String, Error> {
    let start = || {
        let (said, stdout) = io::pipe()?;
        let mut command = prepare(program);
        command.arg("--version").stdin(Stdio::null()).stdout(stdout).stderr(Stdio::null());
        Running::start(command, said)?.end(Instant::now() + LIMIT)
    };
    succeed(program, start())
}

fn prepare(program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .envs(handed_on())
        // A group of its own, so that what it starts can be killed with it.
        .process_group(0);
    command
}

/// A command that has ended.
struct Ended {
    status: ExitStatus,
    said: String,
}

/// The words of a command that has succeeded; none: it was killed, because it took too long.
fn succeed(program: &Path, ended: io::Result<Option<Ended>>) -> Result<String, Error> {
    match ended {
        Ok(Some(Ended { status, said })) if status.success() => Ok(said),
        Ok(Some(ended)) => Err(refusal(program, &ended)),
        Ok(None) => Err(LegacyError::CommandHung { command: program.to_owned(), seconds: LIMIT.as_secs() }.into()),
        Err(error) => Err(not_run(program, error)),
    }
}

fn not_run(program: &Path, error: io::Error) -> Error {
    LegacyError::CommandFailed { command: program.to_owned(), error }.into()
}

/// The error that a command's exit code and its words mean.
fn refusal(program: &Path, ended: &Ended) -> Error {
    let stderr = ended.said.replace('\n', "; ");
    let says = |words: &[&str]| words.iter().any(|word| stderr.contains(word));
    let no_table = says(&["unable to initialize table", "can't initialize ip"]);
    // If iptables-restore finds no table because a capability is missing, it doesn't say so.
    if says(&["you must be root", "Permission denied"]) || no_table && missing_capability().is_some() {
        not_permitted(Privilege::Change)
    } else if no_table {
        LegacyError::NoTables { stderr }.into()
    } else {
        LegacyError::CommandRefused { command: program.to_owned(), status: ended.status.to_string(), stderr }.into()
    }
}

/// A command that was started. It is killed when this is dropped before it has ended.
struct Running {
    child: Child,
    pipe: PipeReader,
    /// The first words that came from the pipe.
    said: Vec<u8>,
    /// How many bytes came after those.
    more: usize,
    ended: bool,
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
        Ok(Self { child, pipe, said: Vec::new(), more: 0, ended: false })
    }

    /// Waits for its end; none: it has not ended in time, and was killed.
    fn end(mut self, deadline: Instant) -> io::Result<Option<Ended>> {
        let Some(status) = self.wait(deadline)? else {
            return Ok(None);
        };
        let mut said = String::from_utf8_lossy(&self.said).trim().to_owned();
        if self.more > 0 {
            said += &format!("… (and {} bytes more)", self.more);
        }
        Ok(Some(Ended { status, said }))
    }

    /// Waits until it has ended and nobody has its pipe any more; none: not in time.
    fn wait(&mut self, deadline: Instant) -> io::Result<Option<ExitStatus>> {
        let mut is_closed = false;
        loop {
            if is_closed && let Some(status) = self.child.try_wait()? {
                self.ended = true;
                return Ok(Some(status));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            if is_closed {
                thread::sleep(PAUSE);
            } else {
                is_closed = self.listen(left)?;
            }
        }
    }

    /// Waits this long for words, keeps them, and tells whether the pipe is closed.
    fn listen(&mut self, wait: Duration) -> io::Result<bool> {
        let wait = PollTimeout::try_from(wait).unwrap_or(PollTimeout::ZERO);
        match poll(&mut [PollFd::new(self.pipe.as_fd(), PollFlags::POLLIN)], wait) {
            Ok(0) | Err(Errno::EINTR) => return Ok(false),
            Ok(_) => {}
            Err(errno) => return Err(errno.into()),
        }
        let mut words = [0; 4096];
        match self.pipe.read(&mut words) {
            Ok(length) => {
                let kept = length.min(LONGEST - self.said.len());
                self.said.extend_from_slice(words.get(..kept).unwrap_or_default());
                self.more += length - kept;
                Ok(length == 0)
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let _ = killpg(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGKILL);
        // A killed process finishes the system call that it is in. When the last one that had this pipe is gone, nothing
        // can change any more.
        let _ = self.wait(Instant::now() + DEATH);
        let _ = self.child.try_wait();
    }
}

/// Limits this thread, and what it starts, to the needed capabilities. A command may still have those that this process
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
pub(super) fn not_permitted(lacking: Privilege) -> Error {
    let capability = missing_capability().map(|capability| Privilege::Capability(capability.to_string()));
    ModeError::NotPermitted(capability.unwrap_or(lacking)).in_mode(Mode::Legacy)
}

/// The first of the needed capabilities that this process lacks.
pub(super) fn missing_capability() -> Option<Capability> {
    NEEDED.into_iter().find(|needed| !is_permitted(needed))
}

fn is_permitted(capability: &Capability) -> bool {
    caps::has_cap(None, CapSet::Permitted, *capability).unwrap_or(false)
}
