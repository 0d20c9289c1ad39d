//! What the kernel holds: everything in one network namespace that decides where a TCP connection goes, as plain data.
//!
//! The same vocabulary says what a backend would install, so that [`difference`](crate::rules::difference) compares like
//! with like, and [`walk`](crate::rules::walk) takes a connection through either.

use std::fmt;
use std::net::IpAddr;

use crate::rules::config::Family;
use crate::rules::hook::{Hook, nat_priority};
use crate::rules::intervals::Intervals;

/// A name or a comment as the kernel holds it: bytes that need not be UTF-8.
///
/// When displayed, control characters and bytes that aren't UTF-8 are escaped.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Name(Vec<u8>);

impl Name {
    /// Its bytes, without the NUL that ends them in the kernel.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl<T: AsRef<[u8]> + ?Sized> From<&T> for Name {
    fn from(bytes: &T) -> Self {
        Self(bytes.as_ref().to_owned())
    }
}

impl PartialEq<str> for Name {
    fn eq(&self, text: &str) -> bool {
        self.0 == text.as_bytes()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Nearly every name.
        if let Ok(text) = std::str::from_utf8(&self.0)
            && !text.contains(char::is_control)
        {
            return f.write_str(text);
        }
        for chunk in self.0.utf8_chunks() {
            for character in chunk.valid().chars() {
                if character.is_control() {
                    write!(f, "{}", character.escape_default())?;
                } else {
                    write!(f, "{character}")?;
                }
            }
            write!(f, "{}", chunk.invalid().escape_ascii())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Everything in a network namespace that decides where a TCP connection goes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// The tables of nf_tables, in the order in which they were made, then the legacy tables.
    pub tables: Vec<Table>,
    /// What could not be seen. What is missing from `tables` may be there all the same.
    pub not_known: Vec<NotKnown>,
}

/// Something that could not be seen, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotKnown {
    /// What could not be seen.
    pub subsystem: Subsystem,
    /// The process lacks the privilege to see it.
    pub not_permitted: bool,
    /// Why, for people.
    pub reason: String,
}

/// The part of the kernel that holds a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subsystem {
    /// nf_tables: what nft and iptables-nft show.
    NfTables,
    /// ip_tables and ip6_tables: what iptables-legacy shows.
    Legacy,
}

impl fmt::Display for Subsystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Subsystem::NfTables => "nf_tables",
            Subsystem::Legacy => "legacy",
        })
    }
}

/// Which packets a table sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TableFamily {
    /// Packets of one IP family: `ip` or `ip6`.
    Ip(Family),
    /// Packets of both IP families.
    Inet,
    /// A network device's packets, before IP on the way in and after it on the way out.
    Netdev,
}

impl TableFamily {
    /// Whether the table sees packets of this family.
    pub fn sees(self, family: Family) -> bool {
        match self {
            TableFamily::Ip(own) => own == family,
            TableFamily::Inet | TableFamily::Netdev => true,
        }
    }
}

/// As nft writes it.
impl fmt::Display for TableFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TableFamily::Ip(family) => family.nft_name(),
            TableFamily::Inet => "inet",
            TableFamily::Netdev => "netdev",
        })
    }
}

/// A table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// The part of the kernel that holds it.
    pub subsystem: Subsystem,
    /// Which packets it sees.
    pub family: TableFamily,
    /// Its name.
    pub name: Name,
    /// It has `flags dormant`: none of its chains is hooked, so no packet enters them.
    pub dormant: bool,
    /// It has `flags owner`: one program owns it, and the kernel refuses changes from any other (EPERM).
    pub owned: bool,
    /// The comment in its user data; proxy-init marks the tables that it makes with one.
    pub comment: Option<Name>,
    /// How many chains, sets and other objects it holds (`NFTA_TABLE_USE`).
    pub objects: u32,
    /// Its chains, in the order in which they were made.
    pub chains: Vec<Chain>,
    /// Its sets and maps.
    pub sets: Vec<Set>,
}

impl Table {
    /// A table of this name with nothing in it.
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

    /// The chain of this name.
    pub fn chain(&self, name: &Name) -> Option<&Chain> {
        self.chains.iter().find(|chain| chain.name == *name)
    }

    /// The set or map of this name.
    pub fn set(&self, name: &Name) -> Option<&Set> {
        self.sets.iter().find(|set| set.name == *name)
    }

    /// Whether its rules are best shown in iptables' syntax: true of legacy tables, and of the nf_tables tables that
    /// iptables-nft makes.
    pub fn is_xtables(&self) -> bool {
        let names = ["nat", "filter", "mangle", "raw", "security"];
        matches!(self.family, TableFamily::Ip(_)) && names.iter().any(|name| self.name == **name)
    }
}

/// For people: `ip nat`, `inet proxy-init`, `legacy ip nat`.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.subsystem == Subsystem::Legacy {
            f.write_str("legacy ")?;
        }
        write!(f, "{} {}", self.family, self.name)
    }
}

/// A chain with its rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Its name.
    pub name: Name,
    /// Where it is hooked; none for a regular chain, which runs only if a rule jumps to it.
    pub base: Option<Base>,
    /// The comment in its user data; proxy-init marks the chains that it makes with one.
    pub comment: Option<Name>,
    /// Its rules, first to last.
    pub rules: Vec<Rule>,
}

/// What makes a chain a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Base {
    /// What it is for.
    pub kind: Kind,
    /// Where packets enter it.
    pub hook: Hook,
    /// Its place among the chains of the hook: lower priorities run earlier.
    pub priority: i32,
    /// What becomes of a packet that reaches the end of the chain.
    pub policy: Policy,
}

/// What a base chain is for (`NFTA_CHAIN_TYPE`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It sees the first packet of each connection, and may change where the connection goes.
    Nat,
    /// It sees every packet: `filter` and `route` chains, and all legacy tables but nat.
    Filter,
}

/// What becomes of a packet at the end of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The packet goes on to the hook's next chain.
    Accept,
    /// The packet is dropped.
    Drop,
}

/// A set, or a map whose values are verdicts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    /// Its name.
    pub name: Name,
    /// How many bits an element has.
    pub bits: u32,
    /// The numbers in it; none if they are not understood, as in a set whose elements have several fields.
    pub elements: Option<Intervals>,
    /// For a verdict map: which numbers get which verdict.
    pub verdicts: Vec<(Intervals, Action)>,
    /// Whether elements go after some time.
    pub expires: bool,
}

/// A rule: its action is taken for packets that meet every condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// What a packet must meet; with no condition, every packet matches.
    pub conditions: Vec<Condition>,
    /// What happens to it.
    pub action: Action,
    /// Its comment.
    pub comment: Option<Name>,
    /// The traffic that it has counted; none if it has no counter.
    pub counters: Option<Counters>,
    /// Its number in its table (`NFTA_RULE_HANDLE`); 0 in legacy tables, which have none.
    pub handle: u64,
}

impl Rule {
    /// Whether the other rule has the same conditions, action and comment; counters and handles don't matter.
    pub fn does_as(&self, other: &Self) -> bool {
        self.conditions == other.conditions && self.action == other.action && self.comment == other.comment
    }
}

/// How much traffic a rule has counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// How many packets.
    pub packets: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// A property of a packet that conditions look at, as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Field {
    /// `NFPROTO_IPV4` (2) or `NFPROTO_IPV6` (10).
    Family,
    /// The transport protocol: 6 is TCP.
    Protocol,
    /// The source address, in this family's header.
    Source(Family),
    /// The destination address, in this family's header.
    Destination(Family),
    /// The source port.
    SourcePort,
    /// The destination port.
    DestinationPort,
    /// The user id of the socket that sends it.
    Uid,
    /// The group id of that socket.
    Gid,
    /// The name of the device by which it came in, padded with zeros to 16 bytes; all zeros if there is no device.
    InInterface,
    /// The name of the device by which it leaves, in the same form.
    OutInterface,
}

impl Field {
    /// How many bits its numbers have.
    pub fn bits(self) -> u32 {
        match self {
            Field::Family | Field::Protocol => 8,
            Field::SourcePort | Field::DestinationPort => 16,
            Field::Uid | Field::Gid | Field::Source(Family::V4) | Field::Destination(Family::V4) => 32,
            Field::Source(Family::V6) | Field::Destination(Family::V6) => 128,
            Field::InInterface | Field::OutInterface => 128,
        }
    }

    /// The largest number that it can have.
    pub fn largest(self) -> u128 {
        u128::MAX >> (128 - self.bits())
    }
}

/// An interface's name as a number; see [`Field::InInterface`]. Bytes after the 16th are ignored: the kernel has no
/// longer names (`IFNAMSIZ`).
pub fn interface(name: &[u8]) -> u128 {
    let mut padded = [0; 16];
    for (slot, byte) in padded.iter_mut().zip(name) {
        *slot = *byte;
    }
    u128::from_be_bytes(padded)
}

/// An address as a number.
pub fn address(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

/// The protocol's number in IP's header: `IPPROTO_TCP`.
pub const TCP: u128 = 6;

/// A condition on a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// The field is one of these numbers or, if negated, none of them.
    In {
        /// What it looks at.
        field: Field,
        /// The numbers.
        values: Values,
        /// It holds if the field is none of them.
        negated: bool,
    },
    /// A condition whose outcome is the same for the first packet of every TCP connection: `ct state new`, `--syn`.
    Fixed {
        /// How it is written.
        text: String,
        /// Whether it holds for such a packet.
        holds: bool,
    },
    /// A condition that isn't understood: it may hold or not.
    Unknown(String),
}

impl Condition {
    /// The field is one of these.
    pub fn is(field: Field, values: impl Into<Values>) -> Self {
        Self::In {
            field,
            values: values.into(),
            negated: false,
        }
    }
}

/// The numbers that a condition compares with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Values {
    /// These intervals, in the order in which they were written.
    Listed(Vec<(u128, u128)>),
    /// Those of a set of the table.
    Set(Name),
}

impl From<u128> for Values {
    fn from(number: u128) -> Self {
        Self::Listed(vec![(number, number)])
    }
}

impl From<(u128, u128)> for Values {
    fn from(interval: (u128, u128)) -> Self {
        Self::Listed(vec![interval])
    }
}

/// What a rule does with a packet that meets its conditions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Nothing that affects its way: the next rule is asked. The text says what it does beside counting.
    Continue(Option<String>),
    /// It ends the base chain for the packet; the hook's next base chain is asked.
    Accept,
    /// The packet is dropped.
    Drop,
    /// The packet returns to the chain that jumped here.
    Return,
    /// The packet goes through another chain and, at its end, comes back.
    Jump(Name),
    /// The packet goes on to another chain and doesn't come back.
    Goto(Name),
    /// The connection goes to one of these ports of this host; none: to the port that it was for anyway.
    Redirect(Option<(u16, u16)>),
    /// The connection goes elsewhere; the text says where.
    Nat(String),
    /// Connection tracking ignores the packet, so it passes no nat chain.
    Untrack,
    /// What the verdict map says for the field's number. If it says nothing, the next rule is asked.
    Map(Field, Name),
    /// Something that isn't understood: it may do anything.
    Unknown(String),
}

impl Found {
    /// The tables of a subsystem.
    pub fn tables_of(&self, subsystem: Subsystem) -> impl Iterator<Item = &Table> {
        self.tables.iter().filter(move |table| table.subsystem == subsystem)
    }

    /// The table of this name.
    pub fn table(&self, subsystem: Subsystem, family: TableFamily, name: &str) -> Option<&Table> {
        self.tables_of(subsystem)
            .find(|table| table.family == family && table.name == *name)
    }

    /// The base chains that a packet of this family goes through at a hook, in the order in which they run. Chains of
    /// dormant tables aren't among them.
    ///
    /// nat chains run together, whatever their priorities, where netfilter's own NAT hook is ([`nat_priority`]): their
    /// priorities order them among themselves (`nf_nat_register_fn` in net/netfilter/nf_nat_core.c). Of chains with
    /// equal priorities, the one that was hooked last runs first (`nf_hook_entries_grow` in net/netfilter/core.c;
    /// measured on Linux 6.18). When chains of different tables were hooked isn't recorded, so that between tables
    /// their order here is that of the tables, and may be wrong: see [`Slot::ties_with`].
    pub fn chains_at(&self, family: Family, hook: Hook) -> Vec<Slot<'_>> {
        let mut slots: Vec<Slot<'_>> = self
            .tables
            .iter()
            .rev()
            .filter(|table| !table.dormant && table.family.sees(family))
            .flat_map(|table| table.chains.iter().rev().map(move |chain| (table, chain)))
            .filter_map(|(table, chain)| {
                let base = chain.base.filter(|base| base.hook == hook)?;
                Some(Slot { table, chain, base })
            })
            .collect();
        slots.sort_by_key(Slot::order);
        slots
    }
}

/// A base chain in the order of its hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot<'a> {
    /// Whose chain it is.
    pub table: &'a Table,
    /// The chain.
    pub chain: &'a Chain,
    /// Where it is hooked.
    pub base: Base,
}

impl Slot<'_> {
    /// What the kernel orders a hook's chains by.
    pub(in crate::rules) fn order(&self) -> (i32, i32) {
        match self.base.kind {
            Kind::Nat => (nat_priority(self.base.hook), self.base.priority),
            Kind::Filter => (self.base.priority, self.base.priority),
        }
    }

    /// Whether it isn't known which of the two runs first.
    pub fn ties_with(&self, other: &Self) -> bool {
        let same_table = std::ptr::eq(self.table, other.table);
        self.order() == other.order() && !same_table
    }
}

/// What the tests of these rooms are made of: tables, chains and rules in few words.
#[cfg(test)]
pub(in crate::rules) mod examples {
    use super::*;

    /// A table by the name by which people know it: `ip nat`, `inet mine`, `legacy ip6 nat`.
    pub(in crate::rules) fn table(name: &str, chains: Vec<Chain>) -> Table {
        let mut words: Vec<&str> = name.split(' ').collect();
        let subsystem = match words[0] {
            "legacy" => {
                words.remove(0);
                Subsystem::Legacy
            }
            _ => Subsystem::NfTables,
        };
        let family = match words[0] {
            "ip" => TableFamily::Ip(Family::V4),
            "ip6" => TableFamily::Ip(Family::V6),
            "inet" => TableFamily::Inet,
            "netdev" => TableFamily::Netdev,
            other => panic!("no family: {other}"),
        };
        Table {
            chains,
            ..Table::new(subsystem, family, Name::from(words[1]))
        }
    }

    /// A regular chain.
    pub(in crate::rules) fn chain(name: &str, rules: Vec<Rule>) -> Chain {
        Chain {
            name: Name::from(name),
            base: None,
            comment: None,
            rules,
        }
    }

    /// A base chain whose policy is accept.
    pub(in crate::rules) fn base(name: &str, kind: Kind, hook: Hook, priority: i32, rules: Vec<Rule>) -> Chain {
        let base = Base {
            kind,
            hook,
            priority,
            policy: Policy::Accept,
        };
        Chain {
            base: Some(base),
            ..chain(name, rules)
        }
    }

    /// A rule without a comment and a counter.
    pub(in crate::rules) fn rule<const N: usize>(conditions: [Condition; N], action: Action) -> Rule {
        Rule {
            conditions: conditions.into(),
            action,
            comment: None,
            counters: None,
            handle: 0,
        }
    }

    /// The same with a comment.
    pub(in crate::rules) fn commented(comment: &str, rule: Rule) -> Rule {
        Rule {
            comment: Some(Name::from(comment)),
            ..rule
        }
    }

    /// A condition that holds where this one doesn't.
    pub(in crate::rules) fn not(condition: Condition) -> Condition {
        match condition {
            Condition::In { field, values, negated } => Condition::In {
                field,
                values,
                negated: !negated,
            },
            other => panic!("not negated: {other:?}"),
        }
    }

    /// `tcp dport PORT`, without the condition on the protocol.
    pub(in crate::rules) fn to_port(port: u16) -> Condition {
        Condition::is(Field::DestinationPort, u128::from(port))
    }

    /// A set of ports.
    pub(in crate::rules) fn ports(name: &str, elements: &[(u128, u128)]) -> Set {
        Set {
            name: Name::from(name),
            bits: 16,
            elements: Some(Intervals::new(elements.iter().copied())),
            verdicts: Vec::new(),
            expires: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::examples::{base, chain, commented, ports, rule, table, to_port};
    use super::*;

    #[test]
    fn a_name_that_is_no_text_is_escaped() {
        for (bytes, want) in [
            (&b"KUBE-SERVICES"[..], "KUBE-SERVICES"),
            (b"\xff\xfe", r"\xff\xfe"),
            (b"KUBE\xff", r"KUBE\xff"),
            ("\u{e4}\n\u{1b}[31m".as_bytes(), "\u{e4}\\n\\u{1b}[31m"),
            (b"", ""),
        ] {
            assert_eq!(Name::from(bytes).to_string(), want);
            assert_eq!(format!("{:?}", Name::from(bytes)), format!("\"{want}\""));
            assert_eq!(Name::from(bytes).as_bytes(), bytes);
        }
        let nat = Name::from("nat");
        assert!(nat == *"nat" && nat != *"NAT");
    }

    #[test]
    fn a_table_is_called_as_nft_calls_it() {
        for name in ["ip nat", "ip6 nat", "inet proxy-init", "netdev edge", "legacy ip nat"] {
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

    #[test]
    fn a_table_is_found_by_all_of_its_name() {
        let mut nat = table("ip nat", vec![chain("A", vec![]), chain("B", vec![])]);
        nat.sets = vec![ports("a", &[]), ports("b", &[(1, 2)])];
        assert_eq!(nat.chain(&Name::from("B")), Some(&nat.chains[1]));
        assert_eq!(nat.chain(&Name::from("b")), None);
        assert_eq!(nat.set(&Name::from("b")), Some(&nat.sets[1]));
        assert_eq!(nat.set(&Name::from("B")), None);

        let names = ["legacy ip nat", "ip filter", "ip6 nat", "ip nat", "inet nat"];
        let found = Found {
            tables: names.map(|name| table(name, vec![])).into(),
            not_known: vec![],
        };
        let v4 = TableFamily::Ip(Family::V4);
        for (subsystem, family, name, want) in [
            (Subsystem::NfTables, v4, "nat", Some("ip nat")),
            (Subsystem::NfTables, TableFamily::Ip(Family::V6), "nat", Some("ip6 nat")),
            (Subsystem::NfTables, TableFamily::Inet, "nat", Some("inet nat")),
            (Subsystem::NfTables, TableFamily::Inet, "filter", None),
            (Subsystem::Legacy, v4, "nat", Some("legacy ip nat")),
            (Subsystem::Legacy, v4, "filter", None),
        ] {
            let got = found.table(subsystem, family, name).map(ToString::to_string);
            assert_eq!(got.as_deref(), want);
        }
        assert_eq!(found.tables_of(Subsystem::NfTables).count(), 4);
        assert_eq!(found.tables_of(Subsystem::Legacy).count(), 1);
    }

    #[test]
    fn rules_do_the_same_whatever_they_have_counted() {
        let one = commented("mine", rule([to_port(80)], Action::Accept));
        let counted = Rule {
            counters: Some(Counters { packets: 1, bytes: 60 }),
            handle: 7,
            ..one.clone()
        };
        assert!(one.does_as(&counted));
        for other in [
            commented("mine", rule([to_port(81)], Action::Accept)),
            commented("mine", rule([to_port(80)], Action::Drop)),
            commented("yours", rule([to_port(80)], Action::Accept)),
            rule([to_port(80)], Action::Accept),
        ] {
            assert!(!one.does_as(&other), "{other:?}");
        }
    }

    #[test]
    fn numbers_are_as_large_as_their_fields() {
        for (field, largest) in [
            (Field::Family, 255),
            (Field::Protocol, 255),
            (Field::SourcePort, 65535),
            (Field::DestinationPort, 65535),
            (Field::Uid, 4_294_967_295),
            (Field::Gid, 4_294_967_295),
            (Field::Source(Family::V4), 4_294_967_295),
            (Field::Destination(Family::V4), 4_294_967_295),
            (Field::Source(Family::V6), u128::MAX),
            (Field::Destination(Family::V6), u128::MAX),
            (Field::InInterface, u128::MAX),
            (Field::OutInterface, u128::MAX),
        ] {
            assert_eq!(field.largest(), largest, "{field:?}");
        }
        assert_eq!((Field::Protocol.bits(), Field::Uid.bits()), (8, 32));
    }

    #[test]
    fn an_interfaces_name_is_its_bytes_and_zeros() {
        assert_eq!(interface(b""), 0);
        assert_eq!(interface(b"lo"), 0x6c6f_0000_0000_0000_0000_0000_0000_0000);
        assert_eq!(interface(b"0123456789abcdef"), interface(b"0123456789abcdefgh"));
    }

    #[test]
    fn a_condition_is_made_of_a_number_or_an_interval() {
        let listed = |list| Condition::In {
            field: Field::Uid,
            values: Values::Listed(list),
            negated: false,
        };
        assert_eq!(Condition::is(Field::Uid, 7), listed(vec![(7, 7)]));
        assert_eq!(Condition::is(Field::Uid, (7, 9)), listed(vec![(7, 9)]));
    }

    /// The chains at a hook, as `table/chain`.
    fn order(tables: &[Table], family: Family, hook: Hook) -> Vec<String> {
        let found = Found {
            tables: tables.to_vec(),
            not_known: vec![],
        };
        let slots = found.chains_at(family, hook);
        slots
            .iter()
            .map(|slot| format!("{}/{}", slot.table, slot.chain.name))
            .collect()
    }

    #[test]
    fn chains_run_by_their_priorities_and_nat_chains_together() {
        let prerouting = |name, kind, priority| base(name, kind, Hook::Prerouting, priority, vec![]);
        let tables = [
            table(
                "inet mine",
                vec![
                    prerouting("late", Kind::Filter, -99),
                    // Where its priority says nothing against filter chains, but against nat chains.
                    prerouting("nat-last", Kind::Nat, 300),
                    prerouting("nat-first", Kind::Nat, -300),
                    prerouting("early", Kind::Filter, -101),
                    chain("regular", vec![]),
                    base("out", Kind::Filter, Hook::Output, 0, vec![]),
                ],
            ),
            table("ip nat", vec![prerouting("PREROUTING", Kind::Nat, -100)]),
            table("ip6 nat", vec![prerouting("PREROUTING", Kind::Nat, -100)]),
        ];
        assert_eq!(
            order(&tables, Family::V4, Hook::Prerouting),
            [
                "inet mine/early",
                "inet mine/nat-first",
                "ip nat/PREROUTING",
                "inet mine/nat-last",
                "inet mine/late",
            ]
        );
        assert_eq!(
            order(&tables, Family::V6, Hook::Prerouting),
            [
                "inet mine/early",
                "inet mine/nat-first",
                "ip6 nat/PREROUTING",
                "inet mine/nat-last",
                "inet mine/late",
            ]
        );
        assert_eq!(order(&tables, Family::V4, Hook::Output), ["inet mine/out"]);
        assert!(order(&tables, Family::V4, Hook::Forward).is_empty());
        let mut tables = tables;
        tables[0].dormant = true;
        assert_eq!(order(&tables, Family::V4, Hook::Prerouting), ["ip nat/PREROUTING"]);
    }

    /// Source NAT has a place of its own (100), behind filter chains at 0.
    #[test]
    fn chains_of_source_nat_run_at_100() {
        let chains = |hook| {
            vec![
                base("nat", Kind::Nat, hook, -300, vec![]),
                base("at-99", Kind::Filter, hook, 99, vec![]),
                base("at-101", Kind::Filter, hook, 101, vec![]),
            ]
        };
        for hook in [Hook::Input, Hook::Postrouting] {
            let tables = [table("ip mine", chains(hook))];
            let want = ["ip mine/at-99", "ip mine/nat", "ip mine/at-101"];
            assert_eq!(order(&tables, Family::V4, hook), want, "{hook}");
        }
    }

    #[test]
    fn of_equal_priorities_the_later_chain_runs_first() {
        let at_0 = |name| base(name, Kind::Filter, Hook::Output, 0, vec![]);
        let tables = [
            table("inet one", vec![at_0("a"), at_0("b")]),
            table("inet two", vec![at_0("c")]),
        ];
        assert_eq!(
            order(&tables, Family::V4, Hook::Output),
            ["inet two/c", "inet one/b", "inet one/a"]
        );
    }

    #[test]
    fn the_order_is_unknown_only_between_tables() {
        let output = |name, kind, priority| base(name, kind, Hook::Output, priority, vec![]);
        let found = Found {
            tables: vec![
                table(
                    "inet one",
                    vec![
                        output("a", Kind::Filter, 0),
                        output("b", Kind::Filter, 0),
                        output("nat", Kind::Nat, 0),
                    ],
                ),
                table(
                    "inet two",
                    vec![
                        output("c", Kind::Filter, 0),
                        output("d", Kind::Filter, 1),
                        output("other-nat", Kind::Nat, 0),
                    ],
                ),
            ],
            not_known: vec![],
        };
        let slots = found.chains_at(Family::V4, Hook::Output);
        let ties = |one: &str, other: &str| {
            let slot = |name: &str| slots.iter().find(|slot| slot.chain.name == *name).unwrap();
            slot(one).ties_with(slot(other))
        };
        assert!(ties("a", "c") && ties("c", "b") && ties("nat", "other-nat"));
        assert!(!ties("a", "b"), "within a table it is known");
        assert!(!ties("a", "d"), "other priorities");
        assert!(!ties("a", "other-nat"), "a nat chain at 0 runs at -100");
    }
}
