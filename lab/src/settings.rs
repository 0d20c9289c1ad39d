//! Values to try settings of rules with.

/// A value, which isn't the default, of each setting but for the proxy's ports and IPv6, as the setting's flag has it.
pub const VALUES: [(&str, &str); 13] = [
    ("proxy-uid", "2103"),
    ("proxy-gid", "2104"),
    ("ports-to-redirect", "80,443"),
    ("inbound-ports-to-ignore", "4190,8000-8100"),
    ("outbound-ports-to-ignore", "443"),
    ("inbound-subnets-to-ignore", "10.0.0.0/8,fd00::/8"),
    ("outbound-subnets-to-ignore", "169.254.169.254/32,2001:db8::/32"),
    ("outbound-ports-to-redirect", "80,8000-8100"),
    ("outbound-subnets-to-redirect", "10.0.0.0/8"),
    ("skip-uid", "0,1000-1999"),
    ("skip-gid", "7"),
    ("inbound-interfaces-to-ignore", "net1,k6t-eth0"),
    ("outbound-interfaces-to-ignore", "tun0"),
];
