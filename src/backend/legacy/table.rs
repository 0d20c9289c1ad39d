//! What a legacy nat table holds, asked of the kernel itself: no process, and no table made by asking.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _};

use nix::errno::Errno;

use crate::backend::{Contents, Held};
use crate::netlink::message::{Malformed, string, u16_at};
use crate::netlink::sockopt::entries;
use crate::rules::config::Family;
use crate::rules::ruleset::ChainName;

/// Whether the family has a nat table in this network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// It has none, so no rules either.
    Absent,
    /// It has one.
    Present,
    /// This process may not look: the list is root's. Asking for the table itself would make it.
    Hidden,
}

/// Whether the family has a nat table.
pub(super) fn presence(family: Family) -> Presence {
    match names(family) {
        Ok(names) if names.iter().any(|name| name == "nat") => Presence::Present,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Presence::Hidden,
        _ => Presence::Absent,
    }
}

/// Which tables the family has. Looks into the kernel's list of tables, which makes none. A kernel without legacy
/// tables has no list.
pub(super) fn names(family: Family) -> io::Result<Vec<String>> {
    // Not /proc/net: that shows the namespace of the process' first thread.
    let path = match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    // Names of tables are short, and there are five.
    let mut names = [0; 256];
    match File::open(path).and_then(|mut file| file.read(&mut names)) {
        Ok(length) => {
            let text = String::from_utf8_lossy(names.get(..length).unwrap_or_default());
            Ok(text.lines().map(ToOwned::to_owned).collect())
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// What the family's nat table holds.
pub(super) fn held(family: Family) -> Result<Held, Errno> {
    match presence(family) {
        Presence::Present => {
            let contents = contents(family, "nat")?;
            let mut chains = contents.chains.iter().filter_map(|name| ChainName::from_name(name));
            Ok(Held {
                ours: chains.any(ChainName::is_ours),
                rules: contents.rules,
            })
        }
        Presence::Absent | Presence::Hidden => Ok(Held::default()),
    }
}

/// What a table that is there holds.
pub(super) fn contents(family: Family, table: &str) -> Result<Contents, Errno> {
    let entries = entries(family, table)?;
    let (rules, chains) =
        read(&entries.bytes, entries.base_chains as usize, family).map_err(|Malformed| Errno::EBADMSG)?;
    Ok(Contents {
        table: table.to_owned(),
        rules,
        chains,
    })
}

/// Offsets in `struct ipt_entry` and `struct ip6t_entry`: the offset of the target in the entry, then that of the next
/// entry (linux/netfilter_ipv4/ip_tables.h, linux/netfilter_ipv6/ip6_tables.h).
fn target_offset(family: Family) -> usize {
    match family {
        Family::V4 => 88,
        Family::V6 => 140,
    }
}

/// How many rules a table has, as iptables-save would print them, and its users' chains.
///
/// Beside rules, the entries are: a head (an ERROR target with the chain's name) and a tail (its final RETURN) for each
/// chain of a user's, a policy for each base chain, and one ERROR at the end.
pub(crate) fn read(mut entries: &[u8], base_chains: usize, family: Family) -> Result<(usize, Vec<String>), Malformed> {
    let (mut others, mut chains) = (0usize, Vec::new());
    while !entries.is_empty() {
        let target = usize::from(u16_at(entries, target_offset(family))?);
        let next = usize::from(u16_at(entries, target_offset(family) + 2)?);
        if next == 0 {
            return Err(Malformed);
        }
        // struct xt_entry_target: size (2 bytes), name (29), revision (1), then here the chain's name.
        let target = entries.get(target..next).ok_or(Malformed)?;
        if string(target.get(2..31).ok_or(Malformed)?)? == "ERROR" {
            let chain = string(target.get(32..).ok_or(Malformed)?)?;
            chains.extend(Some(chain).filter(|&chain| chain != "ERROR").map(ToOwned::to_owned));
        } else {
            others += 1;
        }
        entries = entries.get(next..).ok_or(Malformed)?;
    }
    Ok((others.saturating_sub(chains.len() + base_chains), chains))
}
