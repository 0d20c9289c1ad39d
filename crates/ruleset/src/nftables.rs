//! Rules as nft lists them.

use std::fmt::{self, Write as _};

use crate::family::Family;
use crate::field::Field;
use crate::flags::{CtState, STATUS_SHIFT, TCP_FLAGS, TrackingQuestion};
use crate::name::Name;
use crate::rule::{
    Action, Bits, Bound, Condition, Context, Effect, Label, Lookup, NatKind, Rejection, Rule, TCP, Value, Values, span,
};
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
        let asked = rule.lookup.as_ref().map(|lookup| asked(rule, lookup));
        let decides = matches!(rule.action, Action::ByCase(_));
        if let Some(asked) = asked.as_ref().filter(|_| !decides) {
            word(asked)?;
        }
        if rule.counters.is_some() {
            word(&"counter")?;
        }
        for effect in &rule.effects {
            word(&NftEffect(effect))?;
        }
        match asked.filter(|_| decides) {
            Some(asked) => word(&asked)?,
            None if rule.action == Action::Continue => {}
            None => word(&NftAction(&rule.action))?,
        }
        match &rule.comment {
            Some(comment) => word(&format_args!("comment \"{comment}\"")),
            None => Ok(()),
        }
    }
}

/// A rule's question to a set or a map, with what it does by the answer, as nft lists it.
pub(crate) fn asked(rule: &Rule, Lookup { set, key, negated, cases }: &Lookup) -> String {
    let mapped = format!("{key} map @{set}");
    match cases.iter().find_map(|case| case.value.as_ref()) {
        Some(Value::Mark(mark, _)) => format!("{} set {mapped}", mark.facts().nft),
        Some(Value::Action(Action::Redirect(_))) => format!("redirect to :{mapped}"),
        Some(Value::Action(Action::Nat(nat))) if nat.kind == NatKind::Source => format!("snat to {mapped}"),
        Some(Value::Action(Action::Nat(_))) => format!("dnat to {mapped}"),
        _ if matches!(rule.action, Action::ByCase(_)) => format!("{key} vmap @{set}"),
        _ => format!("{key} {}@{set}", not(*negated)),
    }
}

fn not(negated: bool) -> &'static str {
    if negated { "!= " } else { "" }
}

/// Returns true if nft leaves a condition out because the next one implies it: `tcp dport 80` implies TCP, and
/// `ip saddr` implies IPv4.
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
pub const fn nfproto(family: Family) -> u128 {
    match family {
        Family::V4 => 2,
        Family::V6 => 10,
    }
}

/// `NFPROTO_ARP`
pub const ARP: u128 = 3;

/// The protocol of a frame with this family's packet: `ETH_P_IP` or `ETH_P_IPV6`.
pub const fn ether_type(family: Family) -> u128 {
    match family {
        Family::V4 => 0x0800,
        Family::V6 => 0x86dd,
    }
}

/// `ETH_P_ARP`
pub const ETHER_ARP: u128 = 0x0806;

pub struct NftCondition<'a>(pub &'a Condition);

impl fmt::Display for NftCondition<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (field, values, negated) = match self.0 {
            Condition::In { field, values, negated } => (*field, values, *negated),
            &Condition::Masked { field, mask, number, negated } => {
                return write_masked(f, field, mask, number, negated);
            }
            Condition::Context(context) => return write_context(f, context),
            Condition::Constant { of: Label::Fragment, holds } => {
                return write!(f, "ip frag-off & 0x1fff {} 0", if *holds { "==" } else { "!=" });
            }
            Condition::Constant { of, .. } | Condition::NotUnderstood(of) => return write_label(f, of),
        };
        let question = values.listed().filter(|_| field == Field::State).and_then(TrackingQuestion::of);
        if let Some(question) = question.filter(|_| !negated) {
            return write_question(f, &question);
        }
        write!(f, "{} {}", field.facts().nft, not(negated))?;
        match values {
            Values::Set(name) => write!(f, "@{name}"),
            Values::Interval(interval) => f.write_str(&element(field, *interval)),
            Values::Listed(list) => f.write_str(&listed(list.iter().map(|&interval| element(field, interval)))),
        }
    }
}

fn write_masked(f: &mut fmt::Formatter<'_>, field: Field, mask: u128, number: u128, negated: bool) -> fmt::Result {
    let name = field.facts().nft;
    let operator = if negated { "!=" } else { "==" };
    if field == Field::TcpFlags {
        let flags = |bits| tcp_flags(bits, &TCP_FLAGS).join(",");
        let not = not(negated);
        return match (number, negated) {
            (0, true) => write!(f, "{name} {}", flags(mask)),
            (0, false) => write!(f, "{name} ! {}", flags(mask)),
            _ if mask == field.largest() => write!(f, "{name} {not}{}", flags(number)),
            _ => write!(f, "{name} {not}{} / {}", flags(number), flags(mask)),
        };
    }
    let width = field.bits() as usize / 4 + 2;
    write!(f, "{name} & {mask:#0width$x} {operator} {number:#0width$x}")
}

fn write_context(f: &mut fmt::Formatter<'_>, context: &Context) -> fmt::Result {
    match context {
        Context::AddressType { is_source, types, negated, of_device, .. } => {
            write!(f, "{} {}{}", routed_type(*is_source, *of_device), not(*negated), listed(address_types(*types)))
        }
        Context::ReversePath { is_loose, negated, .. } => {
            let by = if *is_loose { "" } else { " . iif" };
            write!(f, "fib saddr{by} oif {}", if *negated { "missing" } else { "exists" })
        }
        Context::IpSet { .. } => write_xt_match(f, "set"),
        Context::SocketClass { classes, negated } => {
            write!(f, "meta cgroup {}{}", not(*negated), listed(classes))
        }
        Context::Limit { holds_below, of } => {
            let over = if *holds_below { "" } else { "over " };
            match of {
                Bound::Rate { most, seconds, is_of_bytes } => {
                    let units = [(1, "second"), (60, "minute"), (3600, "hour"), (86400, "day"), (604_800, "week")];
                    let unit = units.iter().find(|(length, _)| length == seconds).map_or("[...]", |(_, name)| name);
                    let bytes = if *is_of_bytes { " bytes" } else { "" };
                    write!(f, "limit rate {over}{most}{bytes}/{unit}")
                }
                Bound::Bytes(most) => write!(f, "quota {}{most} bytes", if *holds_below { "until " } else { over }),
                Bound::Connections(most) => write!(f, "ct count {over}{most}"),
                Bound::Meter(set) => write!(f, "meter in @{set}"),
                Bound::XtRate { .. } => write_xt_match(f, "limit"),
                Bound::Extension(name) => write_xt_match(f, name),
            }
        }
    }
}

/// The type that routing gives an address, by the device in this field or by all.
pub fn routed_type(is_source: bool, of_device: Option<Field>) -> &'static str {
    match (is_source, of_device) {
        (true, None) => "fib saddr type",
        (false, None) => "fib daddr type",
        (true, Some(Field::InInterface)) => "fib saddr . iif type",
        (false, Some(Field::InInterface)) => "fib daddr . iif type",
        (true, Some(_)) => "fib saddr . oif type",
        (false, Some(_)) => "fib daddr . oif type",
    }
}

/// The right side of a comparison: a single item, or a set of them.
fn listed(items: impl IntoIterator<Item: ToString>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    if let [one] = items.as_slice() { one.clone() } else { format!("{{ {} }}", items.join(", ")) }
}

/// nft shows xt's extensions by their names alone.
fn write_xt_match(f: &mut fmt::Formatter<'_>, name: impl fmt::Display) -> fmt::Result {
    write!(f, "xt match \"{name}\"")
}

fn write_question(f: &mut fmt::Formatter<'_>, question: &TrackingQuestion) -> fmt::Result {
    match question {
        TrackingQuestion::State { states, has_snat, has_dnat, negated } => {
            let not = not(*negated);
            let mut names: Vec<String> = states.iter().map(CtState::to_string).collect();
            let nat = [(*has_snat, "snat"), (*has_dnat, "dnat")].into_iter();
            names.extend(nat.filter(|(is_so, _)| *is_so).map(|(_, name)| name.to_owned()));
            write!(f, "ct {} {not}{}", if states.is_empty() { "status" } else { "state" }, names.join(","))
        }
        TrackingQuestion::Status { mask, bits, negated } => {
            let [mask, bits] = [mask, bits].map(|bits| bits << STATUS_SHIFT);
            write!(f, "ct status & {mask:#x} {} {bits:#x}", if *negated { "!=" } else { "==" })
        }
        TrackingQuestion::Direction { is_reply, .. } => {
            write!(f, "ct direction {}", if *is_reply { "reply" } else { "original" })
        }
    }
}

/// The names of these of TCP's flags.
pub(crate) fn tcp_flags<'a>(bits: u128, names: &[&'a str]) -> Vec<&'a str> {
    let numbered = names.iter().enumerate();
    numbered.filter(|(bit, _)| bits >> bit & 1 != 0).map(|(_, name)| *name).collect()
}

/// The names of these types of addresses, a bit for each by the number of `RTN_*`. They are nft's; iptables' are the same
/// in capitals.
pub(crate) fn address_types(types: u16) -> Vec<&'static str> {
    let names = "unspec unicast local broadcast anycast multicast blackhole unreachable prohibit throw nat xresolve";
    names.split(' ').enumerate().filter(|(number, _)| types >> number & 1 != 0).map(|(_, name)| name).collect()
}

/// Writes the part as nft lists it: nf_tables' expressions have their names in brackets.
fn write_label(f: &mut fmt::Formatter<'_>, label: &Label) -> fmt::Result {
    match label {
        Label::Expressions(names) => {
            let names: Vec<String> = names.iter().map(|name| format!("[{name}]")).collect();
            f.write_str(&names.join(" "))
        }
        Label::Extension(name) => write!(f, "xt \"{name}\""),
        Label::Verdict(code) => write!(f, "[verdict {code}]"),
        Label::Fragment => f.write_str("ip frag-off"),
    }
}

pub struct NftEffect<'a>(pub &'a Effect);

impl fmt::Display for NftEffect<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Effect::Untrack => f.write_str("notrack"),
            Effect::Other(label) => write_label(f, label),
            Effect::Mark { field, to } => {
                write!(f, "{} set ", field.facts().nft)?;
                match *to {
                    Some(Bits { mask: 0, xor, .. }) => write!(f, "{xor:#x}"),
                    Some(bits) if bits == Bits::all(bits.field) => f.write_str(bits.field.facts().nft),
                    Some(Bits { field, mask, xor }) => write!(f, "{} & {mask:#x} ^ {xor:#x}", field.facts().nft),
                    None => f.write_str("[...]"),
                }
            }
        }
    }
}

/// An interval of a field's numbers as nft lists it in a rule.
pub fn element(field: Field, (first, last): (u128, u128)) -> String {
    match field {
        Field::InInterface | Field::OutInterface => format!("\"{}\"", interface_name(first, last)),
        _ if first != last
            && let Some(subnet) = field.address_family().and_then(|family| subnet(family, (first, last))) =>
        {
            subnet.to_string()
        }
        _ => set_element(field, (first, last)),
    }
}

/// The names of the most common protocols in /etc/protocols, by which nft and iptables-save write them.
const PROTOCOLS: [(u128, &str); 8] =
    [(1, "icmp"), (2, "igmp"), (TCP, "tcp"), (17, "udp"), (47, "gre"), (50, "esp"), (58, "ipv6-icmp"), (132, "sctp")];

/// The names of a field's numbers; most fields have none.
fn names(field: Field) -> &'static [(u128, &'static str)] {
    match field {
        Field::Family => const { &[(nfproto(Family::V4), "ipv4"), (nfproto(Family::V6), "ipv6")] },
        Field::EtherType => {
            const { &[(ether_type(Family::V4), "ip"), (ether_type(Family::V6), "ip6"), (ETHER_ARP, "arp")] }
        }
        Field::PacketType => &[(0, "host"), (1, "broadcast"), (2, "multicast"), (3, "other")],
        Field::Protocol => &PROTOCOLS,
        _ => &[],
    }
}

fn number(field: Field, number: u128) -> String {
    let address = || field.address_family().and_then(|family| ip(family, number));
    match names(field).iter().find(|(known, _)| *known == number) {
        Some((_, name)) => (*name).to_owned(),
        None if field == Field::EtherType => format!("{number:#06x}"),
        None => address().map_or_else(|| number.to_string(), |address| address.to_string()),
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
            Action::ByCase(map) => write!(f, "vmap @{map}"),
            Action::Nat(nat) => match (nat.kind, nat.ports) {
                (NatKind::Destination, _) => write!(f, "dnat to {}", nat.place()),
                (NatKind::Source, _) => write!(f, "snat to {}", nat.place()),
                (NatKind::Masquerade, None) => f.write_str("masquerade"),
                (NatKind::Masquerade, Some(_)) => write!(f, "masquerade to {}", nat.place()),
                (NatKind::Netmap, _) => f.write_str("dnat prefix to [...]"),
            },
            Action::Tproxy { port: Some(port), .. } => write!(f, "tproxy to :{port}"),
            Action::Tproxy { port: None, .. } => f.write_str("tproxy to [...]"),
            Action::Reject(rejection) => f.write_str(&reject(*rejection)),
            Action::NotUnderstood(label) => write_label(f, label),
        }
    }
}

/// Port-unreachable goes without saying.
fn reject(rejection: Rejection) -> String {
    const ICMPX: [&str; 4] = ["no-route", "port-unreachable", "host-unreachable", "admin-prohibited"];
    match rejection {
        Rejection::Reset => "reject with tcp reset".to_owned(),
        Rejection::Icmpx(1) | Rejection::Icmp(Family::V4, 3) | Rejection::Icmp(Family::V6, 4) => "reject".to_owned(),
        Rejection::Icmpx(code) => match ICMPX.get(usize::from(code)) {
            Some(name) => format!("reject with icmpx {name}"),
            None => format!("reject with icmpx {code}"),
        },
        Rejection::Icmp(family, code) => {
            let protocol = if family == Family::V4 { "icmp" } else { "icmpv6" };
            match unreachable_codes(family).find(|(known, ..)| *known == code) {
                Some((_, name, _)) => format!("reject with {protocol} {name}"),
                None => format!("reject with {protocol} {code}"),
            }
        }
    }
}

/// The codes of "destination unreachable", as nft calls them and as iptables does.
pub(crate) fn unreachable_codes(family: Family) -> impl Iterator<Item = (u8, &'static str, &'static str)> {
    let codes: &[(u8, &str, &str)] = match family {
        Family::V4 => &[
            (0, "net-unreachable", "icmp-net-unreachable"),
            (1, "host-unreachable", "icmp-host-unreachable"),
            (2, "prot-unreachable", "icmp-proto-unreachable"),
            (3, "port-unreachable", "icmp-port-unreachable"),
            (9, "net-prohibited", "icmp-net-prohibited"),
            (10, "host-prohibited", "icmp-host-prohibited"),
            (13, "admin-prohibited", "icmp-admin-prohibited"),
        ],
        Family::V6 => &[
            (0, "no-route", "icmp6-no-route"),
            (1, "admin-prohibited", "icmp6-adm-prohibited"),
            (2, "beyond-scope", "icmp6-not-neighbour"),
            (3, "addr-unreachable", "icmp6-addr-unreachable"),
            (4, "port-unreachable", "icmp6-port-unreachable"),
            (5, "policy-fail", "icmp6-policy-fail"),
            (6, "reject-route", "icmp6-reject-route"),
        ],
    };
    codes.iter().copied()
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
