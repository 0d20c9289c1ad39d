//! Rules as nft writes them, without xtables' extensions.

use std::borrow::Cow;
use std::fmt;

use crate::netlink::Socket;
use crate::netlink::message::Writer;
use crate::nf_tables::expression::{Expression, REGISTER, Verdict};
use crate::nf_tables::header::{META_FIELDS, place};
use crate::nf_tables::step::Body;
use crate::rules::name::Name;
use crate::rules::nftables::NftRule;
use crate::rules::rule::{Action, Condition, Field, Rule, Values};
use crate::wanted::config::OwnerId;

/// A rule of native mode's table.
pub(super) struct NativeRule<'a>(pub(super) &'a Rule);

impl fmt::Display for NativeRule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        NftRule(self.0).fmt(f)
    }
}

impl NativeRule<'_> {
    /// The number that a field is compared with, if it is compared with a list; of several, the first.
    fn number(&self, wanted: Field) -> Option<u128> {
        self.0.conditions.iter().find_map(|condition| match condition {
            Condition::In {
                field,
                values: Values::Listed(list),
                ..
            } if *field == wanted => list.first().map(|&(number, _)| number),
            _ => None,
        })
    }
}

impl Body for NativeRule<'_> {
    fn write(&self, list: &mut Writer) {
        for condition in &self.0.conditions {
            // Native mode plans no other conditions.
            if let Condition::In { field, values, .. } = condition {
                write_condition(list, *field, values);
            }
        }
        Expression::Counter(Default::default()).write(list);
        match &self.0.action {
            Action::Return => Expression::Verdict(Verdict::Return).write(list),
            Action::Jump(chain) => Expression::Verdict(Verdict::Jump(chain.as_bytes())).write(list),
            Action::Redirect(Some((port, _))) => {
                let (register, value) = (REGISTER, port.to_be_bytes());
                Expression::Value {
                    register,
                    value: &value,
                }
                .write(list);
                Expression::Redirect {
                    first: Some(register),
                    last: None,
                }
                .write(list);
            }
            // Native mode plans no other actions.
            _ => {}
        }
    }

    fn comment(&self) -> Cow<'_, [u8]> {
        self.0.comment.as_ref().map(Name::as_bytes).unwrap_or_default().into()
    }

    fn owner(&self) -> Option<(OwnerId, &'static str)> {
        let id = |field| OwnerId::new(u32::try_from(self.number(field)?).ok()?);
        let uid = id(Field::Uid).map(|id| (id, "/proc/self/uid_map"));
        uid.or_else(|| id(Field::Gid).map(|id| (id, "/proc/self/gid_map")))
    }

    fn missing(&self, _: &Socket) -> Option<(String, &'static str, &'static str)> {
        Some(match self.0.action {
            Action::Redirect(_) => ("redirect in inet tables".to_owned(), "nft_redir", "CONFIG_NFT_REDIR"),
            _ => ("a counter or set lookup".to_owned(), "nf_tables", "CONFIG_NF_TABLES"),
        })
    }
}

fn write_condition(list: &mut Writer, field: Field, values: &Values) {
    let register = REGISTER;
    let meta = META_FIELDS.into_iter().find(|(known, ..)| *known == field);
    match (meta, place(field)) {
        (Some((_, key, _)), _) => Expression::Meta { key, register }.write(list),
        (None, Some(place)) => Expression::Payload { place, register }.write(list),
        (None, None) => return,
    }
    match values {
        Values::Set(name) => Expression::Lookup {
            register,
            set: name.as_bytes(),
            to: None,
            negated: false,
        }
        .write(list),
        Values::Listed(numbers) => {
            let number = numbers.first().map_or(0, |&(number, _)| number);
            let mut bytes = number.to_be_bytes();
            let length = (field.bits() / 8) as usize;
            let value = bytes.get_mut(16 - length..).unwrap_or_default();
            if meta.is_some_and(|(_, _, host_order)| host_order) && cfg!(target_endian = "little") {
                value.reverse();
            }
            Expression::equals(value).write(list);
        }
    }
}
