//! Entering a network namespace.

use std::fs::File;
use std::path::Path;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};

use crate::error::Error;

/// Moves the calling thread into the network namespace at `path`: `/var/run/netns/NAME`, or `/proc/PID/ns/net`.
///
/// # Errors
/// The path can't be opened, is no network namespace, or the process has no CAP_SYS_ADMIN over it.
pub fn enter(path: &Path) -> Result<(), Error> {
    let failed = |errno, advice| Error::Netns {
        path: path.to_owned(),
        errno,
        advice,
    };
    let file = File::open(path).map_err(|error| {
        failed(
            Errno::from_raw(error.raw_os_error().unwrap_or(0)),
            "name a namespace's file, such as /var/run/netns/NAME or /proc/PID/ns/net",
        )
    })?;
    setns(file, CloneFlags::CLONE_NEWNET).map_err(|errno| {
        let advice = match errno {
            Errno::EINVAL => {
                "this is no network namespace's file; name one such as /var/run/netns/NAME or /proc/PID/ns/net"
            }
            Errno::EPERM => "run as root or with CAP_SYS_ADMIN",
            _ => "the kernel may lack network namespaces (CONFIG_NET_NS)",
        };
        failed(errno, advice)
    })
}
