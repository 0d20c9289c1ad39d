//! Every rule is read back as it was written: a rule that can't be written is refused, and never written as
//! something else.

use proptest::prelude::*;
use ruleset::flags::{CtState, ct_state_condition};
use ruleset::testing::random;
use ruleset::{
    Action, Condition, Counters, Effect, Family, Field, Label, Name, Nat, NatKind, Rule, Set, TCP, TableFamily, Values,
    addresses, interface,
};

use super::written_and_read;

/// The sets of native mode's table.
fn sets() -> Vec<Set> {
    let set = |name: &str, bits| Set { bits, ..ruleset::testing::ports(name, &[(1, 2)]) };
    vec![set("ports", 16), set("v4", 32), set("v6", 128)]
}

fn field() -> impl Strategy<Value = Field> {
    prop::sample::select(Field::ALL.to_vec())
}

/// An interval of a field's numbers: among them subnets, single numbers, and all; and some that run backwards or that
/// the field doesn't have.
fn interval(field: Field) -> impl Strategy<Value = (u128, u128)> {
    let largest = field.largest();
    prop_oneof![
        any::<u128>().prop_map(move |number| (number & largest, number & largest)),
        prop::sample::select(vec![TCP, 80, interface(b"lo"), interface(b"0123456789abcdef"), 0, 1])
            .prop_map(|n| (n, n)),
        (any::<u128>(), 0..=128u32).prop_map(move |(number, bits)| {
            let hosts = 1u128.checked_shl(bits).unwrap_or(0).wrapping_sub(1) & largest;
            (number & largest & !hosts, (number | hosts) & largest)
        }),
        (any::<u128>(), any::<u128>()).prop_map(move |(first, last)| (first & largest, last & largest)),
        any::<(u128, u128)>(),
    ]
}

fn condition() -> impl Strategy<Value = Condition> {
    let compared = field().prop_flat_map(|field| {
        let set = prop::sample::select(vec!["ports", "v4", "v6", "missing"]);
        let values = prop_oneof![
            interval(field).prop_map(Values::Interval),
            prop::collection::vec(interval(field), 0..20).prop_map(Values::Listed),
            set.prop_map(|name| Values::Set(Name::from(name))),
        ];
        let negated = prop::bool::weighted(0.2);
        (values, negated).prop_map(move |(values, negated)| Condition::In { field, values, negated })
    });
    prop_oneof![
        20 => compared,
        1 => any::<bool>().prop_map(|is_new| ct_state_condition(|state| (state == CtState::New) == is_new)),
        1 => Just(Condition::NotUnderstood(Label::expression("osf"))),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    let name = || prop::sample::select(vec![Name::from("PROXY_INIT_OUTPUT"), Name::from("a\0b"), Name::from(b"\xff")]);
    prop_oneof![
        Just(Action::Return),
        name().prop_map(Action::Jump),
        any::<Option<(u16, u16)>>().prop_map(Action::Redirect),
        any::<u16>().prop_map(|port| Action::Redirect(Some((port, port)))),
        name().prop_map(Action::Goto),
        prop::sample::select(vec![
            Action::Accept,
            Action::Drop,
            Action::Continue,
            Action::Nat(Nat::of(NatKind::Masquerade)),
            Action::ByCase(Name::from("ports")),
            Action::NotUnderstood(Label::expression("queue")),
        ]),
    ]
}

fn rule() -> impl Strategy<Value = Rule> {
    let comment = prop::option::of(prop_oneof!["[ -~]{0,140}".prop_map(Name::of), Just(Name::from("a\0b"))]);
    let counters = any::<bool>().prop_map(|counts| counts.then(Counters::default));
    let effects = prop_oneof![
        9 => Just(vec![]),
        1 => prop::sample::select(vec![vec![Effect::Untrack], vec![Effect::Other(Label::expression("log"))]]),
    ];
    let conditions = prop::collection::vec(condition(), 0..4);
    (conditions, effects, action(), comment, counters).prop_map(|(conditions, effects, action, comment, counters)| {
        Rule { effects, conditions, lookup: None, action, comment, needs_tracking: false, counters, handle: 0 }
    })
}

proptest! {
    #![proptest_config(random(4096))]

    #[test]
    fn nft_mode_writes_a_rule_as_it_is_or_refuses_it(rule in rule()) {
        for family in Family::ALL {
            if let Ok(read) = written_and_read(TableFamily::Ip(family), &rule, &[]) {
                prop_assert_eq!(&read, &rule);
            }
        }
    }

    #[test]
    fn native_mode_writes_a_rule_as_it_is_or_refuses_it(rule in rule()) {
        if let Ok(read) = written_and_read(TableFamily::Inet, &rule, &sets()) {
            prop_assert_eq!(&read, &rule);
        }
    }
}

/// Each part that a mode can't write is named, beside a part that it can; a part that it can write is read back.
#[test]
fn subnets_of_the_tables_family_are_written() {
    for (family, subnet) in [(Family::V4, "10.0.0.0/8"), (Family::V6, "fd00::/8"), (Family::V4, "192.0.2.1/32")] {
        for field in [Field::Source(family), Field::Destination(family)] {
            let numbers = addresses(subnet.parse().unwrap());
            let rule = Rule::new(vec![Condition::is(field, numbers)], Action::Return);
            assert_eq!(written_and_read(TableFamily::Ip(family), &rule, &[]), Ok(rule), "{subnet}");
        }
    }
}

#[test]
fn what_is_refused_is_named() {
    let tcp = || Condition::is(Field::Protocol, TCP);
    let not = ruleset::testing::not;
    let many = Values::Listed((1..=16).map(|port| (port, port)).collect());
    for (condition, nft, native) in [
        (not(tcp()), Some("meta l4proto != tcp"), None),
        (Condition::is(Field::Family, 2), Some("meta nfproto ipv4"), None),
        (Condition::is(Field::DestinationPort, Values::Listed(vec![])), Some("tcp dport {  }"), Some("tcp dport {  }")),
        (Condition::is(Field::DestinationPort, Values::Listed(vec![(80, 80)])), None, Some("tcp dport 80")),
        (Condition::is(Field::DestinationPort, many), Some("tcp dport { 1, 2"), Some("tcp dport { 1, 2")),
        (Condition::is(Field::DestinationPort, (80, 90)), None, Some("tcp dport 80-90")),
        (Condition::is(Field::DestinationPort, 65_536), Some("tcp dport 65536"), Some("tcp dport 65536")),
        (
            Condition::is(Field::Source(Family::V4), (1, 6)),
            Some("ip saddr 0.0.0.1-0.0.0.6"),
            Some("ip saddr 0.0.0.1-0.0.0.6"),
        ),
        (Condition::is(Field::Source(Family::V6), 1), Some("ip6 saddr ::1"), None),
        (Condition::is(Field::Uid, (5, 9)), None, None),
        (not(Condition::is(Field::Gid, 7)), None, None),
        (
            Condition::is(Field::OutInterface, interface(b"0123456789abcdef")),
            Some("oifname \"0123456789abcdef\""),
            None,
        ),
        // A prefix of names, which must not become the one name.
        (
            Condition::is(Field::OutInterface, (interface(b"eth"), interface(b"eth") | u128::MAX >> 24)),
            Some("oifname \"eth*\""),
            Some("oifname \"eth*\""),
        ),
        (Condition::NotUnderstood(Label::expression("osf")), Some("[osf]"), Some("[osf]")),
        (ct_state_condition(|state| state == CtState::New), Some("ct state new"), Some("ct state new")),
    ] {
        let rule = ruleset::testing::rule([tcp(), condition], Action::Return);
        for (result, wanted) in [
            (written_and_read(TableFamily::Ip(Family::V4), &rule, &[]), nft),
            (written_and_read(TableFamily::Inet, &rule, &sets()), native),
        ] {
            match wanted {
                None => assert_eq!(result, Ok(rule.clone())),
                Some(words) => {
                    let error = result.unwrap_err();
                    assert!(error.starts_with(words), "{words}: {error}");
                }
            }
        }
    }
    for (action, nft, native) in [
        (Action::Accept, false, false),
        (Action::Continue, false, false),
        (Action::Goto(Name::from("PROXY_INIT_OUTPUT")), false, false),
        (Action::NotUnderstood(Label::expression("queue")), false, false),
        (Action::Return, true, true),
        (Action::Jump(Name::from("PROXY_INIT_OUTPUT")), true, true),
        (Action::Redirect(Some((4143, 4143))), true, true),
        (Action::Redirect(Some((80, 90))), true, false),
        (Action::Redirect(None), true, false),
    ] {
        let rule = ruleset::testing::rule([tcp()], action);
        assert_eq!(written_and_read(TableFamily::Ip(Family::V4), &rule, &[]).is_ok(), nft, "{rule:?}");
        assert_eq!(written_and_read(TableFamily::Inet, &rule, &sets()).is_ok(), native, "{rule:?}");
    }
}
