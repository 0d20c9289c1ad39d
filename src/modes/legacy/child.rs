//! Runs iptables commands: with the capabilities that they need and no others, for a limited time, and with both families'
//! transactions committed at the same moment.

use std::fs::File;
use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read as _, Seek as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use caps::{CapSet, Capability, CapsHashSet};
use netfilter::netlink::signals::keep_ended_children;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::prctl::set_no_new_privs;
use nix::sys::signal::{Signal, killpg};
use nix::sys::time::{TimeSpec, TimeValLike as _};
use nix::unistd::Pid;
use ruleset::Family;

use super::environment::handed_on;

/// What iptables-legacy needs: NET_ADMIN to change tables, NET_RAW for the raw socket that it does so on.
const NEEDED: [Capability; 2] = [Capability::CAP_NET_ADMIN, Capability::CAP_NET_RAW];

/// How much is kept of a command's message: more than iptables ever writes.
const LONGEST: usize = 4096;

/// The last line of a restore command's input, at which it changes the table.
const COMMIT: &[u8] = b"COMMIT\n";

/// How much a restore command reads at once: glibc's buffer has the pipe's block size.
const READ_AT_ONCE: usize = 4096;

/// How long to sleep between two checks whether a command has ended.
const PAUSE: Duration = Duration::from_micros(30);

/// How often to check without a sleep. A command that ends closes its stderr some microseconds before it can be waited for,
/// and a sleep takes three times as long as it should.
const LOOKS: u32 = 50;

/// How long to wait for a killed command to be gone.
const DEATH: Duration = Duration::from_secs(1);

pub(super) struct Ended {
    pub(super) status: ExitStatus,
    pub(super) stderr: String,
}

pub(super) enum Failure {
    /// It could not be started or watched.
    Failed(io::Error),
    /// It took longer than it may, and was killed.
    Hung,
    /// It ended with an error, or too early.
    Ended(Ended),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::Failed(errno.into())
    }
}

#[derive(Debug)]
pub(super) struct Restore {
    pub(super) family: Family,
    pub(super) program: PathBuf,
    /// What it reads, without the last line, `COMMIT`.
    pub(super) input: Vec<u8>,
}

/// Runs a program with these arguments, and returns what it prints.
pub(super) fn command_output(program: &Path, arguments: &[&str], limit: Duration) -> Result<String, Failure> {
    let deadline = Instant::now() + limit;
    // A file in memory, not a pipe: the command cannot block on it.
    let mut stdout: File = memfd_create(c"proxy-init", MFdFlags::MFD_CLOEXEC)?.into();
    let mut command = command(program);
    command.args(arguments).stdin(Stdio::null()).stdout(stdout.try_clone()?);
    for running in start_confined(vec![command], || ()) {
        running?.end(deadline)?;
    }
    let mut text = Vec::new();
    stdout.rewind()?;
    stdout.take(LONGEST as u64).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Restore commands that have read their whole input but for the last line, and have changed nothing yet.
pub(super) struct Prepared<'a> {
    started: Vec<Started<'a>>,
    deadline: Instant,
}

struct Started<'a> {
    restore: &'a Restore,
    running: Running,
    feed: Feed,
}

/// Starts restore commands side by side, and waits until each has read its whole input except the last line. If one fails
/// before, none has changed anything. An error has the command that failed; all have ended then.
///
/// `lock` is the locked file of the xtables lock. The commands inherit it, so that it stays locked until they have
/// ended even if this process is killed.
///
/// While they start, this runs `meanwhile`. They get no input before that has returned.
pub(super) fn prepare<'a>(
    restores: &[&'a Restore],
    lock: &File,
    meanwhile: impl FnOnce(),
    limit: Duration,
) -> Result<Prepared<'a>, (&'a Restore, Failure)> {
    let deadline = Instant::now() + limit;
    let (mut commands, mut feeds) = (Vec::new(), Vec::new());
    for restore in restores {
        let (command, feed) = restore_command(restore, lock).map_err(|error| (*restore, error.into()))?;
        commands.push(command);
        feeds.push(feed);
    }
    // At once: if both commands run on the only two processors, this thread would have to wait.
    let running = start_confined(commands, || {
        meanwhile();
        for (feed, restore) in feeds.iter_mut().zip(restores) {
            feed.begin(&restore.input);
        }
    });
    let mut started = Vec::new();
    for ((restore, running), feed) in restores.iter().zip(running).zip(feeds) {
        let running = running.map_err(|error| (*restore, error.into()))?;
        started.push(Started { restore, running, feed });
    }
    feed_all(&mut started, deadline)?;
    Ok(Prepared { started, deadline })
}

fn restore_command(restore: &Restore, lock: &File) -> io::Result<(Command, Feed)> {
    let (stdin, feed) = Feed::new()?;
    let mut command = command(&restore.program);
    command
        // Without -w: its alarm would end the command while it waits for its last line.
        .arg("--noflush")
        // The commands would try to take the lock that is held for them. Each gets a file that nobody else locks: the pipe
        // that is its stderr.
        .env("XTABLES_LOCKFILE", "/proc/self/fd/2")
        .stdin(stdin)
        // Nothing is printed. A copy of the locked file keeps it locked.
        .stdout(lock.try_clone()?);
    Ok((command, feed))
}

impl<'a> Prepared<'a> {
    /// Has all commands commit, and waits for their end. An error has the command that failed; all have ended then, and what
    /// each has changed must be checked.
    pub(super) fn commit(self) -> Result<(), (&'a Restore, Failure)> {
        let mut told = Vec::new();
        for Started { restore, running, feed } in self.started {
            told.push((restore, running));
            feed.commit().map_err(|error| (restore, error.into()))?;
        }
        for (restore, running) in &mut told {
            let ended = running.end(self.deadline).map_err(|failure| (*restore, failure))?;
            if !ended.status.success() {
                return Err((restore, Failure::Ended(ended)));
            }
        }
        Ok(())
    }
}

fn feed_all<'a>(started: &mut [Started<'a>], deadline: Instant) -> Result<(), (&'a Restore, Failure)> {
    loop {
        let mut waiting = None;
        let mut events = Vec::new();
        for Started { restore, running, feed } in started.iter_mut() {
            let failed = |error: io::Error| (*restore, error.into());
            if !feed.is_read().map_err(failed)? {
                waiting = waiting.or(Some(*restore));
                events.push(PollFd::new(feed.writer.as_fd(), PollFlags::POLLOUT));
            }
            if running.listen(Duration::ZERO).map_err(failed)? {
                // No command ends before it has been told to commit, unless it fails.
                let failure = running.end(deadline).map_or_else(|failure| failure, Failure::Ended);
                return Err((restore, failure));
            }
            let words = running.stderr.iter();
            events.extend(words.map(|stderr| PollFd::new(stderr.as_fd(), PollFlags::POLLIN)));
        }
        let Some(waiting) = waiting else {
            return Ok(());
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err((waiting, Failure::Hung));
        }
        wait_for(&mut events, left).map_err(|error| (waiting, error.into()))?;
    }
}

struct Feed {
    /// The end that the command reads. While it is open, writing is no error after the command has ended.
    _reader: PipeReader,
    writer: PipeWriter,
    input: Vec<u8>,
    written: usize,
}

impl Feed {
    /// A feed without input, and the command's end of it.
    fn new() -> io::Result<(PipeReader, Self)> {
        let (reader, writer) = io::pipe()?;
        fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        // One page (F_SETPIPE_SZ rounds up): there is room to write if, and only if, everything has been read.
        fcntl(&writer, FcntlArg::F_SETPIPE_SZ(1))?;
        let feed = Self { _reader: reader.try_clone()?, writer, input: Vec::new(), written: 0 };
        Ok((reader, feed))
    }

    /// Begins to write the command's input, which lacks the last line.
    fn begin(&mut self, input: &[u8]) {
        // A comment as long as what the command reads at once: whoever has read that has dealt with all lines before.
        self.input = [input, &[b'#'; READ_AT_ONCE], b"\n"].concat();
        // An error here comes again at the next call.
        let _ = self.is_read();
    }

    /// Writes what fits into the pipe, and tells whether the command has read everything.
    fn is_read(&mut self) -> io::Result<bool> {
        while let Some(rest) = self.input.get(self.written..).filter(|rest| !rest.is_empty()) {
            match self.writer.write(rest) {
                Ok(length) => self.written += length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let mut room = [PollFd::new(self.writer.as_fd(), PollFlags::POLLOUT)];
        wait_for(&mut room, Duration::ZERO)
    }

    /// Writes the last line, for which the pipe has room, and closes the pipe.
    fn commit(mut self) -> io::Result<()> {
        self.writer.write_all(COMMIT)
    }
}

fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .envs(handed_on())
        .stderr(Stdio::piped())
        // A group of its own, so that what it starts can be killed with it.
        .process_group(0);
    command
}

/// A command that was started. It is killed when this is dropped before it has ended.
struct Running {
    child: Child,
    stderr: Option<ChildStderr>,
    said: Vec<u8>,
    more: usize,
    ended: bool,
}

impl Running {
    fn start(mut command: Command) -> io::Result<Self> {
        let mut child = command.spawn()?;
        Ok(Self { stderr: child.stderr.take(), child, said: Vec::new(), more: 0, ended: false })
    }

    /// Reads what the command writes to stderr, waiting this long for it. Returns whether stderr is closed, as it is once the
    /// command has ended.
    fn listen(&mut self, wait: Duration) -> io::Result<bool> {
        let Some(stderr) = &mut self.stderr else {
            return Ok(true);
        };
        if !wait_for(&mut [PollFd::new(stderr.as_fd(), PollFlags::POLLIN)], wait)? {
            return Ok(false);
        }
        let mut chunk = [0; 4096];
        match stderr.read(&mut chunk) {
            Ok(0) => {
                self.stderr = None;
                Ok(true)
            }
            Ok(length) => {
                let kept = length.min(LONGEST - self.said.len());
                self.said.extend_from_slice(chunk.get(..kept).unwrap_or_default());
                self.more += length - kept;
                Ok(false)
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn end(&mut self, deadline: Instant) -> Result<Ended, Failure> {
        let left = || deadline.saturating_duration_since(Instant::now());
        while !self.listen(left())? {
            if left().is_zero() {
                return Err(Failure::Hung);
            }
        }
        let mut looks = 0;
        loop {
            if let Some(status) = self.child.try_wait()? {
                self.ended = true;
                let mut stderr = String::from_utf8_lossy(&self.said).trim().to_owned();
                if self.more > 0 {
                    stderr += &format!("… (and {} bytes more)", self.more);
                }
                return Ok(Ended { status, stderr });
            }
            if left().is_zero() {
                return Err(Failure::Hung);
            }
            looks += 1;
            if looks < LOOKS {
                thread::yield_now();
            } else {
                thread::sleep(PAUSE);
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let _ = killpg(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGKILL);
        let _ = self.child.wait();
        // A killed process finishes the system call that it is in. When the last one that had this stderr is gone,
        // nothing can change any more.
        let deadline = Instant::now() + DEATH;
        while Instant::now() < deadline && matches!(self.listen(PAUSE), Ok(false)) {}
    }
}

/// Waits this long for one of the events, and returns whether there was one.
fn wait_for(events: &mut [PollFd<'_>], wait: Duration) -> io::Result<bool> {
    let wait = TimeSpec::nanoseconds(i64::try_from(wait.as_nanos()).unwrap_or(i64::MAX));
    match ppoll(events, Some(wait), None) {
        Ok(count) => Ok(count > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Starts commands from a new thread that has given up all but the needed capabilities: capabilities belong to threads, and
/// a child gets those of the thread that starts it. The calling thread runs `meanwhile`. If the new thread can't be made,
/// that is the first command's error.
fn start_confined(commands: Vec<Command>, meanwhile: impl FnOnce()) -> Vec<io::Result<Running>> {
    if commands.is_empty() {
        return Vec::new();
    }
    let started = thread::scope(|scope| {
        keep_ended_children()?;
        let starting = thread::Builder::new().spawn_scoped(scope, || {
            confine()?;
            Ok(commands.into_iter().map(Running::start).collect())
        })?;
        meanwhile();
        starting.join().unwrap_or_else(|_| Err(io::Error::other("the thread that starts it panicked")))
    });
    started.unwrap_or_else(|error| vec![Err(error)])
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

/// The first of the needed capabilities that this process lacks.
pub(super) fn missing_capability() -> Option<Capability> {
    NEEDED.into_iter().find(|needed| !is_permitted(needed))
}

fn is_permitted(capability: &Capability) -> bool {
    caps::has_cap(None, CapSet::Permitted, *capability).unwrap_or(false)
}
