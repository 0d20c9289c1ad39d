//! A transaction as a list of edits: each is one netlink message, and the kernel applies them in order.

use std::fmt;

use ruleset::{Family, NAT_PRIORITY, Name, Set, TableFamily};

use super::rule::NewRule;
use super::set::{self, Element};
use super::table::MARK;
use super::uapi::*;
use super::{ChainId, TableId, header, user_data};
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

    fn write(&self, batch: &mut Batch) {
        match self {
            Edit::AddTable(table) => table.message(batch, libc::NFT_MSG_NEWTABLE, libc::NLM_F_CREATE, |to| {
                // No flags: 0 would wake up a dormant table (nf_tables_updtable in net/netfilter/nf_tables_api.c).
                user_data::write_comment(to, NFTA_TABLE_USERDATA, MARK.as_bytes());
            }),
            Edit::DeleteTable(table) => table.message(batch, libc::NFT_MSG_DELTABLE, 0, |_| ()),
            Edit::AddChain(table, chain) => table.message(batch, libc::NFT_MSG_NEWCHAIN, libc::NLM_F_CREATE, |to| {
                to.string(NFTA_CHAIN_NAME, chain.name);
                if let Some(number) = chain.hook.and_then(header::hook_number) {
                    to.nest(NFTA_CHAIN_HOOK, |to| {
                        to.be32(NFTA_HOOK_HOOKNUM, number);
                        to.be32(NFTA_HOOK_PRIORITY, NAT_PRIORITY as u32);
                    });
                    to.string(NFTA_CHAIN_TYPE, "nat");
                }
                user_data::write_comment(to, NFTA_CHAIN_USERDATA, MARK.as_bytes());
            }),
            Edit::DeleteChain(table, chain) => table.message(batch, libc::NFT_MSG_DELCHAIN, 0, |to| {
                to.string(NFTA_CHAIN_NAME, chain.name);
            }),
            Edit::FlushChain(table, chain) => table.message(batch, libc::NFT_MSG_DELRULE, 0, |to| {
                to.string(NFTA_RULE_CHAIN, chain.name);
            }),
            Edit::DeleteRule(table, chain, handle) => {
                table.message(batch, libc::NFT_MSG_DELRULE, 0, |to| {
                    to.string(NFTA_RULE_CHAIN, chain.as_bytes());
                    to.be64(NFTA_RULE_HANDLE, *handle);
                });
            }
            Edit::DeleteSet(table, set) => table.message(batch, libc::NFT_MSG_DELSET, 0, |to| {
                to.string(NFTA_SET_NAME, set.as_bytes());
            }),
            Edit::AddSet(table, set, id) => set::add(batch, *table, set, *id),
            Edit::AddElements(table, set, elements) => set::add_elements(batch, *table, set, elements),
            Edit::AddRule(new) => new.write(batch),
        }
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
        edit.write(&mut batch);
        if let Some(what) = batch.unwritable() {
            let (edit, what) = (edit.to_string(), what.clone());
            return Err(Unwritten { edit, what });
        }
    }
    batch.finish().map_err(|what| Unwritten { edit: "the batch".to_owned(), what })
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
                let option = if new.before.is_some() { "-I" } else { "-A" };
                write!(f, "{} {option} {} {new}", iptables(family), new.chain)
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
    use ruleset::{Action, Condition, Field, Hook, TCP};

    use super::*;
    use crate::netlink::message::Messages;

    /// By these numbers the kernel's answers name them. A trial has no message that ends it.
    #[test]
    fn messages_are_numbered_in_their_order() {
        let own = TableId { family: TableFamily::Inet, name: "proxy-init" };
        for (generation, numbers) in [(Some(Generation::FRESH), &[0, 1, 2, 3][..]), (None, &[0, 1, 2])] {
            let FinishedBatch(bytes) = batch(&[Edit::AddTable(own), Edit::DeleteTable(own)], generation).unwrap();
            let messages = Messages(&bytes).map(|message| message.unwrap().sequence);
            assert_eq!(messages.collect::<Vec<_>>(), numbers);
        }
    }

    #[test]
    fn the_edit_that_cannot_be_written_is_named() {
        let table = TableId { family: TableFamily::Inet, name: "proxy-init" };
        let chain = ChainId { name: "OUTPUT", hook: Some(Hook::Output) };
        let rules = [
            rule([], Action::Return),
            rule([Condition::NotUnderstood("ipsec in".to_owned())], Action::Drop),
            rule([Condition::NotUnderstood("socket".to_owned())], Action::Accept),
        ];
        let edits = rules.each_ref().map(|rule| Edit::AddRule(NewRule { table, chain, rule, sets: &[], before: None }));
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
            let edits = [Edit::AddRule(NewRule { table, chain, rule, sets: &[], before: None })];
            let FinishedBatch(bytes) = batch(&edits, None).unwrap();
            let attributes = Messages(&bytes).nth(1).unwrap().unwrap().attributes().unwrap();
            assert_eq!(attributes.find(NFTA_RULE_COMPAT).unwrap().is_some(), declares, "{table}: {rule:?}");
        }
    }

    #[test]
    fn an_edit_is_shown_as_the_command_that_it_stands_for() {
        let nat = TableId { family: TableFamily::Ip(Family::V6), name: "nat" };
        let own = TableId { family: TableFamily::Inet, name: "proxy-init" };
        let chain = ChainId { name: "OUTPUT", hook: Some(Hook::Output) };
        let (set, rule) = (ports("web", &[(80, 80)]), rule([], Action::Return));
        let add_rule = |table, before| Edit::AddRule(NewRule { table, chain, rule: &rule, sets: &[], before });
        for (edit, table, words) in [
            (Edit::AddTable(nat), nat, "nft add table ip6 nat"),
            (Edit::DeleteTable(own), own, "nft delete table inet proxy-init"),
            (Edit::AddChain(nat, chain), nat, "ip6tables-nft -t nat -N OUTPUT"),
            (Edit::FlushChain(nat, chain), nat, "ip6tables-nft -t nat -F OUTPUT"),
            (Edit::DeleteChain(nat, chain), nat, "ip6tables-nft -t nat -X OUTPUT"),
            (add_rule(nat, None), nat, "ip6tables-nft -t nat -A OUTPUT -j RETURN"),
            (add_rule(nat, Some(7)), nat, "ip6tables-nft -t nat -I OUTPUT -j RETURN"),
            (Edit::AddChain(own, chain), own, "nft add chain inet proxy-init OUTPUT"),
            (Edit::FlushChain(own, chain), own, "nft flush chain inet proxy-init OUTPUT"),
            (Edit::DeleteChain(own, chain), own, "nft delete chain inet proxy-init OUTPUT"),
            (add_rule(own, Some(7)), own, "nft add rule inet proxy-init OUTPUT return"),
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
