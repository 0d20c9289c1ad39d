//! A rule's conditions and redirections as nft writes them, without xtables' extensions. [`meaning`](super::meaning) reads
//! them back.

use ruleset::{Action, Condition, Field, Rule, Set, Values, device};

use super::Missing;
use super::expression::{ByteOrder, Data, Expression, Lookup, REGISTER, Range, Redirect, Text, Value};
use super::header::last_bytes;
use crate::netlink::message::Writer;
use crate::xt::NF_NAT_RANGE_PROTO_SPECIFIED;

/// What a kernel lacks that knows something in this rule not.
pub(super) fn missing(rule: &Rule) -> Missing {
    match rule.action {
        Action::Redirect(_) => ("redirect in inet tables".to_owned(), "nft_redir", "CONFIG_NFT_REDIR"),
        _ => ("a counter or set lookup".to_owned(), "nf_tables", "CONFIG_NF_TABLES"),
    }
}

/// Writes a redirection to these ports; none if this writes no such one.
pub(super) fn write_redirect(list: &mut Writer, ports: Option<(u16, u16)>) -> Option<()> {
    let (port, _) = ports.filter(|(port, last)| port == last)?;
    Expression::Value(Value { register: REGISTER, value: Data(&port.to_be_bytes()) }).write(list);
    let flags = Some(NF_NAT_RANGE_PROTO_SPECIFIED);
    Expression::Redirect(Redirect { first: Some(REGISTER), last: None, flags }).write(list);
    Some(())
}

/// Writes a condition of a rule of a table with these sets; none if this has no way to write it.
pub(super) fn write_condition(list: &mut Writer, sets: &[Set], condition: &Condition) -> Option<()> {
    let Condition::In { field, values, negated } = condition else {
        return None;
    };
    let host_order = cfg!(target_endian = "little") && field.facts().is_in_host_order;
    let length = field.bytes();
    Expression::load(*field)?.write(list);
    match values {
        Values::Set(name) => {
            // The elements are in network order.
            sets.iter().find(|set| set.name == *name && set.bits == field.bits() && !host_order)?;
            let (set, flags) = (Text(name.as_bytes()), negated.then_some(libc::NFT_LOOKUP_F_INV as u32));
            Expression::Lookup(Lookup { register: REGISTER, set, to: None, flags }).write(list);
        }
        &Values::Interval((number, last)) if number == last => {
            if matches!(field, Field::InInterface | Field::OutInterface) {
                device(number)?;
            }
            let mut bytes = last_bytes(&number.to_be_bytes(), length)?.to_vec();
            if host_order {
                bytes.reverse();
            }
            let operation = if *negated { libc::NFT_CMP_NEQ } else { libc::NFT_CMP_EQ };
            Expression::compare(operation, &bytes).write(list);
        }
        &Values::Interval((first, last)) if first < last && matches!(field, Field::Uid | Field::Gid) => {
            if host_order {
                let (from, to, size, operation) = (REGISTER, REGISTER, length as u32, libc::NFT_BYTEORDER_HTON);
                Expression::ByteOrder(ByteOrder { from, to, operation, length: size, size }).write(list);
            }
            let operation = if *negated { libc::NFT_RANGE_NEQ } else { libc::NFT_RANGE_EQ };
            let (first, last) = (first.to_be_bytes(), last.to_be_bytes());
            let (first, last) = (Data(last_bytes(&first, length)?), Data(last_bytes(&last, length)?));
            Expression::Range(Range { register: REGISTER, operation, first, last }).write(list);
        }
        Values::Interval(_) | Values::Listed(_) => return None,
    }
    Some(())
}
