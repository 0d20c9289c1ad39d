//! A pod with two devices, the world outside, and the connections between them.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use lab::handshake::{Client, Handshakes, Outcome};
use lab::linkerd;
use lab::network::{DISTANT, NEIGHBOUR, Namespace, Owner, POD, ROOT, families};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};
use proptest::prelude::*;
use proptest::sample::select;
use proxy_init::{Connection, Direction, Name};

use crate::support::feed;

/// Where connections go.
pub(super) const PORTS: [u16; 4] = [80, 443, 8080, 4190];
/// Where other programs' rules send them.
pub(super) const ELSEWHERE: u16 = 9999;
/// The last two are where other meshes' proxies listen.
pub(super) const SERVED: [u16; 9] = [4143, 4140, ELSEWHERE, 80, 443, 8080, 4190, 15001, 15006];
const IDS: [u32; 3] = [1000, 0, 2102];

/// On the second device: the pod's addresses, and the outside's.
const SECOND: [&str; 2] = ["10.78.0.2", "fd78::2"];
const SECOND_NEIGHBOUR: [&str; 2] = ["10.78.0.1", "fd78::1"];

/// The hardware addresses of the pod's two devices, and of the outside's. Neighbours are written down, so that no
/// packet waits until one is found, and none is lost because a rule drops the question.
const HARDWARE: [[&str; 2]; 2] =
    [["02:00:00:00:77:02", "02:00:00:00:77:01"], ["02:00:00:00:78:02", "02:00:00:00:78:01"]];

/// The number of the pod, and of the world outside, among what [`Handshakes`] listens in.
const IN_POD: usize = 0;

/// A pod, the world outside and servers in both.
pub(super) struct Pod {
    pub(super) inside: Namespace,
    outside: Namespace,
    handshakes: Handshakes,
}

impl Pod {
    pub(super) fn new() -> Self {
        let (inside, outside) = (Namespace::new(), Namespace::new());
        let mut lines = [String::new(), String::new()];
        let second = |addresses: [&str; 2]| addresses.map(|address| address.parse::<IpAddr>().unwrap());
        let links = [("0", POD, NEIGHBOUR, HARDWARE[0]), ("1", second(SECOND), second(SECOND_NEIGHBOUR), HARDWARE[1])];
        for (number, ours, theirs, [our_hardware, their_hardware]) in links {
            lines[0] += &format!(
                "link add eth{number} address {our_hardware} type veth peer name pod{number} address {their_hardware} netns {}\n",
                outside.path().display()
            );
            let ends = [("eth", ours, theirs, their_hardware), ("pod", theirs, ours, our_hardware)];
            for (lines, (device, own, other, hardware)) in lines.iter_mut().zip(ends) {
                for (address, length) in own.iter().zip([24, 64]).take(families()) {
                    *lines += &format!("address add {address}/{length} dev {device}{number} nodad\n");
                }
                *lines += &format!("link set {device}{number} up\n");
                for address in other.iter().take(families()) {
                    *lines +=
                        &format!("neighbour replace {address} lladdr {hardware} dev {device}{number} nud permanent\n");
                }
            }
        }
        for (neighbour, distant) in NEIGHBOUR.iter().zip(DISTANT).take(families()) {
            lines[0] += &format!("route add default via {neighbour}\n");
            lines[1] += &format!("address add {distant} dev lo nodad\n");
        }
        for (namespace, lines) in [&inside, &outside].into_iter().zip(lines) {
            feed(namespace, "ip -batch -", &lines).success();
        }
        let handshakes = Handshakes::new(&[&inside, &outside], &SERVED);
        let pod = Self { inside, outside, handshakes };
        pod.wait();
        pod
    }

    /// Waits until all addresses are in use: the kernel takes up those of IPv6 once it has seen the link's carrier.
    fn wait(&self) {
        let end = Instant::now() + Duration::from_secs(30);
        for family in 0..families() {
            for way in [Way::FromNeighbour, Way::FromDistant, Way::FromSecond, Way::ToDistant, Way::ToItself] {
                let case = Case { way, port: PORTS[0], family, owner: ROOT, from_port: 20_000, bound: false };
                while self.connect(&case) != case.destination() {
                    assert!(Instant::now() < end, "{case:?} arrives nowhere, though there are no rules");
                }
            }
        }
    }

    /// Takes out all tables of nf_tables, and all that connection tracking and the servers know.
    pub(super) fn clear(&mut self) {
        // struct nlmsghdr, whose type is IPCTNL_MSG_CT_DELETE of NFNL_SUBSYS_CTNETLINK, with NLM_F_REQUEST and
        // NLM_F_ACK, and struct nfgenmsg: without any attribute, everything is meant
        // (linux/netfilter/nfnetlink_conntrack.h).
        const FLUSH: [u8; 20] = [20, 0, 0, 0, 2, 1, 5, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        self.inside.sh("nft flush ruleset");
        let flushed = self.inside.run_here(|| {
            let kind = SockProtocol::NetlinkNetFilter;
            let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, kind)?;
            send(socket.as_raw_fd(), &FLUSH, MsgFlags::empty())?;
            let mut answer = [0; 64];
            recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
            Ok::<_, nix::Error>(answer)
        });
        // struct nlmsgerr.
        assert_eq!(flushed.map(|answer| [answer[16], answer[17]]), Ok([0, 0]));
        self.handshakes.listen(&[&self.inside, &self.outside], &SERVED);
    }

    /// Makes this connection.
    pub(super) fn connect(&self, case: &Case) -> Arrival {
        let namespace = if case.is_inbound() { &self.outside } else { &self.inside };
        match self.handshakes.connect(namespace, &case.client(), case.to()) {
            Outcome::Answered { by, at } => self::by(by, at),
            other => Arrival::None(other),
        }
    }
}

/// The arrival at a server of this namespace at this address.
pub(super) fn by(namespace: usize, at: SocketAddr) -> Arrival {
    match namespace {
        IN_POD => Arrival::Pod(at.port()),
        _ => Arrival::Outside(at.port()),
    }
}

/// The server that answers a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// A server in the pod, on this port.
    Pod(u16),
    /// A server outside of it.
    Outside(u16),
    /// Nobody.
    None(Outcome),
}

/// A connection to the pod or from it.
#[derive(Debug, Clone)]
pub(super) struct Case {
    pub(super) way: Way,
    pub(super) port: u16,
    family: usize,
    owner: Owner,
    from_port: u16,
    bound: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    FromNeighbour,
    FromDistant,
    FromSecond,
    ToNeighbour,
    ToDistant,
    ToSecond,
    ToItself,
    ToLoopback,
}

impl Case {
    /// From where to where.
    fn addresses(&self) -> (IpAddr, IpAddr) {
        let (pod, neighbour, distant) = (POD[self.family], NEIGHBOUR[self.family], DISTANT[self.family]);
        let [loopback, second, second_neighbour] =
            [["127.0.0.1", "::1"], SECOND, SECOND_NEIGHBOUR].map(|addresses| addresses[self.family].parse().unwrap());
        match self.way {
            Way::FromNeighbour => (neighbour, pod),
            Way::FromDistant => (distant, pod),
            Way::FromSecond => (second_neighbour, second),
            Way::ToNeighbour => (pod, neighbour),
            Way::ToDistant => (pod, distant),
            Way::ToSecond => (second, second_neighbour),
            Way::ToItself => (pod, pod),
            Way::ToLoopback => (loopback, loopback),
        }
    }

    fn to(&self) -> SocketAddr {
        SocketAddr::new(self.addresses().1, self.port)
    }

    pub(super) fn is_inbound(&self) -> bool {
        matches!(self.way, Way::FromNeighbour | Way::FromDistant | Way::FromSecond)
    }

    /// Returns true if the connection leaves the pod by lo, as long as no rule changes its destination.
    fn is_local(&self) -> bool {
        matches!(self.way, Way::ToItself | Way::ToLoopback)
    }

    /// The device by which it comes in or leaves.
    fn device(&self) -> &'static str {
        match self.way {
            Way::FromSecond | Way::ToSecond => "eth1",
            _ if self.is_local() => "lo",
            _ => "eth0",
        }
    }

    pub(super) fn is_bound(&self) -> bool {
        self.bound && !self.is_inbound() && !self.is_local()
    }

    /// Returns true if the client's port is one that the kernel gives (net.ipv4.ip_local_port_range).
    pub(super) fn has_clients_port(&self) -> bool {
        self.from_port >= 32768
    }

    fn client(&self) -> Client {
        Client {
            owner: if self.is_inbound() { ROOT } else { self.owner },
            from: SocketAddr::new(self.addresses().0, self.from_port),
            device: self.is_bound().then(|| self.device().to_owned()),
        }
    }

    /// Where it arrives if nothing changes that.
    pub(super) fn destination(&self) -> Arrival {
        if self.is_inbound() || self.is_local() { Arrival::Pod(self.port) } else { Arrival::Outside(self.port) }
    }

    /// As the library explains it.
    pub(super) fn connection(&self) -> Connection {
        let inbound = self.is_inbound();
        let direction = match inbound {
            true => Direction::Inbound,
            false => Direction::Outbound,
        };
        let mut connection = Connection::new(direction, self.to());
        connection.from = Some(self.addresses().0);
        connection.from_port = Some(self.from_port);
        connection.uid = (!inbound).then_some(self.owner.uid);
        connection.gid = (!inbound).then_some(self.owner.gid);
        connection.device = (inbound || self.is_bound()).then(|| Name::from(self.device()));
        connection
    }

    /// As the program explains it.
    pub(super) fn line(&self) -> String {
        let (from, to) = (SocketAddr::new(self.addresses().0, self.from_port), self.to());
        let Owner { uid, gid } = self.owner;
        match self.is_inbound() {
            true => format!("explain inbound --to {to} --from {from} --in {}", self.device()),
            false if self.is_bound() => {
                format!("explain outbound --to {to} --from {from} --uid {uid} --gid {gid} --out {}", self.device())
            }
            false => format!("explain outbound --to {to} --from {from} --uid {uid} --gid {gid}"),
        }
    }

    /// As linkerd-init's rules see it.
    pub(super) fn seen_by_linkerd(&self) -> linkerd::Connection {
        linkerd::Connection {
            to: self.to(),
            from: self.addresses().0,
            way: match self.is_inbound() {
                true => linkerd::Way::In,
                false => linkerd::Way::Out { owner: self.owner },
            },
            device: self.device(),
        }
    }
}

/// Connections that are made one after the other, each from a port of its own: where two from the same port come to the
/// proxy, the kernel, which still knows of the first one, gives the second one another.
pub(super) fn any_cases(count: usize) -> impl Strategy<Value = Vec<Case>> {
    let each_has_its_own = |cases: &Vec<Case>| {
        let ports: HashSet<u16> = cases.iter().map(|case| case.from_port).collect();
        ports.len() == cases.len()
    };
    prop::collection::vec(any_case(), count).prop_filter("a port of its own", each_has_its_own)
}

fn any_case() -> impl Strategy<Value = Case> {
    let ways = [
        Way::FromNeighbour,
        Way::FromNeighbour,
        Way::FromDistant,
        Way::FromSecond,
        Way::ToNeighbour,
        Way::ToDistant,
        Way::ToDistant,
        Way::ToSecond,
        Way::ToItself,
        Way::ToLoopback,
    ];
    (
        select(ways.to_vec()),
        select(&PORTS[..]),
        0..families(),
        (select(&IDS[..]), select(&IDS[..])),
        20_001..60_000u16,
        prop::bool::weighted(0.05),
    )
        .prop_map(|(way, port, family, (uid, gid), from_port, bound)| Case {
            way,
            port,
            family,
            owner: Owner { uid, gid },
            from_port,
            bound,
        })
}
