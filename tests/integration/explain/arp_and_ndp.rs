//! Before the first packet of a connection, neighbours find each other. What drops that drops all connections:
//! explain and verify say so, and real connections show it.

use std::net::SocketAddr;

use lab::handshake::{Client, Handshakes, Outcome};
use lab::network::{Lab, NEIGHBOUR, Owner, POD, ROOT, families};
use serde_json::Value;

use crate::support::{Finished, Run, chart_in, install, nft, unfolded};

/// Other programs' rules, and who finds whom beside them.
struct Firewall {
    rules: &'static str,
    /// Where connections come in.
    is_found: bool,
    /// Where they leave.
    finds: bool,
}

const fn firewall(rules: &'static str, is_found: bool, finds: bool) -> Firewall {
    Firewall { rules, is_found, finds }
}

const FIREWALLS: [Firewall; 23] = [
    // The most usual firewall of IPv6.
    firewall(
        "table ip6 f { chain in { type filter hook input priority 0; policy drop; ct state established,related accept; iif lo accept; tcp dport { 4143, 4190 } accept; }; }",
        false,
        false,
    ),
    firewall(
        "table ip6 f { chain in { type filter hook input priority 0; policy drop; ct state established,related accept; iif lo accept; icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } ip6 hoplimit 255 accept; tcp dport { 4143, 4190 } accept; }; }",
        true,
        true,
    ),
    firewall(
        "table inet f { chain in { type filter hook input priority 0; policy drop; ct state established,related,untracked accept; iif lo accept; tcp dport { 4143, 4190 } accept; }; }",
        true,
        true,
    ),
    firewall(
        "table inet f { chain out { type filter hook output priority 0; policy accept; meta l4proto icmpv6 drop; }; }",
        false,
        false,
    ),
    // The asking side is known then: only the connecting side asks for the neighbour.
    firewall(
        "table inet f { chain out { type filter hook output priority 0; policy accept; icmpv6 type nd-neighbor-advert drop; }; }",
        false,
        true,
    ),
    // nft loads the type and the code as one number, where TCP's packets have the source port.
    firewall(
        "table inet f { chain out { type filter hook output priority 0; policy accept; icmpv6 type nd-neighbor-advert icmpv6 code no-route drop; }; }",
        false,
        true,
    ),
    firewall(
        "table inet f { chain out { type filter hook output priority 0; policy accept; icmpv6 type nd-neighbor-advert icmpv6 code 1 drop; }; }",
        true,
        true,
    ),
    firewall(
        "table ip6 f { chain out { type filter hook output priority 0; policy accept; meta l4proto ipv6-icmp th sport != 34560 drop; }; }",
        false,
        true,
    ),
    firewall(
        "table inet f { chain out { type filter hook postrouting priority 0; policy accept; ip6 daddr ff02::/16 drop; }; }",
        true,
        false,
    ),
    firewall(
        "table inet f { chain pre { type filter hook prerouting priority -300; policy accept; ip6 daddr ff02::1:ff00:0/104 drop; }; }",
        false,
        true,
    ),
    firewall(
        "table inet f { chain pre { type filter hook prerouting priority 0; policy accept; ct state invalid drop; }; }",
        true,
        true,
    ),
    firewall(
        "table netdev f { chain in { type filter hook ingress device eth0 priority 0; policy drop; meta l4proto tcp accept; }; }",
        false,
        false,
    ),
    firewall("ip6tables -t mangle -A POSTROUTING -j HL --hl-set 64", false, false),
    firewall("ip6tables -t mangle -A POSTROUTING -j HL --hl-set 255", true, true),
    firewall("ip6tables -A INPUT -p ipv6-icmp -j DROP", false, false),
    firewall("ip6tables -A INPUT -p ipv6-icmp ! --icmpv6-type neighbour-solicitation -j DROP", true, false),
    firewall("ip6tables -A INPUT -p ipv6-icmp -m hl --hl-lt 255 -j DROP", true, true),
    firewall("ip6tables-legacy -A OUTPUT -p ipv6-icmp --icmpv6-type neighbour-advertisement -j DROP", false, true),
    firewall("ip6tables-legacy -A OUTPUT -p ipv6-icmp --icmpv6-type echo-request -j DROP", true, true),
    firewall("ip6tables -A INPUT -m conntrack --ctstate UNTRACKED -j DROP", false, false),
    // The kernel's own packets are of another user to xt's match, and of none to nft.
    firewall("ip6tables -A OUTPUT -p ipv6-icmp -m owner ! --uid-owner 7 -j DROP", false, false),
    firewall("ip6tables-legacy -A OUTPUT -p ipv6-icmp -m owner ! --gid-owner 7 -j DROP", false, false),
    firewall(
        "table ip6 f { chain out { type filter hook output priority 0; policy accept; meta l4proto icmpv6 meta skuid != 7 drop; }; }",
        true,
        true,
    ),
];

/// A script for nft, or a command.
fn apply(lab: &Lab, rules: &str) {
    if rules.starts_with("table ") {
        nft(&lab.pod, rules);
    } else {
        lab.pod.sh(rules);
    }
}

/// Returns true if a connection over a family is answered, inbound or outbound: of the proxy's user, so that it leaves.
fn is_answered(lab: &Lab, handshakes: &Handshakes, family: usize, is_inbound: bool) -> bool {
    let (ours, theirs) = (SocketAddr::new(POD[family], 0), SocketAddr::new(NEIGHBOUR[family], 0));
    let (from, mut to, namespace) = if is_inbound { (theirs, ours, &lab.outside) } else { (ours, theirs, &lab.pod) };
    to.set_port(80);
    let client = Client { owner: Owner { uid: 2102, ..ROOT }, ..Client::new(SocketAddr::new(from.ip(), 20_000)) };
    matches!(handshakes.connect(namespace, &client, to), Outcome::Answered { .. })
}

#[test]
fn neighbours_find_each_other_where_the_answer_says() {
    if families() < 2 {
        return;
    }
    for Firewall { rules, is_found, finds } in FIREWALLS {
        for is_inbound in [true, false] {
            let Asked { said, verified, is_answered } = ask(rules, 1, is_inbound, "");
            let lives = if is_inbound { is_found } else { finds };
            assert_eq!(is_answered, lives, "{rules}: {is_inbound}: {said}");
            let says_lost = said.starts_with("dropped: the neighbour ");
            assert_eq!(says_lost, !lives, "{rules}: {is_inbound}: {said}");
            let is_in_place = is_found && finds;
            let code = Some(if is_in_place { 0 } else { 3 });
            assert_eq!(verified.code(), code, "{rules}: {}", unfolded(&verified.stdout()));
        }
    }
}

/// The answers about a connection to or from a neighbour, and the connection's fate.
struct Asked {
    said: String,
    verified: Finished,
    is_answered: bool,
}

/// Asks in a pod with these rules about the first or the second family, and then connects; `flags` are verify's.
fn ask(rules: &str, family: usize, is_inbound: bool, flags: &str) -> Asked {
    // A namespace in which nobody has asked yet: what is known of a neighbour stays.
    let lab = Lab::new();
    install(&lab.pod, &chart_in("nft"));
    apply(&lab, rules);
    let at = |address, port| SocketAddr::new(address, port);
    let line = if is_inbound {
        format!("explain inbound --to {} --from {}", at(POD[family], 80), at(NEIGHBOUR[family], 20_000))
    } else {
        format!("explain outbound --to {} --uid 2102", at(NEIGHBOUR[family], 80))
    };
    let said = Run::new(&line).output(&lab.pod).success();
    let verified = Run::new(&format!("verify {}{flags}", chart_in("nft"))).output(&lab.pod);
    let handshakes = Handshakes::new(&[&lab.pod, &lab.outside], &[80, 4143, 4140]);
    Asked { said, verified, is_answered: is_answered(&lab, &handshakes, family, is_inbound) }
}

/// ARP's, whose packets pass its own tables and those of devices.
#[test]
fn arp_finds_neighbours_where_the_answer_says() {
    for (rules, is_found, finds) in [
        ("table arp f { chain in { type filter hook input priority 0; policy drop; }; }", false, false),
        ("table arp f { chain out { type filter hook output priority 0; policy drop; }; }", false, false),
        (
            "table arp f { chain in { type filter hook input priority 0; policy accept; iifname \"lo\" drop; }; }",
            true,
            true,
        ),
        (
            "table netdev f { chain in { type filter hook ingress device eth0 priority 0; policy drop; meta l4proto tcp accept; }; }",
            false,
            false,
        ),
        (
            "table netdev f { chain in { type filter hook ingress device eth0 priority 0; policy drop; meta protocol { ip, arp } accept; }; }",
            true,
            true,
        ),
        (
            "table inet f { chain in { type filter hook input priority 0; policy drop; ct state established,related accept; iif \"lo\" accept; tcp dport { 4143, 4190 } accept; }; }",
            true,
            true,
        ),
    ] {
        for is_inbound in [true, false] {
            let Asked { said, verified, is_answered } = ask(rules, 0, is_inbound, " --ipv6=false");
            let lives = if is_inbound { is_found } else { finds };
            assert_eq!(is_answered, lives, "{rules}: {is_inbound}: {said}");
            assert_eq!(said.starts_with("dropped: the ARP "), !lives, "{rules}: {is_inbound}: {said}");
            let is_named = verified.stdout().contains("ARP");
            assert_eq!(is_named, !(is_found && finds), "{rules}: {}", verified.said());
        }
    }
}

/// The command that verify names is one that the kernel takes, and it helps.
#[test]
fn what_verify_names_lets_neighbours_find_each_other() {
    if families() < 2 {
        return;
    }
    let firewalls = FIREWALLS.iter().filter(|firewall| !(firewall.is_found && firewall.finds));
    for Firewall { rules, .. } in firewalls.filter(|firewall| !firewall.rules.contains("HL")) {
        let lab = Lab::new();
        install(&lab.pod, &chart_in("nft"));
        apply(&lab, rules);
        let verify = format!("verify {} --output json", chart_in("nft"));
        // One may be dropped in two places.
        for _ in 0..2 {
            let report: Value = serde_json::from_str(&Run::new(&verify).output(&lab.pod).stdout()).unwrap();
            for finding in report["findings"].as_array().unwrap() {
                assert_eq!(finding["kind"], "dropped", "{rules}: {report:#}");
                let command = finding["wanted"][0].as_str().unwrap_or_else(|| panic!("{rules}: {finding:#}"));
                lab.pod.sh(command);
            }
        }
        assert_eq!(Run::new(&verify).output(&lab.pod).code(), Some(0), "{rules}");
        let handshakes = Handshakes::new(&[&lab.pod, &lab.outside], &[80, 4143, 4140]);
        for is_inbound in [true, false] {
            assert!(is_answered(&lab, &handshakes, 1, is_inbound), "{rules}");
        }
    }
}
