//! What becomes of pods with `hostUsers: false` here, by what can be read of the kernel and the process.

use std::fmt;

use crate::findings::neighbours::{SYS_ADMIN, has_capability};

/// Whether pods with `hostUsers: false` can run here, and how the modes serve them from outside, as the CNI plugin
/// does. [`Display`](fmt::Display) says it in a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum UserNamespaces {
    /// The kernel has no user namespaces (CONFIG_USER_NS).
    Missing,
    /// It makes none: the sysctl user.max_user_namespaces is 0.
    Forbidden,
    /// There can be some, and this process may enter them, as nft and legacy mode do for rules on owners.
    Entered,
    /// There can be some that this process may not enter, so that nft and legacy mode go on in native mode.
    Closed,
    /// It can't be told.
    NotKnown,
}

impl UserNamespaces {
    /// By the sysctl, if it can be read, whether it is missing from a /proc that shows namespaces, and
    /// /proc/self/status.
    pub fn of(maximum: Option<&str>, is_missing: bool, status: &str) -> Self {
        match maximum.map(|maximum| maximum.trim().parse::<u64>()) {
            Some(Ok(0)) => Self::Forbidden,
            Some(Ok(_)) if has_capability(status, SYS_ADMIN) => Self::Entered,
            Some(Ok(_)) => Self::Closed,
            None if is_missing => Self::Missing,
            None | Some(Err(_)) => Self::NotKnown,
        }
    }
}

impl fmt::Display for UserNamespaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "no pod with hostUsers: false can run here: the kernel has no user namespaces (CONFIG_USER_NS)",
            Self::Forbidden => "no pod with hostUsers: false can run here: the sysctl user.max_user_namespaces is 0",
            Self::Entered => {
                "in a pod with hostUsers: false, from outside of it, nft and legacy mode enter its user namespace for rules on \
                 owners"
            }
            Self::Closed => {
                "in a pod with hostUsers: false, from outside of it, nft and legacy mode go on in native mode: entering its \
                 user namespace takes CAP_SYS_ADMIN"
            }
            Self::NotKnown => {
                "it is not known whether a pod with hostUsers: false can run here: /proc/sys/user/max_user_namespaces cannot \
                 be read"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_by_the_sysctl_and_the_capabilities() {
        let all = "CapEff:\t000001ffffffffff\n";
        // NET_ADMIN and NET_RAW.
        let few = "CapEff:\t0000000000003000\n";
        for (maximum, is_missing, status, want) in [
            (Some("63436\n"), false, all, UserNamespaces::Entered),
            (Some("63436\n"), false, few, UserNamespaces::Closed),
            (Some("63436\n"), false, "", UserNamespaces::Closed),
            (Some("0\n"), false, all, UserNamespaces::Forbidden),
            (None, true, all, UserNamespaces::Missing),
            (None, false, all, UserNamespaces::NotKnown),
            (Some(""), false, all, UserNamespaces::NotKnown),
        ] {
            assert_eq!(UserNamespaces::of(maximum, is_missing, status), want, "{maximum:?}");
        }
    }
}
