//! Why a connection that should have gone to the proxy did not: a pure function of what the kernel holds.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::found::{Found, NotKnown};
use crate::rules::family::Family;
use crate::rules::intervals::Intervals;
use crate::rules::name::Name;
use crate::rules::rule::LOOPBACK;
use crate::rules::rule::{Action, Condition, Field, address, interface};
use crate::rules::table::Subsystem;
use crate::walk::{Connections, Decision, Fate, Goal, Place, walk};
use crate::wanted::direction::Direction;
use crate::wanted::mode::Mode;
use crate::wanted::ruleset::ChainName;

/// A connection that a process of this namespace tried to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// Where it should have gone.
    pub to: SocketAddr,
    /// The address that the kernel's routing gives it, if that is known. It is the same as that of `to` if the connection
    /// stays within this namespace, and then it goes over the loopback interface.
    pub from: Option<IpAddr>,
    /// The user of the process.
    pub uid: u32,
    /// The group of the process.
    pub gid: u32,
}

/// What the rules do with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle<'a> {
    /// The rules can't be seen.
    Unseen(&'a NotKnown),
    /// There are no rules of proxy-init's, except perhaps in what can't be seen.
    NoRules(Option<&'a NotKnown>),
    /// There are rules of proxy-init's, but none for the connection's family.
    NoRulesFor(Family),
    /// One of the rules of proxy-init's chain lets it bypass the proxy.
    Ignored(Ignored, Place<'a>),
    /// A rule that runs before proxy-init's chain decides where it goes.
    Earlier(Place<'a>),
    /// The same, if the rule matches, which isn't known.
    PerhapsEarlier(Place<'a>),
    /// It gets to proxy-init's chain, and is perhaps dropped there or afterwards.
    Dropped(Place<'a>),
    /// It gets to proxy-init's chain, where a rule that isn't proxy-init's may send it elsewhere.
    Elsewhere(Place<'a>),
    /// It gets to proxy-init's chain, but no rule there redirects it.
    NotRedirected,
    /// No rule sends it to proxy-init's chain.
    NotReached,
    /// It is redirected to this port, or, without one, to the port that it was for.
    Redirected(Option<u16>, Place<'a>),
}

/// What a rule recognizes the connections by that it lets bypass the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ignored {
    /// This destination port.
    Port(u16),
    /// This destination address.
    Address(IpAddr),
    /// This user.
    User(u32),
    /// This group.
    Group(u32),
    /// The loopback interface.
    Loopback,
    /// Something else.
    Connection,
}

/// What the rules do with a connection. If proxy-init's rules are there in two modes, and one of them redirects it, that
/// one counts.
pub fn why(found: &Found, attempt: Attempt) -> Obstacle<'_> {
    let family = match attempt.to {
        SocketAddr::V4(_) => Family::V4,
        SocketAddr::V6(_) => Family::V6,
    };
    let mut obstacles = Mode::ALL
        .into_iter()
        .map(|mode| goal(mode, family))
        .filter(|goal| exists(found, *goal))
        .map(|goal| of(found, family, goal, attempt));
    let first = obstacles.next();
    let is_redirected = |obstacle: &Obstacle<'_>| matches!(obstacle, Obstacle::Redirected(..));
    if let Some(obstacle) = first.into_iter().chain(obstacles).find(is_redirected).or(first) {
        return obstacle;
    }
    if Mode::ALL.into_iter().any(|mode| found.holds(mode)) {
        return Obstacle::NoRulesFor(family);
    }
    match found.unseen(Subsystem::NfTables) {
        Some(unseen) => Obstacle::Unseen(unseen),
        None => Obstacle::NoRules(found.not_known.first()),
    }
}

/// The chain that outbound connections of a family have to get to in a mode.
fn goal(mode: Mode, family: Family) -> Goal<'static> {
    let (family, table) = mode.table(family);
    Goal {
        subsystem: mode.subsystem(),
        family,
        table,
        chain: ChainName::ProxyInitOutput,
    }
}

fn exists(found: &Found, goal: Goal<'_>) -> bool {
    found
        .table(goal.subsystem, goal.family, goal.table)
        .and_then(|table| table.chain(&Name::from(goal.chain.as_str())))
        .is_some()
}

fn of<'a>(found: &'a Found, family: Family, goal: Goal<'_>, attempt: Attempt) -> Obstacle<'a> {
    let walk = walk(found, family, Direction::Outbound, goal, connections(family, attempt));
    let (behind, before): (Vec<_>, Vec<_>) = walk.decisions.iter().partition(|decision| decision.behind_ours);
    let first = behind.first();
    let redirected = first.and_then(|first| redirected(first));
    match (before.first(), first, redirected) {
        (Some(earlier), _, _) if earlier.certain => Obstacle::Earlier(earlier.at),
        (_, Some(ours), _) if ours.certain && ours.fate == Fate::Accepted => {
            Obstacle::Ignored(ignored(attempt, ours.at), ours.at)
        }
        (Some(earlier), _, _) => Obstacle::PerhapsEarlier(earlier.at),
        (None, Some(_), Some(redirected)) => {
            let dropped = behind.iter().find(|later| later.fate == Fate::Dropped);
            dropped.map_or(redirected, |later| Obstacle::Dropped(later.at))
        }
        (None, Some(ours), None) if ours.fate == Fate::Dropped => Obstacle::Dropped(ours.at),
        (None, Some(ours), None) => Obstacle::Elsewhere(ours.at),
        (None, None, _) if walk.reached => Obstacle::NotRedirected,
        (None, None, _) => Obstacle::NotReached,
    }
}

/// The connections that the attempt may have been: it isn't known from which port, and by which device.
fn connections(family: Family, attempt: Attempt) -> Connections {
    let lo = Intervals::one(interface(LOOPBACK));
    let is_local = attempt.from == Some(attempt.to.ip()) || attempt.to.ip().is_loopback();
    let devices = match is_local {
        true => lo,
        false => Intervals::up_to(Field::OutInterface.largest()).without(&lo),
    };
    let mut connections = Connections::all(family, Direction::Outbound)
        .with(Field::Destination(family), &Intervals::one(address(attempt.to.ip())))
        .with(Field::DestinationPort, &Intervals::one(attempt.to.port().into()))
        .with(Field::Uid, &Intervals::one(attempt.uid.into()))
        .with(Field::Gid, &Intervals::one(attempt.gid.into()))
        .with(Field::OutInterface, &devices);
    if let Some(from) = attempt.from {
        connections = connections.with(Field::Source(family), &Intervals::one(address(from)));
    }
    connections
}

fn redirected<'a>(decision: &Decision<'a>) -> Option<Obstacle<'a>> {
    match decision.at.rule?.action {
        Action::Redirect(ports) if decision.fate == Fate::Mapped => {
            Some(Obstacle::Redirected(ports.map(|(first, _)| first), decision.at))
        }
        _ => None,
    }
}

/// What the rule looks at last.
fn ignored(attempt: Attempt, at: Place<'_>) -> Ignored {
    let conditions = at.rule.map(|rule| rule.conditions.as_slice()).unwrap_or_default();
    let looked_at = |condition: &Condition| match condition {
        Condition::In { field, .. } => match field {
            Field::DestinationPort => Some(Ignored::Port(attempt.to.port())),
            Field::Destination(_) => Some(Ignored::Address(attempt.to.ip())),
            Field::Uid => Some(Ignored::User(attempt.uid)),
            Field::Gid => Some(Ignored::Group(attempt.gid)),
            Field::OutInterface => Some(Ignored::Loopback),
            _ => None,
        },
        _ => None,
    };
    conditions
        .iter()
        .rev()
        .find_map(looked_at)
        .unwrap_or(Ignored::Connection)
}

/// What the rules do, as a clause.
impl fmt::Display for Obstacle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unseen(unseen) => write!(f, "the rules cannot be seen ({})", unseen.reason),
            Self::NoRules(unseen) => {
                f.write_str("no rules of proxy-init's in this namespace")?;
                match unseen {
                    Some(unseen) => write!(f, ", except perhaps in {} tables ({})", unseen.subsystem, unseen.reason),
                    None => Ok(()),
                }
            }
            Self::NoRulesFor(family) => write!(f, "no rules of proxy-init's for {family} in this namespace"),
            Self::Ignored(what, at) => write!(f, "{what} is ignored by {}", at),
            Self::Earlier(at) => write!(f, "an earlier rule takes it: {}", at),
            Self::PerhapsEarlier(at) => write!(f, "an earlier rule may take it: {}", at),
            Self::Dropped(at) => write!(f, "it may be dropped by {}", at),
            Self::Elsewhere(at) => write!(f, "it may go elsewhere: {}", at),
            Self::NotRedirected => write!(f, "no rule in {} redirects it", ChainName::ProxyInitOutput),
            Self::NotReached => write!(f, "no rule sends it to {}", ChainName::ProxyInitOutput),
            Self::Redirected(Some(port), at) => write!(f, "the rules redirect it to port {port}: {}", at),
            Self::Redirected(None, at) => write!(f, "the rules redirect it to this host: {}", at),
        }
    }
}

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(port) => write!(f, "port {port}"),
            Self::Address(address) => write!(f, "address {address}"),
            Self::User(uid) => write!(f, "user {uid}"),
            Self::Group(gid) => write!(f, "group {gid}"),
            Self::Loopback => f.write_str("the loopback interface"),
            Self::Connection => f.write_str("it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::found::expected::{base, xtables};
    use crate::rules::hook::Hook;
    use crate::rules::rule::Rule;
    use crate::rules::table::{Base, Chain, Policy, Subsystem, Table, TableFamily};
    use crate::wanted::config::{Config, OwnerId};
    use crate::wanted::plan::plan;

    /// linkerd-init's rules for user 2102 and group 2103 of the proxy, with some ports and a subnet that bypass it.
    fn installed() -> Found {
        let mut config = Config::new("4143".parse().unwrap(), "4140".parse().unwrap());
        config.proxy_uid = OwnerId::new(2102);
        config.proxy_gid = OwnerId::new(2103);
        config.ignored_outbound_ports = vec!["25".parse().unwrap(), "1400-1403".parse().unwrap()];
        config.ignored_outbound_subnets = vec!["198.51.100.0/24".parse().unwrap()];
        Found {
            tables: xtables(Subsystem::NfTables, &plan(&config)),
            not_known: Vec::new(),
        }
    }

    fn attempt(to: &str) -> Attempt {
        Attempt {
            to: to.parse().unwrap(),
            from: None,
            uid: 65534,
            gid: 65534,
        }
    }

    fn said(found: &Found, attempt: Attempt) -> String {
        why(found, attempt).to_string()
    }

    fn rule(conditions: Vec<Condition>, action: Action) -> Rule {
        Rule {
            conditions,
            action,
            comment: None,
            counters: None,
            handle: 0,
        }
    }

    fn to_port(port: u16) -> Condition {
        Condition::is(Field::DestinationPort, u128::from(port))
    }

    fn chain<'a>(found: &'a mut Found, family: Family, name: &str) -> &'a mut Chain {
        let table = found
            .tables
            .iter_mut()
            .find(|table| table.family == TableFamily::Ip(family));
        let mut chains = table.unwrap().chains.iter_mut();
        chains.find(|chain| chain.name == *name).unwrap()
    }

    /// A table of another program's with one base chain.
    fn other(base: Base, rules: Vec<Rule>) -> Table {
        Table {
            family: TableFamily::Inet,
            name: Name::from("other"),
            chains: vec![Chain {
                name: Name::from("out"),
                base: Some(base),
                comment: None,
                rules,
            }],
            ..installed().tables.remove(0)
        }
    }

    #[test]
    fn rules_that_are_right_redirect() {
        for to in ["192.0.2.2:1404", "[fd00::1]:20001"] {
            let found = installed();
            let obstacle = why(&found, attempt(to));
            assert!(
                matches!(obstacle, Obstacle::Redirected(Some(4140), _)),
                "{to}: {obstacle}"
            );
        }
    }

    #[test]
    fn each_thing_that_is_ignored_is_named() {
        let found = installed();
        let to = |to| attempt(to);
        let right = attempt("192.0.2.2:1404");
        for (attempt, want) in [
            (
                to("192.0.2.2:1401"),
                "port 1401 is ignored by `-A PROXY_INIT_OUTPUT -p tcp -m multiport --dports 25,1400:1403 ",
            ),
            (
                to("[fd00::1]:25"),
                "port 25 is ignored by `-A PROXY_INIT_OUTPUT -p tcp -m multiport --dports 25,1400:1403 ",
            ),
            (
                to("198.51.100.7:80"),
                "address 198.51.100.7 is ignored by `-A PROXY_INIT_OUTPUT -d 198.51.100.0/24 ",
            ),
            (
                Attempt { uid: 2102, ..right },
                "user 2102 is ignored by `-A PROXY_INIT_OUTPUT -m owner --uid-owner 2102 ",
            ),
            (
                Attempt { gid: 2103, ..right },
                "group 2103 is ignored by `-A PROXY_INIT_OUTPUT -m owner --gid-owner 2103 ",
            ),
            (
                to("127.0.0.1:1404"),
                "the loopback interface is ignored by `-A PROXY_INIT_OUTPUT -o lo ",
            ),
            (
                Attempt {
                    from: Some(right.to.ip()),
                    ..right
                },
                "the loopback interface is ignored by `-A PROXY_INIT_OUTPUT -o lo ",
            ),
        ] {
            let said = said(&found, attempt);
            assert!(said.starts_with(want), "{attempt:?}: {said}");
            let table = if attempt.to.is_ipv4() { "ip nat" } else { "ip6 nat" };
            assert!(
                said.ends_with(&format!("` in {table}, chain PROXY_INIT_OUTPUT")),
                "{said}"
            );
        }
    }

    #[test]
    fn no_rules_and_rules_that_cannot_be_seen_are_not_the_same() {
        let right = attempt("192.0.2.2:1404");
        let mut found = Found::default();
        assert_eq!(said(&found, right), "no rules of proxy-init's in this namespace");
        found.not_known.push(NotKnown {
            subsystem: Subsystem::Legacy,
            not_permitted: true,
            reason: "only root".to_owned(),
        });
        assert_eq!(
            said(&found, right),
            "no rules of proxy-init's in this namespace, except perhaps in legacy tables (only root)"
        );
        found.not_known.insert(
            0,
            NotKnown {
                subsystem: Subsystem::NfTables,
                not_permitted: true,
                reason: "EPERM".to_owned(),
            },
        );
        assert_eq!(said(&found, right), "the rules cannot be seen (EPERM)");

        let mut found = installed();
        found.tables.retain(|table| table.family == TableFamily::Ip(Family::V4));
        assert_eq!(
            said(&found, attempt("[fd00::1]:1404")),
            "no rules of proxy-init's for IPv6 in this namespace"
        );
        assert!(matches!(why(&found, right), Obstacle::Redirected(Some(4140), _)));
    }

    #[test]
    fn an_earlier_rule_takes_it_or_may_or_does_not() {
        let right = attempt("192.0.2.2:1404");
        for (conditions, want) in [
            (vec![to_port(1404)], "an earlier rule takes it: `-A OUTPUT "),
            (vec![], "an earlier rule takes it: `-A OUTPUT "),
            (
                vec![Condition::Unknown("-m statistic".to_owned())],
                "an earlier rule may take it: `-A OUTPUT ",
            ),
            (
                vec![to_port(1405)],
                "the rules redirect it to port 4140: `-A PROXY_INIT_OUTPUT ",
            ),
        ] {
            for action in [
                Action::Accept,
                Action::Return,
                Action::Redirect(Some((99, 99))),
                Action::Drop,
            ] {
                let mut found = installed();
                let foreign = rule(conditions.clone(), action);
                chain(&mut found, Family::V4, "OUTPUT").rules.insert(0, foreign.clone());
                let said = said(&found, right);
                assert!(said.starts_with(want), "{foreign:?}: {said}");
            }
        }
        // In a base chain of its own; an accept there doesn't matter.
        let early = Base {
            priority: -150,
            ..base(Hook::Output)
        };
        for (action, want) in [
            (Action::Redirect(Some((99, 99))), "an earlier rule takes it: `"),
            (Action::Accept, "the rules redirect it to port 4140: "),
        ] {
            let mut found = installed();
            found
                .tables
                .insert(0, other(early, vec![rule(vec![to_port(1404)], action)]));
            let said = said(&found, right);
            assert!(said.starts_with(want), "{said}");
            assert_eq!(
                said.contains("in inet other, chain out"),
                want.contains("earlier"),
                "{said}"
            );
        }
    }

    #[test]
    fn what_comes_after_our_chain_counts_only_if_it_can_drop() {
        let right = attempt("192.0.2.2:1404");
        for (policy, want) in [
            (Policy::Accept, "the rules redirect it to port 4140: "),
            (Policy::Drop, "it may be dropped by the policy of inet other, chain out"),
        ] {
            let mut found = installed();
            let late = Base {
                priority: 0,
                policy,
                ..base(Hook::Output)
            };
            let late = Base {
                kind: crate::rules::table::Kind::Filter,
                ..late
            };
            found.tables.push(other(late, Vec::new()));
            let said = said(&found, right);
            assert!(said.starts_with(want), "{said}");
        }
        // What is ignored by proxy-init's rules may be redirected by later ones.
        let mut found = installed();
        let late = rule(vec![], Action::Redirect(Some((99, 99))));
        chain(&mut found, Family::V4, "OUTPUT").rules.push(late);
        let said = said(&found, attempt("192.0.2.2:25"));
        assert!(said.starts_with("port 25 is ignored by `"), "{said}");
    }

    #[test]
    fn a_broken_installation_is_not_taken_for_a_whole_one() {
        let right = attempt("192.0.2.2:1404");
        let mut found = installed();
        chain(&mut found, Family::V4, "OUTPUT").rules.clear();
        assert_eq!(said(&found, right), "no rule sends it to PROXY_INIT_OUTPUT");
        let mut found = installed();
        chain(&mut found, Family::V4, "PROXY_INIT_OUTPUT").rules.pop();
        assert_eq!(said(&found, right), "no rule in PROXY_INIT_OUTPUT redirects it");
        let mut found = installed();
        let rules = &mut chain(&mut found, Family::V4, "PROXY_INIT_OUTPUT").rules;
        rules.insert(0, rule(vec![], Action::Nat("dnat to 10.0.0.1".to_owned())));
        assert!(said(&found, right).starts_with("it may go elsewhere: `"));
    }

    #[test]
    fn of_two_modes_the_one_that_redirects_counts() {
        let mut found = installed();
        let mut legacy = installed().tables;
        for table in &mut legacy {
            table.subsystem = Subsystem::Legacy;
        }
        chain(&mut found, Family::V4, "PROXY_INIT_OUTPUT").rules.clear();
        found.tables.extend(legacy);
        let said = said(&found, attempt("192.0.2.2:1404"));
        assert!(
            said.starts_with("the rules redirect it to port 4140") && said.contains("legacy ip nat"),
            "{said}"
        );
    }
}
