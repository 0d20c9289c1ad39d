//! Rules as nft lists them.

use std::fmt::{self, Write as _};

use crate::family::Family;
use crate::field::Field;
use crate::name::Name;
use crate::rule::{Action, Condition, Nat, Rule, TCP, Values, span};
use crate::set::{Set, Shape, set_elements, set_field, set_size};
use crate::subnet::{ip, subnet};
use crate::table::{Base, Chain, Table};

/// The longest comment that nft and libnftnl keep, in bytes (`NFTNL_UDATA_COMMENT_MAXLEN` is one more, for the NUL).
pub const LONGEST_COMMENT: usize = 127;

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
        for effect in &rule.effects {
            word(&effect.text())?;
        }
        if rule.action != Action::Continue {
            word(&NftAction(&rule.action))?;
        }
        match &rule.comment {
            Some(comment) => word(&format_args!("comment \"{comment}\"")),
            None => Ok(()),
        }
    }
}

/// Whether nft leaves a condition out because the next one implies it: `tcp dport 80` implies TCP, and `ip saddr`
/// implies IPv4.
pub fn is_implied(condition: &Condition, next: Option<&Condition>) -> bool {
    match next {
        Some(Condition::In { field: Field::SourcePort | Field::DestinationPort, .. }) => {
            *condition == Condition::is(Field::Protocol, TCP)
        }
        Some(Condition::In { field: Field::Source(family) | Field::Destination(family), .. }) => {
            *condition == family_condition(*family)
        }
        _ => false,
    }
}

/// The condition that a packet is of this family, for tables that see both.
pub fn family_condition(family: Family) -> Condition {
    Condition::is(Field::Family, nfproto(family))
}

/// A family's number in netfilter: `NFPROTO_IPV4` or `NFPROTO_IPV6` in linux/netfilter.h.
pub fn nfproto(family: Family) -> u128 {
    match family {
        Family::V4 => 2,
        Family::V6 => 10,
    }
}

/// `NFPROTO_ARP`
pub const ARP: u128 = 3;

pub struct NftCondition<'a>(pub &'a Condition);

impl fmt::Display for NftCondition<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Condition::In { field, values, negated } = self.0 else {
            return f.write_str(self.0.text().unwrap_or_default());
        };
        f.write_str(field.facts().nft)?;
        f.write_str(if *negated { " != " } else { " " })?;
        match values {
            Values::Set(name) => write!(f, "@{name}"),
            Values::Interval(interval) => f.write_str(&element(*field, *interval)),
            Values::Listed(list) => {
                let list: Vec<_> = list.iter().map(|&interval| element(*field, interval)).collect();
                if let [one] = list.as_slice() { f.write_str(one) } else { write!(f, "{{ {} }}", list.join(", ")) }
            }
        }
    }
}

/// The condition that a field under this mask is this number or, if negated, that it isn't.
pub fn masked_condition(field: Field, mask: u128, number: u128, negated: bool) -> Condition {
    let operator = if negated { "!=" } else { "==" };
    let width = field.bits() as usize / 4 + 2;
    Condition::Masked {
        text: format!("{} & {mask:#0width$x} {operator} {number:#0width$x}", field.facts().nft),
        field,
        mask,
        number,
        negated,
    }
}

/// An interval of a field's numbers as nft lists it in a rule.
pub fn element(field: Field, (first, last): (u128, u128)) -> String {
    match field {
        Field::InInterface | Field::OutInterface => format!("\"{}\"", interface_name(first, last)),
        Field::Source(family) | Field::Destination(family) if first != last => {
            subnet(family, (first, last)).map_or_else(|| set_element(field, (first, last)), |subnet| subnet.to_string())
        }
        _ => set_element(field, (first, last)),
    }
}

/// The names of the most common protocols in /etc/protocols, by which nft and iptables-save write them.
const PROTOCOLS: [(u128, &str); 8] =
    [(1, "icmp"), (2, "igmp"), (TCP, "tcp"), (17, "udp"), (47, "gre"), (50, "esp"), (58, "ipv6-icmp"), (132, "sctp")];

fn number(field: Field, number: u128) -> String {
    match field {
        Field::Family if number == nfproto(Family::V4) => "ipv4".to_owned(),
        Field::Family if number == nfproto(Family::V6) => "ipv6".to_owned(),
        Field::Protocol => match PROTOCOLS.into_iter().find(|(known, _)| *known == number) {
            Some((_, name)) => name.to_owned(),
            None => number.to_string(),
        },
        Field::Source(family) | Field::Destination(family) => {
            ip(family, number).map_or_else(|| number.to_string(), |address| address.to_string())
        }
        _ => number.to_string(),
    }
}

/// The name of the interface that these numbers stand for; a prefix ends in an asterisk, as nft writes it.
pub fn interface_name(first: u128, last: u128) -> String {
    let bytes = first.to_be_bytes();
    let name: Vec<u8> = bytes.into_iter().take_while(|&byte| byte != 0).collect();
    let end = if first == last { "" } else { "*" };
    format!("{}{end}", Name::from(&name))
}

pub struct NftAction<'a>(pub &'a Action);

impl fmt::Display for NftAction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Action::Continue => f.write_str("continue"),
            Action::Accept => f.write_str("accept"),
            Action::Drop => f.write_str("drop"),
            Action::Return => f.write_str("return"),
            Action::Jump(chain) => write!(f, "jump {chain}"),
            Action::Goto(chain) => write!(f, "goto {chain}"),
            Action::Redirect(None) => f.write_str("redirect"),
            Action::Redirect(Some(ports)) => write!(f, "redirect to :{}", span(*ports)),
            Action::Map(field, map) => write!(f, "{} vmap @{map}", field.facts().nft),
            Action::RedirectByMap(field, map) => write!(f, "redirect to :{} map @{map}", field.facts().nft),
            Action::Nat(Nat { text, .. }) | Action::Reject(text) | Action::NotUnderstood(text) => f.write_str(text),
        }
    }
}

/// Calls `tell` with each command that would make a table's sets and rules.
pub fn commands(table: &Table, mut tell: impl FnMut(fmt::Arguments<'_>)) {
    for set in &table.sets {
        let (name, elements) = (&set.name, set_listing(set));
        tell(format_args!("nft add element {table} {name} {{ {elements} }}"));
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

fn set_listing(set: &Set) -> String {
    let elements = set_elements(set).into_iter();
    let elements: Vec<_> = elements.map(|interval| set_element(set_field(set), interval)).collect();
    elements.join(", ")
}

fn set_script(set: &Set) -> String {
    let (datatype, _) = datatype(set_field(set));
    let flags = match Shape::of(set) {
        Shape::Intervals => "\t\tflags interval\n".to_owned(),
        Shape::Numbers => String::new(),
        Shape::Hashed => format!("\t\tflags timeout\n\t\tgc-interval 1d\n\t\tsize {}\n", set_size(set)),
    };
    let (name, elements) = (&set.name, set_listing(set));
    format!("\tset {name} {{\n\t\ttype {datatype}\n{flags}\t\telements = {{ {elements} }}\n\t}}\n")
}

/// nft's name for the type of a set of this field, and its number (`enum datatypes` in nftables' datatype.h).
pub fn datatype(field: Field) -> (&'static str, u32) {
    match field {
        Field::Source(Family::V4) | Field::Destination(Family::V4) => ("ipv4_addr", 7),
        Field::Source(Family::V6) | Field::Destination(Family::V6) => ("ipv6_addr", 8),
        _ => ("inet_service", 13),
    }
}

/// An element of a set as nft writes it.
pub fn set_element(field: Field, (first, last): (u128, u128)) -> String {
    span((number(field, first), number(field, last)))
}

fn chain_script(chain: &Chain) -> String {
    let mut script = format!("\tchain {} {{\n", chain.name);
    if let Some(base) = chain.base {
        let Base { kind, hook, priority, policy } = base;
        let _ = writeln!(script, "\t\ttype {kind} hook {hook} priority {priority}; policy {policy};");
    }
    for rule in &chain.rules {
        let _ = writeln!(script, "\t\t{}", NftRule(rule));
    }
    script + "\t}\n"
}

#[cfg(test)]
mod tests;
