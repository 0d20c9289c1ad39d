//! What of the kernel's is proxy-init's: rules, chains, and the ways to them.

use crate::found::{Found, Unseen};
use crate::rules::{Action, Chain, Family, NAT, Name, Rule, Subsystem, Table, TableFamily};
use crate::wanted::{ChainName, Mode, Purpose};

impl Found {
    /// The table that holds a mode's rules for packets of a family.
    pub fn table_of(&self, mode: Mode, family: Family) -> Option<&Table> {
        let (table_family, name) = mode.table(family);
        self.table(mode.subsystem(), table_family, name)
    }

    /// Whether proxy-init's rules in this mode were found.
    pub fn holds(&self, mode: Mode) -> bool {
        let is_ours = |chain: &Chain| ChainName::own(&chain.name).is_some();
        match mode {
            Mode::Native => self.table_of(mode, Family::V4).is_some(),
            Mode::Nft | Mode::Legacy => self
                .nat_tables(mode.subsystem())
                .any(|table| table.chains.iter().any(is_ours)),
        }
    }

    /// The modes in which they were found.
    pub fn holders(&self) -> impl Iterator<Item = Mode> {
        Mode::ALL.into_iter().filter(|&mode| self.holds(mode))
    }

    /// The first of these.
    pub fn holder(&self) -> Option<Mode> {
        self.holders().next()
    }

    /// Whether there is any rule of proxy-init's, in whichever mode. Its chains alone, as `iptables -F` leaves them, are
    /// none.
    pub fn has_rules(&self) -> bool {
        let is_ours = |table: &Table, chain: &Chain| {
            let is_own = ChainName::own(&chain.name).is_some();
            chain.rules.iter().any(|rule| is_own || rule.leads_to(table).is_some())
        };
        let has_ours = |table: &Table| table.chains.iter().any(|chain| is_ours(table, chain));
        self.holds(Mode::Native)
            || [Subsystem::NfTables, Subsystem::Legacy]
                .into_iter()
                .any(|subsystem| self.nat_tables(subsystem).any(has_ours))
    }

    /// How many rules the `ip nat` and `ip6 nat` tables of a subsystem hold together, as iptables-save would print
    /// them.
    pub fn nat_rules(&self, subsystem: Subsystem) -> usize {
        self.nat_tables(subsystem).flat_map(Table::rules).count()
    }

    fn nat_tables(&self, subsystem: Subsystem) -> impl Iterator<Item = &Table> {
        self.tables_of(subsystem)
            .filter(|table| matches!(table.family, TableFamily::Ip(_)) && table.name == *NAT)
    }

    /// What could not be seen.
    pub(crate) fn unseen_subsystems(&self) -> Vec<Subsystem> {
        self.not_known.iter().map(|unseen| unseen.subsystem).collect()
    }

    /// Why a subsystem could not be seen; none if it could.
    pub fn unseen(&self, subsystem: Subsystem) -> Option<&Unseen> {
        self.not_known.iter().find(|unseen| unseen.subsystem == subsystem)
    }
}

impl Table {
    /// proxy-init's chain of this name, or the base chain of this name.
    pub fn chain_of(&self, name: ChainName) -> Option<&Chain> {
        self.chains.iter().find(|chain| chain.name == *name.as_str())
    }
}

impl Rule {
    /// Whether it is proxy-init's or linkerd-init's, as its comment says.
    pub fn is_ours(&self) -> bool {
        let prefix = Purpose::PREFIX.as_bytes();
        self.comment
            .as_ref()
            .is_some_and(|comment| comment.as_bytes().starts_with(prefix))
    }

    /// Whether, in the chain of this name, it is proxy-init's own jump to `goal`, or linkerd-init's.
    pub(crate) fn is_own_jump(&self, chain: &Name, goal: ChainName) -> bool {
        let purpose = match goal {
            ChainName::ProxyInitOutput | ChainName::Output => Purpose::LookAtOutbound,
            ChainName::ProxyInitRedirect | ChainName::Prerouting => Purpose::LookAtInbound,
        };
        *chain == *goal.counterpart().as_str()
            && self.conditions.is_empty()
            && self.action == Action::Jump(Name::from(goal.as_str()))
            && Purpose::of(self) == Some(purpose)
    }

    /// Which of proxy-init's chains it leads to, by a jump, a goto or an entry of a verdict map; none if to none.
    pub fn leads_to(&self, table: &Table) -> Option<ChainName> {
        let mut outcomes = table.outcomes(&self.action);
        outcomes.find_map(|action| ChainName::own(action.target()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::examples;
    use crate::rules::{Field, Intervals, Set};
    use crate::wanted::tables::expected;
    use crate::wanted::{Config, plan};

    #[test]
    fn a_rule_is_ours_by_its_comment() {
        let rule = |comment| examples::commented(comment, examples::rule([], Action::Return));
        assert!(rule("proxy-init/ignore-loopback").is_ours());
        assert!(!rule("not proxy-init/ignore-loopback").is_ours());
        assert!(!examples::rule([], Action::Return).is_ours());
    }

    #[test]
    fn each_mode_has_its_subsystem_and_is_known_by_what_it_leaves() {
        let rulesets = plan(&Config::new("4143".parse().unwrap(), "4140".parse().unwrap()));
        let held = |tables: Vec<Table>| {
            let found = Found {
                tables,
                not_known: vec![],
            };
            let held = [Mode::Nft, Mode::Legacy, Mode::Native].map(|mode| found.holds(mode));
            assert_eq!(found.holders().count(), held.iter().filter(|&&held| held).count());
            assert!(found.holders().all(|mode| found.holds(mode)));
            held
        };
        assert_eq!(held(vec![]), [false, false, false]);
        assert_eq!(held(expected(Mode::Nft, &rulesets)), [true, false, false]);
        assert_eq!(held(expected(Mode::Legacy, &rulesets[1..])), [false, true, false]);
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
    fn flushed_chains_hold_no_rules_and_a_jump_to_one_is_a_rule() {
        let rulesets = plan(&Config::new("4143".parse().unwrap(), "4140".parse().unwrap()));
        let has_rules = |tables: Vec<Table>| {
            let not_known = vec![];
            Found { tables, not_known }.has_rules()
        };
        assert!(!has_rules(vec![]));
        for mode in [Mode::Nft, Mode::Legacy] {
            let mut tables = expected(mode, &rulesets);
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
        assert!(has_rules(expected(Mode::Native, &rulesets)));
        let other = examples::rule([], Action::Accept);
        assert!(!has_rules(vec![examples::table(
            "ip nat",
            vec![examples::chain("OUTPUT", vec![other])]
        )]));
    }

    #[test]
    fn nat_rules_are_counted_in_both_families() {
        let rulesets = plan(&Config::new("4143".parse().unwrap(), "4140".parse().unwrap()));
        let mut held = expected(Mode::Nft, &rulesets);
        held.push(examples::table(
            "ip filter",
            vec![ChainName::Output.holding(rulesets[0].rules_of(ChainName::Prerouting).cloned().collect())],
        ));
        let found = Found {
            tables: held,
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
