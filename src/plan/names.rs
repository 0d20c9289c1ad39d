//! The names of the chains that hold rules, and the purposes in rules' comments.

use std::fmt::{self, Write as _};

use derive_more::Display;
use ruleset::xtables::MULTIPORT_REFERENCES;
use ruleset::{Base, Chain, Condition, Field, Hook, Kind, NAT_PRIORITY, Name, Policy, Rule, Table};

use crate::config::{IdRange, Interface, Port, PortRange, Subnet};

/// The chains of the nat table that hold our rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Display)]
#[display("{}", self.as_str())]
pub enum ChainName {
    /// The base chain that inbound packets enter. It jumps to our chain, and may hold rules of other programs.
    Prerouting,
    /// The base chain that the pod's own packets enter, with such a jump too.
    Output,
    /// Our chain for inbound packets.
    ProxyInitRedirect,
    /// Our chain for outbound packets.
    ProxyInitOutput,
}

impl ChainName {
    /// All of them, base chains first.
    pub(crate) const ALL: [Self; 4] = [Self::Prerouting, Self::Output, Self::ProxyInitRedirect, Self::ProxyInitOutput];

    /// All of them in the order in which their rules are added: each before the one that jumps to it.
    pub(crate) const IN_ORDER: [Self; 4] =
        [Self::ProxyInitRedirect, Self::Prerouting, Self::ProxyInitOutput, Self::Output];

    /// Its name in the kernel, which is linkerd-init's.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prerouting => "PREROUTING",
            Self::Output => "OUTPUT",
            Self::ProxyInitRedirect => "PROXY_INIT_REDIRECT",
            Self::ProxyInitOutput => "PROXY_INIT_OUTPUT",
        }
    }

    /// The chain with this name, if it is one of these.
    pub(crate) fn from_name(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|chain| chain.as_str().as_bytes() == name)
    }

    /// Our own chain with this name, if it is one.
    pub(crate) fn own(name: &Name) -> Option<Self> {
        Self::from_name(name.as_bytes()).filter(|chain| chain.is_ours())
    }

    /// Where the chain is hooked, if it is a base chain.
    pub fn hook(self) -> Option<Hook> {
        match self {
            Self::Prerouting => Some(Hook::Prerouting),
            Self::Output => Some(Hook::Output),
            Self::ProxyInitRedirect | Self::ProxyInitOutput => None,
        }
    }

    /// The hook and priority that proxy-init gives it, if it is a base chain.
    pub fn base(self) -> Option<Base> {
        self.hook().map(|hook| Base { kind: Kind::Nat, hook, priority: NAT_PRIORITY, policy: Policy::Accept })
    }

    /// The chain as proxy-init makes it, with these rules.
    pub(crate) fn holding<R>(self, rules: Vec<R>) -> Chain<R> {
        Chain::new(Name::from(self.as_str()), self.base(), rules)
    }

    /// The other end of the jump: our chain to which a base chain jumps, or the base chain that jumps there.
    pub(crate) fn counterpart(self) -> Self {
        match self {
            Self::Prerouting => Self::ProxyInitRedirect,
            Self::ProxyInitRedirect => Self::Prerouting,
            Self::Output => Self::ProxyInitOutput,
            Self::ProxyInitOutput => Self::Output,
        }
    }

    /// The purpose of the rule that jumps from there, or to there.
    pub(crate) fn jump_purpose(self) -> Purpose {
        match self {
            Self::Prerouting | Self::ProxyInitRedirect => Purpose::LookAtInbound,
            Self::Output | Self::ProxyInitOutput => Purpose::LookAtOutbound,
        }
    }

    /// Returns true if the chain is our own. Base chains are shared with other programs.
    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Self::ProxyInitRedirect | Self::ProxyInitOutput)
    }
}

/// The chain of this name in a table.
pub(crate) fn chain_of<R>(table: &Table<R>, name: ChainName) -> Option<&Chain<R>> {
    table.chains.iter().find(|chain| chain.name == *name.as_str())
}

/// The rules of that chain; none if there is no such chain.
pub(crate) fn rules_of<R>(table: &Table<R>, name: ChainName) -> &[R] {
    chain_of(table, name).map(|chain| chain.rules.as_slice()).unwrap_or_default()
}

pub(crate) fn is_on_owner(rule: &Rule) -> bool {
    let mut fields = rule.conditions.iter().filter_map(Condition::field);
    fields.any(|field| matches!(field, Field::Uid | Field::Gid))
}

/// The users or groups that a rule matches, and the file with the user namespace's map of such ids
/// (user_namespaces(7)).
pub(crate) fn owner(rule: &Rule) -> Option<(IdRange, &'static str)> {
    rule.conditions.iter().find_map(|condition| {
        let Condition::In { field, values, .. } = condition else {
            return None;
        };
        let map = match field {
            Field::Uid => "/proc/self/uid_map",
            Field::Gid => "/proc/self/gid_map",
            _ => return None,
        };
        let &[(first, last)] = values.listed()? else {
            return None;
        };
        let ids = IdRange::new(u32::try_from(first).ok()?, u32::try_from(last).ok()?)?;
        Some((ids, map))
    })
}

/// The words of a comment, after the prefix, before and after the name in it.
type Words = (&'static str, &'static str);

/// The purpose of a rule. When displayed, it is the rule's comment, the same as linkerd-init's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Purpose {
    IgnorePorts(Multiport),
    IgnoreSubnet(Subnet),
    IgnoreUser,
    IgnoreGroup,
    IgnoreUnlistedPorts,
    RedirectSubnet(Subnet),
    IgnoreUsers(IdRange),
    IgnoreGroups(IdRange),
    IgnoreInterface(Interface),
    IgnoreLoopback,
    RedirectPort(Port),
    RedirectInbound,
    RedirectOutbound,
    LookAtInbound,
    LookAtOutbound,
}

impl Purpose {
    /// The beginning of every comment.
    pub const PREFIX: &'static str = "proxy-init/";

    pub(crate) const IGNORE_PORT: Words = ("ignore-port-", "");
    pub(crate) const IGNORE_SUBNET: Words = ("ignore-subnet-", "");
    pub(crate) const REDIRECT_PORT: Words = ("redirect-port-", "-to-proxy-port");
    pub(crate) const REDIRECT_SUBNET: Words = ("redirect-subnet-", "-to-proxy-port");
    pub(crate) const IGNORE_USERS: Words = ("ignore-user-id-", "");
    pub(crate) const IGNORE_GROUPS: Words = ("ignore-group-id-", "");
    pub(crate) const IGNORE_INTERFACE: Words = ("ignore-interface-", "");

    /// The words of comments that list several names in native mode.
    pub(crate) const LISTING: [Words; 4] =
        [Self::IGNORE_PORT, Self::IGNORE_SUBNET, Self::REDIRECT_PORT, Self::REDIRECT_SUBNET];

    /// The words of its comment, after the prefix, before and after the ports, the subnet or whatever else it names, and
    /// that; it may name nothing.
    fn parts(&self) -> (Words, &dyn fmt::Display) {
        match self {
            Self::IgnorePorts(ports) => (Self::IGNORE_PORT, ports),
            Self::IgnoreSubnet(subnet) => (Self::IGNORE_SUBNET, subnet),
            Self::RedirectPort(port) => (Self::REDIRECT_PORT, port),
            Self::RedirectSubnet(subnet) => (Self::REDIRECT_SUBNET, subnet),
            Self::IgnoreUsers(ids) => (Self::IGNORE_USERS, ids),
            Self::IgnoreGroups(ids) => (Self::IGNORE_GROUPS, ids),
            Self::IgnoreInterface(name) => (Self::IGNORE_INTERFACE, name),
            Self::IgnoreUser => (("ignore-proxy-user-id", ""), &""),
            Self::IgnoreGroup => (("ignore-proxy-group-id", ""), &""),
            Self::IgnoreUnlistedPorts => (("ignore-unlisted-ports", ""), &""),
            Self::IgnoreLoopback => (("ignore-loopback", ""), &""),
            Self::RedirectInbound => (("redirect-all-incoming-to-proxy-port", ""), &""),
            Self::RedirectOutbound => (("redirect-all-outgoing-to-proxy-port", ""), &""),
            Self::LookAtInbound => (("install-proxy-init-prerouting", ""), &""),
            Self::LookAtOutbound => (("install-proxy-init-output", ""), &""),
        }
    }

    /// The name in its comment.
    pub(crate) fn name(&self) -> &dyn fmt::Display {
        self.parts().1
    }

    /// The words of its comment around a list of names, if native mode's rules list several.
    pub(crate) fn around_list(&self) -> Option<Words> {
        Some(self.parts().0).filter(|words| Self::LISTING.contains(words))
    }

    pub(crate) fn comment(&self) -> Name {
        // Room for nearly every comment, so that it doesn't move as it grows.
        let mut comment = String::with_capacity(64);
        // Writing to a String can't fail.
        let _ = write!(comment, "{self}");
        Name::of(comment)
    }

    /// A comment without the time in seconds with which linkerd-init before 2.4.0 ends it (`formatComment` in its
    /// iptables.go): a slash and ten digits, which no subnet's prefix has.
    pub(crate) fn without_time(comment: &str) -> &str {
        match comment.rsplit_once('/') {
            Some((text, time)) if time.len() == 10 && time.bytes().all(|byte| byte.is_ascii_digit()) => text,
            _ => comment,
        }
    }

    /// Returns true if a rule's comment is the purpose's.
    pub(crate) fn is_in(&self, comment: Option<&Name>) -> bool {
        let text = comment.and_then(|comment| std::str::from_utf8(comment.as_bytes()).ok());
        text.is_some_and(|text| Self::without_time(text) == self.to_string())
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((before, after), name) = self.parts();
        write!(f, "{}{before}{name}{after}", Self::PREFIX)
    }
}

/// The ports of one multiport match: at least one port reference and at most [`MULTIPORT_REFERENCES`], where a range counts
/// two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Multiport(Vec<PortRange>);

impl Multiport {
    /// A match on these ports, if they fit.
    pub fn new(ports: Vec<PortRange>) -> Option<Self> {
        let references: usize = ports.iter().copied().map(Self::references).sum();
        (1..=MULTIPORT_REFERENCES).contains(&references).then_some(Self(ports))
    }

    /// Cuts a list of any length into matches, keeping its order and filling each as far as possible.
    pub fn pieces(ports: &[PortRange]) -> Vec<Self> {
        let mut pieces = Vec::with_capacity(ports.len() / MULTIPORT_REFERENCES + 1);
        let mut piece = Vec::new();
        let mut used = 0;
        for &range in ports {
            if used + Self::references(range) > MULTIPORT_REFERENCES {
                pieces.push(Self(std::mem::take(&mut piece)));
                used = 0;
            }
            used += Self::references(range);
            piece.push(range);
        }
        if !piece.is_empty() {
            pieces.push(Self(piece));
        }
        pieces
    }

    pub fn ranges(&self) -> &[PortRange] {
        &self.0
    }

    fn references(range: PortRange) -> usize {
        if range.first() == range.last() { 1 } else { 2 }
    }
}

impl fmt::Display for Multiport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, range) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_char(',')?;
            }
            f.write_str(&range.in_iptables())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ruleset::testing::rule;
    use ruleset::{Action, Values};

    use super::*;

    fn ranges(list: &str) -> Vec<PortRange> {
        list.split(',').map(|item| item.parse().unwrap()).collect()
    }

    #[test]
    fn a_range_counts_two_and_a_range_of_one_port_counts_one() {
        let seven_ranges_and_one = "1-2,3-4,5-6,7-8,9-10,11-12,13-14,20-20";
        assert_eq!(Multiport::pieces(&ranges(seven_ranges_and_one)).len(), 1);
        let pieces = Multiport::pieces(&ranges(&format!("{seven_ranges_and_one},30")));
        let written: Vec<_> = pieces.iter().map(ToString::to_string).collect();
        assert_eq!(written, ["1:2,3:4,5:6,7:8,9:10,11:12,13:14,20", "30"]);
        assert!(Multiport::new(ranges(&format!("{seven_ranges_and_one},30"))).is_none());
        assert!(Multiport::new(Vec::new()).is_none());
    }

    #[test]
    fn a_list_of_any_length_is_cut_where_it_is_full() {
        let numbers = |count: u16| -> Vec<PortRange> {
            (1..=count).map(|number| PortRange::new(number, number).unwrap()).collect()
        };
        let lengths = |ports: &[PortRange]| -> Vec<usize> {
            Multiport::pieces(ports).iter().map(|piece| piece.ranges().len()).collect()
        };
        assert!(lengths(&[]).is_empty());
        assert_eq!(lengths(&numbers(15)), [15]);
        assert_eq!(lengths(&numbers(16)), [15, 1]);
        assert_eq!(lengths(&numbers(31)), [15, 15, 1]);
        // A range that no longer fits begins the next match.
        let mut ports = numbers(14);
        ports.push(PortRange::new(80, 90).unwrap());
        assert_eq!(lengths(&ports), [14, 1]);
        let all: Vec<_> = Multiport::pieces(&ports).iter().flat_map(|piece| piece.ranges().to_vec()).collect();
        assert_eq!(all, ports);
        assert!(Multiport::new(numbers(15)).is_some() && Multiport::new(numbers(16)).is_none());
    }

    #[test]
    fn a_rules_owners_are_users_or_groups() {
        let owner_in = |field, values: Values| owner(&rule([Condition::is(field, values)], Action::Return));
        let ids = |first, last| IdRange::new(first, last).unwrap();
        for (field, values, ruleset) in [
            (Field::Uid, 2102.into(), Some((ids(2102, 2102), "/proc/self/uid_map"))),
            (Field::Gid, 2102.into(), Some((ids(2102, 2102), "/proc/self/gid_map"))),
            (Field::Uid, (2102, 2103).into(), Some((ids(2102, 2103), "/proc/self/uid_map"))),
            (Field::Uid, Values::Listed(vec![(1, 1), (3, 3)]), None),
            (Field::DestinationPort, 2102.into(), None),
        ] {
            assert_eq!(owner_in(field, values), ruleset, "{field:?}");
        }
    }
}
