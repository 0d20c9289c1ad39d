//! Rules, routes and devices by which a netfilter engineer would try to prove `explain` wrong, and what becomes of a real
//! connection beside them.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use lab::handshake::{Client, Handshakes, Outcome};
use lab::network::{Lab, NEIGHBOUR, Owner, POD, ROOT, families};
use lab::wait;

use crate::support::{Run, chart_in, install, nft, unfolded};

/// A connection to port 80 of the pod or of its neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Question {
    Inbound,
    /// Of the application.
    Outbound,
    /// Of the proxy, so that it isn't redirected.
    OfProxy,
}

impl Question {
    /// From where to where.
    fn addresses(self, family: usize) -> (SocketAddr, SocketAddr) {
        let (ours, theirs) = (POD[family], NEIGHBOUR[family]);
        let (from, to) = if self == Self::Inbound { (theirs, ours) } else { (ours, theirs) };
        (SocketAddr::new(from, 40_000), SocketAddr::new(to, 80))
    }

    fn uid(self) -> u32 {
        if self == Self::OfProxy { 2102 } else { 1000 }
    }

    pub(crate) fn line(self, family: usize) -> String {
        let (from, to) = self.addresses(family);
        match self {
            Self::Inbound => format!("explain inbound --to {to} --from {from}"),
            _ => format!("explain outbound --to {to} --from {from} --uid {}", self.uid()),
        }
    }

    /// Makes the connection.
    pub(crate) fn ask(self, lab: &Lab, handshakes: &Handshakes, family: usize) -> Outcome {
        let (from, to) = self.addresses(family);
        if self == Self::Inbound {
            return handshakes.connect(&lab.outside, &Client::new(from), to);
        }
        let uid = self.uid();
        let owner = Owner { uid, ..ROOT };
        handshakes.connect(&lab.pod, &Client { owner, ..Client::new(from) }, to)
    }

    /// True if the connection ended as this answer says; none: the answer doesn't say.
    fn is_true(self, answer: &str, outcome: Outcome) -> Option<bool> {
        let port_of = |outcome| match outcome {
            Outcome::Answered { by, at } => Some((by, at.port())),
            _ => None,
        };
        let arrived = port_of(outcome);
        if let Some(port) = answer.split("; then from the proxy: ").next().unwrap().strip_prefix("to the proxy, port ")
        {
            return Some(arrived == Some((0, port.parse().unwrap())));
        }
        if answer == "bypasses the proxy" {
            return Some(arrived == Some((usize::from(self != Self::Inbound), 80)));
        }
        if answer.starts_with("not known: ") {
            return None;
        }
        assert!(answer.starts_with("dropped"), "{answer}");
        Some(arrived.is_none())
    }
}

/// A script for nft, or a command; in the world outside, if it begins so.
pub(crate) fn apply(lab: &Lab, line: &str) {
    let (namespace, line) = match line.strip_prefix("outside: ") {
        Some(line) => (&lab.outside, line),
        None => (&lab.pod, line),
    };
    if line.starts_with("table ") {
        nft(namespace, line);
    } else {
        namespace.sh(line);
    }
}

/// Asks in a pod in which this was done, whose neighbour is known already. The answer begins so, and is true. If it is
/// that the proxy gets the connection, verify has nothing to find.
fn is_so(set_up: &[&str], question: Question, family: usize, beginning: &str) {
    if family >= families() {
        return;
    }
    is_so_with(&[], set_up, question, family, beginning);
}

/// The same where these are the pod's devices and routes, by which the connection is answered without rules.
fn is_so_with(network: &[&str], set_up: &[&str], question: Question, family: usize, beginning: &str) {
    let lab = Lab::new();
    let handshakes = Handshakes::new(&[&lab.pod, &lab.outside], &[80, 4143, 4140]);
    for line in network {
        apply(&lab, line);
    }
    let answered = wait::until(Duration::from_secs(30), || {
        let before = question.ask(&lab, &handshakes, family);
        matches!(before, Outcome::Answered { .. }).then_some(())
    });
    assert!(answered.is_some(), "{network:?}");
    install(&lab.pod, &chart_in("nft"));
    for line in set_up {
        apply(&lab, line);
    }
    let line = question.line(family);
    let said = Run::new(&format!("{line} --output short")).output(&lab.pod).success();
    assert!(said.starts_with(beginning), "{set_up:?}: {line}: {said}");
    let verified = Run::new("verify").output(&lab.pod);
    // The proxy's own treatment of the connection is another question.
    if beginning == PROXY && !unfolded(&verified.stdout()).contains("connections from the proxy") {
        assert_eq!(verified.code(), Some(0), "{set_up:?}: {}", verified.said());
    }
    let outcome = question.ask(&lab, &handshakes, family);
    let is_true = question.is_true(said.trim_end(), outcome);
    assert_ne!(is_true, Some(false), "{set_up:?}: {line}: {said}{outcome:?}");
}

const PROXY: &str = "to the proxy, port ";
const NOT_KNOWN: &str = "not known: ";

/// Some rules change a packet in a way that isn't followed: the outcome is not known.
#[test]
fn what_rewrites_packets_is_not_harmless() {
    for (rule, answer) in [
        ("ip protocol set 17", NOT_KNOWN),
        ("ip hdrlength set 6", NOT_KNOWN),
        ("ip version set 5", NOT_KNOWN),
        ("tcp option timestamp tsval set 1", NOT_KNOWN),
        ("tcp flags syn ct original zone set 5", NOT_KNOWN),
        ("ip ttl set 9", PROXY),
        ("ip dscp set 9", PROXY),
        ("tcp option maxseg size set 500", PROXY),
        ("tcp option maxseg size 1-400 drop", NOT_KNOWN),
        ("tcp option maxseg size 1-400 counter", PROXY),
    ] {
        let table = format!("table ip t {{ chain c {{ type filter hook prerouting priority -300; {rule}; }}; }}");
        is_so(&[&table], Question::Inbound, 0, answer);
    }
    for (rule, answer) in [
        ("ip6 nexthdr set 17", NOT_KNOWN),
        ("ip6 version set 5", NOT_KNOWN),
        ("ip6 hoplimit set 9", PROXY),
        ("ip6 dscp set 9", PROXY),
    ] {
        let table = format!("table ip6 t {{ chain c {{ type filter hook prerouting priority -300; {rule}; }}; }}");
        is_so(&[&table], Question::Inbound, 1, answer);
    }
    let reply = "table inet t { chain c { type filter hook output priority 0; tcp option timestamp tsecr set 1; }; }";
    for question in [Question::Inbound, Question::Outbound, Question::OfProxy] {
        is_so(&[reply], question, 0, NOT_KNOWN);
    }
    let synproxy = "table ip t { synproxy s { mss 1460; wscale 7; timestamp sack-perm; }; chain c { type filter hook input \
                    priority 0; tcp flags syn synproxy name \"s\"; }; }";
    is_so(&[synproxy], Question::Inbound, 0, NOT_KNOWN);
    let helper = "table ip t { ct helper h { type \"ftp\" protocol tcp; }; chain c { type filter hook prerouting priority 0; \
                  ct helper set \"h\"; }; }";
    is_so(&[helper], Question::Inbound, 0, PROXY);
    is_so(&["iptables-nft -t raw -A PREROUTING -p tcp --syn -j CT --zone-orig 5"], Question::Inbound, 0, NOT_KNOWN);
}

/// Of a connection that isn't tracked on its way in, the server's data is taken for the first packet of another one, of
/// which it isn't the reply.
#[test]
fn what_is_tracked_from_its_middle_goes_the_original_way() {
    for (direction, answer) in [("REPLY", "bypasses the proxy"), ("ORIGINAL", "dropped")] {
        let set_up = [
            "iptables-nft -t raw -A PREROUTING -i eth0 -j CT --notrack",
            // It would be redirected to the proxy as if it were an outbound connection.
            "iptables-nft -t nat -I OUTPUT -o eth0 -j ACCEPT",
            &format!(
                "iptables-nft -t nat -I OUTPUT -p tcp -m conntrack --ctdir {direction} -j REDIRECT --to-ports 9999"
            ),
        ];
        is_so(&set_up, Question::Inbound, 0, answer);
    }
    // It has another source then, or the one that it had.
    for (source, answer) in [
        ("SNAT --to-source 10.77.0.9", "dropped"),
        ("SNAT --to-source 10.77.0.2:80", "bypasses the proxy"),
        ("MASQUERADE", NOT_KNOWN),
    ] {
        let set_up = [
            "iptables-nft -t raw -A PREROUTING -i eth0 -j CT --notrack",
            "iptables-nft -t nat -I OUTPUT -o eth0 -j ACCEPT",
            &format!("iptables-nft -t nat -I POSTROUTING -p tcp -j {source}"),
        ];
        is_so(&set_up, Question::Inbound, 0, answer);
    }
}

/// A reply that connection tracking leaves alone isn't translated back: the socket gets it if nothing was translated.
#[test]
fn an_untracked_reply_needs_no_translation_back_where_there_was_none() {
    let untracked = "iptables-nft -t raw -A PREROUTING -i eth0 -j CT --notrack";
    for (target, answer) in [
        ("MASQUERADE", NOT_KNOWN),
        ("MASQUERADE --to-ports 40001", "dropped: the reply"),
        ("SNAT --to-source 10.77.0.2:40000", "bypasses the proxy"),
        ("SNAT --to-source 10.77.0.2", NOT_KNOWN),
        ("SNAT --to-source 10.77.0.9", "dropped: the reply"),
    ] {
        let translating = format!("iptables-nft -t nat -I POSTROUTING -p tcp -j {target}");
        is_so(&[untracked, &translating], Question::OfProxy, 0, answer);
    }
}

/// A connection is made by then, of which nobody gets anything.
#[test]
fn what_the_server_sends_has_to_get_through_too() {
    let table = |hook: &str| {
        format!(
            "table inet t {{ chain c {{ type filter hook {hook} priority 0; tcp flags & (syn | rst) != syn drop; }}; }}"
        )
    };
    is_so(&[&table("output")], Question::Inbound, 0, "dropped: the reply");
    is_so(&[&table("input")], Question::OfProxy, 0, "dropped: the reply");
    is_so(&[&table("input")], Question::Inbound, 0, "dropped: the ACK");
}

/// They are put together before, and those of a handshake are none.
#[test]
fn fragments_are_of_no_connection() {
    for command in ["iptables-nft", "iptables-legacy"] {
        is_so(&[&format!("{command} -f -A INPUT -j DROP")], Question::Inbound, 0, PROXY);
        let others = format!("{command} -A INPUT ! -f -j DROP");
        is_so(&[&others], Question::Inbound, 0, "dropped");
    }
}

/// No connection lives that comes from an address of this namespace or from no host, or by a device that is gone.
#[test]
fn what_drops_no_connection_that_could_live_is_no_finding() {
    for rule in [
        "-A INPUT ! -i lo -d 10.77.0.255 -j DROP",
        "-A INPUT ! -i lo -d 255.255.255.255 -j DROP",
        "-A INPUT ! -i lo -s 10.77.0.2 -j DROP",
        "-A INPUT ! -i lo -s 10.77.0.255 -j DROP",
        "-t raw -A PREROUTING -i eth0 -s 10.77.0.2 -j DROP",
        "-t raw -A PREROUTING -i eth0 -d 10.77.0.255 -j DROP",
        "-A INPUT -i gone0 -j DROP",
    ] {
        for command in ["iptables-nft", "iptables-legacy"] {
            is_so(&[&format!("{command} {rule}")], Question::Inbound, 0, PROXY);
        }
    }
    is_so(&["ip6tables-nft -t raw -A PREROUTING -i eth0 -s fd77::2 -j DROP"], Question::Inbound, 1, PROXY);
    let gone = [
        "ip link add gone0 type veth peer name gone1",
        "table netdev t { chain c { type filter hook ingress device gone0 priority 0; policy drop; }; }",
        "ip link delete gone0",
    ];
    is_so(&gone, Question::Inbound, 0, PROXY);
    // The first address of the device is what connections are redirected to.
    for (rule, answer) in [("-d 10.77.0.2", "dropped"), ("-d 10.77.0.9", PROXY)] {
        let rule = format!("iptables-nft -A INPUT -p tcp --dport 4143 {rule} -j DROP");
        is_so(&["ip address add 10.77.0.9/24 dev eth0", &rule], Question::Inbound, 0, answer);
    }
}

/// The pod's address is a bridge's, as KubeVirt has it, and eth0 a port of it.
const BRIDGE: [&str; 7] = [
    "ip link add br0 type bridge",
    "ip address flush dev eth0",
    "ip link set eth0 master br0",
    "ip address add 10.77.0.2/24 dev br0",
    "ip address add fd77::2/64 dev br0 nodad",
    "ip link set br0 up",
    "ip route add default via 10.77.0.1",
];

/// eth0 would answer who asks for the address of mac0, too, and get packets that can't be redirected to one of its own.
const MACVLAN: [&str; 7] = [
    "sysctl -qw net.ipv4.conf.eth0.arp_ignore=1",
    "ip address flush dev eth0",
    "ip link add mac0 link eth0 type macvlan mode bridge",
    "ip address add 10.77.0.2/24 dev mac0",
    "ip address add fd77::2/64 dev mac0 nodad",
    "ip link set mac0 up",
    "ip route add default via 10.77.0.1",
];

/// No other chain gets the packets that are dropped by a bridge's chains, or by those of its packets' devices.
#[test]
fn packets_pass_the_devices_beneath_theirs() {
    let (eth0_in, eth0_out) = ("ingress device eth0", "egress device eth0");
    for (family, hook, rules, question, answer) in [
        ("bridge", "prerouting", "CONDITION drop", Question::Inbound, "dropped"),
        ("bridge", "input", "CONDITION drop", Question::Inbound, NOT_KNOWN),
        ("bridge", "input", "iifname br0 drop", Question::Inbound, PROXY),
        ("bridge", "forward", "policy drop", Question::Inbound, PROXY),
        ("bridge", "output", "tcp sport 80 drop", Question::Inbound, "dropped: the reply"),
        ("bridge", "output", "CONDITION drop", Question::OfProxy, "dropped"),
        ("bridge", "postrouting", "CONDITION drop", Question::OfProxy, "dropped"),
        ("bridge", "postrouting", "CONDITION drop", Question::Outbound, PROXY),
        ("bridge", "prerouting", "ether saddr 02:00:00:00:00:01 drop", Question::Inbound, NOT_KNOWN),
        ("netdev", eth0_in, "CONDITION drop", Question::Inbound, "dropped"),
        ("netdev", eth0_out, "CONDITION drop", Question::OfProxy, "dropped"),
        ("netdev", eth0_out, "tcp dport 81 drop", Question::OfProxy, "bypasses the proxy"),
        ("netdev", eth0_in, "iifname != eth0 drop", Question::Inbound, PROXY),
    ] {
        // nft asks there whether the device is an Ethernet device, too.
        let of_bridges = (family == "bridge").then_some("ether type ip tcp dport 80");
        for condition in ["tcp dport 80", "meta protocol ip tcp dport 80"].into_iter().chain(of_bridges) {
            let rules = rules.replace("CONDITION", condition);
            let table = format!("table {family} t {{ chain c {{ type filter hook {hook} priority 0; {rules}; }}; }}");
            is_so_with(&BRIDGE, &[&table], question, 0, answer);
            if family == "netdev" {
                is_so_with(&MACVLAN, &[&table], question, 0, answer);
            }
        }
    }
    // A setting decides if a bridge has the packet redirected before its own hook at input.
    let table = "table bridge t { chain c { type filter hook input priority 0; tcp dport PORT drop; }; }";
    for (setting, port, answer) in [(0, "80", "dropped"), (1, "81-90", NOT_KNOWN)] {
        let setting = format!("sysctl -qw net.bridge.bridge-nf-call-iptables={setting}");
        let set_up = ["sysctl -qw net.bridge.bridge-nf-call-ip6tables=0", &setting, &table.replace("PORT", port)];
        is_so_with(&BRIDGE, &set_up, Question::Inbound, 0, answer);
    }
    // Without a bridge, its chains see nothing.
    let table = "table bridge t { chain c { type filter hook prerouting priority 0; policy drop; }; }";
    is_so(&[table], Question::Inbound, 0, PROXY);
    is_so_with(&BRIDGE, &["ebtables -A INPUT -p IPv4 --ip-proto tcp -j DROP"], Question::Inbound, 0, NOT_KNOWN);
}

/// The kernel's settings decide about marks, sockets and tracking.
#[test]
fn settings_are_heeded() {
    let marked = "table ip t { chain a { type filter hook prerouting priority 0; meta mark set 7; }; chain b { type filter \
                  hook output priority 0; meta mark 7 drop; }; }";
    let of_socket = "table ip t { chain c { type filter hook input priority 0; tcp flags & (syn | ack) == ack meta skuid \
                     2102 drop; }; }";
    let untracked = "table ip t { chain c { type filter hook prerouting priority -300; tcp flags syn notrack; }; }";
    for (setting, table, answer) in [
        ("ipv4.tcp_fwmark_accept=0", marked, PROXY),
        ("ipv4.tcp_fwmark_accept=1", marked, "dropped: the reply"),
        ("ipv4.ip_early_demux=1", of_socket, "dropped: the ACK"),
        ("ipv4.ip_early_demux=0", of_socket, PROXY),
        ("ipv4.tcp_early_demux=0", of_socket, PROXY),
        ("ipv4.tcp_syncookies=2", of_socket, PROXY),
        ("netfilter.nf_conntrack_tcp_loose=1", untracked, "dropped: the ACK"),
        ("netfilter.nf_conntrack_tcp_loose=0", untracked, "bypasses the proxy"),
    ] {
        let set = format!("sysctl -qw net.{setting}");
        is_so(&[&set, table], Question::Inbound, 0, answer);
    }
}

/// A sender with another device's address is answered by that device.
#[test]
fn the_reply_may_come_by_the_device_that_has_the_address() {
    let lab = Lab::new();
    let outside = lab.outside.path();
    let link = format!("ip link add eth1 type veth peer name far1 netns {}", outside.display());
    lab.pod.sh(&link);
    lab.pod.all(["ip addr add 10.78.0.2/24 dev eth1", "ip link set eth1 up"]);
    lab.outside.all(["ip addr add 10.78.0.1/24 dev far1", "ip link set far1 up"]);
    let handshakes = Handshakes::new(&[&lab.pod, &lab.outside], &[80]);
    install(&lab.pod, &chart_in("nft"));
    lab.pod.sh("iptables-nft -A INPUT -i eth0 -j DROP");
    let proxy = Owner { uid: 2102, ..ROOT };
    for (from, answer, arrives) in
        [("10.77.0.2:40000", "dropped: the reply", false), ("10.78.0.2:40000", NOT_KNOWN, true)]
    {
        let line = format!("explain outbound --to 10.77.0.1:80 --from {from} --uid 2102 --output short");
        let said = Run::new(&line).output(&lab.pod).success();
        assert!(said.starts_with(answer), "{line}: {said}");
        let client = Client { owner: proxy, ..Client::new(from.parse().unwrap()) };
        let outcome = handshakes.connect(&lab.pod, &client, "10.77.0.1:80".parse().unwrap());
        let answered = matches!(outcome, Outcome::Answered { .. });
        assert_eq!(answered, arrives, "{line}: {said}{outcome:?}");
    }
}

/// The server's packets have a way of their own: by its address and port, and by its user.
#[test]
fn the_reply_is_routed_as_the_kernel_does() {
    let second = [
        "ip link add eth1 type veth peer name far1",
        "ip link set far1 up",
        "ip link set eth1 up",
        "ip route add 10.77.0.1/32 dev eth1",
        "ip neighbour add 10.77.0.1 lladdr 02:00:00:00:00:09 dev eth1",
        "table inet t { chain c { type filter hook output priority 0; oifname eth1 drop; }; }",
    ];
    is_so(&second, Question::Inbound, 0, "dropped: the reply");
    for (line, answer) in [
        ("ip route add blackhole 10.77.0.1/32", "dropped: the reply"),
        ("ip route add prohibit 10.77.0.1/32", "dropped: the reply"),
        ("ip route add unreachable 10.77.0.1/32", "dropped: the reply"),
        ("ip rule add uidrange 2102-2102 to 10.77.0.1 prohibit", "dropped: the reply"),
        ("ip rule add uidrange 1000-1000 to 10.77.0.1 prohibit", PROXY),
        ("ip rule add ipproto tcp sport 4143 blackhole", "dropped: the reply"),
        ("ip rule add ipproto tcp sport 80 blackhole", PROXY),
    ] {
        is_so(&[line], Question::Inbound, 0, answer);
    }
}

/// A server answers whoever it takes for the client.
#[test]
fn what_changes_sources_changes_who_is_answered() {
    let at_input = "table ip t { chain c { type nat hook input priority 100; snat to 192.0.2.99; }; }";
    let on_lo = "table ip t { chain c { type nat hook postrouting priority 100; oifname lo snat to TO; }; }";
    let [others, own] = ["192.0.2.99", "127.0.0.1"].map(|to| on_lo.replace("TO", to));
    is_so(&[at_input], Question::Inbound, 0, PROXY);
    is_so(&["ip route delete default", at_input], Question::Inbound, 0, NOT_KNOWN);
    is_so(&[&others], Question::Outbound, 0, NOT_KNOWN);
    is_so(&[&own], Question::Outbound, 0, PROXY);
}

#[test]
fn what_arrives_for_loopback_depends_on_a_setting() {
    let table =
        "table ip t { chain c { type nat hook prerouting priority -110; tcp dport 80 dnat to 127.0.0.1:4143; }; }";
    let set = |device: &str, to: u8| format!("sysctl -qw net.ipv4.conf.{device}.route_localnet={to}");
    is_so(&[table], Question::Inbound, 0, "dropped: a rule sends it to 127.0.0.1");
    for device in ["all", "eth0"] {
        let lab = Lab::new();
        install(&lab.pod, &chart_in("nft"));
        apply(&lab, &set(device, 1));
        apply(&lab, table);
        let said = Run::new(&format!("{} --output short", Question::Inbound.line(0))).output(&lab.pod).success();
        assert_eq!(said, "to the proxy, port 4143\n", "{device}");
        let handshakes = Handshakes::new(&[&lab.pod, &lab.outside], &[80, 4143]);
        let outcome = Question::Inbound.ask(&lab, &handshakes, 0);
        assert_eq!(Question::Inbound.is_true(said.trim_end(), outcome), Some(true), "{device}: {outcome:?}");
    }
}

/// `ip rule` may route by marks, which rules set: by which way that is, isn't followed.
#[test]
fn where_marks_are_routed_by_isnt_known() {
    let marking = |hook: &str, kind: &str| {
        format!("table inet t {{ chain c {{ type {kind} hook {hook} priority -150; meta mark set 7; }}; }}")
    };
    let by_mark = ["ip rule add fwmark 7 table 100", "ip route add blackhole default table 100"];
    let keeping = "sysctl -qw net.ipv4.tcp_fwmark_accept=1";
    for (setting, hook, kind, question, answer) in [
        (None, "output", "route", Question::OfProxy, NOT_KNOWN),
        (None, "output", "route", Question::Inbound, NOT_KNOWN),
        (None, "output", "route", Question::Outbound, NOT_KNOWN),
        (None, "prerouting", "filter", Question::Inbound, PROXY),
        (Some(keeping), "prerouting", "filter", Question::Inbound, NOT_KNOWN),
        (None, "postrouting", "filter", Question::OfProxy, "bypasses the proxy"),
    ] {
        let marks = marking(hook, kind);
        let set_up: Vec<&str> = by_mark.into_iter().chain(setting).chain([marks.as_str()]).collect();
        is_so(&set_up, question, 0, answer);
    }
    let after = marking("output", "route").replace("-150", "-90");
    is_so(&[by_mark[0], by_mark[1], &after], Question::Outbound, 0, PROXY);
    // Without such a rule, they decide nothing.
    is_so(&[&marking("output", "route")], Question::OfProxy, 0, "bypasses the proxy");
}

/// `ip rule` may have routes for some users, of whom nothing is said.
#[test]
fn users_have_routes_of_their_own() {
    for (range, answer) in [("1000-1999", "not known: it depends on the user"), ("2102-2102", PROXY)] {
        let lab = Lab::new();
        install(&lab.pod, &chart_in("nft"));
        lab.pod.sh(&format!("ip rule add uidrange {range} to 10.77.0.1 prohibit"));
        let said = Run::new("explain outbound --to 10.77.0.1:80 --output short").output(&lab.pod).success();
        assert!(said.starts_with(answer), "{range}: {said}");
        let of_one = Run::new("explain outbound --to 10.77.0.1:80 --uid 1500").output(&lab.pod);
        assert_eq!(of_one.code(), Some(i32::from(range == "1000-1999")), "{}", of_one.said());
    }
}

/// Tables that nothing here can read may drop neighbour discovery, and packets that a bridge passes.
#[test]
fn what_is_not_read_is_named() {
    // The kernel makes the table as it is asked for: `ARPT_SO_GET_INFO` for `struct arpt_getinfo`.
    let table = "import socket, ctypes\ns = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)\n\
                 info = ctypes.create_string_buffer(b'filter', 68)\n\
                 ctypes.CDLL(None).getsockopt(s.fileno(), 0, 96, info, ctypes.byref(ctypes.c_uint(68)))";
    let explain = Run::new(&format!("{} --output short", Question::Inbound.line(0)));
    let ebtables = |run: &Run| {
        let folder = "/sys/module/ebtable_filter";
        run.clone().after_mounting(&format!("mount -t tmpfs tmpfs /sys; mkdir -p {folder}; touch {folder}/initstate"))
    };
    for (network, run, arp, whose) in [
        (&[][..], explain.clone(), true, Some("arptables-legacy")),
        (&[], explain.clone(), false, None),
        (&[], ebtables(&explain), false, None),
        (&BRIDGE, ebtables(&explain), false, Some("ebtables-legacy")),
        (&BRIDGE, explain.clone(), false, None),
    ] {
        let lab = Lab::new();
        network.iter().for_each(|line| apply(&lab, line));
        install(&lab.pod, &chart_in("nft"));
        if arp {
            lab.pod.stdout("python3", ["-c", table]);
        }
        let said = run.output(&lab.pod).success();
        let named =
            whose.map(|whose| format!("not known: {whose}'s tables are not read; by all others it goes to the proxy"));
        assert!(said.starts_with(named.as_deref().unwrap_or(PROXY)), "{network:?}: {said}");
        if arp {
            let verified = unfolded(&Run::new("verify").output(&lab.pod).stdout());
            assert!(verified.contains("not known: what arptables-legacy's tables drop over IPv4"), "{verified}");
        }
    }
}

/// A redirected connection goes to the first address of its device, wherever else something listens.
#[test]
fn a_listener_on_another_address_is_none() {
    for (address, is_reached) in [("10.77.0.2", true), ("10.77.0.9", false)] {
        let lab = Lab::new();
        lab.pod.sh("ip address add 10.77.0.9/24 dev eth0");
        install(&lab.pod, &format!("{} --ipv6=false", chart_in("nft")));
        let listener = lab.pod.run_here(|| TcpListener::bind((address, 4143)).unwrap());
        let said = Run::new(&Question::Inbound.line(0)).output(&lab.pod).success();
        assert_eq!(!said.contains("nothing listens on port 4143"), is_reached, "{address}: {said}");
        let to = (POD[0], 80).into();
        let connected = lab.outside.run_here(|| TcpStream::connect_timeout(&to, Duration::from_secs(5)));
        assert_eq!(connected.is_ok(), is_reached, "{address}: {connected:?}");
        drop(listener);
    }
}
