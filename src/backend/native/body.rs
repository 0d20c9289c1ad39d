//! Rules as nft writes them, without xtables' extensions. `nf_tables::meaning::read` is the opposite.

use crate::netlink::Socket;
use crate::netlink::message::Writer;
use crate::nf_tables::expression::{Data, Expression, REGISTER, Text};
use crate::nf_tables::header::last_bytes;
use crate::nf_tables::rule::{Dialect, Missing, NewRule, write_rule};
use crate::rules::{Action, Condition, Field, Rule, Set, TableFamily, Values, device};
use crate::xt::NF_NAT_RANGE_PROTO_SPECIFIED;

/// How native mode writes rules.
pub(super) struct Nftables;

impl Dialect for Nftables {
    fn write(&self, new: &NewRule<'_>, list: &mut Writer) {
        let condition = |list: &mut Writer, condition: &_| write_condition(list, new.sets, condition);
        write_rule(list, new.rule, condition, |list, ports| {
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

    fn missing(&self, _: &Socket, _: TableFamily, rule: &Rule) -> Option<Missing> {
        Some(match rule.action {
            Action::Redirect(_) => ("redirect in inet tables".to_owned(), "nft_redir", "CONFIG_NFT_REDIR"),
            _ => ("a counter or set lookup".to_owned(), "nf_tables", "CONFIG_NF_TABLES"),
        })
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
