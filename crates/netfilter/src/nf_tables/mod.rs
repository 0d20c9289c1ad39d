//! nf_tables for nft mode and native mode: how expressions, rules, tables and sets are written and read,
//! and how to read all of them as one consistent snapshot.

pub mod comparable;
#[cfg(any(test, feature = "decode"))]
pub mod decode;
pub mod edit;
pub mod expression;
pub mod header;
pub mod held;
pub mod hooks;
mod load;
mod nftables;
pub mod read;
#[cfg(any(test, feature = "decode"))]
mod register;
pub mod rule;
pub mod set;
pub mod table;
pub mod uapi;
pub mod user_data;
mod xtables;

use std::ffi::CString;

use derive_more::Display;
use ruleset::{Hook, TableFamily};

use crate::netlink::message::Unwritable;

/// A part that a kernel lacks: the thing, its module, and the kernel option.
pub type Missing = (String, &'static str, &'static str);

/// Names a table in which proxy-init keeps rules: its own one, or one that it shares with iptables-nft.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display)]
#[display("{family} {name}")]
pub struct TableId {
    pub family: TableFamily,
    pub name: &'static str,
}

/// Names a chain in which proxy-init keeps rules, and says where it is hooked, if it is a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display)]
#[display("{name}")]
pub struct ChainId {
    pub name: &'static str,
    pub hook: Option<Hook>,
}

/// A name as libnftnl takes it.
fn c_string(name: impl AsRef<[u8]>) -> Result<CString, Unwritable> {
    let name = name.as_ref();
    CString::new(name).map_err(|_| Unwritable(format!("\"{}\", which has a NUL in it", name.escape_ascii())))
}
