//! Random rules of iptables'.

use std::net::SocketAddr;

use lab::network::{NEIGHBOUR, POD};
use proptest::prelude::*;
use proptest::sample::select;

use super::pod::ELSEWHERE;

/// Where a rule goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spot {
    /// Before our jump, or after it.
    First(&'static str),
    Last(&'static str),
    /// In our own chain, at this place.
    Between(&'static str, usize),
    /// In a chain of its own, to which others lead.
    Own,
    /// In a chain of another table than nat.
    In(&'static str, &'static str),
}

const SPOTS: [Spot; 22] = [
    Spot::In("filter", "INPUT"),
    Spot::In("filter", "OUTPUT"),
    Spot::In("filter", "INPUT"),
    Spot::In("filter", "OUTPUT"),
    Spot::In("filter", "FORWARD"),
    Spot::In("raw", "PREROUTING"),
    Spot::In("raw", "OUTPUT"),
    Spot::In("raw", "PREROUTING"),
    Spot::In("mangle", "PREROUTING"),
    Spot::In("mangle", "INPUT"),
    Spot::In("mangle", "OUTPUT"),
    Spot::In("mangle", "POSTROUTING"),
    Spot::In("security", "INPUT"),
    Spot::First("PREROUTING"),
    Spot::First("OUTPUT"),
    Spot::Last("PREROUTING"),
    Spot::Last("OUTPUT"),
    Spot::Between("PROXY_INIT_REDIRECT", 1),
    Spot::Between("PROXY_INIT_OUTPUT", 1),
    Spot::Between("PROXY_INIT_OUTPUT", 2),
    Spot::Own,
    Spot::Own,
];

/// A rule.
#[derive(Debug, Clone)]
pub(super) struct Rule {
    pub(super) spot: Spot,
    condition: &'static str,
    pub(super) target: &'static str,
}

const CONDITIONS: [&str; 56] = [
    "",
    "",
    "-p tcp",
    "-p udp",
    "! -p udp",
    "-p tcp --dport 80",
    "-p tcp --sport 80",
    "-p tcp ! --dport 443",
    "-p tcp --dport 400:5000",
    "-p tcp --sport 20000:40000",
    "-p tcp -m multiport --dports 80,4190,8000:9000",
    "-p tcp -m multiport ! --dports 443,8080",
    "-p tcp -m multiport --sports 80,4143,8000:9000",
    "-p tcp --syn",
    "-p tcp ! --syn",
    "-p tcp --tcp-flags SYN,ACK SYN,ACK",
    "-m conntrack --ctstate NEW",
    "-m conntrack --ctstate ESTABLISHED",
    "-m conntrack --ctstate RELATED,ESTABLISHED",
    "-m conntrack --ctstate INVALID",
    "-m conntrack ! --ctstate INVALID",
    "-m conntrack --ctstate UNTRACKED",
    "-m conntrack ! --ctstate NEW,ESTABLISHED",
    "-m conntrack --ctstate DNAT",
    "-m conntrack --ctstate NEW,DNAT",
    "-m conntrack --ctdir ORIGINAL",
    "-m conntrack --ctorigdstport 80",
    "-m conntrack ! --ctorigsrc NEIGHBOUR",
    "-m conntrack --ctdir REPLY",
    "-m state --state NEW",
    "-m addrtype --dst-type LOCAL",
    "-m addrtype ! --dst-type LOCAL",
    "-m addrtype --src-type LOCAL",
    "-m addrtype --dst-type UNICAST",
    "-m addrtype ! --src-type MULTICAST",
    "-m iprange --src-range NEIGHBOUR-NEIGHBOUR",
    "-m iprange ! --dst-range POD-POD",
    "-m mark --mark 7",
    "-m mark ! --mark 7",
    "-m mark --mark 0x1/0x3",
    "-m connmark --mark 7",
    "-m owner --uid-owner 1000",
    "-m owner ! --uid-owner 2102",
    "-m owner --gid-owner 0",
    "-i eth0",
    "-i e+",
    "-i lo",
    "! -i lo",
    "-o eth0",
    "! -o eth+",
    "-o lo",
    "-m comment --comment foreign",
    "-s NEIGHBOUR",
    "! -s NEIGHBOUR",
    "-d POD",
    "-s NET",
];

const TARGETS: [&str; 22] = [
    "ACCEPT", "ACCEPT", "RETURN", "RETURN", "REDIRECT", "REDIRECT", "DNAT", "DROP", "DROP", "REJECT", "NOTRACK",
    "NOTRACK", "MARK", "MARK", "CONNMARK", "TCPMSS", "DSCP", "jump", "jump", "goto", "POLICY", "",
];

pub(super) fn any_rule() -> impl Strategy<Value = Rule> {
    let condition = prop_oneof![
        200 => select(&CONDITIONS[..]),
        // Not modelled, and so for few connections only.
        1 => Just("-p tcp --dport 8080 -m statistic --mode nth --every 2 --packet 0"),
    ];
    (select(&SPOTS[..]), condition, select(&TARGETS[..])).prop_map(|(spot, condition, target)| Rule {
        spot,
        condition,
        target,
    })
}

impl Rule {
    /// The line for iptables-restore, and the table; none where there is no such rule.
    fn line(&self, family: usize) -> Option<(&'static str, String)> {
        let (table, place, chain) = match self.spot {
            Spot::First(chain) => ("nat", format!("-I {chain} 1"), chain),
            Spot::Last(chain) => ("nat", format!("-A {chain}"), chain),
            Spot::Between(chain, place) => ("nat", format!("-I {chain} {place}"), chain),
            Spot::Own => ("nat", "-A FOREIGN".to_owned(), "FOREIGN"),
            Spot::In(table, chain) => (table, format!("-A {chain}"), chain),
        };
        if self.target == "POLICY" {
            return (table == "filter").then(|| (table, format!(":{chain} DROP [0:0]")));
        }
        let inbound = matches!(chain, "PREROUTING" | "INPUT" | "PROXY_INIT_REDIRECT");
        let condition = self.condition;
        let wrong_device = match inbound {
            true => condition.contains("-o "),
            false => condition.contains("-i ") && chain != "FORWARD",
        };
        let has_owner = condition.contains("owner");
        let wrong_owner = has_owner && (inbound || chain == "FORWARD");
        // Where a chain may be reached from both, neither is allowed.
        let in_doubt = chain == "FOREIGN" && (has_owner || condition.contains("-i ") || condition.contains("-o "));
        if wrong_device || in_doubt || wrong_owner {
            return None;
        }
        let v6 = family == 1;
        let condition = condition
            .replace("NEIGHBOUR", &NEIGHBOUR[family].to_string())
            .replace("POD", &POD[family].to_string())
            .replace("NET", if v6 { "2001:db8::/32" } else { "192.0.2.0/24" });
        let tcp = if condition.contains("-p ") { "" } else { "-p tcp " };
        let udp = condition.contains("udp");
        let target = match (self.target, table) {
            ("REDIRECT" | "DNAT" | "TCPMSS", _) if udp => return None,
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
            ("DROP", "nat") => return None,
            ("jump" | "goto" | "REDIRECT" | "DNAT", table) if table != "nat" => return None,
            ("jump" | "goto", _) if chain == "FOREIGN" => return None,
            ("jump", _) => "-j FOREIGN".to_owned(),
            ("goto", _) => "-g FOREIGN".to_owned(),
            ("REJECT", "filter") => "-j REJECT".to_owned(),
            ("NOTRACK", "raw") => "-j CT --notrack".to_owned(),
            ("MARK", "mangle" | "raw") => "-j MARK --set-mark 7".to_owned(),
            ("CONNMARK", "mangle") => "-j CONNMARK --set-mark 7".to_owned(),
            ("DSCP", "mangle") => "-j DSCP --set-dscp 8".to_owned(),
            ("TCPMSS", "mangle") if condition.ends_with("--syn") && !condition.contains("! --syn") => {
                "-j TCPMSS --set-mss 1200".to_owned()
            }
            ("REJECT" | "NOTRACK" | "MARK" | "CONNMARK" | "DSCP" | "TCPMSS", _) => return None,
            ("", _) => String::new(),
            (target, _) => format!("-j {target}"),
        };
        Some((table, format!("{place} {condition} {target}")))
    }

    /// The input of iptables-restore that adds these rules of one family; `number` keeps chains apart.
    pub(super) fn script(rules: &[&Self], family: usize, number: usize) -> String {
        let mut text = String::new();
        let own = format!("FOREIGN{number}");
        for table in ["nat", "filter", "mangle", "raw", "security"] {
            let lines: Vec<String> = rules
                .iter()
                .filter_map(|rule| rule.line(family))
                .filter(|(of, _)| *of == table)
                .map(|(_, line)| line.replace("FOREIGN", &own))
                .collect();
            if !lines.is_empty() {
                let chain = if table == "nat" { format!(":{own} - [0:0]\n") } else { String::new() };
                text += &format!("*{table}\n{chain}{}\nCOMMIT\n", lines.join("\n"));
            }
        }
        text
    }
}
