//! What a packet is at each hook, there and back: rules that depend on it, beside proxy-init's, and real connections. What
//! explain says has to come true, and verify finds everything in place exactly where connections get to the proxy.

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use serde_json::Value;
use xtask::lab::{DISTANT, Lab, NEIGHBOUR, Namespace, POD, ROOT, Server};

use crate::judge::{Arrival, arrival};
use crate::support::{Run, chart_in, install};

/// What becomes of a connection to port 80.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Proxy,
    Bypass,
    Lost,
}

use End::{Bypass, Lost, Proxy};

/// A source port for each connection, so that none meets what another has left behind.
static PORT: AtomicU16 = AtomicU16::new(33_000);

/// Makes a connection, and asks explain about it. Returns what became of it, and the answer.
fn connect(lab: &Lab, is_inbound: bool) -> (End, String) {
    let port = PORT.fetch_add(1, Ordering::Relaxed);
    let (namespace, from, to, proxy) = match is_inbound {
        true => (&lab.outside, NEIGHBOUR[0], POD[0], 4143),
        false => (&lab.pod, POD[0], DISTANT[0], 4140),
    };
    let (from, to) = (SocketAddr::new(from, port), SocketAddr::new(to, 80));
    let way = match is_inbound {
        true => format!("inbound --to {to} --from {from} --in eth0"),
        false => format!("outbound --to {to} --from {from} --uid 0 --gid 0"),
    };
    let said = Run::new(&format!("explain {way}")).output(&lab.pod).success();
    let answer = said.lines().next().unwrap().to_owned();
    let patience = match answer.starts_with("dropped") {
        true => Duration::from_millis(200),
        false => Duration::from_secs(2),
    };
    let end = match arrival(namespace, ROOT, from, to, patience) {
        Arrival::Lost => Lost,
        Arrival::Port(80) => Bypass,
        Arrival::Port(port) if port == proxy => Proxy,
        Arrival::Port(port) => panic!("arrived at port {port}"),
    };
    (end, answer)
}

/// Rules of another program beside proxy-init's, and what becomes of an inbound and of an outbound connection.
fn check(lines: &[&str], inbound: End, outbound: End) {
    let lab = Lab::new();
    install(&lab.pod, &chart_in("nft"));
    for line in lines {
        lab.pod.sh(line);
    }
    let _servers = [
        Server::start(&lab.pod, &[4143, 4140, 80]),
        Server::start(&lab.outside, &[80]),
    ];
    for (is_inbound, want) in [(true, inbound), (false, outbound)] {
        let (end, answer) = connect(&lab, is_inbound);
        assert_eq!(
            end, want,
            "{lines:?}, inbound: {is_inbound}: the test is wrong, explain says {answer}"
        );
        let said = match answer.as_str() {
            "to the proxy, port 4143" | "to the proxy, port 4140" => Some(Proxy),
            "bypasses the proxy" => Some(Bypass),
            answer if answer.starts_with("dropped") => Some(Lost),
            _ => None,
        };
        assert_eq!(said, Some(want), "{lines:?}, inbound: {is_inbound}: {answer}");
    }
    let verified = Run::new(&format!("verify --output json {}", chart_in("nft"))).output(&lab.pod);
    let is_in_place = inbound == Proxy && outbound == Proxy;
    assert_eq!(
        verified.code(),
        Some(if is_in_place { 0 } else { 3 }),
        "{lines:?}: {}",
        verified.said()
    );
    let report: Value = serde_json::from_str(&verified.stdout()).unwrap();
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
    check(
        &[&chain(
            "prerouting",
            -300,
            "ct state new accept ; meta l4proto tcp drop",
        )],
        Lost,
        Lost,
    );
    // Here the answers are dropped too.
    check(&[&chain("output", -300, "ct state invalid drop")], Lost, Lost);
    check(
        &[&chain("ingress device eth0", 0, "ct state invalid drop")],
        Lost,
        Proxy,
    );
    check(
        &["iptables-nft -t raw -A PREROUTING -m conntrack --ctstate INVALID -j DROP"],
        Lost,
        Proxy,
    );
    check(
        &["iptables-legacy -t raw -A PREROUTING -m conntrack --ctstate INVALID -j DROP"],
        Lost,
        Proxy,
    );
}

/// What lo brings back is what it was.
#[test]
fn before_connection_tracking_no_packet_from_outside_is_new() {
    check(&[&chain("output", -300, "ct state new drop")], Proxy, Proxy);
    check(
        &[&chain("prerouting", -300, "iifname eth0 ct state new drop")],
        Proxy,
        Proxy,
    );
    check(&[&chain("prerouting", -300, "ct state new drop")], Proxy, Lost);
    check(&[&chain("ingress device lo", 0, "ct state new drop")], Proxy, Lost);
}

#[test]
fn what_is_tracked_is_not_untracked_and_notrack_ends_no_rule() {
    check(&[&chain("prerouting", -150, "tcp dport 80 notrack")], Proxy, Proxy);
    // Of its answer the second packet is taken for a new connection, which proxy-init's rules redirect.
    check(&[&chain("prerouting", -300, "tcp dport 80 notrack")], Lost, Proxy);
    let answer = "nft table inet back { chain c { type filter hook output priority -300 ; tcp sport 80 notrack ; } ; }";
    check(
        &[&chain("prerouting", -300, "tcp dport 80 notrack"), answer],
        Bypass,
        Proxy,
    );
    check(&[&chain("prerouting", -300, "tcp dport 80 notrack drop")], Lost, Proxy);
    check(
        &[
            &chain("prerouting", -300, "tcp dport 80 notrack goto x ; tcp dport 80 drop"),
            answer,
        ],
        Bypass,
        Proxy,
    );
    check(
        &[
            &chain("prerouting", -300, "tcp dport 80 notrack accept ; tcp dport 80 drop"),
            answer,
        ],
        Bypass,
        Proxy,
    );
    // What isn't tracked on its way back isn't translated back.
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
    // The most common firewall of all.
    let firewall = "policy drop ; iif lo accept ; ct state established,related accept ; tcp dport 4143 accept";
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
    check(
        &["iptables-nft -t mangle -A PREROUTING -p tcp -j TEE --gateway 10.77.0.1"],
        Proxy,
        Proxy,
    );
}

#[test]
fn chains_for_other_packets_do_not_tie() {
    let udp = |name: &str, hook: &str, priority: i32| {
        format!(
            "nft table inet {name} {{ chain c {{ type filter hook {hook} priority {priority} ; udp dport 53 drop ; }} ; }}"
        )
    };
    check(
        &[&udp("a", "output", -100), &udp("b", "prerouting", -100)],
        Proxy,
        Proxy,
    );
    let three = ["a", "b", "c"];
    let lines: Vec<String> = ["prerouting", "input", "output"]
        .iter()
        .flat_map(|hook| three.map(|name| udp(&format!("{name}{hook}"), hook, -150)))
        .collect();
    check(&lines.iter().map(String::as_str).collect::<Vec<_>>(), Proxy, Proxy);
}

/// A link-local address binds the socket to its device, which routing to lo keeps. The pod's own is reached by lo.
#[test]
fn a_socket_that_is_bound_to_a_device_is_not_redirected_to_lo() {
    let lab = Lab::new();
    install(&lab.pod, &chart_in("nft"));
    let _servers = [
        Server::start(&lab.pod, &[4143, 4140, 80]),
        Server::start(&lab.outside, &[80]),
    ];
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
            assert!(start.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    let index = lab.pod.sh("ip -o link show eth0");
    let index: u32 = index.split(':').next().unwrap().trim().parse().unwrap();
    for (to, want, words) in [
        (
            link_local(&lab.outside, "pod0"),
            Arrival::Lost,
            "dropped: it is redirected to this host, and its socket is bound",
        ),
        (own, Arrival::Port(80), "bypasses the proxy"),
    ] {
        let said = Run::new(&format!("explain outbound --to [{to}]:80 --out eth0"))
            .output(&lab.pod)
            .success();
        assert!(said.starts_with(words), "{to}: {said}");
        let at = |address, port| SocketAddr::from(SocketAddrV6::new(address, port, 0, index));
        let port = PORT.fetch_add(1, Ordering::Relaxed);
        let got = arrival(&lab.pod, ROOT, at(own, port), at(to, 80), Duration::from_millis(400));
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
    let said = Run::new("explain inbound --to 10.77.0.2:80 --in eth0")
        .output(&lab.pod)
        .success();
    assert!(said.starts_with("to the proxy"), "{said}");
    let verified = Run::new(&format!("verify {}", chart_in("nft"))).output(&lab.pod);
    assert_eq!(verified.code(), Some(3), "{}", verified.said());
    assert!(
        verified.stdout().contains("drops connections: in by \"eth1\""),
        "{}",
        verified.said()
    );
    // What lo brings is no inbound connection.
    let lab = Lab::new();
    install(&lab.pod, &chart_in("nft"));
    lab.pod.sh(&of_device("ingress", "lo", "tcp dport 80 drop"));
    let verified = Run::new(&format!("verify {}", chart_in("nft"))).output(&lab.pod);
    assert_eq!(verified.code(), Some(0), "{}", verified.said());
}
