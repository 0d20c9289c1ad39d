//! The one sysctl that linkerd-init sets: how long conntrack keeps a connection in CLOSE_WAIT.

use std::fs;

use crate::error::{Errno, Error};

/// The value of the thread's network namespace, in seconds.
const PATH: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait";

/// A timeout that was set, with the value that it had before.
#[derive(Debug)]
pub(super) struct CloseWaitTimeout {
    previous: String,
}

impl CloseWaitTimeout {
    /// Sets the timeout. In containers /proc/sys is read-only unless they are privileged.
    pub(super) fn set(seconds: u32) -> Result<Self, Error> {
        let previous = fs::read_to_string(PATH);
        let written = previous.and_then(|previous| fs::write(PATH, seconds.to_string()).map(|()| Self { previous }));
        written.map_err(|error| {
            let errno = Errno::of_io(&error);
            let advice = match errno.raw() {
                libc::ENOENT => "load the module nf_conntrack on the node (CONFIG_NF_CONNTRACK)",
                libc::EROFS | libc::EACCES | libc::EPERM => {
                    "run as root with a writable /proc/sys; in a pod, set securityContext.privileged: true"
                }
                libc::EINVAL => "use a smaller number of seconds",
                _ => "check the permissions and the mount of the file",
            };
            Error::Sysctl { seconds, path: PATH, errno, advice }
        })
    }

    /// Puts the previous value back. A failure is not reported: the caller is about to report another.
    pub(super) fn undo(self) {
        let _ = fs::write(PATH, self.previous.trim());
    }
}
