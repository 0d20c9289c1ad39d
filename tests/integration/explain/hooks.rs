//! The packet's properties at each hook, there and back: rules that depend on them, beside ours, and real connections.
//! explain's answers have to come true, and verify finds everything in place exactly where connections get to the
//! proxy.

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::Duration;

use lab::handshake::{Client, Handshakes, Outcome};
use lab::network::{DISTANT, Lab, NEIGHBOUR, Namespace, Owner, POD, ROOT, families};
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt::IpTransparent};
use serde_json::Value;

use crate::support::{Run, chart_in, feed, install, unfolded};

/// The fate of a connection to port 80.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Proxy,
    Bypass,
    Elsewhere,
    Lost,
}

use End::{Bypass, Elsewhere, Lost, Proxy};

/// A source port for each connection, so that none meets what another has left behind.
static PORT: AtomicU16 = AtomicU16::new(33_000);

/// A connection to port 80 of the pod, or from it.
#[derive(Debug, Clone, Copy)]
struct Probe {
    is_inbound: bool,
    /// 0 for IPv4, 1 for IPv6.
    family: usize,
    owner: Owner,
    /// Its socket is bound to eth0.
    is_bound: bool,
}

const INBOUND: Probe = Probe { is_inbound: true, family: 0, owner: ROOT, is_bound: false };

const OUTBOUND: Probe = Probe { is_inbound: false, ..INBOUND };

/// Makes a connection, and asks explain about it. Returns what became of it, and the answer.
fn connect(lab: &Lab, handshakes: &Handshakes, probe: Probe) -> (End, String) {
    let Probe { is_inbound, family, owner, is_bound } = probe;
    let port = PORT.fetch_add(1, Ordering::Relaxed);
    let (namespace, from, to, proxy) = match is_inbound {
        true => (&lab.outside, NEIGHBOUR[family], POD[family], 4143),
        false => (&lab.pod, POD[family], DISTANT[family], 4140),
    };
    let (from, to) = (SocketAddr::new(from, port), SocketAddr::new(to, 80));
    let bound = if is_bound { " --out eth0" } else { "" };
    let Owner { uid, gid } = owner;
    let way = match is_inbound {
        true => format!("inbound --to {to} --from {from} --in eth0"),
        false => format!("outbound --to {to} --from {from} --uid {uid} --gid {gid}{bound}"),
    };
    let said = Run::new(&format!("explain {way}")).output(&lab.pod).success();
    let answer = said.lines().next().unwrap().to_owned();
    let client = Client { owner, device: is_bound.then(|| "eth0".to_owned()), ..Client::new(from) };
    let outcome = handshakes.connect(namespace, &client, to);
    let is_told = matches!(outcome, Outcome::Refused(_));
    assert!(is_told || !answer.starts_with("rejected"), "{outcome:?}: {answer}");
    assert!(!is_told || !answer.starts_with("dropped"), "{outcome:?}: {answer}");
    let end = match outcome {
        Outcome::Answered { at, .. } if at.port() == 80 => Bypass,
        Outcome::Answered { at, .. } if at.port() == proxy => Proxy,
        Outcome::Answered { .. } => Elsewhere,
        Outcome::Mute { .. } | Outcome::HalfOpen | Outcome::Lost | Outcome::Refused(_) => Lost,
    };
    (end, answer)
}

/// A pod in which our rules are, beside those of another program.
fn pod(flags: &str, lines: &[&str]) -> (Lab, Handshakes) {
    let lab = Lab::new();
    install(&lab.pod, flags);
    lab.pod.all(lines);
    let handshakes = Handshakes::new(&[&lab.pod, &lab.outside], &[4143, 4140, 80, 9999]);
    (lab, handshakes)
}

/// explain's meaning, up to where the connection first arrives; none if explain doesn't know.
fn meant(answer: &str) -> Option<End> {
    match answer.split("; then from the proxy: ").next().unwrap() {
        "to the proxy, port 4143" | "to the proxy, port 4140" => Some(Proxy),
        "bypasses the proxy" => Some(Bypass),
        answer if answer.starts_with("dropped") || answer.starts_with("rejected") => Some(Lost),
        answer if answer.starts_with("goes elsewhere") => Some(Elsewhere),
        _ => None,
    }
}

/// Makes a connection, which has to end so, and explain has to say so.
fn probe((lab, handshakes): &(Lab, Handshakes), probe: Probe, want: End) {
    let (end, answer) = connect(lab, handshakes, probe);
    assert_eq!(end, want, "{probe:?}: the test is wrong, explain says {answer}");
    assert_eq!(meant(&answer), Some(want), "{probe:?}: {answer}");
}

/// Rules of another program beside proxy-init's, and what becomes of an inbound and of an outbound connection.
fn check(lines: &[&str], inbound: End, outbound: End) {
    let pod = pod(&chart_in("nft"), lines);
    println!("{lines:?}");
    probe(&pod, INBOUND, inbound);
    probe(&pod, OUTBOUND, outbound);
    let verified = Run::new(&format!("verify --output json {}", chart_in("nft"))).output(&pod.0.pod);
    let report: Value = serde_json::from_str(&verified.stdout()).unwrap();
    // The proxy's own treatment of connections is another question.
    let findings = report["findings"].as_array().unwrap();
    let are_about_proxy = findings.iter().all(|finding| finding["from_proxy"] == true);
    assert_eq!(are_about_proxy, inbound == Proxy && outbound == Proxy, "{lines:?}: {report:#}");
    assert_eq!(verified.code(), Some(if findings.is_empty() { 0 } else { 3 }), "{lines:?}: {}", verified.said());
    let may_drop = report["warnings"].to_string().contains("may drop");
    assert!(!may_drop, "{lines:?}: {report:#}");
}

/// A table with a base chain at a hook.
fn chain(hook: &str, priority: i32, rules: &str) -> String {
    format!(
        "nft table inet t {{ chain x {{ }} ; chain c {{ type filter hook {hook} priority {priority} ; {rules} ; }} ; }}"
    )
}

/// The same for the packets of one device.
fn of_device(hook: &str, device: &str, rules: &str) -> String {
    format!(
        "nft table netdev {hook}{device} {{ chain c {{ type filter hook {hook} device {device} priority 0 ; {rules} ; }} ; }}"
    )
}

#[test]
fn before_connection_tracking_a_packet_is_invalid() {
    for rules in [
        "ct state invalid drop",
        "ct state new,established accept ; meta l4proto tcp drop",
        "ct state vmap { invalid : drop, new : accept }",
    ] {
        check(&[&chain("prerouting", -300, rules)], Lost, Proxy);
        check(&[&chain("prerouting", -150, rules)], Proxy, Proxy);
    }
    // By lo, the answer comes back too.
    check(&[&chain("prerouting", -300, "ct state new accept ; meta l4proto tcp drop")], Lost, Lost);
    // Here the answers are dropped too.
    check(&[&chain("output", -300, "ct state invalid drop")], Lost, Lost);
    check(&[&chain("ingress device eth0", 0, "ct state invalid drop")], Lost, Proxy);
    check(&["iptables-nft -t raw -A PREROUTING -m conntrack --ctstate INVALID -j DROP"], Lost, Proxy);
    check(&["iptables-legacy -t raw -A PREROUTING -m conntrack --ctstate INVALID -j DROP"], Lost, Proxy);
}

/// A packet that lo brings back keeps its properties.
#[test]
fn before_connection_tracking_no_packet_from_outside_is_new() {
    check(&[&chain("output", -300, "ct state new drop")], Proxy, Proxy);
    check(&[&chain("prerouting", -300, "iifname eth0 ct state new drop")], Proxy, Proxy);
    check(&[&chain("prerouting", -300, "ct state new drop")], Proxy, Lost);
    check(&[&chain("ingress device lo", 0, "ct state new drop")], Proxy, Lost);
}

#[test]
fn what_is_tracked_is_not_untracked_and_notrack_ends_no_rule() {
    check(&[&chain("prerouting", -150, "tcp dport 80 notrack")], Proxy, Proxy);
    // Of its answer the second packet is taken for a new connection, which our rules redirect.
    check(&[&chain("prerouting", -300, "tcp dport 80 notrack")], Lost, Proxy);
    let answer = "nft table inet back { chain c { type filter hook output priority -300 ; tcp sport 80 notrack ; } ; }";
    check(&[&chain("prerouting", -300, "tcp dport 80 notrack"), answer], Bypass, Proxy);
    check(&[&chain("prerouting", -300, "tcp dport 80 notrack drop")], Lost, Proxy);
    check(&[&chain("prerouting", -300, "tcp dport 80 notrack goto x ; tcp dport 80 drop"), answer], Bypass, Proxy);
    check(&[&chain("prerouting", -300, "tcp dport 80 notrack accept ; tcp dport 80 drop"), answer], Bypass, Proxy);
    // A reply that isn't tracked isn't translated back.
    check(&[&chain("output", -300, "tcp sport 4143 notrack")], Lost, Proxy);
}

#[test]
fn chains_of_devices_see_their_own_packets() {
    let other = "ip link add eth1 type veth peer name eth2";
    check(&[&of_device("egress", "lo", "tcp dport 4140 drop")], Proxy, Lost);
    check(&[&of_device("egress", "lo", "tcp sport 80 drop")], Proxy, Lost);
    check(&[&of_device("egress", "eth0", "tcp sport 80 drop")], Lost, Proxy);
    check(&[&of_device("ingress", "lo", "tcp dport 4140 drop")], Proxy, Lost);
    check(&[&of_device("ingress", "eth0", "tcp dport 80 drop")], Lost, Proxy);
    check(
        &[
            other,
            "nft table netdev two { chain c { type filter hook ingress devices = { eth0, eth1 } priority 0 ; tcp dport 80 drop ; } ; }",
        ],
        Lost,
        Proxy,
    );
}

#[test]
fn what_comes_after_the_redirect_and_back_is_followed() {
    for (hook, priority, rules, inbound, outbound) in [
        ("input", 0, "tcp dport 4143 drop", Lost, Proxy),
        ("input", 0, "tcp dport 80 drop", Proxy, Proxy),
        ("input", 0, "tcp dport 4140 drop", Proxy, Lost),
        ("output", 0, "tcp sport 4143 drop", Lost, Proxy),
        ("output", 0, "ct state established drop", Lost, Lost),
        ("output", 0, "oifname eth0 tcp sport 80 drop", Proxy, Proxy),
        ("postrouting", 0, "tcp sport 4143 drop", Lost, Proxy),
        ("postrouting", 101, "tcp sport 80 drop", Lost, Lost),
        ("input", 0, "tcp sport 80 drop", Proxy, Lost),
        ("prerouting", -300, "iifname lo ct state established drop", Proxy, Lost),
        ("output", 0, "tcp flags & (syn|ack) == syn|ack drop", Lost, Lost),
    ] {
        check(&[&chain(hook, priority, rules)], inbound, outbound);
    }
    // The most common firewall of all, which lets neighbours find each other.
    let firewall = "policy drop ; iif lo accept ; ct state established,related accept ; meta l4proto icmpv6 accept ; \
                    tcp dport 4143 accept";
    check(&[&chain("input", 0, firewall)], Proxy, Proxy);
    let forgetful = "policy drop ; iif lo accept ; ct state established,related accept ; tcp dport 22 accept";
    check(&[&chain("input", 0, forgetful)], Lost, Proxy);
    let by_index = "iif eth0 tcp dport 4143 drop";
    check(&[&chain("input", 0, by_index)], Lost, Proxy);
}

#[test]
fn what_changes_no_way_takes_nothing_away() {
    for rules in [
        "tcp flags syn tcp option maxseg size set 1400",
        "ip dscp set cs1",
        "ip ttl set 9",
        "meta mark set 7",
        "ct mark set 7",
        "meta nftrace set 1",
        "log",
    ] {
        check(&[&chain("prerouting", -150, rules)], Proxy, Proxy);
    }
    check(&["iptables-nft -t mangle -A PREROUTING -p tcp -j TEE --gateway 10.77.0.1"], Proxy, Proxy);
}

#[test]
fn chains_for_other_packets_do_not_tie() {
    let udp = |name: &str, hook: &str, priority: i32| {
        format!(
            "nft table inet {name} {{ chain c {{ type filter hook {hook} priority {priority} ; udp dport 53 drop ; }} ; }}"
        )
    };
    check(&[&udp("a", "output", -100), &udp("b", "prerouting", -100)], Proxy, Proxy);
    let three = ["a", "b", "c"];
    let lines: Vec<String> = ["prerouting", "input", "output"]
        .iter()
        .flat_map(|hook| three.map(|name| udp(&format!("{name}{hook}"), hook, -150)))
        .collect();
    check(&lines.iter().map(String::as_str).collect::<Vec<_>>(), Proxy, Proxy);
}

/// The client has the proxy's answer, but the proxy doesn't get the client's, and so no connection.
#[test]
fn the_ack_makes_the_connection() {
    let ack = "iptables-nft -A INPUT -i eth0 -p tcp ! --syn -j DROP";
    check(&[ack], Lost, Proxy);
    check(&["iptables-nft -A INPUT -i lo -p tcp ! --syn -j DROP"], Proxy, Lost);
    check(&["iptables-nft -t mangle -A PREROUTING -i eth0 -p tcp --tcp-flags SYN,ACK ACK -j DROP"], Lost, Proxy);
    check(&[&chain("postrouting", 0, "ct direction original ct state established drop")], Proxy, Lost);
    let pod = pod(&chart_in("nft"), &[ack]);
    let said = Run::new("explain inbound --to 10.77.0.2:80 --from 10.77.0.1:33000 --in eth0").output(&pod.0.pod);
    let said = said.success();
    assert!(said.starts_with("dropped: the ACK after the reply\n"), "{said}");
    assert!(said.contains("\ninput, the ACK after it\n"), "{said}");
}

/// Rules may ask for more than a connection's state.
#[test]
fn what_connection_tracking_knows_is_known() {
    for (hook, priority, rules, inbound, outbound) in [
        ("output", 0, "ct direction reply drop", Lost, Lost),
        ("input", 0, "iifname eth0 ct direction original drop", Lost, Proxy),
        ("input", 0, "ct direction != original iifname lo drop", Proxy, Lost),
        ("input", 0, "iifname eth0 ct status dnat drop", Lost, Proxy),
        ("input", 0, "ct status snat drop", Proxy, Proxy),
        ("prerouting", -150, "ct status dnat ct state new drop", Proxy, Lost),
        ("prerouting", -300, "ct direction original ct state new drop", Proxy, Lost),
    ] {
        check(&[&chain(hook, priority, rules)], inbound, outbound);
    }
    for (rule, inbound, outbound) in [
        ("INPUT -i eth0 -m conntrack --ctstate DNAT -j DROP", Lost, Proxy),
        ("INPUT -m conntrack --ctstate SNAT,INVALID -j DROP", Proxy, Proxy),
        ("INPUT -i eth0 -m conntrack ! --ctstate NEW,ESTABLISHED,DNAT -j DROP", Proxy, Proxy),
        ("OUTPUT -o eth0 -m conntrack --ctdir REPLY -j DROP", Lost, Proxy),
        ("OUTPUT -m conntrack --ctstate ESTABLISHED --ctdir ORIGINAL -o lo -j DROP", Proxy, Proxy),
    ] {
        for variant in ["nft", "legacy"] {
            check(&[&format!("iptables-{variant} -A {rule}")], inbound, outbound);
        }
    }
    // A nat chain that drops what an earlier one has translated.
    let nat = "nft table inet t { chain c { type nat hook postrouting priority -50 ; ct status dnat drop ; } ; }";
    check(&[nat], Proxy, Lost);
}

/// Marks begin at 0, and rules may set them: a packet's stays with it, a connection's is that of all of its packets.
#[test]
fn marks_are_known_from_where_they_are_set() {
    let set = |rules| chain("prerouting", -150, rules);
    let input = |rules| format!("nft table inet u {{ chain c {{ type filter hook input priority 0 ; {rules} ; }} ; }}");
    for (first, then, inbound, outbound) in [
        ("iifname eth0 meta mark set 7", "meta mark 7 drop", Lost, Proxy),
        ("iifname eth0 meta mark set 7", "meta mark != 7 drop", Proxy, Lost),
        ("iifname eth0 meta mark set meta mark | 0x3", "meta mark & 0x1 == 0x1 drop", Lost, Proxy),
        ("iifname eth0 meta mark set 7", "meta mark vmap { 7 : drop, 0 : accept }", Lost, Proxy),
        ("iifname eth0 meta mark set 6", "meta mark { 5, 7 } drop", Proxy, Proxy),
        ("iifname eth0 tcp flags syn ct mark set 7", "ct state established ct mark 7 drop", Lost, Proxy),
        ("ct mark set 5 ; meta mark set ct mark", "iifname lo meta mark 5 drop", Proxy, Lost),
        ("counter", "meta mark 0 iifname eth0 drop", Lost, Proxy),
        ("counter", "ct mark != 0 drop", Proxy, Proxy),
    ] {
        check(&[&set(first), &input(then)], inbound, outbound);
    }
    for (rule, inbound, outbound) in [
        ("INPUT -i eth0 -m mark --mark 7 -j DROP", Lost, Proxy),
        ("INPUT -i eth0 -m mark ! --mark 7 -j DROP", Proxy, Proxy),
        ("INPUT -i eth0 -m mark --mark 0x1/0x3 -j DROP", Proxy, Proxy),
        ("INPUT -i eth0 -m mark --mark 0x3/0x3 -j DROP", Lost, Proxy),
        ("INPUT -i eth0 -m connmark --mark 8 -j DROP", Lost, Proxy),
    ] {
        for variant in ["nft", "legacy"] {
            let mangle = format!("iptables-{variant} -t mangle -A PREROUTING -i eth0");
            let lines = [
                format!("{mangle} -j MARK --set-mark 7"),
                format!("{mangle} -j CONNMARK --set-mark 8"),
                format!("iptables-{variant} -A {rule}"),
            ];
            check(&lines.each_ref().map(String::as_str), inbound, outbound);
        }
    }
}

/// Connection tracking is there for a family where a rule needs it, and a nat chain doesn't: then none is asked.
#[test]
fn where_nothing_is_tracked_no_nat_chain_is_asked() {
    if families() < 2 {
        return;
    }
    let v4_alone = format!("{} --ipv6=false", chart_in("nft"));
    let v6 = |probe| Probe { family: 1, ..probe };
    let drops =
        |hook, rules| format!("nft table inet t {{ chain c {{ type nat hook {hook} priority -50 ; {rules} ; }} ; }}");
    let pod = |rules: &str, others: &[&str]| {
        let pod = pod(&v4_alone, others);
        // Neighbours of IPv6 are found once its addresses are in use.
        let start = std::time::Instant::now();
        while connect(&pod.0, &pod.1, v6(OUTBOUND)).0 != Bypass || connect(&pod.0, &pod.1, v6(INBOUND)).0 != Bypass {
            assert!(start.elapsed() < std::time::Duration::from_secs(20));
        }
        pod.0.pod.sh(rules);
        pod
    };
    let of_output = pod(&drops("output", "counter drop"), &[]);
    probe(&of_output, v6(OUTBOUND), Bypass);
    let of_prerouting = pod(&drops("prerouting", "meta l4proto tcp drop"), &[]);
    probe(&of_prerouting, v6(INBOUND), Bypass);
    // Nor does a rule that translates, if it is for the other family: it takes none of this one's connections.
    let of_the_other = pod(&drops("output", "oifname eth0 meta l4proto tcp dnat ip to 10.77.0.1:9999"), &[]);
    probe(&of_the_other, v6(OUTBOUND), Bypass);
    // One rule that asks for a state is enough.
    let tracking = chain("forward", 0, "ct state new accept").replace(" t ", " u ");
    let of_output = pod(&drops("output", "counter drop"), &[&tracking]);
    probe(&of_output, v6(OUTBOUND), Lost);
}

/// At input the kernel has found the socket of every packet but the first one.
#[test]
fn packets_have_owners() {
    let of = |uid, gid| Probe { owner: Owner { uid, gid }, ..OUTBOUND };
    let exempt = chart_in("nft") + " --outbound-ports-to-ignore 80";
    let input =
        "nft table inet t { chain c { type filter hook input priority 0 ; iifname eth0 meta skgid 2000 drop ; } ; }";
    let pod_of = pod(&exempt, &[input]);
    probe(&pod_of, of(1000, 2000), Lost);
    probe(&pod_of, of(1000, 1000), Bypass);
    // The proxy's answers are of the user who listens, whomever the rules exempt.
    let of_2102 = "iptables-nft -A OUTPUT -o eth0 -m owner --uid-owner 2102 -j DROP";
    check(&[of_2102], Lost, Proxy);
    let of_another = chart_in("nft").replace("2102", "2000");
    probe(&pod(&of_another, &[of_2102]), INBOUND, Lost);
    probe(&pod(&of_another, &[&of_2102.replace("2102", "2000")]), INBOUND, Proxy);
    // Of which group it is, the kernel doesn't tell.
    let pod = pod(
        &chart_in("nft"),
        &["iptables-nft -t mangle -A OUTPUT -o eth0 -p tcp --tcp-flags SYN,ACK SYN,ACK -m owner --gid-owner 0 -j DROP"],
    );
    let (end, answer) = connect(&pod.0, &pod.1, INBOUND);
    assert_eq!(end, Lost);
    assert!(answer.starts_with("not known: it depends on the group of the process that answers"), "{answer}");
    let verified = Run::new(&format!("verify {}", chart_in("nft"))).output(&pod.0.pod);
    assert_eq!(verified.code(), Some(0), "{}", verified.said());
    assert!(verified.stdout().contains("may drop"), "{}", verified.said());
}

#[test]
fn a_bound_socket_is_not_redirected() {
    let bound = Probe { is_bound: true, ..OUTBOUND };
    probe(&pod(&chart_in("nft"), &[]), bound, Lost);
    probe(&pod(&(chart_in("nft") + " --outbound-ports-to-ignore 80"), &[]), bound, Bypass);
}

/// Somebody else's address answers, and its answers have to come back too.
#[test]
fn what_is_sent_elsewhere_is_answered_from_there() {
    let dnat = "iptables-nft -t nat -I OUTPUT 1 -p tcp ! -o lo -j DNAT --to-destination 10.77.0.1:9999";
    let raw = "iptables-nft -t raw -A PREROUTING -p tcp --sport 9999 -j CT --notrack";
    let input = "iptables-nft -A INPUT -p tcp --sport 9999 -j DROP";
    let nft = "nft table ip t { chain c { type nat hook output priority -150 ; oifname eth0 tcp dport 80 dnat to 10.77.0.1:9999 ; } ; }";
    for (lines, want) in [
        (&[dnat][..], Elsewhere),
        (&[nft], Elsewhere),
        (&[dnat, raw], Lost),
        (&[dnat, input], Lost),
        (&[dnat, "iptables-nft -A OUTPUT -p tcp --dport 9999 -d 10.77.0.1 -j DROP"], Lost),
        (&[dnat, "iptables-nft -A OUTPUT -p tcp --dport 80 -j DROP"], Elsewhere),
    ] {
        println!("{lines:?}");
        probe(&pod(&chart_in("nft"), lines), OUTBOUND, want);
    }
}

/// A rule that may or may not take a packet, before a policy that drops all the same.
#[test]
fn a_doubt_before_a_certain_drop_does_not_hide_it() {
    for doubt in [
        "limit rate 5/second reject",
        "numgen random mod 3 vmap { 0 : drop, 1 : jump x } ; socket mark 7 reject",
        "meta pkttype { broadcast, multicast } drop",
        "tcp dport 4143 numgen random mod 2 == 0 drop",
        "numgen random mod 2 == 0 jump x",
    ] {
        check(
            &[&chain("input", 0, &format!("policy drop ; iif lo accept ; ct state established accept ; {doubt}"))],
            Lost,
            Proxy,
        );
    }
    let limited =
        pod(&chart_in("nft"), &[&chain("input", 0, "policy drop ; iif lo accept ; limit rate 5/second reject")]);
    let (end, answer) = connect(&limited.0, &limited.1, INBOUND);
    assert_eq!(end, Lost);
    assert!(answer.starts_with("rejected, unless the limit of "), "{answer}");
}

/// [`connect`] compares each answer with what the client is told.
#[test]
fn a_client_is_told_of_a_rejection_that_gets_back() {
    let input = |rules: &str| chain("input", 0, rules);
    let output =
        |rules: &str| format!("nft table inet o {{ chain c {{ type filter hook output priority 0 ; {rules} ; }} ; }}");
    let reset = input("tcp dport { 80, 4143 } reject with tcp reset");
    let icmp = input("tcp dport { 80, 4143 } reject");
    let early = chain("prerouting", -300, "tcp dport 80 iif eth0 reject with tcp reset");
    let outbound = "iptables-nft -A OUTPUT -p tcp --dport 4140 -j REJECT --reject-with";
    let v6 = Probe { family: 1, ..INBOUND };
    let bound = Probe { is_bound: true, ..OUTBOUND };
    let silent = "rejected, and the rejection does not get back";
    for (lines, probe, words) in [
        (vec![reset.clone()], INBOUND, "rejected"),
        (vec![reset.clone(), output("tcp flags rst drop")], INBOUND, silent),
        (vec![reset.clone(), output("policy drop ; ct state established accept")], INBOUND, silent),
        (vec![reset.clone(), output("policy drop ; ct state related accept")], INBOUND, "rejected"),
        (vec![reset.clone(), output("tcp flags & (rst | ack) == ack drop")], INBOUND, "rejected"),
        (vec![icmp.clone(), output("meta l4proto tcp drop")], INBOUND, "rejected"),
        (vec![icmp.clone(), output("meta l4proto icmp drop")], INBOUND, silent),
        (vec![icmp.clone(), output("ct state related drop")], v6, silent),
        (vec![icmp.clone(), output("icmpv6 type destination-unreachable drop")], v6, silent),
        (vec![icmp, output("icmpv6 type echo-reply drop")], v6, "rejected"),
        // Connection tracking hasn't seen the packet, so the reset belongs to nothing.
        (vec![early.clone(), output("ct state related drop")], INBOUND, "rejected"),
        (vec![early, output("ct state invalid drop")], INBOUND, silent),
        (vec![of_device("ingress", "eth0", "tcp dport 80 reject with tcp reset"), output("drop")], INBOUND, "rejected"),
        (vec![format!("{outbound} tcp-reset")], OUTBOUND, "rejected"),
        (vec![format!("{outbound} tcp-reset"), input("iif lo tcp flags rst drop")], OUTBOUND, silent),
        (vec![format!("{outbound} icmp-port-unreachable"), input("iif lo tcp flags rst drop")], OUTBOUND, "rejected"),
        (vec![format!("{outbound} icmp-port-unreachable"), input("iif lo ct state related drop")], OUTBOUND, silent),
        // A socket that is bound to another device than lo gets it over IPv4 alone.
        (vec![output("tcp dport 4140 reject with tcp reset")], bound, "rejected"),
        (
            vec![output("tcp dport 4140 reject")],
            Probe { family: 1, ..bound },
            "rejected, and the rejection comes by lo",
        ),
        // One of two rules is silent.
        (
            vec![input("tcp dport 4143 numgen random mod 1000000000 > 0 drop ; tcp dport 4143 reject")],
            INBOUND,
            "dropped",
        ),
        // No neighbour finds the pod before.
        (vec![input("meta l4proto { tcp, icmpv6 } reject")], v6, "dropped: the neighbour solicitation"),
    ] {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let (lab, handshakes) = pod(&chart_in("nft"), &lines);
        let (end, answer) = connect(&lab, &handshakes, probe);
        assert_eq!(end, Lost, "{lines:?}: {answer}");
        assert!(answer.contains(words) && (words != "rejected" || answer == words), "{lines:?}: {answer}");
    }
}

/// Sets and verdict maps of several fields, of intervals, of routing, and of what a device is.
#[test]
fn lookups_of_more_than_one_number_are_followed() {
    for (rules, inbound, outbound) in [
        ("fib daddr type vmap { local : drop }", Lost, Lost),
        ("meta nfproto ipv4 fib daddr type vmap { multicast : drop, broadcast : drop }", Proxy, Proxy),
        ("fib daddr type vmap { local : jump x, broadcast : drop }", Proxy, Proxy),
        ("fib daddr type . tcp dport vmap { local . 4143 : drop }", Lost, Proxy),
        ("ip saddr . tcp dport { 10.77.0.1 . 4143 } drop", Lost, Proxy),
        ("ip saddr . tcp dport { 10.77.0.0/24 . 4000-4142, 10.78.0.0/16 . 4143 } drop", Proxy, Lost),
        ("ip saddr . tcp dport { 10.77.0.0/24 . 4142-4143, 10.78.0.0/16 . 4143 } drop", Lost, Proxy),
        (
            "ip saddr . tcp dport vmap { 10.77.0.1 . 4143 : accept, 10.77.0.2 . 4140 : drop } ; tcp dport 4143 drop",
            Proxy,
            Lost,
        ),
        ("ip saddr . tcp dport vmap { 10.77.0.0/24 . 4143 : jump y, 10.77.0.0/24 . 1-4142 : jump x }", Lost, Proxy),
        (
            "ip saddr . ip daddr . meta l4proto . th dport vmap { 10.77.0.1 . 10.77.0.2 . tcp . 4143 : drop }",
            Lost,
            Proxy,
        ),
        ("iifname . tcp dport { lo . 4140, eth1 . 4143 } drop", Proxy, Lost),
        ("iifname . tcp dport vmap { eth0 . 4143 : accept, lo . 4140 : drop } ; tcp dport 4143 drop", Proxy, Lost),
        ("ct state . tcp dport { new . 4143, established . 4140 } drop", Lost, Lost),
        ("meta mark . tcp dport { 0 . 4143, 7 . 4140 } drop", Lost, Proxy),
        ("iif vmap { lo : drop }", Proxy, Lost),
        ("iifgroup 0 tcp dport 4143 drop", Lost, Proxy),
        ("iifgroup { 6, 7 } drop", Proxy, Proxy),
        ("iifgroup != 0 drop", Proxy, Proxy),
        ("iiftype loopback tcp dport 4140 drop", Proxy, Lost),
        ("iiftype ether tcp dport 4143 drop", Lost, Proxy),
        ("iiftype { ether, loopback } tcp dport 4143 drop", Lost, Proxy),
        ("iiftype != { ether, 5 } tcp dport 4143 drop", Proxy, Proxy),
        // By lo, the answer comes back too.
        ("ip saddr . tcp dport != { 10.77.0.1 . 4143, 10.77.0.2 . 4140 } drop", Proxy, Lost),
        ("tcp dport { 4143, 4140 } ip saddr . tcp dport != { 0.0.0.0/0 . 4143, 0.0.0.0/0 . 4140 } drop", Proxy, Proxy),
        ("tcp dport { 4143, 4140 } ip saddr . tcp dport != { 10.77.0.0/24 . 4143 } drop", Proxy, Lost),
        ("tcp dport vmap { 4143 : drop, * : accept }", Lost, Proxy),
        ("tcp dport vmap { 4143 : accept, 80 : accept, 4140 : accept } ; iif eth0 tcp dport 1-4200 drop", Proxy, Proxy),
        ("iif eth0 tcp dport vmap { 1-4142 : accept, 4144-65535 : accept } ; iif eth0 drop", Lost, Proxy),
        ("meta mark set tcp dport map { 4143 : 1, 4140 : 2 } ; meta mark 2 drop", Proxy, Lost),
        ("meta mark set ip saddr . tcp dport map { 10.77.0.1 . 4143 : 7 } ; meta mark 7 drop", Lost, Proxy),
        ("ct mark set tcp dport map { 4143 : 1 } ; ct mark 1 drop", Lost, Proxy),
        ("numgen random mod 1 vmap { 0 : drop }", Lost, Lost),
        ("numgen random mod 2 vmap { 0 : accept, 1 : accept } ; drop", Proxy, Proxy),
        ("jhash ip saddr mod 2 vmap { 0 : jump y, 1 : jump y }", Lost, Proxy),
        ("numgen random mod 2 vmap { 0 : jump x, 1 : jump x }", Proxy, Proxy),
        (
            "numgen random mod 2 vmap { 0 : accept, 1 : jump x } ; tcp dport . ip saddr { 1 . 10.0.0.1 } drop",
            Proxy,
            Proxy,
        ),
    ] {
        let line =
            chain("input", 0, rules).replace("chain x { } ;", "chain x { } ; chain y { tcp dport 4143 drop ; } ;");
        check(&[&line], inbound, outbound);
    }
    // Ports and addresses of maps, before our own redirect.
    for (rule, inbound) in [
        ("redirect to :tcp dport map { 80 : 9999, 81 : 80 }", Elsewhere),
        ("redirect to :ip saddr . tcp dport map { 10.77.0.1 . 80 : 4143, 10.77.0.9 . 80 : 9 }", Proxy),
        ("dnat ip to tcp dport map { 80 : 10.77.0.2 . 9999 }", Elsewhere),
        ("dnat ip to 10.77.0.2 : tcp dport map { 80 : 9999 }", Elsewhere),
        ("dnat ip to ip saddr . tcp dport map { 10.77.0.1 . 80 : 10.77.0.2 . 9999 }", Elsewhere),
        ("dnat ip to numgen random mod 2 map { 0 : 10.77.0.2 . 9999, 1 : 10.77.0.2 . 9999 }", Elsewhere),
        ("dnat ip to ip saddr . tcp dport map { 10.77.0.3 . 80 : 10.77.0.2 . 9999 }", Proxy),
    ] {
        let nat = format!(
            "nft table ip n {{ chain c {{ type nat hook prerouting priority -110 ; meta l4proto tcp {rule} ; }} ; }}"
        );
        println!("{nat}");
        probe(&pod(&chart_in("nft"), &[&nat]), INBOUND, inbound);
    }
    let v6 = pod(
        &chart_in("nft"),
        &[&chain("input", 0, "ip6 saddr . tcp dport . iifname { fd77::/64 . 4143 . eth0, ::/0 . 9 . eth0 } drop")],
    );
    probe(&v6, Probe { family: 1, ..INBOUND }, Lost);
    probe(&v6, Probe { family: 1, ..OUTBOUND }, Proxy);
    check(&[&chain("output", 0, "iifgroup != 7 drop")], Proxy, Proxy);
    check(&[&chain("output", 0, "iif != eth0 tcp sport 4143 drop")], Lost, Proxy);
}

/// Of a connection, rules ask for what it was before its translation, on its way there and back.
#[test]
fn connections_are_known_by_their_first_packet() {
    let probe_both = |line: &str, inbound, outbound| {
        println!("{line}");
        let pod = pod(&chart_in("nft"), &[line]);
        probe(&pod, INBOUND, inbound);
        probe(&pod, OUTBOUND, outbound);
    };
    let input = |rules: &str| chain("input", 0, rules);
    for (line, inbound, outbound) in [
        (input("meta l4proto tcp iif eth0 ct original proto-dst 80 drop"), Lost, Proxy),
        (input("meta l4proto tcp iif eth0 ct original proto-dst 4143 drop"), Proxy, Proxy),
        (input("meta l4proto tcp iif eth0 ct original proto-dst != 80 drop"), Proxy, Proxy),
        (input("iif lo ct original ip daddr 192.0.0.0/16 drop"), Proxy, Lost),
        (input("iif lo ct original ip daddr 127.0.0.1 drop"), Proxy, Proxy),
        (input("meta l4proto tcp ct original ip saddr 10.77.0.1 ct original proto-dst { 79-81 } drop"), Lost, Proxy),
        (input("meta l4proto tcp ct original ip daddr . ct original proto-dst { 10.77.0.2 . 80 } drop"), Lost, Proxy),
        (input("meta l4proto tcp ct original proto-dst vmap { 80 : jump x, 4140 : drop }"), Proxy, Proxy),
        (input("ct original ip6 daddr ::/0 drop"), Proxy, Proxy),
        // The answer leaves from where the first packet has arrived.
        (chain("output", 0, "tcp sport 4143 ct original proto-dst 80 drop"), Lost, Proxy),
        (chain("output", 0, "tcp sport 4143 ct original proto-src 80 drop"), Proxy, Proxy),
        (chain("output", 0, "tcp sport 4143 ct original ip saddr 10.77.0.2 drop"), Proxy, Proxy),
        (
            chain(
                "postrouting",
                0,
                "meta l4proto tcp oif eth0 ct original ip saddr != 10.77.0.1 ct original proto-dst 80 drop",
            ),
            Proxy,
            Proxy,
        ),
        // Without an entry, there is nothing to compare.
        (chain("prerouting", -300, "meta l4proto tcp iif eth0 ct original proto-dst 80 drop"), Proxy, Proxy),
        (chain("prerouting", -300, "meta l4proto tcp iif eth0 ct original proto-dst != 9 drop"), Proxy, Proxy),
        (chain("prerouting", -150, "iif eth0 tcp dport 80 ct original proto-dst 80 drop"), Lost, Proxy),
    ] {
        probe_both(&line, inbound, outbound);
    }
    let conntrack = "-m conntrack";
    for (line, inbound, outbound) in [
        (format!("INPUT -i eth0 -p tcp {conntrack} --ctorigdstport 80"), Lost, Proxy),
        (format!("INPUT -i eth0 -p tcp {conntrack} --ctorigdstport 81:90"), Proxy, Proxy),
        (format!("INPUT -i eth0 -p tcp {conntrack} ! --ctorigdstport 80"), Proxy, Proxy),
        (format!("INPUT -p tcp {conntrack} --ctorigdst 192.0.0.0/16 --ctstate NEW"), Proxy, Lost),
        (format!("INPUT -p tcp {conntrack} --ctorigsrc 10.77.0.1 --ctdir ORIGINAL"), Lost, Proxy),
        (format!("OUTPUT -p tcp --sport 4143 {conntrack} --ctorigdst 10.77.0.2 --ctorigdstport 80"), Lost, Proxy),
    ] {
        for program in ["iptables-nft", "iptables-legacy"] {
            probe_both(&format!("{program} -A {line} -j DROP"), inbound, outbound);
        }
    }
}

/// No cgroup here has a class, so each socket's is 0; what arrives has no socket.
#[test]
fn sockets_have_class_0() {
    let lines = |rule: &str| [chain("output", 0, &format!("tcp sport 4143 meta cgroup {rule} drop"))];
    for (rule, inbound) in [("0", Lost), ("5", Proxy), ("!= 5", Lost), ("{ 0, 7 }", Lost), ("!= { 0, 7 }", Proxy)] {
        check(&lines(rule).each_ref().map(String::as_str), inbound, Proxy);
    }
    check(&[&chain("prerouting", -150, "iif eth0 meta cgroup != 5 drop")], Proxy, Proxy);
    for program in ["iptables-nft", "iptables-legacy"] {
        for (rule, inbound) in [("--cgroup 0", Lost), ("--cgroup 5", Proxy), ("! --cgroup 5", Lost)] {
            check(&[&format!("{program} -A OUTPUT -p tcp --sport 4143 -m cgroup {rule} -j DROP")], inbound, Proxy);
        }
    }
}

/// Rules ask in several ways for what each packet of a living connection is.
#[test]
fn what_every_packet_is_is_known() {
    let at = |rules: &str| chain("input", 0, rules);
    for (line, inbound, outbound) in [
        (at("meta pkttype { broadcast, multicast } drop"), Proxy, Proxy),
        (at("meta pkttype != host drop"), Proxy, Proxy),
        (at("tcp dport 4143 meta pkttype host drop"), Lost, Proxy),
        (at("meta pkttype vmap { broadcast : drop, multicast : drop, host : accept } ; drop"), Proxy, Proxy),
        (at("meta protocol { arp, 8021q } drop"), Proxy, Proxy),
        (at("tcp dport 4143 meta protocol vmap { ip : drop, ip6 : accept }"), Lost, Proxy),
        (at("tcp dport 4143 tcp flags { syn | ack, rst } drop"), Proxy, Proxy),
        (at("tcp dport 4143 tcp flags { syn, syn | ecn, syn | cwr, syn | ecn | cwr } drop"), Lost, Proxy),
        ("iptables-nft -A INPUT -m pkttype --pkt-type multicast -j DROP".to_owned(), Proxy, Proxy),
        ("iptables-nft -A INPUT -p tcp --dport 4143 -m pkttype --pkt-type unicast -j DROP".to_owned(), Lost, Proxy),
        (
            "iptables-nft -A INPUT -p tcp --dport 4143 -m statistic --mode random --probability 1 -j DROP".to_owned(),
            Lost,
            Proxy,
        ),
        (
            "iptables-nft -A INPUT -p tcp --dport 4143 -m statistic --mode random --probability 0 -j DROP".to_owned(),
            Proxy,
            Proxy,
        ),
    ] {
        check(&[&line], inbound, outbound);
    }
}

/// Beyond what a look may cost, nothing is claimed.
#[test]
fn too_many_undecided_rules_are_not_known() {
    for (hook, priority) in [("prerouting", -150), ("input", 0)] {
        let (lab, _) = pod(&chart_in("nft"), &[]);
        let [jumps, drops] =
            ["jump t", "drop"].map(|verdict| format!("numgen random mod 2 0 {verdict}\n").repeat(3000));
        feed(
            &lab.pod,
            "nft -f -",
            &format!(
                "table inet many {{ chain t {{ {drops} }}\n\
                 chain c {{ type filter hook {hook} priority {priority}; {jumps} }}\n}}\n"
            ),
        );
        let verified = Run::new(&format!("verify {}", chart_in("nft"))).output(&lab.pod);
        let (first, said) = (verified.stdout().lines().take(2).collect::<Vec<_>>().join(" "), verified.said());
        let want = "not known: rules complete in nft mode, but too many undecided rules in inet many";
        assert!(first.starts_with(want), "{hook}: {said}");
        assert_eq!(verified.code(), Some(1), "{hook}: {said}");
        let way = format!("explain inbound --to {}:80 --from {} --in eth0", POD[0], NEIGHBOUR[0]);
        let explained = Run::new(&way).output(&lab.pod).stdout();
        assert!(explained.starts_with("not known: too many undecided rules in t"), "{hook}: {explained}");
    }
}

/// ipset's sets are known by name and, if they have a single field, by their content.
#[test]
fn ipsets_sets_are_looked_up() {
    for (kind, element, question, inbound, outbound) in [
        ("hash:ip", "10.77.0.1", "INPUT -m set --match-set s src", Lost, Proxy),
        ("hash:ip", "10.77.0.9", "INPUT -m set --match-set s src", Proxy, Proxy),
        ("hash:ip", "10.77.0.2", "INPUT -i eth0 -m set ! --match-set s dst", Proxy, Proxy),
        ("hash:net", "10.77.0.0/24", "INPUT -i eth0 -m set --match-set s src", Lost, Proxy),
        ("hash:net", "10.78.0.0/24", "INPUT -i lo -m set ! --match-set s dst", Proxy, Lost),
        ("bitmap:port range 4000-5000", "4143", "INPUT -m set --match-set s dst", Lost, Proxy),
        ("bitmap:port range 4000-5000", "4140", "OUTPUT -m set --match-set s src", Proxy, Lost),
        ("hash:ip timeout 600", "10.77.0.1", "INPUT -m set --match-set s src", Lost, Proxy),
    ] {
        for variant in ["nft", "legacy"] {
            let lines = [
                format!("ipset create s {kind}"),
                format!("ipset add s {element}"),
                format!("iptables-{variant} -A {question} -j DROP"),
            ];
            let pod = pod(&chart_in("nft"), &lines.each_ref().map(String::as_str));
            println!("{lines:?}");
            probe(&pod, INBOUND, inbound);
            probe(&pod, OUTBOUND, outbound);
        }
    }
    let of_several =
        ["ipset create pairs hash:ip,port", "iptables-nft -A INPUT -m set --match-set pairs src,dst -j DROP"];
    let (end, answer) = {
        let pod = pod(&chart_in("nft"), &of_several);
        connect(&pod.0, &pod.1, INBOUND)
    };
    let want = "not known: it depends on what ipset's set pairs has, because of \
                `-A INPUT -m set --match-set pairs src,dst -j DROP` in ip filter, chain INPUT";
    assert_eq!((end, answer.as_str()), (Proxy, want));
}

/// The client's ACK comes by the device of its SYN, though the reply leaves by another one.
#[test]
fn the_ack_comes_by_the_device_of_the_first_packet() {
    for (device, want) in [("eth0", Proxy), ("bb", Lost)] {
        let (lab, handshakes) = pod(&chart_in("nft"), &[]);
        lab.pod.sh(&format!("ip link add bb type veth peer name aa netns {}", lab.outside.path().display()));
        for (namespace, device, address) in [(&lab.pod, "bb", "10.9.0.2/24"), (&lab.outside, "aa", "10.9.0.1/24")] {
            namespace.sh(&format!("ip address add {address} dev {device}"));
            namespace.sh(&format!("ip link set {device} up"));
        }
        let to: SocketAddr = "10.9.0.2:80".parse().unwrap();
        let connect = || {
            let from = SocketAddr::new(DISTANT[0], PORT.fetch_add(1, Ordering::Relaxed));
            matches!(handshakes.connect(&lab.outside, &Client::new(from), to), Outcome::Answered { .. })
        };
        // Neighbours find each other first.
        let is_found = (0..100).any(|_| {
            thread::sleep(Duration::from_millis(20));
            connect()
        });
        assert!(is_found, "{device}");
        lab.pod.sh(&chain("input", 0, &format!("iifname {device} ct state established drop")));
        assert_eq!(connect(), want == Proxy, "{device}: the test is wrong");
        let way = format!("explain inbound --to {to} --from {}:40000 --in bb", DISTANT[0]);
        let said = Run::new(&way).output(&lab.pod).success();
        assert_eq!(meant(said.lines().next().unwrap()), Some(want), "{device}: {said}");
    }
}

/// Without a transparent listener, nft's expression does nothing, and iptables' target drops.
#[test]
fn tproxy_is_for_transparent_listeners() {
    let nft = chain("prerouting", -150, "iifname eth0 meta nfproto ipv4 meta l4proto tcp tproxy ip to :5555 accept");
    let xt = "iptables-nft -t mangle -A PREROUTING -i eth0 -p tcp -j TPROXY --on-port 5555".to_owned();
    for (line, want) in [(&nft, Proxy), (&xt, Lost), (&xt.replace("nft", "legacy"), Lost)] {
        let pod = pod(&chart_in("nft"), &[line]);
        probe(&pod, INBOUND, want);
        let _listener = pod.0.pod.run(|| TcpListener::bind("0.0.0.0:5555").unwrap());
        probe(&pod, INBOUND, want);
    }
    for line in [nft, xt] {
        let lab = Lab::new();
        lab.pod.sh(&line);
        let listener = lab.pod.run(|| TcpListener::bind("0.0.0.0:5555").unwrap());
        setsockopt(&listener, IpTransparent, &true).unwrap();
        let said = Run::new("explain inbound --to 10.77.0.2:80 --from 10.77.0.1 --in eth0").output(&lab.pod).success();
        let first = unfolded(&said);
        assert!(first.starts_with("not known: ") && first.contains("5555"), "{said}");
        let client = lab.outside.run(|| TcpStream::connect((POD[0], 80)).unwrap());
        let (_, from) = listener.accept().unwrap();
        assert_eq!(from, client.local_addr().unwrap(), "{line}");
    }
}

/// Anything that explain doesn't follow is not known, and never wrong.
#[test]
fn what_is_not_followed_is_not_known() {
    for (line, inbound, outbound) in [
        (chain("prerouting", -150, "iifname eth0 meta pkttype set other"), Lost, Proxy),
        // Beside ranges, nft compares a device's number in network order.
        (chain("input", 0, "iiftype . tcp dport { ether . 4100-4143 } drop"), Lost, Proxy),
        (chain("input", 0, "iifgroup { 0-3, 7-9 } tcp dport 4143 drop"), Lost, Proxy),
    ] {
        let pod = pod(&chart_in("nft"), &[&line]);
        for (one, want) in [(INBOUND, inbound), (OUTBOUND, outbound)] {
            let (end, answer) = connect(&pod.0, &pod.1, one);
            assert_eq!(end, want, "{line}: the test is wrong, explain says {answer}");
            let said = meant(&answer);
            assert!(said.is_none() || said == Some(want), "{line}, {one:?}: {answer}");
        }
    }
}

/// The same bytes are IPv4's destination, and part of IPv6's source.
#[test]
fn bytes_of_a_header_are_of_either_family() {
    let line = chain("prerouting", -300, "@nh,128,32 0x0a4d0002 drop");
    let pod = pod(&chart_in("nft"), &[&line]);
    let (end, answer) = connect(&pod.0, &pod.1, INBOUND);
    assert_eq!(end, Lost, "the test is wrong, explain says {answer}");
    assert!(matches!(meant(&answer), Some(Lost) | None), "{answer}");
}

/// Routing is asked for the user who is explained.
#[test]
fn a_route_may_be_for_some_users() {
    let pod = pod(&chart_in("nft"), &["ip rule add uidrange 1000-1000 unreachable"]);
    probe(&pod, OUTBOUND, Proxy);
    let of_1000 = Run::new("explain outbound --to 192.0.2.1:80 --uid 1000").output(&pod.0.pod);
    assert_eq!(of_1000.code(), Some(1), "{}", of_1000.said());
    assert!(of_1000.said().contains("ENETUNREACH"), "{}", of_1000.said());
    let client = Client {
        owner: Owner { uid: 1000, gid: 1000 },
        ..Client::new(SocketAddr::new(POD[0], PORT.fetch_add(1, Ordering::Relaxed)))
    };
    let outcome = pod.1.connect(&pod.0.pod, &client, SocketAddr::new(DISTANT[0], 80));
    assert!(matches!(outcome, Outcome::Refused(Errno::ENETUNREACH)), "{outcome:?}");
}

/// Rules that do more than proxy-init's are somebody else's, and a second run puts its own in their place.
#[test]
fn a_rule_with_another_effect_is_not_proxy_inits() {
    for effect in [
        "dup to 10.77.0.1 device eth0",
        "log",
        "meta mark set 7",
        "ct mark set 7",
        "meta nftrace set 1",
        "ct zone set 7",
    ] {
        let lab = Lab::new();
        install(&lab.pod, &chart_in("nft"));
        let listed = lab.pod.sh("nft -a list chain ip nat PROXY_INIT_REDIRECT");
        let line = listed.lines().find(|line| line.contains("all-incoming")).unwrap();
        let (_, handle) = line.rsplit_once("# handle ").unwrap();
        lab.pod.sh(&format!(
            "nft replace rule ip nat PROXY_INIT_REDIRECT handle {handle} {effect} meta l4proto tcp redirect to :4143 \
             comment \"proxy-init/redirect-all-incoming-to-proxy-port\""
        ));
        let verify = || Run::new(&format!("verify {}", chart_in("nft"))).output(&lab.pod);
        let found = verify();
        assert_eq!(found.code(), Some(3), "{effect}: {}", found.said());
        // The diff shows what differs.
        let text = unfolded(&found.stdout());
        let (_, sides) = text.split_once(" - -A ").unwrap();
        let (expected, others) = sides.split_once(" + -A ").unwrap();
        assert!(!others.starts_with(expected), "{effect}: {}", found.said());
        install(&lab.pod, &chart_in("nft"));
        assert_eq!(verify().code(), Some(0), "{effect}: {}", verify().said());
        let listed = lab.pod.sh("nft list chain ip nat PROXY_INIT_REDIRECT");
        let words: Vec<&str> = effect.split(' ').take(2).collect();
        assert!(!listed.contains(&words.join(" ")), "{effect}: {listed}");
    }
}

/// A link-local address binds the socket to its device, which routing to lo keeps. The pod's own is reached by lo.
#[test]
fn a_socket_that_is_bound_to_a_device_is_not_redirected_to_lo() {
    let lab = Lab::new();
    install(&lab.pod, &chart_in("nft"));
    let handshakes = Handshakes::new(&[&lab.pod, &lab.outside], &[4143, 4140, 80]);
    let link_local = |namespace: &Namespace, device: &str| -> Ipv6Addr {
        let said = namespace.sh(&format!("ip -6 -o address show dev {device} scope link"));
        let address = said.split_whitespace().find_map(|word| word.strip_suffix("/64"));
        address.unwrap().parse().unwrap()
    };
    let own = link_local(&lab.pod, "eth0");
    // Until it is known that nobody else has an address, it can't be used.
    for namespace in [&lab.pod, &lab.outside] {
        let start = std::time::Instant::now();
        while !namespace.sh("ip -6 address show tentative").is_empty() {
            assert!(start.elapsed() < std::time::Duration::from_secs(20));
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    let index = lab.pod.sh("ip -o link show eth0");
    let index: u32 = index.split(':').next().unwrap().trim().parse().unwrap();
    for (to, want, words) in [
        (link_local(&lab.outside, "pod0"), None, "dropped: it is redirected to this host, and its socket is bound"),
        (own, Some(80), "bypasses the proxy"),
    ] {
        let said = Run::new(&format!("explain outbound --to [{to}]:80 --out eth0")).output(&lab.pod).success();
        assert!(said.starts_with(words), "{to}: {said}");
        let at = |address, port| SocketAddr::from(SocketAddrV6::new(address, port, 0, index));
        let port = PORT.fetch_add(1, Ordering::Relaxed);
        let got = match handshakes.connect(&lab.pod, &Client::new(at(own, port)), at(to, 80)) {
            Outcome::Answered { at, .. } => Some(at.port()),
            _ => None,
        };
        assert_eq!(got, want, "{to}");
    }
}

/// Connections by another device aren't those by eth0.
#[test]
fn a_finding_about_a_device_names_it() {
    let lab = Lab::new();
    install(&lab.pod, &chart_in("nft"));
    lab.pod.sh("ip link add eth1 type veth peer name eth2");
    lab.pod.sh(&of_device("ingress", "eth1", "meta l4proto tcp drop"));
    let said = Run::new("explain inbound --to 10.77.0.2:80 --in eth0").output(&lab.pod).success();
    assert!(said.starts_with("to the proxy"), "{said}");
    let verified = Run::new(&format!("verify {}", chart_in("nft"))).output(&lab.pod);
    assert_eq!(verified.code(), Some(3), "{}", verified.said());
    assert!(unfolded(&verified.stdout()).contains("drops connections: arriving on \"eth1\""), "{}", verified.said());
    // Packets from lo are no inbound connection.
    let lab = Lab::new();
    install(&lab.pod, &chart_in("nft"));
    lab.pod.sh(&of_device("ingress", "lo", "tcp dport 80 drop"));
    let verified = Run::new(&format!("verify {}", chart_in("nft"))).output(&lab.pod);
    assert_eq!(verified.code(), Some(0), "{}", verified.said());
}
