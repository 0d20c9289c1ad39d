//! Rules as nft lists them.

use std::fmt::{self, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::rules::config::Family;
use crate::rules::expected::{set_field, subnet};
use crate::rules::found::{Action, Chain, Condition, Field, Kind, Policy, Rule, Set, TCP, Table, Values};
use crate::rules::intervals::Intervals;

/// A rule in nft's language. Its counter is written without numbers.
pub struct NftRule<'a>(pub &'a Rule);

impl fmt::Display for NftRule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rule = self.0;
        let mut space = "";
        let mut word = |word: &dyn fmt::Display| {
            let written = write!(f, "{space}{word}");
            space = " ";
            written
        };
        for (index, condition) in rule.conditions.iter().enumerate() {
            if !is_implied(condition, rule.conditions.get(index + 1)) {
                word(&NftCondition(condition))?;
            }
        }
        if rule.counters.is_some() {
            word(&"counter")?;
        }
        match &rule.action {
            Action::Continue(None) => {}
            action => word(&NftAction(action))?,
        }
        match &rule.comment {
            Some(comment) => word(&format_args!("comment \"{comment}\"")),
            None => Ok(()),
        }
    }
}

/// Whether nft leaves a condition out because the next one implies it: `tcp dport 80` implies TCP, and `ip saddr`
/// implies IPv4.
fn is_implied(condition: &Condition, next: Option<&Condition>) -> bool {
    let Some(Condition::In { field: next, .. }) = next else {
        return false;
    };
    match next {
        Field::SourcePort | Field::DestinationPort => *condition == Condition::is(Field::Protocol, TCP),
        Field::Source(family) | Field::Destination(family) => *condition == is_of(*family),
        _ => false,
    }
}

/// The condition that a packet is of this family, for tables that see both.
pub fn is_of(family: Family) -> Condition {
    Condition::is(Field::Family, nfproto(family))
}

/// The number by which the kernel's chains know a family: `NFPROTO_IPV4` or `NFPROTO_IPV6` in linux/netfilter.h.
pub fn nfproto(family: Family) -> u128 {
    match family {
        Family::V4 => 2,
        Family::V6 => 10,
    }
}

struct NftCondition<'a>(&'a Condition);

impl fmt::Display for NftCondition<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Condition::In { field, values, negated } => {
                f.write_str(match field {
                    Field::Family => "meta nfproto",
                    Field::Protocol => "meta l4proto",
                    Field::Source(Family::V4) => "ip saddr",
                    Field::Source(Family::V6) => "ip6 saddr",
                    Field::Destination(Family::V4) => "ip daddr",
                    Field::Destination(Family::V6) => "ip6 daddr",
                    Field::SourcePort => "tcp sport",
                    Field::DestinationPort => "tcp dport",
                    Field::Uid => "meta skuid",
                    Field::Gid => "meta skgid",
                    Field::InInterface => "iifname",
                    Field::OutInterface => "oifname",
                })?;
                f.write_str(if *negated { " != " } else { " " })?;
                match values {
                    Values::Set(name) => write!(f, "@{name}"),
                    Values::Listed(list) => match list.as_slice() {
                        [interval] => f.write_str(&element(*field, *interval)),
                        list => {
                            let list: Vec<_> = list.iter().map(|&interval| element(*field, interval)).collect();
                            write!(f, "{{ {} }}", list.join(", "))
                        }
                    },
                }
            }
            Condition::Fixed { text, .. } | Condition::Unknown(text) => f.write_str(text),
        }
    }
}

/// Numbers of a field as nft writes them: one, or an interval.
pub fn element(field: Field, (first, last): (u128, u128)) -> String {
    match field {
        Field::InInterface | Field::OutInterface => format!("\"{}\"", interface_name(first, last)),
        Field::Source(family) | Field::Destination(family) if first != last => match subnet(family, (first, last)) {
            Some(subnet) => subnet.to_string(),
            None => format!("{}-{}", number(field, first), number(field, last)),
        },
        _ if first == last => number(field, first),
        _ => format!("{}-{}", number(field, first), number(field, last)),
    }
}

fn number(field: Field, number: u128) -> String {
    match field {
        Field::Family if number == nfproto(Family::V4) => "ipv4".to_owned(),
        Field::Family if number == nfproto(Family::V6) => "ipv6".to_owned(),
        Field::Protocol if number == TCP => "tcp".to_owned(),
        Field::Protocol if number == 17 => "udp".to_owned(),
        Field::Source(Family::V4) | Field::Destination(Family::V4) => Ipv4Addr::from_bits(number as u32).to_string(),
        Field::Source(Family::V6) | Field::Destination(Family::V6) => Ipv6Addr::from_bits(number).to_string(),
        _ => number.to_string(),
    }
}

/// The interface's name that these numbers are; a prefix ends in `end`'s sign, an asterisk for nft.
pub fn interface_name(first: u128, last: u128) -> String {
    let bytes = first.to_be_bytes();
    let name: Vec<u8> = bytes.into_iter().take_while(|&byte| byte != 0).collect();
    let end = if first == last { "" } else { "*" };
    format!("{}{end}", crate::rules::found::Name::from(&name))
}

struct NftAction<'a>(&'a Action);

impl fmt::Display for NftAction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Action::Continue(effect) => f.write_str(effect.as_deref().unwrap_or("continue")),
            Action::Accept => f.write_str("accept"),
            Action::Drop => f.write_str("drop"),
            Action::Return => f.write_str("return"),
            Action::Jump(chain) => write!(f, "jump {chain}"),
            Action::Goto(chain) => write!(f, "goto {chain}"),
            Action::Redirect(None) => f.write_str("redirect"),
            Action::Redirect(Some((first, last))) if first == last => write!(f, "redirect to :{first}"),
            Action::Redirect(Some((first, last))) => write!(f, "redirect to :{first}-{last}"),
            Action::Untrack => f.write_str("notrack"),
            Action::Map(field, map) => {
                let condition = Condition::is(*field, Values::Set(map.clone()));
                let text = NftCondition(&condition).to_string();
                f.write_str(&text.replacen(" @", " vmap @", 1))
            }
            Action::Nat(text) | Action::Unknown(text) => f.write_str(text),
        }
    }
}

/// Hands the commands that would make a table's sets and rules to `tell`, one by one.
pub fn commands(table: &Table, mut tell: impl FnMut(fmt::Arguments<'_>)) {
    for set in &table.sets {
        let field = set_field(set);
        let elements = set.elements.as_ref().map(Intervals::as_slice).unwrap_or_default();
        let elements: Vec<_> = elements.iter().map(|&interval| set_element(field, interval)).collect();
        tell(format_args!(
            "nft add element {table} {} {{ {} }}",
            set.name,
            elements.join(", ")
        ));
    }
    for chain in &table.chains {
        for rule in &chain.rules {
            tell(format_args!("nft add rule {table} {} {}", chain.name, NftRule(rule)));
        }
    }
}

/// A script for `nft -f` that replaces the table by this one in one transaction.
pub fn script(table: &Table) -> String {
    let mut script = format!("table {table} {{\n}}\ndelete table {table}\ntable {table} {{\n");
    for set in &table.sets {
        let _ = writeln!(script, "{}", set_script(set));
    }
    let chains: Vec<_> = table.chains.iter().map(chain_script).collect();
    script + &chains.join("\n") + "}\n"
}

fn set_script(set: &Set) -> String {
    let elements = set
        .elements
        .as_ref()
        .map(|elements| elements.as_slice())
        .unwrap_or_default();
    let field = set_field(set);
    let (datatype, _) = datatype(field);
    let elements: Vec<_> = elements.iter().map(|&interval| set_element(field, interval)).collect();
    format!(
        "\tset {} {{\n\t\ttype {datatype}\n\t\tflags interval\n\t\telements = {{ {} }}\n\t}}\n",
        set.name,
        elements.join(", ")
    )
}

/// nft's name for the type of a set of these, and its number (`enum datatypes` in nftables' datatype.h).
pub fn datatype(field: Field) -> (&'static str, u32) {
    match field {
        Field::Source(Family::V4) | Field::Destination(Family::V4) => ("ipv4_addr", 7),
        Field::Source(Family::V6) | Field::Destination(Family::V6) => ("ipv6_addr", 8),
        _ => ("inet_service", 13),
    }
}

/// An element of a set as nft writes it: a number, or both ends of an interval.
pub fn set_element(field: Field, (first, last): (u128, u128)) -> String {
    if first == last {
        number(field, first)
    } else {
        format!("{}-{}", number(field, first), number(field, last))
    }
}

fn chain_script(chain: &Chain) -> String {
    let mut script = format!("\tchain {} {{\n", chain.name);
    if let Some(base) = chain.base {
        let kind = match base.kind {
            Kind::Nat => "nat",
            Kind::Filter => "filter",
        };
        let policy = match base.policy {
            Policy::Accept => "accept",
            Policy::Drop => "drop",
        };
        let _ = writeln!(
            script,
            "\t\ttype {kind} hook {} priority {}; policy {policy};",
            base.hook, base.priority
        );
    }
    for rule in &chain.rules {
        let _ = writeln!(script, "\t\t{}", NftRule(rule));
    }
    script + "\t}\n"
}
