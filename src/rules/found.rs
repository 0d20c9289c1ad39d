//! What the kernel holds: everything in one network namespace that decides where a TCP connection goes, as plain data.
//!
//! The same vocabulary says what a backend would install, so that [`difference`](crate::rules::difference) compares like
//! with like, and [`walk`](crate::rules::walk) takes a connection through either.

use std::fmt;

use crate::rules::config::Family;
use crate::rules::hook::{Hook, nat_priority};
use crate::rules::intervals::Intervals;

/// A name or a comment that somebody chose: bytes that need not be UTF-8.
///
/// Displayed, control characters and bytes that are no text are escaped.
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
    /// What could not be seen. Nothing may be said to be absent from it.
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

/// Which part of the kernel holds a table.
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

/// Whose packets a table sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TableFamily {
    /// One family's.
    Ip(Family),
    /// Both families'.
    Inet,
    /// A network device's, before IP and behind it.
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
    /// Which part of the kernel holds it.
    pub subsystem: Subsystem,
    /// Whose packets it sees.
    pub family: TableFamily,
    /// Its name.
    pub name: Name,
    /// `flags dormant`: none of its chains is hooked.
    pub dormant: bool,
    /// A program owns it (`flags owner`), and the kernel lets nobody else change it.
    pub owned: bool,
    /// What whoever made it wrote into its user data; proxy-init marks what it makes.
    pub comment: Option<Name>,
    /// How many chains, sets and other objects it holds (`NFTA_TABLE_USE`).
    pub objects: u32,
    /// Its chains, in the order in which they were made.
    pub chains: Vec<Chain>,
    /// Its sets and maps.
    pub sets: Vec<Set>,
}

impl Table {
    /// The chain of this name.
    pub fn chain(&self, name: &Name) -> Option<&Chain> {
        self.chains.iter().find(|chain| chain.name == *name)
    }

    /// The set or map of this name.
    pub fn set(&self, name: &Name) -> Option<&Set> {
        self.sets.iter().find(|set| set.name == *name)
    }

    /// Whether its rules are xtables' and so best read in iptables' syntax: legacy tables, and those of nf_tables that
    /// iptables-nft makes.
    pub fn is_xtables(&self) -> bool {
        let names = ["nat", "filter", "mangle", "raw", "security"];
        matches!(self.family, TableFamily::Ip(_)) && names.iter().any(|name| self.name == **name)
    }
}

/// As people name it: `ip nat`, `inet proxy-init`, `legacy ip nat`.
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
    /// Where it is hooked. Without a hook, it runs only where a rule jumps to it.
    pub base: Option<Base>,
    /// What whoever made it wrote into its user data; proxy-init marks what it makes.
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
    /// Its place among the chains of the hook; lower runs earlier.
    pub priority: i32,
    /// What becomes of a packet that gets to the end.
    pub policy: Policy,
}

/// What a base chain is for (`NFTA_CHAIN_TYPE`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It sees the first packet of each connection, and may change where the connection goes.
    Nat,
    /// It sees every packet. (`filter` and `route`, and the legacy tables but nat.)
    Filter,
}

/// What becomes of a packet at the end of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// It goes on to the hook's next chain.
    Accept,
    /// It is gone.
    Drop,
}

/// A set, or a map whose values are verdicts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    /// Its name.
    pub name: Name,
    /// How many bits an element has.
    pub bits: u32,
    /// The numbers in it; none: they are not understood (several fields at once, say).
    pub elements: Option<Intervals>,
    /// Of a map: what is done for which numbers.
    pub verdicts: Vec<(Intervals, Action)>,
}

/// A rule: where every condition holds, it acts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// What a packet must be like; no condition: any packet.
    pub conditions: Vec<Condition>,
    /// What happens to it.
    pub action: Action,
    /// What whoever added it wrote about it.
    pub comment: Option<Name>,
    /// What it has seen, if it counts.
    pub counters: Option<Counters>,
    /// Its number in its table (`NFTA_RULE_HANDLE`); 0 in legacy tables, which have none.
    pub handle: u64,
}

impl Rule {
    /// Whether it does the same as another rule and says the same about it, whatever they have counted.
    pub fn does_as(&self, other: &Self) -> bool {
        self.conditions == other.conditions && self.action == other.action && self.comment == other.comment
    }
}

/// How much traffic a rule has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// How many packets.
    pub packets: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// Something of a packet that a condition looks at, as a number.
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
    /// Who owns the socket that sends it.
    Uid,
    /// Which group owns that socket.
    Gid,
    /// The name of the device that it came in by, 16 bytes with zeros behind; none: zeros alone.
    InInterface,
    /// The name of the device that it leaves by, likewise.
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

/// An interface's name as a number; see [`Field::InInterface`]. What is behind 16 bytes is left out, as the kernel's
/// names are shorter (`IFNAMSIZ`).
pub fn interface(name: &[u8]) -> u128 {
    let mut padded = [0; 16];
    for (slot, byte) in padded.iter_mut().zip(name) {
        *slot = *byte;
    }
    u128::from_be_bytes(padded)
}

/// The protocol's number in IP's header: `IPPROTO_TCP`.
pub const TCP: u128 = 6;

/// A condition on a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// The field is one of these numbers, or isn't.
    In {
        /// What it looks at.
        field: Field,
        /// The numbers.
        values: Values,
        /// It holds where the field is none of them.
        negated: bool,
    },
    /// Something that is the same for the first packet of every TCP connection: `ct state new`, `--syn`.
    Fixed {
        /// How it is written.
        text: String,
        /// Whether it holds for such a packet.
        holds: bool,
    },
    /// Something that isn't understood: it may hold or not.
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
    /// These intervals, as they were written: in any order.
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
    /// Nothing that changes its way: the next rule is asked. With what it does, if it is more than to count.
    Continue(Option<String>),
    /// The base chain ends; the hook's next one is asked.
    Accept,
    /// The packet is gone.
    Drop,
    /// Back to the chain that jumped here.
    Return,
    /// On to another chain, and back from it.
    Jump(Name),
    /// On to another chain, and not back.
    Goto(Name),
    /// The connection goes to these ports of this host; none: to the port that it was for.
    Redirect(Option<(u16, u16)>),
    /// The connection goes elsewhere: what is written says where.
    Nat(String),
    /// Connection tracking leaves it alone, so no nat chain is asked.
    Untrack,
    /// What the map says for the field's number. Where it has none, the next rule is asked.
    Map(Field, Name),
    /// Something that isn't understood, and may be anything.
    Unknown(String),
}

impl Found {
    /// The tables of a part of the kernel.
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
    fn order(&self) -> (i32, i32) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_no_text_is_escaped() {
        for (bytes, want) in [
            (&b"KUBE-SERVICES"[..], "KUBE-SERVICES"),
            (b"\xff\xfe", r"\xff\xfe"),
            ("\u{e4}\n\u{1b}[31m".as_bytes(), "\u{e4}\\n\\u{1b}[31m"),
        ] {
            assert_eq!(Name::from(bytes).to_string(), want);
        }
    }
}
