//! How a config is spelled as flags: the names that say which rules to install, and the way back from a [`Config`].

use std::fmt::Display;

use crate::rules::config::{Config, PortRange};
use crate::rules::mode::Choice;

/// [`Config::inbound_port`].
pub const INCOMING_PROXY_PORT: &str = "incoming-proxy-port";
/// [`Config::outbound_port`].
pub const OUTGOING_PROXY_PORT: &str = "outgoing-proxy-port";
/// [`Config::proxy_uid`].
pub const PROXY_UID: &str = "proxy-uid";
/// [`Config::proxy_gid`].
pub const PROXY_GID: &str = "proxy-gid";
/// [`Config::redirected_ports`].
pub const PORTS_TO_REDIRECT: &str = "ports-to-redirect";
/// [`Config::ignored_inbound_ports`].
pub const INBOUND_PORTS_TO_IGNORE: &str = "inbound-ports-to-ignore";
/// [`Config::ignored_outbound_ports`].
pub const OUTBOUND_PORTS_TO_IGNORE: &str = "outbound-ports-to-ignore";
/// [`Config::ignored_inbound_subnets`].
pub const INBOUND_SUBNETS_TO_IGNORE: &str = "inbound-subnets-to-ignore";
/// [`Config::ignored_outbound_subnets`].
pub const OUTBOUND_SUBNETS_TO_IGNORE: &str = "outbound-subnets-to-ignore";
/// [`Config::ipv6`].
pub const IPV6: &str = "ipv6";
/// [`Choice`].
pub const IPTABLES_MODE: &str = "iptables-mode";

/// The most items of a list in one argument. The kernel takes no argument longer than 128 KiB (MAX_ARG_STRLEN), and the
/// longest item, an IPv6 subnet, takes 50 bytes; a flag that is repeated adds to its list.
const ITEMS: usize = 1000;

/// The flags that install exactly `config` in the mode of `choice`; what is as it is by default is left out.
pub fn arguments(config: &Config, choice: Choice) -> Vec<String> {
    let mut flags = Flags::default();
    flags.add(INCOMING_PROXY_PORT, [config.inbound_port]);
    flags.add(OUTGOING_PROXY_PORT, [config.outbound_port]);
    flags.add(PROXY_UID, config.proxy_uid);
    flags.add(PROXY_GID, config.proxy_gid);
    flags.list(PORTS_TO_REDIRECT, &config.redirected_ports, ToString::to_string);
    flags.list(INBOUND_PORTS_TO_IGNORE, &config.ignored_inbound_ports, range);
    flags.list(OUTBOUND_PORTS_TO_IGNORE, &config.ignored_outbound_ports, range);
    flags.list(
        INBOUND_SUBNETS_TO_IGNORE,
        &config.ignored_inbound_subnets,
        ToString::to_string,
    );
    flags.list(
        OUTBOUND_SUBNETS_TO_IGNORE,
        &config.ignored_outbound_subnets,
        ToString::to_string,
    );
    if !config.ipv6 {
        // A boolean takes its value behind "=" only.
        flags.0.push(format!("--{IPV6}=false"));
    }
    flags.add(IPTABLES_MODE, choice.name());
    flags.0
}

/// The arguments so far.
#[derive(Default)]
struct Flags(Vec<String>);

impl Flags {
    fn add(&mut self, name: &str, values: impl IntoIterator<Item = impl Display>) {
        for value in values {
            self.0.extend([format!("--{name}"), value.to_string()]);
        }
    }

    fn list<T>(&mut self, name: &str, items: &[T], spelled: impl Fn(&T) -> String) {
        let lists = items.chunks(ITEMS);
        self.add(
            name,
            lists.map(|items| items.iter().map(&spelled).collect::<Vec<_>>().join(",")),
        );
    }
}

/// `8000-8100`: flags write a range with a dash, where iptables has a colon.
fn range(ports: &PortRange) -> String {
    if ports.first() == ports.last() {
        ports.first().to_string()
    } else {
        format!("{}-{}", ports.first(), ports.last())
    }
}
