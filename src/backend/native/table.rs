//! Native mode's table as plain data, made from rulesets, and as an nft script.

use std::fmt::{self, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::rules::config::{Family, OwnerId, Port, PortRange};
use crate::rules::ruleset::{ChainName, Match, Rule, Ruleset, Target};

/// The table's name; its family is inet.
pub(super) const NAME: &str = "proxy-init";

/// The longest comment that nft keeps.
const COMMENT: usize = 127;

/// The whole table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) sets: Vec<Set>,
    pub(super) chains: Vec<(ChainName, Vec<NativeRule>)>,
}

/// A set of intervals, so that a packet's cost doesn't grow with them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Set {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// Sorted, and neither overlapping nor touching: the kernel refuses overlaps.
    pub(super) intervals: Vec<(u128, u128)>,
}

/// What a set holds, as its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Ports,
    Addresses(Family),
}

impl Kind {
    /// nft's name for the type, and its number (`enum datatypes` in nftables' datatype.h).
    pub(super) fn nft_type(self) -> (&'static str, u32) {
        match self {
            Kind::Ports => ("inet_service", 13),
            Kind::Addresses(Family::V4) => ("ipv4_addr", 7),
            Kind::Addresses(Family::V6) => ("ipv6_addr", 8),
        }
    }

    /// An element's size in bytes.
    pub(super) fn size(self) -> usize {
        match self {
            Kind::Ports => 2,
            Kind::Addresses(Family::V4) => 4,
            Kind::Addresses(Family::V6) => 16,
        }
    }

    /// The largest element.
    pub(super) fn max(self) -> u128 {
        u128::MAX >> (128 - 8 * self.size())
    }

    fn element(self, number: u128) -> String {
        match self {
            Kind::Ports => number.to_string(),
            Kind::Addresses(Family::V4) => Ipv4Addr::from(number as u32).to_string(),
            Kind::Addresses(Family::V6) => Ipv6Addr::from(number).to_string(),
        }
    }

    /// An interval as nft writes it.
    pub(super) fn interval(self, (first, last): (u128, u128)) -> String {
        if first == last {
            self.element(first)
        } else {
            format!("{}-{}", self.element(first), self.element(last))
        }
    }
}

/// A rule in nftables' own terms. Each has a counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NativeRule {
    pub(super) conditions: Vec<Condition>,
    pub(super) target: Target,
    pub(super) comment: String,
}

/// A condition on a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Condition {
    /// `meta nfproto ipv4`
    Family(Family),
    /// `meta l4proto tcp`
    Tcp,
    /// `tcp dport @SET`
    Port(String),
    /// `ip saddr @SET`
    Source(Family, String),
    /// `ip daddr @SET`
    Destination(Family, String),
    /// `oifname "lo"`
    OutLoopback,
    /// `meta skuid UID`
    Uid(OwnerId),
    /// `meta skgid GID`
    Gid(OwnerId),
}

impl Table {
    /// The table that does what the rulesets do: rules on ports and on subnets become one rule each on a set, and what
    /// both families have, one rule for both.
    pub(super) fn new(rulesets: &[Ruleset]) -> Self {
        let mut table = Self {
            sets: Vec::new(),
            chains: Vec::new(),
        };
        for name in ChainName::ALL {
            let mut chain = Vec::new();
            for ruleset in rulesets {
                for rule in ruleset
                    .rules()
                    .filter(|(chain, _)| *chain == name)
                    .map(|(_, rule)| rule)
                {
                    table.add(name, &mut chain, ruleset.family, rule);
                }
            }
            // Each family has its redirections last; here they come after both families' exceptions.
            chain.sort_by_key(|rule| !matches!(rule.target, Target::Return));
            if let [only] = rulesets
                && !name.is_ours()
            {
                chain
                    .iter_mut()
                    .for_each(|rule| rule.conditions.insert(0, Condition::Family(only.family)));
            }
            table.chains.push((name, chain));
        }
        table
            .sets
            .iter_mut()
            .for_each(|set| set.intervals = merged(std::mem::take(&mut set.intervals)));
        table
    }

    fn add(&mut self, chain_name: ChainName, chain: &mut Vec<NativeRule>, family: Family, rule: &Rule) {
        let direction = match chain_name {
            ChainName::ProxyInitRedirect => "inbound",
            _ => "outbound",
        };
        let mut conditions = Vec::new();
        for condition in &rule.matches {
            let (set, kind, intervals): (String, Kind, Vec<(u128, u128)>) = match condition {
                Match::Tcp => {
                    conditions.push(Condition::Tcp);
                    continue;
                }
                Match::OutLoopback => {
                    conditions.push(Condition::OutLoopback);
                    continue;
                }
                Match::UidOwner(id) => {
                    conditions.push(Condition::Uid(*id));
                    continue;
                }
                Match::GidOwner(id) => {
                    conditions.push(Condition::Gid(*id));
                    continue;
                }
                Match::DestinationPort(port) => {
                    let port = u128::from(port.get());
                    ("redirected-ports".to_owned(), Kind::Ports, vec![(port, port)])
                }
                Match::DestinationPorts(ports) => (
                    format!("{direction}-ports"),
                    Kind::Ports,
                    ports.ranges().iter().map(|&range| bounds(range)).collect(),
                ),
                Match::Source(net) | Match::Destination(net) => (
                    format!("{direction}-subnets-{}", if family == Family::V4 { "v4" } else { "v6" }),
                    Kind::Addresses(family),
                    vec![subnet(*net)],
                ),
            };
            match self.sets.iter_mut().find(|found| found.name == set) {
                Some(found) => found.intervals.extend(intervals),
                None => self.sets.push(Set {
                    name: set.clone(),
                    kind,
                    intervals,
                }),
            }
            conditions.push(match (condition, kind) {
                (Match::Source(_), _) => Condition::Source(family, set),
                (Match::Destination(_), _) => Condition::Destination(family, set),
                _ => Condition::Port(set),
            });
        }
        // `tcp dport` says TCP itself.
        if conditions
            .iter()
            .any(|condition| matches!(condition, Condition::Port(_)))
        {
            conditions.retain(|condition| *condition != Condition::Tcp);
        }
        // An exception for every address: of its own family.
        if conditions.is_empty() && rule.target == Target::Return {
            conditions.push(Condition::Family(family));
        }
        let same = chain
            .iter_mut()
            .find(|found| found.conditions == conditions && found.target == rule.target);
        match same {
            Some(found) => found.add_comment(&rule.comment),
            None => chain.push(NativeRule {
                conditions,
                target: rule.target,
                comment: rule.comment.to_string(),
            }),
        }
    }
}

impl NativeRule {
    /// The comment of another rule that this one stands for as well: what the two name, if there is room for it.
    fn add_comment(&mut self, other: &str) {
        if self.comment == other {
            return;
        }
        let suffix = "-to-proxy-port";
        let parts = |comment: &'_ str| -> Option<(String, String)> {
            let (kind, names) = ["ignore-port-", "ignore-subnet-", "redirect-port-"]
                .into_iter()
                .find_map(|kind| Some((kind, comment.strip_prefix("proxy-init/")?.strip_prefix(kind)?)))?;
            Some((kind.to_owned(), names.strip_suffix(suffix).unwrap_or(names).to_owned()))
        };
        let (Some((kind, names)), Some((_, more))) = (parts(&self.comment), parts(other)) else {
            return;
        };
        if names.split(',').any(|name| name == more) || names.ends_with("...") {
            return;
        }
        let end = if kind == "redirect-port-" { suffix } else { "" };
        let whole = format!("proxy-init/{kind}{names},{more}{end}");
        self.comment = if whole.len() <= COMMENT - 4 {
            whole
        } else {
            format!("proxy-init/{kind}{names},...{end}")
        };
    }
}

fn bounds(range: PortRange) -> (u128, u128) {
    (range.first().into(), range.last().into())
}

fn subnet(net: IpNet) -> (u128, u128) {
    match net {
        IpNet::V4(net) => (u32::from(net.network()).into(), u32::from(net.broadcast()).into()),
        IpNet::V6(net) => (net.network().into(), net.broadcast().into()),
    }
}

/// Sorted, with what overlaps or touches made one.
fn merged(mut intervals: Vec<(u128, u128)>) -> Vec<(u128, u128)> {
    intervals.sort_unstable();
    let mut merged: Vec<(u128, u128)> = Vec::with_capacity(intervals.len());
    for (first, last) in intervals {
        match merged.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            _ => merged.push((first, last)),
        }
    }
    merged
}

/// As nft lists it, but for the counter's numbers.
impl fmt::Display for NativeRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for condition in &self.conditions {
            write!(f, "{condition} ")?;
        }
        f.write_str("counter ")?;
        match self.target {
            Target::Return => f.write_str("return")?,
            Target::Jump(chain) => write!(f, "jump {chain}")?,
            Target::Redirect(port) => write!(f, "redirect to :{}", Port::get(port))?,
        }
        write!(f, " comment \"{}\"", self.comment)
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = |family: &Family| match family {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        };
        match self {
            Condition::Family(Family::V4) => f.write_str("meta nfproto ipv4"),
            Condition::Family(Family::V6) => f.write_str("meta nfproto ipv6"),
            Condition::Tcp => f.write_str("meta l4proto tcp"),
            Condition::Port(set) => write!(f, "tcp dport @{set}"),
            Condition::Source(family, set) => write!(f, "{} saddr @{set}", protocol(family)),
            Condition::Destination(family, set) => write!(f, "{} daddr @{set}", protocol(family)),
            Condition::OutLoopback => f.write_str("oifname \"lo\""),
            Condition::Uid(id) => write!(f, "meta skuid {id}"),
            Condition::Gid(id) => write!(f, "meta skgid {id}"),
        }
    }
}

/// A script for `nft -f` that replaces the table by this one in one transaction.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "table inet {NAME} {{\n}}\ndelete table inet {NAME}\ntable inet {NAME} {{"
        )?;
        for set in &self.sets {
            let mut elements = String::new();
            for &interval in &set.intervals {
                let comma = if elements.is_empty() { "" } else { ", " };
                write!(elements, "{comma}{}", set.kind.interval(interval))?;
            }
            writeln!(
                f,
                "\tset {} {{\n\t\ttype {}\n\t\tflags interval\n\t\telements = {{ {elements} }}\n\t}}\n",
                set.name,
                set.kind.nft_type().0
            )?;
        }
        for (index, (name, rules)) in self.chains.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            writeln!(f, "\tchain {name} {{")?;
            let hook = match name {
                ChainName::Prerouting => Some("prerouting"),
                ChainName::Output => Some("output"),
                ChainName::ProxyInitRedirect | ChainName::ProxyInitOutput => None,
            };
            if let Some(hook) = hook {
                writeln!(f, "\t\ttype nat hook {hook} priority -100; policy accept;")?;
            }
            for rule in rules {
                writeln!(f, "\t\t{rule}")?;
            }
            writeln!(f, "\t}}")?;
        }
        writeln!(f, "}}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_merged() {
        let ports = |list: &[(u128, u128)]| merged(list.to_vec());
        assert_eq!(
            ports(&[(5, 9), (1, 2), (8, 12), (3, 3), (20, 20)]),
            [(1, 3), (5, 12), (20, 20)]
        );
        assert_eq!(ports(&[(0, u128::MAX), (7, 7)]), [(0, u128::MAX)]);
        assert_eq!(ports(&[]), []);
    }
}
