//! Validating: makes a real connection and checks that the rules bring it to the proxy's port, as linkerd-network-validator
//! does before a pod's containers start. This also says why a connection went astray.

use std::fmt;
use std::hash::BuildHasher as _;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrLike as _, SockaddrStorage, connect, socket};
use nix::unistd::{getegid, geteuid};
use ruleset::Direction;
use thiserror::Error;

use crate::diagnose::explain::answer::{Connection, Verdict};
use crate::diagnose::explain::explain;
use crate::error::{Errno, Error, ModeError, errno_of};
use crate::log::{Level, Log};

/// A validation. It listens where the proxy will, connects to an address that nothing needs to have, and expects its
/// own answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validate {
    /// The address to which the rules should take the connection: the proxy's outbound port.
    pub listen: SocketAddr,
    /// The connection's intended destination. It needs a route, but no host.
    pub connect: SocketAddr,
    pub timeout: Duration,
}

/// linkerd-network-validator's defaults.
impl Default for Validate {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 4140)),
            connect: SocketAddr::from((Ipv4Addr::new(192, 0, 2, 2), 1404)),
            timeout: Duration::from_secs(10),
        }
    }
}

/// Reasons why a validation failed. The last part of each tells the rules' treatment of such a connection.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotValidated {
    #[error("cannot listen on {address} ({errno}): {advice}")]
    Listen { address: SocketAddr, errno: Errno, advice: &'static str },
    #[error("the connection to {address} failed ({errno}): {why}")]
    Connect { address: SocketAddr, errno: Errno, why: String },
    /// The connection was made, but not to this process.
    #[error("another program answered the connection to {address}: {why}")]
    OtherProgram { address: SocketAddr, why: String },
    #[error("no answer from {address} within {}: {why}", duration_in_words(*timeout))]
    NoAnswer { address: SocketAddr, timeout: Duration, why: String },
    #[error("killed by {signal}")]
    Killed { signal: &'static str },
    #[error(
        "cannot wait for connections and signals ({errno}): raise the limits of the process, or allow it in the seccomp profile"
    )]
    Wait { errno: Errno },
}

impl Validate {
    /// Validates the rules of the thread's network namespace, and logs each step.
    ///
    /// While it runs, SIGTERM, SIGINT and SIGHUP are blocked for the calling thread, and end the validation.
    ///
    /// # Errors
    /// The connection didn't come to this process within the timeout; the error says why.
    pub fn run(&self, log: &mut Log) -> Result<(), NotValidated> {
        let mut tell = |level, step: fmt::Arguments<'_>| {
            log.add(level, step);
            // The next step may wait.
            let _ = log.flush();
        };
        let signals = Signals::block().map_err(cannot_wait)?;
        let listener = TcpListener::bind(self.listen).map_err(|error| self.cannot_listen(&error))?;
        listener.set_nonblocking(true).map_err(|error| self.cannot_listen(&error))?;
        tell(Level::Info, format_args!("Listening for connections on {}", self.listen));
        let token = token();
        tell(Level::Info, format_args!("Connecting to {}", self.connect));
        let mut client = self.start_connecting()?;
        let mut is_connected = false;
        let mut answer = Vec::new();
        // A time that no clock reaches is no limit.
        let deadline = Instant::now().checked_add(self.timeout);
        loop {
            let awaited = if is_connected { PollFlags::POLLIN } else { PollFlags::POLLOUT };
            let mut files = [
                PollFd::new(signals.file.as_fd(), PollFlags::POLLIN),
                PollFd::new(listener.as_fd(), PollFlags::POLLIN),
                PollFd::new(client.as_fd(), awaited),
            ];
            match poll(&mut files, poll_timeout(deadline)) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(errno) => return Err(cannot_wait(errno)),
            }
            let is_client_ready = files.last().is_some_and(|file| file.any() == Some(true));
            if let Some(signal) = signals.take() {
                return Err(NotValidated::Killed { signal });
            }
            match listener.accept() {
                Ok((mut stream, address)) => {
                    // If that fails, the client sees it.
                    let _ = stream.write_all(token.as_bytes());
                    tell(Level::Debug, format_args!("Accepted a connection from {address}, and sent the token"));
                }
                // A client that is gone already is no failure; an obstacle to accepting any is.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)) => {
                    return Err(NotValidated::Wait { errno: errno_of(&error) });
                }
                Err(_) => {}
            }
            if is_client_ready && !is_connected {
                if let Some(error) = client.take_error().unwrap_or_else(Some) {
                    return Err(self.cannot_connect(errno_of(&error)));
                }
                is_connected = true;
                tell(Level::Debug, format_args!("Connected"));
            } else if is_client_ready && self.has_read_all(&mut client, &mut answer, &token)? {
                tell(Level::Info, format_args!("Validated"));
                return Ok(());
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(NotValidated::NoAnswer {
                    address: self.connect,
                    timeout: self.timeout,
                    why: self.what_rules_do(),
                });
            }
        }
    }

    fn start_connecting(&self) -> Result<TcpStream, NotValidated> {
        let address = SockaddrStorage::from(self.connect);
        let family = address.family().unwrap_or(AddressFamily::Unspec);
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let client = socket(family, SockType::Stream, flags, None).map_err(|errno| self.cannot_start(errno))?;
        match connect(client.as_raw_fd(), &address) {
            Ok(()) | Err(nix::errno::Errno::EINPROGRESS) => Ok(client.into()),
            Err(errno) => Err(self.cannot_start(errno)),
        }
    }

    /// Reads the bytes that have arrived. Returns true if these were the rest of the token.
    fn has_read_all(&self, client: &mut TcpStream, answer: &mut Vec<u8>, token: &str) -> Result<bool, NotValidated> {
        let mut buffer = [0; 128];
        match client.read(&mut buffer) {
            Ok(0) => {}
            Ok(count) => {
                answer.extend_from_slice(buffer.get(..count).unwrap_or_default());
                if token.as_bytes().starts_with(answer) {
                    return Ok(answer.len() == token.len());
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return Ok(false),
            Err(error) => return Err(self.cannot_connect(errno_of(&error))),
        }
        Err(NotValidated::OtherProgram { address: self.connect, why: self.what_rules_do() })
    }

    fn cannot_listen(&self, error: &io::Error) -> NotValidated {
        let errno = errno_of(error);
        NotValidated::Listen {
            address: self.listen,
            errno,
            advice: match errno {
                Errno::EADDRINUSE => "another program listens there; validate before the proxy starts",
                Errno::EADDRNOTAVAIL => "this namespace does not have that address; use 0.0.0.0 or [::]",
                Errno::EAFNOSUPPORT => "this kernel has no IPv6; use 0.0.0.0",
                Errno::EACCES => "use a port that this user may listen on",
                _ => "check --listen-addr",
            },
        }
    }

    /// The connection was refused on its way, or by the host to which the rules let it go.
    fn cannot_connect(&self, errno: Errno) -> NotValidated {
        NotValidated::Connect { address: self.connect, errno, why: self.what_rules_do() }
    }

    /// No packet was sent. The kernel looks for a route before it asks the rules.
    fn cannot_start(&self, errno: nix::errno::Errno) -> NotValidated {
        let why = match errno {
            nix::errno::Errno::EAFNOSUPPORT => "this kernel has no IPv6; use an IPv4 address",
            _ => "this namespace has no route to it, or no address of its family; use another --connect-addr",
        };
        NotValidated::Connect { address: self.connect, errno, why: why.to_owned() }
    }

    fn what_rules_do(&self) -> String {
        // An IPv4-mapped address stands for an IPv4 connection.
        let to = SocketAddr::new(self.connect.ip().to_canonical(), self.connect.port());
        let connection = Connection {
            uid: Some(geteuid().as_raw()),
            gid: Some(getegid().as_raw()),
            ..Connection::new(Direction::Outbound, to)
        };
        let words = explain(None, &connection, |explained| {
            let clause = explained.verdict.clause();
            match (&explained.verdict, &explained.by) {
                (Verdict::Proxy(port), _) => format!("by the rules it {clause}, {}", self.advice(*port)),
                (_, Some(by)) => format!("it {clause}, by {by}"),
                (Verdict::Bypass, None) => {
                    "no rule sends it to the proxy: see whether proxy-init or linkerd-cni ran for this pod".to_owned()
                }
                (_, None) => format!("it {clause}"),
            }
        });
        match words {
            Ok(words) => words,
            // The most common reason. What else it says is how to see them, which mends nothing.
            Err(Error::InMode(_, ModeError::Unseen(reason))) => format!(
                "it was not redirected to this program: most likely, neither linkerd-cni nor proxy-init has set up this pod \
                 (the rules cannot be seen: {})",
                reason.split(": ").next().unwrap_or_default()
            ),
            Err(error) => format!("the rules cannot be read: {error}"),
        }
    }

    /// The reason why a connection that goes to this port didn't come here.
    fn advice(&self, port: u16) -> &'static str {
        if port != self.listen.port() {
            "where --listen-addr is not"
        } else if self.listen.is_ipv4() && self.connect.is_ipv6() {
            "where --listen-addr takes IPv4 alone: use [::]"
        } else {
            "so another program has that port, or something drops the packets"
        }
    }
}

/// 63 random characters and a newline: a program that doesn't know them isn't this one.
fn token() -> String {
    // The hasher's keys come from the kernel's random numbers (getrandom(2)).
    let random = std::hash::RandomState::new();
    let mut token: String = (0..4u8).map(|number| format!("{:016x}", random.hash_one(number))).collect();
    token.truncate(63);
    token.push('\n');
    token
}

/// The time that poll may wait; rounded up, because it would return early otherwise.
fn poll_timeout(deadline: Option<Instant>) -> PollTimeout {
    deadline.map_or(PollTimeout::NONE, |deadline| {
        let left = deadline.saturating_duration_since(Instant::now());
        let rounded_up = left.saturating_add(Duration::from_nanos(999_999));
        PollTimeout::try_from(rounded_up).unwrap_or(PollTimeout::MAX)
    })
}

fn cannot_wait(errno: nix::errno::Errno) -> NotValidated {
    NotValidated::Wait { errno }
}

/// The signals that end a program, as a file to read. A blocked signal is kept even for a container's first process,
/// for which the kernel drops signals that have no handler (sig_task_ignored in kernel/signal.c).
struct Signals {
    file: SignalFd,
    before: SigSet,
}

impl Signals {
    fn block() -> nix::Result<Self> {
        let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
        let file = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        let before = signals.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        Ok(Self { file, before })
    }

    fn take(&self) -> Option<&'static str> {
        let signal = self.file.read_signal().ok()??;
        let number = i32::try_from(signal.ssi_signo).ok()?;
        Signal::try_from(number).ok().map(Signal::as_str)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        let _ = self.before.thread_set_mask();
    }
}

/// A duration in seconds, if it has no fraction of one, or else in milliseconds. Rust's own way costs two kilobytes.
fn duration_in_words(duration: Duration) -> String {
    match (duration.as_secs(), duration.subsec_millis()) {
        (seconds, 0) => format!("{seconds}s"),
        _ => format!("{}ms", duration.as_millis()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_like_the_validators_and_never_the_same() {
        let (one, other) = (token(), token());
        assert!(one.len() == 64 && one.ends_with('\n'));
        assert!(one.trim_end().chars().all(|character| character.is_ascii_alphanumeric()));
        assert_ne!(one, other);
    }

    #[test]
    fn a_duration_is_spelled_as_it_may_be_given() {
        let spelled = |milliseconds| duration_in_words(Duration::from_millis(milliseconds));
        assert_eq!((spelled(10_000), spelled(1_500), spelled(0)), ("10s".into(), "1500ms".into(), "0s".into()));
    }

    #[test]
    fn a_wait_is_never_cut_short_and_never_too_long_for_poll() {
        assert_eq!(poll_timeout(None), PollTimeout::NONE);
        let in_a_moment = Instant::now() + Duration::from_micros(900_500);
        let left = poll_timeout(Some(in_a_moment)).as_millis().unwrap();
        let at_least = in_a_moment.saturating_duration_since(Instant::now()).as_millis();
        assert!((at_least..=901).contains(&u128::from(left)), "{left}, {at_least}");
        assert_eq!(poll_timeout(Some(Instant::now())), PollTimeout::ZERO);
        let in_a_year = Instant::now() + Duration::from_secs(365 * 86_400);
        assert_eq!(poll_timeout(Some(in_a_year)), PollTimeout::MAX);
    }
}
