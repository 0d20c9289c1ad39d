//! Recognises our own tables, chains and rules, and the jumps that lead to them.

use netfilter::nf_tables::held::HeldRule;
use ruleset::{Action, Family, Line, NAT, Name, Rule, Ruleset, Table};

use crate::config::Mode;
use crate::plan::ChainName;

pub fn holds_rules<R>(ruleset: &Ruleset<R>, mode: Mode) -> bool {
    match mode {
        Mode::Native => mode.table_among(&ruleset.tables, Family::V4).is_some(),
        Mode::Nft | Mode::Legacy => {
            let mut chains = ruleset.nat_tables(mode.subsystem()).flat_map(|table| &table.chains);
            chains.any(|chain| ChainName::own(&chain.name).is_some())
        }
    }
}

pub fn holders<R>(ruleset: &Ruleset<R>) -> impl Iterator<Item = Mode> {
    Mode::ALL.iter().copied().filter(|&mode| holds_rules(ruleset, mode))
}

/// The rules of a table that are in our chains or lead there.
pub fn own_lines(table: &Table) -> impl Iterator<Item = Line<'_>> {
    let lines = table.chains.iter().flat_map(|chain| Line::all(table, chain));
    lines.filter(|line| ChainName::own(&line.chain.name).is_some() || leads_to(line.rule, line.table).is_some())
}

/// Returns true if a rule of this base chain is our own jump from there, or linkerd-init's.
pub fn is_own_jump(rule: &HeldRule, base: ChainName) -> bool {
    rule.is_unconditional
        && rule.target.as_ref().is_some_and(|target| *target == *base.counterpart().as_str())
        && base.jump_purpose().is_in(rule.comment.as_ref())
}

/// The same of a rule that is decoded.
pub fn is_jump_from(rule: &Rule, base: ChainName) -> bool {
    rule.conditions.is_empty()
        && rule.action == Action::Jump(Name::from(base.counterpart().as_str()))
        && base.jump_purpose().is_in(rule.comment.as_ref())
}

/// The chain of ours to which a rule leads, by a jump, a goto or an entry of a verdict map; none if to none.
pub fn target_of(rule: &HeldRule) -> Option<ChainName> {
    rule.targets().find_map(ChainName::own)
}

/// Finds the chain of ours to which a rule of this table leads, by a jump, a goto or an entry of a verdict map; none if
/// to none.
pub fn leads_to(rule: &Rule, table: &Table) -> Option<ChainName> {
    let mut outcomes = table.possible_actions(rule);
    outcomes.find_map(|action| ChainName::own(action.target()?))
}

/// The rules of a table that lead to our chain and aren't our own jumps to it, in nat tables as
/// xtables has them. Those within our chains don't count.
pub fn foreign_jumps(table: &Table) -> impl Iterator<Item = Line<'_>> {
    let is_nat = table.is_xtables() && table.name == *NAT;
    own_lines(table).filter(move |line| {
        let is_others = is_nat && ChainName::own(&line.chain.name).is_none();
        let goal = leads_to(line.rule, line.table).filter(|_| is_others);
        goal.is_some_and(|goal| {
            let base = goal.counterpart();
            line.chain.name != *base.as_str() || !is_jump_from(line.rule, base)
        })
    })
}

#[cfg(test)]
mod tests {
    use ruleset::testing::{self, chain, commented, rule, table, to_port};
    use ruleset::{Field, Intervals, Set, Subsystem};

    use super::*;
    use crate::config::Config;
    use crate::plan::tables::expected;

    #[test]
    fn each_mode_has_its_subsystem_and_is_known_by_what_it_leaves() {
        let config = Config::new("4143".parse().unwrap(), "4140".parse().unwrap());
        let held = |tables: Vec<Table>| {
            let ruleset = Ruleset { tables, not_known: vec![] };
            let held = [Mode::Nft, Mode::Legacy, Mode::Native].map(|mode| holds_rules(&ruleset, mode));
            assert_eq!(holders(&ruleset).count(), held.iter().filter(|&&held| held).count());
            assert!(holders(&ruleset).all(|mode| holds_rules(&ruleset, mode)));
            held
        };
        assert_eq!(held(vec![]), [false, false, false]);
        assert_eq!(held(expected(Mode::Nft, &config)), [true, false, false]);
        assert_eq!(held(expected(Mode::Legacy, &config)[1..].to_vec()), [false, true, false]);
        assert_eq!(held(vec![testing::table("inet proxy-init", vec![])]), [false, false, true]);
        assert_eq!(Mode::Native.subsystem(), Subsystem::NfTables);
        // Neither base chains nor tables of other names, nor of other families.
        let ours = || vec![testing::chain("PROXY_INIT_REDIRECT", vec![])];
        for table in [
            testing::table("ip nat", vec![testing::chain("PREROUTING", vec![])]),
            testing::table("ip mine", ours()),
            testing::table("inet nat", ours()),
            testing::table("ip proxy-init", ours()),
        ] {
            assert_eq!(held(vec![table]), [false, false, false]);
        }
    }

    #[test]
    fn every_way_to_proxy_inits_chains_is_seen() {
        let name = |text: &str| Name::from(text);
        let mut table = testing::table("ip nat", vec![]);
        let map = |name: &str, to: Action| Set {
            verdicts: vec![
                (Intervals::one(1), Action::Accept),
                (Intervals::one(2), Action::Jump(Name::from("KUBE-SERVICES"))),
                (Intervals::one(3), to),
            ],
            expires: false,
            ..testing::ports(name, &[])
        };
        table.sets = vec![
            map("jumping", Action::Jump(name("PROXY_INIT_OUTPUT"))),
            map("going", Action::Goto(name("PROXY_INIT_OUTPUT"))),
            map("others", Action::Goto(name("OUTPUT"))),
        ];
        let by_map = |map: &str| Action::Map(Field::DestinationPort, name(map));
        for (action, want) in [
            (Action::Jump(name("PROXY_INIT_REDIRECT")), Some(ChainName::ProxyInitRedirect)),
            (Action::Goto(name("PROXY_INIT_OUTPUT")), Some(ChainName::ProxyInitOutput)),
            (Action::Jump(name("OUTPUT")), None),
            (Action::Jump(name("KUBE-SERVICES")), None),
            (by_map("jumping"), Some(ChainName::ProxyInitOutput)),
            (by_map("going"), Some(ChainName::ProxyInitOutput)),
            (by_map("others"), None),
            (by_map("missing"), None),
            (Action::Accept, None),
        ] {
            assert_eq!(leads_to(&testing::rule([], action.clone()), &table), want, "{action:?}");
        }
    }

    #[test]
    fn jumps_of_other_programs_are_told_from_our_own() {
        let to = |chain: &str| Action::Jump(Name::from(chain));
        let ours = commented("proxy-init/install-proxy-init-output", rule([], to("PROXY_INIT_OUTPUT")));
        let chains = || {
            vec![
                chain("OUTPUT", vec![ours.clone(), rule([], to("MINE")), rule([to_port(80)], to("PROXY_INIT_OUTPUT"))]),
                chain("MINE", vec![rule([], Action::Goto(Name::from("PROXY_INIT_REDIRECT")))]),
                // Within our own.
                chain("PROXY_INIT_OUTPUT", vec![rule([], to("PROXY_INIT_REDIRECT"))]),
            ]
        };
        for (name, foreign) in [
            ("ip nat", &["-A OUTPUT -m tcp --dport 80 -j PROXY_INIT_OUTPUT", "-A MINE -g PROXY_INIT_REDIRECT"][..]),
            ("ip mine", &[]),
            ("ip filter", &[]),
        ] {
            let table = table(name, chains());
            let lines: Vec<_> = foreign_jumps(&table).map(|line| line.to_string()).collect();
            assert_eq!(lines, foreign, "{name}");
        }
    }
}
