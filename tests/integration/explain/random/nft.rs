//! Random tables of other programs', in nft's language.

use proptest::prelude::*;
use proptest::sample::select;

use super::pod::{ELSEWHERE, PORTS};

/// Conditions with actions.
type Rules = Vec<(String, String)>;

/// A table with one base chain.
#[derive(Debug, Clone)]
pub(super) struct Table {
    family: &'static str,
    hook: &'static str,
    kind: &'static str,
    priority: i32,
    /// The device of a chain at ingress or egress.
    device: &'static str,
    dormant: bool,
    drops: bool,
    prelude: &'static str,
    base: Rules,
    one: Rules,
    two: Rules,
    pub(super) before: bool,
}

/// The beginning of most firewalls.
const PRELUDES: [&str; 9] = [
    "",
    "",
    "",
    "",
    "ct state established,related accept",
    "ct state vmap { established : accept, related : accept, invalid : drop }",
    "ct state invalid drop; ct state established accept",
    "iif lo accept",
    "iif lo accept; ct state { established, related } accept; tcp dport { 80, 4143 } accept",
];

/// The sets and maps of a table, and the words by which rules name them.
const SETS: [(&str, &str); 6] = [
    ("@some", "set some { type inet_service; elements = { 443 }; }"),
    ("@hosts", "set hosts { type ipv4_addr; flags interval; elements = { 10.77.0.1, 192.0.2.0/25 }; }"),
    (
        "@pairs",
        "set pairs { type ipv4_addr . inet_service; flags interval; elements = { 10.77.0.0/24 . 80-443, 192.0.2.1 . 8080 }; }",
    ),
    (
        "@sixes",
        "map sixes { type ipv6_addr . inet_service : verdict; elements = { fd77::2 . 80 : drop, fd77::2 . 443 : jump two, fd77::1 . 8080 : accept }; }",
    ),
    ("@links", "set links { type ifname; elements = { \"eth0\" }; }"),
    ("@ways", "map ways { type inet_service : verdict; elements = { 80 : jump two, 443 : drop, 8080 : return }; }"),
];

pub(super) fn any_table() -> impl Strategy<Value = Table> {
    let rules = |most| prop::collection::vec((any_condition(), any_action()), 0..most);
    let hooks = [
        ("nat", "prerouting"),
        ("nat", "prerouting"),
        ("nat", "output"),
        ("nat", "output"),
        ("nat", "input"),
        ("nat", "postrouting"),
        ("route", "output"),
        ("filter", "prerouting"),
        ("filter", "prerouting"),
        ("filter", "output"),
        ("filter", "output"),
        ("filter", "input"),
        ("filter", "input"),
        ("filter", "postrouting"),
        ("filter", "forward"),
        ("filter", "ingress"),
        ("filter", "egress"),
    ];
    // Those that firewalls take, the turns of the kernel's own hooks, and any.
    let priority = prop_oneof![
        2 => select(&[-300, -150, -100, 0, 100, 225, 300][..]),
        2 => select(&[-201, -199, -101, -99, -1, 1, 99, 101][..]),
        1 => Just(-200),
        5 => -400..=300,
    ];
    (
        (select(&["inet", "inet", "ip", "ip6"][..]), select(hooks.to_vec()), priority),
        (select(&["eth0", "eth0", "eth1", "lo"][..]), any::<bool>()),
        (prop::bool::weighted(0.05), prop::bool::weighted(0.08)),
        select(&PRELUDES[..]),
        (rules(4), rules(3), rules(3)),
        any::<bool>(),
    )
        .prop_map(
            |(
                (family, (kind, hook), priority),
                (device, netdev),
                (dormant, drops),
                prelude,
                (base, one, two),
                before,
            )| {
                // nft knows ingress in two families, and egress in one.
                let family = match hook {
                    "egress" => "netdev",
                    "ingress" if netdev => "netdev",
                    "ingress" => "inet",
                    _ => family,
                };
                // nf_tables takes no nat chain before connection tracking.
                let priority = match kind {
                    "nat" if priority <= -200 => priority + 250,
                    _ => priority,
                };
                Table {
                    family,
                    hook,
                    kind,
                    priority,
                    device,
                    dormant,
                    drops: drops && kind == "filter",
                    prelude,
                    base,
                    one,
                    two,
                    before,
                }
            },
        )
}

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
        1 => words(&["tcp dport { 4143, 4140 }", "tcp dport 4143", "tcp dport != { 80, 4140 }", "tcp sport { 80, 4140, 4143 }"]),
        1 => words(&["tcp sport 20000-40000", "tcp sport < 30000", "tcp sport != 25000-35000", "tcp dport 8080 tcp sport & 1 == 1"]),
        2 => words(&[
            "ip saddr . tcp dport @pairs", "ip daddr . tcp dport @pairs", "iifname . tcp dport { \"eth0\" . 80, \"lo\" . 4140 }",
            "iifgroup 0", "iifgroup != 3", "iiftype ether", "oiftype != loopback", "ct state . tcp dport { new . 80, established . 443 }",
            "ip6 saddr . ip6 daddr { fd77::1 . fd77::2, ::1 . ::1 }",
        ]),
        1 => words(&["tcp dport @some", "tcp dport != @some", "ip saddr @hosts", "iifname @links"]),
        1 => words(&["meta l4proto udp", "meta l4proto != udp", "udp dport 53"]),
        2 => words(&[
            "ip saddr 10.77.0.2", "ip saddr != 10.77.0.2", "ip saddr 10.77.0.0/31", "ip saddr != 192.0.2.0/24",
            "ip saddr { 127.0.0.1, 192.0.2.1 }", "ip daddr 127.0.0.0/8", "ip daddr { 10.77.0.1, 10.78.0.1 }",
            "ip6 saddr fd77::/64", "ip6 saddr != fd77::2", "ip6 saddr 2001:db8::1", "ip6 daddr ::1",
        ]),
        1 => (any::<bool>(), 0..=128u8).prop_map(|(not, prefix)| format!(
            "ip6 daddr {}fd77::/{prefix}", if not { "!= " } else { "" }
        )),
        2 => words(&[
            "iifname \"eth0\"", "iifname \"e*\"", "iifname != \"lo\"", "oifname != \"lo\"", "oifname \"eth*\"", "oifname \"lo\"",
            "iifname { \"eth1\", \"lo\" }", "iif lo", "iif eth0", "iif != eth1", "iif { lo, eth1 }", "oif lo", "oif eth0", "oif != { lo, eth0 }",
        ]),
        4 => words(&[
            "ct state new", "ct state established", "ct state != new", "ct state { new, related }", "ct state invalid", "ct state related",
            "ct state untracked", "ct state != invalid", "ct state established,related", "ct state new,untracked",
            "ct state != { established, new }", "ct state ! new",
            "fib daddr type local", "fib daddr type != local", "fib saddr type local", "fib daddr type { local, broadcast }",
        ]),
        1 => words(&["ct direction original", "ct direction reply", "meta l4proto tcp ct original proto-dst 80", "meta l4proto tcp ct original proto-dst != 443",
            "ct original ip saddr 10.77.0.1", "ct original ip daddr != 10.77.0.2", "ct original ip6 daddr fd77::2", "meta cgroup 0", "meta cgroup != 0",
             "ct status dnat", "ct status & dnat != 0", "ct status snat"]),
        2 => words(&["meta mark 0", "meta mark 7", "meta mark != 7", "meta mark & 0x3 == 0x3", "meta mark { 5, 7 }", "ct mark 0", "ct mark 7", "ct mark != 0"]),
        1 => words(&["meta skuid 1000", "meta skuid != 1000", "meta skuid 0-999", "meta skgid 2102", "meta skgid { 0, 1000 }"]),
        1 => words(&["tcp flags syn / syn,ack", "tcp flags & (fin|syn|rst|ack) == syn", "tcp flags ack", "tcp flags rst", "tcp flags != syn / syn,rst", "tcp flags & (syn|ack) == (syn|ack)"]),
        1 => words(&["meta nfproto ipv4", "meta nfproto ipv6"]),
    ]
}

/// A rule's action, where there are two chains to jump to.
fn any_action() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => select(&["accept", "return", "counter"][..]),
        3 => select(&["drop", "drop", "reject with tcp reset", "reject", "counter drop"][..]),
        5 => select(&[
            "meta l4proto tcp redirect to :9999",
            "meta l4proto tcp redirect to :9999",
            "meta l4proto tcp redirect to :9999",
            "meta l4proto tcp redirect to :4143",
            "meta l4proto tcp redirect to :tcp dport map { 80 : 9999, 443 : 4140 }",
            "dnat to elsewhere",
            "masquerade",
        ][..]),
        4 => select(&["jump one", "goto one", "jump two", "goto two"][..]),
        3 => select(&[
            "tcp dport vmap { 80 : accept, 443 : jump two, 8000-9000 : goto one }",
            "tcp dport vmap { 80 : drop, 4143 : accept, 4190 : jump two }",
            "tcp dport vmap @ways",
            "fib daddr type vmap { local : jump two, broadcast : drop }",
            "fib saddr type . tcp dport vmap { unicast . 80 : drop, local . 443 : goto two }",
            "ip6 daddr . tcp dport vmap @sixes",
            "ip saddr . tcp dport vmap { 10.77.0.0/24 . 80-443 : accept, 192.0.2.1 . 8080 : jump two }",
            "iifname . tcp dport vmap { \"eth0\" . 80 : jump two, \"lo\" . 1-9999 : accept }",
            "ct state vmap { new : accept, invalid : jump one }",
            "ct state vmap { established : jump two, untracked : drop }",
            "iifname vmap { \"lo\" : accept, \"eth1\" : jump two }",
            "meta mark vmap { 7 : drop, 0 : jump two }",
        ][..]),
        3 => select(&["notrack", "notrack", "notrack accept", "notrack drop", "notrack goto two"][..]),
        3 => select(&[
            "meta mark set 7", "meta mark set meta mark | 0x1", "ct mark set 7", "meta mark set ct mark", "ct mark set meta mark",
            "meta mark set tcp dport map { 80 : 7, 443 : 5 }", "meta mark set 7 accept", "meta mark set 7 drop",
        ][..]),
        1 => select(&["tcp option maxseg size set 1200", "ip dscp set cs1", "ip ttl set 33", "log", "limit rate 1000/second"][..]),
    ]
    .prop_map(ToOwned::to_owned)
}

impl Table {
    /// The input of nft.
    pub(super) fn script(&self, number: usize) -> String {
        let Self { family, hook, kind, priority, device, .. } = self;
        let rules = |rules: &Rules, chains: &[&str]| {
            let mut text = String::new();
            for (condition, action) in rules {
                if !self.is_refused(condition, action, chains) {
                    text += &format!("    {condition} {}\n", self.in_place(action));
                }
            }
            text
        };
        let device = match *hook {
            "ingress" | "egress" => format!(" device \"{device}\""),
            _ => String::new(),
        };
        let prelude = match self.is_refused(self.prelude, "", &[]) {
            true => "",
            false => self.prelude,
        };
        let (base, one, two) = (
            format!("{prelude}\n{}", rules(&self.base, &["one", "two"])),
            rules(&self.one, &["two"]),
            rules(&self.two, &[]),
        );
        let mut rest = String::new();
        // Chains to which nothing leads are left out, so that less is to be read.
        let mut all = base.clone();
        for (chain, rules) in [("one", &one), ("two", &two)] {
            if all.contains(chain) || (chain == "two" && (all.contains("@ways") || all.contains("@sixes"))) {
                rest = format!("  chain {chain} {{\n{rules}  }}\n{rest}");
                all += rules;
            }
        }
        let sets: String =
            SETS.iter().filter(|(name, _)| all.contains(name)).map(|(_, text)| format!("  {text}\n")).collect();
        let flags = if self.dormant { "  flags dormant;\n" } else { "" };
        let policy = if self.drops { "drop" } else { "accept" };
        format!(
            "table {family} foreign{number} {{\n{flags}{sets}{rest}  chain base {{\n    type {kind} hook {hook}{device} priority \
             {priority}; policy {policy};\n    {base}  }}\n}}\n",
        )
    }

    /// An action in this table's words.
    fn in_place(&self, action: &str) -> String {
        if action != "dnat to elsewhere" {
            return action.to_owned();
        }
        // Where there is a way: nothing is forwarded, and nothing from a loopback address leaves.
        let (ours, condition) = match self.hook {
            "prerouting" => (["10.77.0.2", "[fd77::2]"], ""),
            _ => (["10.77.0.1", "[fd77::1]"], "oifname != \"lo\" "),
        };
        match self.family {
            "ip6" => format!("{condition}meta l4proto tcp dnat to {}:{ELSEWHERE}", ours[1]),
            "ip" => format!("{condition}meta l4proto tcp dnat to {}:{ELSEWHERE}", ours[0]),
            _ => format!("{condition}meta l4proto tcp dnat ip to {}:{ELSEWHERE}", ours[0]),
        }
    }

    /// Returns true if nft or the kernel refuses the rule here, or the pod would not be one: loops of chains,
    /// two families in one rule, and expressions that have no place at this hook.
    fn is_refused(&self, condition: &str, action: &str, chains: &[&str]) -> bool {
        let has = |word: &str| condition.contains(word) || action.contains(word);
        let leads_to = |chain: &&str| {
            action.contains(*chain) || (*chain == "two" && (action.contains("@ways") || action.contains("@sixes")))
        };
        // No loops: the first chain may lead to the second one, and that nowhere.
        let in_a_loop = ["one", "two"].iter().any(|chain| leads_to(chain) && !chains.contains(chain));
        let words = |text: &str, word: &str| text.split_whitespace().any(|one| one == word);
        let v4 = words(condition, "ip") || words(action, "ip");
        let v6 = words(condition, "ip6") || words(action, "ip6");
        let of_other_family = match self.family {
            "ip" => v6,
            "ip6" => v4,
            // An inet rule's addresses are IPv4's there.
            _ => v6 && (v4 || action.contains("dnat")),
        };
        let not_in_inet = self.family != "inet" && condition.contains("nfproto");
        let udp = condition.contains("udp") && !condition.contains("!=");
        let contradicts = udp && (action.contains("tcp") || action.contains("redirect"))
            || (condition.contains("nfproto ipv6") && (v4 || action.contains("dnat")))
            || (condition.contains("nfproto ipv4") && v6)
            || (v6 && v4);
        let needs_tracking = has("ct ") || action.contains("notrack");
        let changes_destination = action.contains("redirect") || action.contains("dnat");
        let out_of_place = (changes_destination
            && !(self.kind == "nat" && ["prerouting", "output"].contains(&self.hook)))
            || (action == "masquerade" && !(self.kind == "nat" && self.hook == "postrouting"))
            || (action.contains("reject")
                && !(self.kind == "filter" && ["input", "output", "forward"].contains(&self.hook)))
            || (needs_tracking && self.family == "netdev")
            // Before IP's hooks, no routes are asked (`nft_fib_validate` in net/netfilter/nft_fib.c).
            || (has("fib ") && ["ingress", "egress"].contains(&self.hook));
        in_a_loop || of_other_family || not_in_inet || contradicts || out_of_place
    }
}
