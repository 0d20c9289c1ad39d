//! Tables and chains.

use std::collections::{HashMap, HashSet};
use std::fmt;

use derive_more::Display;

use crate::family::Family;
use crate::hook::{Hook, XTABLES};
use crate::intervals::Intervals;
use crate::name::Name;
use crate::rule::{Action, Rule, Values};
use crate::set::Set;

/// The part of the kernel that holds a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Display)]
pub enum Subsystem {
    /// nf_tables, which nft and iptables-nft show.
    #[display("nf_tables")]
    NfTables,
    /// ip_tables and ip6_tables, which iptables-legacy shows.
    #[display("legacy")]
    Legacy,
}

/// The packets that a table sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Display)]
#[display(rename_all = "lowercase")]
pub enum TableFamily {
    /// Packets of one IP family: `ip` or `ip6`.
    #[display("{}", _0.nft_name())]
    Ip(Family),
    /// Packets of both IP families.
    Inet,
    /// A network device's packets, before IP on the way in and after it on the way out.
    Netdev,
    /// ARP's packets, by which neighbours find each other before they send IPv4.
    Arp,
    /// The packets of a bridge, at its ports.
    Bridge,
}

impl TableFamily {
    pub fn sees(self, family: Family) -> bool {
        match self {
            TableFamily::Ip(own) => own == family,
            TableFamily::Inet | TableFamily::Netdev => true,
            TableFamily::Arp | TableFamily::Bridge => false,
        }
    }

    /// For people: `IPv4` or `IPv6` if its tables see only that family, or else its name.
    pub fn title(self) -> String {
        match self {
            TableFamily::Ip(family) => family.to_string(),
            other => other.to_string(),
        }
    }
}

/// A table with its rules, which are decoded or in another form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table<R = Rule> {
    pub subsystem: Subsystem,
    pub family: TableFamily,
    pub name: Name,
    /// It has `flags dormant`: none of its chains is hooked, so no packet enters them.
    pub dormant: bool,
    /// It has `flags owner`: one program owns it, and the kernel refuses changes from any other (EPERM).
    pub owned: bool,
    /// The comment in its user data.
    pub comment: Option<Name>,
    /// The number of chains, sets and other objects that it holds (`NFTA_TABLE_USE`).
    pub objects: u32,
    /// Its chains, in the order in which they were made.
    pub chains: Vec<Chain<R>>,
    pub sets: Vec<Set>,
}

impl Table {
    /// Returns true if both have the same name in the same place.
    pub fn is(&self, other: &Self) -> bool {
        (self.subsystem, self.family) == (other.subsystem, other.family) && self.name == other.name
    }

    pub fn set(&self, name: &Name) -> Option<&Set> {
        self.sets.iter().find(|set| set.name == *name)
    }

    /// The intervals that a condition of a rule of this table compares with; none if they aren't known.
    pub fn numbers<'a>(&'a self, values: &'a Values) -> Option<&'a [(u128, u128)]> {
        match values {
            Values::Set(name) => self.set(name)?.elements.as_ref().map(Intervals::as_slice),
            Values::Interval(_) | Values::Listed(_) => values.listed(),
        }
    }

    /// The chains to which these rules lead, each once, in the order in which they lead there.
    pub fn reached_chains<'a>(&'a self, rules: &'a [Rule]) -> Vec<&'a Chain> {
        let outcomes_of = |rules: &'a [Rule]| {
            let outcomes = rules.iter().flat_map(Rule::possible_actions);
            outcomes.collect::<Vec<_>>().into_iter().rev()
        };
        let chains: HashMap<&Name, &Chain> = self.chains.iter().map(|chain| (&chain.name, chain)).collect();
        let mut seen = HashSet::new();
        let mut reached: Vec<&Chain> = Vec::new();
        let mut waiting: Vec<&Action> = outcomes_of(rules).collect();
        while let Some(action) = waiting.pop() {
            let target = action.target().and_then(|name| chains.get(name));
            if let Some(chain) = target.filter(|target| seen.insert(&target.name)) {
                reached.push(chain);
                waiting.extend(outcomes_of(&chain.rules));
            }
        }
        reached
    }

    /// Returns true if the table's rules are best shown in iptables' syntax: those of legacy tables, and of
    /// iptables-nft's.
    pub fn is_xtables(&self) -> bool {
        matches!(self.family, TableFamily::Ip(_)) && XTABLES.iter().any(|(name, _)| self.name == **name)
    }
}

impl<R> Table<R> {
    pub fn new(subsystem: Subsystem, family: TableFamily, name: Name) -> Self {
        Self {
            subsystem,
            family,
            name,
            dormant: false,
            owned: false,
            comment: None,
            objects: 0,
            chains: Vec::new(),
            sets: Vec::new(),
        }
    }

    pub fn chain(&self, name: &Name) -> Option<&Chain<R>> {
        self.chains.iter().find(|chain| chain.name == *name)
    }

    pub fn rules(&self) -> impl Iterator<Item = &R> {
        self.chains.iter().flat_map(|chain| &chain.rules)
    }
}

/// For people: `ip nat`, `inet mine`, `legacy ip nat`.
impl<R> fmt::Display for Table<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.subsystem == Subsystem::Legacy {
            f.write_str("legacy ")?;
        }
        write!(f, "{} {}", self.family, self.name)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain<R = Rule> {
    pub name: Name,
    /// Where it is hooked; none for a regular chain, which runs only if a rule jumps to it.
    pub base: Option<Base>,
    /// The names of the devices whose packets it sees, as numbers; none: it sees those of every device.
    pub devices: Option<Intervals>,
    /// The comment in its user data.
    pub comment: Option<Name>,
    pub rules: Vec<R>,
}

impl<R> Chain<R> {
    pub fn new(name: Name, base: Option<Base>, rules: Vec<R>) -> Self {
        Self { name, base, devices: None, comment: None, rules }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Base {
    pub kind: Kind,
    pub hook: Hook,
    /// Its place among the chains of the hook: lower priorities run earlier.
    pub priority: i32,
    pub policy: Policy,
}

/// The purpose of a base chain (`NFTA_CHAIN_TYPE`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display)]
#[display(rename_all = "lowercase")]
pub enum Kind {
    /// It sees the first packet of each connection, and may change where the connection goes.
    Nat,
    /// It sees every packet: `filter` and `route` chains, and all legacy tables but nat.
    Filter,
}

/// The fate of a packet at the end of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display)]
#[display(rename_all = "lowercase")]
pub enum Policy {
    /// The packet goes on to the hook's next chain.
    Accept,
    Drop,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Field;
    use crate::testing::{by_map, chain, ports, rule, table};

    #[test]
    fn a_family_is_told_by_whose_packets_its_tables_see() {
        let all = [TableFamily::Ip(Family::V4), TableFamily::Ip(Family::V6), TableFamily::Inet, TableFamily::Netdev];
        assert_eq!(all.map(TableFamily::title), ["IPv4", "IPv6", "inet", "netdev"]);
    }

    #[test]
    fn numbers_are_a_conditions_own_or_its_sets() {
        let inferred = Set { elements: None, ..ports("inferred", &[]) };
        let table = Table { sets: vec![ports("web", &[(80, 80), (443, 443)]), inferred], ..table("inet mine", vec![]) };
        let of_set = |name| Values::Set(Name::from(name));
        for (values, numbers) in [
            (Values::from(7), Some(&[(7, 7)][..])),
            (Values::Listed(vec![(1, 2), (4, 5)]), Some(&[(1, 2), (4, 5)])),
            (of_set("web"), Some(&[(80, 80), (443, 443)])),
            (of_set("inferred"), None),
            (of_set("gone"), None),
        ] {
            assert_eq!(table.numbers(&values), numbers, "{values:?}");
        }
    }

    /// Whatever leads there, a chain that leads back among it, and one that is not there.
    #[test]
    fn chains_are_reached_once_and_in_the_order_in_which_they_run() {
        let name = |name: &str| Name::from(name);
        let jump = |to: &str| rule([], Action::Jump(name(to)));
        let verdicts = [(1, Action::Goto(name("c"))), (2, Action::Drop), (3, Action::Jump(name("d")))];
        let by_map = by_map("map", Field::DestinationPort, verdicts);
        let table = table(
            "inet mine",
            vec![
                chain("a", vec![jump("b"), by_map, jump("gone"), jump("b")]),
                chain("b", vec![jump("e"), jump("a")]),
                chain("c", vec![jump("b")]),
                chain("d", vec![]),
                chain("e", vec![]),
                chain("unused", vec![jump("a")]),
            ],
        );
        let reached = |rules| {
            let reached = table.reached_chains(rules).into_iter();
            reached.map(|chain| chain.name.to_string()).collect::<Vec<_>>()
        };
        let rules = &table.chains[0].rules;
        assert_eq!(reached(rules), ["b", "e", "a", "c", "d"]);
        assert_eq!(reached(&rules[1..2]), ["c", "b", "e", "a", "d"]);
        assert!(reached(&rules[2..3]).is_empty());
    }

    #[test]
    fn a_table_is_called_as_nft_calls_it() {
        for name in ["ip nat", "ip6 nat", "inet mine", "netdev edge", "legacy ip nat"] {
            assert_eq!(table(name, vec![]).to_string(), name);
        }
        assert_eq!(Subsystem::NfTables.to_string(), "nf_tables");
        assert_eq!(Subsystem::Legacy.to_string(), "legacy");
    }

    #[test]
    fn only_the_tables_that_iptables_has_are_in_its_syntax() {
        for (name, want) in [
            ("ip nat", true),
            ("ip6 filter", true),
            ("ip mangle", true),
            ("legacy ip6 raw", true),
            ("ip security", true),
            ("inet nat", false),
            ("netdev filter", false),
            ("ip mine", false),
            ("ip NAT", false),
        ] {
            assert_eq!(table(name, vec![]).is_xtables(), want, "{name}");
        }
    }
}
