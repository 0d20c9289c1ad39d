//! `explain` by examples: what it says, in which words, and where it has no answer.

use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use lab::handshake::{Client, Handshakes, Outcome};
use lab::network::{Lab, NEIGHBOUR, Namespace, Owner, POD, ROOT, Reached, Server, connect, families};
use lab::wait;
use serde_json::Value;

use crate::support::{Folder, Run, chart_in, feed, install, nft, unfolded};
use crate::verify::proxy::listen;

/// A pod with Linkerd's rules.
fn pod_with_chart(mode: &str) -> Lab {
    let lab = Lab::new();
    install(&lab.pod, &chart_in(mode));
    lab
}

/// The printed answer.
fn text(lab: &Lab, line: &str) -> String {
    install(&lab.pod, &format!("explain {line}"))
}

fn as_json(lab: &Lab, line: &str) -> Value {
    serde_json::from_str(&text(lab, &format!("{line} --output json"))).unwrap()
}

fn first_line(lab: &Lab, line: &str) -> String {
    text(lab, line).lines().next().unwrap().to_owned()
}

/// The port at which a connection of this client's arrives in the first of the namespaces that listen; none if it's lost.
#[track_caller]
fn arrives(handshakes: &Handshakes, namespace: &Namespace, client: &Client, to: SocketAddr) -> Option<u16> {
    match handshakes.connect(namespace, client, to) {
        Outcome::Answered { by: 0, at } => Some(at.port()),
        Outcome::Lost => None,
        outcome => panic!("{to}: {outcome:?}"),
    }
}

/// An inbound connection from the neighbour to the pod's port 80.
fn inbound(lab: &Lab, handshakes: &Handshakes, from_port: u16) -> Option<u16> {
    let client = Client::new(SocketAddr::new(NEIGHBOUR[0], from_port));
    arrives(handshakes, &lab.outside, &client, SocketAddr::new(POD[0], 80))
}

#[test]
fn json_has_the_documented_keys() {
    let lab = pod_with_chart("native");
    let json = as_json(&lab, "inbound --to [fd77::2]:4191");
    assert_eq!(json["schema"], 1);
    assert_eq!(json["verdict"], "bypass", "{json}");
    assert_eq!(json["answer"], "bypasses the proxy");
    assert_eq!((&json["port"], &json["mode"]), (&Value::Null, &"native".into()));
    assert_eq!(json["connection"], "inbound, from any address to [fd77::2]:4191, arriving on any interface except lo");
    let steps = json["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 2);
    let said = json["rule"].as_str().unwrap();
    assert!(said.contains("tcp dport") && said.contains("return"), "{said}");
    assert_eq!(
        steps[1],
        serde_json::json!({
            "packet": "first", "hook": "prerouting", "table": "inet proxy-init", "chain": "PROXY_INIT_REDIRECT", "depth": 1, "rule": said,
            "matched": true, "why": "bypasses the proxy",
        })
    );
    let json = as_json(&lab, "inbound --to 10.77.0.2:80");
    assert_eq!((&json["verdict"], &json["port"]), (&"proxy".into(), &4143.into()));
}

#[test]
fn the_answer_alone_is_one_line_and_the_deciding_rule_is_marked() {
    let lab = pod_with_chart("nft");
    for (line, answer) in [
        ("inbound --to 10.77.0.2:80", "to the proxy, port 4143\n"),
        ("inbound --to 10.77.0.2:4191", "bypasses the proxy\n"),
    ] {
        assert_eq!(text(&lab, &format!("{line} --output short")), answer);
        let told = text(&lab, line);
        let marked: Vec<&str> = told.lines().filter(|line| line.trim_start().starts_with("=> ")).collect();
        let [only] = marked.as_slice() else {
            panic!("{told}");
        };
        assert!(only.ends_with(&format!(": {}", answer.trim_end())), "{told}");
    }
    let refused = Run::new("verify --output short").output(&lab.pod);
    assert_eq!(refused.code(), Some(2));
    assert!(refused.stderr().contains("--output short is for check and explain"), "{refused:?}");
}

#[test]
fn dormant_tables_and_rules_in_two_modes_are_warned_of() {
    let lab = pod_with_chart("nft");
    let warnings = |line: &str| -> Value {
        let mut warnings = as_json(&lab, line)["warnings"].as_array().unwrap().clone();
        warnings.retain(|warning| !warning.as_str().unwrap().starts_with("nothing listens"));
        warnings.into()
    };
    lab.pod.all([
        "nft add table ip x { flags dormant ; }",
        "nft add chain ip x c { type filter hook input priority 0 ; policy drop ; }",
        "nft add table ip empty { flags dormant ; }",
    ]);
    assert_eq!(warnings("inbound --to [fd77::2]:80"), serde_json::json!([]));
    let of_others = "the table ip x is dormant: none of its chains is hooked";
    assert_eq!(warnings("inbound --to 10.77.0.2:80"), serde_json::json!([of_others]));
    lab.pod.sh("nft add table ip nat { flags dormant ; }");
    let told = text(&lab, "inbound --to 10.77.0.2:80");
    let own = "\nwarning: the table ip nat is dormant: none of its chains is hooked\n";
    assert!(told.starts_with("bypasses the proxy\n") && told.contains(own), "{told}");
    lab::linkerd::Flags::default().add_with_iptables(&lab.pod, "legacy");
    let told = text(&lab, "outbound --to [2001:db8::1]:80");
    let twice = "warning: proxy-init's rules are in several modes at once, nft and legacy:";
    assert!(told.contains(twice), "{told}");
}

/// Without --uid, --gid or --in, the answer names those to whom it doesn't apply.
#[test]
fn whom_the_rules_exempt_is_said_in_the_answer() {
    let skipping = "--skip-uid 1000,2000-2999 --skip-gid 0";
    for mode in ["nft", "native", "legacy"] {
        let lab = Lab::new();
        install(&lab.pod, &format!("{} {skipping}", chart_in(mode)));
        let except = ", except from user 1000,2000-2999 and from group 0";
        for (line, answer) in [
            ("--to 192.0.2.1:80", format!("to the proxy, port 4140{except}")),
            ("--to 192.0.2.1:80 --gid 7", "to the proxy, port 4140, except from user 1000,2000-2999".to_owned()),
            ("--to 192.0.2.1:80 --uid 7", "to the proxy, port 4140, except from group 0".to_owned()),
            ("--to 192.0.2.1:80 --uid 1000", "bypasses the proxy".to_owned()),
            // Every user gets this answer.
            ("--to 192.0.2.1:4567", "bypasses the proxy".to_owned()),
        ] {
            let line = format!("outbound {line}");
            assert_eq!(first_line(&lab, &line), answer, "{mode} {line}");
            assert_eq!(text(&lab, &format!("{line} --output short")), format!("{answer}\n"));
            assert_eq!(as_json(&lab, &line)["answer"], answer);
        }
        let _server = Server::start(&lab.pod, &[4140]);
        let _direct = Server::start(&lab.outside, &[80]);
        let to = "192.0.2.1:80".parse().unwrap();
        for (uid, gid, port) in [(7, 7, 4140), (1000, 7, 80), (7, 0, 80)] {
            let reached = connect(&lab.pod, Owner { uid, gid }, to);
            assert!(matches!(reached, Reached::Server { port: at, .. } if at == port), "{uid} {gid}: {reached:?}");
        }
        // A second interface, which isn't exempt, and then none such.
        install(&lab.pod, &format!("{} --inbound-interfaces-to-ignore eth0", chart_in(mode)));
        lab.pod.all(["ip link add net1 type veth peer name far", "ip link set net1 up", "ip link set far up"]);
        let line = "inbound --to 10.77.0.2:80";
        assert_eq!(first_line(&lab, line), "to the proxy, port 4143, except arriving on eth0", "{mode}");
        lab.pod.sh("ip link delete net1");
        assert_eq!(first_line(&lab, line), "bypasses the proxy", "{mode}");
    }
}

#[test]
fn routing_says_how_an_outbound_connection_leaves() {
    let lab = pod_with_chart("nft");
    lab.pod.sh("ip link add wg0 type veth peer name wg1");
    lab.pod.sh("ip link set wg0 up");
    for (line, connection) in [
        ("outbound --to 192.0.2.1:80", "from 10.77.0.2 to 192.0.2.1:80, leaving by eth0"),
        ("outbound --to 10.77.0.2:80", "from 10.77.0.2 to 10.77.0.2:80, leaving by lo"),
        ("outbound --to [fd77::2]:80", "from fd77::2 to [fd77::2]:80, leaving by lo"),
        ("outbound --to [2001:db8::1]:80", "from fd77::2 to [2001:db8::1]:80, leaving by eth0"),
        ("outbound --to 127.0.0.1:80 --from 127.0.0.9:7", "from 127.0.0.9:7 to 127.0.0.1:80, leaving by lo"),
        ("outbound --to [::ffff:192.0.2.1]:80", "from 10.77.0.2 to 192.0.2.1:80, leaving by eth0"),
        ("outbound --to 203.0.113.9:80 --out wg0", "from any address to 203.0.113.9:80, leaving by wg0"),
        ("outbound --to [::]:80", "from ::1 to [::1]:80, leaving by lo"),
        ("outbound --to 0.0.0.0:80", "from 127.0.0.1 to 127.0.0.1:80, leaving by lo"),
        ("outbound --to 0.0.0.0:80 --from 10.77.0.2", "from 10.77.0.2 to 10.77.0.2:80, leaving by lo"),
    ] {
        let said = text(&lab, line);
        assert!(unfolded(&said).contains(&format!("outbound, {connection}, from any user")), "{line}: {said}");
        let ends_here = connection.ends_with(" lo");
        assert_eq!(said.starts_with("bypasses the proxy\n"), ends_here, "{line}: {said}");
    }
    // By user, as `ip rule` can have it.
    lab.pod.all([
        "ip link add other type veth peer name far",
        "ip link set far up",
        "ip address add 10.78.0.1/24 dev other",
        "ip link set other up",
        "ip route add default dev other table 7",
        "ip rule add uidrange 1000-1000 table 7",
    ]);
    for (uid, connection) in [(1000, "from 10.78.0.1 to 192.0.2.1:80, leaving by other"), (999, "leaving by eth0")] {
        let said = text(&lab, &format!("outbound --to 192.0.2.1:80 --uid {uid}"));
        assert!(said.contains(connection), "{said}");
    }
    // By the source, which the first route has told: IPv4's connect() then asks again.
    lab.pod.sh("ip rule add from 10.77.0.2 table 7");
    let said = text(&lab, "outbound --to 192.0.2.1:80");
    assert!(said.contains("from 10.77.0.2 to 192.0.2.1:80, leaving by other"), "{said}");
    let routed = lab.pod.sh("ip route get 192.0.2.1 from 10.77.0.2");
    assert!(routed.contains("dev other"), "{routed}");
    lab.pod.sh("ip rule delete from 10.77.0.2");
    // A connection to the pod's own address never leaves by the device to which the socket is bound.
    for to in ["10.77.0.2:80", "[fd77::2]:80"] {
        assert_eq!(first_line(&lab, &format!("outbound --to {to} --out eth0")), "bypasses the proxy");
    }
    // The socket's device decides for every user, by whichever name it was given.
    lab.pod.sh("ip link property add dev eth0 altname second");
    for name in ["eth0", "second"] {
        let said = first_line(&lab, &format!("outbound --to 10.77.0.1:80 --out {name}"));
        assert_eq!(said, "dropped: it is redirected to this host, and its socket is bound to eth0", "{name}");
    }
}

/// Devices are listed once, at the beginning.
#[test]
fn of_a_device_that_is_made_meanwhile_routing_is_not_known() {
    let lab = pod_with_chart("nft");
    let folder = Folder::new("device-meanwhile");
    let trace = folder.join("trace");
    // The third question to routing is whether there is the device that was named.
    let listed = Run::new("explain outbound --to 192.0.2.1:80 --out eth0").calls(&lab.pod).0;
    let mut sockets = (1..).zip(listed.lines().filter(|call| call.contains(" socket(")));
    let named = sockets.by_ref().filter(|(_, call)| call.contains("NETLINK_ROUTE")).nth(2).unwrap().0;
    let explaining = Run::new("explain outbound --to 192.0.2.1:80 --out late0 --output short")
        .under(["strace", "--follow-forks", "--trace=socket"])
        .under([format!("--inject=socket:delay_enter=3000000:when={named}"), format!("--output={}", trace.display())])
        .spawn(&lab.pod, Stdio::piped());
    // Devices are listed before addresses are asked for.
    let is_listed = || fs::read_to_string(&trace).ok().filter(|calls| calls.matches("NETLINK_ROUTE").count() > 1);
    wait::until(Duration::from_secs(20), is_listed).expect("devices are listed");
    lab.pod.sh("ip link add late0 type veth peer name late1");
    let said = explaining.wait_with_output().unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    let want = "not known: the kernel's routing cannot be asked (a network device was made meanwhile: try again)";
    assert!(said.starts_with(want), "{said}");
}

/// A security module or a seccomp filter refuses the socket or the question, with an errno that would mean something
/// else as routing's answer.
#[test]
fn where_routing_cannot_be_asked_the_answer_is_not_known() {
    let lab = pod_with_chart("nft");
    for line in ["outbound --to 192.0.2.1:80", "inbound --to 10.77.0.2:80", "outbound --to 10.77.0.2:80"] {
        let explain = format!("explain {line} --output short");
        let sockets = |name: &str| {
            let trace = Run::new(&explain).calls(&lab.pod).0;
            let calls = trace.lines().filter(|call| call.contains(" socket("));
            let numbered: Vec<usize> =
                (1..).zip(calls).filter(|(_, call)| call.contains(name)).map(|(at, _)| at).collect();
            assert!(!numbered.is_empty(), "{trace}");
            numbered
        };
        // Not EINVAL: musl asks for the socket once more then, without SOCK_CLOEXEC.
        for (errno, nth) in ["EPERM", "EACCES", "ENETUNREACH"]
            .into_iter()
            .flat_map(|errno| sockets("NETLINK_ROUTE").into_iter().map(move |nth| (errno, nth)))
        {
            let said =
                Run::new(&explain).inject("socket", &format!("error={errno}:when={nth}")).output(&lab.pod).success();
            let want = format!("not known: the kernel's routing cannot be asked ({errno}");
            assert!(said.starts_with(&want), "{line} {errno} {nth}: {said}");
        }
    }
    for errno in ["EACCES", "EINVAL"] {
        let verify = Run::new("verify").failing("socket", errno);
        assert_eq!(verify.output(&lab.pod).code(), Some(1), "{errno}");
    }
    let said = Run::new("verify").inject("socket", "error=EPERM:when=3+").output(&lab.pod).success();
    assert!(
        unfolded(&said).contains("not known: whether neighbours find each other over IPv4 (rtnetlink: EPERM"),
        "{said}"
    );
}

/// A list of addresses that changes while the kernel makes it is asked for again.
#[test]
fn addresses_that_come_and_go_meanwhile_are_no_trouble() {
    let lab = pod_with_chart("nft");
    let mut many = String::new();
    for number in 0..1500 {
        many += &format!("address add 10.9.{}.{}/32 dev lo\n", number / 250, number % 250);
    }
    feed(&lab.pod, "ip -batch -", &many).success();
    let changing =
        "for i in $(seq 20000); do ip address add 10.8.0.1/32 dev lo; ip address del 10.8.0.1/32 dev lo; done";
    let mut child = lab.pod.run(|| Command::new("sh").args(["-c", changing]).spawn()).unwrap();
    let line = "explain inbound --to 10.77.0.2:80 --output short";
    for _ in 0..60 {
        assert_eq!(install(&lab.pod, line), "to the proxy, port 4143\n");
    }
    assert!(child.try_wait().unwrap().is_none(), "nothing changed any more");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn routing_is_asked_by_protocol_and_ports() {
    let lab = pod_with_chart("nft");
    for (ip, to, from) in [("ip", "192.0.2.1", "10.77.0.2"), ("ip -6", "[2001:db8::1]", "[fd77::2]")] {
        for rule in ["ipproto tcp dport 80", "ipproto tcp sport 7", "ipproto udp dport 81"] {
            lab.pod.sh(&format!("{ip} rule add {rule} prohibit"));
        }
        for (line, code) in [
            (format!("outbound --to {to}:80"), 1),
            (format!("outbound --to {to}:81"), 0),
            (format!("outbound --to {to}:81 --from {from}:7"), 1),
            (format!("outbound --to {to}:81 --from {from}:8"), 0),
        ] {
            let finished = Run::new(&format!("explain {line}")).output(&lab.pod);
            assert_eq!(finished.code(), Some(code), "{line}: {}", finished.said());
        }
        let refused =
            lab.pod.run(|| TcpStream::connect(format!("{to}:80").parse::<SocketAddr>().unwrap())).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    }
}

#[test]
fn a_connection_that_cannot_be_made_is_an_error() {
    let lab = pod_with_chart("nft");
    lab.pod.all([
        "ip route add unreachable 203.0.113.0/24",
        "ip route add prohibit 198.51.100.0/24",
        "ip -6 route del default",
        "ip link add idle type veth peer name far",
    ]);
    for (line, words) in [
        (
            "outbound --to 203.0.113.1:80",
            "no connection can be made to 203.0.113.1: routing refuses it (EHOSTUNREACH: ",
        ),
        ("outbound --to 198.51.100.1:80", "(EACCES: "),
        ("outbound --to [2001:db8::1]:80", "(ENETUNREACH: "),
        ("outbound --to 192.0.2.1:80 --from 10.9.9.9", "can be made to 192.0.2.1 from 10.9.9.9: "),
        ("outbound --to 255.255.255.255:80", "no TCP connection can be made to 255.255.255.255: it is a broadcast"),
        ("outbound --to 10.77.0.255:80", "it is a broadcast, multicast or anycast address"),
        ("outbound --to 224.0.0.1:80", "it is a broadcast"),
        ("outbound --to [ff02::1]:80", "it is a broadcast"),
        ("outbound --to [fe80::7]:80", "name the device by which it is reached"),
        ("outbound --to 224.0.0.1:80 --out eth0", "it is a broadcast"),
        ("inbound --to 224.0.0.1:80", "it is a broadcast"),
        ("inbound --to 10.77.0.255:80", "it is a broadcast"),
        ("inbound --to [::1]:80", "use `explain outbound`"),
        ("inbound --to 10.77.0.2:80 --from 127.0.0.1", "on another device than lo"),
        ("inbound --to 10.77.0.2:80 --from 0.0.0.1", "on another device than lo"),
        ("inbound --to 10.77.0.2:80 --from 224.0.0.1", "on another device than lo"),
        ("inbound --to 10.77.0.2:80 --from 10.77.0.2", "on another device than lo"),
        ("inbound --to 10.77.0.2:80 --from 10.77.0.255", "on another device than lo"),
        ("inbound --to [fd77::2]:80 --from ::1", "on another device than lo"),
        (
            "inbound --to 10.77.0.2:80 --in eth1",
            "this network namespace has no network device eth1: name another one, or none",
        ),
        ("outbound --to 10.77.0.1:80 --out wg0", "has no network device wg0: name another one, or none"),
        // A socket that is bound to a device leaves by that one or not at all.
        ("outbound --to [fd77::1]:80 --out lo", "(ENETUNREACH: "),
        ("outbound --to 10.77.0.1:80 --out idle", "(ENETUNREACH: "),
        ("inbound --to 10.77.0.2:80 --netns /nonexistent", "cannot enter the network namespace"),
    ] {
        let finished = Run::new(&format!("explain {line}")).output(&lab.pod);
        assert_eq!(finished.code(), Some(1), "{line}: {}", finished.said());
        assert!(finished.stderr().contains(words), "{line}: {}", finished.said());
        // The kernel says the same.
        if let Some(to) = line.strip_prefix("outbound --to ").filter(|line| !line.contains(" --")) {
            let connected = lab.pod.run(|| TcpStream::connect(to.parse::<SocketAddr>().unwrap()));
            assert!(connected.is_err(), "{line}");
        }
    }
}

/// A connection that the rules redirect gets there only if there is such a place.
#[test]
fn a_redirection_to_nowhere_is_a_loss() {
    // The defect, the answer, and the answer for a connection that goes over lo without being redirected.
    let breaks = [
        ("ip link set lo down", "and lo is down", Some("dropped: lo is down")),
        ("ip address flush dev lo", "to which this network namespace has no local route", None),
    ];
    let client = |from: IpAddr, port| Client {
        owner: Owner { uid: 1000, gid: 1000 },
        ..Client::new(SocketAddr::new(from, port))
    };
    for (broken, words, own) in breaks {
        let lab = pod_with_chart("nft");
        let handshakes = Handshakes::new(&[&lab.pod], &[4140]);
        let connections = [
            ("192.0.2.1:80", POD[0], "it is redirected to 127.0.0.1"),
            ("[2001:db8::1]:80", POD[1], "it is redirected to ::1"),
        ];
        let connect = |to: &str, from, port| arrives(&handshakes, &lab.pod, &client(from, port), to.parse().unwrap());
        for (to, from, _) in connections.into_iter().take(families()) {
            assert_eq!(first_line(&lab, &format!("outbound --to {to}")), "to the proxy, port 4140");
            assert_eq!(connect(to, from, 20_001), Some(4140));
        }
        lab.pod.sh(broken);
        nft(&lab.pod, "table inet x { chain c { type filter hook prerouting priority 0; tcp dport 1 drop; }; }");
        for (to, from, redirected) in connections.into_iter().take(families()) {
            let said = first_line(&lab, &format!("outbound --to {to}"));
            assert_eq!(said, format!("dropped: {redirected}, {words}"));
            // Nor does it come in again.
            assert!(!text(&lab, &format!("outbound --to {to}")).contains("\nprerouting\n"));
            assert_eq!(connect(to, from, 20_002), None, "{broken}");
        }
        if let Some(own) = own {
            assert_eq!(connect("10.77.0.2:4140", POD[0], 20_003), None);
            assert_eq!(first_line(&lab, "outbound --to 10.77.0.2:4140"), own);
        }
    }

    let lab = pod_with_chart("nft");
    let handshakes = Handshakes::new(&[&lab.pod], &[4143]);
    // Finding the neighbour takes its time.
    assert_eq!(lab::network::connect(&lab.outside, ROOT, "10.77.0.2:4190".parse().unwrap()), Reached::Refused);
    assert_eq!(inbound(&lab, &handshakes, 20_001), Some(4143));
    // The address moves to lo, and eth0 keeps none.
    lab.pod.all([
        "ip address flush dev eth0 scope global",
        "ip -4 address add 10.77.0.2/32 dev lo",
        "ip route add 10.77.0.1 dev eth0",
    ]);
    assert_eq!(inbound(&lab, &handshakes, 20_002), None);
    assert_eq!(
        first_line(&lab, "inbound --to 10.77.0.2:80"),
        "dropped: it is redirected to an IPv4 address of the device by which it comes in, and no device but lo has one"
    );
    assert_eq!(
        first_line(&lab, "inbound --to 10.77.0.2:80 --in eth0"),
        "dropped: it is redirected to an IPv4 address of eth0, which has none"
    );
}

/// A map's destination is followed as a rule's is: to a port of this host, which a socket that is bound to a device
/// doesn't reach, and which may be the proxy's.
#[test]
fn a_port_of_a_map_is_a_port_of_this_host() {
    let lab = pod_with_chart("nft");
    nft(
        &lab.pod,
        "table inet x { chain c { type nat hook output priority -150; meta l4proto tcp redirect to :tcp dport map { 80 : 9999, 443 : 4140 }; }; }",
    );
    let handshakes = Handshakes::new(&[&lab.pod, &lab.outside], &[9999, 4140, 80, 443, 81]);
    for (neighbour, pod) in NEIGHBOUR.into_iter().zip(POD).take(families()) {
        for (from_port, (port, device, answer)) in (20_000..).zip([
            (80, None, "goes elsewhere: redirected to port 9999 of this host"),
            // Whoever sends it, the proxy too.
            (443, None, "to the proxy, port 4140; then from the proxy: back to the proxy, port 4140, again and again"),
            (81, None, "to the proxy, port 4140"),
            (80, Some("eth0"), "dropped: it is redirected to this host, and its socket is bound to eth0"),
        ]) {
            let (from, to) = (SocketAddr::new(pod, from_port), SocketAddr::new(neighbour, port));
            let out = device.map_or(String::new(), |device| format!(" --out {device}"));
            let said = first_line(&lab, &format!("outbound --to {to} --from {from} --uid 1000 --gid 1000{out}"));
            assert_eq!(said, answer, "{to}{out}");
            let client = Client { owner: Owner { uid: 1000, gid: 1000 }, from, device: device.map(ToOwned::to_owned) };
            let arrived = arrives(&handshakes, &lab.pod, &client, to);
            let port = answer.split([' ', ';']).find_map(|word| word.parse().ok());
            assert_eq!(arrived, port.filter(|_| !said.starts_with("dropped")), "{to}{out}");
        }
    }
}

/// A translation to the proxy's own port leads to the proxy.
#[test]
fn a_translation_to_the_proxys_port_leads_to_the_proxy() {
    let lab = pod_with_chart("nft");
    let mut rules = "table ip x {
        chain out { type nat hook output priority -150; tcp dport 80 dnat to 127.0.0.1:4140; tcp dport 81 dnat to 10.77.0.2:9999; }
        chain in { type nat hook prerouting priority -150; tcp dport 80 dnat to 10.77.0.2:4143; tcp dport 82 dnat to 127.0.0.1:4143; }
    }
    "
    .to_owned();
    if families() > 1 {
        rules += "table ip6 x {
            chain out { type nat hook output priority -150; tcp dport 80 dnat to [::1]:4140; tcp dport 81 dnat to [fd77::2]:9999; }
            chain in { type nat hook prerouting priority -150; tcp dport 80 dnat to [fd77::2]:4143; tcp dport 82 dnat to [::1]:4143; }
        }";
    }
    nft(&lab.pod, &rules);
    let handshakes = Handshakes::new(&[&lab.pod, &lab.outside], &[9999, 4140, 4143, 80, 81, 82]);
    for (neighbour, pod) in NEIGHBOUR.into_iter().zip(POD).take(families()) {
        for (from_port, (is_inbound, port, answer, arrived)) in (20_000..).zip([
            (false, 80, "to the proxy, port 4140", Some(4140)),
            (false, 81, "goes elsewhere: dnat to ", Some(9999)),
            (true, 80, "to the proxy, port 4143", Some(4143)),
            (
                true,
                82,
                if pod.is_ipv4() { "dropped: a rule sends it to 127.0.0.1" } else { "dropped: a rule sends it to ::1" },
                None,
            ),
        ]) {
            let (namespace, from, to) =
                if is_inbound { (&lab.outside, neighbour, pod) } else { (&lab.pod, pod, neighbour) };
            let (from, to) = (SocketAddr::new(from, from_port), SocketAddr::new(to, port));
            let line = if is_inbound { "inbound" } else { "outbound --uid 1000 --gid 1000" };
            let said = first_line(&lab, &format!("{line} --to {to} --from {from}"));
            assert!(said.starts_with(answer), "{to}: {said}");
            let client =
                Client { owner: if is_inbound { ROOT } else { Owner { uid: 1000, gid: 1000 } }, ..Client::new(from) };
            assert_eq!(arrives(&handshakes, namespace, &client, to), arrived, "{to}: {said}");
        }
    }
}

/// Another program's rule sends a connection to an address that routing refuses: of everybody, or of a socket that is
/// bound to another device, which IPv6 keeps to.
#[test]
fn what_a_rule_sends_where_no_route_leads_is_lost() {
    let lab = Lab::new();
    lab.pod.all([
        "ip link add eth1 type veth peer name far",
        "ip link set far up",
        "ip address add 10.78.0.2/24 dev eth1",
        "ip link set eth1 up",
        "ip route del default",
    ]);
    let mut rules = "table ip nat {
        chain output { type nat hook output priority -100; tcp dport 81 dnat to 10.77.0.1:9999
          tcp dport 82 dnat to 203.0.113.1:9999; }
    }
    "
    .to_owned();
    let mut cases = vec![
        ("10.77.0.1:80", "bypasses the proxy", Some(80)),
        ("10.77.0.1:81", "goes elsewhere", Some(9999)),
        ("10.77.0.1:82", "dropped: routing has no way", None),
    ];
    if families() > 1 {
        lab.pod.sh("ip -6 address add fd78::2/64 dev eth1 nodad");
        lab.pod.sh("ip -6 route del default");
        rules += "table ip6 nat {
            chain output { type nat hook output priority -100; tcp dport 81 dnat to [fd77::1]:9999
              tcp dport 82 dnat to [2001:db8::7]:9999; }
        }
        ";
        cases.extend([
            ("[fd77::1]:81", "goes elsewhere", Some(9999)),
            ("[fd77::1]:82", "dropped: routing has no way", None),
            ("[fd78::1]:81 --out eth1", "dropped: routing has no way", None),
            ("[fd78::1]:81 --from fd78::2 --out eth1", "dropped: routing has no way", None),
            ("[fd77::1]:81 --out eth0", "goes elsewhere", Some(9999)),
        ]);
    }
    nft(&lab.pod, &rules);
    let handshakes = Handshakes::new(&[&lab.outside], &[80, 9999]);
    for address in NEIGHBOUR.into_iter().take(families()) {
        // Finding the neighbour takes its time.
        let reached = lab::network::connect(&lab.pod, ROOT, SocketAddr::new(address, 70));
        assert_eq!(reached, Reached::Refused, "{address}");
    }
    for (port, (line, said, reached)) in (20_000..).zip(cases) {
        let mut words = line.split(' ');
        let to: SocketAddr = words.next().unwrap().parse().unwrap();
        let device = line.split_once("--out ").map(|(_, device)| device.to_owned());
        let from: IpAddr = match (to, device.as_deref()) {
            (SocketAddr::V4(_), _) => POD[0],
            (_, Some("eth1")) => "fd78::2".parse().unwrap(),
            _ => POD[1],
        };
        let client = Client { device, ..Client::new(SocketAddr::new(from, port)) };
        let answer = first_line(&lab, &format!("outbound --to {line}"));
        assert!(answer.starts_with(said), "{line}: {answer}");
        assert_eq!(arrives(&handshakes, &lab.pod, &client, to), reached, "{line}");
    }
}

/// Redirection comes before routing, so the original destination need not be one of the pod's addresses.
#[test]
fn what_comes_in_for_another_address_is_followed_until_it_is_routed() {
    let lab = pod_with_chart("nft");
    let handshakes = Handshakes::new(&[&lab.pod], &[4143, 4190]);
    lab.outside.sh("ip route add 203.0.113.1 via 10.77.0.2");
    let connect = |to: IpAddr, port| {
        let client = Client::new(SocketAddr::new(NEIGHBOUR[0], 20_001));
        arrives(&handshakes, &lab.outside, &client, SocketAddr::new(to, port))
    };
    // Finding the neighbour takes its time.
    assert_eq!(lab::network::connect(&lab.outside, ROOT, SocketAddr::new(POD[0], 4567)), Reached::Refused);
    let another = [203, 0, 113, 1].into();
    assert_eq!(connect(another, 80), Some(4143));
    assert_eq!(connect(another, 4190), None);
    let elsewhere = "goes elsewhere: no rule redirects it, and this network namespace, which does not have 203.0.113.1, can \
                     only forward it";
    let explained = |port| first_line(&lab, &format!("inbound --to 203.0.113.1:{port}"));
    assert_eq!(
        explained(80),
        "to the proxy, port 4143, if other hosts send it here: this network namespace does not have 203.0.113.1"
    );
    // A device is named by which it may come.
    assert_eq!(first_line(&lab, "inbound --to 203.0.113.1:80 --in eth0"), "to the proxy, port 4143");
    assert_eq!(explained(4190), elsewhere);
    assert_eq!(Run::new("explain inbound --to 203.0.113.1:4190 --expect bypass").output(&lab.pod).code(), Some(3));
    let localnet = first_line(&lab, "inbound --to 127.0.0.9:4190 --in eth0");
    assert!(localnet.starts_with("dropped: ") && localnet.contains("127.0.0.9"), "{localnet}");
    assert_eq!(first_line(&lab, "inbound --to 127.0.0.9:80"), "to the proxy, port 4143");
    // Forwarded packets don't meet the rules for this namespace's own packets; redirected packets do.
    nft(&lab.pod, "table inet x { chain c { type filter hook input priority 0; tcp dport { 4143, 4190 } drop; }; }");
    assert_eq!(explained(80), "dropped");
    let said = text(&lab, "inbound --to 203.0.113.1:4190");
    assert!(said.starts_with(elsewhere) && !said.contains("\ninput\n"), "{said}");
}

#[test]
fn an_invalid_command_line_is_explained() {
    let namespace = Namespace::new();
    for (line, words) in [
        ("", "explain needs a direction, inbound or outbound"),
        ("sideways --to 10.0.0.1:80", "is invalid: use inbound, outbound"),
        ("inbound", "--to is required"),
        ("inbound --to 10.0.0.1", "is not an IP address with a port"),
        ("inbound --to fd00::1:80", "is not an IP address with a port"),
        (
            "inbound --to [fe80::1%eth0]:80",
            "has a scope id: leave out the % and what follows it, and name the device with --in or --out",
        ),
        ("outbound --to [fe80::1%2]:80", "has a scope id"),
        ("inbound --to [fd00::1]:80 --from fe80::1%eth0", "has a scope id"),
        ("inbound --to 10.0.0.1:80 --from nobody", "is not an IP address, with or without a port"),
        ("inbound --to 10.0.0.1:80 --from fd00::1", "must be both IPv4 or both IPv6"),
        ("inbound --to 10.0.0.1:80 --out eth0", "--out is for outbound connections: use --in"),
        ("outbound --to 10.0.0.1:80 --in eth0", "--in is for inbound connections: use --out"),
        ("inbound --to 10.0.0.1:80 --uid 7", "--uid and --gid are for outbound connections"),
        ("inbound --to 10.0.0.1:80 --in lo", "use proxy-init explain outbound"),
        ("inbound --to 10.0.0.1:80 --in a/b", "is not the name of a network device"),
        ("outbound --to 10.0.0.1:80 --uid -1", "--uid"),
        ("outbound --to 10.0.0.1:80 --expect nothing", "must be one of proxy, bypass, not"),
    ] {
        let finished = Run::new(&format!("explain {line}")).output(&namespace);
        assert_eq!(finished.code(), Some(2), "{line}: {}", finished.said());
        assert!(finished.stderr().contains(words), "{line}: {}", finished.said());
    }
}

#[test]
fn another_answer_than_the_expected_one_is_exit_code_3() {
    let lab = pod_with_chart("nft");
    let _proxy = listen(&lab.pod, 2102, &["127.0.0.1:4140"]);
    for (line, code) in [
        ("outbound --to 192.0.2.1:80 --expect proxy", 0),
        ("outbound --to 192.0.2.1:80 --expect bypass", 3),
        ("outbound --to 192.0.2.1:4567 --expect bypass --output json", 0),
        ("outbound --to 192.0.2.1:4567 --expect proxy --output json", 3),
        ("outbound --to 192.0.2.1:80 --uid 2102 --expect bypass", 0),
    ] {
        let finished = Run::new(&format!("explain {line}")).output(&lab.pod);
        assert_eq!(finished.code(), Some(code), "{line}: {}", finished.said());
        assert!(!finished.stdout().is_empty() && finished.stderr().is_empty());
    }
    nft(&lab.pod, "table inet x { chain c { type filter hook output priority 0; numgen inc mod 2 0 drop; }; }");
    assert!(first_line(&lab, "outbound --to 192.0.2.1:80").starts_with("not known: it depends on `[numgen]"));
    for expected in ["proxy", "bypass"] {
        let line = format!("explain outbound --to 192.0.2.1:80 --expect {expected}");
        assert_eq!(Run::new(&line).output(&lab.pod).code(), Some(3));
    }
}

/// As iptables-save prints it, so that whoever reads it can take it away.
#[test]
fn what_a_rule_does_is_quoted_so_that_iptables_can_delete_it() {
    const REJECTIONS: [&[&str]; 2] = [
        &[
            "net-unreachable",
            "host-unreachable",
            "proto-unreachable",
            "net-prohibited",
            "host-prohibited",
            "admin-prohibited",
        ],
        &["no-route", "adm-prohibited", "addr-unreachable", "policy-fail", "reject-route"],
    ];
    // The first address stands for itself, and both for a range.
    const TRANSLATIONS: [&str; 9] = [
        "OUTPUT -p tcp -j DNAT --to-destination ONE",
        "OUTPUT -p tcp -j DNAT --to-destination [ONE]:81 --random",
        "OUTPUT -p tcp -j DNAT --to-destination [ONE-TWO]:80-90 --persistent",
        "OUTPUT -p tcp -j DNAT --to-destination :80-90",
        "POSTROUTING -p tcp -j SNAT --to-source ONE",
        "POSTROUTING -p tcp -j SNAT --to-source [ONE-TWO]:1024-1034 --random-fully",
        "POSTROUTING -p tcp -j SNAT --to-source ONE-TWO --random",
        "POSTROUTING -p tcp -j MASQUERADE",
        "POSTROUTING -p tcp -j MASQUERADE --to-ports 1024-1034 --random",
    ];
    let mut rules = Vec::new();
    for (program, icmp, to, [one, two], rejections) in [
        ("iptables", "icmp", "192.0.2.1:80", ["198.51.100.1", "198.51.100.9"], REJECTIONS[0]),
        ("ip6tables", "icmp6", "[2001:db8::7]:80", ["2001:db8::1", "2001:db8::9"], REJECTIONS[1]),
    ] {
        rules.extend(
            ["", " --reject-with tcp-reset"]
                .map(|with| (program, to, "filter", format!("OUTPUT -p tcp -j REJECT{with}"))),
        );
        let of_icmp = rejections.iter().map(|what| format!("OUTPUT -j REJECT --reject-with {icmp}-{what}"));
        rules.extend(of_icmp.map(|rule| (program, to, "filter", rule)));
        // Only an address of IPv6 needs brackets before a port.
        let brackets = if program == "iptables" { ["", ""] } else { ["[", "]"] };
        let translations = TRANSLATIONS.map(|rule| {
            rule.replace('[', brackets[0]).replace(']', brackets[1]).replace("ONE", one).replace("TWO", two)
        });
        rules.extend(translations.map(|rule| (program, to, "nat", rule)));
    }
    let lab = Lab::new();
    for (program, to, table, rule) in rules {
        for mode in ["nft", "legacy"] {
            lab.pod.sh(&format!("{program}-{mode} -t {table} -A {rule}"));
            let json = as_json(&lab, &format!("outbound --to {to}"));
            let steps = json["steps"].as_array().unwrap().iter();
            let quoted: Vec<&str> = steps.filter_map(|step| step["rule"].as_str()).collect();
            let [first, ..] = quoted.as_slice() else {
                panic!("{mode} {rule}: {json}");
            };
            let deleted = first.strip_prefix("-A ").unwrap();
            lab.pod.sh(&format!("{program}-{mode} -t {table} -D {deleted}"));
        }
    }
}

/// Beside each rule, an inbound connection from each of two hosts: what explain says, and whether it arrives.
#[test]
fn what_routing_says_of_addresses_is_known() {
    let nft = |chain: &str, rule: &str| format!("nft add rule inet f {chain} {rule}");
    for (rule, near, far) in [
        ("iptables-nft -A INPUT -m addrtype ! --dst-type LOCAL -j DROP".to_owned(), true, true),
        ("iptables-nft -A INPUT -m addrtype --dst-type LOCAL -j DROP".to_owned(), false, false),
        ("iptables-legacy -A INPUT -m addrtype --src-type UNICAST --dst-type LOCAL -j DROP".to_owned(), false, false),
        ("iptables-legacy -t raw -A PREROUTING -m addrtype --src-type LOCAL,BROADCAST -j DROP".to_owned(), true, true),
        ("iptables-nft -t raw -A PREROUTING -m rpfilter --invert -j DROP".to_owned(), true, false),
        ("iptables-legacy -t raw -A PREROUTING -m rpfilter --loose --invert -j DROP".to_owned(), true, true),
        ("iptables-legacy -A INPUT -m iprange --src-range 203.0.113.1-203.0.113.9 -j DROP".to_owned(), true, false),
        ("iptables-nft -A INPUT -m iprange ! --src-range 203.0.113.1-203.0.113.9 -j DROP".to_owned(), false, true),
        (nft("in", "fib daddr type local drop"), false, false),
        (nft("in", "fib daddr type != { local, broadcast } drop"), true, true),
        (nft("pre", "fib saddr type local drop"), true, true),
        (nft("in", "fib daddr . iif type local drop"), false, false),
        (nft("in", "fib daddr . iif type != { local, broadcast, multicast } drop"), true, true),
        (nft("in", "fib daddr . iif type . tcp dport { local . 4143 } drop"), false, false),
        // An address of another device is no address of this one.
        (nft("pre", "fib daddr . iif type unicast drop"), true, true),
        (nft("pre", "fib saddr . iif type unicast drop"), false, false),
        ("iptables-nft -A INPUT -m addrtype --dst-type LOCAL --limit-iface-in -j DROP".to_owned(), false, false),
        ("iptables-legacy -A INPUT -m addrtype ! --dst-type LOCAL --limit-iface-in -j DROP".to_owned(), true, true),
        (
            "iptables-nft -A OUTPUT -m addrtype --src-type LOCAL --limit-iface-out -p tcp --dport 9 -j DROP".to_owned(),
            true,
            true,
        ),
        (nft("pre", "fib saddr . iif oif missing drop"), true, false),
        (nft("pre", "fib saddr oif missing drop"), true, true),
        (nft("pre", "fib saddr . iif oif exists drop"), false, true),
    ] {
        let lab = pod_with_chart("native");
        // The route back to the far host leaves by another interface.
        lab.pod.all([
            "ip link add other type veth peer name end",
            "ip link set other up",
            "ip link set end up",
            "ip route add 203.0.113.0/24 dev other",
            "nft add table inet f",
            "nft add chain inet f in { type filter hook input priority 0; }",
            "nft add chain inet f late { type filter hook input priority 200; }",
            "nft add chain inet f pre { type filter hook prerouting priority -300; }",
        ]);
        lab.pod.sh("sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0");
        lab.outside.sh("ip address add 203.0.113.7/32 dev lo");
        lab.pod.sh(&rule);
        let handshakes = Handshakes::new(&[&lab.pod], &[4143]);
        for (from, passes) in [("10.77.0.1", near), ("203.0.113.7", far)] {
            let said = first_line(&lab, &format!("inbound --to 10.77.0.2:80 --from {from} --in eth0"));
            let is_dropped = said == "dropped";
            assert!(!said.starts_with("not known") && is_dropped != passes, "{rule} {from}: {said}");
            lab.pod.sh("nft flush chain inet f late");
            lab.pod.sh(&format!("nft add rule inet f late ip saddr {from} tcp dport 4143 counter"));
            let client = Client::new(SocketAddr::new(from.parse().unwrap(), 20_001));
            handshakes.connect(&lab.outside, &client, "10.77.0.2:80".parse().unwrap());
            let arrives = !lab.pod.sh("nft list chain inet f late").contains("packets 0 ");
            assert_eq!(arrives, passes, "{rule} {from}");
        }
    }
}

/// The reply goes where `ip rule` sends it by the address to which the connection came, and by whoever listens on that.
#[test]
fn a_reply_is_routed_by_its_source_and_by_the_user_who_listens() {
    let lab = pod_with_chart("nft");
    lab.pod.all([
        "ip address add 10.77.0.3/24 dev eth0",
        "ip address add 10.77.0.4/24 dev eth0",
        "ip rule add uidrange 1003-1003 blackhole",
    ]);
    let listeners = [(1003, "10.77.0.3:4191"), (1004, "10.77.0.4:4191")];
    let _listeners = listeners.map(|(uid, address)| listen(&lab.pod, uid, &[address]));
    let expect = |to: &str, want: &str| {
        assert_eq!(first_line(&lab, &format!("inbound --to {to} --from 10.77.0.1 --in eth0")), want);
        let client = || TcpStream::connect_timeout(&to.parse().unwrap(), Duration::from_millis(500));
        let is_lost = lab.outside.run(client).is_err_and(|error| error.kind() == ErrorKind::TimedOut);
        assert_eq!(is_lost, want.starts_with("dropped"), "{to}");
    };
    let lost =
        "dropped: the reply, which the kernel does not route from 10.77.0.3 to 10.77.0.1 (EINVAL: Invalid argument)";
    expect("10.77.0.3:4191", lost);
    expect("10.77.0.4:4191", "bypasses the proxy");
    // A filter by the way back asks about that source, too.
    lab.pod.sh("ip rule add from 10.77.0.4 blackhole");
    lab.pod.sh("iptables-nft -t raw -A PREROUTING -m rpfilter --invert -j DROP");
    expect("10.77.0.2:80", "to the proxy, port 4143");
    expect("10.77.0.4:80", "dropped");
}

/// The answer is the one below the limit, with that condition.
#[test]
fn limits_are_conditions_of_the_answer() {
    for (rules, mode, limit) in [
        (
            &["-A INPUT -p tcp -m limit --limit 25/min -j ACCEPT", "-A INPUT -p tcp -j DROP"][..],
            "legacy",
            Some("-m limit --limit 25/min --limit-burst 5"),
        ),
        (&["-A INPUT -p tcp -m limit --limit 25/min -j ACCEPT", "-A INPUT -p tcp -j DROP"], "nft", Some("limit")),
        (&["-A INPUT -p tcp -m connlimit --connlimit-above 1000 -j REJECT"], "nft", Some("--connlimit-above 1000")),
        (
            &["-A INPUT -p tcp -m connlimit --connlimit-upto 1000 -j ACCEPT", "-A INPUT -j DROP"],
            "legacy",
            Some("--connlimit-upto 1000"),
        ),
        (
            &["-A INPUT -p tcp -m hashlimit --hashlimit-above 9/sec --hashlimit-name x -j DROP"],
            "nft",
            Some("-m hashlimit"),
        ),
        (
            &[
                "-A INPUT -p tcp -m hashlimit --hashlimit-above 9/sec --hashlimit-rate-match --hashlimit-rate-interval 1 \
                 --hashlimit-name y -j DROP",
            ],
            "nft",
            Some("-m hashlimit"),
        ),
        (
            &[
                "-A INPUT -m recent --name x --set",
                "-A INPUT -m recent --name x --update --seconds 9 --hitcount 9 -j DROP",
            ],
            "legacy",
            Some("-m recent"),
        ),
        (&["-A INPUT -m quota --quota 1000000 -j ACCEPT", "-A INPUT -j DROP"], "legacy", Some("-m quota")),
        // The outcome is the same either way.
        (&["-A INPUT -p tcp -m limit --limit 25/min -j LOG"], "nft", None),
    ] {
        let lab = pod_with_chart("native");
        for rule in rules {
            lab.pod.sh(&format!("iptables-{mode} {rule}"));
        }
        let said = first_line(&lab, "inbound --to 10.77.0.2:80");
        let (answer, condition) = said.split_once(", unless the limit of `").unwrap_or((&said, ""));
        assert_eq!(answer, "to the proxy, port 4143", "{rules:?}: {said}");
        match limit {
            Some(limit) => assert!(condition.contains(limit) && condition.ends_with(" is reached"), "{said}"),
            None => assert_eq!(condition, ""),
        }
        let handshakes = Handshakes::new(&[&lab.pod], &[4143]);
        assert_eq!(inbound(&lab, &handshakes, 20_001), Some(4143), "{rules:?}");
    }
    let lab = pod_with_chart("native");
    for rule in [
        "tcp dport 4143 limit rate over 9/second drop",
        "ct count over 99 reject",
        "quota over 9 mbytes drop",
        "add @seen { ip saddr limit rate over 9/second } drop",
        "update @seen { ip saddr ct count over 9 } drop",
        "update @seen { ip saddr counter quota over 9 mbytes } drop",
    ] {
        nft(
            &lab.pod,
            &format!(
                "table inet f {{ set seen {{ type ipv4_addr; flags dynamic; size 99; }}; chain in {{ type filter hook input \
                 priority 5; {rule}; }}; }}"
            ),
        );
        let said = first_line(&lab, "inbound --to 10.77.0.2:80");
        let begins = "to the proxy, port 4143, unless the limit of `";
        assert!(said.starts_with(begins) && said.ends_with("` in inet f, chain in is reached"), "{said}");
        let handshakes = Handshakes::new(&[&lab.pod], &[4143]);
        assert_eq!(inbound(&lab, &handshakes, 20_001), Some(4143), "{rule}");
        lab.pod.sh("nft delete table inet f");
    }
}

#[test]
fn what_both_backends_have_is_looked_at() {
    let lab = pod_with_chart("nft");
    lab.pod.sh("iptables-legacy -A INPUT -p tcp --dport 4143 -j REJECT");
    assert_eq!(first_line(&lab, "inbound --to 10.77.0.2:80"), "rejected");
    assert_eq!(first_line(&lab, "inbound --to [fd77::2]:80"), "to the proxy, port 4143");
    lab.pod.sh("ip6tables-legacy -t raw -A PREROUTING -p tcp --dport 80 -j NOTRACK");
    assert_eq!(first_line(&lab, "inbound --to [fd77::2]:80"), "dropped: the reply");
    lab.pod.sh("ip6tables-legacy -t raw -A OUTPUT -p tcp --sport 80 -j NOTRACK");
    assert_eq!(first_line(&lab, "inbound --to [fd77::2]:80"), "bypasses the proxy");
}

#[test]
fn another_namespace_may_be_asked_about() {
    let lab = pod_with_chart("nft");
    let line = format!("explain inbound --to 10.77.0.2:80 --netns {}", lab.pod.path().display());
    assert!(install(&Namespace::new(), &line).starts_with("to the proxy, port 4143\n"));
}

#[test]
fn an_unprivileged_user_is_told_what_is_not_seen() {
    let lab = pod_with_chart("nft");
    let run =
        |capabilities: &[&str]| Run::new("explain inbound --to 10.77.0.2:80").nobody(capabilities).output(&lab.pod);
    let said = run(&["net_admin"]).success();
    assert!(
        said.starts_with(
            "not known: the legacy tables cannot be seen (only root and group 0 can list legacy tables); by all others it goes to the \
             proxy, port 4143\n"
        ),
        "{said}"
    );
    lab.pod.sh("ip link set lo down");
    let said = Run::new("explain outbound --to 192.0.2.1:80").nobody(&["net_admin"]).output(&lab.pod).success();
    assert!(said.contains("; by all others it is dropped: it is redirected to 127.0.0.1, and lo is down\n"), "{said}");
    let refused = run(&[]);
    assert_eq!(refused.code(), Some(1));
    assert!(refused.stderr().contains("cannot read this network namespace's rules"), "{}", refused.said());
}

/// The way doesn't just stop there.
#[test]
fn a_chain_without_rules_is_said_to_have_none() {
    let lab = pod_with_chart("nft");
    lab.pod.sh("nft flush chain ip nat PROXY_INIT_REDIRECT");
    lab.pod.sh("iptables-nft -A INPUT -p icmp -j DROP");
    let said = text(&lab, "inbound --to 10.77.0.2:80");
    let lines: Vec<&str> = said.lines().map(str::trim_start).collect();
    for line in [
        "no rule sends it to the proxy",
        "1   yes  everything: to PROXY_INIT_REDIRECT, which has no rules",
        "1   no   icmp: this connection is tcp",
    ] {
        assert!(lines.contains(&line), "{line}: {said}");
    }
}

#[test]
fn thousands_of_rules_that_do_not_match_are_left_out_of_the_text() {
    let lab = pod_with_chart("nft");
    let rules: Vec<String> =
        (1..=3000).map(|number| format!("ip saddr 10.0.{}.{} drop", number / 250, number % 250)).collect();
    let script =
        format!("table inet x {{ chain c {{ type filter hook prerouting priority 0\n{}\n }}\n }}", rules.join("\n"));
    nft(&lab.pod, &script);
    let said = text(&lab, "inbound --to 10.77.0.2:80 --from 192.0.2.1");
    assert!(said.contains("\n    ... 2980 more rules that do not match\n"), "{said}");
    assert!(said.starts_with("to the proxy, port 4143\n"));
    let json = as_json(&lab, "inbound --to 10.77.0.2:80 --from 192.0.2.1");
    assert_eq!(json["steps"].as_array().unwrap().len(), 3003);
}

#[test]
fn chains_with_thousands_of_ways_through_them_are_answered() {
    let lab = pod_with_chart("nft");
    let _proxy = Server::start(&lab.pod, &[4143, 4140]);
    // Two ways to each of 12 levels: 2^12 ways to the last one. A few times as many are more than a look may ask.
    let mut script = "table inet x {\n chain c12 { tcp dport 1 drop; tcp dport 2 drop; }\n".to_owned();
    for level in (0..12).rev() {
        let hook = if level == 0 { "type filter hook prerouting priority 0;" } else { "" };
        let next = level + 1;
        script += &format!(" chain c{level} {{ {hook} jump c{next}; jump c{next}; }}\n");
    }
    nft(&lab.pod, &format!("{script}}}\n"));
    let said = text(&lab, "inbound --to 10.77.0.2:80");
    assert!(said.starts_with("to the proxy, port 4143\n"), "{}", said.len());
    assert_eq!(said.matches("to port 1:").count(), 1 << 12);
}

/// They are followed one after the other, and the text has each rule once.
#[test]
fn connections_that_differ_by_device_are_told_together() {
    let lab = Lab::new();
    lab.pod.all([
        "ip link add eth1 type veth peer name far1",
        "ip link set eth1 up",
        "ip address add 10.78.0.2/24 dev eth1",
    ]);
    install(&lab.pod, &chart_in("nft"));
    let table = "table ip t { chain c { tcp dport 90 drop; tcp dport 80 meta mark set 7; }; chain b { type filter hook \
                 prerouting priority -150; iifname eth1 tcp dport 80 meta mark set 8; jump c; }; }";
    nft(&lab.pod, table);
    let said = Run::new("explain inbound --to 10.77.0.2:80").output(&lab.pod).success();
    for line in ["        1   no   to port 90: port 80 is not 90\n", "        2   yes  tcp: to the proxy, port 4143\n"]
    {
        let line = line.trim_start_matches(' ');
        assert_eq!(said.matches(line).count(), 1, "{line}{said}");
    }
}
