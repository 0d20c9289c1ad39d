//! What nft mode and native mode both know of nf_tables: how expressions, rules, tables and sets are written and read,
//! and how to read all of them as one consistent snapshot.

pub(crate) mod edit;
pub(crate) mod expression;
pub(crate) mod header;
pub(crate) mod hooks;
pub(crate) mod meaning;
mod number;
pub(crate) mod read;
mod register;
#[cfg(test)]
pub(crate) mod replay;
pub(crate) mod rule;
pub(crate) mod set;
pub(crate) mod table;
pub(crate) mod uapi;
pub(crate) mod user_data;

use crate::rules::{Hook, TableFamily};

/// Names a table in which proxy-init keeps rules: its own one, or one that it shares with iptables-nft.
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

/// Names a chain in which proxy-init keeps rules, and says where it is hooked, if it is a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChainId {
    pub(crate) name: &'static str,
    pub(crate) hook: Option<Hook>,
}

impl std::fmt::Display for ChainId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}
