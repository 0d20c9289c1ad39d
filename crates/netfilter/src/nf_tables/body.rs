//! What rules as iptables-nft writes them and rules as nft writes them have in common.

use packets::rules::nftables::{NftAction, NftCondition};
use packets::rules::{Action, Condition, Counters, Rule};

use super::expression::{Expression, Verdict};
use crate::netlink::message::Writer;

/// What a kernel lacks: the thing, its module, and the kernel option.
pub type Missing = (String, &'static str, &'static str);

/// Writes all of a rule, whatever the dialect: these write a condition, and where the connection is redirected to. Each
/// returns none for what it has no expressions for, which is refused, as is everything else that no dialect writes.
pub(super) fn write_rule(
    list: &mut Writer,
    rule: &Rule,
    condition: impl Fn(&mut Writer, &Condition) -> Option<()>,
    redirect: impl FnOnce(&mut Writer, Option<(u16, u16)>) -> Option<()>,
) {
    for effect in &rule.effects {
        list.refuse(effect.text().to_owned());
    }
    for one in &rule.conditions {
        if condition(list, one).is_none() {
            list.refuse(NftCondition(one).to_string());
        }
    }
    if let Some(Counters { packets, bytes }) = rule.counters {
        Expression::Counter { packets, bytes }.write(list);
    }
    match &rule.action {
        Action::Return => Expression::decide(Verdict::Return).write(list),
        Action::Jump(chain) => Expression::decide(Verdict::Jump(chain.as_bytes())).write(list),
        Action::Redirect(ports) if redirect(list, *ports).is_some() => {}
        other => list.refuse(NftAction(other).to_string()),
    }
}
