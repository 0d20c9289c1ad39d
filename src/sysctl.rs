//! The one sysctl that linkerd-init sets: how long conntrack keeps a connection in CLOSE_WAIT.

use std::fs;
use std::io;

use nix::errno::Errno;

use crate::error::Error;

/// The namespace's own value, in seconds: /proc/sys/net shows the network namespace of whoever opens it.
const PATH: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait";

/// The timeout that was set, and what to go back to.
#[derive(Debug)]
pub(crate) struct CloseWaitTimeout {
    previous: String,
}

impl CloseWaitTimeout {
    /// Sets the timeout.
    ///
    /// # Errors
    /// conntrack isn't there, the file can't be written (containers have /proc/sys read-only unless they are
    /// privileged), or the kernel refuses the value.
    pub(crate) fn set(seconds: u32) -> Result<Self, Error> {
        let write = || {
            let previous = fs::read_to_string(PATH)?;
            fs::write(PATH, seconds.to_string())?;
            Ok(Self { previous })
        };
        write().map_err(|error: io::Error| {
            let errno = Errno::from_raw(error.raw_os_error().unwrap_or(0));
            let advice = match errno {
                Errno::ENOENT => "load the module nf_conntrack on the node (CONFIG_NF_CONNTRACK)",
                Errno::EROFS | Errno::EACCES | Errno::EPERM => {
                    "run as root with a writable /proc/sys; in a pod, set securityContext.privileged: true"
                }
                Errno::EINVAL => "name fewer seconds",
                _ => "look at the file's permissions and mount",
            };
            Error::Sysctl {
                seconds,
                path: PATH,
                errno,
                advice,
            }
        })
    }

    /// Puts the former value back, as far as that goes: what comes next reports another error already.
    pub(crate) fn undo(self) {
        let _ = fs::write(PATH, self.previous.trim());
    }
}
