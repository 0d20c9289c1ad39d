//! Numbers of netlink's own interface that libc doesn't have, under the names they have in linux/netlink.h,
//! linux/netfilter/nfnetlink.h and linux/rtnetlink.h.

pub(crate) const NFNL_BATCH_GENID: u16 = 1;
pub(crate) const NLMSGERR_ATTR_MSG: u16 = 1;
/// Which libc has for glibc only.
pub(crate) const RTA_UID: u16 = 25;
pub(crate) const RTA_IP_PROTO: u16 = 27;
pub(crate) const RTA_SPORT: u16 = 28;
pub(crate) const RTA_DPORT: u16 = 29;
