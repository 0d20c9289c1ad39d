//! The lookup of the API server's name: by C's library, which is musl's in the program that ships.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use lab::api_double::{ApiServer, Pod};
use lab::linkerd::Flags;
use lab::network::Namespace;

use crate::support::{Finished, Folder, Run, by_api, linkerds, saved};

const A: u16 = 1;
const AAAA: u16 = 28;

/// A name server's reaction to a question.
enum Reply {
    /// It has these addresses, of whichever kind was asked for.
    Has(&'static [&'static str]),
    /// Response code, with no records.
    Code(u8),
    /// It doesn't fit into a packet.
    Truncated,
    Silence,
}

/// A name, the kind of the question, and true if it came by TCP.
type Zone = fn(&str, u16, bool) -> Reply;

/// A name server, and its questions, as `NAME KIND`, and `tcp` for those by TCP.
struct NameServer(Arc<Mutex<Vec<String>>>);

impl NameServer {
    fn start(node: &Namespace, address: &str, zone: Zone) -> Self {
        let address: SocketAddr = (address.parse::<IpAddr>().unwrap(), 53).into();
        let (udp, tcp) = node.run(|| (UdpSocket::bind(address).unwrap(), TcpListener::bind(address).unwrap()));
        let asked = Arc::new(Mutex::new(vec![]));
        let log = asked.clone();
        thread::spawn(move || {
            let mut question = [0; 512];
            loop {
                let (length, client) = udp.recv_from(&mut question).unwrap();
                for answer in answers(&question[..length], zone, false, &log) {
                    let _ = udp.send_to(&answer, client);
                }
            }
        });
        let log = asked.clone();
        thread::spawn(move || {
            for mut stream in tcp.incoming().map_while(Result::ok) {
                let mut length = [0; 2];
                // glibc asks both questions over one connection.
                while stream.read_exact(&mut length).is_ok() {
                    let mut question = vec![0; u16::from_be_bytes(length).into()];
                    stream.read_exact(&mut question).unwrap();
                    for answer in answers(&question, zone, true, &log) {
                        let length = u16::try_from(answer.len()).unwrap().to_be_bytes();
                        // Byte by byte, as a slow network might.
                        for byte in length.into_iter().chain(answer) {
                            stream.write_all(&[byte]).unwrap();
                        }
                    }
                }
            }
        });
        Self(asked)
    }

    fn asked(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

fn answers(question: &[u8], zone: Zone, tcp: bool, log: &Mutex<Vec<String>>) -> Vec<Vec<u8>> {
    let mut labels = vec![];
    let mut at = 12;
    while question[at] != 0 {
        let end = at + 1 + usize::from(question[at]);
        labels.push(String::from_utf8(question[at + 1..end].to_vec()).unwrap());
        at = end;
    }
    let (name, kind) = (labels.join("."), u16::from_be_bytes([question[at + 1], question[at + 2]]));
    let word = if kind == A { "A" } else { "AAAA" };
    log.lock().unwrap().push(format!("{name} {word}{}", if tcp { " tcp" } else { "" }));
    let answer = |flags: u16, addresses: &[&str]| {
        let data = addresses.iter().filter_map(|address| match address.parse().unwrap() {
            IpAddr::V4(address) if kind == A => Some(address.octets().to_vec()),
            IpAddr::V6(address) if kind == AAAA => Some(address.octets().to_vec()),
            _ => None,
        });
        let data: Vec<_> = data.collect();
        let mut message = question.to_vec();
        message[2..4].copy_from_slice(&flags.to_be_bytes());
        message[6..8].copy_from_slice(&u16::try_from(data.len()).unwrap().to_be_bytes());
        for data in data {
            let numbers = [0xc00c, kind, 1, 0, 60, u16::try_from(data.len()).unwrap()];
            message.extend(numbers.into_iter().flat_map(u16::to_be_bytes));
            message.extend(data);
        }
        message
    };
    match zone(&name, kind, tcp) {
        Reply::Has(addresses) => vec![answer(0x8180, addresses)],
        Reply::Code(code) => vec![answer(0x8180 | u16::from(code), &[])],
        Reply::Truncated => vec![answer(0x8380, &[])],
        Reply::Silence => vec![],
    }
}

/// A node with an API server on both families, and its files about names.
struct Lab {
    node: Namespace,
    pod: Namespace,
    server: ApiServer,
    folder: Folder,
}

impl Lab {
    fn new() -> Self {
        let node = Namespace::new();
        let server = ApiServer::start(node.run(|| TcpListener::bind("[::]:0").unwrap()));
        server.add_pod("shop", "web", &Pod { containers: &["linkerd-proxy"], ..Pod::default() });
        Self { server, node, pod: Namespace::new(), folder: Folder::new() }
    }

    /// An ADD with the API server of this name, and these files in /etc.
    fn run(&self, name: &str, files: &[(&str, &str)], wrapper: &[&str]) -> Finished {
        let server = format!("{name}:{}", self.server.address().port());
        let tls = "insecure-skip-tls-verify: true";
        let kubeconfig = self.server.kubeconfig_with(self.folder.path(), "good-token", &server, tls);
        let mut mounts = String::new();
        for file in ["hosts", "resolv.conf", "nsswitch.conf"] {
            let text = files.iter().find(|(name, _)| *name == file).map_or("", |(_, text)| *text);
            let path = self.folder.path().join(file);
            std::fs::write(&path, text).unwrap();
            mounts += &format!("mount --bind {} /etc/{file}; ", path.display());
        }
        let mounts = format!("{mounts} exec \"$@\"");
        let words = [&["unshare", "--mount", "sh", "-ec", &mounts, "sh"], wrapper].concat();
        let run = Run::new("ADD", &by_api(&kubeconfig), self.pod.path());
        run.under(&words).output(&self.node)
    }

    fn add(&self, name: &str, resolv: &str) -> Finished {
        self.run(name, &[("resolv.conf", resolv)], &[])
    }

    fn assert_redirected(&self, finished: &Finished) {
        finished.success();
        assert_eq!(saved(&self.pod, "nft"), linkerds(&Flags::default()));
    }
}

/// The files that a trace of strace's says were opened, or looked for.
fn opened(trace: &str) -> BTreeSet<String> {
    let paths = trace.lines().filter_map(|line| line.split('"').nth(1));
    paths.map(ToOwned::to_owned).collect()
}

/// Not the modules that nsswitch.conf names, which are for the node's C library.
#[test]
#[ignore = "it is about the program that ships: `cargo xtask test --slow` builds it, and runs this"]
fn the_plugin_that_ships_opens_two_files_for_a_name() {
    assert!(std::env::var_os(lab::shell::PROGRAMS_TO_TEST).is_some(), "of which program?");
    let lab = Lab::new();
    let trace = lab.folder.path().join("trace");
    let output = format!("--output={}", trace.display());
    let strace = ["strace", "--follow-forks", "--trace=%file,connect", &output];
    let nsswitch = ("nsswitch.conf", "hosts: mymachines resolve [!UNAVAIL=return] files myhostname compat dns\n");
    NameServer::start(&lab.node, "127.0.0.53", |_, _, _| Reply::Has(&["127.0.0.1"]));
    let run = |server: &str, file: (&str, &str)| {
        lab.assert_redirected(&lab.run(server, &[file, nsswitch], &strace));
        opened(&std::fs::read_to_string(&trace).unwrap())
    };
    let hosts = ("hosts", "127.0.0.1 api.test\n");
    let without = run("127.0.0.1", hosts);
    for (file, want) in [
        (hosts, &["/etc/hosts"][..]),
        (("resolv.conf", "nameserver 127.0.0.53\n"), &["/etc/hosts", "/etc/resolv.conf"]),
    ] {
        let with = run("api.test", file);
        let more: Vec<&String> = with.difference(&without).collect();
        assert_eq!(more, want);
    }
}

#[test]
fn a_name_is_found_in_the_list_of_hosts() {
    let lab = Lab::new();
    let hosts = ("hosts", "127.0.0.1 localhost\n::1 other.test api.test\n");
    lab.assert_redirected(&lab.run("api.test", &[hosts], &[]));
}

#[test]
fn a_name_is_found_in_dns() {
    for (zone, address) in [
        ((|_, _, _| Reply::Has(&["127.0.0.1"])) as Zone, "127.0.0.1"),
        (|_, _, _| Reply::Has(&["::1"]), "127.0.0.1"),
        (|_, _, _| Reply::Has(&["127.0.0.1"]), "::1"),
        // An answer that doesn't fit into a packet comes by TCP.
        (
            |_, _, tcp| {
                if tcp { Reply::Has(&["127.0.0.1", "::1"]) } else { Reply::Truncated }
            },
            "127.0.0.1",
        ),
    ] {
        let lab = Lab::new();
        let server = NameServer::start(&lab.node, address, zone);
        let finished = lab.add("api.test", &format!("nameserver {address}\n"));
        lab.assert_redirected(&finished);
        let asked = server.asked();
        assert!(asked.iter().any(|line| line == "api.test A") && asked.iter().any(|line| line == "api.test AAAA"));
    }
}

/// An address without a route is known at once, while nobody says of one that leads nowhere that it does.
#[test]
fn of_two_families_the_one_that_works_is_used() {
    // 192.0.2.1 has no route; packets to 2001:db8::1 are lost.
    for zone in
        [(|_, _, _| Reply::Has(&["192.0.2.1", "::1"])) as Zone, |_, _, _| Reply::Has(&["127.0.0.1", "2001:db8::1"])]
    {
        let lab = Lab::new();
        lab.node.sh("ip link add lost type veth peer name other");
        lab.node.sh("ip link set lost up");
        lab.node.sh("ip link set other up");
        lab.node.sh("ip address add 2001:db8::2/64 dev lost nodad");
        lab.node.sh("ip neighbour add 2001:db8::1 lladdr 02:00:00:00:00:01 dev lost");
        NameServer::start(&lab.node, "127.0.0.1", zone);
        let start = Instant::now();
        lab.assert_redirected(&lab.add("api.test", "nameserver 127.0.0.1\n"));
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    }
}

#[test]
fn a_name_is_looked_up_in_the_domains_that_the_node_searches() {
    let zone: Zone = |name, _, _| match name {
        "api.two.example" => Reply::Has(&["127.0.0.1"]),
        _ => Reply::Code(3),
    };
    let lab = Lab::new();
    let server = NameServer::start(&lab.node, "127.0.0.1", zone);
    let finished = lab.add("api", "nameserver 127.0.0.1\nsearch one.example two.example\n");
    lab.assert_redirected(&finished);
    let asked = server.asked();
    let mut names: Vec<_> = asked.iter().map(|line| line.split(' ').next().unwrap()).collect();
    names.dedup();
    // Once for both requests.
    assert_eq!(names, ["api.one.example", "api.two.example"], "{asked:?}");
}

#[test]
fn another_name_server_is_asked_where_one_is_silent_or_fails() {
    for zone in [(|_, _, _| Reply::Silence) as Zone, |_, _, _| Reply::Code(2), |_, _, _| Reply::Code(5)] {
        let lab = Lab::new();
        NameServer::start(&lab.node, "127.0.0.1", zone);
        NameServer::start(&lab.node, "127.0.0.2", |_, _, _| Reply::Has(&["127.0.0.1"]));
        let start = Instant::now();
        // Nothing at all is on the first.
        let servers = "nameserver 127.0.0.3\nnameserver 127.0.0.1\nnameserver 127.0.0.2\noptions timeout:1\n";
        lab.assert_redirected(&lab.add("api.test", servers));
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    }
}

/// They take the whole ten seconds, so at the same time.
#[test]
fn a_name_that_is_not_found_says_so_within_ten_seconds() {
    let resolv = |options: &str| format!("nameserver 127.0.0.1\n{options}");
    let cases: [(Zone, String); 4] = [
        (|_, _, _| Reply::Code(3), resolv("")),
        (|_, _, _| Reply::Code(5), resolv("")),
        (|_, _, _| Reply::Silence, resolv("")),
        // Longer than a command has.
        (|_, _, _| Reply::Silence, resolv("options timeout:30 attempts:5\n")),
    ];
    let threads = cases.map(|(zone, resolv)| {
        thread::spawn(move || {
            let lab = Lab::new();
            NameServer::start(&lab.node, "127.0.0.1", zone);
            let start = Instant::now();
            let message = lab.add("api.test", &resolv).error(11);
            let took = start.elapsed();
            assert!(message.contains("api.test cannot be looked up"), "{message}");
            assert!(took < Duration::from_secs(13), "{took:?}: {message}");
        })
    });
    for thread in threads {
        thread.join().unwrap();
    }
}
