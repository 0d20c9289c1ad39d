//! Finds out which legacy tables exist when /proc/net/ip_tables_names can't be read (only root may, 0440), as in most
//! pods.

use std::path::Path;

use netfilter::netlink::Socket;
use netfilter::nf_tables::hooks;
use ruleset::{Family, NAT};

use crate::kernel::version;

/// The tables among these that each family has in the thread's network namespace; none where nothing can tell. Asking
/// makes no table.
///
/// Installing asks too, for two redirections are worse than a slow start. It takes nothing measurable where no table's module
/// is loaded, 6 % of a run of nft mode where one is, and 2 ms where the kernel lacks nfnetlink_hook though it is new enough,
/// as Debian's 6.1, for it runs modprobe each time.
pub(super) fn tables(wanted: &[&'static str]) -> [Option<Vec<&'static str>>; 2] {
    let mut socket = None;
    Family::ALL.map(|family| {
        if !wanted.iter().any(|table| may_have(family, table)) {
            return Some(Vec::new());
        }
        let open = socket.get_or_insert_with(|| has_hook_lists().then(Socket::open).and_then(Result::ok));
        let inferred = hooks::legacy_tables(open.as_ref()?, family, may_have(family, NAT));
        if inferred.is_err() {
            // It wouldn't tell of the other family either, and asking again costs another run of modprobe.
            socket = Some(None);
        }
        inferred.ok().flatten()
    })
}

/// Returns true if any network namespace can have this table, as far as the kernel's modules tell. A table's module
/// calls functions of ip_tables or ip6_tables, so it can't be built into a kernel in which those are modules; then it
/// is loaded, or no namespace has the table.
fn may_have(family: Family, table: &str) -> bool {
    let (tables, prefix) = match family {
        Family::V4 => ("ip_tables", "iptable"),
        Family::V6 => ("ip6_tables", "ip6table"),
    };
    !is_loaded_module(tables) || is_loaded_module(&format!("{prefix}_{table}"))
}

/// Returns true if this is a loaded module: built-in code has no such file (Documentation/ABI/testing/sysfs-module).
fn is_loaded_module(name: &str) -> bool {
    // Where it can't be looked at, it may be.
    Path::new("/sys/module").join(name).join("initstate").exists()
}

/// Returns true if the kernel may have nfnetlink_hook, which came with Linux 5.14. Asking an older one would only run
/// modprobe.
fn has_hook_lists() -> bool {
    version() >= Some((5, 14))
}
