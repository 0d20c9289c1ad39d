//! Rules as nft lists them.

use std::fmt::{self, Write as _};

use crate::rules::family::Family;
use crate::rules::rule::{Action, Condition, Field, Nat, Rule, TCP, Values};
use crate::rules::set::{Set, Shape, set_elements, set_field, set_size};
use crate::rules::subnet::{ip, subnet};
use crate::rules::table::{Chain, Kind, Table};

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
        // Without a verdict, the action says them.
        let has_verdict = !matches!(rule.action, Action::Continue(_));
        for effect in rule.effects.iter().filter(|_| has_verdict) {
            word(&effect.text())?;
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
pub fn is_implied(condition: &Condition, next: Option<&Condition>) -> bool {
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

/// A condition in nft's language.
pub struct NftCondition<'a>(pub &'a Condition);

impl fmt::Display for NftCondition<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Condition::In { field, values, negated } => {
                f.write_str(field_name(*field))?;
                f.write_str(if *negated { " != " } else { " " })?;
                match values {
                    Values::Set(name) => write!(f, "@{name}"),
                    Values::Interval(interval) => f.write_str(&element(*field, *interval)),
                    Values::Listed(list) => match list.as_slice() {
                        [interval] => f.write_str(&element(*field, *interval)),
                        list => {
                            let list: Vec<_> = list.iter().map(|&interval| element(*field, interval)).collect();
                            write!(f, "{{ {} }}", list.join(", "))
                        }
                    },
                }
            }
            Condition::Flags { text, .. } | Condition::Masked { text, .. } | Condition::Unknown(text) => {
                f.write_str(text)
            }
        }
    }
}

/// What nft calls a field.
pub fn field_name(field: Field) -> &'static str {
    match field {
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
        Field::State => "ct state",
        Field::Mark => "meta mark",
        Field::ConnectionMark => "ct mark",
        Field::TcpFlags => "tcp flags",
    }
}

/// The condition that these bits of a field are those of the number; or, if negated, that they are not.
pub fn masked(field: Field, mask: u128, number: u128, negated: bool) -> Condition {
    let operator = if negated { "!=" } else { "==" };
    let width = field.bits() as usize / 4 + 2;
    Condition::Masked {
        text: format!("{} & {mask:#0width$x} {operator} {number:#0width$x}", field_name(field)),
        field,
        mask,
        number,
        negated,
    }
}

/// Numbers of a field as nft writes them: one, or an interval.
pub fn element(field: Field, (first, last): (u128, u128)) -> String {
    match field {
        Field::InInterface | Field::OutInterface => format!("\"{}\"", interface_name(first, last)),
        Field::Source(family) | Field::Destination(family) if first != last => {
            let subnet = subnet(family, (first, last)).map(|subnet| subnet.to_string());
            subnet.unwrap_or_else(|| set_element(field, (first, last)))
        }
        _ => set_element(field, (first, last)),
    }
}

/// The names of the most usual protocols in /etc/protocols, by which nft and iptables-save write them.
const PROTOCOLS: [(u128, &str); 8] = [
    (1, "icmp"),
    (2, "igmp"),
    (TCP, "tcp"),
    (17, "udp"),
    (47, "gre"),
    (50, "esp"),
    (58, "ipv6-icmp"),
    (132, "sctp"),
];

fn number(field: Field, number: u128) -> String {
    match field {
        Field::Family if number == nfproto(Family::V4) => "ipv4".to_owned(),
        Field::Family if number == nfproto(Family::V6) => "ipv6".to_owned(),
        Field::Protocol => match PROTOCOLS.into_iter().find(|(known, _)| *known == number) {
            Some((_, name)) => name.to_owned(),
            None => number.to_string(),
        },
        Field::Source(family) | Field::Destination(family) => match ip(family, number) {
            Some(address) => address.to_string(),
            None => number.to_string(),
        },
        _ => number.to_string(),
    }
}

/// The name of the interface that these numbers stand for; a prefix ends in an asterisk, as nft writes it.
pub fn interface_name(first: u128, last: u128) -> String {
    let bytes = first.to_be_bytes();
    let name: Vec<u8> = bytes.into_iter().take_while(|&byte| byte != 0).collect();
    let end = if first == last { "" } else { "*" };
    format!("{}{end}", crate::rules::name::Name::from(&name))
}

/// An action in nft's language.
pub struct NftAction<'a>(pub &'a Action);

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
            Action::Map(field, map) => write!(f, "{} vmap @{map}", field_name(*field)),
            Action::RedirectByMap(field, map) => write!(f, "redirect to :{} map @{map}", field_name(*field)),
            Action::Nat(Nat { text, .. }) | Action::Unknown(text) => f.write_str(text),
        }
    }
}

/// Hands the commands that would make a table's sets and rules to `tell`, one by one.
pub fn commands(table: &Table, mut tell: impl FnMut(fmt::Arguments<'_>)) {
    for set in &table.sets {
        let (name, elements) = (&set.name, listed(set));
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

/// A set's elements as nft lists them.
fn listed(set: &Set) -> String {
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
    let (name, elements) = (&set.name, listed(set));
    format!("\tset {name} {{\n\t\ttype {datatype}\n{flags}\t\telements = {{ {elements} }}\n\t}}\n")
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
        let policy = base.policy;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::flags::{CtState, ct_state};
    use crate::rules::hook::Hook;
    use crate::rules::name::Name;
    use crate::rules::rule::{Counters, interface};
    use crate::rules::table::Policy;
    use crate::rules::{
        examples::base, examples::chain, examples::commented, examples::not, examples::ports, examples::rule,
        examples::table, examples::to_port,
    };

    const TEN: (u128, u128) = (0x0a00_0000, 0x0aff_ffff);
    const TEST_NET: u128 = 0xc000_0200;
    const V6: u128 = 0x2001_0db8 << 96;

    fn listed(field: Field, list: &[(u128, u128)]) -> Condition {
        Condition::is(field, Values::Listed(list.to_vec()))
    }

    /// The interfaces whose names begin so.
    fn beginning(name: &[u8]) -> (u128, u128) {
        let first = interface(name);
        (first, first | (u128::MAX >> (8 * name.len())))
    }

    /// Each text is a line of what `nft list` (1.0.6) printed of a rule with this condition.
    #[test]
    fn conditions_are_written_as_nft_lists_them() {
        let (v4, v6) = (Family::V4, Family::V6);
        for (condition, text) in [
            (is_of(v4), "meta nfproto ipv4"),
            (masked(Field::Mark, 1, 1, false), "meta mark & 0x00000001 == 0x00000001"),
            (
                masked(Field::ConnectionMark, 0xff, 2, true),
                "ct mark & 0x000000ff != 0x00000002",
            ),
            (is_of(v6), "meta nfproto ipv6"),
            (Condition::is(Field::Protocol, TCP), "meta l4proto tcp"),
            (Condition::is(Field::Protocol, 17), "meta l4proto udp"),
            (Condition::is(Field::Protocol, 58), "meta l4proto ipv6-icmp"),
            (Condition::is(Field::Protocol, 200), "meta l4proto 200"),
            (not(Condition::is(Field::Protocol, TCP)), "meta l4proto != tcp"),
            (Condition::is(Field::Source(v4), TEN), "ip saddr 10.0.0.0/8"),
            (
                not(Condition::is(Field::Destination(v4), TEST_NET + 1)),
                "ip daddr != 192.0.2.1",
            ),
            (
                Condition::is(Field::Source(v4), (TEST_NET + 1, TEST_NET + 3)),
                "ip saddr 192.0.2.1-192.0.2.3",
            ),
            (
                Condition::is(Field::Source(v6), (0xfd << 120, (0xfe << 120) - 1)),
                "ip6 saddr fd00::/8",
            ),
            (
                Condition::is(Field::Destination(v6), (V6 + 1, V6 + 3)),
                "ip6 daddr 2001:db8::1-2001:db8::3",
            ),
            (Condition::is(Field::SourcePort, 80), "tcp sport 80"),
            (
                Condition::is(Field::DestinationPort, (8000, 8100)),
                "tcp dport 8000-8100",
            ),
            (
                listed(Field::DestinationPort, &[(25, 25), (8000, 8100)]),
                "tcp dport { 25, 8000-8100 }",
            ),
            (
                not(listed(Field::DestinationPort, &[(25, 25), (26, 26)])),
                "tcp dport != { 25, 26 }",
            ),
            (
                Condition::is(Field::DestinationPort, Values::Set(Name::from("ignored"))),
                "tcp dport @ignored",
            ),
            (
                Condition::is(Field::InInterface, interface(b"eth0")),
                "iifname \"eth0\"",
            ),
            (Condition::is(Field::InInterface, beginning(b"eth")), "iifname \"eth*\""),
            (
                not(Condition::is(Field::OutInterface, interface(b"lo"))),
                "oifname != \"lo\"",
            ),
            (Condition::is(Field::Uid, 2102), "meta skuid 2102"),
            (Condition::is(Field::Uid, (0, 7)), "meta skuid 0-7"),
            (not(Condition::is(Field::Gid, 5)), "meta skgid != 5"),
            (ct_state(|state| state == CtState::New), "ct state new"),
            (
                Condition::Unknown("fib daddr type local".to_owned()),
                "fib daddr type local",
            ),
        ] {
            let written = NftRule(&rule([condition], Action::Accept)).to_string();
            assert_eq!(written, format!("{text} accept"));
        }
    }

    #[test]
    fn actions_are_written_as_nft_lists_them() {
        let name = Name::from("sub");
        for (action, text) in [
            (Action::Continue(None), ""),
            (
                Action::Continue(Some("log prefix \"x\"".to_owned())),
                "log prefix \"x\"",
            ),
            (Action::Accept, "accept"),
            (Action::Drop, "drop"),
            (Action::Return, "return"),
            (Action::Jump(name.clone()), "jump sub"),
            (Action::Goto(name.clone()), "goto sub"),
            (Action::Redirect(None), "redirect"),
            (Action::Redirect(Some((4143, 4143))), "redirect to :4143"),
            (Action::Redirect(Some((4143, 4150))), "redirect to :4143-4150"),
            (Action::Untrack, "notrack"),
            (Action::Map(Field::DestinationPort, name), "tcp dport vmap @sub"),
            (Action::Nat(Nat::somewhere("dnat to 10.0.0.1")), "dnat to 10.0.0.1"),
            (Action::Unknown("queue to 1".to_owned()), "queue to 1"),
        ] {
            assert_eq!(NftRule(&rule([], action)).to_string(), text);
        }
        assert_eq!(NftAction(&Action::Continue(None)).to_string(), "continue");
    }

    #[test]
    fn a_rule_is_its_conditions_counter_action_and_comment() {
        let tcp = || Condition::is(Field::Protocol, TCP);
        let counted = |rule: Rule| Rule {
            counters: Some(Counters::default()),
            ..rule
        };
        let source = Condition::is(Field::Source(Family::V4), TEN);
        let destination = Condition::is(Field::Destination(Family::V6), 1);
        for (rule, text) in [
            (rule([], Action::Continue(None)), ""),
            (counted(rule([], Action::Continue(None))), "counter"),
            (
                counted(commented("x y", rule([tcp(), to_port(80)], Action::Return))),
                "tcp dport 80 counter return comment \"x y\"",
            ),
            (commented("x", rule([], Action::Continue(None))), "comment \"x\""),
            // What the next condition implies is left out, and nothing else.
            (
                rule([tcp(), Condition::is(Field::SourcePort, 1)], Action::Drop),
                "tcp sport 1 drop",
            ),
            (
                rule([is_of(Family::V4), source.clone()], Action::Drop),
                "ip saddr 10.0.0.0/8 drop",
            ),
            (
                rule([is_of(Family::V6), destination.clone()], Action::Drop),
                "ip6 daddr ::1 drop",
            ),
            (
                rule([is_of(Family::V6), source.clone()], Action::Drop),
                "meta nfproto ipv6 ip saddr 10.0.0.0/8 drop",
            ),
            (
                rule([not(tcp()), to_port(80)], Action::Drop),
                "meta l4proto != tcp tcp dport 80 drop",
            ),
            (
                rule([to_port(80), tcp()], Action::Drop),
                "tcp dport 80 meta l4proto tcp drop",
            ),
            (
                rule([tcp(), source], Action::Drop),
                "meta l4proto tcp ip saddr 10.0.0.0/8 drop",
            ),
            (
                rule([tcp(), Condition::is(Field::Uid, 7)], Action::Drop),
                "meta l4proto tcp meta skuid 7 drop",
            ),
        ] {
            assert_eq!(NftRule(&rule).to_string(), text);
        }
    }

    #[test]
    fn numbers_are_written_as_their_fields_are() {
        let v4 = Field::Destination(Family::V4);
        for (field, interval, listed, in_set) in [
            (Field::DestinationPort, (80, 80), "80", "80"),
            (Field::DestinationPort, (80, 90), "80-90", "80-90"),
            (Field::Family, (7, 7), "7", "7"),
            (Field::Protocol, (200, 200), "200", "200"),
            (Field::Uid, (6, 17), "6-17", "6-17"),
            (v4, (TEST_NET, TEST_NET), "192.0.2.0", "192.0.2.0"),
            (v4, TEN, "10.0.0.0/8", "10.0.0.0-10.255.255.255"),
            (v4, (0, 2), "0.0.0.0-0.0.0.2", "0.0.0.0-0.0.0.2"),
            (
                Field::Source(Family::V6),
                (V6, V6 + 1),
                "2001:db8::/127",
                "2001:db8::-2001:db8::1",
            ),
        ] {
            assert_eq!(element(field, interval), listed);
            assert_eq!(set_element(field, interval), in_set);
        }
        assert_eq!(nfproto(Family::V4), 2, "NFPROTO_IPV4");
        assert_eq!(nfproto(Family::V6), 10, "NFPROTO_IPV6");
        assert_eq!(datatype(v4), ("ipv4_addr", 7));
        assert_eq!(datatype(Field::Source(Family::V4)), ("ipv4_addr", 7));
        assert_eq!(datatype(Field::Destination(Family::V6)), ("ipv6_addr", 8));
        assert_eq!(datatype(Field::Source(Family::V6)), ("ipv6_addr", 8));
        assert_eq!(datatype(Field::DestinationPort), ("inet_service", 13));
        let (first, last) = beginning(b"veth");
        assert_eq!(interface_name(first, last), "veth*");
        assert_eq!(interface_name(first, first), "veth");
    }

    fn with_sets() -> Table {
        let drop = base("late", Kind::Filter, Hook::Output, 10, vec![]);
        let mut table = table(
            "inet mine",
            vec![
                base(
                    "PREROUTING",
                    Kind::Nat,
                    Hook::Prerouting,
                    -100,
                    vec![rule([], Action::Jump(Name::from("sub")))],
                ),
                chain(
                    "sub",
                    vec![
                        rule([to_port(80)], Action::Return),
                        rule([Condition::is(Field::Protocol, TCP)], Action::Redirect(Some((1, 1)))),
                    ],
                ),
                drop,
            ],
        );
        table.chains[2].base.as_mut().unwrap().policy = Policy::Drop;
        let addresses = |name, bits, (first, last)| Set {
            bits,
            ..ports(name, &[(first, last)])
        };
        table.sets = vec![
            ports("ignored", &[(25, 25), (8000, 8100)]),
            addresses("v4", 32, TEN),
            addresses("v6", 128, (V6, V6)),
        ];
        table
    }

    /// nft 1.0.6 takes this, and lists a table with these chains, rules and elements.
    #[test]
    fn a_script_replaces_the_table() {
        let want = "\
table inet mine {
}
delete table inet mine
table inet mine {
	set ignored {
		type inet_service
		flags interval
		elements = { 25, 8000-8100 }
	}

	set v4 {
		type ipv4_addr
		flags interval
		elements = { 10.0.0.0-10.255.255.255 }
	}

	set v6 {
		type ipv6_addr
		flags interval
		elements = { 2001:db8:: }
	}

	chain PREROUTING {
		type nat hook prerouting priority -100; policy accept;
		jump sub
	}

	chain sub {
		tcp dport 80 return
		meta l4proto tcp redirect to :1
	}

	chain late {
		type filter hook output priority 10; policy drop;
	}
}
";
        assert_eq!(script(&with_sets()), want);
    }

    #[test]
    fn commands_add_elements_and_rules() {
        let mut told = Vec::new();
        commands(&with_sets(), |command| told.push(command.to_string()));
        assert_eq!(
            told,
            [
                "nft add element inet mine ignored { 25, 8000-8100 }",
                "nft add element inet mine v4 { 10.0.0.0-10.255.255.255 }",
                "nft add element inet mine v6 { 2001:db8:: }",
                "nft add rule inet mine PREROUTING jump sub",
                "nft add rule inet mine sub tcp dport 80 return",
                "nft add rule inet mine sub meta l4proto tcp redirect to :1",
            ]
        );
    }
}
