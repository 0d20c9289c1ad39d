//! Recognises the machine's own network namespace: the initial one, which every program on a node is in, and every
//! pod with `hostNetwork: true`. Rules that are meant for a pod redirect the node's own connections there.

use nix::sys::stat::stat;

use crate::kernel::{proc_of_thread, version};

/// The behaviour of an installation in the initial network namespace. Where that namespace can't be recognised, the
/// installation goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum HostNetwork {
    /// It fails, and changes nothing.
    Refuse,
    /// It goes on and warns.
    #[default]
    Warn,
    /// It goes on.
    Allow,
}

/// The number of the initial network namespace's file since Linux 6.18 (`NET_NS_INIT_INO`, linux/nsfs.h). Earlier
/// kernels give it the first number that is free when they start.
const INITIAL: u64 = 0xEFFF_FFF9;

const NUMBERED_SINCE: (u32, u32) = (6, 18);

/// A setting that only the initial network namespace has (`net_core_table` in net/core/sysctl_net_core.c).
const SETTING: &str = "/proc/sys/net/core/netdev_max_backlog";

/// Returns true if the thread's network namespace is certainly the initial one.
pub(crate) fn is_here() -> bool {
    let number = stat(&*format!("{}/ns/net", proc_of_thread())).ok().map(|file| file.st_ino);
    is_initial(number, version(), || stat(SETTING).is_ok())
}

/// A namespace that is taken for the initial one by mistake would keep a pod from starting. So later kernels are not
/// asked for the setting, for settings tend to be given to all namespaces one day.
fn is_initial(number: Option<u64>, kernel: Option<(u32, u32)>, has_setting: impl FnOnce() -> bool) -> bool {
    number == Some(INITIAL) || kernel.is_some_and(|kernel| kernel < NUMBERED_SINCE) && has_setting()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::version_of;

    #[test]
    fn only_the_initial_namespace_is_taken_for_it() {
        let (other, with, without) = (Some(0xF000_0000), || true, || false);
        for release in ["6.18.44-cloud", "6.19-rc1", "7.0.0", "10.1"] {
            assert!(is_initial(Some(INITIAL), version_of(release), without), "{release}");
            assert!(!is_initial(other, version_of(release), with), "{release}");
            assert!(!is_initial(None, version_of(release), with), "{release}");
        }
        for release in ["6.17.13", "6.1.0-41-amd64", "5.10.0-36-cloud-amd64", "4.18.0-553.el8", "2.6.78"] {
            for number in [other, None] {
                assert!(is_initial(number, version_of(release), with), "{release}");
                assert!(!is_initial(number, version_of(release), without), "{release}");
            }
            // A distribution may have taken the number over.
            assert!(is_initial(Some(INITIAL), version_of(release), without), "{release}");
        }
        // An unknown namespace is not called the machine's.
        for release in ["", "six", "6", "6.x", "99999999999.1"] {
            assert!(!is_initial(other, version_of(release), with), "{release}");
        }
    }
}
