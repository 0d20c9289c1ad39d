//! Reads legacy tables by ip_tables' socket options. It is in this module because it needs `unsafe`.

use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::message::u32_at;
use crate::rules::config::Family;

/// `IPT_SO_GET_INFO` and `IP6T_SO_GET_INFO`: `struct ipt_getinfo`.
const GET_INFO: libc::c_int = 64;
/// `IPT_SO_GET_ENTRIES` and `IP6T_SO_GET_ENTRIES`: `struct ipt_get_entries`.
const GET_ENTRIES: libc::c_int = 65;
/// `XT_TABLE_MAXNAMELEN`: both structures begin with the table's name.
const NAME: usize = 32;
/// `struct ipt_getinfo`: name, valid hooks, 5 entry points, 5 underflows, number of entries, their size.
const INFO: usize = NAME + 4 + 20 + 20 + 4 + 4;
/// Where the entries begin in `struct ipt_get_entries`: behind the name and the size, aligned to 8 bytes.
const ENTRIES: usize = NAME + 8;

/// A legacy table as the kernel holds it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Entries {
    /// For each base chain: the number of its hook, and the offsets of its first rule and its policy in the entries.
    pub(crate) base_chains: Vec<(usize, usize, usize)>,
    /// The `struct ipt_entry`s, or `ip6t_entry`s, one after another.
    pub(crate) bytes: Vec<u8>,
}

/// Reads a table. The kernel makes the table if it doesn't exist, so check that it does first.
pub(crate) fn entries(family: Family, table: &str) -> Result<Entries, Errno> {
    /// How often to try: the entries must be requested with the table's size, which may change in between.
    const TRIES: usize = 100;
    let (level, address) = match family {
        Family::V4 => (libc::SOL_IP, AddressFamily::Inet),
        Family::V6 => (libc::SOL_IPV6, AddressFamily::Inet6),
    };
    // Any socket of the family will do.
    let socket = socket(address, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    for _ in 0..TRIES {
        let mut info = vec![0; INFO];
        get(&socket, level, table, GET_INFO, &mut info)?;
        let field = |offset| u32_at(&info, offset).map_err(|_| Errno::EINVAL);
        let (hooks, size) = (field(NAME)?, field(INFO - 4)?);
        let mut base_chains = Vec::new();
        for hook in (0..5).filter(|hook| hooks & 1 << hook != 0) {
            let (first, policy) = (field(NAME + 4 + 4 * hook)?, field(NAME + 24 + 4 * hook)?);
            base_chains.push((hook, first as usize, policy as usize));
        }
        let mut entries = vec![0; ENTRIES];
        if let Some(slot) = entries.get_mut(NAME..NAME + 4) {
            slot.copy_from_slice(&size.to_ne_bytes());
        }
        entries.resize(ENTRIES + size as usize, 0);
        match get(&socket, level, table, GET_ENTRIES, &mut entries) {
            Err(Errno::EAGAIN) => {}
            Err(errno) => return Err(errno),
            Ok(()) => {
                return Ok(Entries {
                    base_chains,
                    bytes: entries.split_off(ENTRIES),
                });
            }
        }
    }
    Err(Errno::EAGAIN)
}

/// Gets one of ip_tables' socket options; the structure begins with the table's name.
fn get(
    socket: &OwnedFd,
    level: libc::c_int,
    table: &str,
    option: libc::c_int,
    structure: &mut [u8],
) -> Result<(), Errno> {
    // The kernel's names are shorter than NAME, with their NUL.
    for (slot, byte) in structure.iter_mut().zip(table.bytes().take(NAME - 1)) {
        *slot = byte;
    }
    let mut length = structure.len() as libc::socklen_t;
    // SAFETY: the socket is open; the kernel writes at most `length` bytes, which is how many there are.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            structure.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    Errno::result(result).map(drop)
}
