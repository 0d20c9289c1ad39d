//! Rules as nft writes them, without xtables' extensions. [`meaning::read`](super::meaning::read) is the
//! opposite.

use packets::rules::{Action, Condition, Field, Rule, Set, Values, device};

use super::body::{Missing, write_rule};
use crate::netlink::message::Writer;
use crate::nf_tables::expression::{Data, Expression, REGISTER, Text};
use crate::nf_tables::header::last_bytes;
use crate::xt::NF_NAT_RANGE_PROTO_SPECIFIED;

/// Adds the expressions of a rule of a table with these sets; what they have no way to say, they refuse.
pub(super) fn write(list: &mut Writer, sets: &[Set], rule: &Rule) {
    let condition = |list: &mut Writer, condition: &_| write_condition(list, sets, condition);
    write_rule(list, rule, condition, |list, ports| {
        let (port, _) = ports.filter(|(port, last)| port == last)?;
        let (register, value) = (REGISTER, port.to_be_bytes());
        Expression::Value {
            register,
            value: Data(&value),
        }
        .write(list);
        Expression::Redirect {
            first: Some(register),
            last: None,
            flags: Some(NF_NAT_RANGE_PROTO_SPECIFIED),
        }
        .write(list);
        Some(())
    });
}

/// What a kernel lacks that knows something in this rule not.
pub(super) fn missing(rule: &Rule) -> Missing {
    match rule.action {
        Action::Redirect(_) => ("redirect in inet tables".to_owned(), "nft_redir", "CONFIG_NFT_REDIR"),
        _ => ("a counter or set lookup".to_owned(), "nf_tables", "CONFIG_NF_TABLES"),
    }
}

/// Writes a condition; none if this has no way to write it.
fn write_condition(list: &mut Writer, sets: &[Set], condition: &Condition) -> Option<()> {
    let Condition::In { field, values, negated } = condition else {
        return None;
    };
    let register = REGISTER;
    let host_order = cfg!(target_endian = "little") && field.is_in_host_order();
    let length = (field.bits() / 8) as usize;
    Expression::load(*field)?.write(list);
    match values {
        Values::Set(name) => {
            // The elements are in network order.
            sets.iter()
                .find(|set| set.name == *name && set.bits == field.bits() && !host_order)?;
            Expression::Lookup {
                register,
                set: Text(name.as_bytes()),
                to: None,
                flags: negated.then_some(libc::NFT_LOOKUP_F_INV as u32),
            }
            .write(list);
        }
        &Values::Interval((number, last)) if number == last => {
            if matches!(field, Field::InInterface | Field::OutInterface) {
                device(number)?;
            }
            let bytes = number.to_be_bytes();
            let mut bytes = last_bytes(&bytes, length)?.to_vec();
            if host_order {
                bytes.reverse();
            }
            let operation = match negated {
                true => libc::NFT_CMP_NEQ,
                false => libc::NFT_CMP_EQ,
            };
            Expression::compare(operation, &bytes).write(list);
        }
        &Values::Interval((first, last)) if first < last && matches!(field, Field::Uid | Field::Gid) => {
            if host_order {
                Expression::ByteOrder {
                    from: register,
                    to: register,
                    operation: libc::NFT_BYTEORDER_HTON,
                    length: length as u32,
                    size: length as u32,
                }
                .write(list);
            }
            Expression::Range {
                register,
                operation: if *negated {
                    libc::NFT_RANGE_NEQ
                } else {
                    libc::NFT_RANGE_EQ
                },
                first: Data(last_bytes(&first.to_be_bytes(), length)?),
                last: Data(last_bytes(&last.to_be_bytes(), length)?),
            }
            .write(list);
        }
        Values::Interval(_) | Values::Listed(_) => return None,
    }
    Some(())
}
