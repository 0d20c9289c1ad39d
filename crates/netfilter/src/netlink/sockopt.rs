//! Reads and replaces legacy tables by ip_tables' socket options. It is in this module because it needs `unsafe`.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use ruleset::Family;
#[cfg(any(test, feature = "decode"))]
use ruleset::Name;

#[cfg(any(test, feature = "decode"))]
use super::message::string;
use super::message::{put, u32_at};

/// `IPT_SO_GET_INFO` and `IP6T_SO_GET_INFO`: `struct ipt_getinfo`.
const GET_INFO: libc::c_int = 64;
/// `IPT_SO_GET_ENTRIES` and `IP6T_SO_GET_ENTRIES`: `struct ipt_get_entries`.
const GET_ENTRIES: libc::c_int = 65;
/// `IPT_SO_SET_REPLACE` and `IP6T_SO_SET_REPLACE`: `struct ipt_replace`.
const SET_REPLACE: libc::c_int = 64;
/// `IPT_SO_SET_ADD_COUNTERS` and `IP6T_SO_SET_ADD_COUNTERS`: `struct xt_counters_info`.
const SET_ADD_COUNTERS: libc::c_int = 65;
/// `IPT_SO_GET_REVISION_MATCH`; that of a target is the next: `struct xt_get_revision`.
const GET_REVISION_MATCH: libc::c_int = 66;
/// `IP6T_SO_GET_REVISION_MATCH`; that of a target is the next.
const GET_REVISION_MATCH_V6: libc::c_int = 68;
/// `XT_EXTENSION_MAXNAMELEN`: `struct xt_get_revision` is an extension's name and a byte, the revision.
const EXTENSION_NAME: usize = 29;
/// `XT_TABLE_MAXNAMELEN`: both structures begin with the table's name.
const NAME: usize = 32;
/// `struct ipt_getinfo`: name, valid hooks, 5 entry points, 5 underflows, number of entries, their size.
const INFO: usize = NAME + 4 + 20 + 20 + 4 + 4;
/// Where the entries begin in `struct ipt_get_entries`: after the name and the size, aligned to 8 bytes. So do the
/// counters in `struct xt_counters_info`, after the name and their number.
const ENTRIES: usize = NAME + 8;
/// `struct xt_counters`: packets and bytes.
const COUNTERS: usize = 16;

/// A legacy table as the kernel holds it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Entries {
    /// For each base chain: the number of its hook, and the offsets of its first rule and its policy in the entries.
    pub base_chains: Vec<(usize, usize, usize)>,
    pub count: u32,
    /// The `struct ipt_entry`s, or `ip6t_entry`s, one after another.
    pub bytes: Vec<u8>,
}

/// Tries again for as long as the table was changed between the two calls that a try makes (EAGAIN), but not for ever.
fn try_again<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 1..100 {
        match call() {
            Err(Errno::EAGAIN) => {}
            result => return result,
        }
    }
    call()
}

/// Reads a table. The kernel makes the table if it doesn't exist, so check that it does first.
pub fn read_entries(family: Family, table: &str) -> Result<Entries, Errno> {
    let options = Options::of(family)?;
    // The entries must be requested with the table's size.
    try_again(|| {
        let mut info = vec![0; INFO];
        options.get(GET_INFO, table.as_bytes(), &mut info)?;
        let field = |offset| u32_at(&info, offset).map_err(|_| Errno::EINVAL);
        let (hooks, count, size) = (field(NAME)?, field(INFO - 8)?, field(INFO - 4)?);
        let mut base_chains = Vec::new();
        for hook in (0..5).filter(|hook| hooks & 1 << hook != 0) {
            let (first, policy) = (field(NAME + 4 + 4 * hook)?, field(NAME + 24 + 4 * hook)?);
            base_chains.push((hook, first as usize, policy as usize));
        }
        let mut entries = vec![0; ENTRIES + size as usize];
        put(&mut entries, NAME, &size.to_ne_bytes());
        options.get(GET_ENTRIES, table.as_bytes(), &mut entries)?;
        Ok(Entries { base_chains, count, bytes: entries.split_off(ENTRIES) })
    })
}

/// Replaces everything that a table holds, in one step, and then sets the counters of its entries, in their order.
pub fn replace_entries(
    family: Family,
    table: &str,
    entries: &Entries,
    counters: &[[u8; COUNTERS]],
) -> Result<(), Errno> {
    let options = Options::of(family)?;
    // The number of counters that are handed back must be that of the entries that are replaced.
    try_again(|| {
        let mut info = vec![0; INFO];
        options.get(GET_INFO, table.as_bytes(), &mut info)?;
        let old = u32_at(&info, INFO - 8).map_err(|_| Errno::EINVAL)?;
        let mut old_counters = vec![0u8; COUNTERS * old as usize];
        let chain_at = |hook| entries.base_chains.iter().find(|&&(known, ..)| known == hook);
        let hooks = (0..5).filter(|&hook| chain_at(hook).is_some()).fold(0, |hooks, hook| hooks | 1 << hook);
        let firsts = (0..5).map(|hook| chain_at(hook).map_or(0, |&(_, first, _)| first as u32));
        let policies = (0..5).map(|hook| chain_at(hook).map_or(0, |&(_, _, policy)| policy as u32));
        // struct ipt_replace: name, valid hooks, number of entries, their size, 5 entry points, 5 underflows, number of
        // counters, where to write those, entries.
        let mut structure = vec![0; NAME];
        let numbers = [hooks, entries.count, entries.bytes.len() as u32];
        for number in numbers.into_iter().chain(firsts).chain(policies).chain([old]) {
            structure.extend(number.to_ne_bytes());
        }
        structure.extend(old_counters.as_mut_ptr().expose_provenance().to_ne_bytes());
        structure.extend(&entries.bytes);
        let result = options.set(SET_REPLACE, table, &mut structure);
        drop(old_counters);
        result
    })?;
    let mut structure = vec![0; ENTRIES];
    put(&mut structure, NAME, &(counters.len() as u32).to_ne_bytes());
    structure.extend(counters.as_flattened());
    options.set(SET_ADD_COUNTERS, table, &mut structure)
}

/// Asks for a revision of an xt match or target, as iptables does. The kernel loads the module that it is in, and
/// answers when that is done (`do_ipt_get_ctl` in net/ipv4/netfilter/ip_tables.c). `ENOENT`: it has none.
pub fn load_extension(family: Family, name: &CStr, revision: u8, is_target: bool) -> Result<(), Errno> {
    let options = Options::of(family)?;
    let option = match family {
        Family::V4 => GET_REVISION_MATCH,
        Family::V6 => GET_REVISION_MATCH_V6,
    } + libc::c_int::from(is_target);
    let mut structure = [0; EXTENSION_NAME + 1];
    structure[EXTENSION_NAME] = revision;
    options.get(option, name.to_bytes(), &mut structure)
}

/// The indices and names of ipset's sets, as rules have the one and people the other; none if there are none, or if the kernel
/// doesn't tell. This loads no module (`ip_set_sockfn_get` in net/netfilter/ipset/ip_set_core.c).
#[cfg(any(test, feature = "decode"))]
pub fn ip_sets() -> Vec<(u16, Name)> {
    /// `SO_IP_SET`: `struct ip_set_req_get_set` is the operation, the version, and a name of so many bytes or an index.
    const IP_SET: libc::c_int = 83;
    const NAME: usize = 8;
    const LENGTH: usize = NAME + 32;
    /// `IP_SET_OP_GET_BYINDEX`, and the oldest version that all kernels understand (`IPSET_PROTOCOL_MIN`).
    const OPERATION: [u32; 2] = [7, 6];
    let Ok(options) = Options::of(Family::V4) else {
        return Vec::new();
    };
    let named = |index: u16| {
        let mut structure = [0; LENGTH];
        OPERATION.iter().enumerate().for_each(|(at, number)| put(&mut structure, 4 * at, &number.to_ne_bytes()));
        put(&mut structure, NAME, &index.to_ne_bytes());
        // There may be as many as the kernel has room for.
        get_option(&options.socket, options.level, IP_SET, &mut structure).ok()?;
        Some((index, Name::from(string(structure.get(NAME..)?).ok()?)))
    };
    (0..=u16::MAX).map_while(named).filter(|(_, name)| !name.as_bytes().is_empty()).collect()
}

/// Returns true if this kernel has sockets of the family; without them, it has no legacy tables of it.
pub fn has_sockets(family: Family) -> bool {
    family != Family::V6 || has_ipv6()
}

/// Returns true if this kernel has IPv6 sockets: without them (CONFIG_IPV6, or booted with `ipv6.disable=1`), it has no
/// IPv6 traffic either.
pub fn has_ipv6() -> bool {
    static HAS_IPV6: OnceLock<bool> = OnceLock::new();
    // It is the same in every network namespace, so the kernel is asked once.
    *HAS_IPV6.get_or_init(|| {
        // Asked for a protocol that there can't be, a kernel with IPv6 says EINVAL before it makes a socket
        // (inet6_create in net/ipv6/af_inet6.c), and so sooner than it could make and close one. With SOCK_CLOEXEC,
        // musl would then ask again without it.
        // SAFETY: the call takes numbers only.
        Errno::result(unsafe { libc::socket(libc::AF_INET6, libc::SOCK_DGRAM, -1) }) != Err(Errno::EAFNOSUPPORT)
    })
}

/// ip_tables' options of a family's sockets. The structure of each begins with a name.
struct Options {
    socket: OwnedFd,
    level: libc::c_int,
}

impl Options {
    fn of(family: Family) -> Result<Self, Errno> {
        let (level, address) = match family {
            Family::V4 => (libc::SOL_IP, AddressFamily::Inet),
            Family::V6 => (libc::SOL_IPV6, AddressFamily::Inet6),
        };
        // Any type will do.
        let socket = socket(address, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        Ok(Self { socket, level })
    }

    fn set(&self, option: libc::c_int, name: &str, structure: &mut [u8]) -> Result<(), Errno> {
        put(structure, 0, name.as_bytes());
        let (socket, level, length) = (self.socket.as_raw_fd(), self.level, structure.len() as libc::socklen_t);
        // SAFETY: the socket is open; the kernel reads no more than the structure's length, and writes only the old
        // counters of SET_REPLACE, to the address in it: `replace_entries` has allocated as many as it says there, and keeps
        // them until after this call.
        Errno::result(unsafe { libc::setsockopt(socket, level, option, structure.as_ptr().cast(), length) }).map(drop)
    }

    fn get(&self, option: libc::c_int, name: &[u8], structure: &mut [u8]) -> Result<(), Errno> {
        put(structure, 0, name);
        get_option(&self.socket, self.level, option, structure)
    }
}

/// Has the kernel fill in a socket's option; some options read the earlier bytes.
pub(super) fn get_option(
    socket: &impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &mut [u8],
) -> Result<(), Errno> {
    let (socket, mut length) = (socket.as_fd().as_raw_fd(), value.len() as libc::socklen_t);
    let to = value.as_mut_ptr().cast();
    // SAFETY: the socket is open; the kernel writes at most `length` bytes, which is how many there are.
    Errno::result(unsafe { libc::getsockopt(socket, level, option, to, &raw mut length) }).map(drop)
}
