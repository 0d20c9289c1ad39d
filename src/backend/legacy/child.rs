//! Running iptables commands: with the capabilities that they need and no others, never for ever, and with both
//! families' transactions committed at the same moment.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read as _, Seek as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use caps::{CapSet, Capability};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::prctl::set_no_new_privs;
use nix::sys::signal::{Signal, killpg};
use nix::sys::time::{TimeSpec, TimeValLike as _};
use nix::unistd::Pid;

use super::environment::handed_on;
use crate::netlink::signals::keep_ended_children;
use crate::netlink::user_namespace::UserNamespace;

/// What iptables-legacy needs: NET_ADMIN to change tables, NET_RAW for the raw socket that it does so on.
const NEEDED: [Capability; 2] = [Capability::CAP_NET_ADMIN, Capability::CAP_NET_RAW];

/// How much is kept of what a command says: more than iptables ever does.
const LONGEST: usize = 4096;

/// The last line of a restore command's input, at which it changes the table.
const COMMIT: &[u8] = b"COMMIT\n";

/// How much a restore command reads at once: glibc's buffer for a pipe has the pipe's block size.
const READ_AT_ONCE: usize = 4096;

/// How long to sleep between two looks at whether a command has ended.
const PAUSE: Duration = Duration::from_micros(30);

/// How often to look without a sleep. A command that ends closes its stderr some microseconds before it can be waited
/// for, and a sleep takes three times as long as it should.
const LOOKS: u32 = 50;

/// How long to wait for a killed command to be gone.
const DEATH: Duration = Duration::from_secs(1);

/// How a command ended.
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    pub(super) stderr: String,
}

/// How a command did not do what it should.
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

/// A restore command, and its input without the last line, `COMMIT`.
pub(super) struct Restore<'a> {
    pub(super) program: &'a Path,
    pub(super) input: Vec<u8>,
}

/// What a program prints when it is called with these arguments.
pub(super) fn output(program: &Path, arguments: &[&str], limit: Duration) -> Result<String, Failure> {
    let deadline = Instant::now() + limit;
    // A file in memory, not a pipe: the command cannot block on it.
    let mut stdout: File = memfd_create(c"proxy-init", MFdFlags::MFD_CLOEXEC)?.into();
    let mut command = command(program);
    command.args(arguments).stdin(Stdio::null()).stdout(stdout.try_clone()?);
    let mut started = spawn(vec![command], || {})?;
    for running in &mut started {
        running.end(deadline)?;
    }
    let mut text = Vec::new();
    stdout.rewind()?;
    stdout.take(LONGEST as u64).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Restore commands that have read their whole input but for the last line, and have changed nothing yet.
pub(super) struct Prepared {
    started: Vec<Running>,
    inputs: Vec<Feed>,
    deadline: Instant,
}

/// Starts restore commands side by side, and waits until each has read its whole input but for the last line. Whenever
/// one fails before, none has changed anything. On an error, tells which command it was; all have ended then.
///
/// `lock` is the locked file of the xtables lock. The commands inherit it, so that it stays locked until they have
/// ended even if this process is killed.
///
/// They run in the user namespace `within`, if there is one. While they start, which takes them most of their time,
/// `meanwhile` is run: none has read anything before that has returned.
pub(super) fn prepare(
    within: Option<&UserNamespace>,
    restores: &[Restore<'_>],
    lock: &File,
    meanwhile: impl FnOnce(),
    limit: Duration,
) -> Result<Prepared, (usize, Failure)> {
    let first = |error: io::Error| (0, Failure::Failed(error));
    let mut commands = Vec::new();
    let mut inputs = Vec::new();
    for Restore { program, input } in restores {
        let (reader, writer) = io::pipe().map_err(first)?;
        let mut command = command(program);
        command
            // Without -w: its alarm would go off while the command waits for its last line.
            .arg("--noflush")
            // The commands would take the lock that is held for them. Each gets a file that no one else locks: the pipe
            // that is its stderr.
            .env("XTABLES_LOCKFILE", "/proc/self/fd/2")
            .stdin(reader.try_clone().map_err(first)?)
            // Nothing is printed. A copy of the locked file keeps it locked.
            .stdout(lock.try_clone().map_err(first)?);
        if let Some(owner) = within {
            let needed = NEEDED.map(|capability| capability.bitmask() as u32);
            owner.start_within(&mut command, needed[0] | needed[1]).map_err(first)?;
        }
        commands.push(command);
        inputs.push(Feed::new(reader, writer, input).map_err(first)?);
    }
    let mut started = match commands.is_empty() {
        true => Vec::new(),
        false => {
            let write = || {
                meanwhile();
                // So that no command waits for it. Whatever goes wrong here goes wrong in `feed` too.
                inputs.iter_mut().for_each(|input| drop(input.is_read()));
            };
            spawn(commands, write).map_err(first)?
        }
    };
    let deadline = Instant::now() + limit;
    feed(&mut started, &mut inputs, deadline)?;
    Ok(Prepared {
        started,
        inputs,
        deadline,
    })
}

impl Prepared {
    /// Tells all commands to commit, and waits for their end. On an error, tells which command it was; all have ended
    /// then, but what each has changed must be looked at.
    pub(super) fn commit(mut self) -> Result<(), (usize, Failure)> {
        for (index, feed) in self.inputs.into_iter().enumerate() {
            feed.commit().map_err(|error| (index, error.into()))?;
        }
        for (index, running) in self.started.iter_mut().enumerate() {
            let ended = running.end(self.deadline).map_err(|failure| (index, failure))?;
            if !ended.status.success() {
                return Err((index, Failure::Ended(ended)));
            }
        }
        Ok(())
    }
}

/// Waits until every command has read its input.
fn feed(started: &mut [Running], inputs: &mut [Feed], deadline: Instant) -> Result<(), (usize, Failure)> {
    loop {
        let mut waiting = Vec::new();
        for (index, feed) in inputs.iter_mut().enumerate() {
            if !feed.is_read().map_err(|error| (index, error.into()))? {
                waiting.push(index);
            }
        }
        for (index, running) in started.iter_mut().enumerate() {
            if running.listen(Duration::ZERO).map_err(|error| (index, error.into()))? {
                // No command ends before it has been told to commit, unless it fails.
                let failure = running.end(deadline).map_or_else(|failure| failure, Failure::Ended);
                return Err((index, failure));
            }
        }
        let Some(&first) = waiting.first() else {
            return Ok(());
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err((first, Failure::Hung));
        }
        let unread = inputs.iter().enumerate().filter(|(index, _)| waiting.contains(index));
        let mut events: Vec<PollFd<'_>> = unread
            .map(|(_, feed)| PollFd::new(feed.writer.as_fd(), PollFlags::POLLOUT))
            .collect();
        let words = started.iter().filter_map(|running| running.stderr.as_ref());
        events.extend(words.map(|stderr| PollFd::new(stderr.as_fd(), PollFlags::POLLIN)));
        wait_for(&mut events, left).map_err(|error| (first, error.into()))?;
    }
}

/// A command's input on its way.
struct Feed {
    /// The end that the command reads. While it is open, writing is no error after the command has ended.
    _reader: PipeReader,
    writer: PipeWriter,
    input: Vec<u8>,
    written: usize,
}

impl Feed {
    fn new(reader: PipeReader, writer: PipeWriter, input: &[u8]) -> io::Result<Self> {
        fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        // One page (F_SETPIPE_SZ rounds up): there is room to write if, and only if, everything has been read.
        fcntl(&writer, FcntlArg::F_SETPIPE_SZ(1))?;
        // A comment as long as what the command reads at once: whoever has read that has dealt with all lines before.
        let mut input = input.to_vec();
        input.resize(input.len() + READ_AT_ONCE, b'#');
        input.push(b'\n');
        Ok(Self {
            _reader: reader,
            writer,
            input,
            written: 0,
        })
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
    /// How many bytes more it has said.
    more: usize,
    ended: bool,
}

impl Running {
    /// Reads what the command says on stderr, waiting this long for it, and tells whether it has closed its stderr, as
    /// it does when it ends.
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

    /// Waits for the command's end.
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
            match looks < LOOKS {
                true => thread::yield_now(),
                false => thread::sleep(PAUSE),
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

/// Waits this long for one of the events, and tells whether there was one.
fn wait_for(events: &mut [PollFd<'_>], wait: Duration) -> io::Result<bool> {
    let wait = TimeSpec::nanoseconds(i64::try_from(wait.as_nanos()).unwrap_or(i64::MAX));
    match ppoll(events, Some(wait), None) {
        Ok(count) => Ok(count > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Starts commands from a thread that has given up all but the needed capabilities: they belong to threads, and a
/// child starts with those of the thread that started it. This thread runs `meanwhile`.
fn spawn(commands: Vec<Command>, meanwhile: impl FnOnce()) -> io::Result<Vec<Running>> {
    keep_ended_children()?;
    let start = || {
        confine()?;
        let mut started = Vec::new();
        for mut command in commands {
            let mut child = command.spawn()?;
            started.push(Running {
                stderr: child.stderr.take(),
                child,
                said: Vec::new(),
                more: 0,
                ended: false,
            });
        }
        Ok(started)
    };
    thread::scope(|scope| {
        let starting = thread::Builder::new().spawn_scoped(scope, start)?;
        meanwhile();
        starting
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread that starts it panicked")))
    })
}

/// Leaves this thread, and what it starts, with no more than the needed capabilities, and no way to get others. What
/// this process lacks, a command may still have as a file capability.
fn confine() -> io::Result<()> {
    let failed = |error: caps::errors::CapsError| io::Error::other(error.to_string());
    let permitted = caps::read(None, CapSet::Permitted).map_err(failed)?;
    let kept: HashSet<Capability> = NEEDED.into_iter().filter(|needed| permitted.contains(needed)).collect();
    // In this order: what is effective must be permitted, what becomes ambient must be permitted and inheritable.
    for set in [CapSet::Inheritable, CapSet::Effective, CapSet::Permitted] {
        caps::set(None, set, &kept).map_err(failed)?;
    }
    // What anybody but root executes gets only what is ambient, or what its file capabilities say.
    for capability in kept {
        let _ = caps::raise(None, CapSet::Ambient, capability);
    }
    // Without it, what root executes would get all of the bounding set; with it, no more than is permitted now
    // (`cap_bprm_creds_from_file` in security/commoncap.c).
    set_no_new_privs()?;
    Ok(())
}

/// The first of the needed capabilities that this process cannot hand on.
pub(super) fn missing_capability() -> Option<Capability> {
    let permitted = caps::read(None, CapSet::Permitted).unwrap_or_default();
    NEEDED.into_iter().find(|needed| !permitted.contains(needed))
}
