//! Runs iptables commands: with the capabilities that they need and no others, and for a limited time.

use std::fs::File;
use std::io::{self, PipeReader, Read as _, Seek as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use caps::{CapSet, Capability, CapsHashSet};
use netfilter::netlink::signals::keep_ended_children;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::prctl::set_no_new_privs;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::environment::handed_on;
use crate::error::{ModeError, Privilege};
use crate::netns::on_a_thread;

/// iptables-legacy needs NET_ADMIN to change tables, and NET_RAW for the raw socket that it does so on.
const NEEDED: [Capability; 2] = [Capability::CAP_NET_ADMIN, Capability::CAP_NET_RAW];

/// The time that a command may take; commands take milliseconds.
const LIMIT: Duration = Duration::from_secs(10);

/// The time in which killed processes end: each finishes the system call that it is in.
const GRACE: Duration = Duration::from_secs(1);

/// The most bytes that are kept of a command's words: more than iptables ever writes.
const LONGEST: usize = 4096;

/// Runs a restore command with this input.
///
/// `lock` is the locked file of the xtables lock. The command inherits the file, so that it stays locked until the command
/// has ended even if this process is killed.
///
/// # Errors
/// The command failed. It may have changed its table all the same.
pub(super) fn restore(program: &Path, input: &[u8], lock: &File) -> Result<(), ModeError> {
    run(program, |command, words| {
        let mut rules = File::from(memfd_create("rules", MFdFlags::MFD_CLOEXEC)?);
        rules.write_all(input)?;
        rules.rewind()?;
        command
            .arg("--noflush")
            // The command would try to take the lock that is held for it. It gets a file that nobody else locks: the pipe
            // that is its stderr.
            .env("XTABLES_LOCKFILE", "/proc/self/fd/2")
            .stdin(rules)
            // Nothing is printed. A copy of the locked file keeps it locked.
            .stdout(lock.try_clone()?)
            .stderr(words);
        Ok(())
    })
    .map(drop)
}

/// The content of a program's version line.
pub(super) fn version(program: &Path) -> Result<String, ModeError> {
    run(program, |command, words| {
        command.arg("--version").stdin(Stdio::null()).stdout(words).stderr(Stdio::null());
        Ok(())
    })
}

/// Runs a program to its end, and returns its words. `prepare` is given where these go.
fn run(
    program: &Path,
    prepare: impl FnOnce(&mut Command, io::PipeWriter) -> io::Result<()>,
) -> Result<String, ModeError> {
    let start = || {
        let (said, words) = io::pipe()?;
        let mut command = Command::new(program);
        // A group of its own, so that the command's children can be killed with it.
        command.env_clear().envs(handed_on()).process_group(0);
        prepare(&mut command, words)?;
        finish(command, said)
    };
    match start() {
        Ok((Some(status), said)) if status.success() => Ok(said),
        Ok((Some(status), said)) => Err(refusal(program, status, &said)),
        Ok((None, _)) => Err(ModeError::CommandHung { command: program.to_owned(), seconds: LIMIT.as_secs() }),
        Err(error) => Err(ModeError::CommandFailed { command: program.to_owned(), error }),
    }
}

/// The error that a command's exit code and its words mean.
fn refusal(program: &Path, status: ExitStatus, said: &str) -> ModeError {
    let stderr = said.replace('\n', "; ");
    let says = |words: &[&str]| words.iter().any(|word| stderr.contains(word));
    let no_table = says(&["unable to initialize table", "can't initialize ip"]);
    // If iptables-restore finds no table because a capability is missing, it doesn't say so.
    if says(&["you must be root", "Permission denied"]) || no_table && missing_capability().is_some() {
        not_permitted(Privilege::Change)
    } else if no_table {
        ModeError::NoTables { stderr }
    } else {
        ModeError::CommandRefused { command: program.to_owned(), status: status.to_string(), stderr, suspect: None }
    }
}

/// Runs a command, which has the other end of the pipe, until it has ended and nobody has that end any more: then nothing
/// can change any more. Returns how it ended, and its words. None: it was not so in time, and the command and its children
/// were killed.
fn finish(mut command: Command, mut pipe: PipeReader) -> io::Result<(Option<ExitStatus>, String)> {
    keep_ended_children()?;
    // Capabilities belong to threads, and a child gets those of the thread that starts it.
    let mut child = on_a_thread(|| {
        confine()?;
        command.spawn()
    })??;
    drop(command);
    let deadline = Instant::now() + LIMIT;
    let mut said = Vec::new();
    let mut is_over = hear_out(&mut pipe, deadline, &mut said);
    while is_over && child.try_wait()?.is_none() {
        is_over = Instant::now() < deadline;
        sleep(Duration::from_micros(100));
    }
    if !is_over {
        // It keeps its number, for nobody has seen it end.
        let _ = killpg(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL);
        // A process that has left the group may live on.
        hear_out(&mut pipe, Instant::now() + GRACE, &mut said);
    }
    let status = child.wait()?;
    let mut said = String::from_utf8_lossy(&said).trim().to_owned();
    if said.len() >= LONGEST {
        said.push('…');
    }
    Ok((is_over.then_some(status), said))
}

/// Reads from a pipe until nobody can write to it any more, and returns true; false, if somebody still can at the deadline.
fn hear_out(pipe: &mut PipeReader, deadline: Instant, said: &mut Vec<u8>) -> bool {
    let mut buffer = [0; LONGEST];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        let mut files = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
        match poll(&mut files, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
            Ok(0) => {}
            Ok(_) => match pipe.read(&mut buffer) {
                Ok(0) => return true,
                Ok(length) => {
                    let room = LONGEST.saturating_sub(said.len());
                    said.extend(buffer.iter().take(length.min(room)));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            },
            Err(nix::errno::Errno::EINTR) => {}
            Err(_) => return false,
        }
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
