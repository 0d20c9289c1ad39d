//! Tables and chains, as the kernel dumps them.

use ruleset::{
    Base, Chain, Hook, Intervals, Kind, Name, Policy, Subsystem, Table, TableFamily, interface, names_beginning_with,
};

use super::header;
use super::uapi::*;
use super::user_data;
use crate::netlink::message::{Attributes, Malformed, be32, string};

/// The comment that proxy-init puts on the tables and chains that it makes, so that uninstalling removes only those.
/// nft shows it.
pub const MARK: &str = "made by proxy-init";

/// Reads a table of a dump, without its content.
pub(crate) fn read<R>(family: TableFamily, attributes: Attributes<'_>) -> Result<Table<R>, Malformed> {
    let flags = attributes.find(NFTA_TABLE_FLAGS)?.map_or(Ok(0), be32)?;
    Ok(Table {
        subsystem: Subsystem::NfTables,
        family,
        name: Name::from(string(attributes.get(NFTA_TABLE_NAME)?)?),
        dormant: flags & NFT_TABLE_F_DORMANT != 0,
        owned: flags & NFT_TABLE_F_OWNER != 0,
        comment: attributes.find(NFTA_TABLE_USERDATA)?.and_then(user_data::read_comment),
        objects: be32(attributes.get(NFTA_TABLE_USE)?)?,
        chains: Vec::new(),
        sets: Vec::new(),
    })
}

/// Reads a chain of a dump, without its rules.
pub(crate) fn read_chain<R>(family: TableFamily, attributes: Attributes<'_>) -> Result<Chain<R>, Malformed> {
    let hook = attributes.find(NFTA_CHAIN_HOOK)?.map(Attributes);
    let base = hook.map(|hook| read_base(family, attributes, hook)).transpose()?;
    let has_devices = base.is_some_and(|base| matches!(base.hook, Hook::Ingress | Hook::Egress));
    Ok(Chain {
        name: Name::from(string(attributes.get(NFTA_CHAIN_NAME)?)?),
        devices: hook.filter(|_| has_devices).map(read_devices).transpose()?,
        base,
        comment: attributes.find(NFTA_CHAIN_USERDATA)?.and_then(user_data::read_comment),
        rules: Vec::new(),
    })
}

fn read_base(family: TableFamily, chain: Attributes<'_>, hook: Attributes<'_>) -> Result<Base, Malformed> {
    let kind = chain.find(NFTA_CHAIN_TYPE)?.map(string).transpose()?;
    let policy = chain.find(NFTA_CHAIN_POLICY)?.map(be32).transpose()?;
    let number = be32(hook.get(NFTA_HOOK_HOOKNUM)?)?;
    Ok(Base {
        kind: if kind == Some(b"nat") { Kind::Nat } else { Kind::Filter },
        hook: header::hook(family, number).ok_or(Malformed)?,
        priority: be32(hook.get(NFTA_HOOK_PRIORITY)?)? as i32,
        policy: if policy == Some(libc::NF_DROP as u32) { Policy::Drop } else { Policy::Accept },
    })
}

/// The names of the devices whose packets a base chain sees, as numbers.
fn read_devices(hook: Attributes<'_>) -> Result<Intervals, Malformed> {
    let named = |name| string(name).map(interface).map(|name| (name, name));
    let mut names = Vec::new();
    names.extend(hook.find(NFTA_HOOK_DEV)?.map(named).transpose()?);
    for device in Attributes(hook.find(NFTA_HOOK_DEVS)?.unwrap_or_default()) {
        match device? {
            (NFTA_DEVICE_NAME, name) => names.push(named(name)?),
            (NFTA_DEVICE_PREFIX, prefix) => names.push(names_beginning_with(string(prefix)?)),
            _ => {}
        }
    }
    Ok(Intervals::new(names))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::attributes_of as written;

    #[test]
    fn a_table_may_be_dormant_and_somebodys_own() {
        for flags in 0..4 {
            let bytes = written(|to| {
                to.string(NFTA_TABLE_NAME, "t");
                to.be32(NFTA_TABLE_FLAGS, flags);
                to.be32(NFTA_TABLE_USE, 7);
            });
            let table = read::<ruleset::Rule>(TableFamily::Inet, Attributes(&bytes)).unwrap();
            let want = (flags & NFT_TABLE_F_DORMANT != 0, flags & NFT_TABLE_F_OWNER != 0, 7);
            assert_eq!((table.dormant, table.owned, table.objects), want);
        }
    }

    #[test]
    fn a_chain_of_devices_has_their_names_or_what_these_begin_with() {
        let devices = written(|to| {
            to.string(NFTA_DEVICE_NAME, "b");
            to.string(NFTA_DEVICE_PREFIX, "eth");
        });
        let hook = written(|to| {
            to.be32(NFTA_HOOK_HOOKNUM, 0);
            to.be32(NFTA_HOOK_PRIORITY, 5);
            to.string(NFTA_HOOK_DEV, "a");
            to.bytes(NFTA_HOOK_DEVS, &devices);
        });
        let bytes = written(|to| {
            to.string(NFTA_CHAIN_NAME, "c");
            to.bytes(NFTA_CHAIN_HOOK, &hook);
        });
        let names = [b"a", b"b"].map(|name| (interface(name), interface(name)));
        let want = Intervals::new(names.into_iter().chain([names_beginning_with(b"eth")]));
        let chain = read_chain::<ruleset::Rule>(TableFamily::Netdev, Attributes(&bytes)).unwrap();
        assert_eq!(chain.devices, Some(want));
        // Of hooks without devices, nobody asks for their names.
        assert_eq!(read_chain::<ruleset::Rule>(TableFamily::Inet, Attributes(&bytes)).unwrap().devices, None);
    }
}
