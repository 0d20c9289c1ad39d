//! The parts of tests, here and in the crates above.

pub mod fuzzed;
#[cfg(test)]
mod inverse;
#[cfg(test)]
mod kernel;
#[cfg(test)]
pub(crate) mod namespace;
#[cfg(test)]
mod nftables;
#[cfg(test)]
pub(crate) mod recording;
#[cfg(any(test, feature = "testing"))]
pub mod replay;
#[cfg(test)]
mod xtables;

use ruleset::{Hook, Numbered, Rule, Set, TableFamily};

use crate::netlink::message::Messages;
#[cfg(any(test, feature = "testing"))]
use crate::netlink::message::{Message, Request};
use crate::nf_tables::decode::Decoder;
use crate::nf_tables::edit::{Edit, batch};
use crate::nf_tables::rule::NewRule;
use crate::nf_tables::{ChainId, TableId};

/// Bytes that were recorded as hexadecimal digits.
#[cfg(test)]
pub(crate) fn recorded(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Attributes, without a message.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn attributes_of(write: impl FnOnce(&mut Request)) -> Vec<u8> {
    let mut request = Request::new(0, 0, &[]);
    write(&mut request);
    let bytes = request.finish().unwrap();
    Messages(&bytes).next().unwrap().unwrap().payload.to_vec()
}

/// Returns true if a message has the attributes of a request: a table's name and a set's, by which elements are asked for.
#[cfg(any(test, feature = "testing"))]
fn is_about(message: &Message<'_>, request: &Message<'_>) -> bool {
    let of_message = message.attributes().unwrap();
    request.attributes().unwrap().flatten().all(|(kind, value)| of_message.find(kind) == Ok(Some(value)))
}

/// The number of a message in its subsystem: `NFT_MSG_*`.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn message_of(message: &Message<'_>) -> i32 {
    i32::from(message.kind) & 0xff
}

/// Writes the message that adds a rule to a table of this family with these sets, and reads it as if the kernel had dumped
/// it. The error says what of the rule can't be written.
pub fn written_and_read(family: TableFamily, rule: &Rule, sets: &[Set]) -> Result<Rule, String> {
    let edit = Edit::AddRule(NewRule {
        table: TableId { family, name: "nat" },
        chain: ChainId { name: "OUTPUT", hook: Some(Hook::Output) },
        rule,
        sets,
    });
    let batch = batch(&[edit], None).map_err(|error| error.what.to_string())?;
    let message = Messages(batch.bytes()).flatten().nth(1).expect("the batch has a message");
    let attributes = message.attributes().expect("it has attributes");
    Ok(Decoder::new(&Numbered::default()).read(attributes, family, sets).expect("what was written can be read"))
}
