//! The fields of a packet that conditions look at, and all that is to be known of each, in one table.

use crate::rules::family::Family;
use crate::rules::intervals::Intervals;

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
    SourcePort,
    DestinationPort,
    /// The user id of the socket that sends it.
    Uid,
    /// The group id of that socket.
    Gid,
    /// The name of the device by which it came in, padded with zeros to 16 bytes; all zeros if there is no device.
    InInterface,
    /// The name of the device by which it leaves, in the same form.
    OutInterface,
    /// What connection tracking has of it; see [`Tracked::number`](crate::rules::flags::Tracked::number).
    State,
    /// The mark of the packet (`meta mark`).
    Mark,
    /// The mark of its connection (`ct mark`); it doesn't exist for a packet of no connection.
    ConnectionMark,
    /// TCP's flags (the 14th byte of its header).
    TcpFlags,
    /// The type of an ICMPv6 message (the first byte of its header).
    IcmpType,
    /// IPv6's hop limit.
    HopLimit,
}

/// What is to be known of a field. Where it is in a packet, netfilter's `place` says.
#[derive(Debug, Clone, Copy)]
pub struct FieldFacts {
    /// How many bits its numbers have.
    pub bits: u32,
    /// Whether nf_tables has its numbers in the machine's byte order, in registers and in sets.
    pub is_in_host_order: bool,
    /// What it is in the answer to a packet, if not itself.
    turned: Option<Field>,
    pub nft: &'static str,
    pub iptables: IptablesOption,
    // What is said of it to people.
    /// Before the numbers that a rule compares it with.
    pub of: &'static str,
    /// Before its number in a packet.
    pub what: &'static str,
    /// Of a packet in which it may be anything.
    pub any: &'static str,
    /// Before the numbers that set connections apart, and before those that they don't have; none if such connections are
    /// not told apart by it.
    pub apart: Option<(&'static str, &'static str)>,
    /// What an answer depends on that depends on it.
    pub open: &'static str,
    /// The flag that says what it is, with the name of its value, if there is one.
    pub flag: Option<&'static str>,
}

/// How iptables-save writes a condition on a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IptablesOption {
    /// With the header's fields, before all others, at this place among them: `-s 10.0.0.0/8`.
    Header(u8, &'static str),
    /// By a match and its option, for a number or an interval and for a list: `-m owner --uid-owner 1-2`. The sign stands
    /// between the ends of an interval.
    Match { one: (&'static str, &'static str), list: (&'static str, &'static str), to: char },
    /// It has no words for it: what isn't understood is in brackets.
    None,
}

/// What most fields have in common. A row says where its field differs, and has words of its own.
const PLAIN: FieldFacts = FieldFacts {
    bits: 8,
    is_in_host_order: false,
    turned: None,
    nft: "",
    iptables: IptablesOption::None,
    of: "",
    what: "",
    any: "",
    apart: None,
    open: "",
    flag: None,
};

const SOURCE: FieldFacts = FieldFacts {
    bits: 32,
    turned: Some(Field::Destination(Family::V4)),
    nft: "ip saddr",
    iptables: IptablesOption::Header(0, "-s"),
    of: "from ",
    any: "any source",
    apart: Some(("from", "from any address except")),
    open: "the source address",
    flag: Some("--from ADDRESS"),
    ..PLAIN
};

const DESTINATION: FieldFacts = FieldFacts {
    bits: 32,
    turned: Some(Field::Source(Family::V4)),
    nft: "ip daddr",
    iptables: IptablesOption::Header(1, "-d"),
    of: "to ",
    any: "any destination",
    apart: Some(("to", "to any address except")),
    open: "the address to which it is translated",
    ..PLAIN
};

impl Field {
    pub const ALL: [Self; 18] = [
        Self::Family,
        Self::Protocol,
        Self::Source(Family::V4),
        Self::Source(Family::V6),
        Self::Destination(Family::V4),
        Self::Destination(Family::V6),
        Self::SourcePort,
        Self::DestinationPort,
        Self::Uid,
        Self::Gid,
        Self::InInterface,
        Self::OutInterface,
        Self::State,
        Self::Mark,
        Self::ConnectionMark,
        Self::TcpFlags,
        Self::IcmpType,
        Self::HopLimit,
    ];

    /// The row of the table.
    pub const fn facts(self) -> &'static FieldFacts {
        match self {
            Self::Family => &FieldFacts { nft: "meta nfproto", any: "any family", open: "the protocol", ..PLAIN },
            Self::Protocol => &FieldFacts {
                nft: "meta l4proto",
                iptables: IptablesOption::Header(4, "-p"),
                any: "any protocol",
                open: "the protocol",
                ..PLAIN
            },
            Self::Source(Family::V4) => &SOURCE,
            Self::Destination(Family::V4) => &DESTINATION,
            Self::Source(Family::V6) => {
                &FieldFacts { bits: 128, turned: Some(Self::Destination(Family::V6)), nft: "ip6 saddr", ..SOURCE }
            }
            Self::Destination(Family::V6) => {
                &FieldFacts { bits: 128, turned: Some(Self::Source(Family::V6)), nft: "ip6 daddr", ..DESTINATION }
            }
            Self::SourcePort => &FieldFacts {
                bits: 16,
                turned: Some(Self::DestinationPort),
                nft: "tcp sport",
                iptables: IptablesOption::Match {
                    one: ("-m tcp ", "--sport "),
                    list: ("-m multiport ", "--sports "),
                    to: ':',
                },
                of: "from port ",
                what: "source port ",
                any: "any source port",
                apart: Some(("from port", "from any port except")),
                open: "the source port",
                flag: Some("--from ADDRESS:PORT"),
                ..PLAIN
            },
            Self::DestinationPort => &FieldFacts {
                bits: 16,
                turned: Some(Self::SourcePort),
                nft: "tcp dport",
                iptables: IptablesOption::Match {
                    one: ("-m tcp ", "--dport "),
                    list: ("-m multiport ", "--dports "),
                    to: ':',
                },
                of: "to port ",
                what: "port ",
                any: "any port",
                apart: Some(("to port", "to any port except")),
                open: "the port to which it is translated",
                ..PLAIN
            },
            Self::Uid => &FieldFacts {
                bits: 32,
                is_in_host_order: true,
                nft: "meta skuid",
                iptables: IptablesOption::Match {
                    one: ("-m owner ", "--uid-owner "),
                    list: ("-m owner ", "--uid-owner "),
                    to: '-',
                },
                of: "from user ",
                what: "user ",
                any: "any user except the proxy's",
                apart: Some(("from user", "from any user except")),
                open: "the user",
                flag: Some("--uid"),
                ..PLAIN
            },
            Self::Gid => &FieldFacts {
                bits: 32,
                is_in_host_order: true,
                nft: "meta skgid",
                iptables: IptablesOption::Match {
                    one: ("-m owner ", "--gid-owner "),
                    list: ("-m owner ", "--gid-owner "),
                    to: '-',
                },
                of: "from group ",
                what: "group ",
                any: "any group except the proxy's",
                apart: Some(("from group", "from any group except")),
                open: "the group",
                flag: Some("--gid"),
                ..PLAIN
            },
            Self::InInterface => &FieldFacts {
                bits: 128,
                turned: Some(Self::OutInterface),
                nft: "iifname",
                iptables: IptablesOption::Header(2, "-i"),
                of: "arriving on ",
                any: "any interface",
                apart: Some(("arriving on", "arriving on any interface except")),
                open: "the interface on which it arrives",
                flag: Some("--in"),
                ..PLAIN
            },
            Self::OutInterface => &FieldFacts {
                bits: 128,
                turned: Some(Self::InInterface),
                nft: "oifname",
                iptables: IptablesOption::Header(3, "-o"),
                of: "leaving by ",
                any: "any interface",
                apart: Some(("leaving by", "leaving by any interface except")),
                open: "the interface by which it leaves",
                flag: Some("--out"),
                ..PLAIN
            },
            Self::State => &FieldFacts {
                bits: 32,
                is_in_host_order: true,
                nft: "ct state",
                of: "ct state ",
                any: "any state",
                open: "what connection tracking says of it",
                ..PLAIN
            },
            Self::Mark => &FieldFacts {
                bits: 32,
                is_in_host_order: true,
                nft: "meta mark",
                of: "mark ",
                what: "mark ",
                any: "any mark",
                open: "the mark of the packet",
                ..PLAIN
            },
            Self::ConnectionMark => &FieldFacts {
                bits: 32,
                is_in_host_order: true,
                nft: "ct mark",
                of: "ct mark ",
                what: "ct mark ",
                any: "any ct mark",
                open: "the mark of the connection",
                ..PLAIN
            },
            Self::TcpFlags => &FieldFacts {
                nft: "tcp flags",
                of: "tcp flags ",
                any: "any flags",
                open: "whether it uses ECN",
                ..PLAIN
            },
            Self::IcmpType => &FieldFacts {
                nft: "icmpv6 type",
                of: "icmpv6 type ",
                what: "icmpv6 type ",
                any: "any icmpv6 type",
                open: "the type of the ICMPv6 message",
                ..PLAIN
            },
            Self::HopLimit => &FieldFacts {
                nft: "ip6 hoplimit",
                of: "hop limit ",
                what: "hop limit ",
                any: "any hop limit",
                open: "the hop limit",
                ..PLAIN
            },
        }
    }

    /// What it is in the answer to a packet.
    pub fn turned(self) -> Self {
        self.facts().turned.unwrap_or(self)
    }

    /// How many bits its numbers have.
    pub const fn bits(self) -> u32 {
        self.facts().bits
    }

    /// How many bytes they have.
    pub fn bytes(self) -> usize {
        (self.bits() / 8) as usize
    }

    /// The largest number that it can have.
    pub fn largest(self) -> u128 {
        u128::MAX >> (128 - self.bits())
    }

    /// Every number that it can have.
    pub fn any(self) -> Intervals {
        Intervals::up_to(self.largest())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The compiler asks for a new field's row, and this for its place in the list by which other tests ask for the rest.
    #[test]
    fn every_field_is_listed() {
        let (_, rows) = include_str!("field.rs").split_once("fn facts(").unwrap();
        let (rows, _) = rows.split_once("fn turned(").unwrap();
        assert_eq!(rows.matches("=> &").count(), Field::ALL.len());
    }

    #[test]
    fn every_field_has_words_of_its_own() {
        for field in Field::ALL {
            let FieldFacts { nft, any, open, flag, .. } = field.facts();
            assert!([nft, any, open].iter().all(|words| !words.is_empty()), "{field:?}");
            let is_asked_for = matches!(
                field,
                Field::Source(_)
                    | Field::SourcePort
                    | Field::Uid
                    | Field::Gid
                    | Field::InInterface
                    | Field::OutInterface
            );
            assert_eq!(flag.is_some(), is_asked_for, "{field:?}");
        }
    }
}
