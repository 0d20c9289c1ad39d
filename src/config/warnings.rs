//! Settings that are valid, but probably mistakes.

use derive_more::Display;
use ruleset::Family;

use crate::config::settings::{
    INBOUND_SUBNETS_TO_IGNORE, INCOMING_PROXY_PORT, IPV6, OUTGOING_PROXY_PORT, PROXY_GID, PROXY_UID,
};
use crate::config::{Config, Port, Subnet};

/// Something in a [`Config`] that its user should know before connections show it.
#[derive(Debug, Clone, PartialEq, Eq, Display)]
#[non_exhaustive]
pub enum Warning {
    /// Nobody is named as the proxy's user or group.
    #[display(
        "{PROXY_UID} and {PROXY_GID} are 0 or not given: the proxy's own connections will be redirected back to the proxy"
    )]
    NoOwner,
    /// The proxy's two ports are this one.
    #[display("{INCOMING_PROXY_PORT} and {OUTGOING_PROXY_PORT} are both {_0}")]
    SamePort(Port),
    /// A subnet of all addresses that counts for this family too, which is not its own.
    #[display(
        "{INBOUND_SUBNETS_TO_IGNORE} {_0}: inbound {_1} connections bypass the proxy too, as with \
         linkerd-init"
    )]
    BothFamilies(Subnet, Family),
    /// The subnet is of a family that gets no rules.
    #[display("subnet {_0} has no effect: with {IPV6}=false there are no rules for {}",
        _0.family())]
    NoRulesFor(Subnet),
}

/// Everything about `config` that is probably a mistake, in the order of its flags.
pub fn warnings(config: &Config) -> Vec<Warning> {
    let mut warnings = Vec::new();
    if config.inbound_port == config.outbound_port {
        warnings.push(Warning::SamePort(config.inbound_port));
    }
    if config.proxy_uid.is_none() && config.proxy_gid.is_none() {
        warnings.push(Warning::NoOwner);
    }
    let families = config.families();
    for &family in families {
        let lent = config.ignored_sources(family).find(|subnet| subnet.family() != family);
        warnings.extend(lent.map(|subnet| Warning::BothFamilies(subnet.clone(), family)));
    }
    for subnet in &config.ignored_inbound_subnets {
        let mut used = families.iter().flat_map(|&family| config.ignored_sources(family));
        if !used.any(|used| used == subnet) {
            warnings.push(Warning::NoRulesFor(subnet.clone()));
        }
    }
    for subnet in config.ignored_outbound_subnets.iter().chain(&config.redirected_outbound_subnets) {
        if !families.contains(&subnet.family()) {
            warnings.push(Warning::NoRulesFor(subnet.clone()));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::OwnerId;

    #[test]
    fn what_is_doubtful_is_named_and_nothing_else() {
        let port = |number| Port::new(number).unwrap();
        let mut config = Config::new(port(4143), port(4140));
        config.proxy_gid = OwnerId::new(7);
        config.ignored_inbound_subnets = vec!["fd00::/8".parse().unwrap(), "10.0.0.0/8".parse().unwrap()];
        assert_eq!(warnings(&config), []);

        config.outbound_port = port(4143);
        config.proxy_gid = None;
        config.ipv6 = false;
        let subnet = config.ignored_inbound_subnets[0].clone();
        let want = [Warning::SamePort(port(4143)), Warning::NoOwner, Warning::NoRulesFor(subnet)];
        assert_eq!(warnings(&config), want);
        // Outbound subnets too.
        config.ignored_outbound_subnets = config.ignored_inbound_subnets.split_off(0);
        assert_eq!(warnings(&config), want);
    }

    #[test]
    fn a_family_that_is_exempted_by_the_others_subnet_is_named() {
        let port = |number| Port::new(number).unwrap();
        let mut config = Config::new(port(4143), port(4140));
        config.proxy_uid = OwnerId::new(2102);
        for (listed, ipv6, want) in [
            (
                "0.0.0.0/0",
                true,
                "inbound-subnets-to-ignore 0.0.0.0/0: inbound IPv6 connections bypass the proxy too, as with linkerd-init",
            ),
            ("0.0.0.0/0", false, ""),
            ("0.0.0.0/0,::/0", true, ""),
            ("0.0.0.0/0,10.0.0.0/8", true, ""),
            (
                "::/0",
                false,
                "inbound-subnets-to-ignore ::/0: inbound IPv4 connections bypass the proxy too, as with linkerd-init",
            ),
        ] {
            config.ignored_inbound_subnets = listed.split(',').map(|subnet| subnet.parse().unwrap()).collect();
            config.ipv6 = ipv6;
            let warnings: Vec<_> = warnings(&config).iter().map(ToString::to_string).collect();
            assert_eq!(warnings.join("; "), want, "{listed} {ipv6}");
        }
    }
}
