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
    /// What it is in the answer to a packet.
    pub turned: Field,
    pub nft: &'static str,
    pub iptables: IptablesOption,
    pub words: FieldWords,
}

/// How iptables-save writes a condition on a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IptablesOption {
    /// With the header's fields, before all others, at this place among them: `-s 10.0.0.0/8`.
    Header(u8, &'static str),
    /// By a match and its option, for a number or an interval and for a list: `-m owner --uid-owner 1-2`. The sign stands
    /// between the ends of an interval.
    Match {
        one: (&'static str, &'static str),
        list: (&'static str, &'static str),
        to: char,
    },
    /// It has no words for it: what isn't understood is in brackets.
    None,
}

/// What is said of a field to people.
#[derive(Debug, Clone, Copy)]
pub struct FieldWords {
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
            Self::Family => &FieldFacts {
                bits: 8,
                is_in_host_order: false,
                turned: Self::Family,
                nft: "meta nfproto",
                iptables: IptablesOption::None,
                words: FieldWords {
                    of: "",
                    what: "",
                    any: "any family",
                    apart: None,
                    open: "the protocol",
                    flag: None,
                },
            },
            Self::Protocol => &FieldFacts {
                bits: 8,
                is_in_host_order: false,
                turned: Self::Protocol,
                nft: "meta l4proto",
                iptables: IptablesOption::Header(4, "-p"),
                words: FieldWords {
                    of: "",
                    what: "",
                    any: "any protocol",
                    apart: None,
                    open: "the protocol",
                    flag: None,
                },
            },
            Self::Source(Family::V4) => &FieldFacts {
                bits: 32,
                is_in_host_order: false,
                turned: Self::Destination(Family::V4),
                nft: "ip saddr",
                iptables: IptablesOption::Header(0, "-s"),
                words: FieldWords {
                    of: "from ",
                    what: "",
                    any: "any source",
                    apart: Some(("from", "from any address except")),
                    open: "the source address",
                    flag: Some("--from ADDRESS"),
                },
            },
            Self::Destination(Family::V4) => &FieldFacts {
                bits: 32,
                is_in_host_order: false,
                turned: Self::Source(Family::V4),
                nft: "ip daddr",
                iptables: IptablesOption::Header(1, "-d"),
                words: FieldWords {
                    of: "to ",
                    what: "",
                    any: "any destination",
                    apart: Some(("to", "to any address except")),
                    open: "the address to which it is translated",
                    flag: None,
                },
            },
            Self::Source(Family::V6) => &FieldFacts {
                bits: 128,
                is_in_host_order: false,
                turned: Self::Destination(Family::V6),
                nft: "ip6 saddr",
                iptables: IptablesOption::Header(0, "-s"),
                words: FieldWords {
                    of: "from ",
                    what: "",
                    any: "any source",
                    apart: Some(("from", "from any address except")),
                    open: "the source address",
                    flag: Some("--from ADDRESS"),
                },
            },
            Self::Destination(Family::V6) => &FieldFacts {
                bits: 128,
                is_in_host_order: false,
                turned: Self::Source(Family::V6),
                nft: "ip6 daddr",
                iptables: IptablesOption::Header(1, "-d"),
                words: FieldWords {
                    of: "to ",
                    what: "",
                    any: "any destination",
                    apart: Some(("to", "to any address except")),
                    open: "the address to which it is translated",
                    flag: None,
                },
            },
            Self::SourcePort => &FieldFacts {
                bits: 16,
                is_in_host_order: false,
                turned: Self::DestinationPort,
                nft: "tcp sport",
                iptables: IptablesOption::Match {
                    one: ("-m tcp ", "--sport "),
                    list: ("-m multiport ", "--sports "),
                    to: ':',
                },
                words: FieldWords {
                    of: "from port ",
                    what: "source port ",
                    any: "any source port",
                    apart: Some(("from port", "from any port except")),
                    open: "the source port",
                    flag: Some("--from ADDRESS:PORT"),
                },
            },
            Self::DestinationPort => &FieldFacts {
                bits: 16,
                is_in_host_order: false,
                turned: Self::SourcePort,
                nft: "tcp dport",
                iptables: IptablesOption::Match {
                    one: ("-m tcp ", "--dport "),
                    list: ("-m multiport ", "--dports "),
                    to: ':',
                },
                words: FieldWords {
                    of: "to port ",
                    what: "port ",
                    any: "any port",
                    apart: Some(("to port", "to any port except")),
                    open: "the port to which it is translated",
                    flag: None,
                },
            },
            Self::Uid => &FieldFacts {
                bits: 32,
                is_in_host_order: true,
                turned: Self::Uid,
                nft: "meta skuid",
                iptables: IptablesOption::Match {
                    one: ("-m owner ", "--uid-owner "),
                    list: ("-m owner ", "--uid-owner "),
                    to: '-',
                },
                words: FieldWords {
                    of: "from user ",
                    what: "user ",
                    any: "any user except the proxy's",
                    apart: Some(("from user", "from any user except")),
                    open: "the user",
                    flag: Some("--uid"),
                },
            },
            Self::Gid => &FieldFacts {
                bits: 32,
                is_in_host_order: true,
                turned: Self::Gid,
                nft: "meta skgid",
                iptables: IptablesOption::Match {
                    one: ("-m owner ", "--gid-owner "),
                    list: ("-m owner ", "--gid-owner "),
                    to: '-',
                },
                words: FieldWords {
                    of: "from group ",
                    what: "group ",
                    any: "any group except the proxy's",
                    apart: Some(("from group", "from any group except")),
                    open: "the group",
                    flag: Some("--gid"),
                },
            },
            Self::InInterface => &FieldFacts {
                bits: 128,
                is_in_host_order: false,
                turned: Self::OutInterface,
                nft: "iifname",
                iptables: IptablesOption::Header(2, "-i"),
                words: FieldWords {
                    of: "arriving on ",
                    what: "",
                    any: "any interface",
                    apart: Some(("arriving on", "arriving on any interface except")),
                    open: "the interface on which it arrives",
                    flag: Some("--in"),
                },
            },
            Self::OutInterface => &FieldFacts {
                bits: 128,
                is_in_host_order: false,
                turned: Self::InInterface,
                nft: "oifname",
                iptables: IptablesOption::Header(3, "-o"),
                words: FieldWords {
                    of: "leaving by ",
                    what: "",
                    any: "any interface",
                    apart: Some(("leaving by", "leaving by any interface except")),
                    open: "the interface by which it leaves",
                    flag: Some("--out"),
                },
            },
            Self::State => &FieldFacts {
                bits: 32,
                is_in_host_order: true,
                turned: Self::State,
                nft: "ct state",
                iptables: IptablesOption::None,
                words: FieldWords {
                    of: "ct state ",
                    what: "",
                    any: "any state",
                    apart: None,
                    open: "what connection tracking says of it",
                    flag: None,
                },
            },
            Self::Mark => &FieldFacts {
                bits: 32,
                is_in_host_order: true,
                turned: Self::Mark,
                nft: "meta mark",
                iptables: IptablesOption::None,
                words: FieldWords {
                    of: "mark ",
                    what: "mark ",
                    any: "any mark",
                    apart: None,
                    open: "the mark of the packet",
                    flag: None,
                },
            },
            Self::ConnectionMark => &FieldFacts {
                bits: 32,
                is_in_host_order: true,
                turned: Self::ConnectionMark,
                nft: "ct mark",
                iptables: IptablesOption::None,
                words: FieldWords {
                    of: "ct mark ",
                    what: "ct mark ",
                    any: "any ct mark",
                    apart: None,
                    open: "the mark of the connection",
                    flag: None,
                },
            },
            Self::TcpFlags => &FieldFacts {
                bits: 8,
                is_in_host_order: false,
                turned: Self::TcpFlags,
                nft: "tcp flags",
                iptables: IptablesOption::None,
                words: FieldWords {
                    of: "tcp flags ",
                    what: "",
                    any: "any flags",
                    apart: None,
                    open: "whether it uses ECN",
                    flag: None,
                },
            },
            Self::IcmpType => &FieldFacts {
                bits: 8,
                is_in_host_order: false,
                turned: Self::IcmpType,
                nft: "icmpv6 type",
                iptables: IptablesOption::None,
                words: FieldWords {
                    of: "icmpv6 type ",
                    what: "icmpv6 type ",
                    any: "any icmpv6 type",
                    apart: None,
                    open: "the type of the ICMPv6 message",
                    flag: None,
                },
            },
            Self::HopLimit => &FieldFacts {
                bits: 8,
                is_in_host_order: false,
                turned: Self::HopLimit,
                nft: "ip6 hoplimit",
                iptables: IptablesOption::None,
                words: FieldWords {
                    of: "hop limit ",
                    what: "hop limit ",
                    any: "any hop limit",
                    apart: None,
                    open: "the hop limit",
                    flag: None,
                },
            },
        }
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
