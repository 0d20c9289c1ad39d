//! The settings of rules. Each is one entry of [`SETTINGS`], which says how the setting is called wherever it can be made,
//! and where its value is in a config. The command line, the environment, the plugin's configuration, a pod's
//! annotations and the way back from a config to flags all go by that table.

use std::fmt::Display;
use std::str::FromStr;

use crate::config::{Config, InvalidValue, OwnerId, Port};

/// One setting of rules: its names, and how it is read and printed.
#[derive(Debug)]
pub struct Setting {
    /// The long flag, without its dashes.
    pub flag: &'static str,
    /// linkerd-init's name for it, if that is another: an alias of the flag.
    pub alias: Option<&'static str>,
    /// The flag's letter.
    pub short: Option<char>,
    /// The annotations of a pod or of its namespace. Those with the prefix `config.linkerd.io/` are Linkerd's.
    pub annotations: &'static [&'static str],
    /// True if annotations add to the configuration's list. All others replace the list.
    pub adds: bool,
    /// The value of the Helm chart: Linkerd's, or else the key under `rules`.
    pub chart: &'static str,
    /// The value's name in help.
    pub placeholder: &'static str,
    /// The setting's text in help.
    pub help: &'static str,
    /// The value's type in JSON.
    pub form: Form,
    /// True if there are no rules without this setting.
    pub is_required: bool,
    /// True for a list outside of which nothing is redirected: an empty list would mean everything, not nothing.
    narrows: bool,
    value: fn(&mut PartialConfig) -> &mut dyn Value,
}

/// A value's type in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A whole number.
    Number,
    /// A boolean. Its flag needs no value.
    Switch,
    /// A list of whole numbers.
    Numbers,
    /// A list of strings.
    Texts,
}

/// A config in the making: the proxy's ports may be missing.
#[derive(Debug, Clone)]
pub struct PartialConfig {
    /// [`Config::inbound_port`]
    pub inbound_port: Option<Port>,
    /// [`Config::outbound_port`]
    pub outbound_port: Option<Port>,
    /// Everything else: its own two ports don't count.
    pub config: Config,
}

impl Default for PartialConfig {
    fn default() -> Self {
        Self { inbound_port: None, outbound_port: None, config: Config::new(Port::LOWEST, Port::LOWEST) }
    }
}

impl From<Config> for PartialConfig {
    fn from(config: Config) -> Self {
        Self { inbound_port: Some(config.inbound_port), outbound_port: Some(config.outbound_port), config }
    }
}

impl PartialConfig {
    /// The config; or the flags of the required settings that are missing.
    pub fn finish(self) -> Result<Config, &'static [&'static str]> {
        match (self.inbound_port, self.outbound_port) {
            (Some(inbound_port), Some(outbound_port)) => Ok(Config { inbound_port, outbound_port, ..self.config }),
            (None, None) => Err(&[INCOMING_PROXY_PORT, OUTGOING_PROXY_PORT]),
            (None, Some(_)) => Err(&[INCOMING_PROXY_PORT]),
            (Some(_), None) => Err(&[OUTGOING_PROXY_PORT]),
        }
    }
}

impl Setting {
    /// The key in the object `linkerd` of the plugin's configuration.
    pub fn key(&self) -> &'static str {
        self.alias.unwrap_or(self.flag)
    }

    /// Reads a value as its flag has it, after which that is the setting's value; or, of a list, adds these items.
    pub fn read(&self, partial: &mut PartialConfig, text: &str) -> Result<(), InvalidValue> {
        if self.narrows && list_items(text).next().is_none() {
            return Err(InvalidValue::EmptyList(text.to_owned()));
        }
        (self.value)(partial).read(text)
    }

    /// Reads a value, which takes the place of the one before.
    pub fn replace(&self, partial: &mut PartialConfig, text: &str) -> Result<(), InvalidValue> {
        (self.value)(partial).clear();
        self.read(partial, text)
    }

    /// The arguments that give the setting its value; none if it has its default.
    fn arguments(&self, partial: &mut PartialConfig) -> Vec<String> {
        let mut arguments = Vec::new();
        for text in (self.value)(partial).print() {
            match self.form {
                // A boolean takes its value after "=" only.
                Form::Switch => arguments.push(format!("--{}={text}", self.flag)),
                Form::Number | Form::Numbers | Form::Texts => arguments.extend([format!("--{}", self.flag), text]),
            }
        }
        arguments
    }
}

// The flags that messages name.
pub(crate) const INCOMING_PROXY_PORT: &str = "incoming-proxy-port";
pub(crate) const OUTGOING_PROXY_PORT: &str = "outgoing-proxy-port";
pub(crate) const PROXY_UID: &str = "proxy-uid";
pub(crate) const PROXY_GID: &str = "proxy-gid";
pub(crate) const INBOUND_SUBNETS_TO_IGNORE: &str = "inbound-subnets-to-ignore";
pub(crate) const OUTBOUND_SUBNETS_TO_REDIRECT: &str = "outbound-subnets-to-redirect";
pub(crate) const IPV6: &str = "ipv6";

/// The flags that install exactly `config`, without those that have their default.
pub fn arguments(config: &Config) -> Vec<String> {
    let mut partial = PartialConfig::from(config.clone());
    SETTINGS.iter().flat_map(|setting| setting.arguments(&mut partial)).collect()
}

/// The part of a config that a setting sets.
trait Value {
    fn read(&mut self, text: &str) -> Result<(), InvalidValue>;
    /// Drops the value to which reading would add.
    fn clear(&mut self) {}
    /// Texts which, read one after the other, make the value; none if it has its default.
    fn print(&self) -> Vec<String>;
}

impl Value for Option<Port> {
    fn read(&mut self, text: &str) -> Result<(), InvalidValue> {
        let port = integer(text).and_then(|number| Port::new(number.try_into().ok()?));
        *self = Some(port.ok_or_else(|| InvalidValue::Port(text.to_owned()))?);
        Ok(())
    }

    fn print(&self) -> Vec<String> {
        self.iter().map(ToString::to_string).collect()
    }
}

/// A user or group. 0 and numbers below stand for none, as linkerd-init has it (`ProxyUID > 0` in its
/// pkg/iptables/iptables.go).
impl Value for Option<OwnerId> {
    fn read(&mut self, text: &str) -> Result<(), InvalidValue> {
        *self = match integer(text) {
            Some(..=0) => None,
            number => {
                let id = number.and_then(|number| OwnerId::new(number.try_into().ok()?));
                Some(id.ok_or_else(|| InvalidValue::OwnerId(text.to_owned()))?)
            }
        };
        Ok(())
    }

    fn print(&self) -> Vec<String> {
        self.iter().map(ToString::to_string).collect()
    }
}

/// A switch, which is on by default.
impl Value for bool {
    fn read(&mut self, text: &str) -> Result<(), InvalidValue> {
        *self = boolean(text)?;
        Ok(())
    }

    fn print(&self) -> Vec<String> {
        if *self { Vec::new() } else { vec![false.to_string()] }
    }
}

/// The most items of a list in one argument. The kernel takes no argument longer than 128 KiB (MAX_ARG_STRLEN), and the
/// longest item, an IPv6 subnet, takes 50 bytes.
const ITEMS: usize = 1000;

impl<T: FromStr<Err = InvalidValue> + Display> Value for Vec<T> {
    fn read(&mut self, text: &str) -> Result<(), InvalidValue> {
        for item in list_items(text) {
            self.push(item.parse()?);
        }
        Ok(())
    }

    fn clear(&mut self) {
        Vec::clear(self);
    }

    fn print(&self) -> Vec<String> {
        let joined = |items: &[T]| items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        self.chunks(ITEMS).map(joined).collect()
    }
}

/// The items of a list. Blanks around items are ignored, and so are empty items.
pub fn list_items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

/// A whole number in decimal. Go's flags take one that begins with 0 for octal, so it is refused.
pub(crate) fn integer(text: &str) -> Option<i128> {
    let digits = text.trim_start_matches(['-', '+']);
    if digits.len() > 1 && digits.starts_with('0') {
        return None;
    }
    text.parse().ok()
}

/// A boolean as Go's flags read it (strconv.ParseBool).
pub(crate) fn boolean(text: &str) -> Result<bool, InvalidValue> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(InvalidValue::Boolean(text.to_owned())),
    }
}

/// The common parts of most settings.
const LIST: Setting = Setting {
    flag: "",
    alias: None,
    short: None,
    annotations: &[],
    adds: false,
    chart: "",
    placeholder: "",
    help: "",
    form: Form::Texts,
    is_required: false,
    narrows: false,
    value: |partial| &mut partial.config.ignored_inbound_ports,
};

const NUMBER: Setting = Setting { form: Form::Number, ..LIST };

/// Every setting, in the order in which help shows them.
pub const SETTINGS: &[Setting] = &[
    Setting {
        flag: INCOMING_PROXY_PORT,
        short: Some('p'),
        annotations: &["config.linkerd.io/inbound-port"],
        chart: "inboundProxyPort",
        placeholder: "PORT",
        help: "Port of the proxy for inbound connections",
        is_required: true,
        value: |partial| &mut partial.inbound_port,
        ..NUMBER
    },
    Setting {
        flag: OUTGOING_PROXY_PORT,
        short: Some('o'),
        annotations: &["config.linkerd.io/outbound-port"],
        chart: "outboundProxyPort",
        placeholder: "PORT",
        help: "Port of the proxy for outbound connections",
        is_required: true,
        value: |partial| &mut partial.outbound_port,
        ..NUMBER
    },
    Setting {
        flag: PROXY_UID,
        short: Some('u'),
        annotations: &["config.linkerd.io/proxy-uid"],
        chart: "proxyUID",
        placeholder: "UID",
        help: "User id of the proxy, whose own connections are not redirected\n\
               [default: -1, none]",
        value: |partial| &mut partial.config.proxy_uid,
        ..NUMBER
    },
    Setting {
        flag: PROXY_GID,
        short: Some('g'),
        annotations: &["config.linkerd.io/proxy-gid"],
        chart: "proxyGID",
        placeholder: "GID",
        help: "Group id of the proxy, whose own connections are not redirected\n\
               [default: -1, none]",
        value: |partial| &mut partial.config.proxy_gid,
        ..NUMBER
    },
    Setting {
        flag: "ports-to-redirect",
        short: Some('r'),
        annotations: &["proxy-init.io/ports-to-redirect"],
        chart: "portsToRedirect",
        placeholder: "PORTS",
        help: "Redirect only these inbound ports, e.g. 80,443 [default: all]",
        form: Form::Numbers,
        narrows: true,
        value: |partial| &mut partial.config.redirected_ports,
        ..LIST
    },
    Setting {
        flag: "inbound-ports-to-ignore",
        annotations: &[
            "config.linkerd.io/skip-inbound-ports",
            "config.linkerd.io/control-port",
            "config.linkerd.io/admin-port",
        ],
        // The proxy's own ports are among them (linkerd2-proxy-init's pull request 518).
        adds: true,
        chart: "ignoreInboundPorts",
        placeholder: "PORTS",
        help: "Inbound ports that bypass the proxy, e.g. 4190,8000-8100",
        value: |partial| &mut partial.config.ignored_inbound_ports,
        ..LIST
    },
    Setting {
        flag: "outbound-ports-to-ignore",
        annotations: &["config.linkerd.io/skip-outbound-ports"],
        chart: "ignoreOutboundPorts",
        placeholder: "PORTS",
        help: "Outbound ports that bypass the proxy, e.g. 443,3306",
        value: |partial| &mut partial.config.ignored_outbound_ports,
        ..LIST
    },
    Setting {
        flag: INBOUND_SUBNETS_TO_IGNORE,
        alias: Some("subnets-to-ignore"),
        annotations: &["config.linkerd.io/skip-subnets"],
        chart: "rules.subnetsToIgnore",
        placeholder: "SUBNETS",
        help: "Connections from these subnets bypass the proxy,\n\
               e.g. 10.0.0.0/8,fd00::/8",
        value: |partial| &mut partial.config.ignored_inbound_subnets,
        ..LIST
    },
    Setting {
        flag: "outbound-subnets-to-ignore",
        annotations: &["proxy-init.io/outbound-subnets-to-ignore"],
        chart: "rules.outboundSubnetsToIgnore",
        placeholder: "SUBNETS",
        help: "Connections to these subnets bypass the proxy, e.g. 169.254.169.254/32",
        value: |partial| &mut partial.config.ignored_outbound_subnets,
        ..LIST
    },
    Setting {
        flag: "outbound-ports-to-redirect",
        annotations: &["proxy-init.io/outbound-ports-to-redirect"],
        chart: "rules.outboundPortsToRedirect",
        placeholder: "PORTS",
        help: "Redirect only these outbound ports, e.g. 80,8000-8100 [default: all]",
        narrows: true,
        value: |partial| &mut partial.config.redirected_outbound_ports,
        ..LIST
    },
    Setting {
        flag: OUTBOUND_SUBNETS_TO_REDIRECT,
        annotations: &["proxy-init.io/outbound-subnets-to-redirect"],
        chart: "rules.outboundSubnetsToRedirect",
        placeholder: "SUBNETS",
        help: "Redirect only connections to these subnets, e.g. 10.0.0.0/8,fd00::/8,\n\
               and, with --outbound-ports-to-redirect, only to those ports of them\n\
               [default: all]",
        narrows: true,
        value: |partial| &mut partial.config.redirected_outbound_subnets,
        ..LIST
    },
    Setting {
        flag: "skip-uid",
        annotations: &["proxy-init.io/skip-uid"],
        chart: "rules.skipUID",
        placeholder: "UIDS",
        help: "Other users whose connections bypass the proxy, e.g. 0,1000-1999",
        value: |partial| &mut partial.config.ignored_uids,
        ..LIST
    },
    Setting {
        flag: "skip-gid",
        annotations: &["proxy-init.io/skip-gid"],
        chart: "rules.skipGID",
        placeholder: "GIDS",
        help: "Groups whose connections bypass the proxy, e.g. 7,1000-1999",
        value: |partial| &mut partial.config.ignored_gids,
        ..LIST
    },
    Setting {
        flag: "inbound-interfaces-to-ignore",
        annotations: &["proxy-init.io/inbound-interfaces-to-ignore"],
        chart: "rules.inboundInterfacesToIgnore",
        placeholder: "NAMES",
        help: "Connections that come in by these interfaces bypass the proxy,\n\
               e.g. net1,k6t-eth0",
        value: |partial| &mut partial.config.ignored_inbound_interfaces,
        ..LIST
    },
    Setting {
        flag: "outbound-interfaces-to-ignore",
        annotations: &["proxy-init.io/outbound-interfaces-to-ignore"],
        chart: "rules.outboundInterfacesToIgnore",
        placeholder: "NAMES",
        help: "Connections that leave by these interfaces bypass the proxy,\n\
               e.g. net1,tun0",
        value: |partial| &mut partial.config.ignored_outbound_interfaces,
        ..LIST
    },
    Setting {
        flag: IPV6,
        annotations: &["proxy-init.io/ipv6"],
        chart: "disableIPv6",
        placeholder: "BOOL",
        help: "Redirect IPv6 as well as IPv4; --ipv6=false for IPv4 alone\n\
               [default: true]",
        form: Form::Switch,
        value: |partial| &mut partial.config.ipv6,
        ..LIST
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(flag: &str) -> &'static Setting {
        SETTINGS.iter().find(|setting| setting.flag == flag).unwrap()
    }

    fn read(flag: &str, text: &str) -> Result<PartialConfig, InvalidValue> {
        let mut partial = PartialConfig::default();
        setting(flag).read(&mut partial, text).map(|()| partial)
    }

    #[test]
    fn every_name_is_one_settings_and_made_of_its_flag() {
        let mut names = Vec::new();
        for setting in SETTINGS {
            for annotation in setting.annotations {
                let own = format!("proxy-init.io/{}", setting.flag);
                assert!(*annotation == own || annotation.starts_with("config.linkerd.io/"), "{annotation}");
            }
            assert!(!setting.annotations.is_empty() && !setting.placeholder.is_empty() && !setting.help.is_empty());
            names.extend([setting.flag, setting.chart]);
            names.extend(setting.annotations);
        }
        let mut keys: Vec<_> = SETTINGS.iter().map(Setting::key).collect();
        for names in [&mut names, &mut keys] {
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count);
        }
    }

    /// The kernel takes no argument of more than 128 KiB.
    #[test]
    fn a_long_list_is_several_arguments() {
        let mut config = Config::new(Port::new(4143).unwrap(), Port::new(4140).unwrap());
        config.redirected_ports = (1..=2001).map(|number| Port::new(number).unwrap()).collect();
        let arguments = arguments(&config);
        let lists: Vec<_> = arguments[4..].chunks(2).collect();
        assert!(lists.iter().all(|list| list[0] == "--ports-to-redirect"));
        let ends: Vec<_> = lists.iter().map(|list| (list[1].split(',').next(), list[1].split(',').count())).collect();
        assert_eq!(ends, [(Some("1"), 1000), (Some("1001"), 1000), (Some("2001"), 1)]);
    }

    #[test]
    fn numbers_are_decimal_and_those_that_go_takes_for_octal_are_refused() {
        for (text, number) in [
            ("4143", Some(4143)),
            ("+7", Some(7)),
            ("-1", Some(-1)),
            ("0", Some(0)),
            ("-0", Some(0)),
            ("-99999999999999999999", Some(-99_999_999_999_999_999_999)),
            ("170141183460469231731687303715884105728", None),
            ("017", None),
            ("-017", None),
            ("0x102C", None),
            ("4_143", None),
            ("", None),
            ("-", None),
            ("--1", None),
            ("-+1", None),
            (" 1", None),
            ("1.0", None),
        ] {
            assert_eq!(integer(text), number, "{text:?}");
        }
    }

    #[test]
    fn the_ends_of_ranges_are_kept() {
        let port = |text| read("incoming-proxy-port", text).map(|partial| partial.inbound_port);
        assert_eq!(port("65535"), Ok(Port::new(65535)));
        assert!(port("0").is_err() && port("65536").is_err() && port("-1").is_err());
        let uid = |text| read("proxy-uid", text).map(|partial| partial.config.proxy_uid);
        assert_eq!(uid("4294967294"), Ok(OwnerId::new(4_294_967_294)));
        assert!(uid("4294967295").is_err() && uid("root").is_err());
        assert_eq!((uid("0"), uid("-1"), uid("-2")), (Ok(None), Ok(None), Ok(None)));
    }

    #[test]
    fn a_list_is_added_to_or_replaced() {
        let (setting, mut partial) = (setting("inbound-ports-to-ignore"), PartialConfig::default());
        setting.read(&mut partial, "80,443").unwrap();
        setting.read(&mut partial, "25").unwrap();
        assert_eq!(partial.config.ignored_inbound_ports.len(), 3);
        setting.replace(&mut partial, "25").unwrap();
        assert_eq!(partial.config.ignored_inbound_ports, ["25".parse().unwrap()]);
    }

    #[test]
    fn blanks_and_empty_items_of_a_list_do_not_count() {
        let ports = |flag, text| read(flag, text).map(|partial| partial.config);
        let ignored = |text| ports("inbound-ports-to-ignore", text).map(|config| config.ignored_inbound_ports);
        assert_eq!(ignored(" 80 , ,443,"), ignored("80,443"));
        assert!(ignored(r#""80","443""#).is_err() && ignored("80 443").is_err());
        assert_eq!(ignored(" , "), Ok(vec![]));
        for empty in [" , ", ""] {
            let refused = ports("ports-to-redirect", empty).unwrap_err();
            assert_eq!(refused, InvalidValue::EmptyList(empty.to_owned()));
        }
    }
}
