//! The configuration: which connections are redirected, and in which mode the rules are held.

pub mod lists;
mod mode;
pub mod settings;
#[cfg(test)]
pub(crate) mod testing;
pub mod warnings;

use std::fmt;
use std::num::{NonZeroU16, NonZeroU32};
use std::str::FromStr;

use derive_more::Display;
use ipnet::IpNet;
use ruleset::{Family, interface};
use thiserror::Error;

pub use self::mode::{Mode, ModeChoice, NATIVE};

/// The reason why a value is invalid. The message does not name the flag; the caller knows it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the text of an error says what each of its fields is")]
pub enum InvalidValue {
    #[error("\"{0}\" is not a valid TCP port (1-65535)")]
    Port(String),
    #[error("\"{0}\": ranges expected as <lower>-<upper>")]
    RangeForm(String),
    #[error("\"{0}\" is not a port or a range of ports (such as 80 or 8000-8100)")]
    LowerBound(String),
    #[error("\"{0}\" is not a valid upper-bound (0-65535)")]
    UpperBound(String),
    #[error("\"{0}\": upper-bound must be greater than or equal to lower-bound")]
    RangeOrder(String),
    #[error("{0} is not a valid CIDR address (such as 10.0.0.0/8 or fd00::/8)")]
    Subnet(String),
    #[error("{written} is an IPv4-mapped subnet, which is never on the wire: write the IPv4 subnet itself{}", instead.map(|net| format!(", {net}")).unwrap_or_default())]
    MappedSubnet { written: String, instead: Option<IpNet> },
    #[error("\"{0}\" is not a valid id (1-4294967294; -1 or 0 for none)")]
    OwnerId(String),
    #[error("\"{0}\" is not an id or a range of ids (0-4294967294, such as 1000 or 1000-1999)")]
    IdRange(String),
    #[error(
        "\"{0}\" is not an interface's name (at most 15 letters, digits and . _ - @, such as net1): name each interface \
         in full, without wildcards"
    )]
    Interface(String),
    #[error("\"{0}\" names nothing: name at least one, or leave it out to redirect everything")]
    EmptyList(String),
    #[error("\"{0}\" is not true or false")]
    Boolean(String),
    #[error("\"{0}\" is not a mode (use legacy, nft, native, auto or plain)")]
    ModeChoice(String),
}

/// A TCP port that something can listen on: 1 to 65535.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Display)]
pub struct Port(NonZeroU16);

impl Port {
    /// The lowest one, 1.
    pub const LOWEST: Self = Self(NonZeroU16::MIN);

    /// The port with this number; there is no port 0.
    pub fn new(number: u16) -> Option<Self> {
        NonZeroU16::new(number).map(Self)
    }

    /// Its number.
    pub fn get(self) -> u16 {
        self.0.get()
    }
}

impl FromStr for Port {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        text.parse().map(Self).map_err(|_| InvalidValue::Port(text.to_owned()))
    }
}

/// One number or an inclusive range of them, first ≤ last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NumberRange<T> {
    first: T,
    last: T,
}

/// Ports. Port 0 is allowed, as in linkerd-init, so that `0-65535` means every port.
pub type PortRange = NumberRange<u16>;

/// User or group ids: 0, which is root, to 2³² − 2.
pub type IdRange = NumberRange<u32>;

impl<T: Copy + Ord + Into<u128>> NumberRange<T> {
    /// The lowest number.
    pub fn first(self) -> T {
        self.first
    }

    /// The highest number.
    pub fn last(self) -> T {
        self.last
    }

    /// Returns true if the number is in the range.
    pub fn contains(self, number: T) -> bool {
        (self.first..=self.last).contains(&number)
    }

    pub(crate) fn numbers(self) -> (u128, u128) {
        (self.first.into(), self.last.into())
    }
}

impl PortRange {
    /// The range from `first` to `last`, both included; none if it runs backwards.
    pub fn new(first: u16, last: u16) -> Option<Self> {
        (first <= last).then_some(Self { first, last })
    }

    /// As iptables writes it: `4190`, or `8000:8100`.
    pub(crate) fn in_iptables(self) -> String {
        if self.first == self.last { self.first.to_string() } else { format!("{}:{}", self.first, self.last) }
    }
}

impl IdRange {
    /// The range from `first` to `last`, both included; none if it runs backwards or has 2³² − 1.
    pub fn new(first: u32, last: u32) -> Option<Self> {
        (first <= last && last < u32::MAX).then_some(Self { first, last })
    }
}

impl From<Port> for PortRange {
    fn from(port: Port) -> Self {
        Self { first: port.get(), last: port.get() }
    }
}

impl From<OwnerId> for IdRange {
    fn from(id: OwnerId) -> Self {
        Self { first: id.get(), last: id.get() }
    }
}

/// As flags write it: `4190`, or `8000-8100`. A range of one number is that number.
impl<T: fmt::Display + PartialEq> fmt::Display for NumberRange<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { write!(f, "{}", self.first) } else { write!(f, "{}-{}", self.first, self.last) }
    }
}

/// As linkerd-init's flags write it: `4190`, or `8000-8100`.
impl FromStr for PortRange {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let (lower, upper) = match text.split_once('-') {
            Some((_, upper)) if upper.contains('-') => return Err(InvalidValue::RangeForm(text.to_owned())),
            // A number below zero: it is named as it was written.
            Some(("", _)) => return Err(InvalidValue::LowerBound(text.to_owned())),
            Some((lower, upper)) => (lower.trim(), upper.trim()),
            None => (text, text),
        };
        let first = lower.parse().map_err(|_| InvalidValue::LowerBound(lower.to_owned()))?;
        let last = upper.parse().map_err(|_| InvalidValue::UpperBound(upper.to_owned()))?;
        Self::new(first, last).ok_or_else(|| InvalidValue::RangeOrder(text.to_owned()))
    }
}

/// A subnet, and how the user wrote it: the rule's comment carries that.
#[derive(Debug, Clone, PartialEq, Eq, Display)]
#[display("{written}")]
pub struct Subnet {
    written: String,
    net: IpNet,
}

impl Subnet {
    /// The network, its host bits zero.
    pub fn net(&self) -> IpNet {
        self.net
    }

    /// Returns true if the subnet has every address of its family.
    pub(crate) fn is_of_all(&self) -> bool {
        self.net.prefix_len() == 0
    }

    /// The family whose packets it can match.
    pub fn family(&self) -> Family {
        Family::of(self.net.addr())
    }
}

/// An address as std reads it, which takes no leading zeros (in some programs they mean octal), and a prefix length
/// without them.
impl FromStr for Subnet {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let net = network(text).ok_or_else(|| InvalidValue::Subnet(text.to_owned()))?;
        if let IpNet::V6(v6) = net
            && let Some(address) = v6.addr().to_ipv4_mapped()
        {
            let length = v6.prefix_len().checked_sub(96);
            return Err(InvalidValue::MappedSubnet {
                written: text.to_owned(),
                instead: length.and_then(|length| IpNet::new(address.into(), length).ok()),
            });
        }
        Ok(Self { written: text.to_owned(), net: net.trunc() })
    }
}

fn network(text: &str) -> Option<IpNet> {
    let (address, length) = text.split_once('/')?;
    let is_plain = length.bytes().all(|byte| byte.is_ascii_digit()) && (length == "0" || !length.starts_with('0'));
    IpNet::new(address.parse().ok()?, length.parse().ok().filter(|_| is_plain)?).ok()
}

/// The id of a user or group other than root, as the kernel knows it: 1 to 2³² − 2. (2³² − 1 is `(uid_t) -1`, which
/// stands for no id.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Display)]
pub struct OwnerId(NonZeroU32);

impl OwnerId {
    /// The id with this number, unless it is 0 or 2³² − 1.
    pub fn new(id: u32) -> Option<Self> {
        if id == u32::MAX {
            return None;
        }
        NonZeroU32::new(id).map(Self)
    }

    /// Its number.
    pub fn get(self) -> u32 {
        self.0.get()
    }
}

impl FromStr for IdRange {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.trim().parse(), last.trim().parse()) {
            (Ok(first), Ok(last)) if !text.contains('+') => Self::new(first, last),
            _ => None,
        }
        .ok_or_else(|| InvalidValue::IdRange(text.to_owned()))
    }
}

/// The name of a network interface, which need not be there: rules compare names, packet by packet. Of those that the
/// kernel takes (`dev_valid_name` in net/core/dev.c), it is one of letters, digits and `.`, `_`, `-` and `@`, the first of
/// which is no `-`: iptables would take `net+` for a prefix, so would nft `net*`, and others would have to be quoted.
#[derive(Debug, Clone, PartialEq, Eq, Display)]
pub struct Interface(String);

impl Interface {
    /// The loopback device, `lo`.
    pub(crate) fn loopback() -> Self {
        Self("lo".to_owned())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn number(&self) -> u128 {
        interface(self.0.as_bytes())
    }
}

impl FromStr for Interface {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let is_name = (1..=15).contains(&text.len()) && ![".", ".."].contains(&text) && !text.starts_with('-');
        let mut bytes = text.bytes();
        if !is_name || !bytes.all(|byte| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte)) {
            return Err(InvalidValue::Interface(text.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }
}

/// The rules that the user wants. Each field is one of linkerd-init's flags, or one that it lacks; only the proxy's two
/// ports are required.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The port on which the proxy accepts the pod's inbound connections.
    pub inbound_port: Port,
    /// The port on which the proxy accepts the pod's outbound connections.
    pub outbound_port: Port,
    /// The proxy's user, whose connections are never redirected.
    pub proxy_uid: Option<OwnerId>,
    /// The proxy's group, likewise.
    pub proxy_gid: Option<OwnerId>,
    /// The only inbound ports to redirect; if empty, all are.
    pub redirected_ports: Vec<Port>,
    /// Inbound ports that bypass the proxy.
    pub ignored_inbound_ports: Vec<PortRange>,
    /// Outbound ports that bypass the proxy.
    pub ignored_outbound_ports: Vec<PortRange>,
    /// Sources whose inbound connections bypass the proxy.
    pub ignored_inbound_subnets: Vec<Subnet>,
    /// Destinations whose outbound connections bypass the proxy.
    pub ignored_outbound_subnets: Vec<Subnet>,
    /// The only outbound ports to redirect; if empty, all are.
    pub redirected_outbound_ports: Vec<PortRange>,
    /// The only destinations to redirect; if empty, all are.
    pub redirected_outbound_subnets: Vec<Subnet>,
    /// Other users than the proxy's whose connections bypass the proxy.
    pub ignored_uids: Vec<IdRange>,
    /// Groups, likewise.
    pub ignored_gids: Vec<IdRange>,
    /// Interfaces whose inbound connections bypass the proxy.
    pub ignored_inbound_interfaces: Vec<Interface>,
    /// Interfaces whose outbound connections bypass the proxy.
    pub ignored_outbound_interfaces: Vec<Interface>,
    /// True if IPv6 gets rules too; IPv4 always does.
    pub ipv6: bool,
}

impl Config {
    /// A config that redirects everything, both ways and in both families.
    pub fn new(inbound_port: Port, outbound_port: Port) -> Self {
        Self {
            inbound_port,
            outbound_port,
            proxy_uid: None,
            proxy_gid: None,
            redirected_ports: Vec::new(),
            ignored_inbound_ports: Vec::new(),
            ignored_outbound_ports: Vec::new(),
            ignored_inbound_subnets: Vec::new(),
            ignored_outbound_subnets: Vec::new(),
            redirected_outbound_ports: Vec::new(),
            redirected_outbound_subnets: Vec::new(),
            ignored_uids: Vec::new(),
            ignored_gids: Vec::new(),
            ignored_inbound_interfaces: Vec::new(),
            ignored_outbound_interfaces: Vec::new(),
            ipv6: true,
        }
    }

    /// The subnets that a family's rules ignore as sources: its own. linkerd-init gives the whole list to both families.
    /// There, a subnet of all addresses counts for either family, since iptables ignores its address; any other subnet
    /// is an error to the other family's iptables. So if the list has only subnets of all addresses, a family without
    /// one gets those of the other.
    pub(crate) fn ignored_sources(&self, family: Family) -> impl Iterator<Item = &Subnet> {
        let listed = &self.ignored_inbound_subnets;
        let has_own = listed.iter().any(|subnet| subnet.family() == family);
        let is_lent = !has_own && listed.iter().all(Subnet::is_of_all);
        listed.iter().filter(move |subnet| is_lent || subnet.family() == family)
    }

    /// The families that get rules.
    pub fn families(&self) -> &'static [Family] {
        if self.ipv6 { &[Family::V4, Family::V6] } else { &[Family::V4] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_linkerd_init_reads_them() {
        for (text, want) in [
            ("23-23", Ok((23, 23))),
            ("25-27", Ok((25, 27))),
            ("0-65535", Ok((0, 65535))),
            ("33", Ok((33, 33))),
            ("", Err(InvalidValue::LowerBound(String::new()))),
            ("notanumber", Err(InvalidValue::LowerBound("notanumber".into()))),
            ("-23", Err(InvalidValue::LowerBound("-23".into()))),
            ("-23-25", Err(InvalidValue::RangeForm("-23-25".into()))),
            ("25-23", Err(InvalidValue::RangeOrder("25-23".into()))),
            ("65536-65539", Err(InvalidValue::LowerBound("65536".into()))),
            ("23-notanumber", Err(InvalidValue::UpperBound("notanumber".into()))),
        ] {
            let got = text.parse::<PortRange>().map(|range| (range.first(), range.last()));
            assert_eq!(got, want, "{text:?}");
        }
    }

    #[test]
    fn a_subnet_that_programs_read_differently_is_refused() {
        for text in [
            "10.0.0.0/33",
            "10.0.0.1",
            "010.0.0.0/8",
            "10.0.0.0/08",
            "10.0.0.0/+8",
            "10.0.0.0/",
            "10.0.0/8",
            "fd00::/129",
            "fd00::%eth0/8",
            "",
        ] {
            assert_eq!(text.parse::<Subnet>(), Err(InvalidValue::Subnet(text.to_owned())));
        }
        for (text, instead) in [
            ("::ffff:10.0.0.0/104", Some("10.0.0.0/8")),
            ("::ffff:0.0.0.0/96", Some("0.0.0.0/0")),
            // It has other addresses too.
            ("::ffff:10.0.0.0/95", None),
        ] {
            let instead = instead.map(|net| net.parse().unwrap());
            assert_eq!(text.parse::<Subnet>(), Err(InvalidValue::MappedSubnet { written: text.to_owned(), instead }));
        }
        // It keeps its spelling, and drops its host bits.
        for (text, net) in [("0.0.0.0/0", "0.0.0.0/0"), ("::/0", "::/0"), ("10.1.2.3/8", "10.0.0.0/8")] {
            let subnet: Subnet = text.parse().unwrap();
            assert_eq!((subnet.to_string(), subnet.net().to_string()), (text.to_owned(), net.to_owned()));
        }
    }

    #[test]
    fn ranges_of_ids_may_have_root_and_run_forwards() {
        for text in ["0", "1000", "1000-1999", "0-4294967294"] {
            assert_eq!(text.parse::<IdRange>().unwrap().to_string(), text);
        }
        assert_eq!("7-7".parse::<IdRange>().unwrap().to_string(), "7");
        let range: IdRange = "5-9".parse().unwrap();
        assert_eq!((range.first(), range.last(), range.numbers()), (5, 9, (5, 9)));
        for text in ["", "-", "-1", "1-", "9-1", "1-2-3", "+1", "root", "4294967295", "0-4294967295"] {
            assert_eq!(text.parse::<IdRange>(), Err(InvalidValue::IdRange(text.to_owned())));
        }
    }

    #[test]
    fn interfaces_are_names_that_every_tool_reads_alike() {
        for text in ["net1", "eth0.100", "br-0a1b", "a", "wg_0", "v@eth0", "123456789abcdef", "..."] {
            let interface: Interface = text.parse().unwrap();
            assert_eq!(interface.to_string(), text);
        }
        for text in
            "|.|..|a/b|a:b|a b|a\t|a\n|net+|+|net*|!|-t|a,b|a\"|a'|a\\|a\0|a$b|\u{e0}|1234567890abcdef".split('|')
        {
            let error = text.parse::<Interface>().unwrap_err();
            assert_eq!(error, InvalidValue::Interface(text.to_owned()));
        }
    }
}
