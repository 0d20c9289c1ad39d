//! Hooks: the places on a packet's way where base chains run.

use derive_more::Display;

/// A place on a packet's way (`enum nf_inet_hooks` in linux/netfilter.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Display)]
#[display(rename_all = "lowercase")]
pub enum Hook {
    /// The packet comes from the network device.
    Ingress,
    /// Before routing, for packets that come from outside.
    Prerouting,
    /// After routing, for packets to a socket of this namespace.
    Input,
    /// After routing, for packets that are forwarded.
    Forward,
    /// For packets that a socket of this namespace sends.
    Output,
    /// After routing, for packets that leave.
    Postrouting,
    /// The packet goes to the network device.
    Egress,
}

impl Hook {
    /// The hooks of IP packets, by their numbers (`enum nf_inet_hooks` in linux/netfilter.h).
    pub const INET: [Self; 6] =
        [Self::Prerouting, Self::Input, Self::Forward, Self::Output, Self::Postrouting, Self::Ingress];
    /// The hooks of ARP's packets, by their numbers (`NF_ARP_IN` and the others in linux/netfilter_arp.h).
    pub const ARP: [Self; 3] = [Self::Input, Self::Output, Self::Forward];
    /// The hooks of a netdev table, by their numbers (`enum nf_dev_hooks` there).
    pub const NETDEV: [Self; 2] = [Self::Ingress, Self::Egress];
}

/// The priority at which netfilter runs the nat chains of a hook; where sources are changed, `NF_IP_PRI_NAT_SRC`
/// (linux/netfilter_ipv4.h; `nf_nat_ipv4_ops` in net/netfilter/nf_nat_proto.c).
pub fn nat_priority(hook: Hook) -> i32 {
    match hook {
        Hook::Input | Hook::Postrouting => 100,
        _ => NAT_PRIORITY,
    }
}

/// xtables' tables, and the priority of each one's chains (`enum nf_ip_hook_priorities` in linux/netfilter_ipv4.h); for
/// nat's, see [`nat_priority`].
pub const XTABLES: [(&str, i32); 5] =
    [("raw", -300), ("mangle", -150), (NAT, NAT_PRIORITY), ("filter", 0), ("security", 50)];

/// The table in which nft mode and legacy mode keep a family's rules.
pub const NAT: &str = "nat";

/// The priority at which destinations are changed, and of iptables' nat chains: `NF_IP_PRI_NAT_DST`.
pub const NAT_PRIORITY: i32 = -100;

#[cfg(test)]
mod tests {
    use super::*;

    /// nft calls these priorities `dstnat` and `srcnat`.
    #[test]
    fn nat_of_destinations_is_before_filters_and_of_sources_after() {
        for (hook, priority) in
            [(Hook::Prerouting, -100), (Hook::Output, -100), (Hook::Input, 100), (Hook::Postrouting, 100)]
        {
            assert_eq!(nat_priority(hook), priority, "{hook}");
        }
    }
}
