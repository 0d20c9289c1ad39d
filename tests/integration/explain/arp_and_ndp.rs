//! Before the first packet of a connection, neighbours find each other. What drops that drops all connections:
//! explain and verify say so, and real connections show it.

use std::net::SocketAddr;

use lab::handshake::{Client, Handshakes, Outcome};
use lab::network::{Lab, NEIGHBOUR, Owner, POD, ROOT, families};
use serde_json::Value;

use crate::support::{Run, chart_in, install, nft, unfolded};

/// Another program's rules, and who finds whom beside them.
struct Firewall {
    /// The family of a table with one chain; none: the rules are a command.
    family: &'static str,
    /// Of the chain, with a priority.
    hook: &'static str,
    rules: &'static str,
    /// Where connections come in.
    is_found: bool,
    /// Where they leave.
    finds: bool,
}

impl Firewall {
    fn apply(&self, lab: &Lab) {
        let Self { family, hook, rules, .. } = self;
        if family.is_empty() {
            lab.pod.sh(rules);
        } else {
            nft(&lab.pod, &format!("table {family} f {{ chain c {{ type filter hook {hook}; {rules}; }}; }}"));
        }
    }
}

const fn chain(
    family: &'static str,
    hook: &'static str,
    rules: &'static str,
    [is_found, finds]: [bool; 2],
) -> Firewall {
    Firewall { family, hook, rules, is_found, finds }
}

const fn command(rules: &'static str, [is_found, finds]: [bool; 2]) -> Firewall {
    Firewall { family: "", hook: "", rules, is_found, finds }
}

const IN: &str = "input priority 0";
const OUT: &str = "output priority 0";
const DEVICE: &str = "ingress device eth0 priority 0";

/// Found by neighbours and finding them, found alone, finding alone, or neither.
const BOTH: [bool; 2] = [true, true];
const FOUND: [bool; 2] = [true, false];
const FINDS: [bool; 2] = [false, true];
const NEITHER: [bool; 2] = [false, false];

/// The most usual firewall of all, as it is for IPv4, and what it takes for IPv6's neighbours.
const USUAL: &str = "policy drop; ct state established,related accept; iif lo accept; tcp dport { 4143, 4190 } accept";
const OF_UNTRACKED: &str =
    "policy drop; ct state established,related,untracked accept; iif lo accept; tcp dport 4143 accept";
const OF_NEIGHBOURS: &str = "policy drop; ct state established,related accept; iif lo accept; tcp dport 4143 accept; \
                             icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } ip6 hoplimit 255 accept";

const FIREWALLS: [Firewall; 23] = [
    chain("ip6", IN, USUAL, NEITHER),
    chain("ip6", IN, OF_NEIGHBOURS, BOTH),
    chain("inet", IN, OF_UNTRACKED, BOTH),
    chain("inet", OUT, "meta l4proto icmpv6 drop", NEITHER),
    // The asking side is known then: only the connecting side asks for the neighbour.
    chain("inet", OUT, "icmpv6 type nd-neighbor-advert drop", FINDS),
    // nft loads the type and the code as one number, where TCP's packets have the source port.
    chain("inet", OUT, "icmpv6 type nd-neighbor-advert icmpv6 code no-route drop", FINDS),
    chain("inet", OUT, "icmpv6 type nd-neighbor-advert icmpv6 code 1 drop", BOTH),
    chain("ip6", OUT, "meta l4proto ipv6-icmp th sport != 34560 drop", FINDS),
    chain("inet", "postrouting priority 0", "ip6 daddr ff02::/16 drop", FOUND),
    chain("inet", "prerouting priority -300", "ip6 daddr ff02::1:ff00:0/104 drop", FINDS),
    chain("inet", "prerouting priority 0", "ct state invalid drop", BOTH),
    chain("netdev", DEVICE, "policy drop; meta l4proto tcp accept", NEITHER),
    command("ip6tables -t mangle -A POSTROUTING -j HL --hl-set 64", NEITHER),
    command("ip6tables -t mangle -A POSTROUTING -j HL --hl-set 255", BOTH),
    command("ip6tables -A INPUT -p ipv6-icmp -j DROP", NEITHER),
    command("ip6tables -A INPUT -p ipv6-icmp ! --icmpv6-type neighbour-solicitation -j DROP", FOUND),
    command("ip6tables -A INPUT -p ipv6-icmp -m hl --hl-lt 255 -j DROP", BOTH),
    command("ip6tables-legacy -A OUTPUT -p ipv6-icmp --icmpv6-type neighbour-advertisement -j DROP", FINDS),
    command("ip6tables-legacy -A OUTPUT -p ipv6-icmp --icmpv6-type echo-request -j DROP", BOTH),
    command("ip6tables -A INPUT -m conntrack --ctstate UNTRACKED -j DROP", NEITHER),
    // The kernel's own packets are of another user to xt's match, and of none to nft.
    command("ip6tables -A OUTPUT -p ipv6-icmp -m owner ! --uid-owner 7 -j DROP", NEITHER),
    command("ip6tables-legacy -A OUTPUT -p ipv6-icmp -m owner ! --gid-owner 7 -j DROP", NEITHER),
    chain("ip6", OUT, "meta l4proto icmpv6 meta skuid != 7 drop", BOTH),
];

/// ARP's packets pass its own tables and those of devices.
const OF_ARP: [Firewall; 6] = [
    chain("arp", IN, "policy drop", NEITHER),
    chain("arp", OUT, "policy drop", NEITHER),
    chain("arp", IN, "iifname \"lo\" drop", BOTH),
    chain("netdev", DEVICE, "policy drop; meta l4proto tcp accept", NEITHER),
    chain("netdev", DEVICE, "policy drop; meta protocol { ip, arp } accept", BOTH),
    chain("inet", IN, USUAL, BOTH),
];

/// Returns true if a connection over a family is answered, inbound or outbound: of the proxy's user, so that it leaves.
fn is_answered(lab: &Lab, handshakes: &Handshakes, family: usize, is_inbound: bool) -> bool {
    let (ours, theirs) = (SocketAddr::new(POD[family], 0), SocketAddr::new(NEIGHBOUR[family], 0));
    let (from, mut to, namespace) = if is_inbound { (theirs, ours, &lab.outside) } else { (ours, theirs, &lab.pod) };
    to.set_port(80);
    let client = Client { owner: Owner { uid: 2102, ..ROOT }, ..Client::new(SocketAddr::new(from.ip(), 20_000)) };
    matches!(handshakes.connect(namespace, &client, to), Outcome::Answered { .. })
}

/// What explain says, what verify does, and whether a connection lives are the same: of ARP and of neighbour discovery.
#[test]
fn neighbours_find_each_other_where_the_answer_says() {
    let of_v4 = OF_ARP.iter().map(|firewall| (0, firewall));
    let of_v6 = FIREWALLS.iter().map(|firewall| (1, firewall));
    for (family, firewall) in of_v4.chain(of_v6).filter(|(family, _)| *family < families()) {
        let Firewall { family: table, hook, rules, is_found, finds } = firewall;
        for is_inbound in [true, false] {
            let what = format!("{table} {hook} {rules}, inbound: {is_inbound}");
            // A namespace in which nobody has asked yet: what is known of a neighbour stays.
            let lab = Lab::new();
            install(&lab.pod, &chart_in("nft"));
            firewall.apply(&lab);
            let at = |address, port| SocketAddr::new(address, port);
            let line = if is_inbound {
                format!("explain inbound --to {} --from {}", at(POD[family], 80), at(NEIGHBOUR[family], 20_000))
            } else {
                format!("explain outbound --to {} --uid 2102", at(NEIGHBOUR[family], 80))
            };
            let said = Run::new(&line).output(&lab.pod).success();
            let flags = ["--ipv6=false", ""][family];
            let verified = Run::new(&format!("verify {} {flags}", chart_in("nft"))).output(&lab.pod);
            let handshakes = Handshakes::new(&[&lab.pod, &lab.outside], &[80, 4143, 4140]);
            let lives = *if is_inbound { is_found } else { finds };
            assert_eq!(is_answered(&lab, &handshakes, family, is_inbound), lives, "{what}: {said}");
            let lost = ["dropped: the ARP ", "dropped: the neighbour "][family];
            assert_eq!(said.starts_with(lost), !lives, "{what}: {said}");
            if family == 0 {
                assert_eq!(verified.stdout().contains("ARP"), !(*is_found && *finds), "{what}: {}", verified.said());
            } else {
                let code = if *is_found && *finds { 0 } else { 3 };
                assert_eq!(verified.code(), Some(code), "{what}: {}", unfolded(&verified.stdout()));
            }
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
    for firewall in firewalls.filter(|firewall| !firewall.rules.contains("HL")) {
        let rules = firewall.rules;
        let lab = Lab::new();
        install(&lab.pod, &chart_in("nft"));
        firewall.apply(&lab);
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
