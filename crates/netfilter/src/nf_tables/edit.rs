//! A transaction as a list of edits: each is one netlink message, and the kernel applies them in order.

use std::fmt;

use nftnl::{Chain, ChainType, MsgType, Rule, Table};
use ruleset::{Family, Hook, NAT_PRIORITY, Name, Set, TableFamily};

use super::rule::NewRule;
use super::set::{self, Element};
use super::table::MARK;
use super::uapi::*;
use super::{ChainId, TableId, c_string, header, user_data};
use crate::netlink::message::Unwritable;
use crate::netlink::{Batch, FinishedBatch, Generation};

pub enum Edit<'a> {
    /// Make the table, with the mark, unless it exists.
    AddTable(TableId),
    DeleteTable(TableId),
    /// Make a chain, with the mark, unless it exists. With a hook, it is a nat chain at the priority of iptables' own. An
    /// existing base chain keeps its policy; a new one accepts.
    AddChain(TableId, ChainId),
    FlushChain(TableId, ChainId),
    /// Delete an empty chain to which no rule jumps.
    DeleteChain(TableId, ChainId),
    AddRule(NewRule<'a>),
    /// Delete the rule that has this handle from a chain, whichever program made it.
    DeleteRule(TableId, Name, u64),
    /// Make a set, which has this number in the batch.
    AddSet(TableId, &'a Set, u32),
    AddElements(TableId, &'a Set, Vec<Element>),
    DeleteSet(TableId, Name),
}

impl Edit<'_> {
    pub fn table(&self) -> TableId {
        match self {
            Edit::AddTable(table)
            | Edit::DeleteTable(table)
            | Edit::AddChain(table, _)
            | Edit::FlushChain(table, _)
            | Edit::DeleteChain(table, _)
            | Edit::DeleteRule(table, ..)
            | Edit::AddSet(table, ..)
            | Edit::AddElements(table, ..)
            | Edit::DeleteSet(table, _) => *table,
            Edit::AddRule(new) => new.table,
        }
    }

    /// Adds the one message of the edit.
    fn write(&self, batch: &mut Batch) -> Result<(), Unwritable> {
        let TableId { name, family } = self.table();
        let table = Table::new(c_string(name)?, header::protocol(family));
        let mark = user_data::of_comment(MARK.as_bytes())?;
        match self {
            // It has flags, none: they would wake up a dormant table. There is none where this is planned, by what was
            // read at the batch's generation.
            Edit::AddTable(_) => batch.add(&table, MsgType::Add, libc::NLM_F_CREATE, &[(NFTA_TABLE_USERDATA, &mark)]),
            Edit::DeleteTable(_) => batch.add(&table, MsgType::Del, 0, &[]),
            Edit::AddChain(_, chain) => {
                let mut object = Chain::new(c_string(chain.name)?, &table);
                if let Some(hook) = chain.hook {
                    object.set_hook(of_base_chain(hook)?, NAT_PRIORITY);
                    object.set_type(ChainType::Nat);
                }
                batch.add(&object, MsgType::Add, libc::NLM_F_CREATE, &[(NFTA_CHAIN_USERDATA, &mark)])
            }
            Edit::DeleteChain(_, chain) => batch.add(&Chain::new(c_string(chain.name)?, &table), MsgType::Del, 0, &[]),
            Edit::FlushChain(_, chain) => {
                let chain = Chain::new(c_string(chain.name)?, &table);
                batch.add(&Rule::new(&chain), MsgType::Del, 0, &[])
            }
            Edit::DeleteRule(_, chain, handle) => {
                let chain = Chain::new(c_string(chain.as_bytes())?, &table);
                let mut rule = Rule::new(&chain);
                rule.set_handle(*handle);
                batch.add(&rule, MsgType::Del, 0, &[])
            }
            Edit::AddRule(new) => new.write(batch, &table),
            Edit::AddSet(_, set, id) => set::add(batch, &table, set, *id),
            Edit::AddElements(_, set, elements) => set::add_elements(batch, &table, set, elements),
            Edit::DeleteSet(_, name) => set::delete(batch, &table, name),
        }
    }
}

/// The hook of a base chain, as libnftnl has it.
fn of_base_chain(hook: Hook) -> Result<nftnl::Hook, Unwritable> {
    match hook {
        Hook::Prerouting => Ok(nftnl::Hook::PreRouting),
        Hook::Output => Ok(nftnl::Hook::Out),
        other => Err(Unwritable(format!("a nat chain at {other}"))),
    }
}

#[derive(Debug)]
pub struct Unwritten {
    /// The edit, as the command that it stands for.
    pub edit: String,
    pub what: Unwritable,
}

/// The edits as a batch: message n is edit n, counted from 1. The kernel commits it at this generation alone; without one,
/// it only checks it. The error is the first edit that can't be written.
pub fn batch(edits: &[Edit<'_>], generation: Option<Generation>) -> Result<FinishedBatch, Unwritten> {
    let mut batch = Batch::begin(generation);
    for edit in edits {
        edit.write(&mut batch).map_err(|what| Unwritten { edit: edit.to_string(), what })?;
    }
    Ok(batch.finish())
}

/// The command that the edit stands for: iptables' in the tables of one family, nft's elsewhere.
impl fmt::Display for Edit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.table();
        match (self, table.family) {
            (Edit::AddTable(_), _) => write!(f, "nft add table {table}"),
            (Edit::DeleteTable(_), _) => write!(f, "nft delete table {table}"),
            (Edit::DeleteRule(_, chain, handle), _) => write!(f, "nft delete rule {table} {chain} handle {handle}"),
            (Edit::AddSet(_, set, _), _) => write!(f, "nft add set {table} {}", set.name),
            (Edit::DeleteSet(_, set), _) => write!(f, "nft delete set {table} {set}"),
            (Edit::AddElements(_, set, _), _) => write!(f, "nft add element {table} {}", set.name),
            (Edit::AddChain(_, chain), TableFamily::Ip(family)) => write!(f, "{} -N {chain}", iptables(family)),
            (Edit::FlushChain(_, chain), TableFamily::Ip(family)) => write!(f, "{} -F {chain}", iptables(family)),
            (Edit::DeleteChain(_, chain), TableFamily::Ip(family)) => write!(f, "{} -X {chain}", iptables(family)),
            (Edit::AddRule(new), TableFamily::Ip(family)) => {
                write!(f, "{} -A {} {new}", iptables(family), new.chain)
            }
            (Edit::AddChain(_, chain), _) => write!(f, "nft add chain {table} {chain}"),
            (Edit::FlushChain(_, chain), _) => write!(f, "nft flush chain {table} {chain}"),
            (Edit::DeleteChain(_, chain), _) => write!(f, "nft delete chain {table} {chain}"),
            (Edit::AddRule(new), _) => write!(f, "nft add rule {table} {} {new}", new.chain),
        }
    }
}

fn iptables(family: Family) -> String {
    format!("{}-nft -t nat", family.iptables())
}

#[cfg(test)]
mod tests {
    use ruleset::testing::{ports, rule};
    use ruleset::{Action, Condition, Field, Hook, Label, TCP};

    use super::*;
    use crate::netlink::message::Messages;

    /// By these numbers the kernel's answers name them. A trial has no message that ends it.
    #[test]
    fn messages_are_numbered_in_their_order() {
        let own = TableId { family: TableFamily::Inet, name: "proxy-init" };
        for (generation, numbers) in [(Some(Generation::FRESH), &[0, 1, 2, 3][..]), (None, &[0, 1, 2])] {
            let batch = batch(&[Edit::AddTable(own), Edit::DeleteTable(own)], generation).unwrap();
            let messages = Messages(batch.bytes()).map(|message| message.unwrap().sequence);
            assert_eq!(messages.collect::<Vec<_>>(), numbers);
        }
    }

    #[test]
    fn the_edit_that_cannot_be_written_is_named() {
        let table = TableId { family: TableFamily::Inet, name: "proxy-init" };
        let chain = ChainId { name: "OUTPUT", hook: Some(Hook::Output) };
        let rules = [
            rule([], Action::Return),
            rule([Condition::NotUnderstood(Label::expression("xfrm"))], Action::Drop),
            rule([Condition::NotUnderstood(Label::expression("socket"))], Action::Accept),
        ];
        let edits = rules.each_ref().map(|rule| Edit::AddRule(NewRule { table, chain, rule, sets: &[] }));
        let unwritten = batch(&edits, None).err().unwrap();
        assert_eq!(unwritten.edit, edits[1].to_string());
    }

    /// xtables' matches ask for that; nft writes no such thing.
    #[test]
    fn a_rule_of_xtables_declares_that_it_is_for_tcp() {
        let nat = TableId { family: TableFamily::Ip(Family::V4), name: "nat" };
        let own = TableId { family: TableFamily::Inet, name: "proxy-init" };
        let chain = ChainId { name: "OUTPUT", hook: Some(Hook::Output) };
        let tcp = rule([Condition::is(Field::Protocol, TCP)], Action::Return);
        let any = rule([], Action::Return);
        for (table, rule, declares) in [(nat, &tcp, true), (nat, &any, false), (own, &tcp, false)] {
            let edits = [Edit::AddRule(NewRule { table, chain, rule, sets: &[] })];
            let batch = batch(&edits, None).unwrap();
            let attributes = Messages(batch.bytes()).nth(1).unwrap().unwrap().attributes().unwrap();
            assert_eq!(attributes.find(NFTA_RULE_COMPAT).unwrap().is_some(), declares, "{table}: {rule:?}");
        }
    }

    #[test]
    fn an_edit_is_shown_as_the_command_that_it_stands_for() {
        let nat = TableId { family: TableFamily::Ip(Family::V6), name: "nat" };
        let own = TableId { family: TableFamily::Inet, name: "proxy-init" };
        let chain = ChainId { name: "OUTPUT", hook: Some(Hook::Output) };
        let (set, rule) = (ports("web", &[(80, 80)]), rule([], Action::Return));
        let add_rule = |table| Edit::AddRule(NewRule { table, chain, rule: &rule, sets: &[] });
        for (edit, table, words) in [
            (Edit::AddTable(nat), nat, "nft add table ip6 nat"),
            (Edit::DeleteTable(own), own, "nft delete table inet proxy-init"),
            (Edit::AddChain(nat, chain), nat, "ip6tables-nft -t nat -N OUTPUT"),
            (Edit::FlushChain(nat, chain), nat, "ip6tables-nft -t nat -F OUTPUT"),
            (Edit::DeleteChain(nat, chain), nat, "ip6tables-nft -t nat -X OUTPUT"),
            (add_rule(nat), nat, "ip6tables-nft -t nat -A OUTPUT -j RETURN"),
            (Edit::AddChain(own, chain), own, "nft add chain inet proxy-init OUTPUT"),
            (Edit::FlushChain(own, chain), own, "nft flush chain inet proxy-init OUTPUT"),
            (Edit::DeleteChain(own, chain), own, "nft delete chain inet proxy-init OUTPUT"),
            (add_rule(own), own, "nft add rule inet proxy-init OUTPUT return"),
            (Edit::AddSet(own, &set, 1), own, "nft add set inet proxy-init web"),
            (Edit::DeleteSet(own, set.name.clone()), own, "nft delete set inet proxy-init web"),
            (Edit::AddElements(own, &set, vec![(80, false)]), own, "nft add element inet proxy-init web"),
            (Edit::DeleteRule(nat, Name::from("OUTPUT"), 7), nat, "nft delete rule ip6 nat OUTPUT handle 7"),
        ] {
            assert_eq!(edit.to_string(), words);
            assert_eq!(edit.table(), table, "{words}");
        }
    }
}
