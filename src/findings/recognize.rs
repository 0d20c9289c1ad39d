//! Recovers the config of an installation from what was found.

use std::fmt;
use std::str::FromStr;

use crate::findings::lists;
use crate::found::Found;
use crate::found::expected::ports_of;
use crate::rules::family::Family;
use crate::rules::intervals::Intervals;
use crate::rules::name::Name;
use crate::rules::nftables::is_of;
use crate::rules::rule::{Condition, Field, Rule as FoundRule, Values};
use crate::rules::subnet::addresses;
use crate::rules::table::Table;
use crate::wanted::config::{Config, OwnerId, Port, PortRange, Subnet};
use crate::wanted::direction::Direction;
use crate::wanted::mode::Mode;
use crate::wanted::ruleset::{Match, Purpose, Rule, Target};

/// Why what was found is the installation of no config.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoConfig {
    /// proxy-init has no rules in this mode.
    Nothing,
    /// No rule redirects the connections of this direction, so the proxy's port isn't known.
    NoRedirect(Direction),
}

impl fmt::Display for NoConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoConfig::Nothing => f.write_str("no rules of proxy-init's were found"),
            NoConfig::NoRedirect(direction) => {
                write!(f, "no rule of proxy-init's redirects {direction} connections")
            }
        }
    }
}

/// The config that comes closest to what was found. Installed in the same mode, it makes exactly that, provided that
/// what was found is one complete, untouched installation: whether it is,
/// [`differences`](crate::findings::difference::differences) from what the config would install tell.
///
/// # Errors
/// Too little was found.
pub fn config(mode: Mode, found: &Found) -> Result<Config, NoConfig> {
    let parts = match mode {
        Mode::Nft | Mode::Legacy => xtables(mode, found),
        Mode::Native => found.table_of(mode, Family::V4).map(native),
    };
    parts.ok_or(NoConfig::Nothing)?.config()
}

/// What rules say about the config.
#[derive(Default)]
struct Parts {
    ipv6: bool,
    proxy_uid: Option<OwnerId>,
    proxy_gid: Option<OwnerId>,
    redirected_ports: Vec<Port>,
    inbound: Half,
    outbound: Half,
}

/// What rules say about one direction.
#[derive(Default)]
struct Half {
    proxy: Option<Port>,
    ignored_ports: Vec<PortRange>,
    ignored_subnets: Vec<Subnet>,
}

impl Parts {
    fn half(&mut self, direction: Direction) -> &mut Half {
        match direction {
            Direction::Inbound => &mut self.inbound,
            Direction::Outbound => &mut self.outbound,
        }
    }

    fn config(self) -> Result<Config, NoConfig> {
        let (inbound, outbound) = (self.inbound, self.outbound);
        Ok(Config {
            proxy_uid: self.proxy_uid,
            proxy_gid: self.proxy_gid,
            redirected_ports: self.redirected_ports,
            ignored_inbound_ports: inbound.ignored_ports,
            ignored_outbound_ports: outbound.ignored_ports,
            ignored_inbound_subnets: inbound.ignored_subnets,
            ignored_outbound_subnets: outbound.ignored_subnets,
            ipv6: self.ipv6,
            ..Config::new(
                inbound.proxy.ok_or(NoConfig::NoRedirect(Direction::Inbound))?,
                outbound.proxy.ok_or(NoConfig::NoRedirect(Direction::Outbound))?,
            )
        })
    }

    /// Takes what a rule says that is the same for both families.
    fn add(&mut self, direction: Direction, rule: &Rule) {
        if let Target::Redirect(port) = rule.target {
            self.half(direction).proxy.get_or_insert(port);
        }
        match &rule.purpose {
            Purpose::IgnorePorts(ports) => self.half(direction).ignored_ports.extend(ports.ranges()),
            Purpose::RedirectPort(port) => self.redirected_ports.push(*port),
            _ => {}
        }
        for of in &rule.matches {
            match of {
                Match::UidOwner(id) => self.proxy_uid = Some(*id),
                Match::GidOwner(id) => self.proxy_gid = Some(*id),
                _ => {}
            }
        }
    }
}

/// What a mode's nat tables say. What both families should have is taken from the first.
fn xtables(mode: Mode, found: &Found) -> Option<Parts> {
    let mut parts: Option<Parts> = None;
    for family in Family::ALL {
        let Some(table) = found.table_of(mode, family) else {
            continue;
        };
        let chain = |direction: Direction| table.chain(&Name::from(direction.chain().as_str()));
        if Direction::ALL.into_iter().all(|direction| chain(direction).is_none()) {
            continue;
        }
        let is_first = parts.is_none();
        let parts = parts.get_or_insert_default();
        parts.ipv6 |= family == Family::V6;
        for direction in Direction::ALL {
            let rules = chain(direction).map(|chain| chain.rules.as_slice()).unwrap_or_default();
            for rule in rules.iter().filter_map(FoundRule::as_rule) {
                if let Purpose::IgnoreSubnet(subnet) = &rule.purpose {
                    parts.half(direction).ignored_subnets.push(subnet.clone());
                }
                if is_first {
                    parts.add(direction, &rule);
                }
            }
        }
    }
    parts
}

/// What native mode's table says.
fn native(table: &Table) -> Parts {
    let mut parts = Parts {
        ipv6: true,
        ..Parts::default()
    };
    for direction in Direction::ALL {
        let rules = |name: &str| {
            let chain = table.chain(&Name::from(name));
            chain.map(|chain| chain.rules.as_slice()).unwrap_or_default()
        };
        let only_v4 = is_of(Family::V4);
        let jumps = rules(direction.chain().counterpart().as_str());
        parts.ipv6 &= !jumps.iter().any(|jump| jump.conditions.contains(&only_v4));
        for rule in rules(direction.chain().as_str()) {
            native_rule(&mut parts, direction, table, rule);
        }
    }
    parts
}

fn native_rule(parts: &mut Parts, direction: Direction, table: &Table, rule: &FoundRule) {
    let target = rule.as_target();
    if let Some(Target::Redirect(port)) = target {
        parts.half(direction).proxy.get_or_insert(port);
    }
    let Some(Condition::In { field, values, .. }) = rule.conditions.last() else {
        return;
    };
    let numbers = match values {
        Values::Listed(list) => Some(Intervals::new(list.iter().copied())),
        Values::Set(name) => table.set(name).and_then(|set| set.elements.clone()),
    };
    let id = || {
        let &(number, _) = numbers.as_ref()?.as_slice().first()?;
        OwnerId::new(u32::try_from(number).ok()?)
    };
    match (field, target, &numbers) {
        (Field::Uid, Some(Target::Return), _) => parts.proxy_uid = id(),
        (Field::Gid, Some(Target::Return), _) => parts.proxy_gid = id(),
        (Field::DestinationPort, Some(Target::Return), Some(numbers)) => {
            let written = named::<PortRange>(rule, "ignore-port-", "");
            let intervals = written.iter().copied().map(ports_of).collect();
            parts
                .half(direction)
                .ignored_ports
                .extend(match is_all(numbers, intervals) {
                    true => written,
                    false => lists::ranges(numbers),
                });
        }
        (Field::DestinationPort, Some(Target::Redirect(_)), Some(numbers)) => {
            let written = named::<Port>(rule, "redirect-port-", "-to-proxy-port");
            let number = |port: &Port| (port.get().into(), port.get().into());
            parts
                .redirected_ports
                .extend(match is_all(numbers, written.iter().map(number).collect()) {
                    true => written,
                    false => lists::ports(numbers),
                });
        }
        (Field::Source(family) | Field::Destination(family), Some(Target::Return), Some(numbers)) => {
            let written = named::<Subnet>(rule, "ignore-subnet-", "");
            let intervals = written.iter().map(|subnet| addresses(subnet.net())).collect();
            let have_conditions = written.iter().all(|subnet| subnet.net().prefix_len() > 0);
            let subnets = &mut parts.half(direction).ignored_subnets;
            if have_conditions && is_all(numbers, intervals) {
                subnets.extend(written);
            } else {
                for net in lists::subnets(*family, numbers) {
                    subnets.extend(net.to_string().parse::<Subnet>());
                }
            }
        }
        // Every address of the family.
        (Field::Family, Some(Target::Return), _) => {
            let (all, family) = match *rule.conditions == [is_of(Family::V4)] {
                true => ("0.0.0.0/0", Family::V4),
                false => ("::/0", Family::V6),
            };
            let written = named::<Subnet>(rule, "ignore-subnet-", "");
            let is_such = |subnet: &Subnet| subnet.family() == family && subnet.net().prefix_len() == 0;
            let subnets = &mut parts.half(direction).ignored_subnets;
            if !written.is_empty() && written.iter().all(is_such) {
                subnets.extend(written);
            } else {
                subnets.extend(all.parse::<Subnet>());
            }
        }
        _ => {}
    }
}

/// Whether these intervals are all numbers of a set.
fn is_all(numbers: &Intervals, intervals: Vec<(u128, u128)>) -> bool {
    Intervals::new(intervals) == *numbers
}

/// The items that a rule's comment lists; none if it doesn't list all, or something else.
fn named<T: FromStr>(rule: &FoundRule, before: &str, after: &str) -> Vec<T> {
    let comment = rule.comment.as_ref().map(Name::as_bytes).unwrap_or_default();
    let list = std::str::from_utf8(comment)
        .ok()
        .and_then(|comment| {
            comment
                .strip_prefix(Purpose::PREFIX)?
                .strip_prefix(before)?
                .strip_suffix(after)
        })
        .unwrap_or_default();
    let mut items = Vec::new();
    for item in list.split(',') {
        // A subnet's colons are its own.
        let is_range = !item.contains('/');
        let item = if is_range {
            item.replace(':', "-").parse()
        } else {
            item.parse()
        };
        match item {
            Ok(item) => items.push(item),
            // Where items were left out, the last is "...".
            Err(_) => return Vec::new(),
        }
    }
    items
}
