//! Numbers of netlink's own interface that libc doesn't have, under the names they have in linux/netlink.h,
//! linux/netfilter/nfnetlink.h, linux/rtnetlink.h, linux/sock_diag.h and linux/inet_diag.h.

pub(crate) const NFNL_BATCH_GENID: u16 = 1;
pub(crate) const NLMSGERR_ATTR_MSG: u16 = 1;
/// Which libc has for glibc only.
pub(crate) const RTA_UID: u16 = 25;
/// `struct fib_rule_uid_range` of linux/fib_rules.h: the first and the last user.
pub(crate) const FRA_FWMARK: u16 = 10;
pub(crate) const FRA_UID_RANGE: u16 = 20;
pub(crate) const IFLA_LINK_NETNSID: u16 = 37;
pub(crate) const SOCK_DIAG_BY_FAMILY: i32 = 20;
pub(crate) const INET_DIAG_SKV6ONLY: u16 = 11;
/// A state of `enum` in net/tcp_states.h.
pub(crate) const TCP_LISTEN: u32 = 10;
pub(crate) const RTA_IP_PROTO: u16 = 27;
pub(crate) const RTA_SPORT: u16 = 28;
pub(crate) const RTA_DPORT: u16 = 29;
