//! Looking the API server's name up, by /etc/hosts and DNS.
//!
//! Not by libc's getaddrinfo: it does as the node's nsswitch.conf says, and loads the modules that are named there into
//! the plugin. Those are made for the node's libc, and with another one the plugin would abort.

pub mod files;
pub mod message;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::net::if_::if_nametoindex;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

use self::files::{Configuration, addresses_in_hosts};
use self::message::{Answer, Kind, Question};
use crate::file;

/// The longest file about names that is read.
const LONGEST: usize = 4 << 20;

/// The port of https.
const PORT: u16 = 443;

/// How many addresses of a name are tried: ureq keeps no more.
const MOST_ADDRESSES: usize = 16;

/// How long the IPv6 addresses are waited for once there are IPv4 addresses: where a firewall drops the question about
/// them, a lookup would else take as long as a server has. RFC 8305, section 3, has 50 ms for that.
const RESOLUTION_DELAY: Duration = Duration::from_millis(50);

/// Looks the name of an agent's one server up, and keeps what it has found for the next request: where a name server is
/// silent, each lookup takes its time.
#[derive(Debug, Default, Clone)]
pub(crate) struct Names(Arc<Mutex<Vec<IpAddr>>>);

impl Names {
    /// Lets the name be looked up anew.
    pub(crate) fn forget(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Resolver for Names {
    fn resolve(&self, uri: &Uri, _: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let authority = uri.authority().ok_or(ureq::Error::HostNotFound)?;
        let (host, port) = (authority.host(), authority.port_u16().unwrap_or(PORT));
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if found.is_empty() {
            *found = match bare.unwrap_or(host).parse::<IpAddr>() {
                Ok(address) => vec![address],
                Err(_) => addresses(host, *timeout.after)?,
            };
        }
        let mut addresses = self.empty();
        for address in found.iter().take(MOST_ADDRESSES) {
            addresses.push((*address, port).into());
        }
        Ok(addresses)
    }
}

/// The addresses of a name, at least one; IPv4 addresses come first. A node without IPv4 knows that at once of each,
/// while a connection by an IPv6 that leads nowhere takes its time.
fn addresses(name: &str, patience: Duration) -> io::Result<Vec<IpAddr>> {
    // Without these files, as for libc.
    let text = |path: &str| file::read(Path::new(path), LONGEST).unwrap_or_default();
    let mut found = addresses_in_hosts(&text("/etc/hosts"), name);
    if found.is_empty() {
        let configuration = Configuration::parse(&text("/etc/resolv.conf"), |name| if_nametoindex(name).ok());
        let end = Instant::now().checked_add(patience).unwrap_or_else(Instant::now);
        found = by_dns(name, &configuration, end)?;
    }
    found.sort_by_key(IpAddr::is_ipv6);
    Ok(found)
}

/// Asks for everything that the name may mean, until one is known.
fn by_dns(name: &str, configuration: &Configuration, end: Instant) -> io::Result<Vec<IpAddr>> {
    let mut failed = None;
    for candidate in configuration.candidates(name) {
        match ask(&candidate, configuration, end) {
            Ok(addresses) if addresses.is_empty() => {}
            Ok(addresses) => return Ok(addresses),
            // What a server can't say of this one, it may of another.
            Err(error) if error.kind() == ErrorKind::Other => failed = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(failed.unwrap_or_else(|| {
        let servers: Vec<_> = configuration
            .servers
            .iter()
            .map(|server| server.ip().to_string())
            .collect();
        let servers = servers.join(", ");
        io::Error::other(format!(
            "neither /etc/hosts nor the name server {servers} knows an address of {name}"
        ))
    }))
}

/// The addresses of an absolute name; none if it has none. The servers are asked one after another, until one says
/// something.
fn ask(name: &str, configuration: &Configuration, end: Instant) -> io::Result<Vec<IpAddr>> {
    let mut last = None;
    for _ in 0..configuration.attempts {
        for server in &configuration.servers {
            let now = Instant::now();
            if now >= end {
                break;
            }
            let end = end.min(now + configuration.timeout);
            match exchange(name, *server, configuration.tcp, end) {
                Ok(addresses) => return Ok(addresses),
                Err(error) => last = Some((server.ip(), error)),
            }
        }
    }
    let (kind, reason) = match last {
        Some((server, error)) => (error.kind(), format!("name server {server}: {error}")),
        None => (ErrorKind::TimedOut, "no time is left".to_owned()),
    };
    Err(io::Error::new(kind, format!("{name} cannot be looked up: {reason}")))
}

/// Asks one server for both kinds of addresses, at the same time.
fn exchange(name: &str, server: SocketAddr, tcp: bool, end: Instant) -> io::Result<Vec<IpAddr>> {
    let question = |kind| {
        // Seeded by the kernel: nobody else can guess it.
        let id = RandomState::new().build_hasher().finish() as u16;
        let question = Question::new(id, name, kind);
        question.ok_or_else(|| io::Error::other("it is no name that DNS could have"))
    };
    let (v4, v6) = (question(Kind::V4)?, question(Kind::V6)?);
    // From two ports: two packets between the same ports are what firewalls lose.
    let sent = if tcp {
        None
    } else {
        Some((send(&v4, server)?, send(&v6, server)?))
    };
    let answer = |question: &Question, socket: Option<&UdpSocket>, end| {
        let answer = match socket {
            Some(socket) => receive(question, socket, end)?,
            None => Answer::Truncated,
        };
        let answer = match answer {
            Answer::Truncated => by_tcp(question, server, end)?,
            other => other,
        };
        match answer {
            Answer::Addresses(addresses) => Ok(addresses),
            Answer::Failed(Some(code)) => Err(io::Error::other(format!(
                "it answered with code {code}{}",
                meaning(code)
            ))),
            Answer::Truncated | Answer::Failed(None) => Err(io::Error::other("its answer makes no sense")),
        }
    };
    let v4 = answer(&v4, sent.as_ref().map(|(socket, _)| socket), end);
    let end = match &v4 {
        Ok(addresses) if !addresses.is_empty() => end.min(Instant::now() + RESOLUTION_DELAY),
        // What has come while the other one was waited for counts.
        _ => end.max(Instant::now() + RESOLUTION_DELAY),
    };
    let v6 = answer(&v6, sent.as_ref().map(|(_, socket)| socket), end);
    match (v4, v6) {
        (Ok(v4), Ok(v6)) => Ok([v4, v6].concat()),
        // What is known of one kind will do.
        (Ok(some), Err(_)) | (Err(_), Ok(some)) if !some.is_empty() => Ok(some),
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

/// RFC 1035, section 4.1.1.
fn meaning(code: u8) -> &'static str {
    match code {
        1 => " (format error)",
        2 => " (server failure)",
        4 => " (not implemented)",
        5 => " (refused)",
        _ => "",
    }
}

fn send(question: &Question, server: SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    // From nobody else then.
    socket.connect(server)?;
    socket.send(question.bytes())?;
    Ok(socket)
}

fn receive(question: &Question, socket: &UdpSocket, end: Instant) -> io::Result<Answer> {
    let mut message = [0; 4096];
    loop {
        socket.set_read_timeout(Some(left(end)?))?;
        let length = match socket.recv(&mut message) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(ErrorKind::TimedOut.into()),
            read => read?,
        };
        if let Some(answer) = message.get(..length).and_then(|message| question.answer(message)) {
            return Ok(answer);
        }
    }
}

/// Each message has its length before it then (RFC 1035, section 4.2.2).
fn by_tcp(question: &Question, server: SocketAddr, end: Instant) -> io::Result<Answer> {
    let mut stream = TcpStream::connect_timeout(&server, left(end)?)?;
    stream.set_write_timeout(Some(left(end)?))?;
    let length = u16::try_from(question.bytes().len()).unwrap_or_default();
    stream.write_all(&[&length.to_be_bytes(), question.bytes()].concat())?;
    let mut length = [0; 2];
    fill(&mut stream, &mut length, end)?;
    let mut message = vec![0; u16::from_be_bytes(length).into()];
    fill(&mut stream, &mut message, end)?;
    Ok(question.answer(&message).unwrap_or(Answer::Failed(None)))
}

/// Reads this much, however slowly it comes, but not after `end`.
fn fill(stream: &mut TcpStream, mut buffer: &mut [u8], end: Instant) -> io::Result<()> {
    while !buffer.is_empty() {
        stream.set_read_timeout(Some(left(end)?))?;
        match stream.read(buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(length) => buffer = buffer.get_mut(length..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(ErrorKind::TimedOut.into()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// How long it is until then; an error if that is past.
fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    Ok(left)
}
