use super::*;
use crate::flags::{CtState, ct_state_condition, tracking_condition};
use crate::hook::Hook;
use crate::name::Name;
use crate::rule::{Counters, Effect, Nat, interface};
use crate::table::{Kind, Policy};
use crate::{
    testing::base, testing::chain, testing::commented, testing::effect_of, testing::not, testing::ports, testing::rule,
    testing::table, testing::to_port,
};

const TEN: (u128, u128) = (0x0a00_0000, 0x0aff_ffff);
const TEST_NET: u128 = 0xc000_0200;
const V6: u128 = 0x2001_0db8 << 96;

fn listed(field: Field, list: &[(u128, u128)]) -> Condition {
    Condition::is(field, Values::Listed(list.to_vec()))
}

fn masked(field: Field, mask: u128, number: u128, negated: bool) -> Condition {
    Condition::Masked { field, mask, number, negated }
}

/// The interfaces whose names begin so.
fn names_beginning_with(name: &[u8]) -> (u128, u128) {
    let first = interface(name);
    (first, first | (u128::MAX >> (8 * name.len())))
}

/// Each text is a line of `nft list` (1.0.6) about a rule with this condition.
#[test]
fn conditions_are_written_as_nft_lists_them() {
    let (v4, v6) = (Family::V4, Family::V6);
    for (condition, text) in [
        (family_condition(v4), "meta nfproto ipv4"),
        (masked(Field::Mark, 1, 1, false), "meta mark & 0x00000001 == 0x00000001"),
        (masked(Field::ConnectionMark, 0xff, 2, true), "ct mark & 0x000000ff != 0x00000002"),
        (family_condition(v6), "meta nfproto ipv6"),
        (Condition::is(Field::Protocol, TCP), "meta l4proto tcp"),
        (Condition::is(Field::Protocol, 17), "meta l4proto udp"),
        (Condition::is(Field::Protocol, 58), "meta l4proto ipv6-icmp"),
        (Condition::is(Field::Protocol, 200), "meta l4proto 200"),
        (not(Condition::is(Field::Protocol, TCP)), "meta l4proto != tcp"),
        (Condition::is(Field::Source(v4), TEN), "ip saddr 10.0.0.0/8"),
        (not(Condition::is(Field::Destination(v4), TEST_NET + 1)), "ip daddr != 192.0.2.1"),
        (Condition::is(Field::Source(v4), (TEST_NET + 1, TEST_NET + 3)), "ip saddr 192.0.2.1-192.0.2.3"),
        (Condition::is(Field::Source(v6), (0xfd << 120, (0xfe << 120) - 1)), "ip6 saddr fd00::/8"),
        (Condition::is(Field::Destination(v6), (V6 + 1, V6 + 3)), "ip6 daddr 2001:db8::1-2001:db8::3"),
        (Condition::is(Field::SourcePort, 80), "tcp sport 80"),
        (Condition::is(Field::DestinationPort, (8000, 8100)), "tcp dport 8000-8100"),
        (listed(Field::DestinationPort, &[(25, 25), (8000, 8100)]), "tcp dport { 25, 8000-8100 }"),
        (not(listed(Field::DestinationPort, &[(25, 25), (26, 26)])), "tcp dport != { 25, 26 }"),
        (Condition::is(Field::DestinationPort, Values::Set(Name::from("ignored"))), "tcp dport @ignored"),
        (Condition::is(Field::InInterface, interface(b"eth0")), "iifname \"eth0\""),
        (Condition::is(Field::InInterface, names_beginning_with(b"eth")), "iifname \"eth*\""),
        (not(Condition::is(Field::OutInterface, interface(b"lo"))), "oifname != \"lo\""),
        (Condition::is(Field::Uid, 2102), "meta skuid 2102"),
        (Condition::is(Field::Uid, (0, 7)), "meta skuid 0-7"),
        (not(Condition::is(Field::Gid, 5)), "meta skgid != 5"),
        (ct_state_condition(|state| state == CtState::New), "ct state new"),
        (masked(Field::TcpFlags, 0x17, 0x02, false), "tcp flags syn / fin,syn,rst,ack"),
        (masked(Field::TcpFlags, 0x17, 0x02, true), "tcp flags != syn / fin,syn,rst,ack"),
        (masked(Field::TcpFlags, 0xff, 0x02, true), "tcp flags != syn"),
        (masked(Field::TcpFlags, 0x10, 0, true), "tcp flags ack"),
        (masked(Field::TcpFlags, 0x10, 0, false), "tcp flags ! ack"),
        (ct_state_condition(|state| state.bit() & (2 | 4) != 0), "ct state established,related"),
        (ct_state_condition(|state| state != CtState::New), "ct state != new"),
        (tracking_condition(|of| of.state.has_entry() && of.has_dnat), "ct status dnat"),
        (tracking_condition(|of| of.state.has_entry() && !of.has_dnat), "ct status & 0x20 == 0x0"),
        (tracking_condition(|of| of.state.has_entry() && of.is_reply), "ct direction reply"),
        (Condition::Constant { of: Label::Fragment, holds: false }, "ip frag-off & 0x1fff != 0"),
        (Condition::NotUnderstood(Label::expression("osf")), "[osf]"),
    ] {
        let written = NftRule(&rule([condition], Action::Accept)).to_string();
        assert_eq!(written, format!("{text} accept"));
    }
}

#[test]
fn actions_are_written_as_nft_lists_them() {
    let name = Name::from("sub");
    for (action, text) in [
        (Action::Continue, ""),
        (Action::Accept, "accept"),
        (Action::Drop, "drop"),
        (Action::Return, "return"),
        (Action::Jump(name.clone()), "jump sub"),
        (Action::Goto(name.clone()), "goto sub"),
        (Action::Redirect(None), "redirect"),
        (Action::Redirect(Some((4143, 4143))), "redirect to :4143"),
        (Action::Redirect(Some((4143, 4150))), "redirect to :4143-4150"),
        (Action::Nat(Nat::of(NatKind::Masquerade)), "masquerade"),
        (Action::NotUnderstood(Label::expression("queue")), "[queue]"),
    ] {
        assert_eq!(NftRule(&rule([], action)).to_string(), text);
    }
    assert_eq!(NftAction(&Action::Continue).to_string(), "continue");
    for (effect, text) in [(Effect::Untrack, "notrack"), (Effect::Other(Label::expression("log")), "[log]")] {
        assert_eq!(NftRule(&effect_of([], effect)).to_string(), text);
    }
}

#[test]
fn a_rule_is_its_conditions_counter_action_and_comment() {
    let tcp = || Condition::is(Field::Protocol, TCP);
    let counted = |rule: Rule| Rule { counters: Some(Counters::default()), ..rule };
    let source = Condition::is(Field::Source(Family::V4), TEN);
    let destination = Condition::is(Field::Destination(Family::V6), 1);
    for (rule, text) in [
        (rule([], Action::Continue), ""),
        (counted(rule([], Action::Continue)), "counter"),
        (
            counted(commented("x y", rule([tcp(), to_port(80)], Action::Return))),
            "tcp dport 80 counter return comment \"x y\"",
        ),
        (commented("x", rule([], Action::Continue)), "comment \"x\""),
        // A condition that the next one implies is left out, and nothing else.
        (rule([tcp(), Condition::is(Field::SourcePort, 1)], Action::Drop), "tcp sport 1 drop"),
        (rule([family_condition(Family::V4), source.clone()], Action::Drop), "ip saddr 10.0.0.0/8 drop"),
        (rule([family_condition(Family::V6), destination.clone()], Action::Drop), "ip6 daddr ::1 drop"),
        (
            rule([family_condition(Family::V6), source.clone()], Action::Drop),
            "meta nfproto ipv6 ip saddr 10.0.0.0/8 drop",
        ),
        (rule([not(tcp()), to_port(80)], Action::Drop), "meta l4proto != tcp tcp dport 80 drop"),
        (rule([to_port(80), tcp()], Action::Drop), "tcp dport 80 meta l4proto tcp drop"),
        (rule([tcp(), source], Action::Drop), "meta l4proto tcp ip saddr 10.0.0.0/8 drop"),
        (rule([tcp(), Condition::is(Field::Uid, 7)], Action::Drop), "meta l4proto tcp meta skuid 7 drop"),
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
        (Field::Source(Family::V6), (V6, V6 + 1), "2001:db8::/127", "2001:db8::-2001:db8::1"),
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
    let (first, last) = names_beginning_with(b"veth");
    assert_eq!(interface_name(first, last), "veth*");
    assert_eq!(interface_name(first, first), "veth");
}

fn with_sets() -> Table {
    let drop = base("late", Kind::Filter, Hook::Output, 10, vec![]);
    let mut table = table(
        "inet mine",
        vec![
            base("PREROUTING", Kind::Nat, Hook::Prerouting, -100, vec![rule([], Action::Jump(Name::from("sub")))]),
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
    let addresses = |name, bits, (first, last)| Set { bits, ..ports(name, &[(first, last)]) };
    table.sets =
        vec![ports("ignored", &[(25, 25), (8000, 8100)]), addresses("v4", 32, TEN), addresses("v6", 128, (V6, V6))];
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
