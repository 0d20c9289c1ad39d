//! What tests are made of, here and in the crates above.

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

use ruleset::{Hook, Rule, Set, TableFamily};

use crate::netlink::FinishedBatch;
use crate::netlink::message::Messages;
#[cfg(any(test, feature = "testing"))]
use crate::netlink::message::{Message, Writer};
use crate::nf_tables::edit::{Edit, batch};
use crate::nf_tables::rule::NewRule;
use crate::nf_tables::{ChainId, TableId, decode};

/// Bytes that were recorded as hexadecimal digits.
#[cfg(test)]
pub(crate) fn recorded(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// The attributes of a request. What they name, a table and a set, a message of the answer begins with.
#[cfg(any(test, feature = "testing"))]
fn attributes_of(write: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut named = Writer::with_capacity(64);
    write(&mut named);
    named.finish().unwrap()
}

/// Whether a message begins with these attributes, after the header of nfnetlink.
#[cfg(any(test, feature = "testing"))]
fn begins_with(message: &Message<'_>, attributes: &[u8]) -> bool {
    message.payload.get(4..).unwrap_or_default().starts_with(attributes)
}

/// Writes the message that adds a rule to a table of this family with these sets, and reads it as if the kernel had dumped
/// it. The error says what of the rule can't be written.
pub fn written_and_read(family: TableFamily, rule: &Rule, sets: &[Set]) -> Result<Rule, String> {
    let edit = Edit::AddRule(NewRule {
        table: TableId { family, name: "nat" },
        chain: ChainId { name: "OUTPUT", hook: Some(Hook::Output) },
        rule,
        sets,
        before: None,
    });
    let FinishedBatch(bytes) = batch(&[edit], None).map_err(|error| error.what.to_string())?;
    let message = Messages(&bytes).flatten().nth(1).expect("the batch has a message");
    let attributes = message.attributes().expect("it has attributes");
    Ok(decode::read(attributes, family, sets, decode::only_loopback).expect("what was written can be read"))
}
