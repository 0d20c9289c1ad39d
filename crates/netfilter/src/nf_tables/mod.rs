//! What nft mode and native mode both know of nf_tables: how expressions, rules, tables and sets are written and read,
//! and how to read all of them as one consistent snapshot.

pub mod body;
pub mod edit;
pub mod expression;
pub mod header;
pub mod hooks;
#[cfg(test)]
mod inverse;
pub mod meaning;
mod nftables;
mod number;
pub mod read;
mod register;
#[cfg(any(test, feature = "testing"))]
pub mod replay;
pub mod rule;
pub mod set;
pub mod table;
pub mod uapi;
pub mod user_data;
mod xtables;

use packets::rules::{Hook, TableFamily};

/// Names a table in which proxy-init keeps rules: its own one, or one that it shares with iptables-nft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableId {
    /// Its family.
    pub family: TableFamily,
    /// Its name.
    pub name: &'static str,
}

/// As nft names it: `ip nat`.
impl std::fmt::Display for TableId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.family, self.name)
    }
}

/// Names a chain in which proxy-init keeps rules, and says where it is hooked, if it is a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChainId {
    /// Its name.
    pub name: &'static str,
    /// The hook of a base chain.
    pub hook: Option<Hook>,
}

impl std::fmt::Display for ChainId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}
