//! Numbers of netlink's own interface that libc doesn't have, under the names they have in linux/netlink.h and
//! linux/netfilter/nfnetlink.h.

pub(crate) const NFNL_BATCH_GENID: u16 = 1;
pub(crate) const NLMSGERR_ATTR_MSG: u16 = 1;
