//! The one sysctl that linkerd-init sets: how long conntrack keeps a connection in CLOSE_WAIT.

use std::fs;

use crate::error::{Errno, Error, errno_of};

/// The value of the thread's network namespace, in seconds.
const PATH: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait";

/// A timeout that was set. The value that it had before is put back, unless the timeout is to be kept.
#[derive(Debug)]
pub(super) struct CloseWaitTimeout {
    previous: Option<String>,
}

impl CloseWaitTimeout {
    /// Sets the timeout. In containers /proc/sys is read-only unless they are privileged.
    pub(super) fn set(seconds: u32) -> Result<Self, Error> {
        let previous = fs::read_to_string(PATH);
        let written = previous.and_then(|previous| fs::write(PATH, seconds.to_string()).map(|()| previous));
        written.map(|previous| Self { previous: Some(previous) }).map_err(|error| {
            let errno = errno_of(&error);
            let advice = match errno {
                Errno::ENOENT => "load the module nf_conntrack on the node (CONFIG_NF_CONNTRACK)",
                Errno::EROFS | Errno::EACCES | Errno::EPERM => {
                    "run as root with a writable /proc/sys; in a pod, set securityContext.privileged: true"
                }
                Errno::EINVAL => "use a smaller number of seconds",
                _ => "check the permissions and the mount of the file",
            };
            Error::Sysctl { seconds, path: PATH, errno, advice }
        })
    }

    pub(super) fn keep(mut self) {
        self.previous = None;
    }
}

impl Drop for CloseWaitTimeout {
    fn drop(&mut self) {
        if let Some(previous) = &self.previous {
            // A failure is not reported: the caller is about to report another.
            let _ = fs::write(PATH, previous.trim());
        }
    }
}
