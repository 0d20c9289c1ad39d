//! What a legacy nat table holds, asked of the kernel itself: no process, and no table made by asking.

use std::fs::File;
use std::io::{ErrorKind, Read as _};

use nix::errno::Errno;

use crate::backend::Held;
use crate::config::Family;
use crate::netlink::message::{Malformed, string, u16_at};
use crate::netlink::sockopt::{Entries, nat_entries};
use crate::ruleset::ChainName;

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

/// Looks into the kernel's list of tables, which makes none. The list of a kernel without legacy tables is missing.
pub(super) fn presence(family: Family) -> Presence {
    // Not /proc/net: that shows the namespace of the process' first thread.
    let path = match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    // Names of tables are short, and there are five.
    let mut names = [0; 256];
    let read = File::open(path).and_then(|mut file| file.read(&mut names));
    match read {
        Ok(length)
            if names
                .get(..length)
                .is_some_and(|names| names.split(|&byte| byte == b'\n').any(|name| name == b"nat")) =>
        {
            Presence::Present
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Presence::Hidden,
        _ => Presence::Absent,
    }
}

/// What the family's nat table holds.
pub(super) fn held(family: Family) -> Result<Held, Errno> {
    match presence(family) {
        Presence::Present => count(&nat_entries(family)?, family).map_err(|Malformed| Errno::EBADMSG),
        Presence::Absent | Presence::Hidden => Ok(Held::default()),
    }
}

/// Offsets in `struct ipt_entry` and `struct ip6t_entry`: the offset of the target in the entry, then that of the next
/// entry (linux/netfilter_ipv4/ip_tables.h, linux/netfilter_ipv6/ip6_tables.h).
fn target_offset(family: Family) -> usize {
    match family {
        Family::V4 => 88,
        Family::V6 => 140,
    }
}

/// Counts rules as iptables-save would print them. Beside rules, the entries are: a head (an ERROR target with the
/// chain's name) and a tail (its final RETURN) for each chain of a user's, a policy for each base chain, and one ERROR
/// at the end.
fn count(table: &Entries, family: Family) -> Result<Held, Malformed> {
    let mut entries = table.bytes.as_slice();
    let (mut rules, mut chains, mut ours) = (0usize, 0usize, false);
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
            ours |= ChainName::from_name(chain).is_some_and(ChainName::is_ours);
            chains += usize::from(chain != "ERROR");
        } else {
            rules += 1;
        }
        entries = entries.get(next..).ok_or(Malformed)?;
    }
    Ok(Held {
        ours,
        rules: rules.saturating_sub(chains + table.base_chains as usize),
    })
}
