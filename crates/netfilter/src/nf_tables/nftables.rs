//! A rule's conditions and redirections as nft writes them, without xtables' extensions. [`decode`](super::decode) reads
//! them back.

use nftnl::Rule as NftnlRule;
use nftnl::expr::{Cmp, CmpOp, Immediate, Register};
use ruleset::{Action, Condition, Field, Rule, Set, Values, device};

use super::header::last_bytes;
use super::load::add_load;
use super::{Missing, c_string};
use crate::netlink::objects;
use crate::xt::NF_NAT_RANGE_PROTO_SPECIFIED;

/// The part that a kernel lacks if it doesn't know something in this rule.
pub(super) fn missing(rule: &Rule) -> Missing {
    match rule.action {
        Action::Redirect(_) => ("redirect in inet tables".to_owned(), "nft_redir", "CONFIG_NFT_REDIR"),
        _ => ("a counter or set lookup".to_owned(), "nf_tables", "CONFIG_NF_TABLES"),
    }
}

pub(super) fn add_redirect(to: &mut NftnlRule<'_>, port: u16) {
    to.add_expr(&Immediate::new(port.to_be_bytes(), Register::Reg1));
    objects::add_redirect(to, NF_NAT_RANGE_PROTO_SPECIFIED);
}

/// Adds a condition to a rule of a table with these sets; none if this has no way to write it.
pub(super) fn add_condition(to: &mut NftnlRule<'_>, sets: &[Set], condition: &Condition) -> Option<()> {
    let &Condition::In { field, ref values, negated } = condition else {
        return None;
    };
    let host_order = cfg!(target_endian = "little") && field.facts().is_in_host_order;
    let length = field.bytes();
    add_load(to, field)?;
    match values {
        Values::Set(name) => {
            // The elements are in network order.
            sets.iter().find(|set| set.name == *name && set.bits == field.bits() && !host_order)?;
            objects::add_lookup(to, &c_string(name.as_bytes()).ok()?, negated);
        }
        &Values::Interval((number, last)) if number == last => {
            if matches!(field, Field::InInterface | Field::OutInterface) {
                device(number)?;
            }
            let mut bytes = last_bytes(&number.to_be_bytes(), length)?.to_vec();
            if host_order {
                bytes.reverse();
            }
            let operation = if negated { CmpOp::Neq } else { CmpOp::Eq };
            to.add_expr(&Cmp::new(operation, bytes.as_slice()));
        }
        &Values::Interval((first, last)) if first < last && matches!(field, Field::Uid | Field::Gid) => {
            if host_order {
                objects::add_to_network_order(to, length as u32);
            }
            let (first, last) = (first.to_be_bytes(), last.to_be_bytes());
            objects::add_range(to, negated, last_bytes(&first, length)?, last_bytes(&last, length)?);
        }
        Values::Interval(_) | Values::Listed(_) => return None,
    }
    Some(())
}
