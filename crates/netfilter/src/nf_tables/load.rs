//! The expressions that load a field, for rules that are written. decode.rs reads them.

use nftnl::{Rule as NftnlRule, nft_expr};
use ruleset::{Family, Field};

/// Adds the expression that loads a field; none if it isn't one that rules are written with.
pub(super) fn add_load(to: &mut NftnlRule<'_>, field: Field) -> Option<()> {
    match field {
        Field::Family => to.add_expr(&nft_expr!(meta nfproto)),
        Field::Protocol => to.add_expr(&nft_expr!(meta l4proto)),
        Field::Source(Family::V4) => to.add_expr(&nft_expr!(payload ipv4 saddr)),
        Field::Destination(Family::V4) => to.add_expr(&nft_expr!(payload ipv4 daddr)),
        Field::Source(Family::V6) => to.add_expr(&nft_expr!(payload ipv6 saddr)),
        Field::Destination(Family::V6) => to.add_expr(&nft_expr!(payload ipv6 daddr)),
        Field::SourcePort => to.add_expr(&nft_expr!(payload tcp sport)),
        Field::DestinationPort => to.add_expr(&nft_expr!(payload tcp dport)),
        Field::InInterface => to.add_expr(&nft_expr!(meta iifname)),
        Field::OutInterface => to.add_expr(&nft_expr!(meta oifname)),
        Field::Uid => to.add_expr(&nft_expr!(meta skuid)),
        Field::Gid => to.add_expr(&nft_expr!(meta skgid)),
        Field::Mark => to.add_expr(&nft_expr!(meta mark)),
        Field::State
        | Field::ConnectionMark
        | Field::TcpFlags
        | Field::IcmpType
        | Field::HopLimit
        | Field::EtherType
        | Field::PacketType
        | Field::OriginalSource(_)
        | Field::OriginalDestination(_)
        | Field::OriginalSourcePort
        | Field::OriginalDestinationPort => return None,
    }
    Some(())
}
