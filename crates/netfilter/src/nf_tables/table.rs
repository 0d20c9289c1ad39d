//! Tables and chains: the messages that change them, and reading them.

use packets::rules::{
    Base, Chain, Hook, Intervals, Kind, NAT_PRIORITY, Name, Policy, Subsystem, Table, TableFamily, beginning, interface,
};

use super::TableId;
use super::header;
use super::uapi::*;
use super::user_data;
use crate::netlink::message::{Attributes, Malformed, Writer, be32, string};
use crate::netlink::{Batch, Change};

/// The comment that proxy-init puts on the tables and chains that it makes, so that uninstalling removes only those.
/// nft shows it.
pub const MARK: &str = "made by proxy-init";

impl TableId {
    /// Adds a message about the table to a batch, or about a chain, a rule or a set of it: all of these begin with the
    /// table's name. `write` adds what else there is.
    pub(super) fn message(self, batch: &mut Batch, message: i32, change: Change, write: impl FnOnce(&mut Writer)) {
        batch.add(message, change, header::protocol(self.family), |to| {
            to.string(NFTA_TABLE_NAME, self.name);
            write(to);
        });
    }

    /// Makes the table, with the mark, unless it exists.
    pub(super) fn add(self, batch: &mut Batch) {
        self.message(batch, libc::NFT_MSG_NEWTABLE, Change::Add, |to| {
            // No flags: 0 would wake up a dormant table (nf_tables_updtable in net/netfilter/nf_tables_api.c).
            user_data::write_comment(to, NFTA_TABLE_USERDATA, MARK.as_bytes());
        });
    }

    /// Deletes the table and everything in it.
    pub(super) fn delete(self, batch: &mut Batch) {
        self.message(batch, libc::NFT_MSG_DELTABLE, Change::Delete, |_| ());
    }

    /// Makes a chain, with the mark, unless it exists. With a hook, it is a nat chain at the priority of iptables' own.
    /// An existing base chain keeps its policy; a new one accepts.
    pub(super) fn add_chain(self, batch: &mut Batch, chain: &str, hook: Option<Hook>) {
        self.message(batch, libc::NFT_MSG_NEWCHAIN, Change::Add, |to| {
            to.string(NFTA_CHAIN_NAME, chain);
            if let Some(number) = hook.and_then(header::hook_number) {
                to.nest(NFTA_CHAIN_HOOK, |to| {
                    to.be32(NFTA_HOOK_HOOKNUM, number);
                    to.be32(NFTA_HOOK_PRIORITY, NAT_PRIORITY as u32);
                });
                to.string(NFTA_CHAIN_TYPE, "nat");
            }
            user_data::write_comment(to, NFTA_CHAIN_USERDATA, MARK.as_bytes());
        });
    }

    /// Deletes an empty chain to which no rule jumps.
    pub(super) fn delete_chain(self, batch: &mut Batch, chain: &str) {
        self.message(batch, libc::NFT_MSG_DELCHAIN, Change::Delete, |to| {
            to.string(NFTA_CHAIN_NAME, chain)
        });
    }
}

/// Reads a table of a dump, without what it holds.
pub(crate) fn read(family: TableFamily, attributes: Attributes<'_>) -> Result<Table, Malformed> {
    let flags = attributes.find(NFTA_TABLE_FLAGS)?.map_or(Ok(0), be32)?;
    let name = Name::from(string(attributes.get(NFTA_TABLE_NAME)?)?);
    Ok(Table {
        dormant: flags & NFT_TABLE_F_DORMANT != 0,
        owned: flags & NFT_TABLE_F_OWNER != 0,
        comment: attributes.find(NFTA_TABLE_USERDATA)?.and_then(user_data::read_comment),
        objects: be32(attributes.get(NFTA_TABLE_USE)?)?,
        ..Table::new(Subsystem::NfTables, family, name)
    })
}

/// Reads a chain of a dump, without its rules.
pub(crate) fn read_chain(family: TableFamily, attributes: Attributes<'_>) -> Result<Chain, Malformed> {
    let base = match attributes.find(NFTA_CHAIN_HOOK)? {
        None => None,
        Some(hook) => {
            let hook = Attributes(hook);
            let number = be32(hook.get(NFTA_HOOK_HOOKNUM)?)?;
            let policy = attributes
                .find(NFTA_CHAIN_POLICY)?
                .map_or(Ok(libc::NF_ACCEPT as u32), be32)?;
            Some(Base {
                kind: match attributes.find(NFTA_CHAIN_TYPE)?.map(string).transpose()? {
                    Some(b"nat") => Kind::Nat,
                    _ => Kind::Filter,
                },
                hook: header::hook(family, number).ok_or(Malformed)?,
                priority: be32(hook.get(NFTA_HOOK_PRIORITY)?)? as i32,
                policy: if policy == libc::NF_DROP as u32 {
                    Policy::Drop
                } else {
                    Policy::Accept
                },
            })
        }
    };
    Ok(Chain {
        name: Name::from(string(attributes.get(NFTA_CHAIN_NAME)?)?),
        devices: match base {
            Some(Base {
                hook: Hook::Ingress | Hook::Egress,
                ..
            }) => Some(devices(Attributes(attributes.get(NFTA_CHAIN_HOOK)?))?),
            _ => None,
        },
        base,
        comment: attributes.find(NFTA_CHAIN_USERDATA)?.and_then(user_data::read_comment),
        rules: Vec::new(),
    })
}

/// The names of the devices whose packets a base chain sees, as numbers.
fn devices(hook: Attributes<'_>) -> Result<Intervals, Malformed> {
    let whole = |name: &[u8]| (interface(name), interface(name));
    let mut names = Vec::new();
    if let Some(name) = hook.find(NFTA_HOOK_DEV)? {
        names.push(whole(string(name)?));
    }
    for device in Attributes(hook.find(NFTA_HOOK_DEVS)?.unwrap_or_default()) {
        match device? {
            (NFTA_DEVICE_NAME, name) => names.push(whole(string(name)?)),
            (NFTA_DEVICE_PREFIX, prefix) => names.push(beginning(string(prefix)?)),
            _ => {}
        }
    }
    Ok(Intervals::new(names))
}

/// A table that has only this chain.
#[cfg(any(test, fuzzing, feature = "testing"))]
pub fn with_chain(family: TableFamily, chain: Chain) -> Table {
    Table {
        objects: 1,
        chains: vec![chain],
        ..Table::new(Subsystem::NfTables, family, Name::from("nat"))
    }
}
