//! The order of base chains.

use ruleset::Ruleset;
use ruleset::{Action, Base, Chain, Family, Hook, Kind, Policy, Rule, Table, TableFamily, nat_priority};

/// The base chains that a packet of this family goes through at a hook, in the order in which they run. Chains of
/// dormant tables aren't among them.
///
/// nat chains run together, whatever their priorities, where netfilter's own NAT hook is ([`nat_priority`]): their
/// priorities order them among themselves (`nf_nat_register_fn` in net/netfilter/nf_nat_core.c). Of chains with
/// equal priorities, the one that was hooked last runs first (`nf_hook_entries_grow` in net/netfilter/core.c;
/// measured on Linux 6.18). When chains of different tables were hooked isn't recorded, so that between tables
/// their order here is that of the tables, and may be wrong: see [`Slot::ties_with`].
pub fn chains_at(ruleset: &Ruleset, family: Family, hook: Hook) -> Vec<Slot<'_>> {
    chains_of(ruleset, hook, |of| of.sees(family))
}

/// The same, of the tables whose family `is_seen_by` accepts.
pub(super) fn chains_of(ruleset: &Ruleset, hook: Hook, is_seen_by: impl Fn(TableFamily) -> bool) -> Vec<Slot<'_>> {
    let mut slots: Vec<Slot<'_>> = Vec::new();
    for table in ruleset.tables.iter().rev().filter(|table| !table.dormant && is_seen_by(table.family)) {
        for chain in table.chains.iter().rev() {
            let base = chain.base.filter(|base| base.hook == hook);
            slots.extend(base.map(|base| Slot { table, chain, base }));
        }
    }
    slots.sort_by_key(Slot::order);
    slots
}

/// Returns true if connections of this family are tracked: they are if any rule needs that, even one that no packet
/// reaches (`nf_ct_netns_get` in net/netfilter/nf_conntrack_proto.c). A nat chain alone doesn't.
pub(super) fn tracks(ruleset: &Ruleset, family: Family) -> bool {
    let tables = ruleset.tables.iter().filter(|table| table.family != TableFamily::Netdev && table.family.sees(family));
    // Our tables, whose redirects need it, are among the last.
    let mut rules = tables.rev().flat_map(Table::rules);
    rules.any(|rule| needs_tracking(rule, family))
}

fn needs_tracking(rule: &Rule, family: Family) -> bool {
    rule.needs_tracking
        || rule.possible_actions().any(|action| match action {
            Action::Redirect(_) => true,
            // Connection tracking is for the family of its addresses.
            Action::Nat(nat) => nat.address().is_none_or(|address| Family::of(address) == family),
            _ => false,
        })
}

/// A base chain in the order of its hook.
#[derive(Debug, Clone, Copy)]
pub struct Slot<'a> {
    pub table: &'a Table,
    pub chain: &'a Chain,
    pub base: Base,
}

impl PartialEq for Slot<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.chain.name == other.chain.name && self.table.is(other.table)
    }
}

impl Eq for Slot<'_> {}

impl Slot<'_> {
    /// The key by which the kernel orders a hook's chains.
    pub fn order(&self) -> (i32, i32) {
        match self.base.kind {
            Kind::Nat => (nat_priority(self.base.hook), self.base.priority),
            Kind::Filter => (self.base.priority, self.base.priority),
        }
    }

    /// Returns true if the order of the two isn't known.
    pub fn ties_with(&self, other: &Self) -> bool {
        self.order() == other.order() && !self.table.is(other.table)
    }

    pub(super) fn is_nat(&self) -> bool {
        self.base.kind == Kind::Nat
    }

    /// Returns true if the chain leaves every packet alone.
    fn is_blank(&self) -> bool {
        self.chain.rules.is_empty() && self.base.policy == Policy::Accept
    }
}

/// The orders in which some base chains of a hook may run that have the same place in its order.
#[derive(Debug)]
pub(super) struct Orders<'a> {
    pub(super) known: Vec<Vec<Slot<'a>>>,
    /// There are too many to try: these are only some.
    pub(super) are_more: bool,
}

/// The chains of a hook, as [`chains_at`] has them, by their place in its order. Those that leave every packet
/// alone are left out.
pub(super) fn places(mut slots: Vec<Slot<'_>>) -> Vec<Vec<Slot<'_>>> {
    slots.retain(|slot| !slot.is_blank());
    let places = slots.chunk_by(|one, other| one.order().0 == other.order().0);
    places.map(<[_]>::to_vec).collect()
}

/// Divides the chains of a place by the knowledge of their order. Whether a filter chain with the priority of
/// netfilter's NAT hook runs before the nat chains, which all run there, isn't known: nothing records when that hook
/// was made.
pub(super) fn orders<'a>(place: &[Slot<'a>]) -> Vec<Orders<'a>> {
    let (nat, filter): (Vec<Slot<'_>>, Vec<Slot<'_>>) = place.iter().partition(|slot| slot.is_nat());
    if nat.is_empty() || filter.is_empty() {
        return place.chunk_by(|one, other| one.order() == other.order()).map(arrangements).collect();
    }
    let (nat, filter) = (arrangements(&nat), arrangements(&filter));
    let mut known = Vec::new();
    for order in &filter.known {
        for place in 0..=order.len() {
            let (before, after) = order.split_at(place);
            known.extend(nat.known.iter().map(|nat| [before, nat, after].concat()));
        }
    }
    let are_more = nat.are_more || filter.are_more || known.len() > MOST;
    known.truncate(MOST);
    vec![Orders { known, are_more }]
}

/// The most orders that are tried.
const MOST: usize = 24;

/// The orders in which chains of one kind may run.
fn arrangements<'a>(slots: &[Slot<'a>]) -> Orders<'a> {
    let mut known: Vec<Vec<Slot<'a>>> = vec![Vec::new()];
    for _ in slots {
        let mut longer = Vec::new();
        for order in known {
            for (index, next) in slots.iter().enumerate().filter(|(_, slot)| !order.contains(slot)) {
                let mut before = slots.iter().take(index);
                if before.all(|slot| slot.ties_with(next) || order.contains(slot)) {
                    longer.push([order.as_slice(), &[*next]].concat());
                }
            }
        }
        known = longer;
        if known.len() > MOST {
            // In one of these two, any chain runs before any other.
            let reversed = slots.iter().rev().copied().collect();
            return Orders { known: vec![slots.to_vec(), reversed], are_more: true };
        }
    }
    Orders { known, are_more: false }
}

pub(super) fn is_one_table(slots: &[Slot<'_>]) -> bool {
    let mut pairs = slots.iter().zip(slots.iter().skip(1));
    pairs.all(|(one, other)| one.table.is(other.table))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ruleset::testing::{base, chain, rule, table};

    /// The chains at a hook, as `table/chain`.
    fn order(tables: &[Table], family: Family, hook: Hook) -> Vec<String> {
        let ruleset = Ruleset { tables: tables.to_vec(), not_known: vec![] };
        let slots = chains_at(&ruleset, family, hook);
        slots.iter().map(|slot| format!("{}/{}", slot.table, slot.chain.name)).collect()
    }

    #[test]
    fn chains_run_by_their_priorities_and_nat_chains_together() {
        let prerouting = |name, kind, priority| base(name, kind, Hook::Prerouting, priority, vec![]);
        let tables = [
            table(
                "inet mine",
                vec![
                    prerouting("late", Kind::Filter, -99),
                    // Where its priority says nothing against filter chains, but against nat chains.
                    prerouting("nat-last", Kind::Nat, 300),
                    prerouting("nat-first", Kind::Nat, -300),
                    prerouting("early", Kind::Filter, -101),
                    chain("regular", vec![]),
                    base("out", Kind::Filter, Hook::Output, 0, vec![]),
                ],
            ),
            table("ip nat", vec![prerouting("PREROUTING", Kind::Nat, -100)]),
            table("ip6 nat", vec![prerouting("PREROUTING", Kind::Nat, -100)]),
        ];
        assert_eq!(
            order(&tables, Family::V4, Hook::Prerouting),
            ["inet mine/early", "inet mine/nat-first", "ip nat/PREROUTING", "inet mine/nat-last", "inet mine/late",]
        );
        assert_eq!(
            order(&tables, Family::V6, Hook::Prerouting),
            ["inet mine/early", "inet mine/nat-first", "ip6 nat/PREROUTING", "inet mine/nat-last", "inet mine/late",]
        );
        assert_eq!(order(&tables, Family::V4, Hook::Output), ["inet mine/out"]);
        assert!(order(&tables, Family::V4, Hook::Forward).is_empty());
        let mut tables = tables;
        tables[0].dormant = true;
        assert_eq!(order(&tables, Family::V4, Hook::Prerouting), ["ip nat/PREROUTING"]);
    }

    /// Source NAT has a place of its own (100), after filter chains at 0.
    #[test]
    fn chains_of_source_nat_run_at_100() {
        let chains = |hook| {
            vec![
                base("nat", Kind::Nat, hook, -300, vec![]),
                base("at-99", Kind::Filter, hook, 99, vec![]),
                base("at-101", Kind::Filter, hook, 101, vec![]),
            ]
        };
        for hook in [Hook::Input, Hook::Postrouting] {
            let tables = [table("ip mine", chains(hook))];
            let want = ["ip mine/at-99", "ip mine/nat", "ip mine/at-101"];
            assert_eq!(order(&tables, Family::V4, hook), want, "{hook}");
        }
    }

    #[test]
    fn of_equal_priorities_the_later_chain_runs_first() {
        let at_0 = |name| base(name, Kind::Filter, Hook::Output, 0, vec![]);
        let tables = [table("inet one", vec![at_0("a"), at_0("b")]), table("inet two", vec![at_0("c")])];
        assert_eq!(order(&tables, Family::V4, Hook::Output), ["inet two/c", "inet one/b", "inet one/a"]);
    }

    #[test]
    fn the_order_is_unknown_only_between_tables() {
        let output = |name, kind, priority| base(name, kind, Hook::Output, priority, vec![]);
        let ruleset = Ruleset {
            tables: vec![
                table(
                    "inet one",
                    vec![output("a", Kind::Filter, 0), output("b", Kind::Filter, 0), output("nat", Kind::Nat, 0)],
                ),
                table(
                    "inet two",
                    vec![output("c", Kind::Filter, 0), output("d", Kind::Filter, 1), output("other-nat", Kind::Nat, 0)],
                ),
            ],
            not_known: vec![],
        };
        let slots = chains_at(&ruleset, Family::V4, Hook::Output);
        let ties = |one: &str, other: &str| {
            let slot = |name: &str| slots.iter().find(|slot| slot.chain.name == *name).unwrap();
            slot(one).ties_with(slot(other))
        };
        assert!(ties("a", "c") && ties("c", "b") && ties("nat", "other-nat"));
        assert!(!ties("a", "b"), "within a table it is known");
        assert!(!ties("a", "d"), "other priorities");
        assert!(!ties("a", "other-nat"), "a nat chain at 0 runs at -100");
    }

    /// A table for each of these names, whose chain has this kind and priority and a rule.
    fn tables(names: &[&str], kind: Kind, priority: i32) -> Vec<Table> {
        let one = |name: &&str| {
            let rules = vec![rule([], Action::Drop)];
            table(&format!("ip {name}"), vec![base(name, kind, Hook::Output, priority, rules)])
        };
        names.iter().map(one).collect()
    }

    /// Of the chains at output: in how many orders they may run, whether there are more, and whether each order is
    /// another one and has each chain once.
    fn count(tables: Vec<Table>) -> (usize, bool) {
        let ruleset = Ruleset { tables, not_known: vec![] };
        let places = places(chains_at(&ruleset, Family::V4, Hook::Output));
        let [place] = places.as_slice() else {
            panic!("not one place: {places:?}");
        };
        let [orders] = &orders(place)[..] else {
            panic!("not one set of orders");
        };
        for (index, order) in orders.known.iter().enumerate() {
            assert_eq!(order.len(), place.len());
            assert!(place.iter().all(|slot| order.contains(slot)));
            assert!(!orders.known[..index].contains(order), "{index}");
        }
        (orders.known.len(), orders.are_more)
    }

    #[test]
    fn every_order_is_tried_as_long_as_they_are_few() {
        let filter = |names: &[&str]| tables(names, Kind::Filter, 0);
        assert_eq!(count(filter(&["a"])), (1, false));
        assert_eq!(count(filter(&["a", "b"])), (2, false));
        assert_eq!(count(filter(&["a", "b", "c"])), (6, false));
        assert_eq!(count(filter(&["a", "b", "c", "d"])), (24, false));
        assert_eq!(count(filter(&["a", "b", "c", "d", "e"])), (2, true));
        // Those without a rule change nothing, unless their policy drops.
        let mut blank = filter(&["a", "b", "c", "d", "e"]);
        for table in &mut blank[2..] {
            table.chains[0].rules.clear();
        }
        assert_eq!(count(blank.clone()), (2, false));
        blank[4].chains[0].base.as_mut().unwrap().policy = Policy::Drop;
        assert_eq!(count(blank), (6, false));
        // Those of one table keep their order, however many there are.
        let mut one = table("ip t", vec![]);
        one.chains = filter(&["a", "b", "c", "d", "e"]).into_iter().flat_map(|table| table.chains).collect();
        assert_eq!(count(vec![one]), (1, false));
    }

    #[test]
    fn nat_chains_run_together_before_between_or_after_filter_chains_of_their_priority() {
        let both = |nat: &[&str], filter: &[&str]| {
            let mut tables = [tables(nat, Kind::Nat, -100), tables(filter, Kind::Filter, -100)].concat();
            tables.sort_by(|one, other| one.name.cmp(&other.name));
            count(tables)
        };
        assert_eq!(both(&["n"], &["a"]), (2, false));
        assert_eq!(both(&["m", "n"], &["a"]), (4, false));
        assert_eq!(both(&["n"], &["a", "b"]), (6, false));
        assert_eq!(both(&["l", "m", "n"], &["a"]), (12, false));
        assert_eq!(both(&["n"], &["a", "b", "c"]), (24, false));
        assert_eq!(both(&["m", "n"], &["a", "b", "c"]), (24, true));
        assert_eq!(both(&["n"], &["a", "b", "c", "d"]), (24, true));
        // Of so many nat chains, not even two orders with a filter chain's are all.
        assert_eq!(both(&["k", "l", "m", "n", "o"], &["a"]), (4, true));
    }
}
