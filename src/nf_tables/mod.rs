//! What both modes over netlink know of nf_tables: where things are in messages and packets, expressions, rules, tables
//! and sets both ways, reading all of it as one picture, committing a change to just that picture, and what a refusal
//! means.

pub(crate) mod commit;
pub(crate) mod expression;
pub(crate) mod header;
pub(crate) mod read;
pub(crate) mod refusal;
pub(crate) mod rule;
pub(crate) mod set;
pub(crate) mod step;
pub(crate) mod table;
pub(crate) mod uapi;
pub(crate) mod user_data;

use crate::rules::found::TableFamily;

/// A table of proxy-init's or of iptables-nft's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TableId {
    pub(crate) family: TableFamily,
    pub(crate) name: &'static str,
}

/// As nft names it: `ip nat`.
impl std::fmt::Display for TableId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.family, self.name)
    }
}
