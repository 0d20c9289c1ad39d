//! Rules as the kernel holds them, not decoded: enough to tell which rule is the one that would be written, and where each
//! leads.

use ruleset::{Name, Set, TableFamily};

use super::comparable::comparable;
use super::expression::{Expression, Lookup, Match};
use super::read::{Snapshot, read_all};
use super::uapi::*;
use super::user_data;
use crate::netlink::message::{Attributes, Malformed, be64, string};
use crate::netlink::{ReadError, Respondent};

/// A rule that isn't decoded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeldRule {
    /// Its number in its table (`NFTA_RULE_HANDLE`).
    pub handle: u64,
    /// Its expressions in the form of [`comparable`], which those of a rule that would be written have too.
    pub expressions: Vec<u8>,
    pub comment: Option<Name>,
    /// It has no match, so that every packet gets its verdict.
    pub is_unconditional: bool,
    /// The chain to which it jumps or goes.
    pub target: Option<Name>,
    /// The chains to which its verdict map leads.
    pub mapped: Vec<Name>,
}

impl HeldRule {
    /// The chains to which it leads.
    pub fn targets(&self) -> impl Iterator<Item = &Name> {
        self.target.iter().chain(&self.mapped)
    }

    fn read(attributes: Attributes<'_>, sets: &[Set]) -> Result<Self, Malformed> {
        let expressions = attributes.find(NFTA_RULE_EXPRESSIONS)?.unwrap_or_default();
        let mut rule = Self {
            handle: attributes.find(NFTA_RULE_HANDLE)?.map_or(Ok(0), be64)?,
            expressions: comparable(expressions)?,
            is_unconditional: true,
            ..Self::default()
        };
        for expression in Expression::each(None, Some(expressions)) {
            match expression? {
                Expression::Decide(decide) => rule.target = decide.verdict.chain.map(|chain| Name::from(chain.0)),
                Expression::Match(Match { name, info, .. }) if name.0 == b"comment" => {
                    rule.comment = Some(Name::from(string(info)?));
                }
                Expression::Counter(_) => {}
                Expression::Lookup(Lookup { set, to: Some(to), .. }) if to == libc::NFT_REG_VERDICT as u32 => {
                    rule.is_unconditional = false;
                    let map = sets.iter().find(|known| known.name.as_bytes() == set.0);
                    let verdicts = map.into_iter().flat_map(Set::verdicts);
                    rule.mapped.extend(verdicts.filter_map(|verdict| verdict.target().cloned()));
                }
                _ => rule.is_unconditional = false,
            }
        }
        let comment = attributes.find(NFTA_RULE_USERDATA)?.and_then(user_data::read_comment);
        rule.comment = comment.or(rule.comment);
        Ok(rule)
    }
}

/// Reads those tables that are asked for, and their rules without decoding them.
pub fn held(
    socket: &impl Respondent,
    is_asked: impl Fn(TableFamily, &[u8]) -> bool,
) -> Result<Snapshot<HeldRule>, ReadError> {
    read_all(socket, is_asked, |attributes, _, sets| HeldRule::read(attributes, sets), |rule| rule.handle)
}
