//! The lookup of the API server's name: by C's library, which is musl's in the program that ships.

use std::collections::BTreeSet;
use std::net::{IpAddr, TcpListener, UdpSocket};
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
    Silence,
}

/// By the kind of the question.
type Zone = fn(u16) -> Reply;

/// The line of resolv.conf about a [`NameServer`].
const NAME_SERVER: &str = "nameserver 127.0.0.53\n";

/// A name server. It ends with the process.
struct NameServer;

impl NameServer {
    fn start(node: &Namespace, zone: Zone) {
        let udp = node.run(|| UdpSocket::bind("127.0.0.53:53").unwrap());
        thread::spawn(move || {
            let mut question = [0; 512];
            loop {
                let (length, client) = udp.recv_from(&mut question).unwrap();
                if let Some(answer) = answer(&question[..length], zone) {
                    let _ = udp.send_to(&answer, client);
                }
            }
        });
    }
}

fn answer(question: &[u8], zone: Zone) -> Option<Vec<u8>> {
    // The kind comes after the name, whose labels have their lengths before them.
    let mut at = 12;
    while question[at] != 0 {
        at += 1 + usize::from(question[at]);
    }
    let kind = u16::from_be_bytes([question[at + 1], question[at + 2]]);
    let (code, addresses) = match zone(kind) {
        Reply::Has(addresses) => (0, addresses),
        Reply::Code(code) => (code, &[][..]),
        Reply::Silence => return None,
    };
    let data = addresses.iter().filter_map(|address| match address.parse().unwrap() {
        IpAddr::V4(address) if kind == A => Some(address.octets().to_vec()),
        IpAddr::V6(address) if kind == AAAA => Some(address.octets().to_vec()),
        _ => None,
    });
    let data: Vec<_> = data.collect();
    let mut message = question.to_vec();
    message[2..4].copy_from_slice(&(0x8180 | u16::from(code)).to_be_bytes());
    message[6..8].copy_from_slice(&u16::try_from(data.len()).unwrap().to_be_bytes());
    for data in data {
        let numbers = [0xc00c, kind, 1, 0, 60, u16::try_from(data.len()).unwrap()];
        message.extend(numbers.into_iter().flat_map(u16::to_be_bytes));
        message.extend(data);
    }
    Some(message)
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
    NameServer::start(&lab.node, |_| Reply::Has(&["127.0.0.1"]));
    let run = |server: &str, file: (&str, &str)| {
        lab.assert_redirected(&lab.run(server, &[file, nsswitch], &strace));
        opened(&std::fs::read_to_string(&trace).unwrap())
    };
    let hosts = ("hosts", "127.0.0.1 api.test\n");
    let without = run("127.0.0.1", hosts);
    for (file, want) in
        [(hosts, &["/etc/hosts"][..]), (("resolv.conf", NAME_SERVER), &["/etc/hosts", "/etc/resolv.conf"])]
    {
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
    for zone in [(|_| Reply::Has(&["127.0.0.1"])) as Zone, |_| Reply::Has(&["::1"])] {
        let lab = Lab::new();
        NameServer::start(&lab.node, zone);
        lab.assert_redirected(&lab.add("api.test", NAME_SERVER));
    }
}

/// An address without a route is known at once, while nobody says of one that leads nowhere that it does.
#[test]
fn of_two_families_the_one_that_works_is_used() {
    // 192.0.2.1 has no route; packets to 2001:db8::1 are lost.
    for zone in [(|_| Reply::Has(&["192.0.2.1", "::1"])) as Zone, |_| Reply::Has(&["127.0.0.1", "2001:db8::1"])] {
        let lab = Lab::new();
        lab.node.sh("ip link add lost type veth peer name other");
        lab.node.sh("ip link set lost up");
        lab.node.sh("ip link set other up");
        lab.node.sh("ip address add 2001:db8::2/64 dev lost nodad");
        lab.node.sh("ip neighbour add 2001:db8::1 lladdr 02:00:00:00:00:01 dev lost");
        NameServer::start(&lab.node, zone);
        let start = Instant::now();
        lab.assert_redirected(&lab.add("api.test", NAME_SERVER));
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    }
}

/// They take the whole ten seconds, so at the same time.
#[test]
fn a_name_that_is_not_found_says_so_within_ten_seconds() {
    let cases: [(Zone, &str); 3] = [
        (|_| Reply::Code(3), ""),
        (|_| Reply::Silence, ""),
        // Longer than a command has.
        (|_| Reply::Silence, "options timeout:30 attempts:5\n"),
    ];
    let threads = cases.map(|(zone, options)| {
        thread::spawn(move || {
            let lab = Lab::new();
            NameServer::start(&lab.node, zone);
            let start = Instant::now();
            let message = lab.add("api.test", &format!("{NAME_SERVER}{options}")).error(11);
            let took = start.elapsed();
            assert!(message.contains("api.test cannot be looked up"), "{message}");
            assert!(took < Duration::from_secs(13), "{took:?}: {message}");
        })
    });
    for thread in threads {
        thread.join().unwrap();
    }
}
