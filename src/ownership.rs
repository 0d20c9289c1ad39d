//! Recognises our own tables and chains, and the jumps that lead to them.

use netfilter::nf_tables::held::HeldRule;
use ruleset::{Family, Ruleset};

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

/// Returns true if a rule of this base chain is our own jump from there, or linkerd-init's.
pub fn is_own_jump(rule: &HeldRule, base: ChainName) -> bool {
    rule.is_unconditional
        && rule.target.as_ref().is_some_and(|target| *target == *base.counterpart().as_str())
        && base.jump_purpose().is_in(rule.comment.as_ref())
}

/// The chain of ours to which a rule leads, by a jump, a goto or an entry of a verdict map; none if to none.
pub fn target_of(rule: &HeldRule) -> Option<ChainName> {
    rule.targets().find_map(ChainName::own)
}

#[cfg(test)]
mod tests {
    use ruleset::{Subsystem, Table, testing};

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
}
