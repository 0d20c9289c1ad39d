//! Network namespaces that vanish with their owner, servers and clients in them.
//!
//! A namespace here has no name and no process: it lives as long as the file that holds it. So nothing is left
//! behind, however the program ends, and the machine's own namespace is never touched.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, getsockopt, listen as start_listening,
    setsockopt, socket, sockopt,
};
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};

use crate::wait;

/// The time after which a connection counts as lost; connections here take microseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// The seed of a random test: the one that PROPTEST_RNG_SEED names, as for tests with `proptest!`, or any. It is
/// printed, so that what failed can be done again.
pub fn seed() -> u64 {
    const NAME: &str = "PROPTEST_RNG_SEED";
    let seed = match std::env::var(NAME) {
        Ok(given) => given.parse().unwrap_or_else(|_| panic!("{NAME}={given} is not a number")),
        Err(_) => RandomState::new().build_hasher().finish(),
    };
    println!("{NAME}={seed}");
    seed
}

/// A network namespace of its own, with the loopback interface up.
///
/// Programs in there have a /run of their own too, as in a pod: so that nothing waits for the xtables lock that another
/// test or the machine's own programs hold (/run/xtables.lock), or takes it.
#[derive(Debug)]
pub struct Namespace {
    file: File,
    /// The mount namespace with that /run; none where the machine's is left in place.
    mounts: Option<File>,
    /// The user namespace that it belongs to, if that isn't the process's own.
    users: Option<File>,
}

/// Where other processes can open the file.
fn path_of(file: &File) -> PathBuf {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into()
}

/// A process that has made a namespace, as long as it holds it.
struct Holder(Child);

impl Holder {
    /// Starts it by the command that makes the namespace.
    fn start(mut command: Command) -> io::Result<Self> {
        let child =
            command.args(["sh", "-c", "echo; read line"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut holder = Self(child);
        let stdout = holder.0.stdout.as_mut();
        stdout.ok_or(io::ErrorKind::BrokenPipe)?.read_exact(&mut [0])?;
        Ok(holder)
    }

    /// A file of the process in /proc.
    fn path(&self, name: &str) -> String {
        format!("/proc/{}/{name}", self.0.id())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It ends with its input, which waiting closes.
        let _ = self.0.wait();
    }
}

impl Namespace {
    /// Makes one.
    pub fn new() -> Self {
        assert!(Uid::effective().is_root(), "this needs root: it makes network namespaces (run it with sudo)");
        let made = Self::untouched().and_then(|made| made.with_run_of(0));
        let namespace = made.unwrap_or_else(|error| panic!("cannot make a network namespace: {error}"));
        namespace.ip("link set lo up");
        namespace
    }

    /// Makes one as the kernel does, with the loopback interface down and the machine's own /run.
    pub fn untouched() -> io::Result<Self> {
        let made = thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            File::open("/proc/thread-self/ns/net")
        });
        match made.join() {
            Ok(file) => file.map(|file| Self { file, mounts: None, users: None }),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// The same with a /run of its own, which belongs to this user and group.
    fn with_run_of(self, owner: u32) -> io::Result<Self> {
        let made = thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNS)?;
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(None::<&str>, "/", None::<&str>, private, None::<&str>)?;
            let options = format!("mode=755,uid={owner},gid={owner}");
            mount(Some("tmpfs"), "/run", Some("tmpfs"), MsFlags::empty(), Some(options.as_str()))?;
            File::open("/proc/thread-self/ns/mnt")
        });
        let mounts = made.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok(Self { mounts: Some(mounts?), ..self })
    }

    /// Makes one that belongs to a user namespace of its own, as that of a pod with `hostUsers: false`: id 0 there is
    /// `outside` here, and so on.
    pub fn of_user_namespace(outside: u32) -> Self {
        let open = || {
            let mut unshare = Command::new("unshare");
            unshare.arg("--user");
            let user = Holder::start(unshare)?;
            for map in ["uid_map", "gid_map"] {
                fs::write(user.path(map), format!("0 {outside} 65536"))?;
            }
            // By then, so that what /proc shows of the network belongs to root in there.
            let mut nsenter = Command::new("nsenter");
            nsenter.arg(format!("--user={}", user.path("ns/user")));
            nsenter.args(["unshare", "--net"]);
            let namespace = Self {
                file: File::open(Holder::start(nsenter)?.path("ns/net"))?,
                mounts: None,
                users: Some(File::open(user.path("ns/user"))?),
            };
            namespace.with_run_of(outside)
        };
        let namespace = open().unwrap_or_else(|error: io::Error| panic!("cannot make a user namespace: {error}"));
        namespace.ip("link set lo up");
        namespace
    }

    /// Where the namespace can be opened, by this process and by others.
    pub fn path(&self) -> PathBuf {
        path_of(&self.file)
    }

    /// Where the user namespace that it belongs to can be opened, if that isn't the process's own.
    pub fn users(&self) -> Option<PathBuf> {
        self.users.as_ref().map(path_of)
    }

    /// Runs `work` in the namespace, on a thread of its own. Processes that it starts are in there too.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let result = thread::scope(|scope| {
            scope
                .spawn(|| {
                    self.enter();
                    work()
                })
                .join()
        });
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Runs `work` in the namespace on this thread, for what can't go to another.
    pub fn run_here<T>(&self, work: impl FnOnce() -> T) -> T {
        let own = |name: &str| File::open(format!("/proc/thread-self/ns/{name}"));
        let mounts = self.mounts.as_ref().map(|_| own("mnt")).transpose();
        let home = own("net").and_then(|file| Ok(Self { file, mounts: mounts?, users: None }));
        let home = home.unwrap_or_else(|error| panic!("cannot open the thread's own namespaces: {error}"));
        self.enter();
        let result = work();
        home.enter();
        result
    }

    /// Runs a command in the namespace to its end.
    pub fn output(&self, command: &mut Command) -> Output {
        self.run(|| command.output().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}")))
    }

    /// Runs a program in the namespace and returns what it prints.
    pub fn stdout(&self, program: &str, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
        let mut command = Command::new(program);
        let output = self.output(command.args(arguments));
        assert!(
            output.status.success(),
            "{command:?}: {}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs a command line, its words separated by spaces, and returns what it prints.
    pub fn sh(&self, line: &str) -> String {
        let mut words = line.split_whitespace();
        self.stdout(words.next().unwrap_or_default(), words)
    }

    /// Runs such lines, one after the other.
    pub fn all(&self, lines: impl IntoIterator<Item = impl AsRef<str>>) {
        lines.into_iter().for_each(|line| drop(self.sh(line.as_ref())));
    }

    fn ip(&self, arguments: &str) {
        self.stdout("ip", arguments.split_whitespace());
    }

    /// Waits until this IPv6 address of the namespace's is its own to the kernel's routing too. The kernel sees to that
    /// once it notices that the device's link is up, which it does by a queue of work (net/core/link_watch.c): on a
    /// busy machine, after programs have begun to use the device.
    fn wait_for_route_to(&self, own: IpAddr) {
        let line = format!("ip -6 route show table local {own}");
        let there = wait::until(Duration::from_secs(60), || (!self.sh(&line).is_empty()).then_some(()));
        assert!(there.is_some(), "no route to {own}: the link isn't up");
    }

    fn enter(&self) {
        let entered = setns(&self.file, CloneFlags::CLONE_NEWNET);
        let entered = entered.map_err(io::Error::from).and_then(|()| match &self.mounts {
            Some(mounts) => enter_mounts(mounts),
            None => Ok(()),
        });
        if let Err(error) = entered {
            panic!("cannot enter a namespace of our own: {error}");
        }
    }
}

/// Takes this thread alone into a mount namespace, and back to its folder, from which the kernel takes it to the root.
fn enter_mounts(mounts: &File) -> io::Result<()> {
    unshare(CloneFlags::CLONE_FS)?;
    let folder = env::current_dir()?;
    setns(mounts, CloneFlags::CLONE_NEWNS)?;
    env::set_current_dir(folder)
}

impl Default for Namespace {
    fn default() -> Self {
        Self::new()
    }
}

/// A pod and the world outside, joined by a veth pair, over IPv4 and IPv6.
#[derive(Debug)]
pub struct Lab {
    /// Where the rules go.
    pub pod: Namespace,
    /// Everybody else.
    pub outside: Namespace,
}

/// The pod's addresses.
pub const POD: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2)), IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2))];
/// The outside's addresses on the pod's own network.
pub const NEIGHBOUR: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)), IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1))];
/// The outside's addresses further away, in the blocks for documentation (RFC 5737, RFC 3849).
pub const DISTANT: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];

/// The number of [`POD`], [`NEIGHBOUR`] and [`DISTANT`] that this kernel has: IPv4's alone where it was booted with
/// `ipv6.disable=1`, as socket(2) tells by `EAFNOSUPPORT`.
pub fn families() -> usize {
    match socket(AddressFamily::Inet6, SockType::Stream, SockFlag::SOCK_CLOEXEC, None) {
        Err(Errno::EAFNOSUPPORT) => 1,
        _ => 2,
    }
}

impl Lab {
    /// Makes both and joins them; without IPv6 where the kernel has none.
    pub fn new() -> Self {
        Self::around(Namespace::new())
    }

    /// Joins a pod in this namespace with the world outside, as [`Lab::new`] does.
    pub fn around(pod: Namespace) -> Self {
        let lab = Self { pod, outside: Namespace::new() };
        lab.pod.ip(&format!("link add eth0 type veth peer name pod0 netns {}", lab.outside.path().display()));
        for (namespace, interface, addresses) in [(&lab.pod, "eth0", POD), (&lab.outside, "pod0", NEIGHBOUR)] {
            let [v4, v6] = addresses;
            namespace.ip(&format!("address add {v4}/24 dev {interface}"));
            if families() > 1 {
                namespace.ip(&format!("address add {v6}/64 dev {interface} nodad"));
            }
            namespace.ip(&format!("link set {interface} up"));
        }
        for (neighbour, distant) in NEIGHBOUR.iter().zip(DISTANT).take(families()) {
            lab.outside.ip(&format!("address add {distant} dev lo nodad"));
            lab.pod.ip(&format!("route add default via {neighbour}"));
        }
        if families() > 1 {
            lab.pod.wait_for_route_to(POD[1]);
            lab.outside.wait_for_route_to(NEIGHBOUR[1]);
        }
        lab
    }
}

impl Default for Lab {
    fn default() -> Self {
        Self::new()
    }
}

/// The maker of a connection, at whom `-m owner` looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// The superuser.
pub const ROOT: Owner = Owner { uid: 0, gid: 0 };

/// The outcome of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reached {
    /// A server took it.
    Server {
        /// The port that the server listens on.
        port: u16,
        /// Where the client meant to go, as the server's kernel says (`SO_ORIGINAL_DST`).
        original: SocketAddr,
    },
    /// Nobody listens there.
    Refused,
}

/// Connects, as this owner, and asks who is there.
pub fn connect(from: &Namespace, owner: Owner, to: SocketAddr) -> Reached {
    from.run(|| as_owner(owner, || connect_from_here(to)))
}

/// Does this as another user. The file system's ids are those that a socket's file carries, and unlike the others they
/// are set for this thread alone. Gid first: with another uid there is no right to.
pub(crate) fn as_owner<T>(owner: Owner, work: impl FnOnce() -> T) -> T {
    let group = setfsgid(Gid::from_raw(owner.gid));
    let user = setfsuid(Uid::from_raw(owner.uid));
    let done = work();
    setfsuid(user);
    setfsgid(group);
    done
}

/// Connects from where this thread is, as whom it runs as, and asks who is there.
pub fn connect_from_here(to: SocketAddr) -> Reached {
    let mut stream = match TcpStream::connect_timeout(&to, PATIENCE) {
        Ok(stream) => stream,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Reached::Refused,
        Err(error) => panic!("connection to {to} is lost: {error}"),
    };
    let mut answer = String::new();
    let asked = stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.read_to_string(&mut answer));
    if let Err(error) = asked {
        panic!("connected to {to}, but no answer: {error}");
    }
    let read = answer.split_once(' ').and_then(|(port, original)| Some((port.parse().ok()?, original.parse().ok()?)));
    match read {
        Some((port, original)) => Reached::Server { port, original },
        None => panic!("connected to {to}, but its answer is {answer:?}"),
    }
}

/// A server that tells each client its port and the client's original destination.
#[derive(Debug)]
pub struct Server {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Listens on these ports, over IPv4 and, where the kernel has it, IPv6.
    pub fn start(namespace: &Namespace, ports: &[u16]) -> Self {
        namespace.run(|| Self::start_here(ports))
    }

    /// Listens where this thread is.
    pub fn start_here(ports: &[u16]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = everywhere(ports)
            .map(|address| {
                let listener = listen(address).unwrap_or_else(|error| panic!("cannot listen on {address}: {error}"));
                let stop = Arc::clone(&stop);
                thread::spawn(move || serve(&listener, address.port(), &stop))
            })
            .collect();
        Self { stop, threads }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic in there has been printed, and its client has failed.
            let _ = thread.join();
        }
    }
}

/// Each family's address of all addresses, with each of these ports.
pub(crate) fn everywhere(ports: &[u16]) -> impl Iterator<Item = SocketAddr> {
    let any = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
    let of_one = |address| ports.iter().map(move |&port| SocketAddr::new(address, port));
    any.into_iter().take(families()).flat_map(of_one)
}

/// A listener that does not block, of this family alone.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = as_server_of(address.port(), || socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None))?;
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    // There is a listener of its own for IPv4.
    if address.is_ipv6() {
        setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
    }
    // A process that another thread starts holds the sockets of a server that has just ended, until it executes its
    // program.
    let deadline = Instant::now() + PATIENCE;
    while let Err(errno) = bind(socket.as_raw_fd(), &SockaddrStorage::from(address)) {
        if errno != Errno::EADDRINUSE || Instant::now() > deadline {
            return Err(errno.into());
        }
        thread::sleep(Duration::from_millis(1));
    }
    start_listening(&socket, Backlog::MAXCONN)?;
    let listener = TcpListener::from(socket);
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Makes or accepts a socket, which belongs to the user of the thread that does so. As in a pod, the proxy's ports are the
/// proxy's user's.
pub(crate) fn as_server_of<T>(port: u16, make: impl FnOnce() -> T) -> T {
    let uid = if [4143, 4140].contains(&port) { 2102 } else { 0 };
    as_owner(Owner { uid, gid: 0 }, make)
}

fn serve(listener: &TcpListener, port: u16, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        match as_server_of(port, || listener.accept()) {
            Ok((mut stream, _)) => {
                // The client sees a lost connection if this fails.
                let _ = original_destination(&stream).and_then(|original| {
                    stream.write_all(format!("{port} {original}").as_bytes())?;
                    stream.shutdown(Shutdown::Both)
                });
            }
            Err(_) => {
                // A caller that stops the server waits for this, and sixty pods that looked each millisecond took all
                // processor time.
                let _ = poll(&mut [PollFd::new(listener.as_fd(), PollFlags::POLLIN)], 10_u8);
            }
        }
    }
}

fn original_destination(stream: &TcpStream) -> io::Result<SocketAddr> {
    let local = stream.local_addr()?;
    let original = match local {
        SocketAddr::V4(_) => getsockopt(stream, sockopt::OriginalDst).map(|address| {
            let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
            SocketAddr::new(IpAddr::V4(ip), u16::from_be(address.sin_port))
        }),
        SocketAddr::V6(_) => getsockopt(stream, sockopt::Ip6tOriginalDst).map(|address| {
            let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
            SocketAddr::new(IpAddr::V6(ip), u16::from_be(address.sin6_port))
        }),
    };
    // Where conntrack doesn't know the connection, nothing has changed its destination.
    Ok(original.unwrap_or(local))
}
