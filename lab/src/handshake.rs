//! TCP connections between namespaces that one thread both makes and answers, so that nothing has to be waited for:
//! thousands take a second, and one that is lost takes no longer than one that isn't.
//!
//! A packet through lo or a veth pair is queued on the processor that sends it, and handled there in turn, answers
//! included (`enqueue_to_backlog`, `process_backlog` in net/core/dev.c). So once a datagram of this thread's, sent
//! later and from the same processor, has gone round often enough, every packet of the connection has been delivered or
//! dropped.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt,
};
use nix::unistd::Pid;

use crate::network::{Namespace, Owner, ROOT, as_owner, as_server_of, everywhere, listen};

/// The number of times that a datagram goes round: each time, what waits on the processor is handled. A handshake has
/// three packets, each of which may take the way by lo beside that to the other namespace, and may be answered by
/// another packet.
const ROUNDS: usize = 10;

/// A client's side of a connection.
#[derive(Debug, Clone)]
pub struct Client {
    /// The maker of the connection.
    pub owner: Owner,
    /// Its address and port.
    pub from: SocketAddr,
    /// The device to which its socket is bound (`SO_BINDTODEVICE`).
    pub device: Option<String>,
}

impl Client {
    /// The superuser's, not bound to a device.
    pub fn new(from: SocketAddr) -> Self {
        Self { owner: ROOT, from, device: None }
    }
}

/// The outcome of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// A server took it, and what it wrote arrived.
    Answered {
        /// The number of the server's namespace.
        by: usize,
        /// The server's own address and port.
        at: SocketAddr,
    },
    /// A server took it, but what it wrote did not arrive.
    Mute {
        /// The number of the server's namespace.
        by: usize,
        /// The server's own address and port.
        at: SocketAddr,
    },
    /// The client has the SYN-ACK of a server, which did not get the client's answer to that.
    HalfOpen,
    /// Nothing came back.
    Lost,
    /// It was refused, with this error.
    Refused(Errno),
}

/// A thread that connects and answers. It stays on one processor.
#[derive(Debug)]
pub struct Handshakes {
    /// Each with the number of its namespace.
    listeners: Vec<(usize, TcpListener)>,
    /// They are joined to each other, in a namespace of their own.
    round: [UdpSocket; 2],
}

impl Handshakes {
    /// Keeps this thread, and what it starts, on one processor, and listens in each of these namespaces on all of these
    /// ports.
    pub fn new(namespaces: &[&Namespace], ports: &[u16]) -> Self {
        stay_on_one_processor();
        let apart = Namespace::new();
        let round = apart.run_here(joined);
        let round = round.unwrap_or_else(|error| panic!("cannot send datagrams to oneself: {error}"));
        let mut made = Self { listeners: Vec::new(), round };
        made.listen(namespaces, ports);
        made
    }

    /// Listens anew, so that no server remembers a client whose connection was never finished.
    pub fn listen(&mut self, namespaces: &[&Namespace], ports: &[u16]) {
        self.listeners.clear();
        for (number, namespace) in namespaces.iter().enumerate() {
            namespace.run_here(|| {
                for address in everywhere(ports) {
                    let listener = listen(address);
                    let listener = listener.unwrap_or_else(|error| panic!("cannot listen on {address}: {error}"));
                    self.listeners.push((number, listener));
                }
            });
        }
    }

    /// Connects from a namespace to this address, and says who answered.
    pub fn connect(&self, namespace: &Namespace, client: &Client, to: SocketAddr) -> Outcome {
        let made = namespace.run_here(|| client.start(to));
        let (mut stream, started) = made.unwrap_or_else(|error| panic!("{client:?}: {error}"));
        self.settle();
        let mut taken = None;
        for (by, listener) in &self.listeners {
            // Others than this client have been given up.
            let port = listener.local_addr().map_or(0, |address| address.port());
            while let Ok((stream, peer)) = as_server_of(port, || listener.accept()) {
                if peer.port() == client.from.port() {
                    taken = Some((*by, stream));
                }
            }
        }
        let answered = taken.map(|(by, mut server)| {
            let at = server.local_addr();
            // The client tells whether that worked.
            let _ = server.write_all(b"!");
            self.settle();
            (by, at, server)
        });
        let outcome = match (stream.read(&mut [0]), &answered) {
            (Ok(1), &Some((by, Ok(at), _))) => Outcome::Answered { by, at },
            (_, &Some((by, Ok(at), _))) => Outcome::Mute { by, at },
            (Err(error), _) if error.kind() == io::ErrorKind::WouldBlock && stream.peer_addr().is_ok() => {
                Outcome::HalfOpen
            }
            // A socket that waits for the SYN-ACK cannot be read from. An ICMP message that has come while it sent is no
            // more than noted (`tcp_v4_err` in net/ipv4/tcp_ipv4.c).
            (Err(error), _) if error.kind() == io::ErrorKind::WouldBlock => match stream.take_error() {
                Ok(Some(noted)) => refused(&noted),
                _ => Outcome::Lost,
            },
            (Err(error), _) => refused(&error),
            (Ok(_), _) => Outcome::HalfOpen,
        };
        let outcome = match started {
            Ok(()) | Err(Errno::EINPROGRESS) => outcome,
            Err(errno) => Outcome::Refused(errno),
        };
        reset(&stream);
        if let Some((_, _, server)) = &answered {
            reset(server);
        }
        drop((stream, answered));
        // Or the next connection would meet what this one leaves behind.
        self.settle();
        outcome
    }

    /// Waits until every packet that this thread sent, and every answer to one, has been delivered or dropped.
    fn settle(&self) {
        for _ in 0..ROUNDS {
            let gone_round = self.round[0].send(b"!").and_then(|_| self.round[1].recv(&mut [0]));
            if let Err(error) = gone_round {
                panic!("a datagram to oneself is lost: {error}");
            }
        }
    }
}

impl Client {
    /// Sends the first packet.
    fn start(&self, to: SocketAddr) -> nix::Result<(TcpStream, nix::Result<()>)> {
        let family = match to {
            SocketAddr::V4(_) => AddressFamily::Inet,
            SocketAddr::V6(_) => AddressFamily::Inet6,
        };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let client = as_owner(self.owner, || socket(family, SockType::Stream, flags, None));
        let client = client?;
        setsockopt(&client, sockopt::ReuseAddr, &true)?;
        if let Some(device) = &self.device {
            setsockopt(&client, sockopt::BindToDevice, &device.into())?;
        }
        bind(client.as_raw_fd(), &SockaddrStorage::from(self.from))?;
        let started = connect(client.as_raw_fd(), &SockaddrStorage::from(to));
        Ok((TcpStream::from(client), started))
    }
}

fn refused(error: &io::Error) -> Outcome {
    Outcome::Refused(Errno::from_raw(error.raw_os_error().unwrap_or_default()))
}

/// Ends a connection as it is dropped, so that nothing of it stays behind.
fn reset(stream: &TcpStream) {
    let at_once = nix::libc::linger { l_onoff: 1, l_linger: 0 };
    // Where it has ended already, it may be refused.
    let _ = setsockopt(stream, sockopt::Linger, &at_once);
}

/// Two sockets that send to each other.
fn joined() -> io::Result<[UdpSocket; 2]> {
    let [one, other] = [(); 2].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)));
    let (one, other) = (one?, other?);
    one.connect(other.local_addr()?)?;
    other.connect(one.local_addr()?)?;
    // Long enough on a busy machine.
    other.set_read_timeout(Some(Duration::from_secs(60)))?;
    Ok([one, other])
}

/// Threads are spread over those processors that this one may run on.
fn stay_on_one_processor() {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let this = Pid::from_raw(0);
    let chosen = sched_getaffinity(this).and_then(|allowed| {
        let allowed: Vec<usize> =
            (0..CpuSet::count()).filter(|&processor| allowed.is_set(processor) == Ok(true)).collect();
        let mut one = CpuSet::new();
        one.set(allowed[NEXT.fetch_add(1, Ordering::Relaxed) % allowed.len()])?;
        sched_setaffinity(this, &one)
    });
    if let Err(errno) = chosen {
        panic!("cannot stay on one processor: {errno}");
    }
}
