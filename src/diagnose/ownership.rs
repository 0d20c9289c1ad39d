//! Recognises our tables and rules in the kernel, beyond [`crate::ownership`].

use ruleset::{Direction, Family, Line, Name, Rule, Ruleset, Subsystem, Table};

use crate::config::{Mode, PortRange};
use crate::ownership::holds_rules;
use crate::plan::{ChainName, Multiport, Purpose};

impl ChainName {
    /// Our chain that redirects connections of a direction.
    pub(crate) fn of(direction: Direction) -> Self {
        match direction {
            Direction::Inbound => Self::ProxyInitRedirect,
            Direction::Outbound => Self::ProxyInitOutput,
        }
    }
}

/// The words of comments that name something, and the purpose for a name.
type Naming = ((&'static str, &'static str), fn(&str) -> Option<Purpose>);

const NAMING: [Naming; 7] = [
    (Purpose::IGNORE_PORT, |ports| multiport(ports).map(Purpose::IgnorePorts)),
    (Purpose::IGNORE_SUBNET, |subnet| subnet.parse().ok().map(Purpose::IgnoreSubnet)),
    (Purpose::REDIRECT_PORT, |port| port.parse().ok().map(Purpose::RedirectPort)),
    (Purpose::REDIRECT_SUBNET, |subnet| subnet.parse().ok().map(Purpose::RedirectSubnet)),
    (Purpose::IGNORE_USERS, |ids| ids.parse().ok().map(Purpose::IgnoreUsers)),
    (Purpose::IGNORE_GROUPS, |ids| ids.parse().ok().map(Purpose::IgnoreGroups)),
    (Purpose::IGNORE_INTERFACE, |name| name.parse().ok().map(Purpose::IgnoreInterface)),
];

/// Ports as iptables writes them: `4190,8000:8100`.
fn multiport(text: &str) -> Option<Multiport> {
    let mut ports = Vec::new();
    for item in text.split(',') {
        let (first, last) = item.split_once(':').unwrap_or((item, item));
        ports.push(PortRange::new(first.parse().ok()?, last.parse().ok()?)?);
    }
    Multiport::new(ports)
}

impl Purpose {
    pub fn of(rule: &Rule) -> Option<Self> {
        Self::from_comment(std::str::from_utf8(rule.comment.as_ref()?.as_bytes()).ok()?)
    }

    pub fn from_comment(comment: &str) -> Option<Self> {
        let comment = Self::without_time(comment);
        let fixed = [
            Self::IgnoreUser,
            Self::IgnoreGroup,
            Self::IgnoreLoopback,
            Self::IgnoreUnlistedPorts,
            Self::RedirectInbound,
            Self::RedirectOutbound,
            Self::LookAtInbound,
            Self::LookAtOutbound,
        ];
        if let Some(purpose) = fixed.into_iter().find(|purpose| purpose.to_string() == comment) {
            return Some(purpose);
        }
        let text = comment.strip_prefix(Self::PREFIX)?;
        NAMING.iter().find_map(|((before, after), of)| of(text.strip_prefix(before)?.strip_suffix(after)?))
    }

    /// The ports or subnets that a comment lists, with the text before and after them; none if it lists nothing.
    pub(crate) fn list(comment: &str) -> Option<(&str, &str, &str)> {
        let comment = Self::without_time(comment);
        Self::LISTING.into_iter().find_map(|(before, after)| {
            let rest = comment.strip_prefix(Self::PREFIX)?.strip_prefix(before)?;
            let names = rest.strip_suffix(after)?;
            let (before, _) = comment.split_at_checked(Self::PREFIX.len() + before.len())?;
            Some((before, names, after))
        })
    }

    /// The purpose of the first item that a comment lists.
    fn first_listed(comment: &str) -> Option<Self> {
        let (before, names, after) = Self::list(comment)?;
        Self::from_comment(&format!("{before}{}{after}", names.split(',').next()?))
    }

    /// The purpose of a rule, or of the first item that its comment lists.
    pub(crate) fn of_first(rule: &Rule) -> Option<Self> {
        Self::of(rule).or_else(|| Self::first_listed(std::str::from_utf8(rule.comment.as_ref()?.as_bytes()).ok()?))
    }

    /// Returns true if the comment is about other users or groups than the proxy's.
    pub(crate) fn is_about_others(&self) -> bool {
        matches!(self, Self::IgnoreUsers(_) | Self::IgnoreGroups(_))
    }
}

/// Returns true if a rule is ours or linkerd-init's, by its comment.
pub fn is_ours(rule: &Rule) -> bool {
    let prefix = Purpose::PREFIX.as_bytes();
    rule.comment.as_ref().is_some_and(|comment| comment.as_bytes().starts_with(prefix))
}

/// The rule without the time with which linkerd-init before 2.4.0 ends its comment; none if it has none.
pub fn without_time(rule: &Rule) -> Option<Rule> {
    let comment = rule.comment.as_ref().filter(|_| is_ours(rule))?;
    let text = std::str::from_utf8(comment.as_bytes()).ok()?;
    let timeless = Purpose::without_time(text);
    (timeless != text).then(|| Rule { comment: Some(Name::from(timeless)), ..rule.clone() })
}

/// The mode whose rules a table holds, or would hold if there were any.
pub fn mode_of(table: &Table) -> Option<Mode> {
    let tables = std::slice::from_ref(table);
    let holds = |mode: &Mode| Family::ALL.iter().any(|&family| mode.table_among(tables, family).is_some());
    Mode::ALL.iter().copied().find(holds)
}

/// Returns true if any mode holds a rule of ours. Our empty chains, as `iptables -F` leaves them, don't count.
pub fn has_rules(ruleset: &Ruleset) -> bool {
    let subsystems = [Subsystem::NfTables, Subsystem::Legacy].into_iter();
    let mut lines = subsystems.flat_map(|subsystem| ruleset.nat_tables(subsystem)).flat_map(own_lines);
    holds_rules(ruleset, Mode::Native) || lines.next().is_some()
}

/// The rules of a table that are in our chains or lead there.
pub fn own_lines(table: &Table) -> impl Iterator<Item = Line<'_>> {
    let lines = table.chains.iter().flat_map(|chain| Line::all(table, chain));
    lines.filter(|line| ChainName::own(&line.chain.name).is_some() || leads_to(line.rule).is_some())
}

/// Finds the chain of ours to which a rule leads, by a jump, a goto or an entry of a verdict map; none if
/// to none.
pub fn leads_to(rule: &Rule) -> Option<ChainName> {
    let mut outcomes = rule.possible_actions();
    outcomes.find_map(|action| ChainName::own(action.target()?))
}

#[cfg(test)]
mod tests {
    use ruleset::{Action, testing};

    use super::*;
    use crate::config::Config;
    use crate::plan::tables::expected;

    #[test]
    fn flushed_chains_hold_no_rules_and_a_jump_to_one_is_a_rule() {
        let config = Config::new("4143".parse().unwrap(), "4140".parse().unwrap());
        let has_rules = |tables: Vec<Table>| {
            let not_known = vec![];
            has_rules(&Ruleset { tables, not_known })
        };
        assert!(!has_rules(vec![]));
        for mode in [Mode::Nft, Mode::Legacy] {
            let mut tables = expected(mode, &config);
            assert!(has_rules(tables.clone()));
            let chains = tables.iter_mut().flat_map(|table| &mut table.chains);
            let rules: Vec<_> = chains.map(|chain| std::mem::take(&mut chain.rules)).collect();
            assert!(!has_rules(tables.clone()), "{mode}");
            for (index, rules) in rules.into_iter().take(tables[0].chains.len()).enumerate() {
                let mut tables = tables.clone();
                tables[0].chains[index].rules = rules;
                assert!(has_rules(tables), "{mode} {index}");
            }
        }
        assert!(has_rules(expected(Mode::Native, &config)));
        let other = testing::rule([], Action::Accept);
        assert!(!has_rules(vec![testing::table("ip nat", vec![testing::chain("OUTPUT", vec![other])])]));
    }

    #[test]
    fn a_comments_list_is_between_its_other_words() {
        for (comment, parts) in [
            ("proxy-init/ignore-port-25,80:90", Some(("proxy-init/ignore-port-", "25,80:90", ""))),
            ("proxy-init/ignore-subnet-fd00::/8", Some(("proxy-init/ignore-subnet-", "fd00::/8", ""))),
            ("proxy-init/redirect-port-80-to-proxy-port", Some(("proxy-init/redirect-port-", "80", "-to-proxy-port"))),
            ("proxy-init/redirect-port-80", None),
            ("proxy-init/ignore-loopback", None),
            ("other/ignore-port-25", None),
        ] {
            assert_eq!(Purpose::list(comment), parts, "{comment}");
        }
    }

    #[test]
    fn ports_are_read_as_iptables_writes_them() {
        for text in ["4190", "4190,8000:8100", "0:65535"] {
            assert_eq!(multiport(text).unwrap().to_string(), text);
        }
        for text in ["", ",", "80,", "8100:8000", "80-90", "65536", "http"] {
            assert_eq!(multiport(text), None, "{text}");
        }
    }

    /// The comments of linkerd-init's rules.
    #[test]
    fn purposes_are_read_from_their_comments() {
        let port = crate::config::Port::new(80).unwrap();
        for (purpose, comment) in [
            (Purpose::IgnorePorts(multiport("25,80:90").unwrap()), "ignore-port-25,80:90"),
            (Purpose::IgnoreSubnet("10.1.2.3/8".parse().unwrap()), "ignore-subnet-10.1.2.3/8"),
            (Purpose::IgnoreUser, "ignore-proxy-user-id"),
            (Purpose::IgnoreGroup, "ignore-proxy-group-id"),
            (Purpose::IgnoreUsers("1000-1999".parse().unwrap()), "ignore-user-id-1000-1999"),
            (Purpose::IgnoreGroups("0".parse().unwrap()), "ignore-group-id-0"),
            (Purpose::IgnoreInterface("net1".parse().unwrap()), "ignore-interface-net1"),
            (Purpose::IgnoreUnlistedPorts, "ignore-unlisted-ports"),
            (Purpose::RedirectSubnet("10.1.2.3/8".parse().unwrap()), "redirect-subnet-10.1.2.3/8-to-proxy-port"),
            (Purpose::IgnoreLoopback, "ignore-loopback"),
            (Purpose::RedirectPort(port), "redirect-port-80-to-proxy-port"),
            (Purpose::RedirectInbound, "redirect-all-incoming-to-proxy-port"),
            (Purpose::RedirectOutbound, "redirect-all-outgoing-to-proxy-port"),
            (Purpose::LookAtInbound, "install-proxy-init-prerouting"),
            (Purpose::LookAtOutbound, "install-proxy-init-output"),
        ] {
            let comment = format!("proxy-init/{comment}");
            assert_eq!(purpose.to_string(), comment);
            assert_eq!(Purpose::from_comment(&format!("{comment}/1700000000")), Some(purpose.clone()));
            assert_eq!(Purpose::from_comment(&comment), Some(purpose));
        }
        for comment in [
            "ignore-loopback",
            "proxy-init/",
            "proxy-init/ignore-port-",
            "proxy-init/ignore-subnet-10.0.0.0",
            "proxy-init/redirect-port-0-to-proxy-port",
            "proxy-init/redirect-port-80",
            "proxy-init/ignore-loopback/170000000",
            "proxy-init/ignore-loopback/170000000x",
            "other/ignore-loopback",
        ] {
            assert_eq!(Purpose::from_comment(comment), None, "{comment}");
        }
    }
}
