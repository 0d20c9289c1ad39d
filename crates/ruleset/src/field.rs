//! The fields of a packet that conditions look at, and all facts about each, in one table.

use crate::family::Family;
use crate::intervals::Intervals;

/// A number that a packet has and conditions look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Field {
    /// `NFPROTO_IPV4` (2) or `NFPROTO_IPV6` (10).
    Family,
    /// The transport protocol: 6 is TCP.
    Protocol,
    /// The address in this family's header.
    Source(Family),
    Destination(Family),
    SourcePort,
    DestinationPort,
    /// The user of the socket that sends it.
    Uid,
    Gid,
    /// The name of the device on which it arrived, padded with zeros to 16 bytes; all zeros if there is no device.
    InInterface,
    /// The name of the device by which it leaves, in the same form.
    OutInterface,
    /// Connection tracking's knowledge of the packet; see [`Tracked::number`](crate::flags::Tracked::number).
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
    /// The protocol of the packet's frame (`ETH_P_*` in linux/if_ether.h).
    EtherType,
    /// For whom its frame is (`PACKET_*` in linux/if_packet.h).
    PacketType,
    /// The source of its connection's first packet as the client sent it, before any translation (`ct original`); this
    /// and the next three don't exist for a packet of no connection.
    OriginalSource(Family),
    OriginalDestination(Family),
    OriginalSourcePort,
    OriginalDestinationPort,
}

/// The facts about a field. Its place in a packet is in crates/netfilter/src/nf_tables/decode.rs.
#[derive(Debug, Clone, Copy)]
pub struct FieldFacts {
    pub bits: u32,
    /// True if nf_tables has the field's numbers in the machine's byte order, in registers and in sets.
    pub is_in_host_order: bool,
    pub nft: &'static str,
    pub iptables: IptablesOption,
    // Words for people.
    /// Before the numbers with which a rule compares it.
    pub of: &'static str,
    /// Before the only numbers that connections don't have; none if it doesn't distinguish connections.
    pub except: Option<&'static str>,
    /// Before its number in a packet.
    pub what: &'static str,
    /// Instead of a number, where it may be any.
    pub any: &'static str,
    /// After "it depends on".
    pub open: &'static str,
}

/// iptables-save's form of a condition on a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IptablesOption {
    /// With the header's fields, before all others, at this place among them: `-s 10.0.0.0/8`.
    Header(u8, &'static str),
    /// By `-m tcp` or, for a list, `-m multiport`.
    Port(&'static str),
    /// By `-m owner`.
    Owner(&'static str),
    /// By `-m conntrack`.
    Conntrack(&'static str),
    /// iptables-save has no words for it; ours are in brackets.
    None,
}

/// The common facts of most fields. Each row has its own words, and the differences of its field.
const PLAIN: FieldFacts = FieldFacts {
    bits: 8,
    is_in_host_order: false,
    nft: "",
    iptables: IptablesOption::None,
    of: "",
    except: None,
    what: "",
    any: "",
    open: "",
};

/// The same for facts that the kernel keeps with a packet beside its headers.
const IN_HOST_ORDER: FieldFacts = FieldFacts { bits: 32, is_in_host_order: true, ..PLAIN };

const SOURCE: FieldFacts = FieldFacts {
    bits: 32,
    nft: "ip saddr",
    iptables: IptablesOption::Header(0, "-s"),
    of: "from ",
    any: "any source",
    except: Some("from any address except "),
    open: "the source address",
    ..PLAIN
};

const DESTINATION: FieldFacts = FieldFacts {
    bits: 32,
    nft: "ip daddr",
    iptables: IptablesOption::Header(1, "-d"),
    of: "to ",
    any: "any destination",
    except: Some("to any address except "),
    open: "the address to which it is translated",
    ..PLAIN
};

const ORIGINAL_SOURCE: FieldFacts = FieldFacts {
    nft: "ct original ip saddr",
    iptables: IptablesOption::Conntrack("--ctorigsrc"),
    of: "originally from ",
    except: None,
    ..SOURCE
};

const ORIGINAL_DESTINATION: FieldFacts = FieldFacts {
    nft: "ct original ip daddr",
    iptables: IptablesOption::Conntrack("--ctorigdst"),
    of: "originally to ",
    except: None,
    open: "the address to which it was before translation",
    ..DESTINATION
};

impl Field {
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
            Self::Source(Family::V6) => &FieldFacts { bits: 128, nft: "ip6 saddr", ..SOURCE },
            Self::Destination(Family::V6) => &FieldFacts { bits: 128, nft: "ip6 daddr", ..DESTINATION },
            Self::SourcePort => &FieldFacts {
                bits: 16,
                nft: "tcp sport",
                iptables: IptablesOption::Port("--sport"),
                of: "from port ",
                what: "source port ",
                any: "any source port",
                except: Some("from any port except "),
                open: "the source port",
                ..PLAIN
            },
            Self::DestinationPort => &FieldFacts {
                bits: 16,
                nft: "tcp dport",
                iptables: IptablesOption::Port("--dport"),
                of: "to port ",
                what: "port ",
                any: "any port",
                except: Some("to any port except "),
                open: "the port to which it is translated",
                ..PLAIN
            },
            Self::Uid => &FieldFacts {
                nft: "meta skuid",
                iptables: IptablesOption::Owner("--uid-owner"),
                of: "from user ",
                what: "user ",
                any: "any user",
                except: Some("from any user except "),
                open: "the user",
                ..IN_HOST_ORDER
            },
            Self::Gid => &FieldFacts {
                nft: "meta skgid",
                iptables: IptablesOption::Owner("--gid-owner"),
                of: "from group ",
                what: "group ",
                any: "any group",
                except: Some("from any group except "),
                open: "the group",
                ..IN_HOST_ORDER
            },
            Self::InInterface => &FieldFacts {
                bits: 128,
                nft: "iifname",
                iptables: IptablesOption::Header(2, "-i"),
                of: "arriving on ",
                any: "any interface",
                except: Some("arriving on any interface except "),
                open: "the interface on which it arrives",
                ..PLAIN
            },
            Self::OutInterface => &FieldFacts {
                bits: 128,
                nft: "oifname",
                iptables: IptablesOption::Header(3, "-o"),
                of: "leaving by ",
                any: "any interface",
                except: Some("leaving by any interface except "),
                open: "the interface by which it leaves",
                ..PLAIN
            },
            Self::State => &FieldFacts {
                nft: "ct state",
                of: "ct state ",
                any: "any state",
                open: "what connection tracking says of it",
                ..IN_HOST_ORDER
            },
            Self::Mark => &FieldFacts {
                nft: "meta mark",
                of: "mark ",
                what: "mark ",
                any: "any mark",
                open: "the mark of the packet",
                ..IN_HOST_ORDER
            },
            Self::ConnectionMark => &FieldFacts {
                nft: "ct mark",
                of: "ct mark ",
                what: "ct mark ",
                any: "any ct mark",
                open: "the mark of the connection",
                ..IN_HOST_ORDER
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
            Self::EtherType => &FieldFacts {
                bits: 16,
                nft: "meta protocol",
                of: "meta protocol ",
                any: "any protocol",
                open: "the protocol",
                ..PLAIN
            },
            Self::PacketType => &FieldFacts {
                nft: "meta pkttype",
                of: "meta pkttype ",
                any: "any packet type",
                open: "the type of the packet",
                ..PLAIN
            },
            Self::OriginalSource(Family::V4) => &ORIGINAL_SOURCE,
            Self::OriginalDestination(Family::V4) => &ORIGINAL_DESTINATION,
            Self::OriginalSource(Family::V6) => {
                &FieldFacts { bits: 128, nft: "ct original ip6 saddr", ..ORIGINAL_SOURCE }
            }
            Self::OriginalDestination(Family::V6) => {
                &FieldFacts { bits: 128, nft: "ct original ip6 daddr", ..ORIGINAL_DESTINATION }
            }
            Self::OriginalSourcePort => &FieldFacts {
                bits: 16,
                nft: "ct original proto-src",
                iptables: IptablesOption::Conntrack("--ctorigsrcport"),
                of: "originally from port ",
                what: "original source port ",
                any: "any source port",
                open: "the source port",
                ..PLAIN
            },
            Self::OriginalDestinationPort => &FieldFacts {
                bits: 16,
                nft: "ct original proto-dst",
                iptables: IptablesOption::Conntrack("--ctorigdstport"),
                of: "originally to port ",
                what: "original port ",
                any: "any port",
                open: "the port to which it was before translation",
                ..PLAIN
            },
        }
    }

    /// The field that has the same value in the reply.
    pub fn reversed(self) -> Self {
        match self {
            Self::Source(family) => Self::Destination(family),
            Self::Destination(family) => Self::Source(family),
            Self::SourcePort => Self::DestinationPort,
            Self::DestinationPort => Self::SourcePort,
            Self::InInterface => Self::OutInterface,
            Self::OutInterface => Self::InInterface,
            other => other,
        }
    }

    /// The field of the client's first packet whose number this one has.
    pub fn of_first_packet(self) -> Option<Self> {
        match self {
            Self::OriginalSource(family) => Some(Self::Source(family)),
            Self::OriginalDestination(family) => Some(Self::Destination(family)),
            Self::OriginalSourcePort => Some(Self::SourcePort),
            Self::OriginalDestinationPort => Some(Self::DestinationPort),
            _ => None,
        }
    }

    /// The family whose addresses its numbers are.
    pub fn address_family(self) -> Option<Family> {
        match self {
            Self::Source(family)
            | Self::Destination(family)
            | Self::OriginalSource(family)
            | Self::OriginalDestination(family) => Some(family),
            _ => None,
        }
    }

    pub const fn bits(self) -> u32 {
        self.facts().bits
    }

    pub fn bytes(self) -> usize {
        (self.bits() / 8) as usize
    }

    pub fn largest(self) -> u128 {
        u128::MAX >> (128 - self.bits())
    }

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
        let (rows, _) = rows.split_once("fn reversed(").unwrap();
        assert_eq!(rows.matches(" => ").count(), Field::ALL.len());
    }

    #[test]
    fn a_field_has_whole_bytes_and_numbers_as_large_as_they_hold() {
        for (field, bytes, largest) in [
            (Field::Protocol, 1, 0xff),
            (Field::DestinationPort, 2, 0xffff),
            (Field::Uid, 4, 0xffff_ffff),
            (Field::Source(Family::V6), 16, u128::MAX),
        ] {
            assert_eq!((field.bytes(), field.bits(), field.largest()), (bytes, 8 * bytes as u32, largest), "{field:?}");
        }
    }

    #[test]
    fn every_field_has_words_of_its_own() {
        for field in Field::ALL {
            let FieldFacts { nft, any, open, of, except, what, .. } = field.facts();
            assert!([nft, any, open].iter().all(|words| !words.is_empty()), "{field:?}");
            // `tcp` and `ipv4` need none before them.
            assert_eq!(of.is_empty(), matches!(field, Field::Family | Field::Protocol), "{field:?}");
            assert!(except.is_none_or(|except| except.starts_with(of.split(' ').next().unwrap())), "{field:?}");
            let is_bare_number = matches!(
                field,
                Field::SourcePort
                    | Field::DestinationPort
                    | Field::Uid
                    | Field::Gid
                    | Field::Mark
                    | Field::ConnectionMark
                    | Field::IcmpType
                    | Field::HopLimit
                    | Field::OriginalSourcePort
                    | Field::OriginalDestinationPort
            );
            assert_eq!(!what.is_empty(), is_bare_number, "{field:?}");
        }
    }
}
