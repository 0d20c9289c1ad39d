//! The fate of pods with `hostUsers: false` here, as far as the kernel can be read.

use derive_more::Display;

/// Tells if pods with `hostUsers: false` can run here, and how the modes serve them from outside, as the CNI plugin
/// does. [`Display`](std::fmt::Display) says it in a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display)]
#[non_exhaustive]
pub enum UserNamespaces {
    /// The kernel has no user namespaces (CONFIG_USER_NS).
    #[display("no pod with hostUsers: false can run here: the kernel has no user namespaces (CONFIG_USER_NS)")]
    Missing,
    /// The kernel makes no user namespaces: the sysctl user.max_user_namespaces is 0.
    #[display("no pod with hostUsers: false can run here: the sysctl user.max_user_namespaces is 0")]
    Forbidden,
    /// There can be some. From outside, they get native mode.
    #[display(
        "a pod with hostUsers: false gets native mode from outside of it, whichever is asked for: the kernel takes \
         xtables' rules on owners only from inside (with no-fallback, that is an error)"
    )]
    Possible,
    /// Nothing tells.
    #[display(
        "it is not known whether a pod with hostUsers: false can run here: /proc/sys/user/max_user_namespaces cannot \
         be read"
    )]
    NotKnown,
}

impl UserNamespaces {
    /// By the sysctl, if it can be read or is missing from a /proc that shows namespaces.
    pub fn of(maximum: Option<&str>, is_missing: bool) -> Self {
        match maximum.map(|maximum| maximum.trim().parse::<u64>()) {
            Some(Ok(0)) => Self::Forbidden,
            Some(Ok(_)) => Self::Possible,
            None if is_missing => Self::Missing,
            None | Some(Err(_)) => Self::NotKnown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_by_the_sysctl() {
        for (maximum, is_missing, want) in [
            (Some("63436\n"), false, UserNamespaces::Possible),
            (Some("0\n"), false, UserNamespaces::Forbidden),
            (None, true, UserNamespaces::Missing),
            (None, false, UserNamespaces::NotKnown),
            (Some(""), false, UserNamespaces::NotKnown),
        ] {
            assert_eq!(UserNamespaces::of(maximum, is_missing), want, "{maximum:?}");
        }
    }
}
