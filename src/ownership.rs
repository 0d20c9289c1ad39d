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
