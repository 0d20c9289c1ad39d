//! Translates the rules of a ruleset into the vocabulary of what the kernel holds, and back: what a table looks like
//! once they are installed.

use ipnet::IpNet;

use crate::found::{Found, Unseen};
use crate::rules::family::Family;
use crate::rules::hook::{Hook, NAT_PRIORITY};
use crate::rules::name::Name;
use crate::rules::rule::{Action, Condition, Field, LOOPBACK, Rule as FoundRule, TCP, Values, interface};
use crate::rules::subnet::{addresses, subnet};
use crate::rules::table::{Base, Chain, Kind, Policy, Subsystem, Table, TableFamily};
use crate::wanted::config::{OwnerId, Port, PortRange};
use crate::wanted::mode::{Mode, NAT};
use crate::wanted::ruleset::{ChainName, Match, Multiport, Purpose, Rule, Ruleset, Target};

impl Found {
    /// The table that holds a mode's rules for packets of a family.
    pub fn table_of(&self, mode: Mode, family: Family) -> Option<&Table> {
        let (table_family, name) = mode.table(family);
        self.table(mode.subsystem(), table_family, name)
    }

    /// Whether proxy-init's rules in this mode were found.
    pub fn holds(&self, mode: Mode) -> bool {
        let is_ours = |chain: &Chain| ChainName::from_name(chain.name.as_bytes()).is_some_and(ChainName::is_ours);
        match mode {
            Mode::Native => self.table_of(mode, Family::V4).is_some(),
            Mode::Nft | Mode::Legacy => self
                .nat_tables(mode.subsystem())
                .any(|table| table.chains.iter().any(is_ours)),
        }
    }

    /// The mode whose chains of proxy-init's were found; of several, the first.
    pub fn holder(&self) -> Option<Mode> {
        Mode::ALL.into_iter().find(|&mode| self.holds(mode))
    }

    /// How many rules the `ip nat` and `ip6 nat` tables of a subsystem hold together, as iptables-save would print
    /// them.
    pub fn nat_rules(&self, subsystem: Subsystem) -> usize {
        let chains = self.nat_tables(subsystem).flat_map(|table| &table.chains);
        chains.map(|chain| chain.rules.len()).sum()
    }

    fn nat_tables(&self, subsystem: Subsystem) -> impl Iterator<Item = &Table> {
        self.tables_of(subsystem)
            .filter(|table| matches!(table.family, TableFamily::Ip(_)) && table.name == *NAT)
    }

    /// Why a subsystem could not be seen; none if it could.
    pub fn unseen(&self, subsystem: Subsystem) -> Option<&Unseen> {
        self.not_known.iter().find(|unseen| unseen.subsystem == subsystem)
    }
}

/// The nat tables that hold exactly these rulesets, as nft and legacy mode make them.
pub fn xtables(subsystem: Subsystem, rulesets: &[Ruleset]) -> Vec<Table> {
    rulesets.iter().map(|ruleset| table(subsystem, ruleset)).collect()
}

fn table(subsystem: Subsystem, ruleset: &Ruleset) -> Table {
    Table {
        chains: ruleset
            .chains
            .iter()
            .map(|chain| self::chain(chain.name, chain.rules.iter().map(found).collect()))
            .collect(),
        ..Table::new(subsystem, TableFamily::Ip(ruleset.family), Name::from(NAT))
    }
}

/// A chain as proxy-init makes it.
pub fn chain(name: ChainName, rules: Vec<FoundRule>) -> Chain {
    Chain {
        name: Name::from(name.as_str()),
        base: name.hook().map(base),
        comment: None,
        rules,
    }
}

/// How proxy-init hooks a base chain that it makes.
pub fn base(hook: Hook) -> Base {
    Base {
        kind: Kind::Nat,
        hook,
        priority: NAT_PRIORITY,
        policy: Policy::Accept,
    }
}

/// The rule as it is found once it is installed.
pub fn found(rule: &Rule) -> FoundRule {
    FoundRule {
        conditions: rule.matches.iter().map(condition).collect(),
        action: action(rule.target),
        comment: Some(Name::from(&rule.purpose.to_string())),
        counters: None,
        handle: 0,
    }
}

/// What a target does.
pub fn action(target: Target) -> Action {
    match target {
        Target::Return => Action::Return,
        Target::Redirect(port) => Action::Redirect(Some((port.get(), port.get()))),
        Target::Jump(chain) => Action::Jump(Name::from(chain.as_str())),
    }
}

/// What a match compares.
pub fn condition(of: &Match) -> Condition {
    match of {
        Match::Tcp => Condition::is(Field::Protocol, TCP),
        Match::DestinationPort(port) => Condition::is(Field::DestinationPort, u128::from(port.get())),
        Match::DestinationPorts(ports) => {
            let intervals = ports.ranges().iter().map(|&range| ports_of(range));
            Condition::is(Field::DestinationPort, Values::Listed(intervals.collect()))
        }
        Match::Source(net) => Condition::is(Field::Source(family(*net)), addresses(*net)),
        Match::Destination(net) => Condition::is(Field::Destination(family(*net)), addresses(*net)),
        Match::OutLoopback => Condition::is(Field::OutInterface, interface(LOOPBACK)),
        Match::UidOwner(id) => Condition::is(Field::Uid, u128::from(id.get())),
        Match::GidOwner(id) => Condition::is(Field::Gid, u128::from(id.get())),
    }
}

/// A range of ports as numbers.
pub fn ports_of(range: PortRange) -> (u128, u128) {
    (range.first().into(), range.last().into())
}

impl FoundRule {
    /// Whether it is proxy-init's or linkerd-init's, as its comment says.
    pub fn is_ours(&self) -> bool {
        let prefix = Purpose::PREFIX.as_bytes();
        self.comment
            .as_ref()
            .is_some_and(|comment| comment.as_bytes().starts_with(prefix))
    }

    /// The port of this host to which it redirects, if it is a single one.
    pub fn redirects_to(&self) -> Option<u16> {
        match self.action {
            Action::Redirect(Some((first, last))) if first == last => Some(first),
            _ => None,
        }
    }

    /// The same rule in xtables' vocabulary, if proxy-init or linkerd-init could have made it.
    pub fn as_rule(&self) -> Option<Rule> {
        let comment = std::str::from_utf8(self.comment.as_ref()?.as_bytes()).ok()?;
        let purpose = Purpose::from_comment(comment)?;
        let matches = self.conditions.iter().map(|condition| as_match(condition, &purpose));
        Some(Rule {
            matches: matches.collect::<Option<_>>()?,
            target: self.as_target()?,
            purpose,
        })
    }

    /// The target that its action stands for, if proxy-init's rules have such a target.
    pub fn as_target(&self) -> Option<Target> {
        match &self.action {
            Action::Return => Some(Target::Return),
            Action::Redirect(Some((first, last))) if first == last => Port::new(*first).map(Target::Redirect),
            Action::Jump(chain) => ChainName::from_name(chain.as_bytes()).map(Target::Jump),
            _ => None,
        }
    }

    /// Whether, in the chain of this name, it is proxy-init's own jump to `goal`, or linkerd-init's.
    pub(crate) fn is_own_jump(&self, chain: &Name, goal: ChainName) -> bool {
        *chain == *goal.counterpart().as_str()
            && self.conditions.is_empty()
            && self.action == action(Target::Jump(goal))
            && self.as_rule().is_some_and(|rule| {
                let purpose = match goal {
                    ChainName::ProxyInitOutput | ChainName::Output => Purpose::LookAtOutbound,
                    ChainName::ProxyInitRedirect | ChainName::Prerouting => Purpose::LookAtInbound,
                };
                rule.purpose == purpose
            })
    }

    /// Which of proxy-init's chains it leads to, by a jump, a goto or an entry of a verdict map; none if to none.
    pub fn leads_to(&self, table: &Table) -> Option<ChainName> {
        let ours = |name: &Name| ChainName::from_name(name.as_bytes()).filter(|chain| chain.is_ours());
        match &self.action {
            Action::Jump(chain) | Action::Goto(chain) => ours(chain),
            Action::Map(_, map) => table.set(map)?.verdicts.iter().find_map(|(_, action)| match action {
                Action::Jump(chain) | Action::Goto(chain) => ours(chain),
                _ => None,
            }),
            _ => None,
        }
    }
}

fn family(net: IpNet) -> Family {
    match net {
        IpNet::V4(_) => Family::V4,
        IpNet::V6(_) => Family::V6,
    }
}

fn as_match(condition: &Condition, purpose: &Purpose) -> Option<Match> {
    let Condition::In {
        field,
        values: Values::Listed(values),
        negated: false,
    } = condition
    else {
        return None;
    };
    let one = match values.as_slice() {
        [(first, last)] if first == last => Some(*first),
        _ => None,
    };
    let interval = match values.as_slice() {
        [interval] => Some(*interval),
        _ => None,
    };
    let id = || OwnerId::new(u32::try_from(one?).ok()?);
    match *field {
        Field::Protocol if one == Some(TCP) => Some(Match::Tcp),
        // A single port can be a `--dport` or a `--dports` with one entry; the purpose tells which.
        Field::DestinationPort if matches!(purpose, Purpose::IgnorePorts(_)) => {
            let port = |number| u16::try_from(number).ok();
            let range = |&(first, last): &(u128, u128)| PortRange::new(port(first)?, port(last)?);
            let ranges = values.iter().map(range).collect::<Option<Vec<_>>>()?;
            Multiport::new(ranges).map(Match::DestinationPorts)
        }
        Field::DestinationPort => Port::new(u16::try_from(one?).ok()?).map(Match::DestinationPort),
        Field::Source(family) => subnet(family, interval?).map(Match::Source),
        Field::Destination(family) => subnet(family, interval?).map(Match::Destination),
        Field::OutInterface if one == Some(interface(LOOPBACK)) => Some(Match::OutLoopback),
        Field::Uid => id().map(Match::UidOwner),
        Field::Gid => id().map(Match::GidOwner),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::examples;
    use crate::rules::intervals::Intervals;
    use crate::rules::set::Set;
    use crate::wanted::config::Config;
    use crate::wanted::plan::plan;

    #[test]
    fn a_rule_survives_the_way_there_and_back() {
        let mut config = Config::new("4143".parse().unwrap(), "4140".parse().unwrap());
        config.proxy_uid = OwnerId::new(2102);
        config.proxy_gid = OwnerId::new(7);
        config.redirected_ports = vec!["80".parse().unwrap(), "443".parse().unwrap()];
        config.ignored_inbound_ports = vec!["4190".parse().unwrap()];
        config.ignored_outbound_ports = vec!["0-65535".parse().unwrap(), "25".parse().unwrap()];
        config.ignored_inbound_subnets = ["10.1.2.3/8", "0.0.0.0/0", "::/0", "fd00:1::/45"]
            .map(|net| net.parse().unwrap())
            .into();
        config.ignored_outbound_subnets = ["192.0.2.7/32", "2001:db8::1/128"]
            .map(|net| net.parse().unwrap())
            .into();
        let mut count = 0;
        for ruleset in plan(&config) {
            for (_, rule) in ruleset.rules() {
                assert_eq!(found(rule).as_rule().as_ref(), Some(rule));
                count += 1;
            }
        }
        assert_eq!(count, 2 * 13);
    }

    #[test]
    fn each_mode_has_its_subsystem_and_is_known_by_what_it_leaves() {
        let rulesets = plan(&Config::new("4143".parse().unwrap(), "4140".parse().unwrap()));
        let held = |tables: Vec<Table>| {
            let found = Found {
                tables,
                not_known: vec![],
            };
            [Mode::Nft, Mode::Legacy, Mode::Native].map(|mode| found.holds(mode))
        };
        assert_eq!(held(vec![]), [false, false, false]);
        assert_eq!(held(xtables(Mode::Nft.subsystem(), &rulesets)), [true, false, false]);
        assert_eq!(
            held(xtables(Mode::Legacy.subsystem(), &rulesets[1..])),
            [false, true, false]
        );
        assert_eq!(
            held(vec![examples::table("inet proxy-init", vec![])]),
            [false, false, true]
        );
        assert_eq!(Mode::Native.subsystem(), Subsystem::NfTables);
        // Neither base chains nor tables of other names, nor of other families.
        let ours = || vec![examples::chain("PROXY_INIT_REDIRECT", vec![])];
        for table in [
            examples::table("ip nat", vec![examples::chain("PREROUTING", vec![])]),
            examples::table("ip mine", ours()),
            examples::table("inet nat", ours()),
            examples::table("ip proxy-init", ours()),
        ] {
            assert_eq!(held(vec![table]), [false, false, false]);
        }
    }

    #[test]
    fn nat_rules_are_counted_in_both_families() {
        let rulesets = plan(&Config::new("4143".parse().unwrap(), "4140".parse().unwrap()));
        let mut tables = xtables(Subsystem::NfTables, &rulesets);
        tables.push(examples::table(
            "ip filter",
            vec![chain(ChainName::Output, vec![found(&rulesets[0].chains[1].rules[0])])],
        ));
        let found = Found {
            tables,
            not_known: vec![Unseen {
                subsystem: Subsystem::Legacy,
                not_permitted: true,
                reason: "EPERM".to_owned(),
            }],
        };
        assert_eq!(found.nat_rules(Subsystem::NfTables), 2 * 5);
        assert_eq!(found.nat_rules(Subsystem::Legacy), 0);
        assert_eq!(
            found.unseen(Subsystem::Legacy).map(|unseen| unseen.reason.as_str()),
            Some("EPERM")
        );
        assert_eq!(found.unseen(Subsystem::NfTables), None);
    }

    #[test]
    fn tables_are_as_iptables_makes_them() {
        let rulesets = plan(&Config::new("4143".parse().unwrap(), "4140".parse().unwrap()));
        let tables = xtables(Subsystem::Legacy, &rulesets);
        let names: Vec<_> = tables.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["legacy ip nat", "legacy ip6 nat"]);
        let chains: Vec<_> = tables[0]
            .chains
            .iter()
            .map(|chain| (chain.name.to_string(), chain.base))
            .collect();
        let hooked = |hook| {
            Some(Base {
                kind: Kind::Nat,
                hook,
                priority: -100,
                policy: Policy::Accept,
            })
        };
        assert_eq!(
            chains,
            [
                ("PROXY_INIT_REDIRECT".to_owned(), None),
                ("PREROUTING".to_owned(), hooked(Hook::Prerouting)),
                ("PROXY_INIT_OUTPUT".to_owned(), None),
                ("OUTPUT".to_owned(), hooked(Hook::Output)),
            ]
        );
        let rule = &tables[0].chains[0].rules[0];
        assert_eq!(rule.conditions, [Condition::is(Field::Protocol, 6)]);
        assert_eq!(rule.action, Action::Redirect(Some((4143, 4143))));
        assert_eq!(
            rule.comment,
            Some(Name::from("proxy-init/redirect-all-incoming-to-proxy-port"))
        );
    }

    #[test]
    fn a_rule_is_proxy_inits_only_if_all_of_it_is() {
        let tcp = || Condition::is(Field::Protocol, TCP);
        let user = "proxy-init/ignore-proxy-user-id";
        let ports = "proxy-init/ignore-port-80";
        let redirect = "proxy-init/redirect-port-80-to-proxy-port";
        let is_ours = |comment: &str, conditions: Vec<Condition>, action| {
            let rule = FoundRule {
                conditions,
                ..examples::commented(comment, examples::rule([], action))
            };
            rule.as_rule().is_some()
        };
        let port = |first, last| Condition::is(Field::DestinationPort, (first, last));
        let listed = |list: &[(u128, u128)]| Condition::is(Field::DestinationPort, Values::Listed(list.to_vec()));
        for (comment, condition) in [
            (user, tcp()),
            (user, Condition::is(Field::Uid, 7)),
            (user, Condition::is(Field::Gid, 4_294_967_294)),
            (user, Condition::is(Field::OutInterface, interface(b"lo"))),
            (user, Condition::is(Field::Source(Family::V4), (0, 255))),
            (ports, port(80, 90)),
            (ports, listed(&[(80, 80), (90, 90)])),
            (redirect, port(80, 80)),
        ] {
            assert!(
                is_ours(comment, vec![condition.clone()], Action::Return),
                "{condition:?}"
            );
            assert!(!is_ours("mine", vec![condition.clone()], Action::Return));
            assert!(!is_ours(comment, vec![condition], Action::Accept));
        }
        for (comment, condition) in [
            (user, examples::not(tcp())),
            (user, Condition::is(Field::Protocol, 17)),
            (user, Condition::is(Field::Protocol, (6, 7))),
            (user, Condition::is(Field::Uid, 0)),
            (user, Condition::is(Field::Uid, (7, 8))),
            (user, Condition::is(Field::Gid, 4_294_967_296)),
            (user, Condition::is(Field::Source(Family::V4), (1, 2))),
            (user, Condition::is(Field::OutInterface, interface(b"eth0"))),
            (user, Condition::is(Field::InInterface, interface(b"lo"))),
            (user, Condition::is(Field::SourcePort, 80)),
            (
                user,
                Condition::is(Field::DestinationPort, Values::Set(Name::from("ports"))),
            ),
            (user, Condition::Unknown("-m recent".to_owned())),
            (ports, port(65535, 65536)),
            (redirect, port(80, 90)),
            (redirect, port(0, 0)),
            (redirect, listed(&[(80, 80), (90, 90)])),
        ] {
            assert!(
                !is_ours(comment, vec![condition.clone()], Action::Return),
                "{condition:?}"
            );
            assert!(!is_ours(comment, vec![tcp(), condition], Action::Return));
        }
    }

    #[test]
    fn actions_stand_for_targets() {
        let port = Port::new(4143).unwrap();
        for target in [
            Target::Return,
            Target::Redirect(port),
            Target::Jump(ChainName::ProxyInitOutput),
        ] {
            assert_eq!(examples::rule([], action(target)).as_target(), Some(target));
        }
        for action in [
            Action::Accept,
            Action::Redirect(None),
            Action::Redirect(Some((4143, 4144))),
            Action::Redirect(Some((0, 0))),
            Action::Jump(Name::from("KUBE-SERVICES")),
            Action::Goto(Name::from("PROXY_INIT_OUTPUT")),
        ] {
            assert_eq!(examples::rule([], action).as_target(), None);
        }
    }

    #[test]
    fn every_way_to_proxy_inits_chains_is_seen() {
        let name = |text: &str| Name::from(text);
        let mut table = examples::table("ip nat", vec![]);
        let map = |name: &str, to: Action| Set {
            verdicts: vec![
                (Intervals::one(1), Action::Accept),
                (Intervals::one(2), Action::Jump(Name::from("KUBE-SERVICES"))),
                (Intervals::one(3), to),
            ],
            expires: false,
            ..examples::ports(name, &[])
        };
        table.sets = vec![
            map("jumping", Action::Jump(name("PROXY_INIT_OUTPUT"))),
            map("going", Action::Goto(name("PROXY_INIT_OUTPUT"))),
            map("others", Action::Goto(name("OUTPUT"))),
        ];
        let by_map = |map: &str| Action::Map(Field::DestinationPort, name(map));
        for (action, want) in [
            (
                Action::Jump(name("PROXY_INIT_REDIRECT")),
                Some(ChainName::ProxyInitRedirect),
            ),
            (
                Action::Goto(name("PROXY_INIT_OUTPUT")),
                Some(ChainName::ProxyInitOutput),
            ),
            (Action::Jump(name("OUTPUT")), None),
            (Action::Jump(name("KUBE-SERVICES")), None),
            (by_map("jumping"), Some(ChainName::ProxyInitOutput)),
            (by_map("going"), Some(ChainName::ProxyInitOutput)),
            (by_map("others"), None),
            (by_map("missing"), None),
            (Action::Accept, None),
        ] {
            assert_eq!(examples::rule([], action.clone()).leads_to(&table), want, "{action:?}");
        }
    }
}
