//! Running an iptables-legacy command: with the privileges that it needs and no others, and never for ever.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use caps::{CapSet, Capability};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::prctl::set_no_new_privs;
use nix::unistd::geteuid;

/// What iptables-legacy needs: NET_ADMIN to change tables, NET_RAW for the raw socket that it does so on.
pub(super) const NEEDED: [Capability; 2] = [Capability::CAP_NET_ADMIN, Capability::CAP_NET_RAW];

/// What is handed on of our environment.
const ENVIRONMENT: [&str; 3] = ["PATH", "XTABLES_LOCKFILE", "XTABLES_LIBDIR"];

/// What a command left behind.
pub(super) struct Finished {
    pub(super) status: ExitStatus,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// How a command did not get to its end.
pub(super) enum Unfinished {
    /// It could not be started or watched.
    Failed(io::Error),
    /// It took longer than it may, and was killed.
    Hung,
}

impl From<io::Error> for Unfinished {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// Runs a command with `input` on its stdin. Without a time limit, it may take for ever.
pub(super) fn run(
    program: &Path,
    arguments: &[&str],
    input: &str,
    limit: Option<Duration>,
) -> Result<Finished, Unfinished> {
    let deadline = limit.map(|limit| Instant::now() + limit);
    // Files in memory, not pipes: the command can't block on us, and what it doesn't read doesn't kill us.
    let mut stdin = memory_file()?;
    stdin.write_all(input.as_bytes())?;
    stdin.rewind()?;
    let mut stdout = memory_file()?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(
            ENVIRONMENT
                .iter()
                .filter_map(|name| Some((name, std::env::var_os(name)?))),
        )
        .env("LC_ALL", "C")
        .stdin(stdin)
        .stdout(stdout.try_clone()?)
        .stderr(Stdio::piped());
    let mut child = spawn(&mut command)?;
    let watched = watch(&mut child, deadline);
    if !matches!(watched, Ok(Some(_))) {
        // Killed or not, it is reaped.
        let _ = child.kill();
        let _ = child.wait();
    }
    let (status, stderr) = watched?.ok_or(Unfinished::Hung)?;
    let mut text = Vec::new();
    stdout.rewind()?;
    stdout.read_to_end(&mut text)?;
    Ok(Finished {
        status,
        stdout: String::from_utf8_lossy(&text).into_owned(),
        stderr: String::from_utf8_lossy(&stderr).trim().to_owned(),
    })
}

fn memory_file() -> io::Result<File> {
    Ok(memfd_create(c"proxy-init", MFdFlags::MFD_CLOEXEC)?.into())
}

/// Starts the command from a thread that has given up all but the needed capabilities: they belong to threads, and a
/// child starts with those of the thread that started it.
fn spawn(command: &mut Command) -> io::Result<Child> {
    thread::scope(|scope| {
        let started = scope.spawn(|| {
            confine()?;
            command.spawn()
        });
        started
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread that starts it panicked")))
    })
}

/// Leaves this thread, and what it starts, with the needed capabilities only, and no way to get others.
fn confine() -> io::Result<()> {
    let failed = |error: caps::errors::CapsError| io::Error::other(error.to_string());
    if geteuid().is_root() {
        // What root executes gets all of the bounding set. Narrowing that takes CAP_SETPCAP; without it, whoever
        // started us has narrowed it already.
        for capability in caps::all() {
            if !NEEDED.contains(&capability) {
                let _ = caps::drop(None, CapSet::Bounding, capability);
            }
        }
    }
    let needed: HashSet<Capability> = NEEDED.into();
    // In this order: what is effective must be permitted, what becomes ambient must be permitted and inheritable.
    for set in [CapSet::Inheritable, CapSet::Effective, CapSet::Permitted] {
        caps::set(None, set, &needed).map_err(failed)?;
    }
    // What anybody else executes gets only what is ambient.
    for capability in NEEDED {
        caps::raise(None, CapSet::Ambient, capability).map_err(failed)?;
    }
    set_no_new_privs()?;
    Ok(())
}

/// Whether this thread has what [`confine`] keeps; the first one that is missing otherwise.
pub(super) fn missing_capability() -> Option<Capability> {
    let permitted = caps::read(None, CapSet::Permitted).unwrap_or_default();
    NEEDED.into_iter().find(|needed| !permitted.contains(needed))
}

/// Reads what the command says on stderr until it ends. None: it didn't by the deadline.
fn watch(child: &mut Child, deadline: Option<Instant>) -> io::Result<Option<(ExitStatus, Vec<u8>)>> {
    let left = || deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let mut said = Vec::new();
    if let Some(mut stderr) = child.stderr.take() {
        let mut chunk = [0; 4096];
        loop {
            let timeout = match left() {
                None => PollTimeout::NONE,
                Some(left) => PollTimeout::try_from(left.as_millis()).unwrap_or(PollTimeout::MAX),
            };
            let mut ready = [PollFd::new(stderr.as_fd(), PollFlags::POLLIN)];
            match poll(&mut ready, timeout) {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(nix::errno::Errno::EINTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            match stderr.read(&mut chunk)? {
                0 => break,
                length => said.extend_from_slice(chunk.get(..length).unwrap_or_default()),
            }
        }
    }
    // It has closed its stderr, as it does when it ends.
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some((status, said)));
        }
        if left().is_some_and(|left| left.is_zero()) {
            return Ok(None);
        }
        thread::sleep(Duration::from_micros(50));
    }
}
