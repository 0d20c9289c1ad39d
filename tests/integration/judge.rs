//! `explain` against the kernel: random rules of proxy-init's in every mode, random rules of other programs before, between
//! and after them, and for each of many real connections, whether it arrives where the answer says.

use std::io::Read as _;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt,
};
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use proxy_init::{Connection, Direction, Name, Verdict, explain};
use serde_json::Value;
use xtask::lab::{DISTANT, Lab, NEIGHBOUR, Namespace, Owner, POD, ROOT, Reached, Server, families, seed};

use crate::support::{Run, feed, install};

/// Where connections go.
const PORTS: [u16; 4] = [80, 443, 8080, 4190];
/// Where other programs' rules send them.
const ELSEWHERE: u16 = 9999;
const SERVED: [u16; 7] = [4143, 4140, ELSEWHERE, 80, 443, 8080, 4190];
const IDS: [u32; 3] = [0, 1000, 2102];
/// Of this many connections, one is explained by the program, all others by the library.
const BY_PROGRAM: usize = 10;

/// Where a connection ends: at a server on this port, or nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    Port(u16),
    Lost,
}

/// Connects and asks the server for its port. A connection that is lost takes as long as this patience; one that isn't takes
/// microseconds.
pub(crate) fn arrival(
    namespace: &Namespace,
    owner: Owner,
    from: SocketAddr,
    to: SocketAddr,
    patience: Duration,
) -> Arrival {
    namespace.run(|| {
        setfsgid(Gid::from_raw(owner.gid));
        setfsuid(Uid::from_raw(owner.uid));
        let family = match to {
            SocketAddr::V4(_) => AddressFamily::Inet,
            SocketAddr::V6(_) => AddressFamily::Inet6,
        };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let client = socket(family, SockType::Stream, flags, None).unwrap();
        setsockopt(&client, sockopt::ReuseAddr, &true).unwrap();
        bind(client.as_raw_fd(), &SockaddrStorage::from(from)).unwrap();
        let milliseconds = PollTimeout::try_from(patience).unwrap();
        let started = connect(client.as_raw_fd(), &SockaddrStorage::from(to));
        assert!(
            matches!(
                started,
                Ok(()) | Err(nix::errno::Errno::EINPROGRESS | nix::errno::Errno::EPERM)
            ),
            "{from} to {to}: {started:?}"
        );
        poll(&mut [PollFd::new(client.as_fd(), PollFlags::POLLOUT)], milliseconds).unwrap();
        let mut stream = TcpStream::from(client);
        if started.is_err() && (stream.take_error().unwrap().is_some() || stream.peer_addr().is_err()) {
            return Arrival::Lost;
        }
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(patience)).unwrap();
        let mut answer = String::new();
        match stream.read_to_string(&mut answer) {
            Ok(_) => Arrival::Port(answer.split(' ').next().unwrap().parse().unwrap()),
            Err(_) => Arrival::Lost,
        }
    })
}

/// A connection to the pod or from it.
#[derive(Debug, Clone)]
struct Case {
    family: usize,
    way: Way,
    port: u16,
    uid: u32,
    gid: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    FromNeighbour,
    FromDistant,
    ToNeighbour,
    ToDistant,
    ToItself,
    ToLoopback,
}

impl Case {
    fn addresses(&self) -> (IpAddr, IpAddr) {
        let (pod, neighbour, distant) = (POD[self.family], NEIGHBOUR[self.family], DISTANT[self.family]);
        let loopback: IpAddr = ["127.0.0.1", "::1"][self.family].parse().unwrap();
        match self.way {
            Way::FromNeighbour => (neighbour, pod),
            Way::FromDistant => (distant, pod),
            Way::ToNeighbour => (pod, neighbour),
            Way::ToDistant => (pod, distant),
            Way::ToItself => (pod, pod),
            Way::ToLoopback => (loopback, loopback),
        }
    }

    fn is_inbound(&self) -> bool {
        matches!(self.way, Way::FromNeighbour | Way::FromDistant)
    }
}

fn any_case() -> impl Strategy<Value = Case> {
    let ways = [
        Way::FromNeighbour,
        Way::FromNeighbour,
        Way::FromDistant,
        Way::ToNeighbour,
        Way::ToDistant,
        Way::ToDistant,
        Way::ToItself,
        Way::ToLoopback,
    ];
    (
        0..families(),
        select(ways.to_vec()),
        select(&PORTS[..]),
        select(&IDS[..]),
        select(&IDS[..]),
    )
        .prop_map(|(family, way, port, uid, gid)| Case {
            family,
            way,
            port,
            uid,
            gid,
        })
}

/// Flags of an installation.
fn any_flags() -> impl Strategy<Value = String> {
    let ports = |name: &'static str| {
        let item = select(
            &[
                "80",
                "443",
                "8080",
                "4190",
                "4190,4191,4567,4568",
                "400-500",
                "8000-9000,443",
            ][..],
        );
        prop::option::of(item).prop_map(move |item| item.map(|item| format!(" --{name} {item}")).unwrap_or_default())
    };
    let subnets = |name: &'static str| {
        let item = select(
            &[
                "10.77.0.1/32",
                "10.77.0.0/24,fd77::/64",
                "192.0.2.0/24",
                "2001:db8::/32",
                "203.0.113.0/24",
                "127.0.0.0/8",
                "0.0.0.0/0",
            ][..],
        );
        prop::option::weighted(0.4, item)
            .prop_map(move |item| item.map(|item| format!(" --{name} {item}")).unwrap_or_default())
    };
    let chosen = prop::option::weighted(0.3, select(&["80", "443", "80,4190", "8080,443"][..])).prop_map(|ports| {
        ports
            .map(|ports| format!(" --ports-to-redirect {ports}"))
            .unwrap_or_default()
    });
    let owner = select(&["", " -u 2102", " -u 2102", " -g 2102", " -u 2102 -g 1000"][..]);
    (
        ports("inbound-ports-to-ignore"),
        ports("outbound-ports-to-ignore"),
        subnets("inbound-subnets-to-ignore"),
        subnets("outbound-subnets-to-ignore"),
        chosen,
        owner,
    )
        .prop_map(|(one, two, three, four, five, six)| format!("-p 4143 -o 4140{one}{two}{three}{four}{five}{six}"))
}

/// A condition in nft's language, for tables of both families.
fn any_condition() -> impl Strategy<Value = String> {
    let port = || select(&PORTS[..]);
    let words = |words: &'static [&'static str]| select(words).prop_map(ToOwned::to_owned);
    prop_oneof![
        3 => Just(String::new()),
        3 => (port(), any::<bool>()).prop_map(|(port, not)| format!("tcp dport {}{port}", if not { "!= " } else { "" })),
        2 => (port(), 0..500u16).prop_map(|(port, more)| format!("tcp dport {port}-{}", port + more)),
        2 => (port(), port()).prop_map(|(one, other)| match one == other {
            true => format!("tcp dport {{ {one} }}"),
            false => format!("tcp dport {{ {one}, {other} }}"),
        }),
        1 => words(&["tcp dport { 4143, 4140 }", "tcp dport 4143", "tcp dport != { 80, 4140 }"]),
        1 => words(&["tcp sport 20000-40000", "tcp sport < 30000", "tcp sport != 25000-35000", "tcp dport 8080 tcp sport & 1 == 1"]),
        1 => words(&["tcp dport @some", "tcp dport != @some"]),
        1 => words(&["meta l4proto udp", "meta l4proto != udp"]),
        2 => words(&[
            "ip saddr 10.77.0.2", "ip saddr != 10.77.0.2", "ip saddr 10.77.0.0/31", "ip saddr != 192.0.2.0/24",
            "ip saddr { 127.0.0.1, 192.0.2.1 }", "ip6 saddr fd77::/64", "ip6 saddr != fd77::2", "ip6 saddr 2001:db8::1",
        ]),
        1 => (any::<bool>(), 0..=128u8).prop_map(|(not, prefix)| format!(
            "ip6 daddr {}fd77::/{prefix}", if not { "!= " } else { "" }
        )),
        1 => words(&["iifname \"eth0\"", "iifname \"e*\"", "iifname != \"lo\"", "oifname != \"lo\"", "oifname \"eth*\""]),
        1 => words(&["ct state new", "ct state established", "ct state != new", "ct state { new, related }"]),
        1 => words(&["meta skuid 1000", "meta skuid != 1000", "meta skuid 0-999", "meta skgid 2102", "meta skgid { 0, 1000 }"]),
        1 => words(&["tcp flags syn / syn,ack", "tcp flags & (fin|syn|rst|ack) == syn", "tcp flags ack", "tcp flags != syn / syn,rst"]),
        1 => words(&["meta nfproto ipv4", "meta nfproto ipv6"]),
    ]
}

/// What a rule does, where there are two chains to jump to.
fn any_action() -> impl Strategy<Value = String> {
    select(
        &[
            "accept",
            "accept",
            "return",
            "return",
            "drop",
            "meta l4proto tcp redirect to :9999",
            "meta l4proto tcp redirect to :9999",
            "meta l4proto tcp redirect to :9999",
            "meta l4proto tcp redirect to :9999",
            "meta l4proto tcp redirect to :9999",
            "meta l4proto tcp redirect to :4143",
            "jump one",
            "jump one",
            "goto one",
            "jump two",
            "goto two",
            "counter",
            "tcp dport vmap { 80 : accept, 443 : jump two, 8000-9000 : goto one }",
            "tcp dport vmap { 80 : drop, 4143 : accept, 4190 : jump two }",
            "meta mark set 7",
        ][..],
    )
    .prop_map(ToOwned::to_owned)
}

type Rules = Vec<(String, String)>;

/// A table of another program's, with one base chain.
#[derive(Debug, Clone)]
struct Foreign {
    priority: i32,
    /// A nat chain, rather than a filter chain.
    is_nat: bool,
    hook: &'static str,
    family: &'static str,
    dormant: bool,
    drops: bool,
    base: Rules,
    one: Rules,
    two: Rules,
    before: bool,
}

fn any_foreign() -> impl Strategy<Value = Foreign> {
    let rules = |most| prop::collection::vec((any_condition(), any_action()), 0..most);
    let hooks = [
        (true, "prerouting"),
        (true, "prerouting"),
        (true, "output"),
        (true, "output"),
        (false, "prerouting"),
        (false, "output"),
        (false, "input"),
        (false, "postrouting"),
    ];
    (
        // Of equal priorities in two tables the order isn't known, so each is another one, and none is iptables'. nf_tables
        // takes no nat chain before connection tracking, at -200.
        select(&[-181, -147, -104, -98, -47, 13][..]),
        select(hooks.to_vec()),
        select(&["inet", "inet", "ip", "ip6"][..]),
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.05),
        rules(4),
        rules(3),
        rules(3),
        any::<bool>(),
    )
        .prop_map(
            |(priority, (is_nat, hook), family, dormant, drops, base, one, two, before)| Foreign {
                priority,
                is_nat,
                hook,
                family,
                dormant,
                drops,
                base,
                one,
                two,
                before,
            },
        )
}

impl Foreign {
    fn script(&self, number: usize) -> String {
        let rules = |rules: &Rules, chains: &[&str]| {
            let mut text = String::new();
            for (condition, action) in rules {
                // No loops, which the kernel refuses: the first chain may lead to the second one, and that nowhere.
                let is_allowed = |chain: &&str| !action.contains(chain) || chains.contains(chain);
                // nft refuses a rule that can't match, what another family has, and redirection in filter chains.
                let contradicts = condition == "meta l4proto udp" && action.contains("tcp");
                let other_family = (self.family == "ip" && condition.contains("ip6 "))
                    || (self.family == "ip6" && condition.contains("ip "))
                    || (self.family != "inet" && condition.contains("nfproto"));
                // Where there is no such thing, the kernel says so.
                let no_device = match self.hook {
                    "output" | "postrouting" => condition.contains("iif"),
                    _ => condition.contains("oif"),
                };
                let out_of_place = action.contains("redirect") && !self.is_nat;
                if !["one", "two"].iter().all(is_allowed) || other_family || no_device || contradicts || out_of_place {
                    continue;
                }
                text += &format!("    {condition} {action}\n");
            }
            text
        };
        // Answers to the first packet are no concern of these rules.
        let replies = if self.is_nat {
            ""
        } else {
            "    ct state established accept\n"
        };
        format!(
            "table {family} foreign{number} {{\n  {flags}\n  set some {{ type inet_service; elements = {{ 443 }}; }}\n  chain \
             two {{\n{two}  }}\n  chain one {{\n{one}  }}\n  chain base {{\n    type {kind} hook {hook} priority \
             {priority}; policy {policy};\n{replies}{base}  }}\n}}\n",
            family = self.family,
            flags = if self.dormant { "flags dormant;" } else { "" },
            kind = if self.is_nat { "nat" } else { "filter" },
            hook = self.hook,
            priority = self.priority + number as i32,
            policy = if self.drops { "drop" } else { "accept" },
            two = rules(&self.two, &[]),
            one = rules(&self.one, &["two"]),
            base = rules(&self.base, &["one", "two"]),
        )
    }
}

/// Where a rule of iptables' goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spot {
    /// Before the jump to proxy-init's chain, or after it.
    First(&'static str),
    Last(&'static str),
    /// In proxy-init's own chain, at this place.
    Between(&'static str, usize),
    /// In a chain of its own, to which others lead.
    Own,
    /// In the filter table.
    Filter(&'static str),
    Mangle(&'static str),
}

/// A rule of iptables'.
#[derive(Debug, Clone)]
struct Xtables {
    spot: Spot,
    condition: &'static str,
    target: &'static str,
}

fn any_xtables() -> impl Strategy<Value = Xtables> {
    let spots = [
        Spot::First("PREROUTING"),
        Spot::First("OUTPUT"),
        Spot::Last("PREROUTING"),
        Spot::Last("OUTPUT"),
        Spot::Between("PROXY_INIT_REDIRECT", 1),
        Spot::Between("PROXY_INIT_OUTPUT", 1),
        Spot::Between("PROXY_INIT_OUTPUT", 2),
        Spot::Own,
        Spot::Own,
        Spot::Filter("INPUT"),
        Spot::Filter("OUTPUT"),
        Spot::Mangle("PREROUTING"),
        Spot::Mangle("POSTROUTING"),
    ];
    let condition = prop_oneof![
        200 => select(
            &[
                "",
                "-p tcp",
                "-p udp",
                "! -p udp",
                "-p tcp --dport 80",
                "-p tcp ! --dport 443",
                "-p tcp --dport 400:5000",
                "-p tcp --sport 20000:40000",
                "-p tcp -m multiport --dports 80,4190,8000:9000",
                "-p tcp -m multiport ! --dports 443,8080",
                "-p tcp --syn",
                "-p tcp ! --syn",
                "-m conntrack --ctstate NEW",
                "-m conntrack --ctstate ESTABLISHED",
                "-m owner --uid-owner 1000",
                "-m owner ! --uid-owner 2102",
                "-m owner --gid-owner 0",
                "-i eth0",
                "-i e+",
                "! -i lo",
                "-o eth0",
                "! -o eth+",
                "-m comment --comment foreign",
                "-s NEIGHBOUR",
                "! -s NEIGHBOUR",
                "-d POD",
                "-s NET",
            ][..],
        ),
        // Not modelled, and so for few connections only.
        1 => Just("-p tcp --dport 8080 -m statistic --mode nth --every 2 --packet 0"),
    ];
    let target = select(
        &[
            "ACCEPT", "ACCEPT", "RETURN", "RETURN", "REDIRECT", "REDIRECT", "DNAT", "DROP", "jump", "jump", "goto", "",
        ][..],
    );
    (select(spots.to_vec()), condition, target).prop_map(|(spot, condition, target)| Xtables {
        spot,
        condition,
        target,
    })
}

impl Xtables {
    /// The line for iptables-restore, and the table; none where there is no such rule.
    fn line(&self, mode: &str, family: usize) -> Option<(&'static str, String)> {
        let (table, place, chain) = match self.spot {
            Spot::First(chain) => ("nat", format!("-I {chain} 1"), chain),
            Spot::Last(chain) => ("nat", format!("-A {chain}"), chain),
            Spot::Between(chain, place) => ("nat", format!("-I {chain} {place}"), chain),
            Spot::Own => ("nat", "-A FOREIGN".to_owned(), "FOREIGN"),
            Spot::Filter(chain) => ("filter", format!("-A {chain}"), chain),
            Spot::Mangle(chain) => ("mangle", format!("-A {chain}"), chain),
        };
        // iptables-nft's nat table would tie with native mode's, and the order of the two would not be known.
        if table == "nat" && mode == "native" {
            return None;
        }
        let inbound = matches!(chain, "PREROUTING" | "INPUT" | "PROXY_INIT_REDIRECT");
        let condition = self.condition;
        let wrong_device = match inbound {
            true => condition.contains("-o "),
            false => condition.contains("-i "),
        };
        // Where a chain may be reached from both, neither is allowed.
        let in_doubt = chain == "FOREIGN"
            && [" -i ", "-i ", "-o ", "-m owner"]
                .iter()
                .any(|word| condition.contains(word));
        if wrong_device || in_doubt || (inbound && condition.contains("owner")) {
            return None;
        }
        let v6 = family == 1;
        let condition = condition
            .replace("NEIGHBOUR", &NEIGHBOUR[family].to_string())
            .replace("POD", &POD[family].to_string())
            .replace("NET", if v6 { "2001:db8::/32" } else { "192.0.2.0/24" });
        let tcp = if condition.contains("-p ") { "" } else { "-p tcp " };
        let target = match (self.target, table) {
            ("REDIRECT" | "DNAT", "nat") if condition.contains("udp") => return None,
            ("REDIRECT", "nat") => format!("{tcp}-j REDIRECT --to-ports {ELSEWHERE}"),
            ("DNAT", "nat") => {
                // Where there is a way: nothing is forwarded, and nothing from a loopback address leaves.
                let (address, other) = match (inbound, chain) {
                    (_, "FOREIGN") => return None,
                    (true, _) => (POD[family], ""),
                    (false, _) if condition.contains("-o ") => return None,
                    (false, _) => (NEIGHBOUR[family], "! -o lo "),
                };
                let to = SocketAddr::new(address, ELSEWHERE);
                format!("{tcp}{other}-j DNAT --to-destination {to}")
            }
            ("DROP", "nat") | ("REDIRECT" | "DNAT" | "jump" | "goto", "filter" | "mangle") => return None,
            ("jump" | "goto", _) if chain == "FOREIGN" => return None,
            ("jump", _) => "-j FOREIGN".to_owned(),
            ("goto", _) => "-g FOREIGN".to_owned(),
            ("", _) => String::new(),
            (target, _) => format!("-j {target}"),
        };
        Some((table, format!("{place} {condition} {target}")))
    }
}

/// Adds rules with iptables-nft or iptables-legacy; those that go between proxy-init's only where these are.
fn add_xtables(lab: &Lab, mode: &str, rules: &[Xtables], number: usize) {
    let variant = if mode == "legacy" { "legacy" } else { "nft" };
    for family in 0..families() {
        let mut text = String::new();
        let own = format!("FOREIGN{number}");
        for table in ["nat", "filter", "mangle"] {
            let lines: Vec<String> = rules
                .iter()
                .filter_map(|rule| rule.line(mode, family))
                .filter(|(of, _)| *of == table)
                .map(|(_, line)| line.replace("FOREIGN", &own))
                .collect();
            if lines.is_empty() {
                continue;
            }
            text += &format!("*{table}\n");
            if table == "nat" {
                text += &format!(":{own} - [0:0]\n");
            } else {
                // As above: only the first packet is meant.
                for chain in ["INPUT", "OUTPUT", "PREROUTING", "POSTROUTING"] {
                    if lines.iter().any(|line| line.contains(&format!("-A {chain} "))) {
                        text += &format!("-A {chain} -m conntrack --ctstate ESTABLISHED -j ACCEPT\n");
                    }
                }
            }
            text += &format!("{}\nCOMMIT\n", lines.join("\n"));
        }
        let command = format!("{}-{variant}-restore --noflush", ["iptables", "ip6tables"][family]);
        let fed = feed(&lab.pod, &command, &text);
        assert_eq!(fed.code(), Some(0), "{command}: {}\n{text}", fed.said());
    }
}

/// Everything in a pod.
#[derive(Debug, Clone)]
struct Pod {
    flags: String,
    foreign: Vec<Foreign>,
    before: Vec<Xtables>,
    after: Vec<Xtables>,
}

/// What was counted.
#[derive(Debug, Clone, Copy, Default)]
struct Count {
    tried: u32,
    proxy: u32,
    bypass: u32,
    elsewhere: u32,
    dropped: u32,
    unknown: u32,
}

fn check(mode: &str, rules: &Pod, cases: &[Case], count: &mut Count) -> Result<(), TestCaseError> {
    let lab = Lab::new();
    // Neighbours are found now: for packets from a distant address, that would wait until the device has an address of its
    // own (`ndisc_send_ns` in net/ipv6/ndisc.c).
    for pod in POD.into_iter().take(families()) {
        let refused = xtask::lab::connect(&lab.outside, ROOT, SocketAddr::new(pod, 80));
        assert_eq!(refused, Reached::Refused);
    }
    let add = |before: bool| {
        let all = rules.foreign.iter().enumerate();
        for (number, foreign) in all.filter(|(_, foreign)| foreign.before == before) {
            let script = foreign.script(number);
            let fed = feed(&lab.pod, "nft -f -", &script);
            assert_eq!(fed.code(), Some(0), "{}\n{script}", fed.said());
        }
    };
    add(true);
    let early: Vec<Xtables> = rules
        .before
        .iter()
        .filter(|rule| !matches!(rule.spot, Spot::Between(..)))
        .cloned()
        .collect();
    add_xtables(&lab, mode, &early, 1);
    install(&lab.pod, &format!("--iptables-mode {mode} {}", rules.flags));
    add(false);
    add_xtables(&lab, mode, &rules.after, 2);
    if mode == "native" {
        for rule in rules.after.iter().filter(|rule| matches!(rule.spot, Spot::Between(..))) {
            let Spot::Between(chain, _) = rule.spot else { continue };
            let (verb, action) = match rule.target {
                "ACCEPT" => ("insert", "tcp dport 443 accept"),
                "RETURN" => ("insert", "tcp dport != 8080 return"),
                "REDIRECT" => ("insert", "tcp dport { 80, 4190 } redirect to :9999"),
                "DROP" => ("insert", "tcp dport 80 drop"),
                _ => ("add", "counter"),
            };
            let fed = feed(
                &lab.pod,
                "nft -f -",
                &format!("{verb} rule inet proxy-init {chain} {action}\n"),
            );
            assert_eq!(fed.code(), Some(0), "{}", fed.said());
        }
    }
    let _servers = [Server::start(&lab.pod, &SERVED), Server::start(&lab.outside, &SERVED)];
    for (number, case) in cases.iter().enumerate() {
        count.tried += 1;
        let (from, to) = case.addresses();
        // Each from another port, so that none meets what another has left behind.
        let (from, to) = (
            SocketAddr::new(from, 20_001 + (97 * count.tried % 40_000) as u16),
            SocketAddr::new(to, case.port),
        );
        let verdict = if number % BY_PROGRAM == 0 {
            by_program(&lab.pod, case, from, to)
        } else {
            by_library(&lab.pod, case, from, to)
        };
        let want = match &verdict {
            Verdict::Proxy(port) => Arrival::Port(*port),
            Verdict::Bypass => Arrival::Port(case.port),
            Verdict::Elsewhere(text) => {
                prop_assert!(text.contains(&ELSEWHERE.to_string()), "{}", text);
                Arrival::Port(ELSEWHERE)
            }
            Verdict::Dropped | Verdict::Lost(_) => Arrival::Lost,
            Verdict::NotKnown(_) => {
                count.unknown += 1;
                println!("{mode}: {verdict}");
                continue;
            }
        };
        match &verdict {
            Verdict::Proxy(_) => count.proxy += 1,
            Verdict::Bypass => count.bypass += 1,
            Verdict::Elsewhere(_) => count.elsewhere += 1,
            _ => count.dropped += 1,
        }
        let patience = match want {
            Arrival::Port(_) => Duration::from_secs(5),
            Arrival::Lost => Duration::from_millis(200),
        };
        let (namespace, owner) = match case.is_inbound() {
            true => (&lab.outside, ROOT),
            false => {
                let Case { uid, gid, .. } = *case;
                (&lab.pod, Owner { uid, gid })
            }
        };
        let got = arrival(namespace, owner, from, to, patience);
        prop_assert_eq!(
            got,
            want,
            "{} {:?} from {}: {}\n{}\n{}",
            mode,
            case,
            from,
            verdict,
            lab.pod.sh("nft list ruleset"),
            lab.pod.sh("iptables-legacy-save")
        );
    }
    Ok(())
}

fn by_library(pod: &Namespace, case: &Case, from: SocketAddr, to: SocketAddr) -> Verdict {
    let inbound = case.is_inbound();
    let direction = if inbound {
        Direction::Inbound
    } else {
        Direction::Outbound
    };
    let mut connection = Connection::new(direction, to);
    connection.from = Some(from.ip());
    connection.from_port = Some(from.port());
    connection.uid = (!inbound).then_some(case.uid);
    connection.gid = (!inbound).then_some(case.gid);
    connection.device = inbound.then(|| Name::from("eth0"));
    pod.run(|| explain(None, &connection, |explained| explained.verdict.clone()).unwrap())
}

fn by_program(pod: &Namespace, case: &Case, from: SocketAddr, to: SocketAddr) -> Verdict {
    let line = match case.is_inbound() {
        true => format!("explain inbound --to {to} --from {from} --in eth0 --output json"),
        false => format!(
            "explain outbound --to {to} --from {from} --uid {} --gid {} --output json",
            case.uid, case.gid
        ),
    };
    let said = Run::new(&line).output(pod).success();
    let json: Value = serde_json::from_str(&said).unwrap();
    let text = Run::new(line.strip_suffix(" --output json").unwrap())
        .output(pod)
        .success();
    let answer = json["answer"].as_str().unwrap();
    assert_eq!(text.lines().next(), Some(answer));
    match json["verdict"].as_str().unwrap() {
        "proxy" => Verdict::Proxy(json["port"].as_u64().unwrap() as u16),
        "bypass" => Verdict::Bypass,
        "elsewhere" => Verdict::Elsewhere(answer.to_owned()),
        "dropped" => Verdict::Dropped,
        "not-known" => Verdict::NotKnown(answer.to_owned()),
        other => panic!("{other}"),
    }
}

/// As many connections as EXPLAIN_CONNECTIONS says, 10 in each pod.
fn check_any(mode: &str) {
    const EACH: usize = 10;
    let connections = std::env::var("EXPLAIN_CONNECTIONS").map_or(300, |number| number.parse().unwrap());
    let mut runner = TestRunner::new(Config {
        cases: u32::div_ceil(connections, EACH as u32),
        max_shrink_iters: 20,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed()),
        ..Config::default()
    });
    let rules = (
        any_flags(),
        prop::collection::vec(any_foreign(), 0..5),
        prop::collection::vec(any_xtables(), 0..4),
        prop::collection::vec(any_xtables(), 0..6),
    )
        .prop_map(|(flags, foreign, before, after)| Pod {
            flags,
            foreign,
            before,
            after,
        });
    let count = std::cell::Cell::new(Count::default());
    let checked = runner.run(&(rules, prop::collection::vec(any_case(), EACH)), |(rules, cases)| {
        let mut counted = count.get();
        let checked = check(mode, &rules, &cases, &mut counted);
        count.set(counted);
        checked
    });
    let count = count.get();
    println!("{mode}: {count:?}");
    checked.unwrap();
}

#[test]
fn connections_arrive_where_the_answer_says_in_nft_mode() {
    check_any("nft");
}

#[test]
fn connections_arrive_where_the_answer_says_in_native_mode() {
    check_any("native");
}

#[test]
fn connections_arrive_where_the_answer_says_in_legacy_mode() {
    check_any("legacy");
}
